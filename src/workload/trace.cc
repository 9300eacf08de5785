#include "workload/trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/message.h"
#include "base/prng.h"
#include "base/text_file.h"
#include "formats/json_fields.h"
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

// Takes "Z", "+05:30" or "-05:30" off the end of a time of a day; returns the offset in minutes, or nullopt if it is
// none.
std::optional<std::int64_t> TakeOffset(std::string_view& text) {
  if (text.ends_with('Z')) {
    text.remove_suffix(1);
    return 0;
  }
  if (text.size() < 25) return 0;
  const std::string_view end = text.substr(text.size() - 6);
  if ((end[0] != '+' && end[0] != '-') || end[3] != ':') return 0;
  const auto hours = ParseNumber<int>(end.substr(1, 2)), minutes = ParseNumber<int>(end.substr(4));
  if (!hours || !minutes || *hours < 0 || *hours > 14 || *minutes < 0 || *minutes > 59) return std::nullopt;
  text.remove_suffix(6);
  return (end[0] == '-' ? -1 : 1) * (*hours * 60 + *minutes);
}

// Parses "2023-11-16 18:15:46.6805900" or seconds, as nanoseconds since 1970; nullopt if it has another form.
std::optional<TimeNs> ParseTimestamp(std::string_view text) {
  if (const auto seconds = ParseNumber<double>(text)) {
    return std::abs(*seconds) <= kMaxTraceSeconds ? std::optional(ToNs(*seconds)) : std::nullopt;
  }
  const auto offset = TakeOffset(text);
  if (!offset || text.size() < 19 || text[4] != '-' || text[7] != '-' || text[13] != ':' || text[16] != ':')
    return std::nullopt;
  const auto year = ParseNumber<int>(text.substr(0, 4)), month = ParseNumber<int>(text.substr(5, 2)),
             day = ParseNumber<int>(text.substr(8, 2));
  const auto hour = ParseNumber<int>(text.substr(11, 2)), minute = ParseNumber<int>(text.substr(14, 2));
  const auto second = ParseNumber<double>(text.substr(17));
  if (!year || !month || !day || !hour || !minute || !second) return std::nullopt;
  if (*year < 1970 || *month < 1 || *month > 12 || *day < 1 || *day > 31 || *hour < 0 || *hour > 23 || *minute < 0 ||
      *minute > 59 || !(*second >= 0 && *second < 61)) {
    return std::nullopt;
  }
  const std::int64_t minutes = (DaysFromCivil(*year, *month, *day) * 24 + *hour) * 60 + *minute - *offset;
  if (static_cast<double>(minutes) * 60 > kMaxTraceSeconds) return std::nullopt;
  return minutes * 60 * kNsPerSecond + ToNs(*second);
}

Error BadLine(const std::string& name, std::int64_t number, std::string_view expected, std::string_view line) {
  return InvalidArgument(fmt::format("{}, line {}: expected {}, found {}", name, number, expected, Quote(line)),
                         "--trace");
}

// What a header may call a column, in small letters and digits alone.
constexpr std::array kTimeNames = std::to_array<std::string_view>(
    {"timestamp", "time", "arrival", "arrivaltime", "arrivedat", "start", "starttime", "seconds", "datetime"});
constexpr std::array kPromptNames =
    std::to_array<std::string_view>({"contexttokens", "prompttokens", "inputtokens", "prompt", "input", "promptlength",
                                     "inputlength", "promptlen", "inputlen", "numprompttokens", "numinputtokens"});
constexpr std::array kAnswerNames = std::to_array<std::string_view>(
    {"generatedtokens", "outputtokens", "completiontokens", "answertokens", "responsetokens", "output", "answer",
     "outputlength", "outputlen", "numoutputtokens", "numcompletiontokens"});
constexpr std::array kAdapterNames = std::to_array<std::string_view>(
    {"adapter", "adapterid", "adaptername", "lora", "loraid", "loraadapter", "loraname", "model", "modelname"});
// Azure Functions of 2021.
constexpr std::array kFunctionNames = std::to_array<std::string_view>({"func"});
constexpr std::array kAppNames = std::to_array<std::string_view>({"app"});
constexpr std::array kEndNames = std::to_array<std::string_view>({"endtimestamp"});
constexpr std::array kDurationNames = std::to_array<std::string_view>({"duration"});
constexpr std::size_t kMostAdapters = 1'000'000;
constexpr std::size_t kNoColumn = SIZE_MAX;

// A field without spaces and quotes around it.
std::string_view Bare(std::string_view field) {
  const auto trim = [&] {
    while (!field.empty() && (field.front() == ' ' || field.front() == '\t')) field.remove_prefix(1);
    while (!field.empty() && (field.back() == ' ' || field.back() == '\t')) field.remove_suffix(1);
  };
  trim();
  if (field.size() >= 2 && field.front() == '"' && field.back() == '"') field = field.substr(1, field.size() - 2);
  trim();
  return field;
}

