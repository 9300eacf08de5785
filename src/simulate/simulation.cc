#include "simulate/simulation.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "record/world_samples.h"
#include "simulate/event_loop.h"
#include "simulate/simulated_server.h"

namespace loramux {
namespace {

// One server, to which clients are connected directly.
class OneServer final : private EventLoop {
 public:
  OneServer(const SimulationOptions& options, const Workload& workload) : EventLoop(options, workload) {}

  // Call once, before Run.
  Status Build() {
    ASSIGN_OR_RETURN(auto adapters, SimulatedAdapters::Create(options_.device, workload_));
    ASSIGN_OR_RETURN(server_,
                     SimulatedServer::Create(options_, {.clock = &clock_, .events = &events_}, std::move(adapters)));
    return Ok{};
  }

  Result<SimulationResult> Run() {
    const bool begins_from_host = options_.preset.spec.cold_start_policy != ColdStartPolicy::kWait;
    if (options_.preset.all_on_device) PinAll();
    if (begins_from_host && options_.adapters_in_host_memory && options_.host_bytes > 0) FillHostTier();
    const TimeNs begin = clock_.Now();
    ScheduleSamples(options_.samples, begin);
    RETURN_IF_ERROR(RunFrom(begin));
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
  }

  void RunUntilQuiet() {
    server_->Run();
    while (!events_.empty()) {
      clock_.AdvanceTo(std::max(events_.first().at, clock_.Now()));
      events_.Pop();
      server_->Run();
    }
  }

  void Send(std::size_t index, TimeNs sent, GenerationRequest request) override {
    ShowProgress(asked_, options_.progress);
    request.adapter = server_->adapters().GenerationOf(workload_.requests[index].adapter);
    const Result<RequestId> id = engine().Submit(std::move(request));
    if (!id.ok()) return clients_.Refuse(index, id.error().message);
    if (workload_.requests[index].cancel_after > 0) cancellable_[index] = *id;
    Await(index, sent);
  }
  void Cancel(std::size_t index) override { engine().Cancel(cancellable_.at(index)); }
  SimulatedServer& ServerOf(std::size_t) override { return *server_; }
  void Began(std::size_t, TimeNs) override {}
  void Ended(std::size_t index, FinishReason reason) override {
    if (reason == FinishReason::kLength) misses_.Ended(index);
    if (reason == FinishReason::kError) misses_.Lost(index);
  }
  bool IsOpen(std::size_t index) const override {
    const RequestRecord& record = clients_.record(index);
    return !record.refused && record.output_tokens < workload_.requests[index].output_tokens;
  }

  Status HandleOther(const Event& event) override {
    if (event.kind == EventKind::kMove) move_pending_ = false;
    return Ok{};  // the engine polls
  }

  Status RunServers() override {
    server_->Run();
    return Ok{};
  }

  void EndRound() override {
    ScheduleMove(engine(), move_pending_, 0);
    if (std::exchange(sampling_, false)) KeepSample();
    if (options_.check_every > 0 && ++rounds_ % options_.check_every == 0) engine().CheckIntegrity();
  }

  // After the engine has run.
  void TakeSample() override { sampling_ = true; }

  void KeepSample() {
    const EngineStats stats = engine().Stats();
    clients_.result().samples.push_back(SampleOf(stats, clock_.Now()));
    invalid_pages_ += static_cast<double>(stats.invalid_history_pages);
    all_history_pages_ += static_cast<double>(stats.history_pages);
  }

  bool GoesOn() const override {
    return events_.size() > static_cast<std::size_t>(sample_pending_) + static_cast<std::size_t>(move_pending_);
  }

  SimulationResult Finish() {
    SimulationResult result = TakeResult();
    if (!result.given_up) {
      CHECK(engine().Idle());  // otherwise something waits for an event that never comes
      engine().CheckIntegrity();
    }
    for (const RequestRecord& record : result.requests)
      CHECK(record.refused || record.cancelled || record.last_token >= 0);  // every request ends
    const SimulatedTransfer::Links& links = server_->links();
    result.stats = engine().Stats();
    result.busy = server_->executor().busy();
    result.bytes_to_device = links.to_device.bytes();
    result.bytes_to_host = links.to_host.bytes();
    result.bytes_from_disk = links.disk.bytes();
    result.host_link_busy = links.to_device.busy();
    result.invalid_history_share = all_history_pages_ > 0 ? invalid_pages_ / all_history_pages_ : 0;
    return result;
  }

  std::unique_ptr<SimulatedServer> server_;
  // by request, if its client will cancel; never iterated
  std::unordered_map<std::size_t, RequestId> cancellable_;
  std::int64_t asked_ = 0, rounds_ = 0;
  bool sampling_ = false;      // at the end of this round
  bool move_pending_ = false;  // in `events_`
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
  OneServer server(options, workload);
  RETURN_IF_ERROR(server.Build());
  return server.Run();
}

}  // namespace loramux
