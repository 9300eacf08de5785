// A server's part in a fleet: `loramux serve --etcd`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "etcd/etcd_client.h"
#include "etcd/leased_keys.h"
#include "etcd/membership.h"
#include "server/adapters/adapter_admin.h"
#include "server/adapters/adapter_changes.h"
#include "server/adapters/catalogue_follower.h"
#include "tools/command_line/command_line.h"

namespace loramux {

// `self`: the address that the flags give it, HOST or HOST:PORT, and its id; either may stay empty.
void AddFleetMemberFlags(CommandLine& line, EtcdOptions& etcd, Member& self);

// Completes what the server says of itself: the address that others reach it at, and its id. `port` is the one in use.
// Nothing without etcd. Errors: the server listens on every address and --advertise does not say which; a flag that is
// not an address or an id.
Status CompleteMember(const EtcdOptions& etcd, const std::string& host, std::uint16_t port, bool tls, Member& self);

// Without --etcd it does nothing.
class FleetMember {
 public:
  // Begins to follow the catalogue. `admin` and `clock` must outlive it. Error: a flag.
  static Result<std::unique_ptr<FleetMember>> Start(const EtcdOptions& etcd, Member self, AdapterAdmin& admin,
                                                    const Clock& clock);
  // Leaves. REQUIRES: the engine runs, because a load may wait for it.
  ~FleetMember();

  // For the admin routes: changes go to the catalogue, where there is one.
  AdapterChanges ChangesTo(AdapterAdmin& admin);
  // Waits for the adapters of the catalogue, if etcd answers, and not for long.
  void WaitForAdapters();
  // Registers the server: from now on routers send requests.
  void Join();
  // Ends the registration, so that routers send nothing more.
  void Leave();

 private:
  FleetMember() = default;
  Member self_;
  std::unique_ptr<EtcdClient> client_;  // null: no --etcd; then the next two are null too
  std::unique_ptr<LeasedKeys> keys_;
  std::unique_ptr<CatalogueFollower> follower_;
};

}  // namespace loramux
