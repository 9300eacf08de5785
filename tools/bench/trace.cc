#include "tools/bench/trace.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "tools/bench/sampling.h"
#include "tools/bench/text_file.h"

namespace loramux::load {
namespace {

constexpr std::size_t kMaxArrivals = 20'000'000;
constexpr std::int64_t kMaxTokens = 100'000'000;

TimeNs ToNs(double seconds) { return static_cast<TimeNs>(std::llround(seconds * 1e9)); }

template <typename T>
std::optional<T> Parse(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string_view> Split(std::string_view line, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0;;) {
    const auto end = line.find(separator, at);
    parts.push_back(line.substr(at, end == std::string_view::npos ? end : end - at));
    if (end == std::string_view::npos) return parts;
    at = end + 1;
  }
}

// Calls visit(line, number) for each non-empty line, without its line break. Stops at the first error and returns it.
template <typename Visit>
Status ForEachLine(std::string_view text, const Visit& visit) {
  std::int64_t number = 0;
  while (!text.empty()) {
    const auto end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++number;
    if (!line.empty()) RETURN_IF_ERROR(visit(line, number));
  }
  return Ok{};
}

// Returns the days from 1970-01-01 to a civil date (Howard Hinnant's algorithm).
std::int64_t DaysFromCivil(std::int64_t year, std::int64_t month, std::int64_t day) {
  year -= month <= 2;
  const std::int64_t era = (year >= 0 ? year : year - 399) / 400, of_era = year - era * 400;
  const std::int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

// Parses "2023-11-16 18:15:46.6805900" as nanoseconds since 1970; nullopt if it has another form.
std::optional<TimeNs> ParseTimestamp(std::string_view text) {
  if (text.size() < 19 || text[4] != '-' || text[7] != '-' || text[13] != ':' || text[16] != ':') return std::nullopt;
  const auto year = Parse<int>(text.substr(0, 4)), month = Parse<int>(text.substr(5, 2)),
             day = Parse<int>(text.substr(8, 2));
  const auto hour = Parse<int>(text.substr(11, 2)), minute = Parse<int>(text.substr(14, 2));
  const auto second = Parse<double>(text.substr(17));
  if (!year || !month || !day || !hour || !minute || !second) return std::nullopt;
  if (*year < 1970 || *month < 1 || *month > 12 || *day < 1 || *day > 31 || *hour < 0 || *hour > 23 || *minute < 0 ||
      *minute > 59 || !(*second >= 0 && *second < 61)) {
    return std::nullopt;
  }
  const std::int64_t minutes = (DaysFromCivil(*year, *month, *day) * 24 + *hour) * 60 + *minute;
  return minutes * 60 * kNsPerSecond + ToNs(*second);
}

// Sorts the trace and moves its first arrival to time 0.
Result<Trace> Finished(Trace trace, const std::string& name) {
  if (trace.arrivals.empty()) return InvalidArgument(fmt::format("{}: the trace has no requests", name));
  std::stable_sort(trace.arrivals.begin(), trace.arrivals.end(),
                   [](const Arrival& a, const Arrival& b) { return a.at < b.at; });
  const TimeNs origin = trace.arrivals.front().at;
  for (Arrival& arrival : trace.arrivals) arrival.at -= origin;
  return trace;
}

Error BadLine(const std::string& name, std::int64_t number, std::string_view expected, std::string_view line) {
  return InvalidArgument(
      fmt::format("{}, line {}: expected {}, found '{}'", name, number, expected, line.substr(0, 80)));
}

std::vector<Arrival> DrawClient(const std::vector<ClientWindow>& windows, int client, double factor,
                                const ClientTraceOptions& options) {
  Prng prng(SplitMix64(options.seed) ^ SplitMix64(static_cast<std::uint64_t>(client) + 1));
  std::vector<Arrival> arrivals;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const ClientWindow& window = windows[i];
    const double rate = window.rate * factor;
    const double end_s = i + 1 < windows.size() ? windows[i + 1].start_s : window.start_s + 600;
    const double until =
        std::min(end_s - options.start_s, options.limits.duration_s > 0 ? options.limits.duration_s : 1e18);
    if (rate <= 0 || end_s <= options.start_s) continue;
    // A renewal process is stationary only if it starts at a random moment of an interval. Without that, all clients
    // would send together at the start of their windows.
    double at = std::max(window.start_s - options.start_s, 0.0) + prng.NextDouble() / rate;
    while (at < until) {
      arrivals.push_back({.at = ToNs(at), .client = client});
      if (options.limits.requests > 0 && std::ssize(arrivals) >= options.limits.requests) return arrivals;
      if (arrivals.size() >= kMaxArrivals) return arrivals;
      at += window.weibull ? DrawWeibull(prng, window.shape, 1 / rate) : DrawGamma(prng, window.shape, 1 / rate);
    }
  }
  return arrivals;
}

// Returns the rate of the window that contains `at_s`.
double RateAt(const std::vector<ClientWindow>& windows, double at_s) {
  double rate = 0;
  for (const ClientWindow& window : windows) {
    if (window.start_s <= at_s) rate = window.rate;
  }
  return rate;
}

double TotalRate(const std::vector<ClientWindow>& windows) {
  double sum = 0;
  for (const ClientWindow& window : windows) sum += window.rate;
  return sum;
}

Result<Trace> LoadClientTrace(const std::string& folder, const ClientTraceOptions& options) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".csv") files.push_back(entry.path().string());
  }
  if (error) return IoError(fmt::format("cannot list {}: {}", folder, error.message()));
  std::sort(files.begin(), files.end());
  std::vector<std::vector<ClientWindow>> clients;
  for (const std::string& file : files) {
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file));
    ASSIGN_OR_RETURN(auto windows, ParseClientWindows(text, file));
    clients.push_back(std::move(windows));
  }
  return DrawClientTrace(std::move(clients), options);
}

