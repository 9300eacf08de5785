#include "tools/top_command.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <fmt/core.h>

#include "base/clock.h"
#include "http/client.h"
#include "tools/command_line/environment.h"
#include "tools/top/frame.h"
#include "tools/top/server_view.h"
#include "tools/top/terminal.h"

namespace loramux {
namespace {

struct TopFlags {
  std::string url = "http://127.0.0.1:8000";
  std::string ca_file;
  bool insecure = false, once = false;
  double interval_seconds = 2;
};

std::string EndText(const ExchangeEnd& end) {
  if (end.kind == ExchangeEnd::Kind::kTimeout) return "no answer within 5 s";
  return end.detail.empty() ? "the answer broke off" : end.detail;
}

// Asks one server for its metrics, again and again.
class MetricsSource {
 public:
  MetricsSource(const TopFlags& flags, Url url)
      : client_(context_.get_executor(),
                {.url = std::move(url),
                 .user_agent = "loramux-top",
                 .timeout = std::chrono::seconds(5),
                 .insecure = flags.insecure,
                 .ca_file = flags.ca_file},
                clock_),
        url_(flags.url) {}

  // Blocks for at most 5 s. Errors say what the server did.
  Result<MetricSet> Read() {
    Result<std::string> body = Unavailable("no answer");
    context_.restart();
    boost::asio::co_spawn(context_, ReadBody(body), [](std::exception_ptr) {});
    context_.run();
    if (!body.ok()) return body.error();
    MetricSet set = MetricSet::Parse(*body);
    if (!set.Of("vllm:num_requests_running").empty()) return set;
    return Unavailable("GET " + url_ +
                       "/metrics: expected the metrics of `loramux serve`, found others; is it another program?");
  }

 private:
  boost::asio::awaitable<void> ReadBody(Result<std::string>& body) {
    constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
    HttpCallRequest request;
    request.path = "/metrics";
    HttpCall call(client_, std::move(request));
    const ExchangeEnd begun = co_await call.Begin();
    if (!begun.ok()) {
      body = Unavailable("GET " + url_ + "/metrics: " + EndText(begun) + ". Is the server running there (--url)?");
      co_return;
    }
    std::string text, piece;
    do {
      const ExchangeEnd read = co_await call.ReadPiece(piece);
      if (!read.ok() || text.size() + piece.size() > kMaxBytes) {
        body = Unavailable("GET " + url_ + "/metrics: " + (read.ok() ? "more than 64 MiB" : EndText(read)));
        co_return;
      }
      text += piece;
    } while (!piece.empty());
    if (call.status() != 200) {
      body = Unavailable(fmt::format("GET {}/metrics: expected status 200, found {}", url_, call.status()));
    } else {
      body = std::move(text);
    }
  }

  const OsClock clock_;
  boost::asio::io_context context_;
  HttpClient client_;
  const std::string url_;
};

// The last two scrapes, and when they were.
struct Scrapes {
  std::optional<MetricSet> now, before;
  TimeNs now_at = 0, before_at = 0;

  void Add(MetricSet set, TimeNs at) {
    before = std::move(now);
    before_at = now_at;
    now = std::move(set);
    now_at = at;
  }
  ServerFigures View() const {
    return ViewServer(*now, before ? &*before : nullptr, static_cast<double>(now_at - before_at) / kNsPerSecond,
                      static_cast<double>(OsClock().UnixSeconds()));
  }
};

FrameOptions OptionsFor(const TopFlags& flags) {
  FrameOptions options{.address = flags.url};
  if (const auto size = TerminalSize()) std::tie(options.columns, options.rows) = *size;
  options.color = isatty(STDOUT_FILENO) == 1 && !EnvironmentValue("NO_COLOR");
  return options;
}

std::chrono::milliseconds Interval(const TopFlags& flags) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(flags.interval_seconds * 1000));
}

// One frame, of the rates over one interval.
Status PrintOnce(const TopFlags& flags, MetricsSource& source) {
  Scrapes scrapes;
  for (int i = 0; i < 2; ++i) {
    if (i > 0) std::this_thread::sleep_for(Interval(flags));
    ASSIGN_OR_RETURN(MetricSet set, source.Read());
    scrapes.Add(std::move(set), OsClock().Now());
  }
  FrameOptions options = OptionsFor(flags);
  options.rows = 0;
  if (isatty(STDOUT_FILENO) == 0) options.columns = 120;
  fmt::print("{}", DrawFrame(scrapes.View(), options));
  return Ok{};
}

