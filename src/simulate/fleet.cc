#include "simulate/fleet.h"

#include <algorithm>
#include <deque>
#include <map>

#include <fmt/format.h>

#include "base/check.h"
#include "base/prng.h"
#include "cluster/prefix_blocks.h"
#include "simulate/event_loop.h"
#include "simulate/fleet_server.h"

namespace loramux {
namespace {

constexpr std::int64_t kFleetSamples = 200;

// The subjects of kFault events: three for each FleetEvent.
enum class Phase : std::int64_t { kBegins, kNoticeIsOver, kIsOver };
constexpr std::int64_t kPhases = 3;

// Servers behind routers.
class Fleet final : private EventLoop {
 public:
  Fleet(const FleetOptions& options, const Workload& workload)
      : EventLoop(options.server, workload), fleet_(options), chance_(SplitMix64(options.seed ^ 0x666c656574)) {}

  // Call once, before Run.
  Status Build() {
    ASSIGN_OR_RETURN(shared_adapters_, SimulatedAdapters::Create(options_.device, workload_));
    demanded_.resize(workload_.adapter_ranks.size());
    for (const FleetEvent& event : fleet_.events) replaces_ |= event.kind == FleetEventKind::kReplace;
    result_.requests.resize(workload_.requests.size());
    flights_.resize(workload_.requests.size());
    for (const WorkloadRequest& request : workload_.requests) mean_output_ += request.output_tokens;
    mean_output_ /= std::max<std::int64_t>(1, static_cast<std::int64_t>(workload_.requests.size()));
    RETURN_IF_ERROR(AddServers(fleet_.servers));
    for (std::int64_t i = 0; i < fleet_.routers; ++i) {
      DispatcherOptions dispatcher = fleet_.dispatcher;
      if (dispatcher.model == nullptr)
        dispatcher.model = std::make_shared<const PerformanceModel>(options_.device.model);
      dispatcher.seed = SplitMix64(fleet_.dispatcher.seed + static_cast<std::uint64_t>(i));
      ASSIGN_OR_RETURN(routers_.emplace_back().dispatcher, Dispatcher::Create(std::move(dispatcher)));
    }
    TellOfMembers();
    return Ok{};
  }

  Status Run() {
    sessions_ = static_cast<std::int64_t>(clients_.first_turns().size());
    for (std::size_t i = 0; i < fleet_.events.size(); ++i) PushFault(fleet_.events[i].at, i, Phase::kBegins);
    ScheduleSamples(kFleetSamples, 0);
    if (sessions_ > 0) events_.Push(fleet_.probe_interval, EventKind::kProbe);
    RETURN_IF_ERROR(RunFrom(0));
    CHECK(clients_.result().given_up || sessions_ == 0);  // otherwise a request waits for an event that never comes
    return Ok{};
  }

  FleetResult Finish() {
    for (const auto& server : servers_) {
      if (server->up() && !clients_.result().given_up) {
        CHECK(server->server().engine().Idle());
        server->server().engine().CheckIntegrity();
      }
      server->CountLife();
      result_.servers.push_back(server->totals());
    }
    for (const Router& router : routers_) result_.routers.push_back(router.dispatcher->States(clock_.Now()));
    result_.run = TakeResult();
    return std::move(result_);
  }

 private:
  struct Router {
    std::unique_ptr<Dispatcher> dispatcher;
    std::vector<std::uint64_t> seen;  // with snapshot_interval 0: FleetServer::change, by server
    std::vector<TimeNs> heard;        // the time of the last snapshot, by server
  };
  // A request on its way.
  struct Flight {
    bool at_server = false;  // an attempt has not ended
    bool answered = false;   // its first byte has arrived
    Dispatcher::Attempt attempt = 0;
    std::string digest;  // digest that its answer must have
    RouteRequest route;
    std::vector<std::string> tried;
  };
  // A snapshot on its way to a router.
  struct Telling {
    std::shared_ptr<const ServerSnapshot> snapshot;
    TimeNs as_of = 0;
    std::int32_t router = 0;
  };

