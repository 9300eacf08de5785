// What it costs to get back what was evicted, for the policies that weigh it, and its measurement while serving.
#pragma once

#include <array>
#include <cstdint>

#include "base/clock.h"

namespace loramux {

// How it would come back.
enum class ReloadFrom : std::uint8_t {
  kHost,        // a copy
  kDisk,        // read, converted and packed
  kComputation  // keys and values: the tokens' prefill again
};

// In reads of a page from disk (with conversion and packing); policies use ratios alone.
struct ReloadCosts {
  struct Load {
    double page = 1;
    double latency = 8;  // whatever the size
  };
  // The start, until something was measured. A copy from the host tier takes about a tenth of a read from disk; the
  // prefill of a page's 16 tokens, at 2 multiply-adds a weight and token, many times as long.
  Load host = {.page = 0.1, .latency = 0.8};
  Load disk = {.page = 1, .latency = 8};
  double computed_page = 10;

  double Page(ReloadFrom from) const;
  double Latency(ReloadFrom from) const;  // of an adapter's load; of a computation none
};

// Measured times, smoothed: a line, latency + pages x time a page, through the loads of each tier, and the mean of the
// prefill of a page. Recent samples count more (as of the 32 last ones). Robust: after the first few, a sample counts
// as at most four times, and at least a quarter of, what was expected, so none changes a time by more than a tenth.
// Where all loads have about one size, the latency is taken to be that of 8 pages, as at the start. A value; reads no
// clock.
class ReloadCostEstimator {
 public:
  static constexpr std::int64_t kFewestSamples = 16;  // before a time counts

  struct Time {
    double page_ns = 0, latency_ns = 0;
    std::int64_t samples = 0;
  };

  // An adapter of so many pages was loaded from there, and nothing else on the way at the time. REQUIRES: not
  // kComputation.
  void SawLoad(ReloadFrom from, std::int64_t pages, TimeNs took);
  // The prefill of so many pages' tokens (a part of a page counts as such) in a step that did little else.
  void SawPrefill(double pages, TimeNs took);

  // Counts until enough samples are there. `time.samples` is not looked at; what takes no time is not taken.
  void Expect(ReloadFrom from, const Time& time);

  Time Of(ReloadFrom from) const;  // as measured
  // Of what has enough samples as measured, of the rest what is expected, or else the constants. The unit is the first
  // of these that is not a constant, at its constant: a page from disk, from the host tier, computed.
  ReloadCosts Costs() const;

 private:
  // Means of pages x, nanoseconds y.
  struct Line {
    std::int64_t samples = 0;
    double x = 0, y = 0, xx = 0, xy = 0;
    Time Fit() const;
    void Add(double pages, double ns);
  };
  std::array<Line, 2> loads_;  // from the host tier, from disk
  Line prefill_;
  std::array<Time, 3> expected_;  // by ReloadFrom; no page_ns: nothing is expected
};

}  // namespace loramux
