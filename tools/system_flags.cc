#include "tools/system_flags.h"

#include <fmt/format.h>

#include "cache/cache_regime.h"
#include "costs/service_times.h"
#include "schedule/queue/queue_order.h"

namespace loramux {
namespace {

std::string CacheRegimeNames() {
  std::string names;
  for (const CacheRegime& regime : CacheRegimes()) names += (names.empty() ? "" : ", ") + std::string(regime.name);
  return names;
}

std::string OrderNames() {
  std::string names;
  for (const std::string& name : QueueOrderNames()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

}  // namespace

Flag CacheFlag(std::string& target) {
  return {.names = "--cache,--eviction",
          .target = &target,
          .unit = "NAME",
          .help = "Cache regime, which decides what stays in memory and what is evicted first: " + CacheRegimeNames()};
}

Flag ScheduleFlag(std::string& target) {
  return {.names = "--schedule",
          .target = &target,
          .unit = "ORDER",
          .help = "Order in which waiting requests of a tenant are admitted: " + OrderNames()};
}

Flag AgeBoundFlag(double& target) {
  return {.names = "--age-bound",
          .target = &target,
          .unit = "SECONDS",
          .help = "Seconds after which a waiting request is served first within its tenant, in any order",
          .range = {{0.1, 86400.0}}};
}

Flag CountCachedFlag(std::string& target) {
  return {.names = "--count-cached",
          .target = &target,
          .unit = "WHERE",
          .help =
              "Where mlq counts prompt tokens that the cache has when a request arrives: everywhere (in its size and "
              "against its lane's quota), quota (not in its size) or nowhere"};
}

Flag MaxDecodeStepFlag(double& target) {
  return {.names = "--max-decode-step",
          .target = &target,
          .unit = "SECONDS",
          .help =
              "Bounds batches by time instead of adapters: a request is admitted only if a step that decodes it with "
              "all that run is predicted to take at most so long, by keys and values and by the ranks of the adapters. "
              "Prompts come on top of it; 0: no bound",
          .range = {{0.0, 86400.0}}};
}

Status CheckMaxDecodeStep(TimeNs most, const PerformanceModel* model) {
  if (most == 0) return Ok{};
  const std::string flag = "--max-decode-step";
  if (model == nullptr) {
    return InvalidArgument(
        flag +
            ": expected --profile FILE beside it, because the time of a step is predicted; `loramux profile` "
            "measures one",
        flag);
  }
  const double shortest = ShortestStepSeconds(*model), seconds = static_cast<double>(most) / kNsPerSecond;
  if (seconds >= shortest) return Ok{};
  return InvalidArgument(fmt::format("{}: expected at least {:.4g} seconds, which a step takes for one request alone, "
                                     "found {:.4g}",
                                     flag, shortest, seconds),
                         flag);
}

Flag ColdStartFlag(std::string& target) {
  return {.names = "--cold-start",
          .target = &target,
          .unit = "WHEN",
          .help =
              "When a request begins whose adapter is in memory but not on the device: wait until it is there, "
              "assist (at once, computed from memory meanwhile) or auto (whichever is sooner)"};
}

Result<CountCached> ParseCountCached(const std::string& text) {
  if (text == "everywhere") return CountCached::kEverywhere;
  if (text == "quota") return CountCached::kQuota;
  if (text == "nowhere") return CountCached::kNowhere;
  return InvalidArgument("--count-cached: expected everywhere, quota or nowhere, found '" + text + "'",
                         "--count-cached");
}

Result<ColdStartPolicy> ParseColdStartPolicy(const std::string& text) {
  if (text == "wait") return ColdStartPolicy::kWait;
  if (text == "assist") return ColdStartPolicy::kAssist;
  if (text == "auto") return ColdStartPolicy::kAuto;
  return InvalidArgument("--cold-start: expected wait, assist or auto, found '" + text + "'", "--cold-start");
}

Flag AdapterPrefetchFlag(std::string& target) {
  return {.names = "--adapter-prefetch",
          .target = &target,
          .unit = "POLICY",
          .help =
              "Load adapters before a request asks for them: none, or histogram (by each adapter's history of idle "
              "times)"};
}

Flag MaxNumSeqsFlag(std::int64_t& target) {
  return {.names = "--max-num-seqs",
          .target = &target,
          .unit = "N",
          .help = "Requests in one batch",
          .range = {{1, 65536}}};
}

Flag MaxNumBatchedTokensFlag(FlagTarget target) {
  return {.names = "--max-num-batched-tokens",
          .target = target,
          .unit = "TOKENS",
          .help = "Tokens computed in one step",
          .range = {{1, 1 << 20}}};
}

Flag InGroup(Flag flag, const std::string& group) {
  flag.group = group;
  return flag;
}

Flag InGroup(Flag flag, const std::string& group, const std::string& default_text) {
  flag.default_text = default_text;
  return InGroup(std::move(flag), group);
}

}  // namespace loramux
