// A server of tests: real sockets, and answers that follow a script.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/clock.h"
#include "base/must.h"
#include "http/exchange.h"
#include "http/server.h"
#include "router/server_address.h"

namespace loramux {

class ScriptedServer {
 public:
  using Script = std::function<boost::asio::awaitable<void>(HttpExchange&)>;

  // `script` answers each POST of /v1. A copy of it runs for each request.
  explicit ScriptedServer(Script script, HttpServerOptions options = {}, std::vector<std::string> models = {"base"})
      : script_(std::move(script)) {
    options.port = 0;
    options.linger_timeout = std::chrono::milliseconds(50);
    options.drain_timeout = std::chrono::milliseconds(0);
    routes_.AddSimple(
        "GET", "/health", [this](const HttpRequest&) { return HttpReply{.status = healthy ? 200 : 503}; },
        RouteAccess::kOpen);
    routes_.Add("GET", "/v1/models", [this, models = std::move(models)](HttpExchange& exchange) {
      ++listed;
      HttpReply reply;
      reply.body = R"({"object":"list","data":[)";
      for (std::size_t i = 0; i < models.size(); ++i) {
        reply.body += (i == 0 ? "" : ",") + std::string(R"({"id":")") + models[i] + R"(","parent":)" +
                      (models[i] == "base" ? "null" : "\"base\"") + "}";
      }
      reply.body += "]}";
      return SendList(exchange, std::move(reply));
    });
    routes_.Add("POST", "/v1/*", [this](HttpExchange& exchange) { return Answer(exchange); });
    server_ = std::make_unique<HttpServer>(options, routes_, clock_);
    Must(server_->Start());
  }

  std::uint16_t port() const { return server_->port(); }
  int connections() const { return server_->connections(); }
  ServerAddress address() const { return Must(ParseServerAddress("127.0.0.1:" + std::to_string(port()), "test")); }
  // The requests whose bodies arrived, by their ids.
  std::vector<std::string> ids() const {
    const std::lock_guard lock(mutex_);
    return ids_;
  }
  std::string last_header(std::string_view name) const {
    const std::lock_guard lock(mutex_);
    return std::string(last_.Header(name));
  }
  // No connection is accepted from now on.
  void Stop() { server_->Shutdown(); }

  std::atomic<bool> healthy{true};
  std::atomic<int> listed{0};
  std::atomic<int> list_delay_ms{0};  // until /v1/models answers

 private:
  boost::asio::awaitable<void> SendList(HttpExchange& exchange, HttpReply reply) {
    boost::asio::steady_timer timer(co_await boost::asio::this_coro::executor,
                                    std::chrono::milliseconds(list_delay_ms));
    co_await timer.async_wait(boost::asio::use_awaitable);
    co_await exchange.Send(std::move(reply));
  }
  boost::asio::awaitable<void> Answer(HttpExchange& exchange) {
    {
      const std::lock_guard lock(mutex_);
      ids_.push_back(exchange.trace().request_id);
      last_ = exchange.request();
    }
    co_await script_(exchange);
  }

  const OsClock clock_;
  const Script script_;
  mutable std::mutex mutex_;
  std::vector<std::string> ids_;
  HttpRequest last_;
  RouteTable routes_;
  std::unique_ptr<HttpServer> server_;
};

inline boost::asio::awaitable<void> SleepForTest(std::chrono::milliseconds time) {
  boost::asio::steady_timer timer(co_await boost::asio::this_coro::executor, time);
  co_await timer.async_wait(boost::asio::use_awaitable);
}

// A script that sends this reply.
inline ScriptedServer::Script Replies(int status, std::string body,
                                      std::vector<std::pair<std::string, std::string>> headers = {}) {
  return [=](HttpExchange& exchange) -> boost::asio::awaitable<void> {
    HttpReply reply;
    reply.status = status;
    reply.body = body;
    reply.headers = headers;
    co_await exchange.Send(std::move(reply));
  };
}

}  // namespace loramux
