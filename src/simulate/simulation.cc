#include "simulate/simulation.h"

#include <algorithm>
#include <unordered_map>

#include "base/prng.h"
#include "engine/control_plane.h"
#include "schedule/predict/oracle_predictor.h"
#include "schedule/profile/service_times.h"
#include "simulate/event_queue.h"
#include "simulate/simulated_executor.h"
#include "simulate/simulated_transfer.h"

namespace loramux {
namespace {

std::int32_t LongestOutput(const Workload& workload) {
  std::int32_t longest = 0;
  for (const WorkloadRequest& request : workload.requests) longest = std::max(longest, request.output_tokens);
  return longest;
}

std::uint64_t SamplingSeed(std::uint64_t seed, std::size_t request) { return SplitMix64(seed ^ request); }

class World {
 public:
  World(const SimulationOptions& options, const Workload& workload)
      : options_(options),
        workload_(workload),
        links_(options.device.model),
        adapter_transfer_(&clock_, &events_, &links_, options.adapters_in_host_memory),
        kv_transfer_(&clock_, &events_, &links_, false),
        executor_(&clock_, &events_, options.device.model, &options.pace, &adapter_transfer_),
        predictor_(options.predictor_accuracy, options.seed, LongestOutput(workload)) {}

  // Call once, before Run.
  Status Build() {
    ASSIGN_OR_RETURN(const CacheRegime regime, FindCacheRegime(options_.preset.cache));
    const std::int64_t page_bytes = options_.device.page_bytes,
                       max_model_len = std::max<std::int64_t>(2, workload_.MaxSequenceTokens());
    ControlPlaneOptions plane;
    const std::int64_t device_bytes = options_.device.device_pages * page_bytes,
                       host_bytes = static_cast<std::int64_t>(options_.host_bytes);
    ASSIGN_OR_RETURN(plane.device, PagePool::Create("device", ArenaWithoutBytes(device_bytes), page_bytes));
    if (options_.host_bytes > 0) {
      ASSIGN_OR_RETURN(plane.host, PagePool::Create("host", ArenaWithoutBytes(host_bytes), page_bytes));
    }
    SchedulerOptions scheduler{.page_tokens = options_.device.page_tokens,
                               .max_running = options_.max_running,
                               .max_batch_tokens = options_.max_batch_tokens,
                               .prefill_chunk = options_.max_batch_tokens,
                               .adapter_prefetch = options_.adapter_prefetch,
                               .age_bound = options_.age_bound};
    scheduler.fairness.max_wait = options_.fairness_max_wait;
    QueueOrderOptions order{.total_tokens =
                                static_cast<double>(options_.device.device_pages * options_.device.page_tokens)};
    ApplyPreset(options_.preset, max_model_len, scheduler, order);
    if (options_.adapter_share > 0) scheduler.adapter_share = options_.adapter_share;
    order.lanes.slo = order.objective = options_.slo;
    PlanByModel(options_.costs, scheduler, order);
    if (options_.costs == nullptr) scheduler.ridge_tokens = RidgeTokens(options_.device.model);  // from the data sheet
    plane.engine = {.scheduler = scheduler,
                    .max_model_len = max_model_len,
                    .eos_token_ids = {},
                    .vocab_size = SimulatedExecutor::kVocab};
    plane.eviction = regime.policy;
    plane.queue = order;
    plane.prefix_cache = regime.keep_history && options_.preset.keep_history;
    plane.hash_seed = options_.seed;
    ASSIGN_OR_RETURN(plane_, ControlPlane::Create(std::move(plane)));
    engine_ = plane_->Connect({.clock = clock_,
                               .executor = executor_,
                               .transfer = adapter_transfer_,
                               .registry = registry_,
                               .wakeup = wakeup_,
                               .kv_transfer = &kv_transfer_,
                               .predictor = &predictor_,
                               .observer = options_.observer,
                               .eviction = options_.eviction});
    return RegisterAdapters();
  }

