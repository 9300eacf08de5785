// Predicts when an idle adapter will be requested again. Keeps a histogram of each adapter's idle times, from the end
// of the last request that used it to the next arrival. The method is that of Shahrad et al., "Serverless in the Wild"
// (2020), as Chameleon 5.3.4 proposes.
//
// An adapter is expected from the 5th percentile of its idle times, less a tenth, to the 99th, plus a tenth. It is not
// expected with fewer than kFewestSamples samples. Nor is it expected if its idle times are too widely spread: the 99th
// percentile is more than kWidest times the 5th. (The paper measures the spread as the variation between bins of one
// minute. The bins here are four to the octave, from 16 milliseconds to 70 minutes, because adapters load in
// milliseconds.) Shorter idle times are not counted, because nothing can be loaded in them. Old samples fade: at 256
// samples all counts are halved.
//
// Uses about 200 bytes for each slot of the residency manager. An arrival takes constant time. The end of a use
// examines 72 bins and inserts into an ordered set. Not thread-safe; reads no clock.
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

// See the top of this file. Slots are those of the residency manager.
class AdapterArrivalHistogram {
 public:
  // Samples before an adapter is expected.
  static constexpr std::uint32_t kFewestSamples = 8;
  // Largest ratio of the 99th to the 5th percentile.
  static constexpr std::int64_t kWidest = 4;
  // Shortest idle time that is counted.
  static constexpr TimeNs kShortest = 16 * kNsPerMs;
  static constexpr std::size_t kBins = 72;

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

  // Of the expected idle adapters that are not settled, the one whose window begins first. Forgets adapters whose
  // window has passed. Takes constant time plus time for each one forgotten.
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

 private:
  // The history of the adapter in one slot.
  struct Entry {
    AdapterGeneration adapter;
    bool expected = false;                  // it is in expected_
    TimeNs idle_since = -1;                 // -1: in use, or never used
    Window window;                          // in which it is expected; {0, -1}: not expected
    std::uint16_t samples = 0, longer = 0;  // all idle times; those beyond the last bin
    std::array<std::uint16_t, kBins> counts = {};
  };

  // The entry of `adapter`; discards the history of another adapter in this slot.
  Entry& At(std::size_t slot, AdapterGeneration adapter);
  // Adds one idle time to the histogram.
  static void Count(Entry& entry, TimeNs idle);
  // The expected idle times; see the top of this file.
  static std::optional<Window> Percentiles(const Entry& entry);

  std::vector<Entry> entries_;                         // by slot
  std::set<std::pair<TimeNs, std::size_t>> expected_;  // {begin of the window, slot}
};

}  // namespace loramux
