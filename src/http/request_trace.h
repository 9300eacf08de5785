// The identity of a request in logs and across servers: its id (X-Request-Id) and its position in a distributed trace
// (W3C Trace Context: traceparent, tracestate).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace loramux {

// A value. `trace_id` and `span_id` are empty if the request belongs to no trace.
struct RequestTrace {
  std::string request_id;
  std::string trace_id;    // 32 hexadecimal digits, from the caller
  std::string span_id;     // 16 hexadecimal digits, from this server
  std::string tracestate;  // from the caller, unchanged
  // The caller's sampled flag.
  bool sampled = false;

  // Returns the headers of every response: X-Request-Id, and traceparent and tracestate if there is a trace.
  std::vector<std::pair<std::string, std::string>> Headers() const;
};

// Returns 64 random bits. Must be thread-safe if several threads call it.
using RandomBits = std::function<std::uint64_t()>;

// Returns a new id and no trace, for a request with unknown headers.
RequestTrace NewTrace(const RandomBits& random_bits);

// Adopts what the client sent (empty: nothing). The id is adopted if it has at most 128 characters of [A-Za-z0-9._-].
// traceparent is adopted if it is well-formed by the W3C's rules (version 00, or a later version that begins like it).
// tracestate is adopted together with traceparent, if it is well-formed too. Anything else is ignored.
void AdoptTrace(RequestTrace& trace, std::string_view request_id, std::string_view traceparent,
                std::string_view tracestate, const RandomBits& random_bits);

}  // namespace loramux
