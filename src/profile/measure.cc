#include "profile/measure.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "profile/assist_bench.h"
#include "profile/engine_fit.h"
#include "profile/fit.h"
#include "profile/link_bench.h"
#include "runtime/choose_device.h"

namespace loramux {
namespace {

// Shares of the rate that the engine sustains: from steps of one or two sequences to full batches.
constexpr std::array<double, 4> kShares = {0.2, 0.4, 0.6, 0.8};
constexpr double kBurstShare = 0.2;  // share of the engine's time for finding the rate that it sustains
constexpr double kFewestRequests = 8, kMostRequests = 2000;
constexpr double kShortestInput = 8, kShortestOutput = 4;

void DescribeModel(const MeasureOptions& options, const PlacedModel& model, const StepBench& bench,
                   PerformanceProfile& profile) {
  const ModelConfig& config = model.config();
  const KvLayout& kv = bench.geometry().kv;
  profile.base = {.name = options.model_name,
                  .digest = options.digest,
                  .hidden_size = config.hidden_size,
                  .num_layers = config.num_layers,
                  .num_heads = config.num_heads,
                  .num_kv_heads = config.num_kv_heads,
                  .head_dim = config.head_dim,
                  .intermediate_size = config.intermediate_size,
                  .vocab_size = config.vocab_size,
                  .dtype = DTypeName(model.dtype()),
                  .kv_dtype = DTypeName(kv.dtype),
                  .page_tokens = kv.page_tokens};
  std::set<LoraTarget> targets;
  for (const auto& adapter : bench.adapters()) {
    for (const ModulePlace& module : adapter->layout.modules) targets.insert(module.target);
  }
  for (const LoraTarget target : targets) {
    profile.lora_targets += (profile.lora_targets.empty() ? "" : ",") + std::string(LoraTargetName(target));
  }
  profile.ranks = bench.space().ranks;
  profile.max_batch_tokens = bench.space().max_batch_tokens;
  profile.max_running = bench.space().max_running;
  profile.max_positions = bench.space().max_positions;
  profile.threads = bench.threads();
  DeviceNames names = NamesOfDevice(model.device(), bench.threads());
  profile.device_kind = std::move(names.kind);
  profile.device = std::move(names.description);
  profile.unix_seconds = OsClock().UnixSeconds();
}

// Returns the quality over the points that `wanted` selects.
template <typename Wanted>
FitQuality QualityWhere(const PerformanceModel& model, const std::vector<StepMeasurement>& points, Wanted wanted) {
  std::vector<double> predicted, measured;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (!wanted(i)) continue;
    predicted.push_back(model.SecondsOf(points[i].load));
    measured.push_back(points[i].seconds);
  }
  return QualityOf(predicted, measured);
}

FittedModel FitVariant(const SweepResult& sweep, LoraCostShape shape, const PerformanceModel::Experts& experts) {
  const std::vector<StepMeasurement>& points = shape == LoraCostShape::kBgmv ? sweep.bgmv : sweep.mbgmv;
  FittedModel fitted;
  fitted.model = FitSteps(points, shape, experts);
  const auto held_out = [&](auto wanted) {
    return QualityWhere(fitted.model, points,
                        [&](std::size_t i) { return points[i].held_out && wanted(points[i].load); });
  };
  fitted.fitted = QualityWhere(fitted.model, points, [&](std::size_t i) { return !points[i].held_out; });
  fitted.held_out = held_out([](const StepLoad&) { return true; });
  fitted.held_out_prefill = held_out([](const StepLoad& load) { return load.decode_sequences == 0; });
  fitted.held_out_decode = held_out([](const StepLoad& load) { return load.prefill_tokens == 0; });
  fitted.held_out_mixed =
      held_out([](const StepLoad& load) { return load.prefill_tokens > 0 && load.decode_sequences > 0; });
  std::vector<StepMeasurement> own_adapters;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (sweep.points[i].kind == PointKind::kOwnAdapters) own_adapters.push_back(points[i]);
  }
  fitted.caraserve_decode = CaraServeForm(own_adapters, shape);
  return fitted;
}

