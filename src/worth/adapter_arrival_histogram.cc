#include "worth/adapter_arrival_histogram.h"

#include <algorithm>
#include <cmath>

namespace loramux {
namespace {

constexpr std::size_t kBins = AdapterArrivalHistogram::kBins;
constexpr std::uint16_t kMostSamples = 256;
constexpr std::uint32_t kHeadPercent = 5, kTailPercent = 99, kMarginPercent = 10;

// The bin of the sample with this rank (from 1); kBins if no bin has it.
std::size_t BinOf(const std::array<std::uint16_t, kBins>& counts, std::uint32_t rank) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < kBins; ++i) {
    if ((sum += counts[i]) >= rank) return i;
  }
  return kBins;
}

// The coefficient of variation of the counts: their standard deviation over their mean. 0 without samples.
double Variation(const std::array<std::uint16_t, kBins>& counts) {
  double sum = 0, squares = 0;
  for (const std::uint16_t count : counts) {
    sum += count;
    squares += static_cast<double>(count) * count;
  }
  const double mean = sum / kBins;
  return sum == 0 ? 0 : std::sqrt(std::max(0.0, squares / kBins - mean * mean)) / mean;
}

std::uint32_t Rank(std::uint32_t samples, std::uint32_t percent) { return (samples * percent + 99) / 100; }

}  // namespace

Result<AdapterPrefetch> FindAdapterPrefetch(std::string_view name) {
  if (name == "none") return AdapterPrefetch::kNone;
  if (name == "histogram") return AdapterPrefetch::kHistogram;
  return InvalidArgument("adapter prefetch: expected one of none, histogram, found '" + std::string(name) + "'",
                         "--adapter-prefetch");
}

// Returns the entry of `adapter` in this slot. Discards the data of an adapter that had the slot before.
AdapterArrivalHistogram::Entry& AdapterArrivalHistogram::At(std::size_t slot, AdapterGeneration adapter) {
  if (entries_.size() <= slot) entries_.resize(slot + 1);
  Entry& entry = entries_[slot];
  if (entry.adapter == adapter) return entry;
  Settle(slot);
  entry = {};
  entry.adapter = adapter;
  return entry;
}

void AdapterArrivalHistogram::EndIdle(std::size_t slot, AdapterGeneration adapter, TimeNs now) {
  Entry& entry = At(slot, adapter);
  Settle(slot);
  if (entry.idle_since >= 0) Count(entry, now - entry.idle_since);
  entry.idle_since = -1;
}

void AdapterArrivalHistogram::Count(Entry& entry, TimeNs idle) const {
  if (idle < kShortest) return;
  const auto bin = static_cast<std::size_t>(idle / options_.bin);
  ++(bin < kBins ? entry.counts[bin] : entry.longer);
  if (++entry.samples < kMostSamples) return;
  entry.samples = entry.longer /= 2;
  for (std::uint16_t& count : entry.counts) entry.samples += count /= 2;
}

void AdapterArrivalHistogram::BeginIdle(std::size_t slot, AdapterGeneration adapter, TimeNs now) {
  Entry& entry = At(slot, adapter);
  Settle(slot);
  entry.idle_since = now;
  entry.again = false;
  const std::optional<Window> window = Percentiles(entry);
  entry.window = {0, -1};
  if (!window.has_value()) return;
  entry.window = {now + window->from, now + window->until};
  entry.expected = true;
  expected_.emplace(entry.window.from, slot);
}

std::optional<AdapterArrivalHistogram::Window> AdapterArrivalHistogram::Percentiles(const Entry& entry) const {
  if (entry.samples < kFewestSamples) return std::nullopt;
  const std::size_t head = BinOf(entry.counts, Rank(entry.samples, kHeadPercent));
  const std::size_t tail = BinOf(entry.counts, Rank(entry.samples, kTailPercent));
  if (tail == kBins || Variation(entry.counts) < options_.least_variation) return std::nullopt;
  const TimeNs from = static_cast<TimeNs>(head) * options_.bin, until = static_cast<TimeNs>(tail + 1) * options_.bin;
  return Window{from - from * kMarginPercent / 100, until + until * kMarginPercent / 100};
}

std::optional<AdapterArrivalHistogram::Window> AdapterArrivalHistogram::IdleTimes(std::size_t slot,
                                                                                  AdapterGeneration adapter) const {
  if (slot >= entries_.size() || entries_[slot].adapter != adapter) return std::nullopt;
  return Percentiles(entries_[slot]);
}

std::optional<AdapterArrivalHistogram::Expected> AdapterArrivalHistogram::Next(TimeNs now) {
  while (!expected_.empty()) {
    const std::size_t slot = expected_.begin()->second;
    const Entry& entry = entries_[slot];
    if (entry.window.until >= now) return Expected{entry.adapter, slot, entry.window};
    Settle(slot);
  }
  return std::nullopt;
}

void AdapterArrivalHistogram::Settle(std::size_t slot) {
  if (slot >= entries_.size() || !entries_[slot].expected) return;
  entries_[slot].expected = false;
  expected_.erase({entries_[slot].window.from, slot});
}

void AdapterArrivalHistogram::ExpectAgain(std::size_t slot, AdapterGeneration adapter) {
  if (slot >= entries_.size()) return;
  Entry& entry = entries_[slot];
  if (entry.adapter != adapter || entry.idle_since < 0 || entry.window.until < 0 || entry.expected || entry.again)
    return;
  entry.expected = entry.again = true;
  expected_.emplace(entry.window.from, slot);
}

}  // namespace loramux
