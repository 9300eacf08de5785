// The HTTP layer alone, with correct, incorrect and slow clients.
#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <thread>

#include <gmock/gmock.h>

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/prng.h"
#include "base/wait_until_for_test.h"
#include "http/exchange.h"
#include "http/raw_client_for_test.h"
#include "http/server.h"

namespace loramux::http_test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

boost::asio::awaitable<void> Pause(HttpExchange& exchange, std::chrono::milliseconds time) {
  boost::asio::steady_timer timer(exchange.executor(), time);
  co_await timer.async_wait(boost::asio::use_awaitable);
}

boost::asio::awaitable<void> Stream(HttpExchange& exchange) {
  co_await exchange.StartStream("text/plain");
  for (const char* piece : {"one ", "two ", "three"}) {
    co_await Pause(exchange, 2ms);
    co_await exchange.Write(piece);
  }
  co_await exchange.EndStream();
}

// A request that is in flight for as long as the test wants.
struct Gate {
  std::atomic<bool> entered = false, open = false;
};

boost::asio::awaitable<void> Held(HttpExchange& exchange, Gate& gate) {
  gate.entered = true;
  while (!gate.open) co_await Pause(exchange, 1ms);
  HttpReply reply;
  reply.body = "\"held\"";
  co_await exchange.Send(std::move(reply));
}

boost::asio::awaitable<void> Throw(HttpExchange&) {
  throw std::runtime_error("broken handler");
  co_return;
}

boost::asio::awaitable<void> ThrowInStream(HttpExchange& exchange) {
  co_await exchange.StartStream("text/plain");
  co_await exchange.Write("half");
  throw std::runtime_error("broken stream");
}

boost::asio::awaitable<void> Flood(HttpExchange& exchange, std::atomic<bool>& ended) {
  const std::string piece(100000, 'x');
  bool alive = co_await exchange.StartStream("text/plain");
  while (alive) alive = co_await exchange.Write(piece);
  ended = true;
}

class HttpTest : public testing::Test {
 protected:
  HttpTest() {
    routes_.AddSimple("GET", "/fixed", [](const HttpRequest&) {
      return HttpReply{200, "\"fixed\"", "application/json", {}};
    });
    routes_.AddSimple("GET", "/tail/*", [](const HttpRequest& request) {
      return HttpReply{200, request.tail + "|" + request.query, "text/plain", {}};
    });
    routes_.AddSimple("POST", "/echo", [](const HttpRequest& request) {
      return HttpReply{200, request.body, "text/plain", {{"X-Seen", std::string(request.Header("x-sent"))}}};
    });
    routes_.Add("GET", "/stream", Stream);
    routes_.Add("GET", "/held", [this](HttpExchange& exchange) { return Held(exchange, gate_); });
    routes_.Add("GET", "/throw", Throw);
    routes_.Add("GET", "/throw-in-stream", ThrowInStream);
    routes_.Add("GET", "/flood", [this](HttpExchange& exchange) { return Flood(exchange, flood_ended_); });
    routes_.SetErrorForm([](int status, std::string_view message, std::string_view) {
      return DumpJson({{"error", {{"message", message}, {"code", status}}}});
    });
    options_.port = 0;
    options_.linger_timeout = 300ms;
    options_.drain_timeout = 120s;
  }
  ~HttpTest() override { gate_.open = true; }

  HttpServer& Start() {
    server_ = std::make_unique<HttpServer>(options_, routes_, clock_);
    const Status started = server_->Start();
    EXPECT_TRUE(started.ok());
    return *server_;
  }
  RawHttpClient Connect() { return RawHttpClient(server_->port()); }
  bool StillServes() { return Connect().Do("GET", "/fixed").body == "\"fixed\""; }

  OsClock clock_;
  RouteTable routes_;
  HttpServerOptions options_;
  std::atomic<bool> flood_ended_ = false;
  Gate gate_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpTest, WithoutAFormErrorsAreText) {
  routes_.SetErrorForm(nullptr);
  Start();
  const ClientResponse unknown = Connect().Do("GET", "/unknown");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.Header("Content-Type"), "text/plain; charset=utf-8");
  EXPECT_THAT(unknown.body, HasSubstr("no /unknown"));
}

