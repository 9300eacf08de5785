// What a router learns from etcd: `loramux route --etcd`.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "etcd/etcd_client.h"
#include "etcd/etcd_mirror.h"
#include "router/catalogue.h"
#include "router/server_address.h"

namespace loramux {

class FleetView {
 public:
  using OnServers = std::function<void(std::vector<ServerAddress>)>;
  using OnCatalogue = std::function<void(Catalogue)>;

  // Follows the list of servers and the catalogue, and calls the functions with each change, on threads of its own.
  // Waits a moment for the first lists. `clock` must outlive it. Error: a flag. Without --etcd it does nothing.
  static Result<std::unique_ptr<FleetView>> Start(const EtcdOptions& etcd, const Clock& clock, OnServers on_servers,
                                                  OnCatalogue on_catalogue);
  ~FleetView();

 private:
  FleetView() = default;
  std::unique_ptr<EtcdClient> client_;
  std::unique_ptr<EtcdMirror> members_, catalogue_;
};

}  // namespace loramux
