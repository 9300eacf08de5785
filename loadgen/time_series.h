// A run over time, in bins of equal length.
#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "loadgen/record.h"

namespace loramux::load {

// Returns a round bin length (1, 2 or 5 times a power of ten, at least 0.01) that divides `seconds` into at most 60
// bins.
double BinSeconds(double seconds);

// Returns {"bin_s", "bins": [{"t_s", "started", "finished", "failed", "output_tokens_per_s", "in_flight",
// "ttft_p50_ms", "ttft_p99_ms"}]}. t_s is the beginning of a bin; in_flight is the time average within it. The TTFT is
// that of the requests sent in the bin, null if there are none.
nlohmann::ordered_json TimeSeriesJson(const std::vector<RequestRecord>& records, double seconds);

}  // namespace loramux::load
