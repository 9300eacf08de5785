#include "envoy/endpoint_picker.h"

#include <algorithm>
#include <utility>

#include "cluster/pinned_name.h"

namespace loramux {
namespace {

// Whether Envoy gave up on the servers because they did not answer. Its other own responses say nothing of them.
bool ServersDidNotAnswer(std::string_view details) {
  for (const std::string_view cause : {"upstream_reset_before_response_started", "upstream_response_timeout",
                                       "upstream_per_try_timeout", "response_timeout"}) {
    if (details.starts_with(cause)) return true;
  }
  return false;
}

}  // namespace

EndpointPicker::EndpointPicker(std::unique_ptr<Dispatcher> dispatcher, const Clock& clock, std::size_t fallbacks)
    : dispatcher_(std::move(dispatcher)), clock_(clock), fallbacks_(fallbacks) {}

void EndpointPicker::SetServers(std::span<const PickerEndpoint> servers) {
  std::vector<std::string> names;
  for (const PickerEndpoint& server : servers) names.push_back(server.name);
  const std::lock_guard lock(mutex_);
  servers_.assign(servers.begin(), servers.end());
  dispatcher_->SetServers(names, clock_.Now());
}

void EndpointPicker::Observe(std::string_view server, ServerSnapshot snapshot, TimeNs as_of) {
  const std::lock_guard lock(mutex_);
  dispatcher_->Observe(server, std::move(snapshot), as_of);
}

void EndpointPicker::ObserveForeign(std::string_view server) {
  const std::lock_guard lock(mutex_);
  dispatcher_->ObserveForeign(server, clock_.Now());
}

void EndpointPicker::ObserveProbe(std::string_view server, bool healthy) {
  const std::lock_guard lock(mutex_);
  dispatcher_->ObserveProbe(server, healthy, clock_.Now());
}

void EndpointPicker::SetModel(std::shared_ptr<const PerformanceModel> model) {
  const std::lock_guard lock(mutex_);
  dispatcher_->SetModel(std::move(model));
}

void EndpointPicker::SetCatalogue(Catalogue catalogue) {
  const std::lock_guard lock(mutex_);
  catalogue_ = std::move(catalogue);
}

std::vector<Dispatcher::ServerState> EndpointPicker::States() const {
  const std::lock_guard lock(mutex_);
  return dispatcher_->States(clock_.Now());
}

template <typename Keep>
std::vector<std::string> EndpointPicker::AllBut(Keep keep) const {
  std::vector<std::string> names;
  for (const PickerEndpoint& server : servers_) {
    if (!keep(server)) names.push_back(server.name);
  }
  return names;
}

void EndpointPicker::Complete(RouteRequest& request) const {
  for (const PickerEndpoint& server : servers_) {
    const ServerSnapshot* snapshot = dispatcher_->SnapshotOf(server.name);
    if (snapshot == nullptr || snapshot->base_model.empty()) continue;
    const std::string& base = snapshot->base_model;
    const auto adapter = AdapterAfter(base, request.adapter);
    if (!adapter && request.adapter != base) continue;
    request.adapter = std::string(adapter.value_or(""));
    break;
  }
  const std::string named = std::exchange(request.adapter, {});
  const PinnedName pinned = SplitPinnedName(named);
  request.adapter = pinned.name;
  const auto entry = catalogue_.find(request.adapter);
  if (entry != catalogue_.end()) request.digest = entry->second.digest;
  if (!pinned.digest.empty()) request.digest = pinned.digest;
}

Result<Pick> EndpointPicker::Choose(RouteRequest request, const std::optional<std::vector<std::string>>& subset) {
  const std::lock_guard lock(mutex_);
  const TimeNs now = clock_.Now();
  Complete(request);
  std::vector<std::string> barred;
  if (subset) {
    barred = AllBut([&](const PickerEndpoint& server) {
      return std::find(subset->begin(), subset->end(), server.address) != subset->end();
    });
    if (barred.size() == servers_.size()) {
      return Unavailable("none of the gateway's " + std::to_string(subset->size()) +
                         " endpoints for this request is a server of the picker: compare --servers with the pool");
    }
  }
  Pick pick;
  RouteRequest further = request;  // a server that is only asked is not the one of the conversation
  further.session_id.clear();
  while (pick.servers.size() <= fallbacks_) {
    auto decision = dispatcher_->Send(pick.servers.empty() ? request : further, now, barred);
    if (!decision.ok() && !pick.servers.empty()) break;
    if (!decision.ok()) return decision.error();
    if (pick.servers.empty()) {
      pick.attempt = decision->attempt;
      pick.open = true;
    } else {
      dispatcher_->End(decision->attempt, AttemptEnd::kCancelled, now);  // it was only asked
    }
    barred.push_back(decision->server);
    const auto server = std::find_if(servers_.begin(), servers_.end(),
                                     [&](const PickerEndpoint& one) { return one.name == decision->server; });
    CHECK(server != servers_.end());
    pick.servers.push_back(server->name);
    pick.addresses.push_back(server->address);
  }
  pick.request = std::move(request);
  return pick;
}

// The proxy retries elsewhere after a failed connection, and after a response that says that nothing began. It does not
// say which. Both count as no connection here: a server that the proxy cannot reach must not stay the idlest one.
void EndpointPicker::MoveTo(Pick& pick, const std::string& server) {
  const TimeNs now = clock_.Now();
  if (pick.open) dispatcher_->End(pick.attempt, AttemptEnd::kNoConnection, now);
  pick.open = false;
  const auto barred = AllBut([&](const PickerEndpoint& one) { return one.name == server; });
  auto decision = dispatcher_->Send(pick.request, now, barred);
  if (!decision.ok()) return;  // it is ejected, or gone
  pick.attempt = decision->attempt;
  pick.open = true;
}

void EndpointPicker::Answered(Pick& pick, const PickOutcome& outcome) {
  const std::lock_guard lock(mutex_);
  const TimeNs now = clock_.Now();
  if (!pick.open) return;
  if (!outcome.details.empty() && outcome.details != "via_upstream") {
    dispatcher_->End(pick.attempt,
                     ServersDidNotAnswer(outcome.details) ? AttemptEnd::kNoConnection : AttemptEnd::kCancelled, now);
    pick.open = false;
    return;
  }
  const auto served = std::find_if(servers_.begin(), servers_.end(),
                                   [&](const PickerEndpoint& one) { return one.address == outcome.served; });
  if (served != servers_.end() && served->name != pick.servers.front()) {
    for (std::size_t i = 1; i < pick.servers.size() && pick.servers[i] != served->name; ++i) {
      MoveTo(pick, pick.servers[i]);
    }
    MoveTo(pick, served->name);
  }
  if (!pick.open) return;
  if (outcome.not_started) {
    dispatcher_->End(pick.attempt, AttemptEnd::kNotStarted, now);
    pick.open = false;
    return;
  }
  const AttemptEnd end = EndWithStatus(outcome.status);
  dispatcher_->Answered(pick.attempt, now, end == AttemptEnd::kAnswered);
  if (end == AttemptEnd::kAnswered) return;
  dispatcher_->End(pick.attempt, end, now);  // the rest of an error is short
  pick.open = false;
}

void EndpointPicker::End(Pick& pick, AttemptEnd end) {
  if (!pick.open) return;
  const std::lock_guard lock(mutex_);
  dispatcher_->End(pick.attempt, end, clock_.Now());
  pick.open = false;
}

}  // namespace loramux
