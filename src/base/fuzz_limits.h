// The limits on what one input may cost, for fuzzers. An input beyond them ends the run as a crash does, so that
// libFuzzer writes it to a file. Needs a sanitizer.
#pragma once

#include <sanitizer/allocator_interface.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>

namespace loramux {

// Make one at the start of LLVMFuzzerTestOneInput; its destructor checks the limits.
class FuzzLimits {
 public:
  // CPU time of this thread, which a busy machine does not change. The objective is 100 ms as released. Instrumented
  // code (coverage, AddressSanitizer, UndefinedBehaviorSanitizer, -O1) takes up to ten times as long.
  static constexpr double kMaxSeconds = 0.1 * 10;
  // All bytes that were allocated, freed ones too: no less than the peak.
  static constexpr std::size_t kMaxAllocatedBytes = std::size_t{64} << 20;

  FuzzLimits() : allocated_(Allocated().load(std::memory_order_relaxed)), seconds_(CpuSeconds()) {}
  FuzzLimits(const FuzzLimits&) = delete;
  FuzzLimits& operator=(const FuzzLimits&) = delete;
  ~FuzzLimits() {
    const double seconds = CpuSeconds() - seconds_;
    const std::size_t bytes = Allocated().load(std::memory_order_relaxed) - allocated_;
    if (seconds <= kMaxSeconds && bytes <= kMaxAllocatedBytes) return;
    std::fprintf(stderr, "the input took %.3f s of CPU time (at most %.1f) and allocated %zu bytes (at most %zu)\n",
                 seconds, kMaxSeconds, bytes, kMaxAllocatedBytes);
    std::abort();
  }

 private:
  static double CpuSeconds() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
  }

  // Bytes allocated by this process since the first call.
  static std::atomic<std::size_t>& Allocated() {
    static std::atomic<std::size_t> bytes{0};
    static const int installed = __sanitizer_install_malloc_and_free_hooks(
        [](const volatile void*, std::size_t size) { bytes.fetch_add(size, std::memory_order_relaxed); },
        [](const volatile void*) {});
    if (installed == 0) std::abort();  // no hook was free
    return bytes;
  }

  std::size_t allocated_;
  double seconds_;
};

}  // namespace loramux
