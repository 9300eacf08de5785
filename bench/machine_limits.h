// What this machine can do, measured: the limits that kernels are compared with. Both are best-of-several, on all
// threads of the pool.
#pragma once

#include <cstdint>

#include "kernels/thread_pool.h"

namespace loramux {

// Seconds since an arbitrary origin.
double NowSeconds();

// From now on NowSeconds is the processor time of the calling thread: on a busy machine, with one thread, it does not
// count the time for which other programs have the core.
void UseCpuTime();

// Bytes per second at which all threads together read a buffer of `bytes` bytes, each its own part.
double ReadBandwidth(ThreadPool& pool, std::int64_t bytes, int repetitions);

// Multiply-add operations (2 each) per second of all threads together, from registers, at the instruction set that
// kernels are dispatched to.
double FmaPeak(ThreadPool& pool, int repetitions);

}  // namespace loramux