FitQuality FitOneLink(const LinkMeasurements& measured, PerformanceModel::Link& link) {
  if (measured.bytes.empty()) return {};
  link = FitLink(measured.bytes, measured.seconds);
  std::vector<double> predicted;
  for (const double bytes : measured.bytes) predicted.push_back(link.latency + bytes / link.bytes_per_second);
  return QualityOf(predicted, measured.seconds);
}

void FitLinks(const LinkMeasurementsOfAll& measured, PerformanceProfile& profile) {
  PerformanceModel& model = profile.mbgmv.model;
  profile.host_to_device = FitOneLink(measured.host_to_device, model.host_to_device);
  profile.device_to_host = FitOneLink(measured.device_to_host, model.device_to_host);
  profile.disk = FitOneLink(measured.disk, model.disk);
  PerformanceModel& other = profile.bgmv.model;
  other.disk = model.disk;
  other.host_to_device = model.host_to_device;
  other.device_to_host = model.device_to_host;
}

// Runs one engine at one load after another. It stays the same engine, so that its memory is full after the first load,
// like a server's.
class EngineMeasurement {
 public:
  EngineMeasurement(const MeasureOptions& options, const PerformanceModel& linear, EngineSession& session)
      : options_(options), session_(session) {
    load_ = {.adapters = session.adapters().size(),
             .input_mean = options.input_mean,
             .output_mean = options.output_mean,
             .vocab = session.runtime().config().vocab_size};
    Shorten(linear);
    std::int64_t most = session.runtime().max_model_len();
    for (const auto& adapter : session.adapters())
      most = std::min(most, session.runtime().engine().MaxSequenceTokens(adapter->generation));
    const double longest = static_cast<double>(most);
    load_.max_input = static_cast<std::int32_t>(std::clamp(4 * load_.input_mean, 2.0, std::max(2.0, longest * 2 / 3)));
    load_.max_output = static_cast<std::int32_t>(std::clamp(4 * load_.output_mean, 2.0, std::max(2.0, longest / 4)));
  }

  Result<std::vector<EngineRun>> Run() {
    std::vector<EngineRun> runs;
    std::vector<double> rates = options_.rates;
    if (rates.empty()) {
      ASSIGN_OR_RETURN(EngineRun burst, Burst());
      runs.push_back(std::move(burst));
      for (const double share : kShares) rates.push_back(share * sustained_);
    }
    for (std::size_t i = 0; i < rates.size(); ++i) {
      const double left =
          options_.engine_seconds * (options_.rates.empty() ? 1 - kBurstShare : 1) / static_cast<double>(rates.size());
      load_.rate = rates[i];
      load_.seconds = std::max(left, 2 / rates[i]);  // at least one or two requests
      load_.seed = SplitMix64(options_.seed + i + 1);
      Report();
      ASSIGN_OR_RETURN(EngineRun run, session_.Run(DrawRequests(load_)));
      if (run.steps.empty()) continue;
      runs.push_back(std::move(run));
    }
    return runs;
  }
  double sustained() const { return sustained_; }

 private:
  void Report() const {
    if (!options_.progress) return;
    const double passed = static_cast<double>(clock_.Now() - begin_) / kNsPerSecond;
    options_.progress("running the engine", passed, std::max(passed, options_.engine_seconds));
  }

  // Halves the lengths of the requests while the linear terms predict that hardly any would fit into the time.
  void Shorten(const PerformanceModel& linear) {
    const auto seconds = [&] {
      const auto input = static_cast<std::int64_t>(load_.input_mean);
      return linear.LinearSecondsOf(
                 {.prefill_tokens = input, .prefill_attention = input * input / 2, .prefill_sequences = 1}) +
             load_.output_mean / 4 * linear.LinearSecondsOf({.decode_sequences = 4, .decode_context = 4 * input});
    };
    while (seconds() * kFewestRequests > kBurstShare * options_.engine_seconds && load_.output_mean > kShortestOutput) {
      load_.input_mean = std::max(kShortestInput, load_.input_mean / 2);
      load_.output_mean = std::max(kShortestOutput, load_.output_mean / 2);
    }
    burst_requests_ = std::clamp(kBurstShare * options_.engine_seconds / seconds(), kFewestRequests, kMostRequests);
  }

