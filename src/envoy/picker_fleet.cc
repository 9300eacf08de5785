#include "envoy/picker_fleet.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <spdlog/spdlog.h>

#include "costs/performance_profile.h"
#include "router/ask_servers.h"

namespace loramux {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kMostProfileSize = std::size_t{4} << 20;  // bytes

// "IP:PORT" of the host's first address; empty: it has none.
std::string Lookup(const Url& url) {
  asio::io_context io;
  asio::ip::tcp::resolver resolver(io);
  boost::system::error_code error;
  const auto found = resolver.resolve(url.host, url.port, error);
  if (error || found.empty()) {
    spdlog::warn("{}: the host has no address, so that no request goes there ({})", url.authority(), error.message());
    return {};
  }
  const auto endpoint = found.begin()->endpoint();
  const std::string ip = endpoint.address().to_string();
  return (endpoint.address().is_v6() ? "[" + ip + "]" : ip) + ":" + std::to_string(endpoint.port());
}

}  // namespace

PickerFleet::PickerFleet(EndpointPicker& picker, ServerAccess access, std::function<void(bool ready)> on_ready,
                         const Clock& clock)
    : picker_(picker), access_(std::move(access)), on_ready_(std::move(on_ready)), clock_(clock), thread_([this] {
        io_.run();
      }) {}

PickerFleet::~PickerFleet() {
  asio::post(io_, [this] {
    servers_.clear();
    io_.stop();
  });
  thread_.join();
}

void PickerFleet::SetServers(const std::vector<ServerAddress>& servers) {
  std::vector<ServerAddress> found;
  std::vector<PickerEndpoint> endpoints;
  for (const ServerAddress& server : servers) {
    std::string address = Lookup(server.url);
    if (address.empty()) continue;
    found.push_back(server);
    endpoints.push_back({server.name, std::move(address)});
  }
  picker_.SetServers(endpoints);
  asio::post(io_, [this, found = std::move(found)] { Relink(found); });
}

void PickerFleet::Relink(const std::vector<ServerAddress>& servers) {
  std::map<std::string, std::shared_ptr<RoutedServer>> next;
  for (const ServerAddress& server : servers) {
    const auto old = servers_.find(server.name);
    const bool same = old != servers_.end() && old->second->address == server;
    next[server.name] = same ? old->second : Link(server);
  }
  servers_.swap(next);
  for (const auto& [name, server] : next) {
    if (!servers_.contains(name) || servers_[name] != server) server->link->Stop();
  }
  TellReadiness();
}

std::shared_ptr<RoutedServer> PickerFleet::Link(const ServerAddress& address) {
  auto server = std::make_shared<RoutedServer>(io_.get_executor(), address, access_, clock_);
  ServerLinkCallbacks callbacks;
  RoutedServer* const raw = server.get();  // the link, which it owns, calls
  callbacks.snapshot = [this, raw](ServerSnapshot snapshot, TimeNs as_of) { Heard(*raw, std::move(snapshot), as_of); };
  callbacks.foreign = [this, raw] { picker_.ObserveForeign(raw->address.name); };
  callbacks.probe = [this, raw](bool healthy, const std::string& why) { Probed(*raw, healthy, why); };
  server->link = std::make_unique<ServerLink>(io_.get_executor(), address, access_, /*workers=*/nullptr,
                                              std::move(callbacks), clock_);
  server->link->Start();
  return server;
}

void PickerFleet::Heard(RoutedServer& server, ServerSnapshot snapshot, TimeNs as_of) {
  const bool ask = access_.learn_profile && !knows_profile_ && !snapshot.profile.empty() && !server.asked_for_profile;
  picker_.Observe(server.address.name, std::move(snapshot), as_of);
  const auto own = servers_.find(server.address.name);
  if (!ask || own == servers_.end() || own->second.get() != &server) return;
  server.asked_for_profile = true;
  asio::co_spawn(io_, LearnProfile(own->second), asio::detached);
}

void PickerFleet::Probed(RoutedServer& server, bool healthy, const std::string& why) {
  if (healthy && !server.fault.empty()) spdlog::info("server {} answers", server.address.name);
  if (!healthy && server.fault != why) spdlog::warn("server {} does not answer: {}", server.address.name, why);
  server.fault = healthy ? std::string() : why;
  picker_.ObserveProbe(server.address.name, healthy);
  TellReadiness();
}

void PickerFleet::TellReadiness() {
  const bool ready = std::ranges::any_of(servers_, [](const auto& each) { return each.second->fault.empty(); });
  if (std::exchange(ready_, ready) != ready) on_ready_(ready);
}

asio::awaitable<void> PickerFleet::LearnProfile(std::shared_ptr<RoutedServer> server) {
  HttpCallRequest request{.path = "/internal/profile", .timeout = std::chrono::seconds(5)};
  if (!access_.fleet_key.empty()) request.headers.emplace_back("Authorization", "Bearer " + access_.fleet_key);
  const std::array<std::shared_ptr<RoutedServer>, 1> one = {server};
  const std::vector<ServerAnswer> answers = co_await AskServers(one, std::move(request), kMostProfileSize);
  if (knows_profile_ || answers.front().status != 200) co_return;
  const auto profile = ParsePerformanceProfile(answers.front().body, "the profile of " + server->address.name);
  if (!profile.ok()) {
    spdlog::warn("{}", profile.error().message);
    co_return;
  }
  knows_profile_ = true;
  picker_.SetModel(std::make_shared<const PerformanceModel>(profile->EngineModel()));
  spdlog::info("decisions are computed with the profile of {}: {}", server->address.name, profile->device);
}

}  // namespace loramux
