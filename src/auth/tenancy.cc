#include "auth/tenancy.h"

#include <algorithm>

#include <fmt/format.h>

namespace loramux {
namespace {

// Neither a key's name nor an id has it, so the name of a sub-tenant can be split in one way only.
constexpr char kSeparator = '\n';

// No tenant's name has it, so what precedes the first one is the tenant.
constexpr char kSaltSeparator = '\x1f';

}  // namespace

Result<std::string> TenantName(const ApiKey& caller, std::string_view id) {
  const std::string header(kFairnessHeader);
  if (id.size() > kMaxTenantBytes) {
    return InvalidArgument(fmt::format("{}: expected at most {} bytes, found {}", header, kMaxTenantBytes, id.size()),
                           header);
  }
  if (std::any_of(id.begin(), id.end(), IsControl)) {
    return InvalidArgument(header + ": expected no control characters, found one", header);
  }
  if (caller.nameless()) return std::string(id);
  return id.empty() ? caller.name : caller.name + kSeparator + std::string(id);
}

std::string PrefixDomain(std::string tenant, std::string_view salt) {
  if (salt.empty()) return tenant;
  tenant += kSaltSeparator;
  return tenant += salt;
}

Result<PrefixSharing> ReadPrefixSharing(const std::string& mode) {
  if (mode.empty()) return PrefixSharing::kKeys;
  if (mode == "tenant") return PrefixSharing::kTenant;
  if (mode == "all") return PrefixSharing::kAll;
  return InvalidArgument("--prefix-sharing: expected tenant or all, found '" + mode + "'", "--prefix-sharing");
}

}  // namespace loramux