// Drops arrivals before start_s. Stretches time to a mean of `rate`, if that is given.
Result<Trace> CutAndStretch(Trace trace, const std::string& path, const ClientTraceOptions& options) {
  std::erase_if(trace.arrivals, [&](const Arrival& arrival) { return arrival.at < ToNs(options.start_s); });
  ASSIGN_OR_RETURN(Trace cut, Finished(std::move(trace), path));
  const double seconds = static_cast<double>(cut.arrivals.back().at) / 1e9;
  if (options.rate > 0 && seconds > 0) {
    ScaleTrace(cut, static_cast<double>(cut.arrivals.size()) / seconds / options.rate, 1, {});
  }
  return cut;
}

}  // namespace

Trace PoissonTrace(double rate, const TraceLimits& limits, std::uint64_t seed) {
  Prng prng(seed);
  Trace trace;
  double at = 0;
  while (limits.requests <= 0 || std::ssize(trace.arrivals) < limits.requests) {
    at += DrawExponential(prng, 1 / rate);
    if ((limits.duration_s > 0 && at >= limits.duration_s) || trace.arrivals.size() >= kMaxArrivals) break;
    trace.arrivals.push_back({.at = ToNs(at)});
  }
  return trace;
}

Result<Trace> ParseAzureTrace(std::string_view text, const std::string& name) {
  Trace trace;
  const Status status = ForEachLine(text, [&](std::string_view line, std::int64_t number) -> Status {
    if (number == 1 && line.starts_with("TIMESTAMP")) return Ok{};
    const auto fields = Split(line, ',');
    std::optional<TimeNs> at;
    std::optional<std::int64_t> input, output;
    if (fields.size() == 3) {
      at = ParseTimestamp(fields[0]);
      input = Parse<std::int64_t>(fields[1]);
      output = Parse<std::int64_t>(fields[2]);
    }
    if (!at || !input || !output || *input < 0 || *output < 0 || *input > kMaxTokens || *output > kMaxTokens) {
      return BadLine(name, number, "TIMESTAMP,ContextTokens,GeneratedTokens", line);
    }
    trace.arrivals.push_back({.at = *at,
                              .input_tokens = std::max<std::int64_t>(*input, 1),
                              .output_tokens = std::max<std::int64_t>(*output, 1)});
    return Ok{};
  });
  RETURN_IF_ERROR(status);
  return Finished(std::move(trace), name);
}

