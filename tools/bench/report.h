// A run's records as one JSON document, from which the console's summary, the HTML report and comparisons are made.
// docs/reference/files.md describes it.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "tools/bench/record.h"

namespace loramux::load {

using ReportJson = nlohmann::ordered_json;

inline constexpr const char* kReportSchema = "loramux-bench/1";

// What a good answer is, in ms. 0: no bound.
struct ServiceObjective {
  double ttft_ms = 0, tpot_ms = 0;
  bool set() const { return ttft_ms > 0 || tpot_ms > 0; }
  // A failed request never meets it; one without a TPOT (a single token) is judged by the rest.
  bool Met(const RequestRecord& record) const;
};

struct ReportOptions {
  ServiceObjective objective;
  ReportJson configuration = ReportJson::object();
  bool with_requests = false;  // a record for each request
};

ReportJson BuildReport(const RunResult& result, const std::vector<std::string>& models, const ReportOptions& options);

// Requests at once, at most. REQUIRES nothing of the order.
std::int64_t PeakInFlight(const std::vector<RequestRecord>& records);

// Reads a document that BuildReport wrote; the error says what is not one.
Result<ReportJson> LoadReport(const std::string& path);

// The number at a path such as {"summary", "latency", "ttft_ms", "p50"}; 0 where there is none.
double NumberAt(const ReportJson& json, std::initializer_list<const char*> path);
// The string at a key; empty where there is none.
std::string StringAt(const ReportJson& json, const char* key);
// Whether the value at a key is true.
bool TrueAt(const ReportJson& json, const char* key);
// The array or object at a key; an empty array where there is none.
const ReportJson& ChildAt(const ReportJson& json, const char* key);

}  // namespace loramux::load
