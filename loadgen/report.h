// The report of a run: one JSON document, from which the console summary, the HTML report and comparisons are made.
// docs/reference/files.md describes it.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "loadgen/record.h"

namespace loramux::load {

// JSON that keeps the order of its keys.
using ReportJson = nlohmann::ordered_json;

// The value of "schema" in the document.
inline constexpr const char* kReportSchema = "loramux-bench/1";

// The service objective, in milliseconds. 0: no bound.
struct ServiceObjective {
  double ttft_ms = 0, tpot_ms = 0;
  bool set() const { return ttft_ms > 0 || tpot_ms > 0; }
  // True if the request meets the objective. A failed request never does; one without a TPOT (a single token) is judged
  // by its TTFT alone.
  bool Met(const RequestRecord& record) const;
};

// Builds the document. `models` holds the names to which RequestRecord::model refers. `with_requests`: include a record
// of every request.
ReportJson BuildReport(const RunResult& result, const std::vector<std::string>& models,
                       const ServiceObjective& objective = {}, const ReportJson& configuration = ReportJson::object(),
                       bool with_requests = false);

// Returns the largest number of requests in flight at a time. The records may be in any order.
std::int64_t PeakInFlight(const std::vector<RequestRecord>& records);

// Reads a document written by BuildReport. The error says in which way the file is not one.
Result<ReportJson> LoadReport(const std::string& path);

// Returns the number at a path such as {"summary", "latency", "ttft_ms", "p50"}; 0 if there is none.
double NumberAt(const ReportJson& json, std::initializer_list<const char*> path);
// Returns the string at a key; empty if there is none.
std::string StringAt(const ReportJson& json, const char* key);
// Returns whether the value at a key is true.
bool TrueAt(const ReportJson& json, const char* key);
// Returns the array or object at a key; an empty array if there is none.
const ReportJson& ChildAt(const ReportJson& json, const char* key);

}  // namespace loramux::load
