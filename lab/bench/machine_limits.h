// Measured limits of this machine, to compare kernels with. Each is the best of several measurements, on all threads of
// the pool.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/thread_pool.h"

namespace loramux {

// Seconds since an arbitrary origin.
double NowSeconds();

// Makes NowSeconds return the processor time of the calling thread. On a busy machine, with one thread, this excludes
// the time in which other programs have the core.
void UseCpuTime();

// Restricts all kernels to one of the instruction sets that this machine has, by Highway's name ("AVX2", "AVX3_ZEN4").
// Returns false, and changes nothing, if the machine or this program does not have it. REQUIRES: no kernel runs.
bool UseInstructionSet(const std::string& name);
// The names of the instruction sets that this machine has, the best first, separated by blanks.
std::string InstructionSets();

// Bytes per second at which all threads together read a buffer of `bytes` bytes, each thread its own part.
double ReadBandwidth(ThreadPool& pool, std::int64_t bytes, int repetitions);

// Floating-point operations per second (2 per multiply-add) of all threads together, on registers, at the instruction
// set that kernels are dispatched to.
double FmaPeak(ThreadPool& pool, int repetitions);

}  // namespace loramux
