// The access log: one line per served HTTP request.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "http/request_trace.h"

namespace loramux {

// A field that a handler adds to the log line of its request. `name` is a literal.
struct AccessDetail {
  std::string_view name;
  std::variant<std::string, std::int64_t> value;
};

// The content of one log line.
struct AccessLine {
  std::string method, path;  // `path` is the path as the client sent it, without the query
  int status = 0;            // HTTP status; 0: no response was sent
  // Bytes of the response that were sent.
  std::uint64_t bytes = 0;
  // From the first byte of the request to the end of the response.
  TimeNs took = 0;
  bool complete = true;  // false: the connection ended before the whole response was sent
  RequestTrace trace;
  std::vector<AccessDetail> details;
};

// Writes the line to the log: at level info for POST, at level debug for other methods.
void LogAccess(const AccessLine& line);

}  // namespace loramux