  SimulationResult Run() {
    result_.requests.resize(workload_.requests.size());
    const auto policy = options_.preset.cold_start_policy.value_or(ColdStartPolicy::kWait);
    const bool begins_from_host = policy != ColdStartPolicy::kWait;
    if (options_.preset.all_on_device) PinAll();
    if (begins_from_host && options_.adapters_in_host_memory && options_.host_bytes > 0) FillHostTier();
    for (std::size_t i = 0; i < workload_.requests.size(); ++i) {
      if (!workload_.requests[i].follows) PushFirstTurn(i);
    }
    ScheduleSamples();
    for (std::int64_t rounds = 1; !events_.empty(); ++rounds) {
      clock_.AdvanceTo(std::max(events_.first().at, clock_.Now()));
      while (!events_.empty() && events_.first().at <= clock_.Now()) Handle(events_.Pop());
      while (engine_->Step()) {
      }
      ScheduleMove();
      if (sampling_) TakeSample();
      if (options_.check_every > 0 && rounds % options_.check_every == 0) engine_->CheckIntegrity();
    }
    CHECK(engine_->Idle());  // otherwise something waits for an event that never comes
    engine_->CheckIntegrity();
    return Finish();
  }

 private:
  // Pins all adapters before the first arrival, which is delayed until they are resident. Adapters that do not fit load
  // on demand.
  void PinAll() {
    for (const AdapterGeneration generation : generations_) {
      engine_->SetPinned(registry_.Find(generation), true, [](const Status&) {});
    }
    RunUntilQuiet();
    begin_ = clock_.Now();
  }

  // Loads each adapter once before the first arrival, which is delayed until then. So the host tier has its copies,
  // with which requests begin.
  void FillHostTier() {
    for (const AdapterGeneration generation : generations_) {
      engine_->SetPinned(registry_.Find(generation), true, [](const Status&) {});
      RunUntilQuiet();
      engine_->SetPinned(registry_.Find(generation), false, [](const Status&) {});
      RunUntilQuiet();
    }
    begin_ = clock_.Now();
  }

  void RunUntilQuiet() {
    while (engine_->Step()) {
    }
    while (!events_.empty()) {
      clock_.AdvanceTo(std::max(events_.first().at, clock_.Now()));
      events_.Pop();
      while (engine_->Step()) {
      }
    }
  }

  Status RegisterAdapters() {
    for (std::size_t i = 0; i < workload_.adapter_ranks.size(); ++i) {
      auto version = std::make_shared<AdapterVersion>();
      version->name = "adapter-" + std::to_string(i);
      version->file.digest = version->name;  // each has distinct content
      version->layout.max_rank = static_cast<std::int32_t>(workload_.adapter_ranks[i]);
      version->layout.pages = workload_.adapter_pages.empty() ? options_.device.AdapterPages(workload_.adapter_ranks[i])
                                                              : workload_.adapter_pages.at(i);
      version->layout.payload_bytes = workload_.adapter_bytes.empty()
                                          ? workload_.adapter_ranks[i] * options_.device.adapter_bytes_per_rank
                                          : workload_.adapter_bytes.at(i);
      ASSIGN_OR_RETURN(const auto published, registry_.Commit(std::move(version)));
      generations_.push_back(published->generation);
    }
    return Ok{};
  }

  // Only the next first turn is an event, so that the queue stays small.
  void PushFirstTurn(std::size_t request) {
    const TimeNs at = SeenAt(begin_ + workload_.requests[request].arrival);
    if (first_turns_.empty()) events_.Push(at, EventKind::kArrival, static_cast<std::int64_t>(request));
    first_turns_.push_back(request);
  }

  void ScheduleSamples() {
    if (options_.samples <= 0 || first_turns_.empty()) return;
    const TimeNs last = workload_.requests[first_turns_.back()].arrival;
    sample_gap_ = std::max<TimeNs>(kNsPerMs, last / options_.samples);
    events_.Push(begin_, EventKind::kSample);
    sample_pending_ = true;
  }

  void Handle(const Event& event) {
    switch (event.kind) {
      case EventKind::kTransferEnds:
      case EventKind::kStepEnds:
        return;  // the engine polls
      case EventKind::kArrival:
        return Arrive(static_cast<std::size_t>(event.subject));
      case EventKind::kSample:
        sampling_ = true;
        sample_pending_ = false;
        sample_pending_ = AnythingToCome();
        if (sample_pending_) events_.Push(clock_.Now() + sample_gap_, EventKind::kSample);
        return;
      case EventKind::kMove:
        move_pending_ = false;
        return;
      case EventKind::kCancel:
        engine_->Cancel(cancellable_.at(static_cast<std::size_t>(event.subject)));
    }
  }

