#include "loadgen/report.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "base/json_text.h"
#include "base/text_file.h"
#include "loadgen/time_series.h"
#include "workload/statistics.h"

namespace loramux::load {
namespace {

constexpr int kCurveSteps = 200;
constexpr std::size_t kMaxExamples = 20, kMaxSamples = 2000;

using Records = std::vector<const RequestRecord*>;

double Rounded(double value) { return std::round(value * 1e4) / 1e4; }

ReportJson ToJson(const Summary& s) {
  return {{"count", s.count},      {"mean", Rounded(s.mean)}, {"min", Rounded(s.min)}, {"p50", Rounded(s.p50)},
          {"p90", Rounded(s.p90)}, {"p99", Rounded(s.p99)},   {"max", Rounded(s.max)}};
}

// The latencies of the requests that did not fail.
struct Latencies {
  std::vector<double> ttft, tpot, itl, e2e;
};

Latencies Collect(const Records& records) {
  Latencies all;
  for (const RequestRecord* record : records) {
    if (!record->ok()) continue;
    if (record->has_ttft()) all.ttft.push_back(record->ttft_ms());
    if (record->has_tpot()) all.tpot.push_back(record->tpot_ms());
    all.itl.insert(all.itl.end(), record->gaps_ms.begin(), record->gaps_ms.end());
    all.e2e.push_back(record->e2e_ms());
  }
  return all;
}

ReportJson LatencyJson(const Latencies& all) {
  return {{"ttft_ms", ToJson(Summarise(all.ttft))},
          {"tpot_ms", ToJson(Summarise(all.tpot))},
          {"itl_ms", ToJson(Summarise(all.itl))},
          {"e2e_ms", ToJson(Summarise(all.e2e))}};
}

ReportJson CurvesJson(const Latencies& all) {
  const auto curve = [](const std::vector<double>& values) {
    ReportJson json = ReportJson::array();
    for (const double value : QuantileCurve(values, kCurveSteps)) json.push_back(Rounded(value));
    return json;
  };
  return {{"ttft_ms", curve(all.ttft)},
          {"tpot_ms", curve(all.tpot)},
          {"itl_ms", curve(all.itl)},
          {"e2e_ms", curve(all.e2e)}};
}

ReportJson RequestCounts(const Records& records) {
  std::int64_t failed = 0, checked = 0, wrong = 0;
  for (const RequestRecord* record : records) {
    failed += record->ok() ? 0 : 1;
    checked += record->checked ? 1 : 0;
    wrong += record->failure == Failure::kWrongAnswer ? 1 : 0;
  }
  const auto total = static_cast<std::int64_t>(records.size());
  return {{"total", total},
          {"succeeded", total - failed},
          {"failed", failed},
          {"checked", checked},
          {"wrong_answers", wrong}};
}

ReportJson FailureCounts(const Records& records) {
  std::map<std::string, std::int64_t> counts;
  for (const RequestRecord* record : records) {
    if (!record->ok()) ++counts[record->failure_kind()];
  }
  ReportJson json = ReportJson::object();
  for (const auto& [kind, count] : counts) json[kind] = count;
  return json;
}

ReportJson TokenCounts(const Records& records) {
  std::int64_t input = 0, output = 0, cached = 0, requested = 0, without_usage = 0;
  for (const RequestRecord* record : records) {
    input += record->input_tokens;
    output += record->output_tokens;
    cached += record->cached_tokens;
    requested += record->requested_output_tokens;
    without_usage += record->ok() && !record->has_usage ? 1 : 0;
  }
  return {{"input", input},
          {"output", output},
          {"cached_input", cached},
          {"requested_output", requested},
          {"requests_without_usage", without_usage}};
}

ReportJson GoodputJson(const Records& records, const ServiceObjective& objective, double seconds) {
  if (!objective.set()) return nullptr;
  const auto met =
      std::count_if(records.begin(), records.end(), [&](const RequestRecord* r) { return objective.Met(*r); });
  const double total = std::max<double>(1, static_cast<double>(records.size()));
  return {{"slo_ttft_ms", objective.ttft_ms},
          {"slo_tpot_ms", objective.tpot_ms},
          {"requests_met", met},
          {"share", Rounded(static_cast<double>(met) / total)},
          {"requests_per_s", Rounded(static_cast<double>(met) / seconds)}};
}

ReportJson SummaryJson(const Records& records, const Latencies& latencies, const ServiceObjective& objective,
                       double seconds) {
  const ReportJson requests = RequestCounts(records), tokens = TokenCounts(records);
  const double answered = requests["succeeded"].get<double>();
  return {{"requests", requests},
          {"failures", FailureCounts(records)},
          {"tokens", tokens},
          {"throughput",
           {{"requests_per_s", Rounded(answered / seconds)},
            {"input_tokens_per_s", Rounded(tokens["input"].get<double>() / seconds)},
            {"output_tokens_per_s", Rounded(tokens["output"].get<double>() / seconds)}}},
          {"goodput", GoodputJson(records, objective, seconds)},
          {"latency", LatencyJson(latencies)}};
}

ReportJson LagJson(const Records& records) {
  std::vector<double> lags;
  for (const RequestRecord* record : records) {
    if (record->scheduled >= 0) lags.push_back(static_cast<double>(record->sent - record->scheduled) / 1e6);
  }
  return ToJson(Summarise(std::move(lags)));
}

ReportJson ExamplesJson(const Records& records, const std::vector<std::string>& models) {
  ReportJson json = ReportJson::array();
  std::map<std::string, int> seen;  // at most five of each kind
  for (const RequestRecord* record : records) {
    if (record->ok() || json.size() >= kMaxExamples || ++seen[record->failure_kind()] > 5) continue;
    json.push_back({{"kind", record->failure_kind()},
                    {"model", models[static_cast<std::size_t>(record->model)]},
                    {"session", record->session},
                    {"turn", record->turn},
                    {"detail", record->detail}});
  }
  return json;
}

// Returns points for a scatter plot, picked at even distances.
ReportJson SamplesJson(const Records& records) {
  ReportJson json = ReportJson::array();
  const std::size_t step = std::max<std::size_t>(1, (records.size() + kMaxSamples - 1) / kMaxSamples);
  for (std::size_t i = 0; i < records.size(); i += step) {
    const RequestRecord& record = *records[i];
    if (!record.ok()) continue;
    json.push_back({Rounded(static_cast<double>(record.sent) / 1e9),
                    record.has_ttft() ? ReportJson(Rounded(record.ttft_ms())) : ReportJson(nullptr),
                    Rounded(record.e2e_ms())});
  }
  return json;
}

ReportJson RequestJson(const RequestRecord& r, const std::vector<std::string>& models) {
  const auto ms = [](TimeNs time) {
    return time < 0 ? ReportJson(nullptr) : ReportJson(Rounded(static_cast<double>(time) / 1e6));
  };
  ReportJson json{{"session", r.session},
                  {"turn", r.turn},
                  {"model", models[static_cast<std::size_t>(r.model)]},
                  {"scheduled_ms", ms(r.scheduled)},
                  {"sent_ms", ms(r.sent)},
                  {"first_token_ms", ms(r.first_token)},
                  {"end_ms", ms(r.end)},
                  {"input_tokens", r.input_tokens},
                  {"cached_tokens", r.cached_tokens},
                  {"output_tokens", r.output_tokens},
                  {"requested_output_tokens", r.requested_output_tokens},
                  {"http_status", r.http_status},
                  {"finish_reason", r.finish_reason},
                  {"checked", r.checked},
                  {"failure", r.ok() ? ReportJson(nullptr) : ReportJson(r.failure_kind())}};
  if (!r.ok()) json["detail"] = r.detail;
  return json;
}

ReportJson AdaptersJson(const Records& records, const std::vector<std::string>& models,
                        const ServiceObjective& objective, double seconds) {
  std::vector<Records> by_model(models.size());
  for (const RequestRecord* record : records) by_model[static_cast<std::size_t>(record->model)].push_back(record);
  ReportJson json = ReportJson::array();
  for (std::size_t i = 0; i < models.size(); ++i) {
    if (by_model[i].empty()) continue;
    ReportJson entry{{"name", models[i]}, {"base", i + 1 == models.size()}};
    entry.update(SummaryJson(by_model[i], Collect(by_model[i]), objective, seconds));
    json.push_back(std::move(entry));
  }
  return json;
}

}  // namespace

bool ServiceObjective::Met(const RequestRecord& record) const {
  if (!record.ok()) return false;
  if (ttft_ms > 0 && (!record.has_ttft() || record.ttft_ms() > ttft_ms)) return false;
  return tpot_ms <= 0 || !record.has_tpot() || record.tpot_ms() <= tpot_ms;
}

ReportJson BuildReport(const RunResult& result, const std::vector<std::string>& models,
                       const ServiceObjective& objective, const ReportJson& configuration, bool with_requests) {
  Records records;
  for (const RequestRecord& record : result.records) records.push_back(&record);
  std::stable_sort(records.begin(), records.end(), [](const auto* a, const auto* b) { return a->sent < b->sent; });
  const double seconds = std::max(static_cast<double>(result.duration) / 1e9, 1e-9);
  const Latencies latencies = Collect(records);

  ReportJson json{{"schema", kReportSchema},
                  {"started_unix_s", result.started_unix_s},
                  {"duration_s", Rounded(seconds)},
                  {"interrupted", result.interrupted},
                  {"configuration", configuration}};
  json["summary"] = SummaryJson(records, latencies, objective, seconds);
  json["summary"]["peak_in_flight"] = PeakInFlight(result.records);
  json["summary"]["scheduling_lag_ms"] = LagJson(records);
  json["adapters"] = AdaptersJson(records, models, objective, seconds);
  json["failure_examples"] = ExamplesJson(records, models);
  json["curves"] = CurvesJson(latencies);
  json["series"] = TimeSeriesJson(result.records, seconds);
  json["samples"] = SamplesJson(records);
  if (with_requests) {
    json["requests"] = ReportJson::array();
    for (const RequestRecord* record : records) json["requests"].push_back(RequestJson(*record, models));
  }
  return json;
}

std::int64_t PeakInFlight(const std::vector<RequestRecord>& records) {
  std::vector<std::pair<TimeNs, int>> steps;  // at equal times, ends come first
  for (const RequestRecord& record : records) {
    steps.emplace_back(record.sent, 1);
    steps.emplace_back(record.end, -1);
  }
  std::sort(steps.begin(), steps.end());
  std::int64_t now = 0, peak = 0;
  for (const auto& [time, step] : steps) peak = std::max(peak, now += step);
  return peak;
}

Result<ReportJson> LoadReport(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  if (const auto problem = JsonTextProblem(text)) {
    return InvalidArgument(fmt::format("{}: expected the JSON of `loramux bench --json`, found {}", path, *problem));
  }
  ReportJson json = ReportJson::parse(text, nullptr, false);
  if (!json.is_object() || StringAt(json, "schema") != kReportSchema || !ChildAt(json, "summary").is_object()) {
    return InvalidArgument(fmt::format("{}: expected a result of `loramux bench --json` ({})", path, kReportSchema));
  }
  return json;
}

double NumberAt(const ReportJson& json, std::initializer_list<const char*> path) {
  const ReportJson* at = &json;
  for (const char* key : path) {
    const auto it = at->is_object() ? at->find(key) : at->end();
    if (!at->is_object() || it == at->end()) return 0;
    at = &*it;
  }
  return at->is_number() ? at->get<double>() : 0;
}

std::string StringAt(const ReportJson& json, const char* key) {
  const auto it = json.is_object() ? json.find(key) : json.end();
  return json.is_object() && it != json.end() && it->is_string() ? it->get<std::string>() : std::string();
}

bool TrueAt(const ReportJson& json, const char* key) {
  const auto it = json.is_object() ? json.find(key) : json.end();
  return json.is_object() && it != json.end() && it->is_boolean() && it->get<bool>();
}

const ReportJson& ChildAt(const ReportJson& json, const char* key) {
  static const ReportJson kNone = ReportJson::array();
  const auto it = json.is_object() ? json.find(key) : json.end();
  return json.is_object() && it != json.end() && it->is_structured() ? *it : kNone;
}

}  // namespace loramux::load
