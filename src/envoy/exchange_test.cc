#include "envoy/exchange.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/session_servers.h"
#include "envoy/picker_world_for_test.h"

namespace loramux::exchange_test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;

constexpr const char* kAll = "10.0.0.1:8000,10.0.0.2:8000,10.0.0.3:8000";
constexpr const char* kBody = R"({"model": "x", "prompt": "hello", "max_tokens": 5})";

// One exchange of a world, message by message.
class Talk {
 public:
  Talk(PickerWorld& world, ProxyBodyMode request, ProxyBodyMode response, std::size_t max_body = std::size_t{16} << 20)
      : request_(request), response_(response), exchanges_(*world.picker, max_body), exchange_(exchanges_.Begin()) {}

  std::vector<ProxyReply> Send(ProxyMessage message) {
    std::vector<ProxyReply> replies;
    exchange_->Take(std::move(message), replies);
    return replies;
  }
  std::vector<ProxyReply> Headers(bool end = false, ProxyHeaders headers = {}) {
    headers.emplace_back(":method", end ? "GET" : "POST");
    headers.emplace_back("content-type", "application/json");
    return Send({.part = ProxyPart::kRequestHeaders,
                 .headers = std::move(headers),
                 .end_of_stream = end,
                 .request_body_mode = request_,
                 .response_body_mode = response_});
  }
  std::vector<ProxyReply> Body(std::string body, bool end) {
    return Send({.part = ProxyPart::kRequestBody, .body = std::move(body), .end_of_stream = end});
  }
  std::vector<ProxyReply> ResponseHeaders(ProxyHeaders headers = {}) {
    return Send({.part = ProxyPart::kResponseHeaders, .headers = std::move(headers), .served = "10.0.0.1:8000"});
  }
  void Close() { exchange_.reset(); }
  bool Settled() const { return exchange_->Settled(); }

 private:
  const ProxyBodyMode request_, response_;
  PickerExchanges exchanges_;
  std::unique_ptr<ProxyExchange> exchange_;
};

void ExpectPicked(const ProxyReply& reply, ProxyPart part) {
  EXPECT_EQ(reply.part, part);
  EXPECT_EQ(reply.endpoints, kAll);
  EXPECT_THAT(reply.set_headers, Contains(Pair(std::string(kDestinationEndpoint), kAll)));
}

TEST(Exchange, BufferedBodiesArePickedWithTheBody) {
  PickerWorld world;
  Talk talk(world, ProxyBodyMode::kBuffered, ProxyBodyMode::kNone);
  const auto go_on = talk.Headers();
  ASSERT_THAT(go_on, SizeIs(1));
  EXPECT_EQ(go_on[0].part, ProxyPart::kRequestHeaders);
  EXPECT_THAT(go_on[0].set_headers, IsEmpty());
  EXPECT_FALSE(talk.Settled());
  const auto picked = talk.Body(kBody, true);
  ASSERT_THAT(picked, SizeIs(1));
  ExpectPicked(picked[0], ProxyPart::kRequestBody);
  EXPECT_FALSE(picked[0].streamed);
  EXPECT_TRUE(talk.Settled());
  EXPECT_EQ(world.State("a").in_flight, 1);
  ASSERT_THAT(talk.ResponseHeaders({{":status", "200"}}), SizeIs(1));
  EXPECT_EQ(world.State("a").in_flight, 1);  // until the proxy closes the stream
  talk.Close();
  EXPECT_EQ(world.State("a").in_flight, 0);
}