  // Pending samples and tier moves alone do not keep the simulation running.
  bool AnythingToCome() const {
    return events_.size() > static_cast<std::size_t>(sample_pending_) + static_cast<std::size_t>(move_pending_);
  }

  // Pages that move ahead of demand (swaps, expected adapters) need a step even if nothing else happens.
  void ScheduleMove() {
    if (move_pending_ || !AnythingToCome()) return;
    const auto wait = engine_->TimeToNextMove();
    if (!wait.has_value()) return;
    move_pending_ = true;
    events_.Push(clock_.Now() + std::max<TimeNs>(1, wait->count()), EventKind::kMove);
  }

  void Arrive(std::size_t index) {
    const WorkloadRequest& asked = workload_.requests[index];
    if (!asked.follows && ++next_first_ < first_turns_.size()) {
      const std::size_t next = first_turns_[next_first_];
      events_.Push(SeenAt(begin_ + workload_.requests[next].arrival), EventKind::kArrival,
                   static_cast<std::int64_t>(next));
    }
    RequestRecord& record = result_.requests[index];
    GenerationRequest request;
    if (asked.follows)
      request.prompt = std::move(histories_.extract(index).mapped());
    else
      request.prompt.reserve(static_cast<std::size_t>(asked.input_tokens));
    workload_.AppendPrompt(index, request.prompt);
    record.arrival = clock_.Now() - submit_latency_;
    record.adapter = asked.adapter;
    record.prompt_tokens = static_cast<std::int32_t>(request.prompt.size());
    if (asked.next >= 0) histories_[static_cast<std::size_t>(asked.next)] = request.prompt;
    if (asked.adapter >= 0) request.adapter = generations_[static_cast<std::size_t>(asked.adapter)];
    request.max_tokens = asked.output_tokens;
    request.ignore_eos = true;
    request.length_hint = asked.output_tokens;
    request.sampling.seed = SamplingSeed(options_.seed, index);
    if (asked.tenant >= 0) request.tenant = "tenant-" + std::to_string(asked.tenant);
    if (asked.prefix_domain >= 0) request.prefix_domain = "domain-" + std::to_string(asked.prefix_domain);
    request.priority = asked.priority;
    if (asked.deadline > 0) request.deadline = record.arrival + asked.deadline;
    request.on_event = [this, index](const GenerationEvent& event) { Hear(index, event); };
    const Result<RequestId> id = engine_->Submit(std::move(request));
    if (!id.ok()) {
      record.refused = true;
      result_.refusals.emplace_back(index, id.error().message);
      return DropSession(index);
    }
    if (asked.cancel_after <= 0) return;
    cancellable_[index] = *id;
    events_.Push(record.arrival + asked.cancel_after, EventKind::kCancel, static_cast<std::int64_t>(index));
  }

  // The turns after a refused or cancelled one are never asked.
  void DropSession(std::size_t index) {
    for (std::int32_t next = workload_.requests[index].next; next >= 0;
         next = workload_.requests[static_cast<std::size_t>(next)].next) {
      histories_.erase(static_cast<std::size_t>(next));
      result_.requests[static_cast<std::size_t>(next)].refused = true;
    }
  }

  void Hear(std::size_t index, const GenerationEvent& event) {
    RequestRecord& record = result_.requests[index];
    const std::int32_t next = workload_.requests[index].next;
    if (event.token != nullptr) {
      if (record.first_token < 0) {
        record.first_token = event.now;
        record.first_scheduled = event.first_scheduled;
        record.cached_tokens = event.cached_prompt_tokens;
        if (record.adapter >= 0) {
          const AdapterGeneration generation = generations_[static_cast<std::size_t>(record.adapter)];
          record.adapter_load =
              adapter_transfer_.LoadedBetween(generation.value, record.arrival, record.first_scheduled);
        }
      } else {
        result_.between_tokens.Add(event.now - record.last_token);
      }
      record.last_token = event.now;
      ++record.output_tokens;
      if (next >= 0) histories_.at(static_cast<std::size_t>(next)).push_back(event.token->id);
    }
    if (event.finish == FinishReason::kNone) return;
    if (event.finish == FinishReason::kCancelled) {
      record.cancelled = true;
      return DropSession(index);
    }
    CHECK(event.finish == FinishReason::kLength);
    CHECK_EQ(record.output_tokens, workload_.requests[index].output_tokens);
    if (next >= 0)
      events_.Push(SeenAt(event.now + workload_.requests[static_cast<std::size_t>(next)].arrival), EventKind::kArrival,
                   next);
  }

