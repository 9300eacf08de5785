// What the service manager hears of the server (systemd units of Type=notify; see sd_notify(3)). Without a service
// manager nothing is sent. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>

namespace loramux {

// For messages.
inline double SecondsOf(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

// The server answers requests on `port`: `systemctl start` returns now.
void NotifyReady(std::uint16_t port);
// The server has begun to drain and takes up to `drain_seconds`: the manager waits that long before it kills, whatever
// its own timeout is.
void NotifyStopping(double drain_seconds);

}  // namespace loramux
