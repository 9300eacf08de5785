// A client of etcd v3 through its JSON gateway. It has a thread and connections of its own; its methods block, each for
// at most EtcdOptions::timeout (Watch: until its stream ends).
//
// Several endpoints are members of one cluster. A call goes to the one that answered last, and to the next if that has
// no answer within a third of the time, or is without a leader.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "etcd/etcd_messages.h"
#include "http/url.h"

namespace loramux {

struct EtcdOptions {
  std::vector<std::string> urls;                        // as --etcd has them; empty: there is no etcd
  std::string user;                                     // empty: without authentication
  std::string password_file;                            // its first line is the user's password
  std::chrono::nanoseconds timeout{5'000'000'000};      // longest time of a call, all endpoints together
  std::chrono::nanoseconds watch_time{60'000'000'000};  // when a watch ends; a dead connection is found then
};

// Why a watch ended.
struct EtcdWatchEnd {
  enum class Kind {
    kTimeUp,     // watch_time is over
    kBroken,     // no connection, or an error; `error` says which
    kCompacted,  // the revisions that were asked for are gone: read everything
    kBehind,     // this member's state ends before the revision that the caller knows
    kStopped,    // the caller, or Stop
  };
  Kind kind = Kind::kTimeUp;
  Error error;
};

// Thread-safe, apart from construction and destruction. Calls that change something are repeated on other endpoints
// when their outcome is unknown, so each is such that twice is the same as once.
//
// Errors of all calls: kUnavailable, no member answered in time, or the cluster has no leader; kInvalidArgument, etcd
// refused the call (its message says why); kNotFound, no such lease.
class EtcdClient {
 public:
  // Null if there is no etcd. Asks nothing yet, so that a program starts while etcd is down. `clock` must outlive the
  // client. Errors name the flag: no such URLs, or no password in the file.
  static Result<std::unique_ptr<EtcdClient>> Open(EtcdOptions options, const Clock& clock);
  // Stops. REQUIRES: no call runs any more.
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  Result<EtcdRangeReply> Range(const EtcdRangeRequest& request);
  // Reads all keys with this prefix, at one revision, in pages. `serializable`: as in EtcdRangeRequest.
  Result<EtcdRangeReply> ReadPrefix(const std::string& prefix, bool serializable);
  Status Put(std::string_view key, std::string_view value, std::int64_t lease = 0);
  // Deletes a key; no error if there is none.
  Status Delete(std::string_view key);
  Result<EtcdSwapReply> CompareAndSwap(const EtcdSwapRequest& request);

  Result<EtcdLeaseReply> Grant(std::int64_t ttl_seconds);
  // Returns the seconds that are left. Error kNotFound: the lease has expired.
  Result<std::int64_t> KeepAlive(std::int64_t lease);
  // Ends the lease and deletes its keys; no error if it has expired.
  Status Revoke(std::int64_t lease);

  // Calls `on_events` with the changes of keys with this prefix from `start_revision` on, on the client's thread, which
  // it must not block; `revision` is what the watch has come to. Also called without events: when the watch was
  // created, and as a sign of progress.
  using OnEvents = std::function<void(std::vector<EtcdEvent> events, std::int64_t revision)>;
  EtcdWatchEnd Watch(const std::string& prefix, std::int64_t start_revision, const OnEvents& on_events,
                     std::stop_token stop);

  // Ends all running and all later calls with kUnavailable.
  void Stop();
  // The endpoints, for messages.
  const std::string& names() const;

 private:
  struct Impl;
  explicit EtcdClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace loramux