TEST_F(HttpTest, ServesManyRequestsOfOneConnection) {
  Start();
  RawHttpClient client = Connect();
  for (int i = 0; i < 3; ++i) {
    const ClientResponse response = client.Do("GET", "/fixed");
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, "\"fixed\"");
    EXPECT_EQ(response.Header("Content-Type"), "application/json");
    EXPECT_TRUE(response.keep_alive);
  }
  const ClientResponse echo = client.Do("POST", "/echo", "some text", "X-Sent: yes\r\n");
  EXPECT_EQ(echo.body, "some text");
  EXPECT_EQ(echo.Header("X-Seen"), "yes");
  EXPECT_EQ(client.Do("GET", "/tail/a%2Fb%20c/d?x=1").body, "a/b c/d|x=1");
  EXPECT_EQ(client.Do("GET", "/stream").body, "one two three");
  EXPECT_FALSE(client.Do("GET", "/fixed", "", "Connection: close\r\n").keep_alive);
  EXPECT_EQ(client.ReadSome(), "");
}

TEST_F(HttpTest, HeadOptionsAndWrongMethods) {
  Start();
  RawHttpClient client = Connect();
  const ClientResponse head = client.Do("HEAD", "/fixed");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.Header("Content-Length"), "7");
  EXPECT_EQ(head.body, "");
  const ClientResponse options = client.Do("OPTIONS", "/fixed");
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.Header("Allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(client.Do("OPTIONS", "*").status, 204);
  const ClientResponse wrong = client.Do("DELETE", "/echo");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.Header("Allow"), "POST, OPTIONS");
  EXPECT_EQ(wrong.json()["error"]["code"], 405);
  const ClientResponse unknown = client.Do("GET", "/nothing/here");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.json()["error"]["code"], 404);
  EXPECT_EQ(unknown.Header("Content-Type"), "application/json");
  EXPECT_EQ(client.Do("GET", "/tail/").status, 404);
  EXPECT_EQ(client.Do("GET", "/fixed").status, 200);  // the connection is still usable
}

// Some clients write targets as to a proxy.
TEST_F(HttpTest, TargetsInAbsoluteForm) {
  routes_.AddSimple("GET", "/host", [](const HttpRequest& request) {
    return HttpReply{200, request.target + "|" + std::string(request.Header("host")), "text/plain", {}};
  });
  Start();
  RawHttpClient client = Connect();
  EXPECT_EQ(client.Do("GET", "http://example.com/fixed").body, "\"fixed\"");
  EXPECT_EQ(client.Do("GET", "http://example.com:80/tail/a%2Fb?x=http://y").body, "a/b|x=http://y");
  EXPECT_EQ(client.Do("GET", "http://example.com/host?q").body, "/host?q|example.com");
  EXPECT_EQ(client.Do("GET", "http://example.com").status, 404);
  const ClientResponse wrong = client.Do("GET", "http://user@example.com/fixed");
  EXPECT_EQ(wrong.status, 400);
  EXPECT_THAT(wrong.body, HasSubstr("target"));
}

TEST_F(HttpTest, AnUnknownPathNamesTheRouteThatWasMeant) {
  routes_.AddSimple("POST", "/v1/chat/completions", [](const HttpRequest&) { return HttpReply{}; });
  routes_.AddSimple("POST", "/v1/completions", [](const HttpRequest&) { return HttpReply{}; });
  Start();
  const auto message = [&](const char* path) {
    return Connect().Do("POST", path, "{}").json()["error"]["message"].get<std::string>();
  };
  for (const char* path : {"/chat/completions", "/v1/chat/completions/", "//v1//chat/completions",
                           "/v1/v1/chat/completions", "/openai/v1/chat/completions"}) {
    EXPECT_THAT(message(path), HasSubstr("; send it to /v1/chat/completions.")) << path;
  }
  EXPECT_THAT(message("/completions"), HasSubstr("; send it to /v1/completions."));
  EXPECT_THAT(message("/fixed/"), HasSubstr("; send it to /fixed."));
  for (const char* path : {"/", "/v1", "/ompletions", "/xfixed", "/v1/chat"}) {
    EXPECT_THAT(message(path), Not(HasSubstr("send it"))) << path;
  }
}

TEST_F(HttpTest, CompressedBodiesAreRefused) {
  Start();
  const ClientResponse refused = Connect().Do("POST", "/echo", "\x1f\x8b", "Content-Encoding: gzip\r\n");
  EXPECT_EQ(refused.status, 415);
  EXPECT_EQ(refused.Header("Accept-Encoding"), "identity");
  EXPECT_THAT(refused.body, HasSubstr("found \\\"gzip\\\""));
  EXPECT_EQ(Connect().Do("POST", "/echo", "x", "Content-Encoding: identity\r\n").body, "x");
}

