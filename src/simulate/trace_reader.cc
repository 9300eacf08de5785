#include "simulate/trace_reader.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <numeric>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "formats/json_fields.h"
#include "formats/message.h"
#include "simulate/distributions.h"

namespace loramux {
namespace {

constexpr std::int32_t kMaxTokens = 1 << 24;  // of one request; larger values are rejected
constexpr double kMaxSeconds = 4e9;           // since 1970, or since the recording's begin; differences fit TimeNs
constexpr double kMaxClientRate = 1e6;        // per second

Error BadLine(const std::filesystem::path& path, std::size_t line, const std::string& expected,
              const std::string& found) {
  return InvalidArgument(
      path.string() + ":" + std::to_string(line) + ": expected " + expected + ", found " + Quote(found), "--trace");
}

std::vector<std::string> Split(const std::string& line) {
  std::vector<std::string> fields(1);
  for (const char c : line) {
    if (c == '\r') continue;
    if (c == ',')
      fields.emplace_back();
    else
      fields.back() += c;
  }
  return fields;
}

template <typename Number>
bool ParseNumber(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// Parses "2023-11-16 18:15:46.6805900" (to seconds since 1970) or a plain number of seconds.
bool ParseTime(const std::string& text, double& seconds) {
  if (ParseNumber(text, seconds)) return std::abs(seconds) <= kMaxSeconds;
  int year = 0, hour = 0, minute = 0, length = 0;
  unsigned month = 0, day = 0;
  if (std::sscanf(text.c_str(), "%d-%u-%u %d:%d:%n", &year, &month, &day, &hour, &minute, &length) != 5 || length == 0)
    return false;
  double rest = 0;
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(month), std::chrono::day(day)};
  const bool good = date.ok() && year >= 1900 && year <= 2090 && hour >= 0 && hour < 24 && minute >= 0 && minute < 60;
  if (!good || !ParseNumber(text.substr(static_cast<std::size_t>(length)), rest) || !(rest >= 0 && rest < 61))
    return false;
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  seconds = static_cast<double>(days) * 86400 + hour * 3600 + minute * 60 + rest;
  return true;
}

bool IsLength(std::int64_t tokens) { return tokens >= 0 && tokens <= kMaxTokens; }

Result<std::vector<TraceRequest>> ReadAzure(const std::filesystem::path& path, std::ifstream& file) {
  std::vector<TraceRequest> requests;
  std::string line;
  double first = 0;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    if (number == 1 || line.empty() || line == "\r") continue;  // the header
    const std::vector<std::string> fields = Split(line);
    double seconds = 0;
    std::int64_t input = 0, output = 0;
    const bool good = fields.size() == 3 && ParseTime(fields[0], seconds) && ParseNumber(fields[1], input) &&
                      ParseNumber(fields[2], output);
    if (!good || !IsLength(input) || !IsLength(output))
      return BadLine(path, number, "a time, a number of input tokens and a number of output tokens", line);
    if (requests.empty()) first = seconds;
    requests.push_back({.arrival = static_cast<TimeNs>((seconds - first) * static_cast<double>(kNsPerSecond)),
                        .input_tokens = std::max(1, static_cast<std::int32_t>(input)),
                        .output_tokens = std::max(1, static_cast<std::int32_t>(output))});
  }
  return requests;
}

// Nullopt: a value has another type or is out of range. Throws if a field is missing.
std::optional<TraceRequest> MooncakeRequest(const nlohmann::json& json) {
  const auto input = IntegerIn(json.at("input_length"), 0, kMaxTokens),
             output = IntegerIn(json.at("output_length"), 0, kMaxTokens);
  const auto ms = FiniteNumber(json.at("timestamp"));
  const nlohmann::json& ids = json.at("hash_ids");
  const bool good = input && output && ms && *ms >= 0 && *ms <= kMaxSeconds * 1e3 && ids.is_array() &&
                    static_cast<std::int64_t>(ids.size()) == (*input + kTraceBlockTokens - 1) / kTraceBlockTokens;
  if (!good) return std::nullopt;
  TraceRequest request{.arrival = static_cast<TimeNs>(*ms) * kNsPerMs,
                       .input_tokens = std::max(1, static_cast<std::int32_t>(*input)),
                       .output_tokens = std::max(1, static_cast<std::int32_t>(*output))};
  for (const nlohmann::json& id : ids) {
    const auto block = IntegerIn(id, 0, std::numeric_limits<std::int32_t>::max());
    if (!block) return std::nullopt;
    request.blocks.push_back(static_cast<std::int32_t>(*block));
  }
  return request;
}

Result<std::vector<TraceRequest>> ReadMooncake(const std::filesystem::path& path, std::ifstream& file) {
  std::vector<TraceRequest> requests;
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    try {
      const auto json = nlohmann::json::parse(line);
      auto request = MooncakeRequest(json);
      if (!request)
        return BadLine(path, number, "a time, both lengths, and one hash id for every 512 input tokens", line);
      requests.push_back(std::move(*request));
    } catch (const nlohmann::json::exception&) {
      return BadLine(path, number, "an object with timestamp, input_length, output_length and hash_ids", line);
    }
  }
  return requests;
}

// Requests per second of all clients together, in the first hour from window `first` on.
double HourlyRate(const std::vector<std::vector<ClientWindow>>& clients, std::size_t first) {
  double requests = 0;
  const std::size_t end = std::min(first + 6, clients.front().size());
  for (const auto& windows : clients) {
    for (std::size_t i = first; i < end; ++i) requests += windows[i].rate * kClientWindowSeconds;
  }
  return requests / (static_cast<double>(end - first) * kClientWindowSeconds);
}

