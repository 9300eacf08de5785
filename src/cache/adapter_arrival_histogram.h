// When an adapter that nobody uses will be asked for again: a histogram of its idle times (from the end of the last
// request that used it to the next that comes), after Shahrad et al., "Serverless in the Wild" (2020), which Chameleon
// 5.3.4 proposes.
//
// The adapter is expected from the 5th percentile of its idle times, less a tenth, to the 99th, plus a tenth. There is
// no expectation of one with fewer than kFewestSamples, and of one whose idle times are spread too widely to say
// anything: where the 99th percentile is more than kWidest times the 5th. (The document asks that of the variation
// between bins of a minute; these are four to the octave, from 16 ms to 70 minutes, for adapters are loaded in
// milliseconds.) Shorter idle times are not counted: nothing could be loaded in them. Old ones fade: at 256 all counts
// are halved.
//
// About 200 bytes for each slot of the residency manager, whatever happens. An arrival takes constant time, the end of
// a use a look at 72 bins and a place in an ordered set. Not thread-safe; reads no clock.
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

// What is loaded before anybody asks for it.
enum class AdapterPrefetch : std::uint8_t {
  kNone,
  kHistogram  // adapters that are expected by AdapterArrivalHistogram
};
// By the name of the flag. Error: an unknown one; the message lists the valid ones.
Result<AdapterPrefetch> FindAdapterPrefetch(std::string_view name);

class AdapterArrivalHistogram {
 public:
  static constexpr std::uint32_t kFewestSamples = 8;
  static constexpr std::int64_t kWidest = 4;
  static constexpr TimeNs kShortest = 16 * kNsPerMs;  // of the idle times that are counted
  static constexpr std::size_t kBins = 72;

  struct Window {
    TimeNs from = 0, until = 0;
    friend bool operator==(const Window&, const Window&) = default;
  };
  struct Expected {
    AdapterGeneration adapter;
    std::size_t slot = 0;
    Window window;
  };

  // The adapter in this slot is asked for, and nobody used it before; or its last request has ended.
  void EndIdle(std::size_t slot, AdapterGeneration adapter, TimeNs now);
  void BeginIdle(std::size_t slot, AdapterGeneration adapter, TimeNs now);

  // How long after the end of its last use it is expected, as its history is now; none: it is not.
  std::optional<Window> IdleTimes(std::size_t slot, AdapterGeneration adapter) const;

  // Of the idle adapters that are expected and not settled, the one whose window begins first; forgets those whose
  // window has passed. Constant time but for those.
  std::optional<Expected> Next(TimeNs now);
  // Nobody uses it, and it is expected at `time`, whether settled or not.
  bool Expects(std::size_t slot, AdapterGeneration adapter, TimeNs time) const {
    if (slot >= entries_.size() || entries_[slot].adapter != adapter || entries_[slot].idle_since < 0) return false;
    return entries_[slot].window.from <= time && time <= entries_[slot].window.until;
  }
  // When the first window begins of those that Next would tell of.
  std::optional<TimeNs> FirstBegin() const {
    return expected_.empty() ? std::nullopt : std::optional<TimeNs>(expected_.begin()->first);
  }
  // Next says no more of it until it was used again.
  void Settle(std::size_t slot);

 private:
  struct Entry {
    AdapterGeneration adapter;
    bool expected = false;                  // it stands in expected_
    TimeNs idle_since = -1;                 // -1: it is in use, or never was
    Window window;                          // in which it is expected; {0, -1}: never
    std::uint16_t samples = 0, longer = 0;  // idle times in all; of those, longer than the last bin
    std::array<std::uint16_t, kBins> counts = {};
  };

  Entry& At(std::size_t slot, AdapterGeneration adapter);
  static void Count(Entry& entry, TimeNs idle);
  static std::optional<Window> Percentiles(const Entry& entry);

  std::vector<Entry> entries_;                         // by slot
  std::set<std::pair<TimeNs, std::size_t>> expected_;  // beginning of the window, slot
};

}  // namespace loramux
