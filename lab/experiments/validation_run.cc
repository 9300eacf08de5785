#include "lab/experiments/validation_run.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "profile/pace_fit.h"
#include "simulate/simulation.h"

namespace loramux {
namespace {

constexpr std::int64_t kBatchTokens = 512;  // if prompts are computed in chunks

double Seconds(TimeNs time) { return static_cast<double>(time) / kNsPerSecond; }

SimulatedDevice DeviceOf(const RealRun& real) {
  return {.name = "measured",
          .model = {},
          .page_tokens = real.geometry.kv.page_tokens,
          .page_bytes = real.geometry.page_bytes,
          .device_pages = real.device_pages,
          .adapter_bytes_per_rank = real.bytes_per_rank};
}

// What the real server and the simulated one do.
SystemSpec SpecOf(const ValidationHouse& house, const Preset& preset) {
  SystemSpec spec = preset.spec;
  spec.max_running = house.max_running;
  spec.max_batch_tokens = kBatchTokens;
  spec.objective = house.objective;
  return spec;
}

}  // namespace

RuntimeOptions OptionsOf(const ValidationHouse& house, const Preset& preset) {
  RuntimeOptions options;
  options.device_memory = house.device_bytes;
  options.host_memory = house.host_bytes;
  options.threads = house.threads;
  options.max_model_len = house.max_model_len;
  options.base_names = {"base"};
  options.spec = SpecOf(house, preset);
  options.spec.length_predictor = "proxy";  // takes the requests' hints
  options.spec.costs = house.costs;
  return options;
}

Result<std::unique_ptr<EngineSession>> StartEngine(const ValidationHouse& house, const Preset& preset) {
  ASSIGN_OR_RETURN(std::unique_ptr<PlacedModel> model, PlacedModel::Load(house.model, nullptr, {}, {}));
  return EngineSession::Create(std::move(model), OptionsOf(house, preset), house.adapters);
}

Result<RealRun> RunReal(const ValidationHouse& house, const Preset& preset,
                        const std::vector<EngineRequest>& requests) {
  RealRun real;
  ASSIGN_OR_RETURN(const std::unique_ptr<EngineSession> session, StartEngine(house, preset));
  real.geometry = session->runtime().geometry();
  for (std::size_t i = 0; i < house.adapters.size(); ++i) {
    const AdapterLayout& layout = session->adapters()[i]->layout;
    if (i == 0) real.bytes_per_rank = layout.payload_bytes / house.ranks[0];
    if (layout.payload_bytes != house.ranks[i] * real.bytes_per_rank)
      return Internal("expected adapters that change the same layers, found different ones");
    real.adapter_pages.push_back(layout.pages);
  }
  ASSIGN_OR_RETURN(real.run, session->Run(requests));
  session->runtime().Stop();
  real.stats = session->runtime().engine().Stats();
  real.device_pages = real.stats.device.capacity_pages;
  return real;
}

Result<SimulatedRun> RunSimulated(const ValidationHouse& house, const Preset& preset,
                                  const std::vector<EngineRequest>& requests, const RealRun& real,
                                  const PerformanceProfile& profile) {
  SimulationOptions options{
      .device = DeviceOf(real),
      .preset = {.name = preset.name, .spec = SpecOf(house, preset), .all_on_device = preset.all_on_device},
      .host_bytes = static_cast<double>(house.host_bytes),
      .adapters_in_host_memory = false,
      .predictor_accuracy = 1,
      .samples = 0};  // without ProgramCosts: the real run is of this program
  UseProfile(profile, options);
  options.costs = house.costs;  // as the real one's
  std::vector<TimeNs> sent;
  for (const ServedRequest& request : real.run.requests) sent.push_back(request.sent);
  Workload workload = AsWorkload(requests, sent, house.ranks);
  workload.adapter_pages = real.adapter_pages;
  ASSIGN_OR_RETURN(const SimulationResult result, Simulate(options, workload));
  SimulatedRun simulated{.requests = {}, .stats = result.stats};
  for (std::size_t i = 0; i < result.requests.size(); ++i) {
    const RequestRecord& record = result.requests[i];
    if (record.refused) return Internal("the simulated engine refused a request that the real one accepted");
    simulated.requests.push_back({.sent = sent[i],
                                  .seen = record.arrival,
                                  .first_token = record.first_token,
                                  .last_token = record.last_token,
                                  .tokens = record.output_tokens});
  }
  return simulated;
}

Workload AsWorkload(const std::vector<EngineRequest>& requests, const std::vector<TimeNs>& sent,
                    const std::vector<std::int64_t>& adapter_ranks) {
  CHECK_EQ(requests.size(), sent.size());
  Workload workload{.what = "as sent to the real engine", .adapter_ranks = adapter_ranks};
  for (std::size_t i = 0; i < requests.size(); ++i) {
    workload.requests.push_back({.arrival = sent[i],
                                 .adapter = static_cast<std::int32_t>(requests[i].adapter),
                                 .input_tokens = static_cast<std::int32_t>(requests[i].prompt.size()),
                                 .output_tokens = requests[i].output_tokens});
  }
  return workload;
}

std::array<EngineRun, 2> StepsByTurns(const EngineRun& run) {
  std::array<EngineRun, 2> parts;
  for (EngineRun& part : parts) {
    part.requests = run.requests;
    part.end = run.end;
  }
  for (const ObservedStep& step : run.steps) parts[TurnOf(step.begin)].steps.push_back(step);
  return parts;
}

Pace OwnPaceOf(const std::array<EngineRun, 2>& by_turn, const std::array<PerformanceProfile, 2>& profiles) {
  std::vector<TimedStep> steps;
  for (std::size_t turn = 0; turn < by_turn.size(); ++turn) {
    const std::vector<TimedStep> part = TimedStepsOf(by_turn[turn], profiles[turn].mbgmv.model);
    steps.insert(steps.end(), part.begin(), part.end());
  }
  std::sort(steps.begin(), steps.end(), [](const TimedStep& a, const TimedStep& b) { return a.begin < b.begin; });
  std::vector<Pace::Change> changes;
  for (const PaceStretch& stretch : StretchesOf(steps)) changes.push_back({stretch.begin, stretch.factor});
  return Pace(std::move(changes));
}

SimulatedRun ByTurns(const std::array<SimulatedRun, 2>& simulated) {
  CHECK_EQ(simulated[0].requests.size(), simulated[1].requests.size());
  SimulatedRun merged = simulated[0];
  for (std::size_t i = 0; i < merged.requests.size(); ++i) {
    merged.requests[i] = simulated[TurnOf(merged.requests[i].sent)].requests[i];
  }
  return merged;
}

std::string StepsAsCsv(const std::array<EngineRun, 2>& by_turn, const std::array<PerformanceProfile, 2>& profiles) {
  std::string csv =
      "turn,gap,seconds,plain,prefill_tokens,prefill_sequences,decode_sequences,prefill_attention,prefill_context,"
      "decode_context,adapter_tokens,distinct_adapters,rank_sum,max_rank,token_ranks,after_prefill,predicted\n";
  for (std::size_t turn = 0; turn < by_turn.size(); ++turn) {
    const PerformanceModel& model = profiles[turn].mbgmv.model;
    for (const ObservedStep& step : by_turn[turn].steps) {
      const StepLoad& load = step.load;
      csv += fmt::format("{},{:.9f},{:.9f},{:d},{},{},{},{},{},{},{},{},{},{},{},{:d},{:.9f}\n", turn,
                         Seconds(step.gap), Seconds(step.seconds_ns), step.plain, load.prefill_tokens,
                         load.prefill_sequences, load.decode_sequences, load.prefill_attention, load.prefill_context,
                         load.decode_context, load.adapter_tokens, load.distinct_adapters, load.rank_sum, load.max_rank,
                         load.token_ranks, load.after_prefill, model.SecondsOf(load));
    }
  }
  return csv;
}

std::string TransfersAsCsv(const EngineRun& run) {
  std::string csv = "kind,kv,bytes,seconds\n";
  for (const ObservedTransfer& transfer : run.transfers) {
    csv += fmt::format("{},{:d},{},{:.9f}\n", static_cast<int>(transfer.kind), transfer.kv, transfer.bytes,
                       Seconds(transfer.seconds_ns));
  }
  return csv;
}

std::string RequestsAsCsv(const std::vector<EngineRequest>& requests, const EngineRun& real,
                          const SimulatedRun& simulated) {
  std::string csv = "sent,adapter,prompt_tokens,output_tokens,real_first,real_last,simulated_first,simulated_last\n";
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const ServedRequest &a = real.requests[i], &b = simulated.requests[i];
    csv += fmt::format("{},{},{},{},{},{},{},{}\n", a.sent, requests[i].adapter, requests[i].prompt.size(),
                       requests[i].output_tokens, a.first_token, a.last_token, b.first_token, b.last_token);
  }
  return csv;
}

}  // namespace loramux