std::vector<std::string_view> BareFields(std::string_view line) {
  std::vector<std::string_view> fields = SplitFields(line);
  for (std::string_view& field : fields) field = Bare(field);
  return fields;
}

// Reads lines of a CSV trace one after the other.
class CsvReader {
 public:
  explicit CsvReader(const std::string& name) : name_(name) {}

  Status Read(std::string_view line, std::int64_t number) {
    const std::vector<std::string_view> fields = BareFields(line);
    if (number == 1 && IsHeader(fields)) return ReadHeader(fields);
    if (fields.size() != labels_.size()) {
      std::string labels;
      for (const std::string& label : labels_) labels += (labels.empty() ? "" : ",") + label;
      return BadLine(name_, number, fmt::format("{} fields ({})", labels_.size(), labels), line);
    }
    if (duration_ != kNoColumn) return ReadInvocation(fields, number);
    const std::optional<TimeNs> at = ParseTimestamp(fields[time_]);
    if (!at) {
      return BadField(number, time_, "a time such as 2026-01-31 18:15:46.68, or seconds of at most 4e9", fields[time_]);
    }
    Arrival arrival{.at = *at};
    ASSIGN_OR_RETURN(arrival.input_tokens, Length(number, prompt_, fields));
    ASSIGN_OR_RETURN(arrival.output_tokens, Length(number, answer_, fields));
    if (adapter_ != kNoColumn) {
      ASSIGN_OR_RETURN(arrival.adapter, Adapter(number, fields[adapter_]));
    }
    trace_.arrivals.push_back(std::move(arrival));
    return Ok{};
  }
  Trace Take() { return std::move(trace_); }

 private:
  // A line of data has numbers.
  static bool IsHeader(const std::vector<std::string_view>& fields) {
    return std::none_of(fields.begin(), fields.end(), [](std::string_view field) {
      return ParseNumber<double>(field).has_value() || ParseTimestamp(field).has_value();
    });
  }

