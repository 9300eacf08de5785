#include "simulate/simulation.h"

#include <algorithm>
#include <unordered_map>

#include "record/world_samples.h"
#include "simulate/event_queue.h"
#include "simulate/simulated_clients.h"
#include "simulate/simulated_server.h"

namespace loramux {
namespace {

class World {
 public:
  World(const SimulationOptions& options, const Workload& workload)
      : options_(options),
        workload_(workload),
        clients_(workload, options.seed),
        misses_(options.give_up, clients_.result().requests) {}

  // Call once, before Run.
  Status Build() {
    ASSIGN_OR_RETURN(auto adapters, SimulatedAdapters::Create(options_.device, workload_));
    ASSIGN_OR_RETURN(server_, SimulatedServer::Create(options_, LimitsOf(workload_),
                                                      {.clock = &clock_, .events = &events_}, std::move(adapters)));
    return Ok{};
  }

  SimulationResult Run() {
    const bool begins_from_host = options_.preset.spec.cold_start_policy != ColdStartPolicy::kWait;
    if (options_.preset.all_on_device) PinAll();
    if (begins_from_host && options_.adapters_in_host_memory && options_.host_bytes > 0) FillHostTier();
    if (options_.adapters_in_host_tier && options_.host_bytes > 0) PlaceInHost();
    PushFirstTurn();
    ScheduleSamples();
    for (std::int64_t rounds = 1; !events_.empty(); ++rounds) {
      clock_.AdvanceTo(std::max(events_.first().at, clock_.Now()));
      while (!events_.empty() && events_.first().at <= clock_.Now()) Handle(events_.Pop());
      server_->Run();
      if (misses_.Hopeless(clock_.Now())) return GiveUp();
      ScheduleMove();
      if (sampling_) TakeSample();
      if (options_.check_every > 0 && rounds % options_.check_every == 0) engine().CheckIntegrity();
    }
    CHECK(engine().Idle());  // otherwise something waits for an event that never comes
    engine().CheckIntegrity();
    return Finish();
  }

 private:
  Engine& engine() { return server_->engine(); }
  void Pin(std::size_t adapter, bool pinned) {
    AdapterRegistry& registry = server_->adapters().registry();
    const auto version = registry.Find(server_->adapters().Of(adapter).generation);
    engine().SetPinned(version, pinned, [](const Status&) {});
  }

  // Pins all adapters before the first arrival, which is delayed until they are resident. Adapters that do not fit load
  // on demand.
  void PinAll() {
    for (std::size_t i = 0; i < server_->adapters().size(); ++i) Pin(i, true);
    RunUntilQuiet();
    begin_ = clock_.Now();
  }

  // Loads each adapter once before the first arrival, which is delayed until then. So the host tier has its copies,
  // with which requests begin.
  void FillHostTier() {
    for (std::size_t i = 0; i < server_->adapters().size(); ++i) {
      Pin(i, true);
      RunUntilQuiet();
      Pin(i, false);
      RunUntilQuiet();
    }
    begin_ = clock_.Now();
  }

  // Takes no time. Adapters that do not fit stay on disk.
  void PlaceInHost() {
    for (std::size_t i = 0; i < server_->adapters().size(); ++i) {
      engine().PlaceInHost(server_->adapters().registry().Find(server_->adapters().Of(i).generation));
    }
  }

  void RunUntilQuiet() {
    server_->Run();
    while (!events_.empty()) {
      clock_.AdvanceTo(std::max(events_.first().at, clock_.Now()));
      events_.Pop();
      server_->Run();
    }
  }

  // Only the next first turn is an event, so that the queue stays small.
  void PushFirstTurn() {
    const std::int64_t next = clients_.next_first_turn();
    if (next < 0) return;
    events_.Push(SeenAt(begin_ + workload_.requests[static_cast<std::size_t>(next)].arrival), EventKind::kArrival,
                 next);
  }

  void ScheduleSamples() {
    if (options_.samples <= 0 || clients_.first_turns().empty()) return;
    const TimeNs last = workload_.requests[clients_.first_turns().back()].arrival;
    sample_gap_ = std::max<TimeNs>(kNsPerMs, last / options_.samples);
    events_.Push(begin_, EventKind::kSample);
    sample_pending_ = true;
  }

  void Handle(const Event& event) {
    switch (event.kind) {
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
        return engine().Cancel(cancellable_.at(static_cast<std::size_t>(event.subject)));
      default:
        return;  // the engine polls
    }
  }

  // Pending samples and tier moves alone do not keep the simulation running.
  bool AnythingToCome() const {
    return events_.size() > static_cast<std::size_t>(sample_pending_) + static_cast<std::size_t>(move_pending_);
  }

