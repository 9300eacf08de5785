#include "cluster/dispatcher.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/prng.h"
#include "cluster/default_model.h"
#include "cluster/offered_names.h"
#include "cluster/own_dispatches.h"
#include "cluster/replica_sets.h"
#include "cluster/retry_budget.h"
#include "cluster/server_health.h"
#include "cluster/server_load.h"
#include "cluster/session_servers.h"

namespace loramux {
namespace {

// Decoding requests among which a step is shared when a request's work is estimated.
constexpr std::int64_t kTypicalBatch = 32;
// Own requests in the snapshots from which the number of routers is told, and the most that is believed.
constexpr std::int64_t kLeastKnown = 8;
constexpr double kMostRouters = 16;
// So few requests are added up anew whenever one ends.
constexpr std::size_t kAddedUpAnew = 64;

// Seconds of one server that a request takes.
double WorkSeconds(const PerformanceModel& model, const RouteRequest& request) {
  const StepLoad prompt{.prefill_tokens = request.prompt_tokens,
                        .prefill_attention = request.prompt_tokens * (request.prompt_tokens + 1) / 2,
                        .prefill_sequences = 1,
                        .prefill_context = request.prompt_tokens};
  const StepLoad decoding{.decode_sequences = kTypicalBatch,
                          .decode_context = kTypicalBatch * (request.prompt_tokens + request.output_tokens / 2)};
  return model.SecondsOf(prompt) +
         static_cast<double>(request.output_tokens) * model.SecondsOf(decoding) / kTypicalBatch;
}

// What the dispatcher knows of one server. Attempts share it, so that they may end after it left the list.
struct Server {
  Server(const DispatcherOptions& options, std::string its_name, TimeNs now, bool slow)
      : name(std::move(its_name)), token(SessionToken(name)), health(options.health, now, slow) {}

  const std::string name, token;
  ServerHealth health;
  std::optional<ServerSnapshot> snapshot;
  TimeNs snapshot_at = -1;
  std::string instance;   // instance of the last snapshot, also when that is too old
  bool draining = false;  // whether that snapshot says that it drains
  OfferedNames offered;   // models of that snapshot
  OwnDispatches own;
  ServerLoad of_snapshot;     // without corrections
  ServerLoad load;            // with corrections, as of the last AddUp and the events since
  bool added_up = false;      // `load` is true
  std::int64_t times = 0;     // with which the requests are in it
  std::int64_t removals = 0;  // since it was added up
  std::int64_t sent = 0;
  std::int64_t own_counted = 0;  // requests of this router among those that the snapshot counts

  const ServerSnapshot* Snapshot() const { return snapshot ? &*snapshot : nullptr; }
  // Makes `load` true. `its_times`: 0, without corrections, else how many requests stand behind one of this router.
  void AddUp(std::int64_t its_times) {
    if (added_up && its_times == times) return;
    added_up = true;
    times = its_times;
    removals = 0;
    load = of_snapshot;
    if (times == 0) return;
    for (const OwnDispatch& dispatch : own.ended()) load.AddEnded(dispatch.request, Snapshot());
    for (const OwnDispatch& dispatch : own.sent()) load.AddSent(dispatch, Snapshot(), times);
  }
  // The following keep `load` true, or leave the sum to the next choice. Without snapshots all requests of the router
  // count as sent since, so each event changes the sum of many by one; what RemoveSent leaves is put right now and
  // then.
  void Sent() {
    if (added_up && times > 0) load.AddSent(own.sent().back(), Snapshot(), times);
  }
  // REQUIRES: `dispatch` is null or one of own.sent(), and will be taken away or change.
  void Remove(const OwnDispatch* dispatch) {
    const bool few = own.sent().size() <= kAddedUpAnew;
    if (dispatch == nullptr || few || static_cast<std::size_t>(++removals) > own.sent().size() / 2) added_up = false;
    if (added_up && times > 0) load.RemoveSent(*dispatch, Snapshot(), times);
  }
  void Answered(Dispatcher::Attempt attempt) {
    const OwnDispatch* dispatch = own.FindSent(attempt);
    if (dispatch != nullptr) Remove(dispatch);
    if (own.Answered(attempt) && added_up && times > 0) load.AddSent(*own.FindSent(attempt), Snapshot(), times);
  }
  TimeNs End(Dispatcher::Attempt attempt, TimeNs now) {
    Remove(own.FindSent(attempt));
    return own.End(attempt, snapshot.has_value(), now);
  }
  void ForgetSnapshot() {
    added_up = false;
    snapshot.reset();
    of_snapshot = {};
    own_counted = 0;
    own.CountAll();
  }
};

}  // namespace

struct Dispatcher::Impl {
  Impl(DispatcherOptions its_options, std::unique_ptr<RoutePolicy> its_policy)
      : options(std::move(its_options)),
        policy(std::move(its_policy)),
        prng(options.seed),
        budget(options.retry_budget) {}

