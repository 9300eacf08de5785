// Keys that stand in etcd as long as this program lives: they hang on a lease that a thread keeps alive. If the lease
// is lost (the program stood still, or etcd was out of reach for longer), the thread takes a new one and writes all
// keys again. Only the monotonic clock counts: a jump of the time of day does nothing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "base/clock.h"
#include "etcd/etcd_client.h"

namespace loramux {

struct LeasedKeysOptions {
  std::int64_t ttl_seconds = 10;  // after which etcd forgets a program that died
  // The key that another program may hold, and whether it may be taken from that, by its present value. If not, it is
  // tried again later. All other keys are overwritten.
  std::string guarded_key;
  std::function<bool(const std::string& present)> may_take;
};

// Thread-safe.
class LeasedKeys {
 public:
  // `client` and `clock` must outlive this.
  LeasedKeys(EtcdClient& client, const Clock& clock, LeasedKeysOptions options);
  // Leaves the keys to their lease. After EtcdClient::Stop it is immediate; else it waits for a call that runs.
  ~LeasedKeys();

  // Writes a key soon, and deletes it soon with nullopt.
  void Set(const std::string& key, std::optional<std::string> value);
  // Ends the lease, which deletes all keys at once; nothing is written any more. Error: etcd cannot be reached, so that
  // the keys stay until the lease expires.
  Status Withdraw();

  // Whether all keys stood in etcd when that was last known, at most a third of the time to live ago.
  bool complete() const { return complete_; }
  // Leases taken so far.
  std::int64_t leases() const { return leases_; }

 private:
  void Keep(std::stop_token stop);
  Status Renew();
  Status WriteAll();
  Status WriteOne(const std::string& key, const std::optional<std::string>& value);
  Status WriteGuarded(const std::string& value, std::int64_t lease);

  EtcdClient& client_;
  const Clock& clock_;
  const LeasedKeysOptions options_;
  std::atomic<bool> complete_ = false;
  std::atomic<std::int64_t> leases_ = 0;
  std::mutex mutex_;
  std::condition_variable_any woken_;
  std::map<std::string, std::optional<std::string>> wanted_;  // nullopt: to be deleted
  std::uint64_t changes_ = 0;                                 // number of changes of wanted_
  bool withdrawn_ = false;
  std::int64_t lease_ = 0;  // 0: none

  // What the thread alone uses.
  std::map<std::string, std::string> written_;  // on the present lease
  TimeNs renew_at_ = 0;
  std::jthread thread_;
};

}  // namespace loramux
