// What the connections of one server share: which requests are being answered, and what their bodies may take of
// memory.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace loramux {

// How a shutdown went.
struct DrainReport {
  std::int64_t in_flight = 0;        // requests that ran when it began
  std::vector<std::string> dropped;  // those of them that were cut off, in words
};

// Thread-safe.
class HttpActivity {
 public:
  explicit HttpActivity(std::size_t max_body_bytes) : max_body_bytes_(max_body_bytes) {}

  // A request that a handler answers from now on. False once draining: it must be refused.
  bool Begin();
  void End();
  // No further requests.
  void StartDraining();
  bool draining() const;
  // No request is being answered. False after `timeout`.
  bool WaitUntilIdle(std::chrono::milliseconds timeout);

  void AddDropped(std::string request);
  DrainReport Report() const;

  // Bytes of bodies that are held at the same time, by all connections. False: they are more than they may be together.
  bool TakeBodyBytes(std::size_t bytes);
  void ReturnBodyBytes(std::size_t bytes);

 private:
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  std::int64_t running_ = 0;
  bool draining_ = false;
  DrainReport report_;
  std::size_t body_bytes_ = 0;
  const std::size_t max_body_bytes_;
};

// Begins, if wanted and possible, and ends.
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

// One request's share of the body bytes; gives it back at the end.
class BodyLease {
 public:
  explicit BodyLease(HttpActivity& activity) : activity_(activity) {}
  ~BodyLease() { Release(); }
  BodyLease(const BodyLease&) = delete;
  BodyLease& operator=(const BodyLease&) = delete;

  // To `bytes` in all, which is not less than before.
  bool Grow(std::size_t bytes) {
    if (!activity_.TakeBodyBytes(bytes - bytes_)) return false;
    bytes_ = bytes;
    return true;
  }
  void Release() { activity_.ReturnBodyBytes(std::exchange(bytes_, 0)); }

 private:
  HttpActivity& activity_;
  std::size_t bytes_ = 0;
};

}  // namespace loramux
