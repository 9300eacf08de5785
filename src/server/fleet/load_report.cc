#include "server/fleet/load_report.h"

#include <algorithm>

#include <fmt/format.h>

namespace loramux {
namespace {

bool IsWord(std::string_view text, std::string_view upper) {
  return std::equal(text.begin(), text.end(), upper.begin(), upper.end(),
                    [](char a, char b) { return (a >= 'a' && a <= 'z' ? static_cast<char>(a - 32) : a) == b; });
}

}  // namespace

std::optional<std::string> LoadReport(std::string_view format, const GenerationLoad& load) {
  const double seats = static_cast<double>(std::max<std::int64_t>(1, load.max_running));
  const double busy = static_cast<double>(load.running + load.waiting) / seats;
  if (IsWord(format, "TEXT")) {
    return fmt::format(
        "TEXT application_utilization={:.4g}, mem_utilization={:.4g}, named_metrics.kv_cache_usage_perc={:.4g}, "
        "named_metrics.num_requests_running={}, named_metrics.num_requests_waiting={}",
        busy, load.memory_share, load.kv_share, load.running, load.waiting);
  }
  if (IsWord(format, "JSON")) {
    return fmt::format(R"(JSON {{"application_utilization":{:.4g},"mem_utilization":{:.4g},"named_metrics":{{)"
                       R"("kv_cache_usage_perc":{:.4g},"num_requests_running":{},"num_requests_waiting":{}}}}})",
                       busy, load.memory_share, load.kv_share, load.running, load.waiting);
  }
  return std::nullopt;
}

}  // namespace loramux
