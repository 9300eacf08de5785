#include "tools/service_notify.h"

#include <systemd/sd-daemon.h>

namespace loramux {

namespace {
// For what follows the drain: closing connections, ending the engine.
constexpr double kSecondsAfterDrain = 15;
}  // namespace

void NotifyReady(std::uint16_t port) { sd_notifyf(0, "READY=1\nSTATUS=Serving on port %u", unsigned{port}); }

void NotifyStopping(double drain_seconds) {
  const auto microseconds = static_cast<unsigned long long>((drain_seconds + kSecondsAfterDrain) * 1e6);
  sd_notifyf(0, "STOPPING=1\nSTATUS=Draining, up to %g s\nEXTEND_TIMEOUT_USEC=%llu", drain_seconds, microseconds);
}

}  // namespace loramux
