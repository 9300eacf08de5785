// What a router counts, and its page for Prometheus.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "cluster/dispatcher.h"

namespace loramux {

// "answered", "not_started", "no_connection", "broken" or "cancelled".
std::string_view NameOf(AttemptEnd end);

// Counts since the start. Use it on one thread.
class RouterMetrics {
 public:
  void CountAttempt(const std::string& server, AttemptEnd end) { ++attempts_[server][static_cast<std::size_t>(end)]; }
  void CountRetry() { ++retries_; }
  void CountRefused() { ++refused_; }
  void CountResponse(int status) { ++responses_[status]; }
  // The time of a request that passed in the router and not in the server.
  void ObserveAdded(TimeNs time);

  // Counts one more of something while it lives.
  class Gauge {
   public:
    explicit Gauge(std::int64_t& value) : value_(value) { ++value_; }
    ~Gauge() { --value_; }
    Gauge(const Gauge&) = delete;
    Gauge& operator=(const Gauge&) = delete;

   private:
    std::int64_t& value_;
  };
  std::int64_t in_flight = 0, streams = 0;  // requests that are being routed; those of them that stream

  // The page in Prometheus' text format 0.0.4.
  std::string Page(const Dispatcher& dispatcher, int connections, TimeNs now) const;

 private:
  static constexpr std::array<double, 14> kBounds = {25e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3,
                                                     5e-3,  10e-3, 25e-3,  50e-3,  0.1,    0.5,  2};
  using Counts = std::array<std::int64_t, 6>;

  std::map<std::string, Counts> attempts_;  // by server
  std::map<int, std::int64_t> responses_;
  std::int64_t retries_ = 0, refused_ = 0;
  std::array<std::int64_t, kBounds.size() + 1> added_{};
  double added_seconds_ = 0;
};

}  // namespace loramux
