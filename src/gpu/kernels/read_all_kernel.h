// The kernel of read_all.h.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/read_all.h"

namespace loramux::gpu {

struct ReadAllShared {
  std::uint32_t sums[kReadAllThreads / 32];  // sum of each warp
};

template <typename T>
struct ReadAllKernel {
  using Arguments = ReadAllArguments;
  static constexpr int kThreads = kReadAllThreads;
  static constexpr int kMinBlocks = 4;

  // Pieces that a thread asks for before it needs the first: they hide the latency of memory.
  static constexpr int kAhead = 4;

  LORAMUX_DEVICE static void Run(const Arguments& arguments) {
    const Vec4* from = static_cast<const Vec4*>(arguments.from);
    const std::int64_t step = static_cast<std::int64_t>(GridX()) * kThreads;
    std::uint32_t sum = 0;
    for (std::int64_t at = static_cast<std::int64_t>(BlockX()) * kThreads + ThreadIndex(); at < arguments.count;
         at += kAhead * step) {
      Vec4 pieces[kAhead];
      LORAMUX_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        pieces[i] = Vec4{0, 0, 0, 0};
        if (at + i * step < arguments.count) pieces[i] = LoadOnce(from + at + i * step);
      }
      LORAMUX_UNROLL
      for (int i = 0; i < kAhead; ++i) sum += pieces[i].x + pieces[i].y + pieces[i].z + pieces[i].w;
    }
    for (std::uint32_t mask = 16; mask > 0; mask /= 2) sum += ShuffleXor(sum, mask);
    ReadAllShared& shared = Shared<ReadAllShared>();
    if (Lane() == 0) shared.sums[Warp()] = sum;
    SyncBlock();
    if (ThreadIndex() != 0) return;
    for (int warp = 1; warp < kThreads / 32; ++warp) sum += shared.sums[warp];
    Store(arguments.sums + BlockX(), sum);
  }
};

}  // namespace loramux::gpu