  FleetServer& At(std::int32_t index) { return *servers_[static_cast<std::size_t>(index)]; }
  Dispatcher& DispatcherOf(std::size_t request) {
    return *routers_[static_cast<std::size_t>(result_.requests[request].router)].dispatcher;
  }
  SimulatedServer& ServerOf(std::size_t request) override { return At(result_.requests[request].server).server(); }
  bool IsOpen(std::size_t request) const override { return result_.requests[request].end == FleetEnd::kNeverAsked; }
  // Whether a session is not over.
  bool GoesOn() const override { return sessions_ > 0; }

  // ---- Servers

  Result<std::shared_ptr<SimulatedAdapters>> AdaptersForALife() {
    if (!replaces_) return shared_adapters_;
    ASSIGN_OR_RETURN(auto own, SimulatedAdapters::Create(options_.device, workload_));
    for (std::size_t i = 0; i < demanded_.size(); ++i) {
      if (demanded_[i] > 0) own->Replace(i, DigestText(i));
    }
    return own;
  }

  Status AddServers(std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const auto index = static_cast<std::int32_t>(servers_.size());
      servers_.push_back(std::make_unique<FleetServer>(options_, clock_, events_, index));
      members_.push_back(servers_.back()->name());
      by_name_[servers_.back()->name()] = index;
      RETURN_IF_ERROR(Start(index));
      // Servers publish in turn, not all at once.
      const TimeNs interval = fleet_.snapshot_interval;
      if (interval > 0) events_.Push(clock_.Now() + interval * (index % 64) / 64, EventKind::kSnapshotMade, 0, index);
    }
    return Ok{};
  }

  Status Start(std::int32_t index) {
    ASSIGN_OR_RETURN(auto adapters, AdaptersForALife());
    RETURN_IF_ERROR(At(index).Start(std::move(adapters)));
    for (Router& router : routers_) router.dispatcher->ObserveProbe(At(index).name(), true, clock_.Now());
    return Ok{};
  }

  void TellOfMembers() {
    for (Router& router : routers_) {
      router.dispatcher->SetServers(members_, clock_.Now());
      router.seen.resize(servers_.size());
      router.heard.resize(servers_.size(), -1);
    }
  }

  // The server is gone: routers see their connections end.
  void GoDown(std::int32_t index) {
    At(index).Stop();
    for (Router& router : routers_) router.dispatcher->ObserveProbe(At(index).name(), false, clock_.Now());
  }

  void Crash(std::int32_t index) {
    FleetServer& server = At(index);
    std::vector<std::size_t> lost = server.Requests();
    for (const std::size_t request : lost) Log(FleetLogEntry::What::kStopped, request);
    for (const FleetServer::Held& held : server.held) lost.push_back(held.index);
    GoDown(index);
    for (const std::size_t request : lost) {
      ++server.totals().broken;
      // Routers cannot know how far it came, so they do not try again.
      EndAttempt(request, flights_[request].answered ? AttemptEnd::kBroken : AttemptEnd::kNoConnection);
      End(request, FleetEnd::kBroken);
    }
  }

  void Thaw(std::int32_t index) {
    FleetServer& server = At(index);
    server.frozen = false;
    server.touched = true;
    for (FleetServer::Held& held : std::exchange(server.held, {})) {
      if (!Offered(held.index, server.Take(held.index, held.adapter, held.request, held.digest, message_)))
        Route(held.index, held.request);
    }
  }

  // A draining server that has finished goes away.
  Status EndDrains() {
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      FleetServer& server = *servers_[i];
      if (!server.runs() || !server.refusing || !server.Requests().empty() || !server.server().engine().Idle())
        continue;
      GoDown(static_cast<std::int32_t>(i));
      const auto back = back_at_.find(static_cast<std::int32_t>(i));
      if (back == back_at_.end()) {
        std::erase(members_, server.name());
        TellOfMembers();
      } else if (back->second <= clock_.Now()) {
        RETURN_IF_ERROR(Start(static_cast<std::int32_t>(i)));
      }
    }
    return Ok{};
  }

