#include "router/router_metrics.h"

#include <algorithm>

#include <fmt/format.h>

namespace loramux {
namespace {

constexpr std::array<std::string_view, 6> kEnds = {"answered", "not_started", "no_connection",
                                                   "broken",   "cancelled",   "server_error"};

// A label's value: names of servers come from flags and files.
std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

// Writes the page, family by family.
class Writer {
 public:
  void Family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    fmt::format_to(std::back_inserter(text_), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  template <typename Value>
  void Series(Value value, std::string_view labels = {}, std::string_view suffix = {}) {
    const std::string braced = labels.empty() ? "" : fmt::format("{{{}}}", labels);
    fmt::format_to(std::back_inserter(text_), "{}{}{} {}\n", name_, suffix, braced, value);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string name_, text_;
};

}  // namespace

std::string_view NameOf(AttemptEnd end) { return kEnds[static_cast<std::size_t>(end)]; }

void RouterMetrics::ObserveAdded(TimeNs time) {
  const double seconds = static_cast<double>(time) / kNsPerSecond;
  const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
  ++added_[static_cast<std::size_t>(bucket - kBounds.begin())];
  added_seconds_ += seconds;
}

std::string RouterMetrics::Page(const Dispatcher& dispatcher, int connections, TimeNs now) const {
  Writer page;
  page.Family("loramux:router_requests_total", "counter", "Requests sent to a server, by how that ended");
  for (const auto& [server, counts] : attempts_) {
    for (std::size_t end = 0; end < kEnds.size(); ++end) {
      page.Series(counts[end], fmt::format("server=\"{}\",outcome=\"{}\"", Escaped(server), kEnds[end]));
    }
  }
  page.Family("loramux:router_responses_total", "counter", "Responses to clients by status");
  for (const auto& [status, count] : responses_) page.Series(count, fmt::format("code=\"{}\"", status));
  page.Family("loramux:router_retries_total", "counter", "Requests sent to a further server");
  page.Series(retries_);
  page.Family("loramux:router_refused_total", "counter", "Requests that no server took");
  page.Series(refused_);
  page.Family("loramux:router_in_flight", "gauge", "Requests that are being routed");
  page.Series(in_flight);
  page.Family("loramux:router_streams", "gauge", "Streams that are open");
  page.Series(streams);
  page.Family("loramux:router_connections", "gauge", "Connections of clients");
  page.Series(connections);
  page.Family("loramux:router_added_latency_seconds", "histogram",
              "Time of a request in the router before it was sent, and of the first byte on its way back");
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < kBounds.size(); ++i) {
    sum += added_[i];
    page.Series(sum, fmt::format("le=\"{}\"", kBounds[i]), "_bucket");
  }
  sum += added_.back();
  page.Series(sum, "le=\"+Inf\"", "_bucket");
  page.Series(added_seconds_, {}, "_sum");
  page.Series(sum, {}, "_count");

  const std::vector<Dispatcher::ServerState> states = dispatcher.States(now);
  const auto per_server = [&](std::string_view name, std::string_view type, std::string_view help, auto value) {
    page.Family(name, type, help);
    for (const auto& state : states) page.Series(value(state), fmt::format("server=\"{}\"", Escaped(state.name)));
  };
  using State = const Dispatcher::ServerState&;
  per_server("loramux:router_server_up", "gauge", "1: the server gets requests; 0: it is ejected or draining",
             [](State state) { return !state.ejected && !state.draining ? 1 : 0; });
  per_server("loramux:router_server_in_flight", "gauge", "Requests of this router at the server",
             [](State state) { return state.in_flight; });
  per_server("loramux:router_server_share", "gauge", "Share of a full load that the server gets (slow start)",
             [](State state) { return state.share; });
  per_server("loramux:router_ejections_total", "counter", "Times that the server was ejected",
             [](State state) { return state.ejections; });
  per_server("loramux:router_snapshot_age_seconds", "gauge", "Age of what is known of the server; -1: nothing is",
             [now](State state) {
               return state.snapshot_at < 0 ? -1.0 : static_cast<double>(now - state.snapshot_at) / kNsPerSecond;
             });
  return page.Take();
}

}  // namespace loramux
