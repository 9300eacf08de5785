// Who is charged for a request (schedule/queue/fairness.h), and whose cached prefixes it may use.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "auth/access.h"
#include "base/result.h"

namespace loramux {

// The headers that name a tenant, if the operator trusts them: llm-d's name, and that of the Gateway API Inference
// Extension, in messages too. And the most bytes of such a name.
inline constexpr std::string_view kFairnessHeader = "x-gateway-inference-fairness-id";
inline constexpr std::array<std::string_view, 2> kFairnessHeaders = {"x-llm-d-inference-fairness-id", kFairnessHeader};
inline constexpr std::size_t kMaxTenantBytes = 256;

// Returns the tenant of a request of the API key `caller` (NoKey: the server has no keys) with the trusted header value
// `id` (empty: none):
//  - with a key, the key's name; with an id too, a sub-tenant of the key, whose name no key and no other key's
//    sub-tenant can have;
//  - without a key, the id. If that is empty too, so is the result: the engine then charges the adapter.
// Error: the id is too long or has a control character.
Result<std::string> TenantName(const ApiKey& caller, std::string_view id);

// Returns the domain within which cached prefixes are shared (GenerationRequest::prefix_domain): that of the tenant
// (empty: of all tenants), divided by the request's salt (empty: not divided). Different pairs have different domains.
// REQUIRES: `tenant` is a TenantName.
std::string PrefixDomain(std::string tenant, std::string_view salt);

// Whose cached prefixes are shared.
enum class PrefixSharing {
  kKeys,    // requests with an API key: those of one TenantName; all requests without a key
  kTenant,  // those of one TenantName
  kAll,     // all requests
};

// Reads the value of --prefix-sharing: "tenant", "all", or empty, which is kKeys. Error: another value; the message
// lists the valid ones.
Result<PrefixSharing> ReadPrefixSharing(const std::string& mode);

}  // namespace loramux