  DispatcherOptions options;
  std::unique_ptr<RoutePolicy> policy;
  Prng prng;
  RetryBudget budget;
  ReplicaSets replicas;
  SessionServers sessions;
  std::map<std::string, std::shared_ptr<Server>, std::less<>> servers;
  std::unordered_map<Attempt, std::shared_ptr<Server>> attempts;
  Attempt last_attempt = 0;
  std::vector<Server*> usable;    // servers that one Send may choose from
  std::vector<ServerView> views;  // views of `usable`

  Server* Find(std::string_view name) const {
    const auto found = servers.find(name);
    return found == servers.end() ? nullptr : found->second.get();
  }
  bool Panic(TimeNs now) const;
  bool IsLast(const Server& server, TimeNs now) const;
  double FleetPerOwn() const;
  std::int64_t Times() const;
  void ForgetOld(TimeNs now);
  RouteRequest Completed(const RouteRequest& request) const;
  void FindUsable(std::span<const std::string> tried, TimeNs now);
  void KeepOffering(std::string_view adapter);
  bool HasOtherDigest(const Server& server, const RouteRequest& request) const;
  Error NoServer(const RouteRequest& request, std::span<const std::string> tried, TimeNs now) const;
  Error NoDigest(const RouteRequest& request) const;
  std::int64_t ReplicasFor(const RouteRequest& request, bool first, TimeNs now);
  std::size_t OfSession(const RouteRequest& request, TimeNs now) const;
  Decision Choose(const RouteRequest& request, bool first, TimeNs now);
};

bool Dispatcher::Impl::Panic(TimeNs now) const {
  const auto ejected =
      std::ranges::count_if(servers, [&](const auto& each) { return each.second->health.Ejected(now); });
  return static_cast<double>(ejected) > options.most_ejected * static_cast<double>(servers.size());
}

// Whether no other server takes requests.
bool Dispatcher::Impl::IsLast(const Server& server, TimeNs now) const {
  return std::none_of(servers.begin(), servers.end(), [&](const auto& each) {
    return each.second.get() != &server && !each.second->draining && !each.second->health.Ejected(now);
  });
}

// Other routers send to the same servers. How many requests all have sent for each of this router's, by the snapshots.
double Dispatcher::Impl::FleetPerOwn() const {
  std::int64_t own = 0, all = 0;
  for (const auto& [name, server] : servers) {
    if (!server->snapshot) continue;
    own += server->own_counted;
    all += server->of_snapshot.requests();
  }
  if (own < kLeastKnown) return 1;
  return std::clamp(static_cast<double>(all) / static_cast<double>(own), 1.0, kMostRouters);
}

// Other routers see what this one sees, and choose alike; so each own request since a snapshot stands for theirs too.
std::int64_t Dispatcher::Impl::Times() const {
  return options.correct_by_own ? static_cast<std::int64_t>(std::lround(FleetPerOwn())) : 0;
}

void Dispatcher::Impl::ForgetOld(TimeNs now) {
  for (const auto& [name, server] : servers) {
    if (!server->snapshot || now - server->snapshot_at <= options.snapshot_lifetime) continue;
    server->ForgetSnapshot();
  }
}

// What the request does not say is taken from the servers that list its adapter, else assumed.
RouteRequest Dispatcher::Impl::Completed(const RouteRequest& request) const {
  RouteRequest result = request;
  result.prompt_tokens = std::max<std::int64_t>(1, result.prompt_tokens);
  if (result.output_tokens <= 0) result.output_tokens = kAssumedOutputTokens;
  if (result.adapter.empty()) return result;
  for (auto each = servers.begin(); each != servers.end() && (result.rank <= 0 || result.adapter_bytes <= 0); ++each) {
    const ServerSnapshot* snapshot = each->second->Snapshot();
    const SnapshotAdapter* listed = snapshot == nullptr ? nullptr : snapshot->Find(result.adapter);
    if (listed == nullptr) continue;
    if (result.rank <= 0) result.rank = listed->rank;
    if (result.adapter_bytes <= 0) result.adapter_bytes = listed->bytes;
  }
  if (result.rank <= 0) result.rank = kAssumedRank;
  if (result.adapter_bytes <= 0) result.adapter_bytes = result.rank * kAssumedBytesPerRank;
  return result;
}

// The servers that a request may go to, whatever it asks for.
void Dispatcher::Impl::FindUsable(std::span<const std::string> tried, TimeNs now) {
  usable.clear();
  const bool all = Panic(now);
  bool any = false;
  const auto add = [&](Server* server) {
    any = true;
    if (std::ranges::find(tried, server->name) == tried.end()) usable.push_back(server);
  };
  for (const auto& [name, server] : servers) {
    if (!server->draining && (all || !server->health.Ejected(now))) add(server.get());
  }
  if (any) return;
  for (const auto& [name, server] : servers) {  // errors are better than nothing
    if (!server->draining && server->health.Answers()) add(server.get());
  }
}

// Removes those of the usable servers that do not offer the adapter, if some server does. If none is said to, the
// servers decide: an adapter may be so new that no router has heard of it.
void Dispatcher::Impl::KeepOffering(std::string_view adapter) {
  if (adapter.empty()) return;
  using Answer = OfferedNames::Answer;
  const std::uint64_t name = NameFingerprint(adapter);
  const bool offered = std::any_of(servers.begin(), servers.end(),
                                   [&](const auto& each) { return each.second->offered.Offers(name) == Answer::kYes; });
  if (!offered) return;
  const auto erase = [&](Answer unwanted) {
    usable.erase(std::remove_if(usable.begin(), usable.end(),
                                [&](const Server* server) { return server->offered.Offers(name) == unwanted; }),
                 usable.end());
  };
  erase(Answer::kNo);
  const auto probably_not = [&](const Server* server) { return server->offered.Offers(name) == Answer::kProbablyNot; };
  if (!std::all_of(usable.begin(), usable.end(), probably_not)) erase(Answer::kProbablyNot);
}

bool Dispatcher::Impl::HasOtherDigest(const Server& server, const RouteRequest& request) const {
  const ServerSnapshot* snapshot = server.Snapshot();
  const SnapshotAdapter* listed = snapshot == nullptr ? nullptr : snapshot->Find(request.adapter);
  return listed != nullptr && listed->digest != request.digest;
}

Error Dispatcher::Impl::NoServer(const RouteRequest& request, std::span<const std::string> tried, TimeNs now) const {
  std::string reasons;
  const bool panic = Panic(now);
  for (const auto& [name, server] : servers) {
    std::string reason = "not usable";
    if (std::ranges::find(tried, name) != tried.end()) {
      reason = "tried";
    } else if (server->draining) {
      reason = "draining";
    } else if (server->health.Ejected(now) && !panic) {
      reason = server->health.Reason(now);
    } else if (!request.adapter.empty()) {
      reason = fmt::format("does not offer '{}'", request.adapter);
    }
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", name, reason);
  }
  if (servers.empty()) reasons = "the list of servers is empty";
  return Unavailable("no server takes requests now (" + reasons + "); try again later");
}

Error Dispatcher::Impl::NoDigest(const RouteRequest& request) const {
  std::string others;
  for (const Server* server : usable) {
    others += fmt::format("{}{}: {}", others.empty() ? "" : "; ", server->name,
                          server->Snapshot()->Find(request.adapter)->digest);
  }
  return NotFound(
      fmt::format("adapter '{}': expected the content {}, but all servers have another ({}); load it there, "
                  "or correct the catalogue",
                  request.adapter, request.digest, others),
      "model");
}

std::int64_t Dispatcher::Impl::ReplicasFor(const RouteRequest& request, bool first, TimeNs now) {
  if (request.adapter.empty()) return 1;
  if (!first) return replicas.Replicas(request.adapter);
  const double seconds = WorkSeconds(*options.model, request) * FleetPerOwn();
  return replicas.Count(request.adapter, seconds, static_cast<std::int64_t>(servers.size()), now);
}

// The index of the usable server that had the request's conversation last; the number of usable ones: there is none.
std::size_t Dispatcher::Impl::OfSession(const RouteRequest& request, TimeNs now) const {
  const std::string_view bound = sessions.Find(request.session_id, now);
  const auto had_it = [&](const Server* server) {
    return server->name == bound || (!request.session_token.empty() && server->token == request.session_token);
  };
  return static_cast<std::size_t>(std::find_if(usable.begin(), usable.end(), had_it) - usable.begin());
}

// REQUIRES: usable is not empty.
Dispatcher::Decision Dispatcher::Impl::Choose(const RouteRequest& request, bool first, TimeNs now) {
  views.clear();
  const std::int64_t times = Times();
  for (Server* server : usable) {
    server->AddUp(times);
    views.push_back({.name = server->name,
                     .snapshot = server->Snapshot(),
                     .snapshot_at = server->snapshot_at,
                     .sent = options.correct_by_own ? server->own.sent() : std::span<const OwnDispatch>(),
                     .load = &server->load,
                     .in_flight = server->own.in_flight(),
                     .share = server->health.Share(now)});
  }
  std::size_t chosen = OfSession(request, now);
  const RouteContext context{
      .request = request,
      .servers = views,
      .now = now,
      .random = prng.Next(),
      .model = options.model.get(),
      .replicas = ReplicasFor(request, first, now),
      .tpot_objective = request.tpot_objective > 0 ? request.tpot_objective : options.tpot_objective,
      .average_answer = options.average_answer};
  if (chosen == usable.size()) chosen = policy->Choose(context);
  CHECK_LT(chosen, usable.size());
  Server& server = *usable[chosen];
  const Attempt attempt = ++last_attempt;
  server.own.Send(attempt, request, now);
  sessions.Bind(request.session_id, server.name, now);
  server.health.Sent(now);
  server.sent += 1;
  server.Sent();
  attempts.emplace(attempt, servers.find(server.name)->second);
  return {.attempt = attempt, .server = server.name};
}

Dispatcher::Dispatcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Dispatcher::~Dispatcher() = default;

Result<std::unique_ptr<Dispatcher>> Dispatcher::Create(DispatcherOptions options) {
  CHECK(options.model != nullptr);
  ASSIGN_OR_RETURN(auto policy, MakeRoutePolicy(options.policy));
  return std::unique_ptr<Dispatcher>(new Dispatcher(std::make_unique<Impl>(std::move(options), std::move(policy))));
}

void Dispatcher::SetServers(std::span<const std::string> names, TimeNs now) {
  auto& servers = impl_->servers;
  const bool slow = !servers.empty();  // at the start all are equally unknown
  std::erase_if(servers, [&](const auto& each) { return std::ranges::find(names, each.first) == names.end(); });
  for (const std::string& name : names) {
    auto& server = servers[name];
    if (server == nullptr) server = std::make_shared<Server>(impl_->options, name, now, slow);
  }
}

void Dispatcher::SetModel(std::shared_ptr<const PerformanceModel> model) {
  CHECK(model != nullptr);
  impl_->options.model = std::move(model);
}

void Dispatcher::Observe(std::string_view name, ServerSnapshot snapshot, TimeNs as_of) {
  Server* server = impl_->Find(name);
  if (server == nullptr) return;
  server->offered.TakeFrom(snapshot);  // in any case: the list is sent once
  const bool same = server->instance == snapshot.instance;
  if (server->snapshot) {
    const bool older = same ? snapshot.version < server->snapshot->version : as_of < server->snapshot_at;
    if (older) return;
  }
  if (!same && !server->instance.empty()) server->health.Restarted(as_of);
  server->instance = snapshot.instance;
  server->draining = snapshot.draining;
  server->snapshot = std::move(snapshot);
  server->snapshot_at = std::max(as_of, same ? server->snapshot_at : as_of);
  server->of_snapshot = ServerLoad::Of(*server->snapshot);
  server->own.CountedAt(server->snapshot_at);
  server->own_counted = server->own.counted();
  server->added_up = false;
}

void Dispatcher::ObserveForeign(std::string_view name, TimeNs now) {
  Server* server = impl_->Find(name);
  if (server == nullptr || server->instance.empty()) return;
  server->health.Restarted(now);
  server->instance.clear();
  server->draining = false;
  server->offered.Forget();
  server->ForgetSnapshot();
}

void Dispatcher::ObserveModels(std::string_view name, std::vector<std::uint64_t> fingerprints) {
  if (Server* server = impl_->Find(name); server != nullptr) server->offered.TakeList(std::move(fingerprints));
}

void Dispatcher::ObserveProbe(std::string_view name, bool healthy, TimeNs now) {
  if (Server* server = impl_->Find(name); server != nullptr) server->health.Probed(healthy, now);
}

Result<Dispatcher::Decision> Dispatcher::Send(const RouteRequest& request, TimeNs now,
                                              std::span<const std::string> tried) {
  Impl& impl = *impl_;
  impl.ForgetOld(now);
  impl.FindUsable(tried, now);
  impl.KeepOffering(request.adapter);
  if (impl.usable.empty()) return impl.NoServer(request, tried, now);
  if (!request.digest.empty()) {
    const auto others = std::remove_if(impl.usable.begin(), impl.usable.end(),
                                       [&](const Server* server) { return impl.HasOtherDigest(*server, request); });
    if (others == impl.usable.begin()) {
      impl.FindUsable(tried, now);  // the order of the removed ones is not specified
      impl.KeepOffering(request.adapter);
      return impl.NoDigest(request);
    }
    impl.usable.erase(others, impl.usable.end());
  }
  const bool first = tried.empty();
  if (first) impl.budget.CountRequest(now);
  return impl.Choose(impl.Completed(request), first, now);
}

bool Dispatcher::MayRetry(TimeNs now) { return impl_->budget.Take(now); }

void Dispatcher::Answered(Attempt attempt, TimeNs now, bool well) {
  const auto found = impl_->attempts.find(attempt);
  CHECK(found != impl_->attempts.end());
  Server& server = *found->second;
  server.Answered(attempt);
  if (well) server.health.Worked(server.own.SentAt(attempt), now);
}

void Dispatcher::End(Attempt attempt, AttemptEnd end, TimeNs now) {
  const auto found = impl_->attempts.find(attempt);
  CHECK(found != impl_->attempts.end());
  Server& server = *found->second;
  const TimeNs sent_at = server.End(attempt, now);
  server.health.Ended(sent_at);
  switch (end) {
    case AttemptEnd::kAnswered:
      server.health.Succeeded(sent_at, now);
      server.health.Worked(sent_at, now);
      break;
    case AttemptEnd::kNotStarted:
      if (server.draining) break;
      [[fallthrough]];
    case AttemptEnd::kServerError:
      server.health.Succeeded(sent_at, now);
      server.health.Errored(sent_at, now, !impl_->IsLast(server, now));
      break;
    case AttemptEnd::kNoConnection:
    case AttemptEnd::kBroken:
      server.health.Failed(now);
      break;
    case AttemptEnd::kCancelled:
      break;
  }
  impl_->attempts.erase(found);
}

std::vector<Dispatcher::ServerState> Dispatcher::States(TimeNs now) const {
  std::vector<ServerState> states;
  for (const auto& [name, server] : impl_->servers) {
    const bool heard = server->snapshot && now - server->snapshot_at <= impl_->options.snapshot_lifetime;
    ServerState state{.name = name,
                      .ejected = server->health.Ejected(now),
                      .draining = server->draining,
                      .heard = heard,
                      .share = server->health.Share(now),
                      .in_flight = server->own.in_flight(),
                      .sent = server->sent,
                      .failures = server->health.failures(),
                      .ejections = server->health.ejections()};
    if (heard) {
      state.snapshot_at = server->snapshot_at;
      state.running = server->snapshot->running;
      state.waiting = server->snapshot->waiting;
    }
    states.push_back(std::move(state));
  }
  return states;
}

bool Dispatcher::panic(TimeNs now) const { return impl_->Panic(now); }

const ServerSnapshot* Dispatcher::SnapshotOf(std::string_view name) const {
  const Server* server = impl_->Find(name);
  return server == nullptr ? nullptr : server->Snapshot();
}

}  // namespace loramux