  // Pages that move ahead of demand (swaps, expected adapters) need a step even if nothing else happens.
  void ScheduleMove() {
    if (move_pending_ || !AnythingToCome()) return;
    const auto wait = engine().TimeToNextMove();
    if (!wait.has_value()) return;
    move_pending_ = true;
    events_.Push(clock_.Now() + std::max<TimeNs>(1, wait->count()), EventKind::kMove);
  }

  void Arrive(std::size_t index) {
    const WorkloadRequest& asked = workload_.requests[index];
    const TimeNs sent = clock_.Now() - submit_latency_;
    GenerationRequest request = clients_.Ask(index, sent);
    if (!asked.follows) PushFirstTurn();
    ShowProgress();
    request.adapter = server_->adapters().GenerationOf(asked.adapter);
    request.on_event = [this, index](const GenerationEvent& event) { Hear(index, event); };
    const Result<RequestId> id = engine().Submit(std::move(request));
    if (!id.ok()) return clients_.Refuse(index, id.error().message);
    if (asked.cancel_after <= 0) return misses_.Asked(index);
    cancellable_[index] = *id;
    events_.Push(sent + asked.cancel_after, EventKind::kCancel, static_cast<std::int64_t>(index));
  }

  void Hear(std::size_t index, const GenerationEvent& event) {
    RequestRecord& record = clients_.record(index);
    const bool begins = event.token != nullptr && record.first_token < 0;
    const std::int64_t next = clients_.Hear(index, event);
    if (event.finish == FinishReason::kLength) misses_.Ended(index);
    if (begins && record.adapter >= 0) {
      record.adapter_load = server_->LoadedBetween(server_->adapters().GenerationOf(record.adapter), record.arrival,
                                                   record.first_scheduled);
    }
    if (next >= 0)
      events_.Push(SeenAt(event.now + workload_.requests[static_cast<std::size_t>(next)].arrival), EventKind::kArrival,
                   next);
  }

  void TakeSample() {
    sampling_ = false;
    const EngineStats stats = engine().Stats();
    clients_.result().samples.push_back(SampleOf(stats, clock_.Now()));
    invalid_pages_ += static_cast<double>(stats.invalid_history_pages);
    all_history_pages_ += static_cast<double>(stats.history_pages);
  }

  void ShowProgress() {
    const std::size_t all = workload_.requests.size();
    if (options_.progress && ++asked_ % std::max<std::size_t>(1, all / 100) == 0)
      options_.progress(static_cast<double>(asked_) / static_cast<double>(all));
  }

  // Ends the run where it is. What had not ended is over.
  SimulationResult GiveUp() {
    std::vector<RequestRecord>& records = clients_.result().requests;
    for (std::size_t i = 0; i < records.size(); ++i)
      records[i].cancelled |= !records[i].refused && records[i].output_tokens < workload_.requests[i].output_tokens;
    SimulationResult result = Finish();
    result.given_up = true;
    return result;
  }

  SimulationResult Finish() {
    SimulationResult result = std::move(clients_.result());
    for (const RequestRecord& record : result.requests) {
      CHECK(record.refused || record.cancelled || record.last_token >= 0);  // every request ends
      result.end = std::max(result.end, record.last_token);
    }
    const SimulatedLinks& links = server_->links();
    result.stats = engine().Stats();
    result.busy = server_->executor().busy();
    result.bytes_to_device = links.to_device.bytes();
    result.bytes_to_host = links.to_host.bytes();
    result.bytes_from_disk = links.disk.bytes();
    result.host_link_busy = links.to_device.busy();
    result.invalid_history_share = all_history_pages_ > 0 ? invalid_pages_ / all_history_pages_ : 0;
    return result;
  }

  // When an idle engine notices a request. An engine that computes looks between steps anyway.
  TimeNs SeenAt(TimeNs sent) const { return sent + submit_latency_; }

  const SimulationOptions& options_;
  const Workload& workload_;
  const TimeNs submit_latency_ = static_cast<TimeNs>(options_.device.model.submit_latency * kNsPerSecond);
  VirtualClock clock_;
  EventQueue events_;
  SimulatedClients clients_;
  MissCount misses_;
  std::size_t asked_ = 0;
  std::unique_ptr<SimulatedServer> server_;
  // by request, if its client will cancel; never iterated
  std::unordered_map<std::size_t, RequestId> cancellable_;
  TimeNs sample_gap_ = 0, begin_ = 0;  // begin_: of the workload
  bool sampling_ = false;
  bool sample_pending_ = false, move_pending_ = false;  // in `events_`
  double invalid_pages_ = 0, all_history_pages_ = 0;
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
  return SimulatedClients::AnsweredToken(seed, request, n);
}

Result<SimulationResult> Simulate(const SimulationOptions& options, const Workload& workload) {
  World world(options, workload);
  RETURN_IF_ERROR(world.Build());
  return world.Run();
}

}  // namespace loramux
