// The asynchronous client against the server of this room, and against servers that break off.
#include "http/client.h"

#include <array>
#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "base/wait_until_for_test.h"
#include "http/exchange.h"
#include "http/server.h"

namespace loramux::client_test {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;

constexpr std::size_t kPieceBytes = 100'000;

asio::awaitable<void> Sleep(std::chrono::milliseconds time) {
  asio::steady_timer timer(co_await asio::this_coro::executor, time);
  co_await timer.async_wait(asio::use_awaitable);
}

// A server that streams until the client is gone, and one route that never answers.
class ClientTest : public testing::Test {
 protected:
  ClientTest() {
    routes_.AddSimple("POST", "/echo", [](const HttpRequest& request) {
      return HttpReply{201, request.body, "text/plain", {{"X-Seen", std::string(request.Header("x-sent"))}}};
    });
    routes_.AddSimple("GET", "/short", [](const HttpRequest&) { return HttpReply{200, "short", "text/plain", {}}; });
    routes_.Add("GET", "/words", [](HttpExchange& exchange) -> asio::awaitable<void> {
      co_await exchange.StartStream("text/plain");
      for (const char* word : {"one ", "two ", "three"}) co_await exchange.Write(word);
      co_await exchange.EndStream();
    });
    routes_.Add("GET", "/flood", [this](HttpExchange& exchange) -> asio::awaitable<void> {
      const std::string piece(kPieceBytes, 'x');
      bool alive = co_await exchange.StartStream("text/plain");
      for (; alive; ++pieces_written_) alive = co_await exchange.Write(piece);
      flood_ended_ = true;
    });
    routes_.Add("GET", "/silent", [this](HttpExchange&) -> asio::awaitable<void> {
      asked_ = true;
      while (!stop_) co_await Sleep(1ms);
    });
    options_.port = 0;
    options_.linger_timeout = 100ms;
    server_ = std::make_unique<HttpServer>(options_, routes_, clock_);
    EXPECT_TRUE(server_->Start().ok());
    Connect({});
  }
  ~ClientTest() override { stop_ = true; }

  void Connect(HttpClientOptions options) {
    options.url = {.host = "127.0.0.1", .port = std::to_string(server_->port())};
    client_ = std::make_unique<HttpClient>(context_.get_executor(), options, clock_);
    ASSERT_TRUE(client_->Resolve().ok());
  }
  // Runs the coroutine to its end.
  void Run(asio::awaitable<void> work) {
    asio::co_spawn(context_, std::move(work), [](const std::exception_ptr& error) {
      if (error) std::rethrow_exception(error);
    });
    context_.restart();
    context_.run();
  }
  // The whole body at this path, or how it failed.
  asio::awaitable<std::string> Fetch(std::string path) {
    HttpCall call(*client_, {.path = std::move(path)});
    ExchangeEnd end = co_await call.Begin();
    std::string body, piece;
    while (end.ok()) {
      end = co_await call.ReadPiece(piece);
      if (piece.empty()) break;
      body += piece;
    }
    co_return end.ok() ? body : "failed: " + end.detail;
  }

