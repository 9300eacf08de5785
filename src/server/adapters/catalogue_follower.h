// Makes a server's adapters those of the fleet's catalogue in etcd, and its changes those of the catalogue.
//
// Every server follows the catalogue: what it names is loaded here, what it no longer names is unloaded if it was
// loaded for the catalogue. Adapters of flags, of the directory and of the journal stay, unless the catalogue takes
// their names over. A load that fails is tried again (CatalogueRetry); what was loaded under the name before goes on.
// What became of each entry stands in etcd (StatusKey).
//
// While etcd is silent or has no quorum, nothing changes: everything stays loaded, and Load and Unload are refused. If
// etcd lost its data, what the catalogue named stays loaded as the server's own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "etcd/catalogue.h"
#include "etcd/leased_keys.h"
#include "server/adapters/adapter_admin.h"
#include "server/adapters/catalogue_retry.h"

namespace loramux {

// Thread-safe. `admin`, `client`, `keys` and `clock` must outlive it.
class CatalogueFollower {
 public:
  CatalogueFollower(AdapterAdmin& admin, EtcdClient& client, LeasedKeys& keys, const Clock& clock,
                    std::string server_id);
  // Waits for loads that run.
  ~CatalogueFollower();
  CatalogueFollower(const CatalogueFollower&) = delete;
  CatalogueFollower& operator=(const CatalogueFollower&) = delete;

  // Waits until the catalogue was read, and then until each of its entries was tried once. False: not within these
  // times.
  bool WaitUntilFirstPass(std::chrono::nanoseconds read_time, std::chrono::nanoseconds load_time);

  // Load here, and for the fleet: Ok means that the catalogue has the entry and the adapter is loaded here. The other
  // servers follow; it waits for them, but for at most 3 s. Errors: those of AdapterAdmin::Load; kUnavailable, the
  // catalogue cannot be changed now, or was changed by another server meanwhile: then everything here is as it was.
  Result<AdapterAdmin::LoadResult> Load(const AdapterAdmin::LoadRequest& request);
  // Removes the name from the catalogue, and here. A name that is loaded here alone is unloaded here.
  Status Unload(const std::string& name);

  // Entries of the catalogue that are loaded here, and that could not be loaded.
  std::int64_t loaded() const;
  std::int64_t failed() const;

 private:
  // What was made of one name.
  struct Applied {
    bool owned = false;          // loaded for the catalogue
    FleetAdapter entry;          // entry that was tried last
    std::optional<Error> error;  // error of the last try
    CatalogueRetry retry;        // when to try again; only if error
    FleetAdapter loaded;         // what is loaded; only if owned
  };
  struct Action {
    std::string name;
    std::optional<FleetAdapter> load;  // nullopt: unload
    std::uint64_t epoch = 0;           // epoch of the catalogue that asks for it
  };
  class NameGuard;

  void SetDesired(FleetCatalogue catalogue);
  void SetOwnChange(const std::string& name, const CatalogueRecord& record);
  void Work(std::stop_token stop);
  // The following two REQUIRE mutex_.
  std::optional<Action> NextAction(TimeNs now, TimeNs& wake_at);
  bool Settled() const;
  void Carry(const Action& action);
  void CarryLoad(const std::string& name, const FleetAdapter& entry, std::uint64_t epoch);
  void CarryUnload(const std::string& name);
  void Record(const std::string& name, const FleetAdapter& entry, const std::optional<Error>& error,
              std::uint64_t epoch);
  std::uint64_t Epoch() const;
  std::string DigestOf(const std::string& name);
  Result<CatalogueRecord> ReadForChange(const std::string& name);
  Result<AdapterAdmin::LoadResult> LoadAndWrite(const AdapterAdmin::LoadRequest& request, std::int64_t& generation);
  void WaitForOthers(const std::string& name, std::int64_t generation);
  Result<std::vector<std::string>> OthersBehind(const std::string& name, std::int64_t generation);
  void RollBack(const std::string& name, const std::optional<FleetAdapter>& owned, const std::string& path,
                std::uint64_t epoch);
  std::optional<FleetAdapter> Owned(const std::string& name) const;

  AdapterAdmin& admin_;
  EtcdClient& client_;
  LeasedKeys& keys_;
  const Clock& clock_;
  const std::string server_id_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<FleetCatalogue> desired_;
  std::map<std::string, Applied> applied_;
  std::map<std::string, CatalogueRecord> own_changes_;  // changes that the watch has not brought yet
  std::set<std::string> busy_;                          // names that a thread works on
  std::vector<std::jthread> threads_;
  std::unique_ptr<EtcdMirror> mirror_;  // last: it calls SetDesired
};

}  // namespace loramux