TEST(Exchange, DuplexPiecesComeBackUnchangedAfterTheHeaders) {
  PickerWorld world;
  Talk talk(world, ProxyBodyMode::kFullDuplex, ProxyBodyMode::kFullDuplex);
  EXPECT_THAT(talk.Headers(), IsEmpty());
  const std::string body = kBody;
  EXPECT_THAT(talk.Body(body.substr(0, 10), false), IsEmpty());
  EXPECT_THAT(talk.Body("", false), IsEmpty());
  const auto replies = talk.Body(body.substr(10), true);
  ASSERT_THAT(replies, SizeIs(4));
  ExpectPicked(replies[0], ProxyPart::kRequestHeaders);
  std::string back;
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(replies[i].part, ProxyPart::kRequestBody);
    EXPECT_TRUE(replies[i].streamed);
    EXPECT_EQ(replies[i].end_of_stream, i == 3);
    back += replies[i].body;
  }
  EXPECT_EQ(back, body);
  EXPECT_EQ(replies[1].body, body.substr(0, 10));
  EXPECT_FALSE(talk.Settled());  // the response's pieces must be sent back too
  talk.ResponseHeaders();
  const auto piece = talk.Send({.part = ProxyPart::kResponseBody, .body = "data: 1\n\n"});
  ASSERT_THAT(piece, SizeIs(1));
  EXPECT_TRUE(piece[0].streamed);
  EXPECT_EQ(piece[0].body, "data: 1\n\n");
  EXPECT_EQ(world.State("a").in_flight, 1);
  EXPECT_TRUE(talk.Send({.part = ProxyPart::kResponseBody, .end_of_stream = true})[0].end_of_stream);
  EXPECT_EQ(world.State("a").in_flight, 0);
}

TEST(Exchange, TrailersEndADuplexBody) {
  PickerWorld world;
  Talk talk(world, ProxyBodyMode::kFullDuplex, ProxyBodyMode::kNone);
  talk.Headers();
  EXPECT_THAT(talk.Body(kBody, false), IsEmpty());
  const auto replies = talk.Send({.part = ProxyPart::kRequestTrailers, .end_of_stream = true});
  ASSERT_THAT(replies, SizeIs(3));
  ExpectPicked(replies[0], ProxyPart::kRequestHeaders);
  EXPECT_FALSE(replies[1].end_of_stream);
  EXPECT_EQ(replies[2].part, ProxyPart::kRequestTrailers);
}

TEST(Exchange, AHeaderPutsAnotherModelIntoTheBody) {
  const ProxyHeaders rewrite = {{"x-llm-d-model-name-rewrite", "real"}};
  const std::string body = R"({"model": "alias", "prompt": "hello"})";
  const std::string rewritten = R"({"model": "real", "prompt": "hello"})";
  PickerWorld world;
  Talk buffered(world, ProxyBodyMode::kBuffered, ProxyBodyMode::kNone);
  buffered.Headers(false, rewrite);
  const auto whole = buffered.Body(body, true);
  ASSERT_THAT(whole, SizeIs(1));
  EXPECT_TRUE(whole[0].replaces_body);
  EXPECT_EQ(whole[0].body, rewritten);
  Talk duplex(world, ProxyBodyMode::kFullDuplex, ProxyBodyMode::kNone);
  duplex.Headers(false, rewrite);
  duplex.Body(body.substr(0, 15), false);
  const auto pieces = duplex.Body(body.substr(15), true);
  ASSERT_THAT(pieces, SizeIs(2));
  EXPECT_EQ(pieces[0].body, "");
  EXPECT_TRUE(pieces[1].streamed && pieces[1].end_of_stream);
  EXPECT_EQ(pieces[1].body, rewritten);
}

TEST(Exchange, TheTokenOfAnAnswerBringsAConversationBack) {
  PickerWorld world;
  Talk first(world, ProxyBodyMode::kBuffered, ProxyBodyMode::kNone);
  first.Headers();
  first.Body(kBody, true);
  const auto reply = first.Send({.part = ProxyPart::kResponseHeaders, .served = "10.0.0.3:8000"});  // a fallback
  EXPECT_THAT(reply[0].set_headers, Contains(Pair("x-session-token", SessionToken("c"))));
  Talk second(world, ProxyBodyMode::kBuffered, ProxyBodyMode::kNone);
  second.Headers(false, {{"x-session-token", SessionToken("c")}});
  EXPECT_EQ(second.Body(kBody, true)[0].endpoints, "10.0.0.3:8000,10.0.0.1:8000,10.0.0.2:8000");
}

TEST(Exchange, ARequestWithoutABodyIsPickedByItsHeaders) {
  for (const ProxyBodyMode mode : {ProxyBodyMode::kBuffered, ProxyBodyMode::kFullDuplex, ProxyBodyMode::kNone}) {
    PickerWorld world;
    Talk talk(world, mode, ProxyBodyMode::kNone);
    const auto replies = talk.Headers(true);
    ASSERT_THAT(replies, SizeIs(1));
    ExpectPicked(replies[0], ProxyPart::kRequestHeaders);
  }
}