  void TakeSample() {
    sampling_ = false;
    const EngineStats stats = engine_->Stats();
    const std::int64_t kv = stats.device.used(PageCategory::kKv);
    result_.samples.push_back({.at = clock_.Now(),
                               .running = stats.running,
                               .waiting = stats.waiting,
                               .free_pages = stats.device.free_pages,
                               .running_kv_pages = kv - stats.history_pages,
                               .history_pages = stats.history_pages,
                               .adapter_pages = stats.device.used(PageCategory::kAdapter)});
    invalid_pages_ += static_cast<double>(stats.invalid_history_pages);
    all_history_pages_ += static_cast<double>(stats.history_pages);
  }

  SimulationResult Finish() {
    for (const RequestRecord& record : result_.requests) {
      CHECK(record.refused || record.cancelled || record.last_token >= 0);  // every request ends
      result_.end = std::max(result_.end, record.last_token);
    }
    result_.stats = engine_->Stats();
    result_.busy = executor_.busy();
    result_.bytes_to_device = links_.to_device.bytes();
    result_.bytes_to_host = links_.to_host.bytes();
    result_.bytes_from_disk = links_.disk.bytes();
    result_.host_link_busy = links_.to_device.busy();
    result_.invalid_history_share = all_history_pages_ > 0 ? invalid_pages_ / all_history_pages_ : 0;
    return std::move(result_);
  }

  // When an idle engine notices a request. An engine that computes looks between steps anyway.
  TimeNs SeenAt(TimeNs sent) const { return sent + submit_latency_; }

  const SimulationOptions& options_;
  const Workload& workload_;
  const TimeNs submit_latency_ = static_cast<TimeNs>(options_.device.model.submit_latency * kNsPerSecond);
  VirtualClock clock_;
  EventQueue events_;
  SimulatedLinks links_;
  SimulatedTransfer adapter_transfer_, kv_transfer_;
  SimulatedExecutor executor_;
  OraclePredictor predictor_;
  AdapterRegistry registry_{ModelConfig{}, {"base"}, {}};
  Wakeup wakeup_;
  std::unique_ptr<ControlPlane> plane_;
  std::unique_ptr<Engine> engine_;
  std::vector<AdapterGeneration> generations_;
  std::vector<std::size_t> first_turns_;
  std::size_t next_first_ = 0;
  // by the turn with a prompt that begins with it; never iterated
  std::unordered_map<std::size_t, std::vector<TokenId>> histories_;
  // by request, if its client will cancel; never iterated
  std::unordered_map<std::size_t, RequestId> cancellable_;
  TimeNs sample_gap_ = 0, begin_ = 0;  // begin_: of the workload
  bool sampling_ = false;
  bool sample_pending_ = false, move_pending_ = false;  // in `events_`
  double invalid_pages_ = 0, all_history_pages_ = 0;
  SimulationResult result_;
};

}  // namespace

void UseProfile(const PerformanceProfile& profile, SimulationOptions& options) {
  PerformanceModel model = profile.EngineModel();
  if (!model.assist.measured()) model.assist = options.device.model.assist;
  options.device.model = model;
  options.costs = std::make_shared<const PerformanceModel>(std::move(model));
  options.pace = profile.pace;
}

TokenId AnsweredToken(std::uint64_t seed, std::size_t request, std::size_t n) {
  return SimulatedExecutor::TokenAt(SamplingSeed(seed, request), n);
}

Result<SimulationResult> Simulate(const SimulationOptions& options, const Workload& workload) {
  World world(options, workload);
  RETURN_IF_ERROR(world.Build());
  return world.Run();
}

}  // namespace loramux
