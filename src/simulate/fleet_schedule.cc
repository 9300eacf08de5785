#include "simulate/fleet_schedule.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "base/check.h"
#include "base/prng.h"
#include "workload/distributions.h"
#include "workload/fields.h"

namespace loramux {
namespace {

constexpr double kLatestFault = 1e9;  // seconds
constexpr TimeNs kDownTime = 30 * kNsPerSecond;
constexpr std::int64_t kMostAdded = 10'000;

// The parts of "KIND@SECONDS+SECONDS:NUMBER".
struct FaultText {
  std::string kind;
  double at = 0;
  std::optional<double> duration;
  std::optional<std::int64_t> number;
};

std::optional<FaultText> SplitFault(std::string_view text) {
  FaultText parts;
  if (const auto colon = text.find(':'); colon != std::string_view::npos) {
    parts.number = ParseNumber<std::int64_t>(text.substr(colon + 1));
    if (!parts.number.has_value() || *parts.number < 0) return std::nullopt;
    text = text.substr(0, colon);
  }
  if (const auto plus = text.find('+'); plus != std::string_view::npos) {
    parts.duration = ParseNumber<double>(text.substr(plus + 1));
    if (!parts.duration.has_value() || !(*parts.duration > 0 && *parts.duration <= kLatestFault)) return std::nullopt;
    text = text.substr(0, plus);
  }
  const auto sign = text.find('@');
  if (sign == std::string_view::npos) return std::nullopt;
  parts.kind = text.substr(0, sign);
  const auto at = ParseNumber<double>(text.substr(sign + 1));
  if (!at.has_value() || !(*at >= 0 && *at <= kLatestFault)) return std::nullopt;
  parts.at = *at;
  return parts;
}

std::optional<FleetEventKind> FaultKindOf(const std::string& name) {
  if (name == "crash") return FleetEventKind::kCrash;
  if (name == "freeze") return FleetEventKind::kFreeze;
  if (name == "drain") return FleetEventKind::kDrain;
  if (name == "add") return FleetEventKind::kAdd;
  return std::nullopt;
}

void AddCrashes(const FaultText& parts, std::int64_t servers, TimeNs last, Prng& prng,
                std::vector<FleetEvent>& events) {
  const TimeNs down = parts.duration.has_value() ? ToNs(*parts.duration) : kDownTime;
  for (std::int64_t server = 0; server < servers; ++server) {
    TimeNs at = 0;
    while (true) {
      at += ToNs(std::min(kLatestFault, DrawExponential(prng, parts.at)));
      if (at > last) break;
      events.push_back({at, FleetEventKind::kCrash, static_cast<std::int32_t>(server), down});
      at += down;
    }
  }
}

Error BadFault(const std::string& text, const std::string& expected) {
  return InvalidArgument(fmt::format("--fail: expected {}, found '{}'", expected, text), "--fail");
}

Status AddFault(const std::string& text, std::int64_t servers, TimeNs last, Prng& prng,
                std::vector<FleetEvent>& events) {
  const auto parts = SplitFault(text);
  if (!parts.has_value()) return BadFault(text, "KIND@SECONDS, with +SECONDS and :SERVER if needed");
  if (parts->kind == "crashes") {
    if (!(parts->at > 0)) return BadFault(text, "crashes@SECONDS with a mean time above 0");
    AddCrashes(*parts, servers, last, prng, events);
    return Ok{};
  }
  const auto kind = FaultKindOf(parts->kind);
  if (!kind.has_value()) return BadFault(text, "crash, crashes, freeze, drain or add before the @");
  if (*kind == FleetEventKind::kFreeze && !parts->duration.has_value()) return BadFault(text, "freeze@SECONDS+SECONDS");
  FleetEvent event{.at = ToNs(parts->at), .kind = *kind};
  if (parts->duration.has_value()) event.duration = ToNs(*parts->duration);
  if (*kind == FleetEventKind::kAdd) {
    event.count = parts->number.value_or(1);
    if (event.count < 1 || event.count > kMostAdded) return BadFault(text, "1 to 10000 servers to add");
  } else {
    const std::uint64_t drawn = prng.NextBelow(static_cast<std::uint64_t>(servers));
    event.server = static_cast<std::int32_t>(parts->number.value_or(static_cast<std::int64_t>(drawn)));
    if (event.server >= servers) return BadFault(text, fmt::format("a server below {}", servers));
  }
  events.push_back(event);
  return Ok{};
}

}  // namespace

Result<std::vector<FleetEvent>> ParseFleetEvents(const std::vector<std::string>& texts, std::int64_t servers,
                                                 TimeNs last, std::uint64_t seed) {
  CHECK_GT(servers, 0);
  std::vector<FleetEvent> events;
  Prng prng(SplitMix64(seed ^ 0x6661756c74));
  for (const std::string& text : texts) RETURN_IF_ERROR(AddFault(text, servers, last, prng, events));
  std::stable_sort(events.begin(), events.end(), [](const FleetEvent& a, const FleetEvent& b) { return a.at < b.at; });
  return events;
}

void DriftPopularity(Workload& workload, TimeNs period, double share, std::uint64_t seed) {
  CHECK_GT(period, 0);
  CHECK(share >= 0 && share <= 1);
  const std::size_t count = workload.adapter_ranks.size();
  if (count == 0) return;
  std::map<std::int64_t, std::vector<std::size_t>> by_rank;
  for (std::size_t i = 0; i < count; ++i) by_rank[workload.adapter_ranks[i]].push_back(i);
  std::vector<std::int32_t> becomes(count);  // by the adapter that was drawn
  std::iota(becomes.begin(), becomes.end(), 0);
  Prng prng(SplitMix64(seed ^ 0x6472696674));
  TimeNs moved = 0;
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    WorkloadRequest& request = workload.requests[i];
    if (request.follows) continue;
    for (; moved + period <= request.arrival; moved += period) {
      for (const auto& [rank, members] : by_rank) {
        for (const std::size_t member : members) {
          // Each exchange moves two of them.
          if (prng.NextDouble() * 2 >= share) continue;
          std::swap(becomes[member], becomes[members[prng.NextBelow(members.size())]]);
        }
      }
    }
    if (request.adapter < 0) continue;
    const std::int32_t adapter = becomes[static_cast<std::size_t>(request.adapter)];
    for (auto turn = static_cast<std::int32_t>(i); turn >= 0;
         turn = workload.requests[static_cast<std::size_t>(turn)].next)
      workload.requests[static_cast<std::size_t>(turn)].adapter = adapter;
  }
}

}  // namespace loramux
