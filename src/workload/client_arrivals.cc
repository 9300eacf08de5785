#include "workload/client_arrivals.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "base/message.h"
#include "base/text_file.h"
#include "workload/distributions.h"
#include "workload/fields.h"

namespace loramux {
namespace {

constexpr double kMaxClientRate = 1e6;    // per second
constexpr double kLeastGapShape = 0.006;  // the mean of a Weibull with a lower shape is not a number
constexpr double kMostGapShape = 1e6;

// Nullopt: not a window that follows one that begins at `previous`.
std::optional<ClientWindow> ParseWindow(std::string_view line, std::optional<double> previous) {
  const std::vector<std::string_view> fields = SplitFields(line);
  if (fields.size() != 6) return std::nullopt;
  const auto start = ParseNumber<double>(fields[0]), rate = ParseNumber<double>(fields[1]),
             cv = ParseNumber<double>(fields[2]), shape = ParseNumber<double>(fields[4]),
             scale = ParseNumber<double>(fields[5]);
  if (!start || !rate || !cv || !shape || !scale) return std::nullopt;
  const bool numbers = std::abs(*start) <= kMaxTraceSeconds && *rate >= 0 && *rate < kMaxClientRate &&
                       std::isfinite(*cv) && std::isfinite(*shape) && std::isfinite(*scale);
  if (!numbers || (previous && *start <= *previous)) return std::nullopt;
  ClientWindow window{.start_seconds = *start, .rate = *rate};
  if (fields[3].empty()) return window;
  if (fields[3] != "Gamma" && fields[3] != "Weibull") return std::nullopt;
  if (!(*shape >= kLeastGapShape && *shape < kMostGapShape)) return std::nullopt;
  window.gaps = fields[3] == "Gamma" ? ClientWindow::Gaps::kGamma : ClientWindow::Gaps::kWeibull;
  window.shape = *shape;
  window.scale = *scale;
  return window;
}

// Returns the rate of the window that contains `at_s`.
double RateAt(const std::vector<ClientWindow>& windows, double at_s) {
  double rate = 0;
  for (const ClientWindow& window : windows) {
    if (window.start_seconds <= at_s) rate = window.rate;
  }
  return rate;
}

double TotalRate(const std::vector<ClientWindow>& windows) {
  double sum = 0;
  for (const ClientWindow& window : windows) sum += window.rate;
  return sum;
}

void BusiestFirst(std::vector<std::vector<ClientWindow>>& clients) {
  std::stable_sort(clients.begin(), clients.end(),
                   [](const auto& a, const auto& b) { return TotalRate(a) > TotalRate(b); });
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
  if (window.gaps == ClientWindow::Gaps::kNone || window.rate <= 0 || window.scale <= 0) return;
  const bool gamma = window.gaps == ClientWindow::Gaps::kGamma;
  const double begin = window.start_seconds - start_seconds;
  double at = begin;
  for (std::size_t i = 0; i < count; ++i) {
    const double gap = gamma ? DrawGamma(prng, window.shape, Scale{window.scale})
                             : DrawWeibull(prng, window.shape, Scale{window.scale});
    at += gap * stretch;
    if (!(at < begin + kClientWindowSeconds)) return;
    arrivals.push_back({static_cast<TimeNs>(at * static_cast<double>(kNsPerSecond)), client});
  }
}

double StationaryGap(const ClientWindow& window, double rate, Prng& prng) {
  const Mean mean{1 / rate};
  return window.gaps == ClientWindow::Gaps::kWeibull ? DrawWeibull(prng, window.shape, mean)
                                                     : DrawGamma(prng, window.shape, mean);
}

std::vector<Arrival> DrawClient(const std::vector<ClientWindow>& windows, int client, double factor,
                                const TraceOptions& options) {
  Prng prng(SplitMix64(options.seed) ^ SplitMix64(static_cast<std::uint64_t>(client) + 1));
  std::vector<Arrival> arrivals;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const ClientWindow& window = windows[i];
    const double rate = window.rate * factor;
    const double end_s =
        i + 1 < windows.size() ? windows[i + 1].start_seconds : window.start_seconds + kClientWindowSeconds;
    const double until = std::min(end_s - options.start_s, options.duration_s > 0 ? options.duration_s : 1e18);
    if (rate <= 0 || end_s <= options.start_s) continue;
    // A renewal process is stationary only if it starts at a random moment of an interval. Without that, all clients
    // would send together at the start of their windows.
    double at = std::max(window.start_seconds - options.start_s, 0.0) + prng.NextDouble() / rate;
    while (at < until) {
      arrivals.push_back({.at = ToNs(at), .client = client});
      if (options.requests > 0 && std::ssize(arrivals) >= options.requests) return arrivals;
      if (arrivals.size() >= kMaxTraceArrivals) return arrivals;
      at += StationaryGap(window, rate, prng);
    }
  }
  return arrivals;
}

// Drops arrivals before start_s. Stretches time to a mean of `rate`, if that is given.
Result<Trace> CutAndStretch(Trace trace, const std::string& path, const TraceOptions& options) {
  std::erase_if(trace.arrivals, [&](const Arrival& arrival) { return arrival.at < ToNs(options.start_s); });
  ASSIGN_OR_RETURN(Trace cut, FromTheFirst(std::move(trace), path));
  const double seconds = static_cast<double>(cut.arrivals.back().at) / 1e9;
  if (options.rate > 0 && seconds > 0) {
    ScaleTrace(cut, static_cast<double>(cut.arrivals.size()) / seconds / options.rate, 1, {});
  }
  return cut;
}

}  // namespace

