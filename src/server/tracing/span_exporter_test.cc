// The exporter against collectors that take spans, refuse them, hang, and are not there.
#include "server/tracing/span_exporter.h"

#include <atomic>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/wait_until_for_test.h"
#include "base/wall_clock.h"
#include "http/exchange.h"
#include "http/server.h"

namespace loramux::span_exporter_test {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;
using nlohmann::json;

Span SpanNamed(const std::string& name) {
  return {.trace_id = "0af7651916cd43dd8448eb211c80319c",
          .span_id = "00f067aa0ba902b7",
          .parent_id = "b7ad6b7169203331",
          .name = name,
          .start = 1000,
          .end = 3000,
          .attributes = {{"text", "x\xff"}, {"count", std::int64_t{1} << 60}, {"share", 0.5}}};
}

std::vector<Span> Spans(int count) { return std::vector<Span>(static_cast<std::size_t>(count), SpanNamed("s")); }

// A collector that answers with `status_` and `body_`, or hangs.
class SpanExporterTest : public testing::Test {
 protected:
  SpanExporterTest() {
    routes_.Add("POST", "/v1/traces", [this](HttpExchange& exchange) -> asio::awaitable<void> {
      if (exchange.request().Header("x-key") != "secret") status_ = 401;
      const json request = json::parse(exchange.request().body);
      received_ += static_cast<int>(request["resourceSpans"][0]["scopeSpans"][0]["spans"].size());
      ++posts_;
      while (hang_) {
        asio::steady_timer timer(co_await asio::this_coro::executor, 1ms);
        co_await timer.async_wait(asio::use_awaitable);
      }
      HttpReply reply;
      reply.status = status_;
      reply.body = body_;
      co_await exchange.Send(std::move(reply));
    });
    HttpServerOptions options;
    options.port = 0;
    options.linger_timeout = 100ms;
    options.drain_timeout = 0ms;
    server_ = std::make_unique<HttpServer>(options, routes_, clock_);
    EXPECT_TRUE(server_->Start().ok());
    options_.endpoint = "http://127.0.0.1:" + std::to_string(server_->port());
    options_.headers = {{"X-Key", "secret"}};
    options_.resource = {"test", "1.0", "here"};
    options_.interval = 1ms;
    options_.longest_pause = 1ms;
    options_.flush_limit = 300ms;
  }
  ~SpanExporterTest() override { hang_ = false; }

  void Start() {
    auto exporter = SpanExporter::Start(options_, clock_);
    ASSERT_TRUE(exporter.ok());
    exporter_ = std::move(exporter).value();
  }

