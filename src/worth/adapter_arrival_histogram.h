// Predicts when an idle adapter will be requested again. Keeps a histogram of each adapter's idle times, from the end
// of the last request that used it to the next arrival. The method is that of Shahrad et al., "Serverless in the Wild"
// (2020), as Chameleon 5.3.4 proposes.
//
// Bins have equal widths (ExpectationOptions::bin). An adapter is expected from the 5th percentile of its idle times,
// rounded down to a bin, less a tenth, to the 99th, rounded up, plus a tenth. It is not expected with fewer than
// kFewestSamples samples, nor if its 99th percentile lies beyond the last bin, nor if its histogram does not tell
// enough: the coefficient of variation of the counts of the bins is below ExpectationOptions::least_variation. It is
// high if few bins hold most samples, and 0 if all bins hold equally many. So the exponential idle times of random
// arrivals pass if their mean is below about a tenth of the histogram's range (24 seconds of 4 minutes); they are then
// expected at once.
//
// Shahrad et al. have 240 bins of a minute, for functions that start in seconds; a second is the default here, because
// adapters load in milliseconds. Idle times below kShortest are not counted, because nothing can be loaded in them. Old
// samples fade: at 256 samples all counts are halved.
//
// Uses about 540 bytes for each slot of the residency manager. An arrival takes constant time. The end of a use
// examines 240 bins and inserts into an ordered set. Not thread-safe; reads no clock.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"

namespace loramux {

// Which adapters are loaded before a request asks for them.
enum class AdapterPrefetch : std::uint8_t {
  kNone,
  kHistogram  // adapters that AdapterArrivalHistogram expects
};
// The prefetch mode of this name (flag --adapter-prefetch). Error: unknown name; the message lists the valid names.
Result<AdapterPrefetch> FindAdapterPrefetch(std::string_view name);

// Constants of the histogram. The variation is that of Shahrad et al.
struct ExpectationOptions {
  TimeNs bin = kNsPerSecond;   // width of a bin
  double least_variation = 2;  // least variation of the bins' counts; 0: every histogram will do
};

// See the top of this file. Slots are those of the residency manager.
class AdapterArrivalHistogram {
 public:
  // REQUIRES: options.bin > 0.
  explicit AdapterArrivalHistogram(const ExpectationOptions& options = {}) : options_(options) {}

  // Samples before an adapter is expected.
  static constexpr std::uint32_t kFewestSamples = 8;
  // Shortest idle time that is counted.
  static constexpr TimeNs kShortest = 16 * kNsPerMs;
  static constexpr std::size_t kBins = 240;

  // An interval of time, both ends inclusive.
  struct Window {
    TimeNs from = 0, until = 0;
    friend bool operator==(const Window&, const Window&) = default;
  };
  // An adapter that is expected in `window`.
  struct Expected {
    AdapterGeneration adapter;
    std::size_t slot = 0;
    Window window;
  };

  // A request for the adapter in this slot arrived, and no request used it before.
  void EndIdle(std::size_t slot, AdapterGeneration adapter, TimeNs now);
  // The last request that used the adapter in this slot ended.
  void BeginIdle(std::size_t slot, AdapterGeneration adapter, TimeNs now);

  // The window in which the adapter is expected, as times after the end of its last use. None: it is not expected.
  std::optional<Window> IdleTimes(std::size_t slot, AdapterGeneration adapter) const;

  // The expected idle adapter whose window begins first among those that are not settled. Forgets adapters whose window
  // has passed. Takes constant time plus time for each one forgotten.
  std::optional<Expected> Next(TimeNs now);
  // Whether the adapter is idle and expected at `time`, settled or not.
  bool Expects(std::size_t slot, AdapterGeneration adapter, TimeNs time) const {
    if (slot >= entries_.size() || entries_[slot].adapter != adapter || entries_[slot].idle_since < 0) return false;
    return entries_[slot].window.from <= time && time <= entries_[slot].window.until;
  }
  // The beginning of the first window among those that Next would report.
  std::optional<TimeNs> FirstBegin() const {
    return expected_.empty() ? std::nullopt : std::optional<TimeNs>(expected_.begin()->first);
  }
  // Next does not report the adapter of this slot until after its next use.
  void Settle(std::size_t slot);
  // The idle adapter was evicted: Next reports it again, if it is expected; once in each of its idle times, so that
  // adapters that displace each other come to rest.
  void ExpectAgain(std::size_t slot, AdapterGeneration adapter);

 private:
  // The history of the adapter in one slot.
  struct Entry {
    AdapterGeneration adapter;
    bool expected = false;                  // it is in expected_
    bool again = false;                     // ExpectAgain was called in this idle time
    TimeNs idle_since = -1;                 // -1: in use, or never used
    Window window;                          // in which it is expected; {0, -1}: not expected
    std::uint16_t samples = 0, longer = 0;  // all idle times; those beyond the last bin
    std::array<std::uint16_t, kBins> counts = {};
  };

  // The entry of `adapter`; discards the history of another adapter in this slot.
  Entry& At(std::size_t slot, AdapterGeneration adapter);
  // Adds one idle time to the histogram.
  void Count(Entry& entry, TimeNs idle) const;
  // The expected idle times; see the top of this file.
  std::optional<Window> Percentiles(const Entry& entry) const;

  const ExpectationOptions options_;
  std::vector<Entry> entries_;                         // by slot
  std::set<std::pair<TimeNs, std::size_t>> expected_;  // {begin of the window, slot}
};

}  // namespace loramux
