#include "http/access_line.h"

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
  for (const AccessDetail& detail : line.details) {
    const auto* text = std::get_if<std::string>(&detail.value);
    if (text != nullptr) {
      fields.push_back({detail.name, *text});
    } else {
      fields.push_back({detail.name, std::get<std::int64_t>(detail.value)});
    }
  }
  LogWith(level, line.complete ? "request" : "request cut off", fields);
}

}  // namespace loramux