  OsClock clock_;
  RouteTable routes_;
  HttpServerOptions options_;
  std::atomic<bool> stop_ = false, asked_ = false, flood_ended_ = false;
  std::atomic<int> pieces_written_ = 0;
  std::unique_ptr<HttpServer> server_;
  asio::io_context context_;
  std::unique_ptr<HttpClient> client_;
};

TEST_F(ClientTest, SendsBodiesAndHeadersAndSeesThoseOfTheResponse) {
  Run([&]() -> asio::awaitable<void> {
    HttpCall call(*client_, {.path = "/echo", .body = "hello", .headers = {{"X-Sent", "yes"}}});
    const ExchangeEnd end = co_await call.Begin();
    EXPECT_TRUE(end.ok()) << end.detail;
    EXPECT_EQ(call.status(), 201);
    const auto seen =
        std::find(call.headers().begin(), call.headers().end(), std::pair<std::string, std::string>("X-Seen", "yes"));
    EXPECT_NE(seen, call.headers().end());
    std::string piece;
    EXPECT_TRUE((co_await call.ReadPiece(piece)).ok());
    EXPECT_EQ(piece, "hello");
    EXPECT_TRUE((co_await call.ReadPiece(piece)).ok());
    EXPECT_EQ(piece, "");
  }());
}

TEST_F(ClientTest, KeepsItsConnections) {
  Run([&]() -> asio::awaitable<void> {
    for (int i = 0; i < 5; ++i) EXPECT_EQ(co_await Fetch("/short"), "short");
    EXPECT_EQ(co_await Fetch("/words"), "one two three");
    EXPECT_EQ(client_->idle(), 1u);
    EXPECT_EQ(client_->opened(), 1);
  }());
  EXPECT_EQ(server_->connections(), 1);
}

TEST_F(ClientTest, OldConnectionsAreNotUsedAndTheirNumberIsBounded) {
  Connect({.idle_timeout = 1ns, .max_idle = 1});
  Run([&]() -> asio::awaitable<void> {
    HttpCall one(*client_, {.path = "/short"}), two(*client_, {.path = "/short"});
    std::string piece;
    EXPECT_TRUE((co_await one.Begin()).ok());
    EXPECT_TRUE((co_await two.Begin()).ok());
    for (HttpCall* call : {&one, &two}) {
      EXPECT_TRUE((co_await call->ReadPiece(piece)).ok());
      EXPECT_TRUE((co_await call->ReadPiece(piece)).ok());
    }
    EXPECT_EQ(client_->idle(), 1u);
    EXPECT_EQ(co_await Fetch("/short"), "short");
    EXPECT_EQ(client_->idle(), 1u);
    EXPECT_EQ(client_->opened(), 3);  // the idle one was idle for too long
  }());
}

TEST_F(ClientTest, AConnectionThatTheServerHasClosedIsReplaced) {
  Run([&]() -> asio::awaitable<void> { EXPECT_EQ(co_await Fetch("/short"), "short"); }());
  const std::uint16_t port = server_->port();
  server_ = nullptr;
  options_.port = port;
  server_ = std::make_unique<HttpServer>(options_, routes_, clock_);
  ASSERT_TRUE(server_->Start().ok());
  Run([&]() -> asio::awaitable<void> { EXPECT_EQ(co_await Fetch("/short"), "short"); }());
}

TEST_F(ClientTest, WhatIsNotReadHoldsTheServerBack) {
  Run([&]() -> asio::awaitable<void> {
    HttpCall call(*client_, {.path = "/flood"});
    EXPECT_TRUE((co_await call.Begin()).ok());
    int before = -1;  // until the sockets are full
    while (before != pieces_written_) {
      before = pieces_written_;
      co_await Sleep(100ms);
    }
    std::string piece;
    std::size_t bytes = 0;
    const std::size_t held = static_cast<std::size_t>(before) * kPieceBytes;
    while (bytes < held + 10 * kPieceBytes) {
      EXPECT_TRUE((co_await call.ReadPiece(piece)).ok());
      bytes += piece.size();
      EXPECT_LE(piece.size(), std::size_t{256} << 10);
    }
    EXPECT_GT(pieces_written_, before);
  }());
  EXPECT_TRUE(WaitUntil([&] { return flood_ended_.load(); }));  // the call's end closed its connection
}

TEST_F(ClientTest, AnExchangeHasATimeLimit) {
  Run([&]() -> asio::awaitable<void> {
    HttpCall call(*client_, {.path = "/silent", .timeout = 30ms});
    const ExchangeEnd end = co_await call.Begin();
    EXPECT_EQ(end.kind, ExchangeEnd::Kind::kTimeout);
    EXPECT_EQ(end.detail, "not finished within 0.03 s");
    EXPECT_EQ(client_->idle(), 0u);
  }());
}

TEST_F(ClientTest, OneExchangeOrAllCanBeCancelled) {
  asio::co_spawn(
      context_,
      [&]() -> asio::awaitable<void> {
        HttpCall call(*client_, {.path = "/silent"});
        asio::co_spawn(
            context_,
            [&]() -> asio::awaitable<void> {
              while (!asked_) co_await Sleep(1ms);
              call.Cancel();
            },
            asio::detached);
        EXPECT_EQ((co_await call.Begin()).kind, ExchangeEnd::Kind::kCancelled);
        EXPECT_EQ(co_await Fetch("/short"), "short");  // the others go on
        asked_ = false;
        asio::co_spawn(
            context_,
            [&]() -> asio::awaitable<void> {
              while (!asked_) co_await Sleep(1ms);
              client_->CancelAll();
            },
            asio::detached);
        EXPECT_EQ(co_await Fetch("/silent"), "failed: cancelled");
        EXPECT_EQ(co_await Fetch("/short"), "failed: cancelled");
      },
      asio::detached);
  context_.run();
}

// A server that closes a connection when a second request arrives loses that one; later ones have connections of their
// own.
TEST_F(ClientTest, AServerThatClosesKeptConnectionsLosesOneRequest) {
  asio::ip::tcp::acceptor acceptor(context_, {asio::ip::make_address("127.0.0.1"), 0});
  constexpr int kConnections = 5;
  std::string first_head;
  std::thread server([&] {
    for (int i = 0; i < kConnections; ++i) {
      asio::ip::tcp::socket socket(context_);
      acceptor.accept(socket);
      std::array<char, 4096> request{};
      const std::size_t size = socket.read_some(asio::buffer(request));
      if (i == 0) first_head = std::string(request.data(), size);
      asio::write(socket, asio::buffer(std::string_view("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")));
      boost::system::error_code ignored;
      socket.read_some(asio::buffer(request), ignored);
    }
  });
  HttpClient client(context_.get_executor(),
                    {.url = {.host = "127.0.0.1", .port = std::to_string(acceptor.local_endpoint().port())}}, clock_);
  std::vector<bool> answered;
  Run([&]() -> asio::awaitable<void> {
    for (int i = 0; i < kConnections + 1; ++i) {
      HttpCallRequest request{.method = "POST", .path = "/", .body = "{}", .as_given = true, .repeatable = false};
      request.headers = {{"Accept", "a"}, {"Accept", "b"}};
      HttpCall call(client, std::move(request));
      ExchangeEnd end = co_await call.Begin();
      std::string piece = "some";
      while (end.ok() && !piece.empty()) end = co_await call.ReadPiece(piece);
      answered.push_back(end.ok());
    }
  }());
  client.CancelAll();
  server.join();
  EXPECT_EQ(answered, (std::vector<bool>{true, false, true, true, true, true}));
  // What is passed on has no header of this client.
  EXPECT_NE(first_head.find("Accept: a\r\nAccept: b\r\n"), std::string::npos) << first_head;
  for (const char* own : {"Content-Type", "User-Agent", "*/*"})
    EXPECT_EQ(first_head.find(own), std::string::npos) << own;
}

TEST_F(ClientTest, SaysWhatBroke) {
  // A server that sends these bytes and closes.
  const auto end_of = [&](std::string_view bytes) {
    asio::ip::tcp::acceptor acceptor(context_, {asio::ip::make_address("127.0.0.1"), 0});
    std::thread server([&] {
      asio::ip::tcp::socket socket(context_);
      acceptor.accept(socket);
      char request[4096];
      socket.read_some(asio::buffer(request));
      asio::write(socket, asio::buffer(bytes.data(), bytes.size()));
    });
    HttpClient client(context_.get_executor(),
                      {.url = {.host = "127.0.0.1", .port = std::to_string(acceptor.local_endpoint().port())}}, clock_);
    // The first exchange looks the host up.
    ExchangeEnd end;
    Run([&]() -> asio::awaitable<void> {
      HttpCall call(client, {.path = "/"});
      end = co_await call.Begin();
      std::string piece = "some";
      while (end.ok() && !piece.empty()) end = co_await call.ReadPiece(piece);
    }());
    server.join();
    return end.kind;
  };
  using Kind = ExchangeEnd::Kind;
  EXPECT_EQ(end_of("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), Kind::kComplete);
  EXPECT_EQ(end_of("HTTP/1.1 200 OK\r\n\r\nto the end of the connection"), Kind::kComplete);
  EXPECT_EQ(end_of("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"), Kind::kBroken);
  EXPECT_EQ(end_of(""), Kind::kBroken);
  EXPECT_EQ(end_of("SSH-2.0-OpenSSH\r\n\r\n"), Kind::kGarbled);
  Connect({});
  server_ = nullptr;
  Run([&]() -> asio::awaitable<void> {
    HttpCall call(*client_, {.path = "/"});
    EXPECT_EQ((co_await call.Begin()).kind, Kind::kConnect);
  }());
}

}  // namespace
}  // namespace loramux::client_test