std::optional<AdapterOrder> OrderOfKey(char key) {
  switch (key) {
    case 't':
      return AdapterOrder::kTokens;
    case 'n':
      return AdapterOrder::kName;
    case 'r':
      return AdapterOrder::kRunning;
    case 'w':
      return AdapterOrder::kWaiting;
    case 'u':
      return AdapterOrder::kRequests;
    default:
      return std::nullopt;
  }
}

// Draws until `q`. A server that does not answer leaves the last figures, with a line that says so.
Status Watch(const TopFlags& flags, MetricsSource& source) {
  Scrapes scrapes;
  ASSIGN_OR_RETURN(MetricSet first, source.Read());
  scrapes.Add(std::move(first), OsClock().Now());
  Screen screen;
  AdapterOrder order = AdapterOrder::kTokens;
  std::string problem;
  TimeNs next = OsClock().Now() + Interval(flags).count() * kNsPerMs;
  while (true) {
    FrameOptions options = OptionsFor(flags);
    options.order = order;
    options.problem = problem;
    options.keys = true;
    screen.Show(DrawFrame(scrapes.View(), options));
    const std::int64_t patience_ms = std::max<std::int64_t>(0, (next - OsClock().Now()) / kNsPerMs);
    const char key = screen.Wait(std::chrono::milliseconds(patience_ms));
    if (key == 'q') return Ok{};
    if (const auto chosen = OrderOfKey(key)) order = *chosen;
    if (OsClock().Now() < next) continue;
    next = OsClock().Now() + Interval(flags).count() * kNsPerMs;
    auto set = source.Read();
    problem = set.ok() ? "" : set.error().message;
    if (set.ok()) scrapes.Add(std::move(set).value(), OsClock().Now());
  }
}

Status Top(TopFlags flags) {
  auto url = ParseUrl(flags.url, "--url");
  if (!url.ok()) return InvalidArgument(url.error().message, "--url");
  while (flags.url.ends_with('/')) flags.url.pop_back();
  MetricsSource source(flags, std::move(url).value());
  if (flags.once) return PrintOnce(flags, source);
  if (isatty(STDOUT_FILENO) == 1 && isatty(STDIN_FILENO) == 1) return Watch(flags, source);
  return InvalidArgument(
      "standard input and output: expected a terminal, found a file or a pipe. Print one frame with --once", "--once");
}

void AddTopFlags(CommandLine& line, TopFlags& flags) {
  line.Add({.names = "url,--url",
            .target = &flags.url,
            .unit = "URL",
            .help = "The server, as http://HOST:PORT",
            .common = true});
  line.Add({.names = "--interval",
            .target = &flags.interval_seconds,
            .unit = "SECONDS",
            .help = "Time between two frames; rates and latencies are those of this time",
            .range = {{0.1, 3600.0}},
            .common = true});
  line.Add({.names = "--once",
            .target = &flags.once,
            .help = "Print one frame, also to a pipe or a file, and end",
            .common = true});
  line.Add({.names = "--ca-file",
            .target = &flags.ca_file,
            .unit = "FILE",
            .help = "Certificates (PEM) to trust besides the system's",
            .path = FlagPath::kExistingFile});
  line.Add({.names = "--insecure", .target = &flags.insecure, .help = "Do not check the server's certificate"});
}

int RunTop(const TopFlags& flags) {
  const Status status = Top(flags);
  return status.ok() ? 0 : FailCommand("top", status.error());
}

}  // namespace

Command TopCommand() {
  const auto flags = std::make_shared<TopFlags>();
  Command command{.name = "top",
                  .summary = "Show a running server: lanes, memory, adapters, latencies, tokens per second"};
  AddTopFlags(command.line, *flags);
  command.line.set_footer(
      "Keys: q ends it; t, n, r, w and u sort the adapters by tokens per second, name, running, waiting and ended\n"
      "requests. Colors are off where NO_COLOR is set. Figures are those of GET /metrics, which needs no key.");
  command.run = [flags] { return RunTop(*flags); };
  return command;
}

}  // namespace loramux
