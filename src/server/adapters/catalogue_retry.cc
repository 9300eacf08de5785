#include "server/adapters/catalogue_retry.h"

#include <algorithm>

namespace loramux {
namespace {

constexpr TimeNs kFirst = kNsPerSecond, kLongest = 60 * kNsPerSecond, kLongestAfterRefusal = 3600 * kNsPerSecond;

// Whether the content came and was refused, so that only another content helps. What is absent, or cannot be reached,
// is asked for again soon: that costs no download.
bool RefusedFromAfar(const FleetAdapter& entry, const Error& error) {
  const bool from_afar = entry.source.find("://") != std::string::npos;
  const bool refused = error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kUnsupported ||
                       error.code == ErrorCode::kResourceExhausted;
  return from_afar && refused;
}

}  // namespace

void CatalogueRetry::Failed(const FleetAdapter& entry, const Error& error, TimeNs now) {
  if (failures_ > 0 && !(entry == entry_)) failures_ = 0;
  entry_ = entry;
  const TimeNs longest = RefusedFromAfar(entry, error) ? kLongestAfterRefusal : kLongest;
  at_ = now + std::min(kFirst << std::min(failures_, 12), longest);
  ++failures_;
}

}  // namespace loramux