TEST(Exchange, MalformedBodiesAreRefused) {
  for (const std::string body : {R"({"model": )", R"(model)", R"([1])"}) {
    PickerWorld world;
    Talk talk(world, ProxyBodyMode::kFullDuplex, ProxyBodyMode::kNone);
    talk.Headers();
    const auto replies = talk.Body(body, true);
    ASSERT_THAT(replies, SizeIs(1)) << body;
    EXPECT_EQ(replies[0].part, ProxyPart::kImmediate);
    EXPECT_EQ(replies[0].status, 400);
    EXPECT_THAT(replies[0].body, HasSubstr("BadRequestError"));
    EXPECT_THAT(talk.Body("more", true), IsEmpty());  // it is over
  }
}

TEST(Exchange, NoServerIs503ThatBeganNothing) {
  PickerWorld world;
  world.picker->SetServers({});
  Talk talk(world, ProxyBodyMode::kBuffered, ProxyBodyMode::kNone);
  talk.Headers();
  const auto replies = talk.Body(kBody, true);
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_EQ(replies[0].status, 503);
  EXPECT_THAT(replies[0].set_headers, Contains(Pair("x-loramux-not-started", "1")));
  EXPECT_THAT(replies[0].set_headers, Contains(Pair("retry-after", "1")));
  EXPECT_THAT(replies[0].set_headers, Contains(Pair("x-llm-d-request-dropped-reason", "rejected-no-endpoints")));
}

TEST(Exchange, BodiesAreBounded) {
  PickerWorld world;
  for (const ProxyBodyMode mode : {ProxyBodyMode::kBuffered, ProxyBodyMode::kFullDuplex}) {
    Talk talk(world, mode, ProxyBodyMode::kNone, /*max_body=*/100);
    talk.Headers();
    if (mode == ProxyBodyMode::kFullDuplex) EXPECT_THAT(talk.Body(std::string(60, ' '), false), IsEmpty());
    const auto replies = talk.Body(std::string(mode == ProxyBodyMode::kFullDuplex ? 41 : 101, ' '), false);
    ASSERT_THAT(replies, SizeIs(1));
    EXPECT_EQ(replies[0].status, 413);
  }
}

TEST(Exchange, AllHeldBodiesTogetherAreBounded) {
  PickerWorld world;
  PickerExchanges exchanges(*world.picker, /*max_body=*/100, /*max_held=*/200);
  const auto begin = [&](std::vector<ProxyReply>& replies) {
    auto exchange = exchanges.Begin();
    exchange->Take({.part = ProxyPart::kRequestHeaders, .request_body_mode = ProxyBodyMode::kFullDuplex}, replies);
    exchange->Take({.part = ProxyPart::kRequestBody, .body = std::string(60, ' ')}, replies);
    return exchange;
  };
  std::vector<ProxyReply> first, second, third;
  auto one = begin(first);
  EXPECT_THAT(first, IsEmpty());
  auto two = begin(second);
  ASSERT_THAT(second, SizeIs(1));
  EXPECT_EQ(second[0].status, 503);
  EXPECT_THAT(second[0].set_headers, Contains(Pair("x-llm-d-request-dropped-reason", "rejected-saturated")));
  one.reset();  // what it held is free again
  auto three = begin(third);
  EXPECT_THAT(third, IsEmpty());
}

TEST(Exchange, AResponseThatBeganNothingEndsTheAttempt) {
  PickerWorld world;
  Talk talk(world, ProxyBodyMode::kBuffered, ProxyBodyMode::kNone);
  talk.Headers();
  talk.Body(kBody, true);
  talk.ResponseHeaders({{":status", "503"}, {"x-loramux-not-started", "1"}});
  EXPECT_EQ(world.State("a").in_flight, 0);
}

TEST(Exchange, AStreamThatClosesEarlyIsCancelled) {
  PickerWorld world;
  Talk talk(world, ProxyBodyMode::kBuffered, ProxyBodyMode::kNone);
  talk.Headers();
  talk.Body(kBody, true);
  EXPECT_EQ(world.State("a").in_flight, 1);
  talk.Close();
  EXPECT_EQ(world.State("a").in_flight, 0);
  EXPECT_EQ(world.State("a").failures, 0);
}

}  // namespace
}  // namespace loramux::exchange_test
