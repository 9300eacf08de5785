// The access log: one line per served HTTP request.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "server/request_trace.h"

namespace loramux {

// The fields that a completion adds to the log line of its HTTP request.
struct CompletionSummary {
  // the model's name as the client sent it (adapter or base model); empty: the request was not a completion
  std::string adapter;
  // In tokens, over all choices.
  std::int64_t prompt_tokens = 0, completion_tokens = 0;
  std::string finish;  // finish reasons of the choices, as in vllm:request_success_total, separated by commas
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
  CompletionSummary completion;
};

// Writes the line to the log: at level info for POST, at level debug for other methods.
void LogAccess(const AccessLine& line);

}  // namespace loramux
