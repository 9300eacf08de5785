// Which headers a router passes on, in both directions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "http/client.h"
#include "http/exchange.h"

namespace loramux {

// What the headers of a server's response say.
struct PassedHead {
  HttpFields headers;  // fields that are passed on: without Content-Type, those of the connection and those of CORS
  std::string content_type;
  std::optional<std::uint64_t> content_length;
  bool not_started = false;
  bool other_content = false;  // kOtherContentHeader
};
PassedHead ReadPassedHead(const HttpFields& headers);

// The headers for a server: those of the client without those of the connection, the request's id and trace, the
// client's address, and who it is: for servers that trust the fairness header, and, signed with `fleet_key`, for those
// that have the key (auth/vouched_caller.h). An empty key signs nothing.
HttpFields RequestHeaders(const HttpExchange& exchange, std::string_view fleet_key, std::int64_t unix_seconds);

}  // namespace loramux
