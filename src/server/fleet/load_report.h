// The load report of a response, as gateways ask for it: ORCA's header `endpoint-load-metrics` (Open Request Cost
// Aggregation, as Envoy and vLLM have it).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/generation/generation_service.h"

namespace loramux {

inline constexpr const char* kLoadReportFormatHeader = "endpoint-load-metrics-format";  // header of the request
inline constexpr const char* kLoadReportHeader = "endpoint-load-metrics";               // header of the response

// Returns the header's value in the form that `format` (the value of kLoadReportFormatHeader) asks for: "TEXT" or
// "JSON", in any case. nullopt: another form, or none.
// - application_utilization: sequences that run or wait, per seat of the batch; above 1 where requests queue;
// - mem_utilization: pages that nothing can be evicted from, 0 to 1;
// - named_metrics: kv_cache_usage_perc (0 to 1), num_requests_running, num_requests_waiting.
std::optional<std::string> LoadReport(std::string_view format, const GenerationLoad& load);

}  // namespace loramux