TEST_F(HttpTest, PipelinedRequestsAreAnsweredInOrder) {
  Start();
  RawHttpClient client = Connect();
  client.Send(RawHttpClient::Format("GET", "/held") + RawHttpClient::Format("GET", "/stream") +
              RawHttpClient::Format("POST", "/echo", "last") + RawHttpClient::Format("GET", "/nothing"));
  ASSERT_TRUE(WaitUntil([&] { return gate_.entered.load(); }));
  EXPECT_FALSE(client.HasBytes());
  gate_.open = true;
  EXPECT_EQ(client.Read().body, "\"held\"");
  EXPECT_EQ(client.Read().body, "one two three");
  EXPECT_EQ(client.Read().body, "last");
  EXPECT_EQ(client.Read().status, 404);
}

TEST_F(HttpTest, OldClientsGetUnchunkedStreams) {
  Start();
  RawHttpClient client = Connect();
  client.Send("GET /stream HTTP/1.0\r\n\r\n");
  const std::string text = client.ReadToEnd();
  EXPECT_THAT(text, HasSubstr("HTTP/1.0 200"));
  EXPECT_THAT(text, testing::EndsWith("\r\n\r\none two three"));
}

TEST_F(HttpTest, ContinueIsSentWhereTheBodyIsWanted) {
  options_.max_body_bytes = 1000;
  Start();
  RawHttpClient client = Connect();
  client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("body");
  EXPECT_EQ(client.Read().body, "body");
  for (const auto& [target, length, status] :
       {std::tuple("/nothing", "4", 404), std::tuple("/fixed", "4", 405), std::tuple("/echo", "1001", 413)}) {
    RawHttpClient other = Connect();
    other.Send(std::string("POST ") + target +
               " HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: " + length + "\r\n\r\n");
    const ClientResponse response = other.Read();
    EXPECT_EQ(response.status, status);
    EXPECT_FALSE(response.keep_alive);
  }
}

TEST_F(HttpTest, TooLargeIsRefused) {
  options_.max_body_bytes = 1000;
  options_.max_header_bytes = 2000;
  Start();
  const std::string big(200'000, 'x');
  const ClientResponse body = Connect().Do("POST", "/echo", big);  // the reply arrives although the body is not read
  EXPECT_EQ(body.status, 413);
  EXPECT_THAT(body.json()["error"]["message"].get<std::string>(), HasSubstr("at most 1000 bytes"));
  RawHttpClient chunked = Connect();
  chunked.Send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 20; ++i) chunked.Send("64\r\n" + std::string(100, 'x') + "\r\n");
  EXPECT_EQ(chunked.Read().status, 413);
  const ClientResponse header = Connect().Do("GET", "/fixed", "", "X-Long: " + std::string(3000, 'x') + "\r\n");
  EXPECT_EQ(header.status, 431);
  EXPECT_EQ(header.json()["error"]["code"], 431);
  EXPECT_EQ(Connect().Do("GET", "/fixed?" + std::string(3000, 'x')).status, 431);
  EXPECT_EQ(Connect().Do("POST", "/echo", std::string(1000, 'x')).status, 200);
}

// A request that is within the bounds of a router is within those of its servers.
TEST_F(HttpTest, WhatRoutersAddDoesNotCountAsTheClients) {
  options_.max_header_fields = 100;
  options_.max_header_bytes = 8000;
  Start();
  const std::string routers =
      "X-Forwarded-For: 192.0.2.7\r\ntraceparent: x\r\nx-loramux-caller: " + std::string(2000, 'c') +
      "\r\nX-Request-Id: r\r\nx-gateway-inference-fairness-id: key k\r\n";
  std::string fields;
  for (int i = 0; i < 99; ++i) fields += "X-" + std::to_string(i) + ": y\r\n";  // and Host
  EXPECT_EQ(Connect().Do("GET", "/fixed", "", fields + routers).status, 200);
  EXPECT_EQ(Connect().Do("GET", "/fixed", "", fields + "X-More: y\r\n" + routers).status, 431);
  EXPECT_EQ(Connect().Do("GET", "/fixed", "", fields + routers + "X-Forwarded-For: 192.0.2.8\r\n").status, 431);
  const std::string large = "X-Large: " + std::string(7900, 'x') + "\r\n";
  EXPECT_EQ(Connect().Do("GET", "/fixed", "", large + routers).status, 200);
  EXPECT_EQ(Connect().Do("GET", "/fixed", "", large + routers + "X-More: " + std::string(60, 'x') + "\r\n").status,
            431);
}