// Draws at most `count` arrivals.
void DrawWindow(const ClientWindow& window, std::int32_t client, double start_seconds, double stretch,
                std::size_t count, Prng& prng, std::vector<ClientArrival>& arrivals) {
  if (window.gaps == ClientWindow::Gaps::kNone) return;
  const bool gamma = window.gaps == ClientWindow::Gaps::kGamma;
  const double begin = window.start_seconds - start_seconds;
  double at = begin;
  for (std::size_t i = 0; i < count; ++i) {
    const double gap =
        gamma ? DrawGamma(prng, window.shape, window.scale) : DrawWeibull(prng, window.shape, window.scale);
    at += gap * stretch;
    if (!(at < begin + kClientWindowSeconds)) return;
    arrivals.push_back({static_cast<TimeNs>(at * static_cast<double>(kNsPerSecond)), client});
  }
}

Result<std::vector<ClientWindow>> ReadClient(const std::filesystem::path& path) {
  std::vector<ClientWindow> windows;
  std::ifstream file(path);
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    const std::vector<std::string> fields = Split(line);
    ClientWindow window;
    double cv = 0;
    const bool numbers = fields.size() == 6 && ParseNumber(fields[0], window.start_seconds) &&
                         ParseNumber(fields[1], window.rate) && ParseNumber(fields[2], cv) &&
                         ParseNumber(fields[4], window.shape) && ParseNumber(fields[5], window.scale);
    const bool sane = numbers && std::abs(window.start_seconds) <= kMaxSeconds &&
                      std::abs(window.rate) <= kMaxClientRate && std::isfinite(cv) && std::isfinite(window.shape) &&
                      std::isfinite(window.scale);
    const bool known = sane && (fields[3].empty() || fields[3] == "Gamma" || fields[3] == "Weibull");
    if (!known) return BadLine(path, number, "start, rate, cv, pattern (Gamma, Weibull or empty), shape, scale", line);
    const bool active = !fields[3].empty() && window.rate > 0 && window.shape > 0 && window.scale > 0;
    if (active)
      window.gaps = fields[3] == "Gamma" ? ClientWindow::Gaps::kGamma : ClientWindow::Gaps::kWeibull;
    else
      window.rate = 0;
    windows.push_back(window);
  }
  return windows;
}

}  // namespace

Result<std::vector<TraceRequest>> ReadTrace(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) return IoError(path.string() + ": cannot be read", "--trace");
  ASSIGN_OR_RETURN(std::vector<TraceRequest> requests,
                   path.extension() == ".jsonl" ? ReadMooncake(path, file) : ReadAzure(path, file));
  if (requests.empty())
    return InvalidArgument(path.string() + ": expected a trace with requests, found none", "--trace");
  std::stable_sort(requests.begin(), requests.end(),
                   [](const TraceRequest& a, const TraceRequest& b) { return a.arrival < b.arrival; });
  const TimeNs first = requests.front().arrival;
  for (TraceRequest& request : requests) request.arrival -= first;
  return requests;
}

Result<std::vector<std::vector<ClientWindow>>> ReadClients(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("chunk-") && name.ends_with("-trace.csv")) paths.push_back(entry.path());
  }
  if (error) return IoError(directory.string() + ": " + error.message(), "--clients");
  std::sort(paths.begin(), paths.end());
  std::vector<std::vector<ClientWindow>> clients;
  for (const auto& path : paths) {
    ASSIGN_OR_RETURN(std::vector<ClientWindow> windows, ReadClient(path));
    if (!clients.empty() && windows.size() != clients.front().size()) {
      return InvalidArgument(path.string() + ": expected as many windows as in the files of the other clients",
                             "--clients");
    }
    clients.push_back(std::move(windows));
  }
  if (clients.empty() || clients.front().empty())
    return InvalidArgument(directory.string() + ": expected files chunk-*-trace.csv, found none", "--clients");
  const auto load = [](const std::vector<ClientWindow>& windows) {
    return std::accumulate(windows.begin(), windows.end(), 0.0,
                           [](double sum, const ClientWindow& window) { return sum + window.rate; });
  };
  std::stable_sort(clients.begin(), clients.end(), [&](const auto& a, const auto& b) { return load(a) > load(b); });
  return clients;
}

std::vector<ClientArrival> DrawClientArrivals(const std::vector<std::vector<ClientWindow>>& clients,
                                              double start_seconds, double rate, std::size_t count, Prng& prng) {
  const std::size_t windows = clients.front().size();
  if (start_seconds >= clients.front().back().start_seconds + kClientWindowSeconds) return {};
  std::size_t window = 0;
  while (window + 1 < windows && clients.front()[window + 1].start_seconds <= start_seconds) ++window;
  const double start = clients.front()[window].start_seconds, recorded = HourlyRate(clients, window);
  const double stretch = rate > 0 && recorded > 0 ? recorded / rate : 1;
  std::vector<ClientArrival> arrivals;
  for (; window < windows && arrivals.size() < count; ++window) {
    const auto begin = static_cast<std::ptrdiff_t>(arrivals.size());
    for (std::size_t client = 0; client < clients.size(); ++client) {
      DrawWindow(clients[client][window], static_cast<std::int32_t>(client), start, stretch, count, prng, arrivals);
    }
    std::stable_sort(arrivals.begin() + begin, arrivals.end(),
                     [](const ClientArrival& a, const ClientArrival& b) { return a.at < b.at; });
  }
  if (arrivals.size() > count) arrivals.resize(count);
  return arrivals;
}

}  // namespace loramux
