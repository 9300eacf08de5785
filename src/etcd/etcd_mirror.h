// A copy of all keys below a prefix that follows etcd: read once, then kept by a watch.
//
// While etcd is silent or has no quorum, the copy stays as it is. It never goes back: a member that lags behind what
// the copy has seen is not believed. A watch that broke off goes on from its revision; if that was compacted,
// everything is read again. If etcd lost its data, is another cluster or was restored from a backup, the copy begins
// anew with another `epoch`; what is missing then was lost, not deleted. (The key kHistoryKey, random and written once,
// tells.)
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "etcd/etcd_client.h"

namespace loramux {

inline constexpr char kHistoryKey[] = "/loramux/v1/history";

struct EtcdMirrorState {
  std::map<std::string, EtcdKeyValue> values;  // by the key without the prefix
  std::int64_t revision = 0;                   // revision that the copy has come to
  std::uint64_t epoch = 0;                     // number of the store's history; 0: nothing was read yet
};

class EtcdMirror {
 public:
  // Called with each new state, on the mirror's thread or the client's. It must not block for long.
  using OnChange = std::function<void(const EtcdMirrorState& state)>;
  // `client` must outlive the mirror; `name` is for the log, as in "the catalogue".
  EtcdMirror(EtcdClient& client, std::string prefix, std::string name, OnChange on_change);
  // Ends the watch. After EtcdClient::Stop it is immediate.
  ~EtcdMirror();
  EtcdMirror(const EtcdMirror&) = delete;
  EtcdMirror& operator=(const EtcdMirror&) = delete;

  // Waits until everything was read once. False: not within this time.
  bool WaitUntilRead(std::chrono::nanoseconds time);
  // Whether the last attempt to read or to watch succeeded.
  bool in_touch() const { return in_touch_; }
  // How often everything was read.
  std::int64_t reads() const { return reads_; }

 private:
  void Follow(std::stop_token stop);
  EtcdWatchEnd WatchOnce(std::stop_token stop);
  Result<std::string> History();
  bool Read();
  bool Accept(EtcdRangeReply read, const std::string& history, bool certain);
  void Apply(std::vector<EtcdEvent> events);
  void Report(bool in_touch, const std::string& why);
  void Sleep(std::stop_token stop, std::chrono::nanoseconds time);

  EtcdClient& client_;
  const std::string prefix_, name_;
  const OnChange on_change_;
  EtcdMirrorState state_;  // changed by the thread, and by the client's while the thread watches
  std::string history_;    // value of kHistoryKey in the present epoch
  std::atomic<bool> in_touch_ = false;
  std::atomic<bool> heard_ = false;  // since the watch began
  std::atomic<std::int64_t> reads_ = 0;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool read_ = false;  // guarded by mutex_
  std::jthread thread_;
};

}  // namespace loramux
