// A fast server and a load for lab/bench/route_latency.py, which measures what a router adds.
//
//   route_load backend                              answers at once; prints its port
//   route_load load PORT RATE SECONDS CONNECTIONS   latency of chats of 2 KB; RATE 0: as many as possible
//   route_load streams PORT COUNT                   opens streams until stdin ends
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/clock.h"
#include "base/log.h"
#include "base/must.h"
#include "http/client.h"
#include "http/exchange.h"
#include "http/server.h"

namespace loramux {
namespace {

namespace asio = boost::asio;

constexpr const char* kPath = "/v1/chat/completions";

std::string Body(bool stream) {
  return R"({"model":"demo","messages":[{"role":"user","content":")" + std::string(2000, 'x') + R"("}],"stream":)" +
         (stream ? "true" : "false") + "}";
}

asio::awaitable<void> Sleep(std::chrono::nanoseconds time) {
  asio::steady_timer timer(co_await asio::this_coro::executor, time);
  co_await timer.async_wait(asio::use_awaitable);
}

asio::awaitable<void> AnswerChat(HttpExchange& exchange) {
  if (!exchange.request().body.ends_with("true}")) {
    HttpReply reply;
    reply.body = R"({"choices":[{"message":{"content":")" + std::string(200, 'y') + R"("}}]})";
    co_await exchange.Send(std::move(reply));
    co_return;
  }
  bool alive = co_await exchange.StartStream("text/event-stream");
  while (alive) {
    alive = co_await exchange.Write("data: {\"choices\":[{\"delta\":{\"content\":\"word\"}}]}\n\n");
    if (alive) co_await Sleep(std::chrono::seconds(5));
  }
}

int Backend() {
  const OsClock clock;
  RouteTable routes;
  routes.AddSimple(
      "GET", "/health", [](const HttpRequest&) { return HttpReply{}; }, RouteAccess::kOpen);
  routes.Add("POST", kPath, AnswerChat);
  HttpServerOptions options;
  options.port = 0;
  options.max_connections = 1 << 20;
  options.max_connections_per_address = 0;
  options.drain_timeout = std::chrono::milliseconds(0);
  HttpServer server(options, routes, clock);
  Must(server.Start());
  std::printf("%d\n", server.port());
  std::fflush(stdout);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}

struct Load {
  HttpClient client;
  std::vector<double> micros;  // time of each exchange
  std::int64_t failed = 0, open = 0;
};

asio::awaitable<bool> Exchange(Load& load, const std::string& body) {
  HttpCallRequest request{.path = kPath, .body = body};
  HttpCall call(load.client, std::move(request));
  ExchangeEnd end = co_await call.Begin();
  std::string piece = ".";
  while (end.ok() && !piece.empty()) end = co_await call.ReadPiece(piece);
  co_return end.ok() && call.status() == 200;
}

// One connection. Its requests are due every `interval`; a late answer makes the next ones late, and their latency
// counts from when they were due. Interval 0: one after the other.
asio::awaitable<void> Client(Load& load, TimeNs begin, TimeNs interval, TimeNs end) {
  const OsClock clock;
  const std::string body = Body(false);
  TimeNs due = begin;
  while (due < end) {
    if (clock.Now() < due) co_await Sleep(std::chrono::nanoseconds(due - clock.Now()));
    const bool ok = co_await Exchange(load, body);
    const TimeNs now = clock.Now();
    load.micros.push_back(static_cast<double>(now - due) / kNsPerUs);
    if (!ok) ++load.failed;
    due = interval > 0 ? due + interval : now;
  }
}

int RunLoad(const char* port, double rate, double seconds, int connections) {
  asio::io_context context(1);
  const OsClock clock;
  Load load{.client = HttpClient(context.get_executor(), {.url = {.host = "127.0.0.1", .port = port}}, clock)};
  Must(load.client.Resolve());
  const TimeNs begin = clock.Now() + 50 * kNsPerMs;
  const TimeNs end = begin + static_cast<TimeNs>(seconds * kNsPerSecond);
  const TimeNs interval = rate > 0 ? static_cast<TimeNs>(connections / rate * kNsPerSecond) : 0;
  for (int i = 0; i < connections; ++i) {
    asio::co_spawn(context, Client(load, begin + interval * i / connections, interval, end), asio::detached);
  }
  context.run();
  std::sort(load.micros.begin(), load.micros.end());
  const auto quantile = [&](double q) {
    return load.micros[static_cast<std::size_t>(q * static_cast<double>(load.micros.size() - 1))];
  };
  std::printf(R"({"requests": %zu, "failed": %lld, "rate": %.1f, "p50_us": %.1f, "p99_us": %.1f})"
              "\n",
              load.micros.size(), static_cast<long long>(load.failed),
              static_cast<double>(load.micros.size()) * kNsPerSecond / static_cast<double>(clock.Now() - begin),
              quantile(0.5), quantile(0.99));
  return 0;
}

asio::awaitable<void> Stream(Load& load, const std::string& body) {
  HttpCallRequest request{.path = kPath, .body = body, .timeout = std::chrono::hours(1)};
  HttpCall call(load.client, std::move(request));
  ExchangeEnd end = co_await call.Begin();
  std::string piece;
  if (end.ok() && call.status() == 200) end = co_await call.ReadPiece(piece);
  if (piece.empty()) {
    ++load.failed;
    co_return;
  }
  ++load.open;
  while (end.ok() && !piece.empty()) end = co_await call.ReadPiece(piece);
}

int RunStreams(const char* port, int count) {
  asio::io_context context(1);
  const OsClock clock;
  Load load{.client = HttpClient(context.get_executor(), {.url = {.host = "127.0.0.1", .port = port}}, clock)};
  Must(load.client.Resolve());
  const std::string body = Body(true);
  const auto open_all = [&]() -> asio::awaitable<void> {
    const TimeNs begin = clock.Now();
    for (int i = 0; i < count; ++i) {
      asio::co_spawn(context, Stream(load, body), asio::detached);
      if (i % 100 == 99) co_await Sleep(std::chrono::milliseconds(20));  // gentle on the queue of connections
    }
    while (load.open + load.failed < count) co_await Sleep(std::chrono::milliseconds(10));
    std::printf(R"({"open": %lld, "failed": %lld, "seconds": %.2f})"
                "\n",
                static_cast<long long>(load.open), static_cast<long long>(load.failed),
                static_cast<double>(clock.Now() - begin) / kNsPerSecond);
    std::fflush(stdout);
  };
  asio::co_spawn(context, open_all(), asio::detached);
  std::thread([] {
    char byte = 0;
    while (read(STDIN_FILENO, &byte, 1) > 0) {
    }
    std::_Exit(0);
  }).detach();
  context.run();
  return 0;
}

int Main(int argc, char** argv) {
  Must(InitLogging("warn"));
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "backend") return Backend();
  if (what == "load" && argc == 6) return RunLoad(argv[2], std::atof(argv[3]), std::atof(argv[4]), std::atoi(argv[5]));
  if (what == "streams" && argc == 4) return RunStreams(argv[2], std::atoi(argv[3]));
  std::fprintf(stderr, "usage: route_load backend | load PORT RATE SECONDS CONNECTIONS | streams PORT COUNT\n");
  return 2;
}

}  // namespace
}  // namespace loramux

int main(int argc, char** argv) { return loramux::Main(argc, argv); }
