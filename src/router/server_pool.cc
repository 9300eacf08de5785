#include "router/server_pool.h"

#include <array>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include "base/log.h"
#include "cluster/offered_names.h"
#include "cluster/pinned_name.h"
#include "costs/performance_profile.h"
#include "http/json_reader.h"
#include "http/run_on.h"
#include "router/ask_servers.h"

namespace loramux {
namespace {

constexpr std::size_t kMostProfileBytes = std::size_t{4} << 20;
constexpr TimeNs kModelsLast = 10 * kNsPerSecond;  // a server without snapshots is asked for its models again

// What a list of models says.
struct ListedModels {
  std::string base;  // the first that is no adapter
  std::vector<std::uint64_t> fingerprints;
};

ListedModels ReadModels(const std::string& body) {
  ListedModels models;
  const Json list = ParseAnswer(body);
  const auto data = list.is_object() ? list.find("data") : list.end();
  if (data == list.end() || !data->is_array()) return models;
  for (const Json& card : *data) {
    const auto id = card.is_object() ? card.find("id") : card.end();
    if (id == card.end() || !id->is_string()) continue;
    const auto& name = id->get_ref<const std::string&>();
    models.fingerprints.push_back(NameFingerprint(name));
    const auto parent = card.find("parent");
    if (models.base.empty() && (parent == card.end() || parent->is_null())) models.base = name;
  }
  return models;
}

}  // namespace

RoutedServer::RoutedServer(const boost::asio::any_io_executor& executor, ServerAddress server,
                           const ServerAccess& access, const Clock& clock)
    : address(std::move(server)), client(executor, ClientOptionsOf(address, access), clock), fault("not heard yet") {}

ServerPool::ServerPool(boost::asio::any_io_executor executor, ServerAccess access, Dispatcher& dispatcher,
                       boost::asio::thread_pool& workers, const Clock& clock)
    : executor_(std::move(executor)),
      access_(std::move(access)),
      dispatcher_(dispatcher),
      workers_(workers),
      clock_(clock) {}

void ServerPool::Set(std::vector<ServerAddress> addresses) {
  if (stopped_) return;
  auto old = std::exchange(servers_, {});
  std::vector<std::string> names;
  for (ServerAddress& address : addresses) {
    const auto same = old.find(address.name);
    const bool kept = same != old.end() && same->second->address == address;
    std::string name = address.name;
    if (!servers_.emplace(name, kept ? same->second : Add(std::move(address))).second) continue;
    if (kept) old.erase(same);
    names.push_back(std::move(name));
  }
  for (const auto& [name, server] : old) {
    spdlog::info("server {} left", name);
    server->link->Stop();
  }
  dispatcher_.SetServers(names, clock_.Now());
  ++changes_;
}

std::shared_ptr<RoutedServer> ServerPool::Add(ServerAddress address) {
  spdlog::info("server {} joined", address.name);
  auto server = std::make_shared<RoutedServer>(executor_, std::move(address), access_, clock_);
  ServerLinkCallbacks callbacks;
  RoutedServer* const raw = server.get();  // the link, which it owns, calls
  callbacks.snapshot = [this, raw](ServerSnapshot snapshot, TimeNs as_of) { Heard(*raw, std::move(snapshot), as_of); };
  callbacks.foreign = [this, raw] { BecameForeign(*raw); };
  callbacks.probe = [this, raw](bool healthy, const std::string& why) { Probed(*raw, healthy, why); };
  server->link =
      std::make_unique<ServerLink>(executor_, server->address, access_, &workers_, std::move(callbacks), clock_);
  server->link->Start();
  return server;
}

void ServerPool::Heard(RoutedServer& server, ServerSnapshot snapshot, TimeNs as_of) {
  server.base_model = snapshot.base_model;
  ++changes_;
  const bool ask = access_.learn_profile && !knows_profile_ && !snapshot.profile.empty() && !server.asked_for_profile;
  dispatcher_.Observe(server.address.name, std::move(snapshot), as_of);
  if (!ask) return;
  server.asked_for_profile = true;
  boost::asio::co_spawn(executor_, LearnProfile(Find(server.address.name)), boost::asio::detached);
}

void ServerPool::BecameForeign(RoutedServer& server) {
  server.base_model.clear();
  server.asked_for_models = -1;
  ++changes_;
  dispatcher_.ObserveForeign(server.address.name, clock_.Now());
}

void ServerPool::Probed(RoutedServer& server, bool healthy, const std::string& why) {
  server.fault = healthy ? std::string() : why;
  dispatcher_.ObserveProbe(server.address.name, healthy, clock_.Now());
  if (!healthy || !server.link->foreign()) return;
  const TimeNs now = clock_.Now();
  if (server.asked_for_models >= 0 && now - server.asked_for_models < kModelsLast) return;
  server.asked_for_models = now;
  boost::asio::co_spawn(executor_, LearnModels(Find(server.address.name)), boost::asio::detached);
}

void ServerPool::AskForModels() {
  for (const auto& [name, server] : servers_) server->asked_for_models = -1;
}

// A server without snapshots says in its list of models which it has, and which of them is no adapter.
boost::asio::awaitable<void> ServerPool::LearnModels(std::shared_ptr<RoutedServer> server) {
  if (server == nullptr) co_return;
  HttpCallRequest request{.path = "/v1/models", .timeout = std::chrono::seconds(5)};
  const std::array<std::shared_ptr<RoutedServer>, 1> one = {server};
  const std::vector<ServerAnswer> answers = co_await AskServers(one, std::move(request), kMostProfileBytes);
  if (answers.front().status != 200) co_return;
  ListedModels models;
  co_await RunOn(workers_, [&] { models = ReadModels(answers.front().body); });
  if (!server->link->foreign() || Find(server->address.name) != server) co_return;
  if (!models.base.empty()) server->base_model = std::move(models.base);
  dispatcher_.ObserveModels(server->address.name, std::move(models.fingerprints));
}

boost::asio::awaitable<void> ServerPool::LearnProfile(std::shared_ptr<RoutedServer> server) {
  if (server == nullptr) co_return;
  HttpCallRequest request{.path = "/internal/profile", .timeout = std::chrono::seconds(5)};
  if (!access_.fleet_key.empty()) request.headers.emplace_back("Authorization", "Bearer " + access_.fleet_key);
  const std::array<std::shared_ptr<RoutedServer>, 1> one = {server};
  const std::vector<ServerAnswer> answers = co_await AskServers(one, std::move(request), kMostProfileBytes);
  const ServerAnswer& answer = answers.front();
  if (knows_profile_ || answer.status != 200) co_return;
  const auto profile = ParsePerformanceProfile(answer.body, "the profile of " + answer.server);
  if (!profile.ok()) {
    spdlog::warn("{}", profile.error().message);
    co_return;
  }
  knows_profile_ = true;
  dispatcher_.SetModel(std::make_shared<const PerformanceModel>(profile->EngineModel()));
  spdlog::info("decisions are computed with the profile of {}: {}", answer.server, profile->device);
}

void ServerPool::Stop() {
  stopped_ = true;
  for (const auto& [name, server] : servers_) server->link->Stop();
}

std::shared_ptr<RoutedServer> ServerPool::Find(std::string_view name) const {
  const auto found = servers_.find(name);
  return found == servers_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<RoutedServer>> ServerPool::All() const {
  std::vector<std::shared_ptr<RoutedServer>> all;
  for (const auto& [name, server] : servers_) all.push_back(server);
  return all;
}

std::string ServerPool::AdapterOf(std::string_view model) const {
  for (const auto& [name, server] : servers_) {
    const std::string_view base = server->base_model;
    if (!base.empty() && model == base) return {};
    if (const auto adapter = AdapterAfter(base, model)) return std::string(*adapter);
  }
  return std::string(model);
}

}  // namespace loramux
