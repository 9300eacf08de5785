#include "tools/bench_options.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "base/text_file.h"

namespace loramux::load {
namespace {

Result<std::pair<std::string, std::string>> ParseHeader(const std::string& text) {
  const auto colon = text.find(':');
  const bool printable =
      std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= ' ' && c != 0x7f; });
  if (colon == 0 || colon == std::string::npos || !printable || text.substr(0, colon).find(' ') != std::string::npos) {
    return InvalidArgument("--header: expected 'Name: value'");
  }
  const auto value = text.find_first_not_of(' ', colon + 1);
  return std::pair(text.substr(0, colon), value == std::string::npos ? std::string() : text.substr(value));
}

}  // namespace

Result<HttpClientOptions> MakeClientOptions(const BenchFlags& flags) {
  HttpClientOptions options = flags.client;
  ASSIGN_OR_RETURN(options.url, ParseServerUrl(flags.url, "--url"));
  std::string key = flags.api_key;
  if (!flags.api_key_file.empty()) {
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(flags.api_key_file));
    key = text.substr(0, text.find_first_of("\r\n"));
  }
  if (!key.empty()) options.headers.emplace_back("Authorization", "Bearer " + key);
  for (const std::string& header : flags.headers) {
    ASSIGN_OR_RETURN(auto parsed, ParseHeader(header));
    options.headers.push_back(std::move(parsed));
  }
  options.timeout = std::chrono::nanoseconds(static_cast<std::int64_t>(flags.timeout_s * 1e9));
  return options;
}

RunOptions MakeRunOptions(const BenchFlags& flags) {
  RunOptions options = flags.run;
  options.endpoint = flags.endpoint == "chat" ? ApiEndpoint::kChat : ApiEndpoint::kCompletions;
  options.stream = !flags.no_stream;
  return options;
}

Result<SessionOptions> MakeWorkloadOptions(const BenchFlags& flags) {
  SessionOptions options = flags.sessions;
  options.ignore_eos = !flags.stop_at_eos;
  ASSIGN_OR_RETURN(options.choice, ParseAdapterChoice(flags.adapter_distribution));
  ASSIGN_OR_RETURN(options.input_tokens, LengthDistribution::Parse(flags.input_tokens, "--input-tokens"));
  ASSIGN_OR_RETURN(options.output_tokens, LengthDistribution::Parse(flags.output_tokens, "--output-tokens"));
  options.base_share = std::max(flags.base_share, 0.0);
  if (flags.tasks.empty()) return options;
  ASSIGN_OR_RETURN(options.tasks, LoadTasks(flags.tasks));
  if (!flags.sessions.adapters.empty() || flags.adapters_from_server) return options;
  // The files name the models to ask; the base model gets an equal share if it has questions.
  for (const Task& task : options.tasks) {
    if (task.name != "base") options.adapters.push_back(task.name);
  }
  const bool has_base = options.adapters.size() < options.tasks.size();
  if (flags.base_share < 0 && has_base) options.base_share = 1.0 / static_cast<double>(options.tasks.size());
  return options;
}

Result<Trace> MakeTrace(const BenchFlags& flags) {
  const TraceOptions limits{.start_s = flags.trace_start_s,
                            .rate = flags.rate,
                            .duration_s = flags.run.duration_s,
                            .requests = flags.run.sessions,
                            .seed = flags.sessions.seed};
  if (flags.trace.empty()) return PoissonTrace(limits);
  if (std::filesystem::is_directory(flags.trace) && limits.duration_s == 0 && limits.requests == 0) {
    return InvalidArgument("--trace: a folder of clients covers several days: give --duration or --num-requests");
  }
  TraceOptions options = limits;
  if (flags.time_scale > 0) options.duration_s /= flags.time_scale;  // in the trace's own time
  if (flags.rate > 0) options.rate *= flags.time_scale;
  ASSIGN_OR_RETURN(Trace trace, LoadTrace(flags.trace, options));
  ScaleTrace(trace, flags.time_scale, flags.length_scale, limits);
  return trace;
}

ReportJson ConfigurationJson(const BenchFlags& flags, const SessionOptions& workload) {
  const auto if_set = [](auto value) { return value > 0 ? ReportJson(value) : ReportJson(nullptr); };
  ReportJson json{{"url", flags.url},
                  {"model", workload.base_model},
                  {"endpoint", flags.endpoint},
                  {"stream", !flags.no_stream},
                  {"load", DescribeLoad(flags)},
                  {"rate_per_s", if_set(flags.rate)},
                  {"trace", flags.trace.empty() ? ReportJson(nullptr) : ReportJson(flags.trace)},
                  {"trace_start_s", flags.trace_start_s},
                  {"time_scale", flags.time_scale},
                  {"length_scale", flags.length_scale},
                  {"concurrency", if_set(flags.run.concurrency)},
                  {"num_requests", if_set(flags.run.sessions)},
                  {"duration_s", if_set(flags.run.duration_s)},
                  {"timeout_s", flags.timeout_s},
                  {"seed", flags.sessions.seed}};
  json["adapters"] = workload.adapters.size();
  json["adapter_distribution"] = flags.adapter_distribution;
  json["zipf_s"] =
      flags.adapter_distribution == "zipf" ? ReportJson(flags.sessions.zipf_exponent) : ReportJson(nullptr);
  json["base_share"] = workload.adapters.empty() ? 1.0 : workload.base_share;
  json["turns"] = flags.sessions.turns;
  json["think_time_s"] = flags.run.think_s;
  json["temperature"] = flags.run.temperature;
  json["tasks"] = flags.tasks.empty() ? ReportJson(nullptr) : ReportJson(flags.tasks);
  if (flags.tasks.empty()) {
    json.update({{"input_tokens", flags.input_tokens},
                 {"output_tokens", flags.output_tokens},
                 {"ignore_eos", !flags.stop_at_eos},
                 {"prefix_tokens", flags.sessions.prefix_tokens},
                 {"max_input_tokens", if_set(flags.sessions.max_input_tokens)},
                 {"max_output_tokens", if_set(flags.sessions.max_output_tokens)}});
  }
  return json;
}

}  // namespace loramux::load
