#include "lab/experiments/scenario_simulation.h"

#include <algorithm>
#include <numeric>

#include "simulate/simulation.h"

namespace loramux {
namespace {

constexpr std::int64_t kAmple = std::int64_t{1} << 30;
constexpr std::uint64_t kSeed = 1;  // seed of the simulation: determines its answers

double Milliseconds(TimeNs time) { return static_cast<double>(time) / kNsPerMs; }

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) /
         static_cast<double>(std::max<std::size_t>(1, values.size()));
}

// One turn of a session.
struct Asked {
  TimeNs due = 0;
  std::size_t session = 0, turn = 0;
};

Workload AsWorkload(const SimulatedHouse& house, const std::vector<Session>& sessions) {
  std::vector<Asked> order;
  for (std::size_t s = 0; s < sessions.size(); ++s) {
    for (std::size_t t = 0; t < sessions[s].turns.size(); ++t)
      order.push_back({.due = sessions[s].turns[t].at, .session = s, .turn = t});
  }
  std::stable_sort(order.begin(), order.end(), [](const Asked& a, const Asked& b) { return a.due < b.due; });
  Workload workload{.what = "sessions",
                    .adapter_ranks = house.sizes.ranks,
                    .adapter_pages = house.sizes.pages,
                    .adapter_bytes = house.sizes.bytes};
  std::vector<std::vector<TokenId>> said(sessions.size());  // the conversations so far, including answers
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Session& session = sessions[order[i].session];
    const SessionTurn& turn = session.turns[order[i].turn];
    std::vector<TokenId>& all = said[order[i].session];
    all.insert(all.end(), turn.said.begin(), turn.said.end());
    workload.requests.push_back({.arrival = turn.at,
                                 .adapter = static_cast<std::int32_t>(session.adapter),
                                 .input_tokens = static_cast<std::int32_t>(all.size()),
                                 .output_tokens = turn.answer_tokens});
    workload.prompts.push_back(all);
    for (std::int32_t n = 0; n < turn.answer_tokens; ++n)
      all.push_back(AnsweredToken(kSeed, i, static_cast<std::size_t>(n)));
  }
  return workload;
}

// As scenario_run's engine: first come, first served within an adapter, adapters share fairly, and loads begin at
// arrival.
SimulationOptions OptionsOf(const SimulatedHouse& house, std::string_view regime, std::int64_t device_bytes,
                            std::int64_t host_bytes) {
  SimulationOptions options;
  options.device = {.name = "measured",
                    .model = house.model,
                    .page_tokens = house.sizes.geometry.kv.page_tokens,
                    .page_bytes = house.sizes.geometry.page_bytes,
                    .device_pages = device_bytes / house.sizes.geometry.page_bytes};
  options.preset = {.name = regime, .spec = {.cache = std::string(regime), .load_on_arrival = true}};
  options.preset.spec.max_running = 64;
  options.preset.spec.adapter_share = house.adapter_share;
  options.host_bytes = static_cast<double>(host_bytes);
  options.adapters_in_host_memory = false;
  options.samples = 0;
  options.seed = kSeed;
  return options;
}

}  // namespace

Result<SimulatedScenario> PrepareSimulation(const SimulatedHouse& house, const std::vector<Session>& sessions) {
  SimulatedScenario scenario{.workload = AsWorkload(house, sessions)};
  ASSIGN_OR_RETURN(const SimulationResult ample, Simulate(OptionsOf(house, "lru", kAmple, 0), scenario.workload));
  if (ample.stats.history_evictions > 0)
    return ResourceExhausted("the working set is larger than 1 GiB: lower --seconds, --rate or --adapters");
  const std::int64_t page_tokens = house.sizes.geometry.kv.page_tokens;
  for (const WorkloadRequest& request : scenario.workload.requests) {
    const std::int64_t kv = (request.input_tokens + request.output_tokens + page_tokens - 1) / page_tokens;
    const std::int64_t pages = kv + house.sizes.pages.at(static_cast<std::size_t>(request.adapter));
    scenario.largest_request_bytes = std::max(scenario.largest_request_bytes, pages * house.sizes.geometry.page_bytes);
  }
  scenario.working_set_bytes =
      (ample.stats.device.capacity_pages - ample.stats.device.free_pages) * house.sizes.geometry.page_bytes;
  return scenario;
}

Result<SimulatedCellResult> SimulateCell(const SimulatedHouse& house, const SimulatedScenario& scenario,
                                         const CellOptions& options) {
  ASSIGN_OR_RETURN(
      const SimulationResult run,
      Simulate(OptionsOf(house, options.regime, options.device_bytes, options.host_bytes), scenario.workload));
  SimulatedCellResult result{.bytes_to_device = run.bytes_to_device};
  std::vector<double> ttft, tpot, end_to_end;
  double prompts = 0, cached = 0;
  for (const RequestRecord& request : run.requests) {
    result.refused += request.refused;
    if (!request.Ended()) continue;
    prompts += request.prompt_tokens;
    cached += request.cached_tokens;
    if (Milliseconds(request.arrival) < options.warm_up_seconds * 1e3) continue;
    ttft.push_back(Milliseconds(request.Ttft()));
    end_to_end.push_back(Milliseconds(request.EndToEnd()));
    if (request.output_tokens > 1)
      tpot.push_back(Milliseconds(request.last_token - request.first_token) / (request.output_tokens - 1));
  }
  if (tpot.empty())
    return InvalidArgument("--seconds: expected time for at least one request after the warm-up; raise it");
  result.ttft_ms = Mean(ttft);
  result.ttft_geometric_ms = GeometricMean(ttft);
  result.tpot_ms = Mean(tpot);
  result.tpot_geometric_ms = GeometricMean(tpot);
  result.end_to_end_ms = Mean(end_to_end);
  result.tokens_computed = 1 - cached / prompts;
  return result;
}

}  // namespace loramux