TEST(NormalPath, IsWhatServersTakeAPathFor) {
  for (const char* path :
       {"/v1/a", "/v1/a/", "//v1//a", "/v1/./a", "/v1/b/../a", "/v1/a;x=1", "/v1\\a", "/../v1/a/."}) {
    EXPECT_EQ(NormalPath(path), "/v1/a") << path;
  }
  EXPECT_EQ(NormalPath("/"), "/");
  EXPECT_EQ(NormalPath("/v1/a%2fb.c"), "/v1/a%2fb.c");
}

TEST_F(HttpTest, MalformedRequestsAreRefused) {
  Start();
  for (const char* text :
       {"GARBAGE\r\n\r\n", "GET /fixed\r\n\r\n", "GET /fixed HTTP/9.9\r\n\r\n",
        "GET /fixed HTTP/1.1\r\nNo colon\r\n\r\n", "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1x\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "\r\n\r\n\r\n"}) {
    RawHttpClient client = Connect();
    client.Send(text);
    const ClientResponse response = client.Read();
    EXPECT_EQ(response.status, 400) << text;
    EXPECT_EQ(response.json()["error"]["code"], 400) << text;
  }
  EXPECT_TRUE(StillServes());
}

// The bytes behind each of these heads are a body to one server and a second request to another.
TEST_F(HttpTest, RequestsOfDoubtfulLengthAreRefusedAndTheConnectionEnds) {
  Start();
  for (const char* fields :
       {"Transfer-Encoding: gzip", "Transfer-Encoding: identity", "Transfer-Encoding: chunked, gzip",
        "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: chunked;q=1", "Transfer-Encoding: xchunked",
        "Transfer-Encoding:", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked", "Transfer-Encoding: gzip\r\nContent-Length: 4",
        "Content-Length: 4\r\nTransfer-Encoding: gzip", "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Content-Length: 4\r\nContent-Length: 4", "Content-Length: 4, 4", "Content-Length: +4"}) {
    RawHttpClient client = Connect();
    client.Send("POST /echo HTTP/1.1\r\nHost: x\r\n" + std::string(fields) + "\r\n\r\n" +
                RawHttpClient::Format("GET", "/fixed", "", "Connection: close\r\n"));
    const std::string answer = client.ReadToEnd();
    EXPECT_THAT(answer, testing::StartsWith("HTTP/1.1 400 ")) << fields;
    EXPECT_THAT(answer, HasSubstr("Connection: close")) << fields;
    EXPECT_EQ(answer.find("fixed"), std::string::npos) << fields;  // no second request was answered
  }
  RawHttpClient old = Connect();
  old.Send("POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
  EXPECT_EQ(old.Read().status, 400);
  RawHttpClient good = Connect();
  good.Send("POST /echo HTTP/1.1\r\nHost: x\r\ntransfer-encoding: Chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n");
  EXPECT_EQ(good.Read().body, "body");
}

TEST_F(HttpTest, ARequestNamesOneHost) {
  Start();
  for (const char* fields : {"", "Host: a\r\nHost: b\r\n", "Host: a\r\nHost: a\r\n", "Host:\r\n", "Host: a b\r\n",
                             "Host: a/b\r\n", "Host: user@a\r\n", "Host: a:x\r\n"}) {
    RawHttpClient client = Connect();
    client.Send("GET /fixed HTTP/1.1\r\n" + std::string(fields) + "\r\n");
    const ClientResponse response = client.Read();
    EXPECT_EQ(response.status, 400) << fields;
    EXPECT_THAT(response.json()["error"]["message"].get<std::string>(), HasSubstr("Host")) << fields;
    EXPECT_FALSE(response.keep_alive) << fields;
  }
  EXPECT_TRUE(StillServes());
}

TEST_F(HttpTest, RandomBytesDoNoHarm) {
  Start();
  Prng prng(20240601);
  const std::string good = RawHttpClient::Format("POST", "/echo", "some text", "X-Sent: yes\r\n");
  for (int round = 0; round < 200; ++round) {
    std::string bytes = round % 2 == 0 ? good : std::string(prng.NextBelow(300), '\0');
    const std::size_t changes = round % 2 == 0 ? 1 + prng.NextBelow(4) : bytes.size();
    for (std::size_t i = 0; i < changes; ++i) {
      const std::size_t at = round % 2 == 0 ? prng.NextBelow(bytes.size()) : i;
      bytes[at] = static_cast<char>(prng.NextBelow(256));
    }
    RawHttpClient client = Connect();
    client.Send(bytes);
    if (round % 3 == 0) client.Reset();
  }
  EXPECT_TRUE(StillServes());
}

// Each of these tests has one short timeout. The others are at least 20 s, so that none of them comes first.
TEST_F(HttpTest, SlowHeadersTimeOut) {
  options_.header_timeout = 100ms;
  Start();
  RawHttpClient header = Connect();
  header.Send("GET /fixed HT");
  const ClientResponse late_header = header.Read();
  EXPECT_EQ(late_header.status, 408);
  EXPECT_THAT(late_header.json()["error"]["message"].get<std::string>(), HasSubstr("header did not arrive"));
}

TEST_F(HttpTest, SlowBodiesTimeOut) {
  options_.body_timeout = 100ms;
  Start();
  RawHttpClient body = Connect();
  body.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(body.Read().status, 408);
}

TEST_F(HttpTest, IdleConnectionsAreClosed) {
  options_.idle_timeout = 150ms;
  Start();
  RawHttpClient idle = Connect();
  EXPECT_EQ(idle.ReadSome(), "");  // closed without a word
  // A busy machine may delay the client until its connection is closed: then it tries again.
  std::optional<RawHttpClient> used;
  EXPECT_TRUE(WaitUntil([&] {
    used.emplace(server_->port());
    return used->Do("GET", "/fixed").status == 200;
  }));
  EXPECT_EQ(used->ReadSome(), "");
}

TEST_F(HttpTest, AClientThatDoesNotReadIsCutOff) {
  options_.write_timeout = 150ms;
  Start();
  RawHttpClient client(server_->port(), 4096);
  client.Send(RawHttpClient::Format("GET", "/flood"));
  EXPECT_TRUE(WaitUntil([&] { return flood_ended_.load(); }));
  EXPECT_TRUE(StillServes());
}

TEST_F(HttpTest, BrokenHandlersEndTheirRequestOnly) {
  Start();
  RawHttpClient client = Connect();
  const ClientResponse failed = client.Do("GET", "/throw");
  EXPECT_EQ(failed.status, 500);
  EXPECT_THAT(failed.json()["error"]["message"].get<std::string>(), HasSubstr("failed on this request"));
  EXPECT_EQ(client.Do("GET", "/fixed").status, 200);
  const ClientResponse half = client.Do("GET", "/throw-in-stream");
  EXPECT_EQ(half.body, "half");
  EXPECT_FALSE(half.complete);  // the client can detect it
  EXPECT_TRUE(StillServes());
}

TEST_F(HttpTest, TooManyConnectionsAreTold) {
  options_.max_connections = 2;
  Start();
  RawHttpClient first = Connect(), second = Connect();
  EXPECT_EQ(first.Do("GET", "/fixed").status, 200);
  EXPECT_EQ(second.Do("GET", "/fixed").status, 200);
  const ClientResponse third = Connect().Do("GET", "/fixed");
  EXPECT_EQ(third.status, 503);
  EXPECT_EQ(third.Header("Retry-After"), "1");
  first.Close();
  EXPECT_TRUE(WaitUntil([&] { return server_->connections() <= 1; }));
  EXPECT_TRUE(StillServes());
}

TEST_F(HttpTest, ShutdownLetsRunningRequestsEnd) {
  Start();
  RawHttpClient idle = Connect(), busy = Connect();
  EXPECT_EQ(idle.Do("GET", "/fixed").status, 200);
  busy.Send(RawHttpClient::Format("GET", "/held"));
  ASSERT_TRUE(WaitUntil([&] { return gate_.entered.load(); }));
  std::thread stopper([this] { server_->Shutdown(); });
  EXPECT_TRUE(WaitUntil([&] { return server_->draining(); }));
  gate_.open = true;
  const ClientResponse response = busy.Read();
  EXPECT_EQ(response.body, "\"held\"");
  EXPECT_FALSE(response.keep_alive);
  EXPECT_EQ(idle.ReadSome(), "");
  busy.Close();
  stopper.join();
  EXPECT_EQ(server_->connections(), 0);
}

TEST_F(HttpTest, ShutdownCutsOffWhatDoesNotEnd) {
  options_.drain_timeout = 100ms;
  Start();
  RawHttpClient client(server_->port(), 4096);
  client.Send(RawHttpClient::Format("GET", "/flood"));
  client.ReadSome();
  const DrainReport report = server_->Shutdown();
  EXPECT_TRUE(flood_ended_);
  EXPECT_EQ(report.in_flight, 1);
  EXPECT_THAT(report.dropped, testing::ElementsAre("GET /flood"));
}

TEST_F(HttpTest, FieldsAndTargetsAreBounded) {
  options_.max_header_fields = 5;
  options_.max_target_bytes = 100;
  Start();
  std::string fields;
  for (int i = 0; i < 5; ++i) fields += "X-" + std::to_string(i) + ": y\r\n";
  const ClientResponse many = Connect().Do("GET", "/fixed", "", fields);
  EXPECT_EQ(many.status, 431);
  EXPECT_THAT(many.json()["error"]["message"].get<std::string>(), HasSubstr("expected at most 5, found 6"));
  const ClientResponse target = Connect().Do("GET", "/fixed?" + std::string(200, 'x'));
  EXPECT_EQ(target.status, 414);
  EXPECT_THAT(target.json()["error"]["message"].get<std::string>(), HasSubstr("expected at most 100 bytes, found 207"));
  EXPECT_TRUE(StillServes());
}

TEST_F(HttpTest, AnEndlessChunkExtensionIsCutOff) {
  Start();
  RawHttpClient client = Connect();
  client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;" + std::string(100'000, 'x'));
  EXPECT_EQ(client.Read().status, 400);
}

TEST_F(HttpTest, ADrippingBodyEarnsNoTime) {
  options_.body_timeout = 200ms;
  options_.min_body_bytes_per_second = 1'000'000;
  options_.linger_timeout = 120s;  // the client drips on until it sees the answer
  Start();
  RawHttpClient client = Connect();
  client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n");
  EXPECT_TRUE(WaitUntil([&] {
    client.Send("x");
    return client.HasBytes();
  }));
  EXPECT_EQ(client.Read().status, 408);
}

TEST_F(HttpTest, BodiesOfAllConnectionsTogetherAreBounded) {
  options_.max_body_bytes = 200'000;
  options_.max_held_body_bytes = 300'000;
  options_.max_held_body_bytes_per_address = 0;
  Start();
  RawHttpClient first = Connect(), second = Connect();
  const std::string head = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 190000\r\n\r\n";
  first.Send(head + std::string(180'000, 'x'));
  // The server's one thread reads at most 16 KiB of a connection before it serves the next one. So it has read the
  // first body once it has answered a hundred requests of another connection.
  RawHttpClient other = Connect();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(other.Do("GET", "/fixed").status, 200);
  second.Send(head + std::string(180'000, 'x'));
  EXPECT_EQ(second.Read().status, 503);
  first.Send(std::string(10'000, 'x'));
  EXPECT_EQ(first.Read().body.size(), 190'000u);
  EXPECT_EQ(Connect().Do("POST", "/echo", std::string(190'000, 'x')).status, 200);  // all body bytes were returned
}

TEST_F(HttpTest, TheGateIsAskedBeforeTheBody) {
  routes_.AddSimple(
      "GET", "/open", [](const HttpRequest&) { return HttpReply{}; }, RouteAccess::kOpen);
  routes_.SetGate([](HttpRequest& request) -> std::optional<HttpReply> {
    if (request.Header("x-pass") == "yes") return std::nullopt;
    return ErrorReply(401, "no pass");
  });
  Start();
  RawHttpClient client = Connect();
  EXPECT_EQ(client.Do("GET", "/open").status, 200);
  EXPECT_EQ(client.Do("GET", "/fixed").status, 401);
  EXPECT_EQ(client.Do("GET", "/fixed", "", "X-Pass: yes\r\n").status, 200);  // the connection stays usable
  client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
  const ClientResponse refused = client.Read();
  EXPECT_EQ(refused.status, 401);
  EXPECT_FALSE(refused.keep_alive);
}

// Keeps only the number of its bytes. Refuses any 'z'.
class Counter final : public BodyReceiver {
 public:
  boost::asio::awaitable<Status> Take(std::string bytes) override {
    Status taken = Ok{};
    if (bytes.find('z') != std::string::npos) taken = Unsupported("expected no z");
    most = std::max(most, bytes.size());
    total += bytes.size();
    co_return taken;
  }
  std::size_t total = 0, most = 0;
};

TEST_F(HttpTest, AReceiverTakesALargeBodyInPieces) {
  HttpRoute route{.method = "PUT", .path = "/large", .access = RouteAccess::kOpen, .max_body_bytes = 20'000'000};
  route.gate = [](HttpRequest& request) -> std::optional<HttpReply> {
    if (request.Header("x-pass") == "yes") return std::nullopt;
    return ErrorReply(401, "no pass");
  };
  route.receiver = [](const HttpRequest& request) -> Result<std::shared_ptr<BodyReceiver>> {
    if (request.query == "none") return Unavailable("no room");
    return std::shared_ptr<BodyReceiver>(std::make_shared<Counter>());
  };
  route.handler = [](HttpExchange& exchange) -> boost::asio::awaitable<void> {
    EXPECT_TRUE(exchange.request().body.empty());
    const auto& counter = static_cast<const Counter&>(*exchange.request().receiver);
    EXPECT_LT(counter.most, 2'000'000u);
    HttpReply reply{200, std::to_string(counter.total), "text/plain", {}};
    co_await exchange.Send(std::move(reply));
  };
  routes_.Add(std::move(route));
  options_.max_body_bytes = 100'000;
  options_.max_held_body_bytes = 3'000'000;
  options_.max_held_body_bytes_per_address = 0;
  Start();
  const std::string pass = "X-Pass: yes\r\n";
  RawHttpClient client = Connect();
  EXPECT_EQ(client.Do("PUT", "/large", std::string(19'000'000, 'x'), pass).body, "19000000");
  EXPECT_EQ(client.Do("PUT", "/large", "", pass + "Content-Length: 0\r\n").body, "0");
  client.Send("PUT /large HTTP/1.1\r\nHost: x\r\n" + pass + "Transfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 40; ++i) client.Send("186a0\r\n" + std::string(100'000, 'x') + "\r\n");
  client.Send("0\r\n\r\n");
  EXPECT_EQ(client.Read().body, "4000000");
  EXPECT_EQ(client.Do("GET", "/fixed").status, 200);  // the connection stays usable

  EXPECT_EQ(Connect().Do("PUT", "/large", "z", pass).status, 400);
  EXPECT_EQ(Connect().Do("PUT", "/large?none", "x", pass).status, 503);
  EXPECT_EQ(Connect().Do("PUT", "/large", "x").status, 401);
  RawHttpClient announced = Connect(), other = Connect();
  announced.Send("PUT /large HTTP/1.1\r\nHost: x\r\n" + pass + "Content-Length: 20000001\r\n\r\n");
  EXPECT_EQ(announced.Read().status, 413);
  // Other routes keep the server's limit.
  other.Send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n186a1\r\n" +
             std::string(100'001, 'x') + "\r\n0\r\n\r\n");
  EXPECT_EQ(other.Read().status, 413);
  EXPECT_TRUE(StillServes());
}

TEST_F(HttpTest, ConnectionsOfAnAddressAreBounded) {
  options_.max_connections_per_address = 1;
  Start();
  RawHttpClient first = Connect();
  EXPECT_EQ(first.Do("GET", "/fixed").status, 200);
  const ClientResponse second = Connect().Do("GET", "/fixed");
  EXPECT_EQ(second.status, 503);
  EXPECT_THAT(second.json()["error"]["message"].get<std::string>(), HasSubstr("from 127.0.0.1"));
}

// One client takes all places with connections that wait: idle ones, and unfinished headers and bodies. Another client
// is served all the same, and the first one keeps its newest connections.
TEST_F(HttpTest, OneClientCannotTakeAllPlaces) {
  options_.max_connections = 6;
  options_.max_connections_per_address = 0;
  Start();
  constexpr const char* kGreedy = "127.0.0.2";
  std::vector<std::unique_ptr<RawHttpClient>> greedy;
  for (const char* sent :
       {"", "GET /fixed HTTP/1.1\r\nHost: ", "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc",
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "", ""}) {
    greedy.push_back(std::make_unique<RawHttpClient>(server_->port(), 0, kGreedy));
    greedy.back()->Send(sent);
    ASSERT_TRUE(WaitUntil([&] { return server_->connections() == static_cast<int>(greedy.size()); }));
  }
  EXPECT_EQ(RawHttpClient(server_->port(), 0, kGreedy).Do("GET", "/fixed").status, 503);
  std::vector<std::unique_ptr<RawHttpClient>> others;
  for (int i = 0; i < 3; ++i) {
    others.push_back(std::make_unique<RawHttpClient>(server_->port()));
    ASSERT_EQ(others.back()->Do("GET", "/fixed").status, 200) << i;
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(greedy[i]->ReadSome(), "") << i;
  greedy[3]->Send("cde\r\n0\r\n\r\n");
  EXPECT_EQ(greedy[3]->Read().body, "abcde");
  EXPECT_EQ(Connect().Do("GET", "/fixed").status, 503);  // now both have three: an equal share
}

TEST_F(HttpTest, AnAnswerIsNeverCutShortForANewcomer) {
  options_.max_connections = 2;
  Start();
  RawHttpClient busy(server_->port(), 0, "127.0.0.2"), idle(server_->port(), 0, "127.0.0.2");
  busy.Send(RawHttpClient::Format("GET", "/held"));
  ASSERT_TRUE(WaitUntil([&] { return gate_.entered.load(); }));
  EXPECT_EQ(idle.Do("GET", "/fixed").status, 200);
  RawHttpClient newcomer = Connect();
  ASSERT_EQ(newcomer.Do("GET", "/fixed").status, 200);
  EXPECT_EQ(idle.ReadSome(), "");
  gate_.open = true;
  EXPECT_EQ(busy.Read().body, "\"held\"");
}

TEST_F(HttpTest, UnfinishedBodiesOfOneAddressAreBounded) {
  options_.max_held_body_bytes = 4'000'000;  // a quarter of it for one address
  Start();
  const std::string head = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n";
  RawHttpClient first(server_->port(), 0, "127.0.0.2"), second(server_->port(), 0, "127.0.0.2");
  first.Send(head + std::string(800'000, 'x'));
  RawHttpClient other = Connect();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(other.Do("GET", "/fixed").status, 200);  // by then it has read the body
  second.Send(head + std::string(800'000, 'x'));
  const ClientResponse refused = second.Read();
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.json()["error"]["message"].get<std::string>(), HasSubstr("from this address"));
  EXPECT_EQ(other.Do("POST", "/echo", std::string(900'000, 'x')).status, 200);
  first.Send(std::string(100'000, 'x'));
  EXPECT_EQ(first.Read().body.size(), 900'000u);
}

TEST_F(HttpTest, RequestsDuringTheDrainAreToldSo) {
  routes_.AddSimple(
      "GET", "/probe",
      [](const HttpRequest& request) {
        return HttpReply{request.draining ? 503 : 200, "", "", {}};
      },
      RouteAccess::kOpen);
  Start();
  RawHttpClient kept = Connect(), probe = Connect(), busy = Connect();
  EXPECT_EQ(kept.Do("GET", "/fixed").status, 200);
  EXPECT_EQ(probe.Do("GET", "/probe").status, 200);
  busy.Send(RawHttpClient::Format("GET", "/held"));
  ASSERT_TRUE(WaitUntil([&] { return gate_.entered.load(); }));
  std::thread stopper([this] { server_->Shutdown(); });
  EXPECT_TRUE(WaitUntil([&] { return server_->draining(); }));
  const ClientResponse late = kept.Do("GET", "/fixed");
  EXPECT_EQ(late.status, 503);
  EXPECT_FALSE(late.keep_alive);
  EXPECT_EQ(probe.Do("GET", "/probe").status, 503);
  gate_.open = true;
  EXPECT_EQ(busy.Read().body, "\"held\"");
  busy.Close();
  stopper.join();
  const DrainReport report = server_->Shutdown();  // returns the same report again
  EXPECT_EQ(report.in_flight, 1);
  EXPECT_TRUE(report.dropped.empty());
}

TEST_F(HttpTest, StartErrorsSayWhy) {
  Start();
  HttpServerOptions taken = options_;
  taken.port = server_->port();
  HttpServer second(taken, routes_, clock_);
  const Status started = second.Start();
  ASSERT_FALSE(started.ok());
  EXPECT_THAT(started.error().message, HasSubstr(std::to_string(server_->port())));
  HttpServerOptions nowhere = options_;
  nowhere.host = "no such host.invalid";
  EXPECT_THAT(HttpServer(nowhere, routes_, clock_).Start().error().message, HasSubstr("no such host"));
}

TEST_F(HttpTest, ManyThreadsManyConnections) {
  options_.threads = 4;
  Start();
  std::vector<std::unique_ptr<RawHttpClient>> clients;
  for (int i = 0; i < 200; ++i) clients.push_back(std::make_unique<RawHttpClient>(server_->port()));
  for (int round = 0; round < 3; ++round) {
    for (auto& client : clients) client->Send(RawHttpClient::Format("GET", round == 1 ? "/stream" : "/fixed"));
    for (auto& client : clients) EXPECT_EQ(client->Read().status, 200);
  }
}

}  // namespace
}  // namespace loramux::http_test
