#include "workload/trace.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/prng.h"
#include "base/text_file.h"
#include "formats/json_fields.h"
#include "formats/message.h"
#include "workload/distributions.h"
#include "workload/fields.h"

namespace loramux {
namespace {

// Returns the days from 1970-01-01 to a civil date (Howard Hinnant's algorithm).
std::int64_t DaysFromCivil(std::int64_t year, std::int64_t month, std::int64_t day) {
  year -= month <= 2;
  const std::int64_t era = (year >= 0 ? year : year - 399) / 400, of_era = year - era * 400;
  const std::int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

// Parses "2023-11-16 18:15:46.6805900" or seconds, as nanoseconds since 1970; nullopt if it has another form.
std::optional<TimeNs> ParseTimestamp(std::string_view text) {
  if (const auto seconds = ParseNumber<double>(text)) {
    return std::abs(*seconds) <= kMaxTraceSeconds ? std::optional(ToNs(*seconds)) : std::nullopt;
  }
  if (text.size() < 19 || text[4] != '-' || text[7] != '-' || text[13] != ':' || text[16] != ':') return std::nullopt;
  const auto year = ParseNumber<int>(text.substr(0, 4)), month = ParseNumber<int>(text.substr(5, 2)),
             day = ParseNumber<int>(text.substr(8, 2));
  const auto hour = ParseNumber<int>(text.substr(11, 2)), minute = ParseNumber<int>(text.substr(14, 2));
  const auto second = ParseNumber<double>(text.substr(17));
  if (!year || !month || !day || !hour || !minute || !second) return std::nullopt;
  if (*year < 1970 || *month < 1 || *month > 12 || *day < 1 || *day > 31 || *hour < 0 || *hour > 23 || *minute < 0 ||
      *minute > 59 || !(*second >= 0 && *second < 61)) {
    return std::nullopt;
  }
  const std::int64_t minutes = (DaysFromCivil(*year, *month, *day) * 24 + *hour) * 60 + *minute;
  return minutes * 60 * kNsPerSecond + ToNs(*second);
}

Error BadLine(const std::string& name, std::int64_t number, std::string_view expected, std::string_view line) {
  return InvalidArgument(fmt::format("{}, line {}: expected {}, found {}", name, number, expected, Quote(line)),
                         "--trace");
}

bool IsLength(std::int64_t tokens) { return tokens >= 0 && tokens <= kMaxTraceTokens; }

// Nullopt: not a line of the Azure trace.
std::optional<Arrival> AzureArrival(std::string_view line) {
  const std::vector<std::string_view> fields = SplitFields(line);
  if (fields.size() != 3) return std::nullopt;
  const std::optional<TimeNs> at = ParseTimestamp(fields[0]);
  const auto input = ParseNumber<std::int64_t>(fields[1]), output = ParseNumber<std::int64_t>(fields[2]);
  if (!at || !input || !output || !IsLength(*input) || !IsLength(*output)) return std::nullopt;
  return Arrival{.at = *at,
                 .input_tokens = std::max<std::int64_t>(*input, 1),
                 .output_tokens = std::max<std::int64_t>(*output, 1)};
}

// Reads the block ids of a prompt. False: they are not one id for each block of `arrival.input_tokens`.
bool ReadBlocks(const nlohmann::json& ids, Arrival& arrival) {
  const std::int64_t blocks = (arrival.input_tokens + kTraceBlockTokens - 1) / kTraceBlockTokens;
  if (!ids.is_array() || static_cast<std::int64_t>(ids.size()) != blocks) return false;
  for (const nlohmann::json& id : ids) {
    const auto block = IntegerIn(id, 0, std::numeric_limits<std::int32_t>::max());
    if (!block) return false;
    arrival.blocks.push_back(static_cast<std::int32_t>(*block));
  }
  return true;
}

// Nullopt: a value has another type or is out of range. Throws if a field is missing.
std::optional<Arrival> MooncakeArrival(const nlohmann::json& json) {
  const auto ms = FiniteNumber(json.at("timestamp"));
  const auto input = IntegerIn(json.at("input_length"), 1, kMaxTraceTokens),
             output = IntegerIn(json.at("output_length"), 0, kMaxTraceTokens);
  if (!ms || !input || !output || *ms < 0 || *ms > kMaxTraceSeconds * 1e3) return std::nullopt;
  Arrival arrival{.at = ToNs(*ms / 1e3), .input_tokens = *input, .output_tokens = std::max<std::int64_t>(*output, 1)};
  const auto ids = json.find("hash_ids");
  if (ids != json.end() && !ReadBlocks(*ids, arrival)) return std::nullopt;
  return arrival;
}

}  // namespace

Result<Trace> FromTheFirst(Trace trace, const std::string& name) {
  if (trace.arrivals.empty()) {
    return InvalidArgument(fmt::format("{}: expected a trace with requests, found none", name), "--trace");
  }
  std::stable_sort(trace.arrivals.begin(), trace.arrivals.end(),
                   [](const Arrival& a, const Arrival& b) { return a.at < b.at; });
  const TimeNs origin = trace.arrivals.front().at;
  for (Arrival& arrival : trace.arrivals) arrival.at -= origin;
  return trace;
}

Trace PoissonTrace(double rate, const TraceLimits& limits, std::uint64_t seed) {
  Prng prng(seed);
  Trace trace;
  double at = 0;
  while (limits.requests <= 0 || std::ssize(trace.arrivals) < limits.requests) {
    at += DrawExponential(prng, 1 / rate);
    if ((limits.duration_s > 0 && at >= limits.duration_s) || trace.arrivals.size() >= kMaxTraceArrivals) break;
    trace.arrivals.push_back({.at = ToNs(at)});
  }
  return trace;
}

Result<Trace> ParseAzureTrace(std::string_view text, const std::string& name) {
  Trace trace;
  RETURN_IF_ERROR(ForEachLine(text, [&](std::string_view line, std::int64_t number) -> Status {
    const bool header = number == 1 && !ParseTimestamp(SplitFields(line).front());
    if (header) return Ok{};
    auto arrival = AzureArrival(line);
    if (!arrival) return BadLine(name, number, "TIMESTAMP,ContextTokens,GeneratedTokens", line);
    trace.arrivals.push_back(std::move(*arrival));
    return Ok{};
  }));
  return FromTheFirst(std::move(trace), name);
}

Result<Trace> ParseMooncakeTrace(std::string_view text, const std::string& name) {
  Trace trace{.block_tokens = kTraceBlockTokens};
  RETURN_IF_ERROR(ForEachLine(text, [&](std::string_view line, std::int64_t number) -> Status {
    if (const auto problem = JsonTextProblem(line)) return BadLine(name, number, "JSON without " + *problem, line);
    try {
      auto arrival = MooncakeArrival(nlohmann::json::parse(line));
      if (!arrival) {
        return BadLine(name, number,
                       "a time of 0 or more, lengths up to 16777216 (input: at least 1) and, if hash_ids is given, one "
                       "id for every 512 input tokens",
                       line);
      }
      trace.arrivals.push_back(std::move(*arrival));
    } catch (const nlohmann::json::exception&) {
      return BadLine(name, number, "an object with the numbers timestamp, input_length and output_length", line);
    }
    return Ok{};
  }));
  return FromTheFirst(std::move(trace), name);
}

Result<Trace> ReadTrace(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  return path.ends_with(".jsonl") ? ParseMooncakeTrace(text, path) : ParseAzureTrace(text, path);
}

void ScaleTrace(Trace& trace, double time_scale, double length_scale, const TraceLimits& limits) {
  const auto scaled = [&](std::int64_t tokens) {
    return tokens == 0 ? 0 : std::max<std::int64_t>(1, std::llround(static_cast<double>(tokens) * length_scale));
  };
  for (Arrival& arrival : trace.arrivals) {
    arrival.at = static_cast<TimeNs>(std::llround(static_cast<double>(arrival.at) * time_scale));
    arrival.input_tokens = scaled(arrival.input_tokens);
    arrival.output_tokens = scaled(arrival.output_tokens);
  }
  trace.block_tokens = scaled(trace.block_tokens);
  if (limits.duration_s > 0) {
    std::erase_if(trace.arrivals, [&](const Arrival& arrival) { return arrival.at >= ToNs(limits.duration_s); });
  }
  if (limits.requests > 0 && std::ssize(trace.arrivals) > limits.requests) {
    trace.arrivals.resize(static_cast<std::size_t>(limits.requests));
  }
}

}  // namespace loramux