  template <typename Names>
  std::size_t ColumnOf(const Names& names) const {
    for (std::size_t i = 0; i < labels_.size(); ++i) {
      std::string plain;
      for (const char c : labels_[i]) {
        const bool capital = c >= 'A' && c <= 'Z';
        if (capital || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))
          plain += static_cast<char>(capital ? c - 'A' + 'a' : c);
      }
      if (std::find(names.begin(), names.end(), plain) != names.end()) return i;
    }
    return kNoColumn;
  }

  Status ReadHeader(const std::vector<std::string_view>& fields) {
    std::vector<std::string> plain_labels = std::exchange(labels_, {});
    for (const std::string_view field : fields) labels_.push_back(Printable(std::string(field)));
    if (IsOfInvocations()) return Ok{};
    const std::size_t time = ColumnOf(kTimeNames), prompt = ColumnOf(kPromptNames), answer = ColumnOf(kAnswerNames);
    if (time == kNoColumn && prompt == kNoColumn && answer == kNoColumn) {
      labels_ = std::move(plain_labels);  // a header in words of its own
      return Ok{};
    }
    for (const auto& [column, what] :
         {std::pair(time, "the time (timestamp, time, arrival, ...)"),
          std::pair(prompt, "the tokens of the prompt (prompt_tokens, input_tokens, ContextTokens, ...)"),
          std::pair(answer, "the tokens of the answer (output_tokens, completion_tokens, GeneratedTokens, ...)")}) {
      if (column != kNoColumn) continue;
      std::string found;
      for (const std::string& label : labels_) found += (found.empty() ? "" : ",") + label;
      return BadLine(name_, 1, fmt::format("a column for {}", what), found);
    }
    time_ = time;
    prompt_ = prompt;
    answer_ = answer;
    adapter_ = ColumnOf(kAdapterNames);
    trace_.names_adapters = adapter_ != kNoColumn;
    return Ok{};
  }

  // Whether the header is that of Azure Functions; notes its columns.
  bool IsOfInvocations() {
    const std::size_t end = ColumnOf(kEndNames), duration = ColumnOf(kDurationNames), app = ColumnOf(kAppNames),
                      function = ColumnOf(kFunctionNames);
    if (end == kNoColumn || duration == kNoColumn || app == kNoColumn || function == kNoColumn) return false;
    time_ = end;
    duration_ = duration;
    app_ = app;
    adapter_ = function;
    trace_.names_adapters = true;
    trace_.has_lengths = false;
    return true;
  }

  // A function is unique only within its application.
  Status ReadInvocation(const std::vector<std::string_view>& fields, std::int64_t number) {
    const auto seconds = [&](std::size_t column) -> Result<double> {
      const auto value = ParseNumber<double>(fields[column]);
      if (value && *value >= 0 && *value <= kMaxTraceSeconds) return *value;
      return BadField(number, column, "seconds from 0 to 4e9", fields[column]);
    };
    ASSIGN_OR_RETURN(const double end, seconds(time_));
    ASSIGN_OR_RETURN(const double duration, seconds(duration_));
    for (const std::size_t column : {app_, adapter_}) {
      if (fields[column].empty()) return BadField(number, column, "a name", fields[column]);
    }
    Arrival arrival{.at = ToNs(end - duration)};
    ASSIGN_OR_RETURN(arrival.adapter, Adapter(number, fmt::format("{}/{}", fields[app_], fields[adapter_])));
    trace_.arrivals.push_back(std::move(arrival));
    return Ok{};
  }

  Error BadField(std::int64_t number, std::size_t column, std::string_view expected, std::string_view found) const {
    return InvalidArgument(fmt::format("{}, line {}, column {} ({}): expected {}, found {}", name_, number, column + 1,
                                       labels_[column], expected, Quote(found)),
                           "--trace");
  }

  Result<std::int64_t> Length(std::int64_t number, std::size_t column, const std::vector<std::string_view>& fields) {
    const auto tokens = ParseNumber<std::int64_t>(fields[column]);
    if (tokens && *tokens >= 0 && *tokens <= kMaxTraceTokens) return std::max<std::int64_t>(*tokens, 1);
    return BadField(number, column, fmt::format("a whole number of tokens from 0 to {}", kMaxTraceTokens),
                    fields[column]);
  }

  Result<std::int32_t> Adapter(std::int64_t number, std::string_view name) {
    if (name.empty() || name == "base" || name == "-") return -1;
    const auto next = static_cast<std::int32_t>(trace_.adapters.size());
    const auto [found, fresh] = adapters_.try_emplace(std::string(name), next);
    if (fresh && trace_.adapters.size() == kMostAdapters)
      return BadField(number, adapter_, fmt::format("at most {} names of adapters", kMostAdapters), name);
    if (fresh) trace_.adapters.emplace_back(name);
    return found->second;
  }

  const std::string& name_;
  std::vector<std::string> labels_ = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"};
  std::size_t time_ = 0, prompt_ = 1, answer_ = 2, adapter_ = kNoColumn;
  std::size_t app_ = kNoColumn, duration_ = kNoColumn;  // columns of invocations
  std::map<std::string, std::int32_t, std::less<>> adapters_;
  Trace trace_;
};

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

Trace PoissonTrace(const TraceOptions& options) {
  Prng prng(options.seed);
  Trace trace;
  double at = 0;
  while (options.requests <= 0 || std::ssize(trace.arrivals) < options.requests) {
    at += DrawExponential(prng, 1 / options.rate);
    if ((options.duration_s > 0 && at >= options.duration_s) || trace.arrivals.size() >= kMaxTraceArrivals) break;
    trace.arrivals.push_back({.at = ToNs(at)});
  }
  return trace;
}

Result<Trace> ParseCsvTrace(std::string_view text, const std::string& name) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // as spreadsheets write it
  CsvReader reader(name);
  RETURN_IF_ERROR(
      ForEachLine(text, [&](std::string_view line, std::int64_t number) { return reader.Read(line, number); }));
  return FromTheFirst(reader.Take(), name);
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
  return path.ends_with(".jsonl") ? ParseMooncakeTrace(text, path) : ParseCsvTrace(text, path);
}

void ScaleTrace(Trace& trace, double time_scale, double length_scale, const TraceOptions& options) {
  const auto scaled = [&](std::int64_t tokens) {
    return tokens == 0 ? 0 : std::max<std::int64_t>(1, std::llround(static_cast<double>(tokens) * length_scale));
  };
  for (Arrival& arrival : trace.arrivals) {
    arrival.at = static_cast<TimeNs>(std::llround(static_cast<double>(arrival.at) * time_scale));
    arrival.input_tokens = scaled(arrival.input_tokens);
    arrival.output_tokens = scaled(arrival.output_tokens);
  }
  trace.block_tokens = scaled(trace.block_tokens);
  if (options.duration_s > 0) {
    std::erase_if(trace.arrivals, [&](const Arrival& arrival) { return arrival.at >= ToNs(options.duration_s); });
  }
  if (options.requests > 0 && std::ssize(trace.arrivals) > options.requests) {
    trace.arrivals.resize(static_cast<std::size_t>(options.requests));
  }
}

}  // namespace loramux
