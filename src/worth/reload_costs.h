// The cost of getting evicted content back, as eviction policies use it, and its measurement while serving.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace loramux {

// Where evicted content comes back from.
enum class ReloadFrom : std::uint8_t {
  kHost,        // a copy from the host tier
  kDisk,        // read, converted and packed
  kComputation  // KV pages: prefill of their tokens again
};

// Costs in units of one page read from disk, including conversion and packing. Policies use only ratios of them.
struct ReloadCosts {
  // An assisted load still takes the link and the host's memory. It counts as at least this share of a load, so that
  // adapters keep their order where assistance costs nothing (the CPU reads the host tier in place).
  static constexpr double kLeastShare = 1.0 / 16;
  // Cost of a load: latency + page x pages.
  struct Load {
    double page = 1;
    double latency = 8;  // independent of the size
  };
  // Defaults until something is measured. A copy from the host tier takes about a tenth of a read from disk. The
  // prefill of the 16 tokens of a page, at 2 multiply-adds for each weight and token, takes many times as long.
  Load host = {.page = 0.1, .latency = 0.8};
  Load disk = {.page = 1, .latency = 8};
  double computed_page = 10;
  // With CPU assistance: what a request loses if it begins with the copy in the host tier, by the size of the adapter.
  // None: requests wait for loads.
  std::optional<Load> assisted;

  // Cost of getting an adapter of `pages` pages back: the load, or if that is less, the assistance until it has ended.
  // An adapter that must be read from disk cannot be assisted before that.
  double OfAdapter(ReloadFrom from, double pages) const;
  // The same for a load of another cost.
  double OrAssisted(ReloadFrom from, double pages, double load) const;
  // Cost of one page.
  double Page(ReloadFrom from) const;
  // Latency of an adapter's load; 0 for a computation.
  double Latency(ReloadFrom from) const;
};

// Smoothed measurements of reload times: for each tier a line, latency + pages x time per page, fitted to all loads;
// for computation the mean prefill time of a page. Recent samples weigh more (a window of about 32 samples). Outliers
// are limited: after the first few samples, each counts as at most four times and at least a quarter of the expected
// time. Where all loads have about the same size, the latency is taken as the time of 8 pages, as in the defaults. A
// value type; reads no clock.
class ReloadCostEstimator {
 public:
  static constexpr std::int64_t kFewestSamples = 16;  // before a measured time is used

  // A measured or expected time; nanoseconds.
  struct Time {
    double page_ns = 0, latency_ns = 0;
    std::int64_t samples = 0;
  };

  // Records the load of an adapter of `pages` pages, with no other load in progress meanwhile. REQUIRES: `from` is not
  // kComputation.
  void SawLoad(ReloadFrom from, std::int64_t pages, TimeNs took);
  // Records the prefill of `pages` pages' tokens, fractions included, in a step that did little else.
  void SawPrefill(double pages, TimeNs took);

  // Sets the time to use until there are enough samples. `time.samples` is ignored, and so is a time without a positive
  // page_ns.
  void Expect(ReloadFrom from, const Time& time);

  Time Of(ReloadFrom from) const;  // as measured
  // As measured if there are enough samples, else as expected. page_ns == 0: unknown.
  Time BestOf(ReloadFrom from) const;
  // The costs: measured where there are enough samples, else as expected, else the default. The first available time,
  // in the order disk, host tier, computation, sets the unit: it keeps its default page cost.
  ReloadCosts Costs() const;
  // The unit of Costs() in nanoseconds; 0: nothing is known, and the costs are the defaults.
  double UnitNs() const;

 private:
  // Running means over samples of x pages and y nanoseconds.
  struct Line {
    std::int64_t samples = 0;
    double x = 0, y = 0, xx = 0, xy = 0;
    // The line through the samples.
    Time Fit() const;
    // Adds a sample of `pages` pages that took `ns` nanoseconds.
    void Add(double pages, double ns);
  };
  std::array<Line, 2> loads_;  // from the host tier, from disk
  Line prefill_;
  std::array<Time, 3> expected_;  // by ReloadFrom; page_ns == 0: no expectation
};

}  // namespace loramux