  OsClock clock_;
  RouteTable routes_;
  std::atomic<int> status_ = 200, received_ = 0, posts_ = 0;
  std::atomic<bool> hang_ = false;
  std::string body_ = "{}";
  std::unique_ptr<HttpServer> server_;
  SpanExporterOptions options_;
  std::unique_ptr<SpanExporter> exporter_;
};

TEST(ExportBody, IsOtlpJson) {
  const std::vector<Span> spans{SpanNamed("queue")};
  const json body = json::parse(ExportBody({"svc", "1.2", "i"}, spans, 5));
  const json& resource = body["resourceSpans"][0];
  EXPECT_EQ(resource["resource"]["attributes"][0],
            json::parse(R"({"key":"service.name","value":{"stringValue":"svc"}})"));
  const json& span = resource["scopeSpans"][0]["spans"][0];
  EXPECT_EQ(span["traceId"], "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(span["spanId"], "00f067aa0ba902b7");
  EXPECT_EQ(span["parentSpanId"], "b7ad6b7169203331");
  EXPECT_EQ(span["startTimeUnixNano"], "1005");
  EXPECT_EQ(span["endTimeUnixNano"], "3005");
  EXPECT_EQ(span["kind"], 1);
  EXPECT_EQ(span["attributes"][0]["value"]["stringValue"], "x\xef\xbf\xbd");
  EXPECT_EQ(span["attributes"][1]["value"]["intValue"], "1152921504606846976");
  EXPECT_EQ(span["attributes"][2]["value"]["doubleValue"], 0.5);
}

TEST(RejectedSpans, OfWhateverTheCollectorSays) {
  EXPECT_EQ(RejectedSpans(R"({"partialSuccess":{"rejectedSpans":"3"}})"), 3);
  EXPECT_EQ(RejectedSpans(R"({"partialSuccess":{"rejectedSpans":4}})"), 4);
  for (const char* other :
       {"", "{}", "[", "[1]", R"({"partialSuccess":1})", R"({"partialSuccess":{"rejectedSpans":"x"}})",
        R"({"partialSuccess":{"rejectedSpans":-1}})", R"({"partialSuccess":{"rejectedSpans":1.5}})"}) {
    EXPECT_EQ(RejectedSpans(other), 0) << other;
  }
}

TEST_F(SpanExporterTest, SendsEverySpanOnce) {
  options_.batch_spans = 10;
  Start();
  for (int i = 0; i < 25; ++i) exporter_->Add(Spans(3));
  EXPECT_TRUE(WaitUntil([&] { return exporter_->counts().sent == 75; }));
  EXPECT_EQ(received_, 75);
  EXPECT_GE(posts_, 8);
  EXPECT_EQ(exporter_->counts().dropped, 0);
}

TEST_F(SpanExporterTest, EndpointsMayNameThePath) {
  options_.endpoint += "/v1/traces";
  Start();
  exporter_->Add(Spans(1));
  EXPECT_TRUE(WaitUntil([&] { return exporter_->counts().sent == 1; }));
}

TEST_F(SpanExporterTest, TheEndSendsWhatIsLeft) {
  options_.interval = std::chrono::hours(1);
  Start();
  exporter_->Add(Spans(5));
  exporter_.reset();
  EXPECT_EQ(received_, 5);
}

TEST_F(SpanExporterTest, TheEndDoesNotWaitForACollectorThatHangs) {
  hang_ = true;
  Start();
  exporter_->Add(Spans(5));
  EXPECT_TRUE(WaitUntil([&] { return posts_ == 1; }));
  const TimeNs before = clock_.Now();
  exporter_.reset();
  EXPECT_LT(clock_.Now() - before, options_.timeout.count() * kNsPerMs);
}

TEST_F(SpanExporterTest, AFullQueueDropsAndCounts) {
  hang_ = true;
  options_.queue_spans = 4;
  Start();
  exporter_->Add(Spans(3));
  EXPECT_TRUE(WaitUntil([&] { return posts_ == 1; }));
  exporter_->Add(Spans(3));
  exporter_->Add(Spans(3));  // all or none of a request
  EXPECT_EQ(exporter_->counts().dropped, 3);
  EXPECT_EQ(exporter_->counts().waiting, 3);
  hang_ = false;
  EXPECT_TRUE(WaitUntil([&] { return exporter_->counts().sent == 6; }));
}

TEST_F(SpanExporterTest, SpansWaitForACollectorThatComesBack) {
  status_ = 503;
  Start();
  exporter_->Add(Spans(2));
  EXPECT_TRUE(WaitUntil([&] { return posts_ >= 1; }));
  EXPECT_EQ(exporter_->counts().sent, 0);
  status_ = 200;
  EXPECT_TRUE(WaitUntil([&] { return exporter_->counts().sent == 2; }));
  EXPECT_EQ(exporter_->counts().dropped, 0);
}

TEST_F(SpanExporterTest, RefusalsAreFinal) {
  status_ = 400;
  Start();
  exporter_->Add(Spans(2));
  EXPECT_TRUE(WaitUntil([&] { return exporter_->counts().refused == 2; }));
  EXPECT_EQ(posts_, 1);
  body_ = R"({"partialSuccess":{"rejectedSpans":"1"}})";
  status_ = 200;
  exporter_->Add(Spans(3));
  EXPECT_TRUE(WaitUntil([&] { return exporter_->counts().sent == 2; }));
  EXPECT_EQ(exporter_->counts().refused, 3);
}

TEST_F(SpanExporterTest, WithoutACollectorNothingIsHarmed) {
  options_.endpoint = "http://127.0.0.1:1";
  options_.queue_spans = 10;
  Start();
  for (int i = 0; i < 100; ++i) exporter_->Add(Spans(2));
  EXPECT_GE(exporter_->counts().dropped, 100);
  exporter_.reset();
}

TEST(SpanExporterStart, EndpointsAreUrls) {
  const OsClock clock;
  for (const char* wrong : {"", "localhost:4318", "grpc://x", "http://"}) {
    EXPECT_FALSE(SpanExporter::Start({.endpoint = wrong}, clock).ok()) << wrong;
  }
  EXPECT_GT(UnixNanoseconds(), std::int64_t{1'700'000'000} * kNsPerSecond);
}

}  // namespace
}  // namespace loramux::span_exporter_test
