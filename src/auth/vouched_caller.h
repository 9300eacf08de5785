// Who a request is from, as a router tells a server. Behind a router all clients have one address, and where the router
// alone checks the API keys, a server knows none. So the router signs what it knows with the fleet's key
// (--fleet-key-file), which no client has.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace loramux {

// The header that carries it. A server without the fleet's key ignores the header.
inline constexpr std::string_view kVouchedCallerHeader = "x-loramux-caller";

// Seconds by which the clocks of a router and a server may differ. An older signature is worth nothing.
inline constexpr std::int64_t kVouchedForSeconds = 900;

struct VouchedCaller {
  std::string key;      // the name of the API key that the router checked; empty: it checked none
  std::string id;       // the tenant within the key, or without one, as the router's operator trusts it; empty: none
  std::string address;  // address of the client
  bool operator==(const VouchedCaller&) const = default;
};

// Returns the header's value for the request with the id `request_id` (X-Request-Id), signed with `fleet_key`.
std::string Vouch(const VouchedCaller& caller, std::string_view fleet_key, std::string_view request_id,
                  std::int64_t unix_seconds);

// Reads such a value. Error (kInvalidArgument): it has another form, another signature, or one of another time or
// request. The message says what to compare, and shows no part of a signature.
Result<VouchedCaller> ReadVouchedCaller(std::string_view value, std::string_view fleet_key, std::string_view request_id,
                                        std::int64_t unix_seconds);

}  // namespace loramux