  Status RunServers() override {
    bool drains = false;
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      FleetServer& server = *servers_[i];
      if (!server.touched) continue;
      server.touched = false;
      if (!server.runs()) continue;
      server.server().Run();
      server.Changed();
      ScheduleMove(server.server().engine(), server.move_pending, static_cast<std::int32_t>(i));
      drains |= server.refusing;
    }
    return drains ? EndDrains() : Ok{};
  }

  void EndRound() override {}

  // ---- Events

  Status HandleOther(const Event& event) override {
    const auto subject = static_cast<std::size_t>(event.subject);
    switch (event.kind) {
      case EventKind::kMove:
        At(event.server).move_pending = false;
        [[fallthrough]];
      case EventKind::kTransferEnds:
      case EventKind::kStepEnds:
        At(event.server).touched = true;  // its engine polls
        break;
      case EventKind::kFault:
        return HandleFault(subject / kPhases, static_cast<Phase>(subject % kPhases));
      case EventKind::kSnapshotMade:
        MakeSnapshot(event.server);
        break;
      case EventKind::kSnapshotHeard:
        HearSnapshot(subject, event.server);
        break;
      case EventKind::kProbe:
        Probe();
        break;
      default:
        break;
    }
    return Ok{};
  }

  void PushFault(TimeNs at, std::size_t index, Phase phase) {
    events_.Push(at, EventKind::kFault, static_cast<std::int64_t>(index) * kPhases + static_cast<std::int64_t>(phase),
                 std::max(0, fleet_.events[index].server));
  }

  Status HandleFault(std::size_t index, Phase phase) {
    const FleetEvent& event = fleet_.events[index];
    if (phase == Phase::kBegins && !GoesOn()) return Ok{};
    if (event.kind == FleetEventKind::kAdd) {
      RETURN_IF_ERROR(AddServers(event.count));
      TellOfMembers();
      return Ok{};
    }
    if (event.kind == FleetEventKind::kReplace) return Replace(event);
    FleetServer& server = At(event.server);
    const TimeNs over_at = event.at + event.duration;
    switch (phase) {
      case Phase::kBegins:
        if (!server.up()) return Ok{};
        if (event.kind != FleetEventKind::kCrash && (server.frozen || server.draining)) return Ok{};
        lives_[index] = server.life();
        if (event.duration > 0) PushFault(over_at, index, Phase::kIsOver);
        if (event.kind == FleetEventKind::kCrash) {
          Crash(event.server);
        } else if (event.kind == FleetEventKind::kFreeze) {
          server.frozen = true;
          server.frozen_since = clock_.Now();
        } else {
          BeginDrain(event, index);
        }
        return Ok{};
      case Phase::kNoticeIsOver:
        if (!server.up() || server.life() != lives_[index]) return Ok{};
        server.refusing = server.touched = true;
        return Ok{};
      case Phase::kIsOver:
        if (event.kind == FleetEventKind::kFreeze) {
          if (server.up() && server.frozen && server.life() == lives_[index]) Thaw(event.server);
          return Ok{};
        }
        // A server that drains longer than it should be away starts when it has ended.
        return !server.up() && server.life() == lives_[index] ? Start(event.server) : Ok{};
    }
    return Ok{};
  }

  void BeginDrain(const FleetEvent& event, std::size_t index) {
    FleetServer& server = At(event.server);
    server.draining = true;
    server.Changed();
    back_at_.erase(event.server);
    if (event.duration > 0) back_at_[event.server] = event.at + event.duration;
    Tell(event.server);
    PushFault(clock_.Now() + fleet_.drain_notice, index, Phase::kNoticeIsOver);
  }

  // ---- What routers hear

  void MakeSnapshot(std::int32_t index) {
    FleetServer& server = At(index);
    if (!GoesOn()) return;
    events_.Push(clock_.Now() + fleet_.snapshot_interval, EventKind::kSnapshotMade, 0, index);
    if (server.runs()) Tell(index);
  }

  // Sends the server's present state to all routers.
  void Tell(std::int32_t index) {
    FleetServer& server = At(index);
    for (std::size_t i = 0; i < routers_.size(); ++i) {
      if (fleet_.snapshot_loss > 0 && chance_.NextDouble() < fleet_.snapshot_loss) continue;
      const double longer = fleet_.snapshot_jitter > 0 ? fleet_.snapshot_jitter * chance_.NextDouble() : 0;
      std::size_t slot = tellings_.size();
      if (free_tellings_.empty()) {
        tellings_.emplace_back();
      } else {
        slot = free_tellings_.back();
        free_tellings_.pop_back();
      }
      tellings_[slot] = {server.Snapshot(), clock_.Now(), static_cast<std::int32_t>(i)};
      const auto delay = static_cast<TimeNs>(static_cast<double>(fleet_.snapshot_delay) * (1 + longer));
      events_.Push(clock_.Now() + delay, EventKind::kSnapshotHeard, static_cast<std::int64_t>(slot), index);
    }
  }

  void HearSnapshot(std::size_t slot, std::int32_t index) {
    const Telling telling = std::move(tellings_[slot]);
    free_tellings_.push_back(slot);
    Router& router = routers_[static_cast<std::size_t>(telling.router)];
    TimeNs& heard = router.heard[static_cast<std::size_t>(index)];
    if (telling.as_of < heard) return;  // one connection delivers in order
    heard = telling.as_of;
    router.dispatcher->Observe(At(index).name(), *telling.snapshot, telling.as_of);
  }

  // With snapshot_interval 0, before a decision.
  void LookAtAll(Router& router) {
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      FleetServer& server = *servers_[i];
      if (!server.runs() || router.seen[i] == server.change()) continue;
      router.seen[i] = server.change();
      router.dispatcher->Observe(server.name(), *server.Snapshot(), clock_.Now());
    }
  }

  void Probe() {
    if (!GoesOn()) return;
    events_.Push(clock_.Now() + fleet_.probe_interval, EventKind::kProbe);
    for (Router& router : routers_) {
      for (const std::string& name : members_) {
        const FleetServer& server = At(by_name_.at(name));
        if (!server.up()) {
          router.dispatcher->ObserveProbe(name, false, clock_.Now());
        } else if (server.frozen) {
          if (clock_.Now() - server.frozen_since >= fleet_.probe_interval)
            router.dispatcher->ObserveProbe(name, false, clock_.Now());
        } else if (!server.refusing) {
          router.dispatcher->ObserveProbe(name, true, clock_.Now());
        }
      }
    }
  }

  // ---- Adapters that change

  std::string DigestText(std::size_t adapter) const {
    const std::string name = "adapter-" + std::to_string(adapter);
    return demanded_[adapter] == 0 ? name : fmt::format("{}#{}", name, demanded_[adapter]);
  }

  // With server -1 routers demand new content from now on; a server takes over what they demand.
  Status Replace(const FleetEvent& event) {
    const auto adapter = static_cast<std::size_t>(event.adapter);
    if (event.server < 0) {
      ++demanded_[adapter];
      return Ok{};
    }
    FleetServer& server = At(event.server);
    if (server.runs() && server.DigestOf(event.adapter) != DigestText(adapter)) {
      server.server().ReplaceAdapter(adapter, DigestText(adapter));
      server.touched = true;
    }
    return Ok{};
  }

  // ---- Requests

  void Send(std::size_t index, TimeNs sent, GenerationRequest request) override {
    const WorkloadRequest& asked = workload_.requests[index];
    result_.requests[index].router = static_cast<std::int32_t>(asked_++ % routers_.size());
    Flight& flight = flights_[index];
    flight.route = {.prompt_tokens = static_cast<std::int64_t>(request.prompt.size()), .output_tokens = mean_output_};
    if (asked.adapter >= 0) {
      const AdapterVersion& version = shared_adapters_->Of(static_cast<std::size_t>(asked.adapter));
      flight.route.adapter = version.name;
      flight.route.rank = version.layout.max_rank;
      flight.route.adapter_bytes = version.layout.pages * options_.device.page_bytes;
      if (replaces_) flight.digest = flight.route.digest = DigestText(static_cast<std::size_t>(asked.adapter));
    }
    flight.route.prefix = PrefixBlocksOfTokens(asked.adapter < 0 ? "base" : flight.route.adapter, request.prompt);
    Await(index, sent);
    Log(FleetLogEntry::What::kAsked, index, flight.digest);
    Route(index, request);
  }

  // Sends a request to servers until one takes it.
  void Route(std::size_t index, GenerationRequest& request) {
    FleetRequest& outcome = result_.requests[index];
    Flight& flight = flights_[index];
    Router& router = routers_[static_cast<std::size_t>(outcome.router)];
    while (true) {
      if (fleet_.snapshot_interval == 0) LookAtAll(router);
      if (outcome.attempts > 0) {
        if (outcome.attempts >= fleet_.most_attempts || !router.dispatcher->MayRetry(clock_.Now()))
          return End(index, FleetEnd::kNotServed);
        ++result_.retries;
      }
      auto decision = router.dispatcher->Send(flight.route, clock_.Now(), flight.tried);
      if (!decision.ok()) return End(index, FleetEnd::kNotServed);
      ++outcome.attempts;
      flight.attempt = decision->attempt;
      flight.at_server = true;
      flight.tried.push_back(decision->server);
      outcome.server = by_name_.at(decision->server);
      FleetServer& server = At(outcome.server);
      ++server.totals().sent;
      outcome.cold = server.runs() && !server.server().HasOnDevice(
                                          server.server().adapters().GenerationOf(workload_.requests[index].adapter));
      if (Offered(index, server.Take(index, workload_.requests[index].adapter, request, flight.digest, message_)))
        return;
    }
  }

  // What a server said to a request. True: it is there, or has ended; false: it may go to another one.
  bool Offered(std::size_t index, FleetServer::Offer offer) {
    switch (offer) {
      case FleetServer::Offer::kHeld:
        return true;
      case FleetServer::Offer::kAccepted:
        Log(FleetLogEntry::What::kAccepted, index,
            At(result_.requests[index].server).DigestOf(workload_.requests[index].adapter));
        return true;
      case FleetServer::Offer::kRefused:
        EndAttempt(index, AttemptEnd::kAnswered);
        End(index, FleetEnd::kRefused);
        return true;
      case FleetServer::Offer::kNotStarted:
        EndAttempt(index, AttemptEnd::kNotStarted);
        return false;
      case FleetServer::Offer::kNoConnection:
        EndAttempt(index, AttemptEnd::kNoConnection);
        return false;
    }
    return false;
  }

  void EndAttempt(std::size_t index, AttemptEnd end) {
    Flight& flight = flights_[index];
    CHECK(flight.at_server);
    flight.at_server = false;
    DispatcherOf(index).End(flight.attempt, end, clock_.Now());
  }

  // The client is told that its request is over.
  void End(std::size_t index, FleetEnd end) {
    FleetRequest& outcome = result_.requests[index];
    CHECK(outcome.end == FleetEnd::kNeverAsked);
    outcome.end = end;
    if (end == FleetEnd::kFinished) misses_.Ended(index);
    if (end == FleetEnd::kRefused || end == FleetEnd::kNotServed || end == FleetEnd::kBroken) misses_.Lost(index);
    const bool refused = end == FleetEnd::kRefused || end == FleetEnd::kNotServed;
    if (refused && !clients_.record(index).refused) clients_.Refuse(index, message_);
    if (end == FleetEnd::kBroken) clients_.Drop(index);
    Log(FleetLogEntry::What::kTold, index, {}, end);
    flights_[index] = {};
    const std::int32_t next = workload_.requests[index].next;
    if (end != FleetEnd::kFinished || next < 0) --sessions_;
    ShowProgress(ended_, fleet_.progress);
  }

  void Began(std::size_t index, TimeNs now) override {
    Flight& flight = flights_[index];
    flight.answered = true;
    DispatcherOf(index).Answered(flight.attempt, now);
  }

  void Ended(std::size_t index, FinishReason reason) override {
    FleetServer& server = At(result_.requests[index].server);
    server.Forget(index);
    const bool cancelled = reason == FinishReason::kCancelled;
    Log(cancelled ? FleetLogEntry::What::kStopped : FleetLogEntry::What::kEnded, index);
    server.totals().finished += cancelled ? 0 : 1;
    EndAttempt(index, cancelled ? AttemptEnd::kCancelled : AttemptEnd::kAnswered);
    const bool failed = reason == FinishReason::kError;
    End(index, cancelled ? FleetEnd::kCancelled : failed ? FleetEnd::kRefused : FleetEnd::kFinished);
  }

  void Cancel(std::size_t index) override {
    if (!flights_[index].at_server) return;  // it has ended
    FleetServer& server = At(result_.requests[index].server);
    const auto held = std::find_if(server.held.begin(), server.held.end(),
                                   [&](const FleetServer::Held& waiting) { return waiting.index == index; });
    if (held == server.held.end()) return server.Cancel(index);
    server.held.erase(held);
    clients_.Drop(index);
    EndAttempt(index, AttemptEnd::kCancelled);
    End(index, FleetEnd::kCancelled);
  }

  void TakeSample() override {
    FleetSample sample{.at = clock_.Now()};
    for (const auto& server : servers_) {
      if (!server->up()) continue;
      ++sample.servers;
      const EngineStats stats = server->server().engine().Stats();
      sample.running += stats.running;
      sample.waiting += stats.waiting;
      sample.most_waiting = std::max(sample.most_waiting, stats.waiting);
    }
    result_.samples.push_back(sample);
  }

  void Log(FleetLogEntry::What what, std::size_t request, std::string digest = {},
           FleetEnd end = FleetEnd::kNeverAsked) {
    if (!fleet_.keep_log) return;
    const std::int32_t server = result_.requests[request].server;
    result_.log.push_back(
        {clock_.Now(), what, request, server, server < 0 ? 0 : At(server).life(), end, std::move(digest)});
  }

  const FleetOptions& fleet_;
  Prng chance_;
  std::shared_ptr<SimulatedAdapters> shared_adapters_;
  bool replaces_ = false;               // adapters change, so each server has its own
  std::vector<std::int64_t> demanded_;  // by adapter: the content that routers demand, counted from 0
  std::vector<std::unique_ptr<FleetServer>> servers_;
  std::vector<std::string> members_;  // servers that routers know
  std::map<std::string, std::int32_t> by_name_;
  std::vector<Router> routers_;
  std::vector<Flight> flights_;  // by request
  std::deque<Telling> tellings_;
  std::vector<std::size_t> free_tellings_;
  std::map<std::size_t, std::int64_t> lives_;  // by event: the life of the server that it began in
  std::map<std::int32_t, TimeNs> back_at_;     // by draining server
  std::int64_t sessions_ = 0, ended_ = 0;      // sessions_: that are not over
  std::size_t asked_ = 0;
  std::int64_t mean_output_ = 0;
  std::string message_;  // message of the last refusal
  FleetResult result_;
};

