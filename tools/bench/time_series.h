// A run over time, in bins of equal length.
#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "tools/bench/record.h"

namespace loramux::load {

// A round length (1, 2 or 5 times a power of ten, from 0.01) that cuts `seconds` into at most 60 bins.
double BinSeconds(double seconds);

// {"bin_s", "bins": [{"t_s", "started", "finished", "failed", "output_tokens_per_s", "in_flight", "ttft_p50_ms",
// "ttft_p99_ms"}]}: t_s is a bin's beginning; in_flight its time average; TTFT is of the requests sent in it, null if
// there are none.
nlohmann::ordered_json TimeSeriesJson(const std::vector<RequestRecord>& records, double seconds);

}  // namespace loramux::load
