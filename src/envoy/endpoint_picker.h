// Chooses the servers of requests for a proxy that forwards them itself, and learns from what the proxy reports.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "cluster/dispatcher.h"
#include "router/catalogue.h"

namespace loramux {

// One server of the picker.
struct PickerEndpoint {
  std::string name;     // the dispatcher's
  std::string address;  // "IP:PORT", as the proxy knows it
};

// One request, from its choice to its end.
struct Pick {
  RouteRequest request;
  std::vector<std::string> servers;    // names: the chosen one, then where the proxy may try it next
  std::vector<std::string> addresses;  // address of each of these servers
  Dispatcher::Attempt attempt = 0;     // at the server that has it now, as far as is known
  bool open = false;                   // the attempt has not ended
};

// What a proxy reports of a response.
struct PickOutcome {
  std::string served;        // address of the server that gave it; empty: not known
  std::string details;       // why the proxy answered itself, in Envoy's words; empty or "via_upstream": it did not
  bool not_started = false;  // the server said that it began nothing
  int status = 200;
};

// The dispatcher under a lock. Thread-safe.
class EndpointPicker {
 public:
  // A pick has at most 1 + `fallbacks` servers. `clock` must outlive the picker.
  EndpointPicker(std::unique_ptr<Dispatcher> dispatcher, const Clock& clock, std::size_t fallbacks = 2);

  // The servers that exist from now on.
  void SetServers(std::span<const PickerEndpoint> servers);
  // As Dispatcher's.
  void Observe(std::string_view server, ServerSnapshot snapshot, TimeNs as_of);
  void ObserveForeign(std::string_view server);
  void ObserveProbe(std::string_view server, bool healthy);
  void SetModel(std::shared_ptr<const PerformanceModel> model);
  // The adapters that the fleet should have, from now on.
  void SetCatalogue(Catalogue catalogue);
  std::vector<Dispatcher::ServerState> States() const;

  // Chooses servers, among the addresses of `subset` if there is one, and counts the request as sent to the first. The
  // name of a base model in `request.adapter` becomes the empty one, and BASE:ADAPTER the adapter's; its digest is that
  // of the catalogue. Errors: those of Dispatcher::Send, and
  // kUnavailable if the subset has no server of this picker.
  Result<Pick> Choose(RouteRequest request, const std::optional<std::vector<std::string>>& subset);
  // The head of the response arrived. If another server gave it than the chosen one, those before it did not answer.
  void Answered(Pick& pick, const PickOutcome& outcome);
  // Ends the attempt if it has not ended. Must be called once at the end of each pick.
  void End(Pick& pick, AttemptEnd end);

 private:
  // Names of all servers but those for which keep(endpoint) is true.
  template <typename Keep>
  std::vector<std::string> AllBut(Keep keep) const;
  void Complete(RouteRequest& request) const;
  void MoveTo(Pick& pick, const std::string& server);

  mutable std::mutex mutex_;
  std::unique_ptr<Dispatcher> dispatcher_;
  const Clock& clock_;
  const std::size_t fallbacks_;
  std::vector<PickerEndpoint> servers_;
  Catalogue catalogue_;
};

}  // namespace loramux