Status CheckFleet(const FleetOptions& options, const Workload& workload) {
  if (options.servers < 1 || options.servers > 10'000)
    return InvalidArgument(fmt::format("servers: expected 1 to 10,000, found {}", options.servers), "--servers");
  if (options.routers < 1 || options.routers > 1'000)
    return InvalidArgument(fmt::format("routers: expected 1 to 1,000, found {}", options.routers), "--routers");
  if (options.server.preset.all_on_device)
    return InvalidArgument("preset: expected one that loads adapters on demand with --servers", "--preset");
  for (const FleetEvent& event : options.events) {
    const bool needs_server = event.kind != FleetEventKind::kAdd && event.kind != FleetEventKind::kReplace;
    if (event.server >= options.servers || (needs_server && event.server < 0))
      return InvalidArgument(fmt::format("event: expected a server below {}, found {}", options.servers, event.server),
                             "--fail");
    if (event.kind == FleetEventKind::kReplace &&
        (event.adapter < 0 || static_cast<std::size_t>(event.adapter) >= workload.adapter_ranks.size()))
      return InvalidArgument(fmt::format("event: expected an adapter, found {}", event.adapter), "--fail");
  }
  return Ok{};
}

}  // namespace

const char* FleetEndName(FleetEnd end) {
  switch (end) {
    case FleetEnd::kNeverAsked:
      return "never asked";
    case FleetEnd::kFinished:
      return "finished";
    case FleetEnd::kRefused:
      return "refused";
    case FleetEnd::kCancelled:
      return "cancelled";
    case FleetEnd::kBroken:
      return "broken";
    case FleetEnd::kNotServed:
      return "not served";
  }
  return "unknown";
}

Result<FleetResult> SimulateFleet(const FleetOptions& options, const Workload& workload) {
  RETURN_IF_ERROR(CheckFleet(options, workload));
  Fleet fleet(options, workload);
  RETURN_IF_ERROR(fleet.Build());
  RETURN_IF_ERROR(fleet.Run());
  return fleet.Finish();
}

}  // namespace loramux