  // Submits all requests at once. The completion rate is the rate that the engine sustains.
  Result<EngineRun> Burst() {
    load_.rate = burst_requests_;
    load_.seconds = 1;
    load_.seed = SplitMix64(options_.seed);
    std::vector<EngineRequest> requests = DrawRequests(load_);
    if (requests.empty()) return Internal("no requests to run the engine with");
    for (EngineRequest& request : requests) request.due = 0;
    Report();
    ASSIGN_OR_RETURN(EngineRun run, session_.Run(requests));
    // Count only until nine tenths are done, because towards the end fewer and fewer requests run at once.
    std::vector<TimeNs> ends;
    for (const ServedRequest& request : run.requests) ends.push_back(request.last_token);
    std::sort(ends.begin(), ends.end());
    const std::size_t most = (ends.size() - 1) * 9 / 10;
    sustained_ = static_cast<double>(most + 1) * kNsPerSecond / static_cast<double>(std::max<TimeNs>(1, ends[most]));
    return run;
  }

  const MeasureOptions& options_;
  EngineSession& session_;
  OsClock clock_;
  const TimeNs begin_ = clock_.Now();
  EngineLoad load_;
  double burst_requests_ = 0, sustained_ = 0;
};

Status MeasureEngine(std::unique_ptr<PlacedModel> model, const MeasureOptions& options, PerformanceProfile& profile) {
  ASSIGN_OR_RETURN(const std::unique_ptr<EngineSession> session,
                   EngineSession::Create(std::move(model), options.engine, options.adapters));
  const LoraCostShape shape =
      options.engine.lora_variant == LoraVariant::kBgmv ? LoraCostShape::kBgmv : LoraCostShape::kMbgmv;
  EngineMeasurement measurement(options, profile.ModelOf(shape), *session);
  ASSIGN_OR_RETURN(const std::vector<EngineRun> runs, measurement.Run());
  FitEngine(runs, shape, profile);
  profile.requests_per_second = measurement.sustained();
  return Ok{};
}

}  // namespace

Result<MeasuredProfile> MeasureProfile(std::unique_ptr<PlacedModel> model, const MeasureOptions& options) {
  MeasuredProfile measured;
  PerformanceProfile& profile = measured.profile;
  Prng prng(options.seed);
  std::vector<std::shared_ptr<const AdapterVersion>> adapters;
  std::int64_t page_bytes = 0;
  {
    RuntimeOptions steps = options.engine;
    if (options.step_memory > 0) steps.device_memory = options.step_memory;
    ASSIGN_OR_RETURN(const std::unique_ptr<StepBench> bench, StepBench::Create(*model, steps, options.adapters));
    DescribeModel(options, *model, *bench, profile);
    ASSIGN_OR_RETURN(measured.sweep, Sweep(*bench, options.sweep, prng, [&](double passed, double expected) {
                       if (options.progress) options.progress("measuring steps", passed, expected);
                     }));
    adapters = bench->adapters();
    page_bytes = bench->geometry().page_bytes;
  }  // frees the bench's memory for the links and the engine
  profile.repeat_error = measured.sweep.repeat_error;
  const ModelConfig& config = model->config();
  PerformanceModel::Experts experts;
  if (config.experts) experts = {config.experts->route.experts, config.experts->route.per_token};
  profile.mbgmv = FitVariant(measured.sweep, LoraCostShape::kMbgmv, experts);
  profile.bgmv = FitVariant(measured.sweep, LoraCostShape::kBgmv, experts);
  ASSIGN_OR_RETURN(const LinkMeasurementsOfAll links,
                   MeasureLinks(*model, adapters, page_bytes, options.link_seconds, prng));
  FitLinks(links, profile);
  const int asked = options.engine.assist.cores;
  const std::int64_t cores = asked > 0 ? asked : std::max(1, AvailableProcessors() / 2);  // as the server's default
  ASSIGN_OR_RETURN(profile.mbgmv.model.assist, MeasureAssist(*model, adapters, cores, options.link_seconds));
  profile.bgmv.model.assist = profile.mbgmv.model.assist;
  profile.mbgmv.model.device = profile.bgmv.model.device = profile.device;
  if (options.engine_seconds > 0) RETURN_IF_ERROR(MeasureEngine(std::move(model), options, profile));
  return measured;
}

}  // namespace loramux
