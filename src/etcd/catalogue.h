// The catalogue of adapters that a fleet shall serve: `/loramux/v1/adapters/NAME` in etcd, changed by compare-and-swap.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "etcd/etcd_mirror.h"

namespace loramux {

inline constexpr char kAdaptersPrefix[] = "/loramux/v1/adapters/";
inline constexpr char kStatusPrefix[] = "/loramux/v1/status/";

// What the fleet shall serve under a name.
struct FleetAdapter {
  std::string source;           // what servers load: a directory that all of them see, or another source
  std::string digest;           // digest that its content must have; empty: any
  std::int64_t replicas = 0;    // servers that should keep it ready on their device; 0: the routers decide by its load
  bool pinned = false;          // every server pins it
  std::int64_t generation = 0;  // ascends with each change of the name, also over deletions
  friend bool operator==(const FleetAdapter&, const FleetAdapter&) = default;
};

std::string FleetAdapterAsJson(const FleetAdapter& entry);
// Error: a field is missing, has another type or is out of range.
Result<FleetAdapter> ParseFleetAdapter(std::string_view json);

// What etcd holds under a name, as a change of it needs to know.
struct CatalogueRecord {
  std::optional<FleetAdapter> entry;  // nullopt: nothing
  std::int64_t mod_revision = 0;      // revision of the key's last change; 0: nothing
  std::int64_t store_revision = 0;
};

// Reads one name, needs a quorum. Errors: those of EtcdClient; an entry that cannot be read counts as none.
Result<CatalogueRecord> ReadCatalogue(EtcdClient& client, const std::string& name);
// Writes `entry` with a new generation, if the name has not changed since `seen`; returns what etcd holds then.
// Errors: those of EtcdClient; kUnavailable, it has.
Result<CatalogueRecord> WriteCatalogue(EtcdClient& client, const std::string& name, FleetAdapter entry,
                                       const CatalogueRecord& seen);
// Removes the name in the same way.
Result<CatalogueRecord> RemoveFromCatalogue(EtcdClient& client, const std::string& name, const CatalogueRecord& seen);

// A state of the whole catalogue.
struct FleetCatalogue {
  std::map<std::string, FleetAdapter> entries;
  std::map<std::string, std::string>
      broken;                 // names whose entries cannot be read, with the reason; they are not deleted
  std::int64_t revision = 0;  // as in EtcdMirrorState
  std::uint64_t epoch = 0;    // the same
};

// Calls `on_change` with each new state.
std::unique_ptr<EtcdMirror> FollowCatalogue(EtcdClient& client, std::function<void(FleetCatalogue)> on_change);

// What one server made of one entry.
struct AdapterStatus {
  bool loaded = false;
  std::int64_t generation = 0;
  std::string digest, error;
};
std::string AdapterStatusAsJson(const AdapterStatus& status);
// Error: not such a text.
Result<AdapterStatus> ParseAdapterStatus(std::string_view json);
// The key of a server's status of an adapter.
std::string StatusKey(const std::string& server_id, const std::string& name);

}  // namespace loramux
