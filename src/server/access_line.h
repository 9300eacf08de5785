// The log's line about a request that was served.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "server/request_trace.h"

namespace loramux {

// What a completion adds to its request's line.
struct CompletionSummary {
  std::string adapter;  // or the base model's name, as the client asked; empty: the request was no completion
  std::int64_t prompt_tokens = 0, completion_tokens = 0;
  std::string finish;  // of the choices, as in vllm:request_success_total; several are separated by commas
};

struct AccessLine {
  std::string method, path;  // the path as it was sent, without the query
  int status = 0;            // 0: nothing was sent
  std::uint64_t bytes = 0;
  TimeNs took = 0;
  bool complete = true;  // the response was sent to its end
  RequestTrace trace;
  CompletionSummary completion;
};

// Level info for POST, debug for the rest.
void LogAccess(const AccessLine& line);

}  // namespace loramux
