// State that all connections of one server share: the requests in flight, and the memory that request bodies may use.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace loramux {

// The outcome of a shutdown.
struct DrainReport {
  std::int64_t in_flight = 0;        // requests that were running when the shutdown began
  std::vector<std::string> dropped;  // descriptions of the requests among them that were cut off
};

// Thread-safe.
class HttpActivity {
  // The first number bounds the bodies held by all connections together, the second those of one client address; 0: no
  // such bound.
 public:
  explicit HttpActivity(std::size_t max_body_bytes, std::size_t max_body_bytes_per_address = 0)
      : max_body_bytes_(max_body_bytes), max_body_bytes_per_address_(max_body_bytes_per_address) {}

  // Counts a request that a handler starts to answer. False if the server is draining: refuse the request.
  bool Begin();
  // Ends a request for which Begin returned true.
  void End();
  // Makes Begin return false from now on.
  void StartDraining();
  bool draining() const;
  // Waits until no request is in flight. False if `timeout` passes first.
  bool WaitUntilIdle(std::chrono::milliseconds timeout);

  // Adds the description of a request that was cut off to the report.
  void AddDropped(std::string request);
  // Returns the outcome of the shutdown so far.
  DrainReport Report() const;

  // Reserves bytes for bodies of a client address. False if that address, or all connections together, would hold more
  // than the limit; then nothing is reserved.
  bool TakeBodyBytes(const std::string& address, std::size_t bytes);
  // Returns reserved bytes.
  void ReturnBodyBytes(const std::string& address, std::size_t bytes);

 private:
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  std::int64_t running_ = 0;
  bool draining_ = false;
  DrainReport report_;
  std::size_t body_bytes_ = 0;
  std::map<std::string, std::size_t> body_bytes_by_address_;  // none of them 0
  const std::size_t max_body_bytes_, max_body_bytes_per_address_;
};

// Calls Begin if `wanted`, and End on destruction if Begin returned true.
class InFlight {
 public:
  InFlight(HttpActivity& activity, bool wanted) : activity_(activity), begun_(wanted && activity.Begin()) {}
  ~InFlight() {
    if (begun_) activity_.End();
  }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;
  bool begun() const { return begun_; }

 private:
  HttpActivity& activity_;
  const bool begun_;
};

// One request's share of the body bytes. Returns it on destruction.
class BodyLease {
 public:
  BodyLease(HttpActivity& activity, std::string address) : activity_(activity), address_(std::move(address)) {}
  ~BodyLease() { Release(); }
  BodyLease(const BodyLease&) = delete;
  BodyLease& operator=(const BodyLease&) = delete;

  // Grows the share to `bytes` in total. False if a limit does not allow it. REQUIRES: `bytes` is not less than before.
  bool Grow(std::size_t bytes) {
    if (!activity_.TakeBodyBytes(address_, bytes - bytes_)) return false;
    bytes_ = bytes;
    return true;
  }
  // Returns the whole share.
  void Release() { activity_.ReturnBodyBytes(address_, std::exchange(bytes_, 0)); }

 private:
  HttpActivity& activity_;
  const std::string address_;
  std::size_t bytes_ = 0;
};

}  // namespace loramux
