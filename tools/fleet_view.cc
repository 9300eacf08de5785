#include "tools/fleet_view.h"

#include <utility>

#include "base/log.h"
#include "etcd/catalogue.h"
#include "etcd/membership.h"

namespace loramux {
namespace {

using namespace std::chrono_literals;
constexpr auto kPatienceWithServers = 6s;

// Named by their ids: an id stays while the address of a server may change, and with it the adapters that it is for.
std::vector<ServerAddress> AddressesOf(const std::vector<Member>& members) {
  std::vector<ServerAddress> servers;
  for (const Member& member : members) {
    auto address = ParseServerAddress(member.address, "address");
    if (!address.ok()) {
      spdlog::warn("etcd: the server '{}' is left out: {}", member.id, address.error().message);
      continue;
    }
    address->name = member.id;
    servers.push_back(*std::move(address));
  }
  return servers;
}

Catalogue CatalogueForRouter(const FleetCatalogue& fleet) {
  Catalogue catalogue;
  for (const auto& [name, adapter] : fleet.entries) {
    catalogue.emplace(name, CatalogueEntry{adapter.digest, adapter.source, adapter.replicas});
  }
  return catalogue;
}

}  // namespace

Result<std::unique_ptr<FleetView>> FleetView::Start(const EtcdOptions& etcd, const Clock& clock, OnServers on_servers,
                                                    OnCatalogue on_catalogue) {
  std::unique_ptr<FleetView> view(new FleetView);
  ASSIGN_OR_RETURN(view->client_, EtcdClient::Open(etcd, clock));
  if (view->client_ == nullptr) return view;
  view->members_ = FollowMembers(*view->client_, [on_servers = std::move(on_servers)](std::vector<Member> members) {
    spdlog::info("etcd: {} servers are registered", members.size());
    on_servers(AddressesOf(members));
  });
  view->catalogue_ =
      FollowCatalogue(*view->client_, [on_catalogue = std::move(on_catalogue)](const FleetCatalogue& fleet) {
        on_catalogue(CatalogueForRouter(fleet));
      });
  if (!view->members_->WaitUntilRead(kPatienceWithServers)) {
    spdlog::warn("etcd ({}): the list of servers is not known yet; requests get 503 until it is",
                 view->client_->names());
  }
  return view;
}

FleetView::~FleetView() {
  if (client_ != nullptr) client_->Stop();
}

}  // namespace loramux