Result<std::vector<ClientWindow>> ParseClientWindows(std::string_view text, const std::string& name) {
  std::vector<ClientWindow> windows;
  RETURN_IF_ERROR(ForEachLine(text, [&](std::string_view line, std::int64_t number) -> Status {
    const auto window = ParseWindow(line, windows.empty() ? std::nullopt : std::optional(windows.back().start_seconds));
    if (window) {
      windows.push_back(*window);
      return Ok{};
    }
    return InvalidArgument(fmt::format("{}, line {}: expected start (ascending), rate, cv, pattern (Gamma, Weibull or "
                                       "empty), shape (0.006 or more), scale; found {}",
                                       name, number, Quote(line)),
                           "--clients");
  }));
  if (windows.empty()) return InvalidArgument(fmt::format("{}: the trace of this client is empty", name), "--clients");
  return windows;
}

Result<std::vector<std::vector<ClientWindow>>> ReadClients(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".csv") files.push_back(entry.path().string());
  }
  if (error) return IoError(fmt::format("cannot list {}: {}", folder, error.message()), "--clients");
  std::sort(files.begin(), files.end());
  std::vector<std::vector<ClientWindow>> clients;
  for (const std::string& file : files) {
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file));
    ASSIGN_OR_RETURN(auto windows, ParseClientWindows(text, file));
    clients.push_back(std::move(windows));
  }
  if (clients.empty()) {
    return InvalidArgument(fmt::format("{}: expected one *.csv per client, found none", folder), "--clients");
  }
  BusiestFirst(clients);
  return clients;
}

Result<Trace> DrawClientTrace(std::vector<std::vector<ClientWindow>> clients, const TraceOptions& options) {
  BusiestFirst(clients);  // because client 0 is the first adapter of a run
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
  ASSIGN_OR_RETURN(Trace finished, FromTheFirst(std::move(trace), "the clients' trace"));
  ScaleTrace(finished, 1, 1, options);
  return finished;
}

Result<Trace> LoadTrace(const std::string& path, const TraceOptions& options) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    ASSIGN_OR_RETURN(auto clients, ReadClients(path));
    return DrawClientTrace(std::move(clients), options);
  }
  ASSIGN_OR_RETURN(Trace trace, ReadTrace(path));
  return CutAndStretch(std::move(trace), path, options);
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
