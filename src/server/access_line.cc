#include "server/access_line.h"

#include <vector>

#include "base/log.h"

namespace loramux {

void LogAccess(const AccessLine& line) {
  const auto level = line.method == "POST" ? spdlog::level::info : spdlog::level::debug;
  if (!spdlog::should_log(level)) return;
  std::vector<LogField> fields = {{"method", line.method},
                                  {"path", line.path},
                                  {"status", std::int64_t{line.status}},
                                  {"bytes", static_cast<std::int64_t>(line.bytes)},
                                  {"ms", static_cast<double>(line.took) / kNsPerMs},
                                  {"request_id", line.trace.request_id}};
  if (!line.trace.trace_id.empty()) {
    fields.push_back({"trace_id", line.trace.trace_id});
    fields.push_back({"span_id", line.trace.span_id});
  }
  if (!line.completion.adapter.empty()) {
    fields.push_back({"adapter", line.completion.adapter});
    fields.push_back({"prompt_tokens", line.completion.prompt_tokens});
    fields.push_back({"completion_tokens", line.completion.completion_tokens});
    fields.push_back({"finish", line.completion.finish});
  }
  LogWith(level, line.complete ? "request" : "request cut off", fields);
}

}  // namespace loramux
