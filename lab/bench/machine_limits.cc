#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lab/bench/machine_limits.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"
//
#include "lab/bench/machine_limits.h"

#include <algorithm>
#include <atomic>
#include <ctime>

#include "base/clock.h"
#include "hwy/cache_control.h"
#include "hwy/targets.h"
#include "tensor/aligned_buffer.h"

HWY_BEFORE_NAMESPACE();
namespace loramux {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;

// Reads `bytes` (a multiple of 1024) bytes in four streams, each prefetched far enough ahead to cover the latency.
// Returns a value that depends on all of them.
std::uint32_t ReadAll(const std::byte* from, std::int64_t bytes) {
  constexpr std::int64_t kStreams = 4;
  constexpr std::int64_t kAheadWords = 1024;
  const hn::CappedTag<std::uint32_t, 16> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto* words = reinterpret_cast<const std::uint32_t*>(from);
  const std::int64_t stream = bytes / 4 / kStreams;
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (std::int64_t i = 0; i < stream; i += 16) {
    for (std::int64_t s = 0; s < kStreams; ++s) hwy::Prefetch(words + s * stream + i + kAheadWords);
    for (std::int64_t j = i; j < i + 16; j += lanes) {
      a = hn::Xor(a, hn::Load(d, words + j));
      b = hn::Xor(b, hn::Load(d, words + stream + j));
      c = hn::Xor(c, hn::Load(d, words + 2 * stream + j));
      e = hn::Xor(e, hn::Load(d, words + 3 * stream + j));
    }
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Xor(hn::Xor(a, b), hn::Xor(c, e))));
}

// `steps` rounds of kChains independent chains. Returns their sum, and the lanes of one chain in `lanes`. Twelve chains
// suffice for two ports at a latency of up to six cycles, and fit in 16 registers beside the factors.
float MultiplyAdd(std::int64_t steps, std::int64_t* lanes) {
  constexpr int kChains = 12;
  const DF d;
  const VF x = hn::Set(d, 0.5f), y = hn::Set(d, 1.0f);
  VF sum[kChains];
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) sum[c] = hn::Set(d, static_cast<float>(c));  // equal chains would be merged
  for (std::int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) sum[c] = hn::MulAdd(sum[c], x, y);
  }
  *lanes = static_cast<std::int64_t>(hn::Lanes(d)) * kChains;
  VF total = sum[0];
#pragma GCC unroll 16
  for (int c = 1; c < kChains; ++c) total = hn::Add(total, sum[c]);
  return hn::GetLane(hn::SumOfLanes(d, total));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace loramux
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace loramux {

HWY_EXPORT(ReadAll);
HWY_EXPORT(MultiplyAdd);

namespace {
bool use_cpu_time = false;
}

void UseCpuTime() { use_cpu_time = true; }

double NowSeconds() {
  if (use_cpu_time) {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  }
  static const OsClock clock;
  return static_cast<double>(clock.Now()) * 1e-9;
}

bool UseInstructionSet(const std::string& name) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (name != hwy::TargetName(target)) continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return true;
  }
  return false;
}

std::string InstructionSets() {
  std::string names;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (!names.empty()) names += ' ';
    names += hwy::TargetName(target);
  }
  return names;
}

double ReadBandwidth(ThreadPool& pool, std::int64_t bytes, int repetitions) {
  constexpr std::int64_t kPiece = 256 << 10;
  const std::int64_t pieces = bytes / kPiece;
  AlignedBuffer<std::byte> buffer(pieces * kPiece);
  std::fill(buffer.data(), buffer.data() + pieces * kPiece, std::byte{1});
  std::atomic<std::uint32_t> sink{0};
  double best = 1e30;
  for (int i = 0; i < repetitions; ++i) {
    const double start = NowSeconds();
    pool.Run(pieces, [&](std::int64_t piece, int) {
      sink.fetch_add(HWY_DYNAMIC_DISPATCH(ReadAll)(buffer.data() + piece * kPiece, kPiece), std::memory_order_relaxed);
    });
    best = std::min(best, NowSeconds() - start);
  }
  return static_cast<double>(pieces * kPiece) / best;
}

double FmaPeak(ThreadPool& pool, int repetitions) {
  constexpr std::int64_t kSteps = 400'000;
  std::atomic<std::int64_t> lanes{1};
  std::atomic<float> sink{0};
  double best = 1e30;
  for (int i = 0; i < repetitions; ++i) {
    const double start = NowSeconds();
    pool.Run(pool.size(), [&](std::int64_t, int) {
      std::int64_t own = 0;
      sink.store(HWY_DYNAMIC_DISPATCH(MultiplyAdd)(kSteps, &own), std::memory_order_relaxed);
      lanes.store(own, std::memory_order_relaxed);
    });
    best = std::min(best, NowSeconds() - start);
  }
  return static_cast<double>(kSteps * 2 * lanes.load() * pool.size()) / best;
}

}  // namespace loramux
#endif