Result<Trace> ParseMooncakeTrace(std::string_view text, const std::string& name) {
  Trace trace;
  trace.block_tokens = 512;
  const Status status = ForEachLine(text, [&](std::string_view line, std::int64_t number) -> Status {
    if (const auto problem = JsonTextProblem(line)) return BadLine(name, number, "JSON without " + *problem, line);
    try {
      const auto json = nlohmann::json::parse(line);
      Arrival arrival{.at = ToNs(json.at("timestamp").get<double>() / 1e3),
                      .input_tokens = json.at("input_length").get<std::int64_t>(),
                      .output_tokens = json.at("output_length").get<std::int64_t>()};
      if (json.contains("hash_ids")) arrival.blocks = json["hash_ids"].get<std::vector<std::int64_t>>();
      if (arrival.at < 0 || arrival.input_tokens < 1 || arrival.output_tokens < 0 ||
          arrival.input_tokens > kMaxTokens || arrival.output_tokens > kMaxTokens) {
        return BadLine(name, number, "lengths from 1 to 100000000 and a time of 0 or more", line);
      }
      arrival.output_tokens = std::max<std::int64_t>(arrival.output_tokens, 1);
      trace.arrivals.push_back(std::move(arrival));
    } catch (const nlohmann::json::exception&) {
      return BadLine(name, number, "an object with the numbers timestamp, input_length and output_length", line);
    }
    return Ok{};
  });
  RETURN_IF_ERROR(status);
  return Finished(std::move(trace), name);
}

Result<std::vector<ClientWindow>> ParseClientWindows(std::string_view text, const std::string& name) {
  std::vector<ClientWindow> windows;
  const Status status = ForEachLine(text, [&](std::string_view line, std::int64_t number) -> Status {
    const auto fields = Split(line, ',');
    const auto start = fields.size() == 6 ? Parse<double>(fields[0]) : std::nullopt;
    const auto rate = fields.size() == 6 ? Parse<double>(fields[1]) : std::nullopt;
    const bool in_order = start && std::isfinite(*start) && (windows.empty() || *start > windows.back().start_s);
    if (!in_order || !rate || !(*rate >= 0 && *rate < 1e6)) {
      return BadLine(name, number, "start (ascending), rate, cv, pattern, arg1, arg2", line);
    }
    ClientWindow window{.start_s = *start, .rate = *rate};
    if (!fields[3].empty()) {
      const auto shape = Parse<double>(fields[4]);
      window.weibull = fields[3] == "Weibull";
      if ((!window.weibull && fields[3] != "Gamma") || !shape || !(*shape >= 0.006 && *shape < 1e6)) {
        return BadLine(name, number, "Gamma or Weibull with a shape of at least 0.006", line);
      }
      window.shape = *shape;
    }
    windows.push_back(window);
    return Ok{};
  });
  RETURN_IF_ERROR(status);
  if (windows.empty()) return InvalidArgument(fmt::format("{}: the trace of this client is empty", name));
  return windows;
}

Result<Trace> DrawClientTrace(std::vector<std::vector<ClientWindow>> clients, const ClientTraceOptions& options) {
  // The busiest client first, because client 0 is the first adapter of a run.
  std::stable_sort(clients.begin(), clients.end(),
                   [](const auto& a, const auto& b) { return TotalRate(a) > TotalRate(b); });
  double factor = 1;
  if (options.rate > 0) {
    double now = 0;
    for (const auto& client : clients) now += RateAt(client, options.start_s);
    if (now <= 0) {
      return InvalidArgument(fmt::format(
          "--rate: no client of the trace is active at {} s; choose another --trace-start", options.start_s));
    }
    factor = options.rate / now;
  }
  Trace trace;
  trace.clients = static_cast<int>(clients.size());
  for (int client = 0; client < trace.clients; ++client) {
    auto arrivals = DrawClient(clients[static_cast<std::size_t>(client)], client, factor, options);
    trace.arrivals.insert(trace.arrivals.end(), arrivals.begin(), arrivals.end());
  }
  ASSIGN_OR_RETURN(Trace finished, Finished(std::move(trace), "the clients' trace"));
  ScaleTrace(finished, 1, 1, options.limits);
  return finished;
}

Result<Trace> LoadTrace(const std::string& path, const ClientTraceOptions& options) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return LoadClientTrace(path, options);
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  auto trace = path.ends_with(".jsonl") ? ParseMooncakeTrace(text, path) : ParseAzureTrace(text, path);
  RETURN_IF_ERROR(trace);
  return CutAndStretch(std::move(trace).value(), path, options);
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

}  // namespace loramux::load
