#include "router/event_stream.h"

#include <gtest/gtest.h>

#include "router/forwarded_headers.h"
#include "router/server_sources.h"

namespace loramux::event_stream_test {
namespace {

constexpr std::string_view kText = "data: {\"a\":1}\n\n: ping\n\ndata: x\r\n\r\nevent: e\ndata: 2\n\ndata: [DONE]\n\n";

TEST(WholeEvents, PassesWholeEventsHoweverTheyArriveInPieces) {
  for (std::size_t first = 1; first < kText.size(); ++first) {
    for (const std::size_t step : {std::size_t{1}, std::size_t{7}, kText.size()}) {
      WholeEvents events;
      std::string passed = events.Take(std::string(kText.substr(0, first)));
      for (std::size_t at = first; at < kText.size(); at += step) {
        EXPECT_TRUE(passed.empty() || passed.ends_with("\n\n") || passed.ends_with("\n\r\n")) << passed;
        passed += events.Take(std::string(kText.substr(at, step)));
      }
      EXPECT_EQ(passed, kText);
      EXPECT_EQ(events.held(), "");
      EXPECT_EQ(events.events(), 5);
    }
  }
}

TEST(WholeEvents, HoldsHalfAnEventBack) {
  WholeEvents events;
  EXPECT_EQ(events.Take("data: 1\n\ndata: {\"ha"), "data: 1\n\n");
  EXPECT_EQ(events.held(), "data: {\"ha");
  EXPECT_TRUE(events.between_events());
}

TEST(WholeEvents, HoldsABoundedNumberOfBytes) {
  WholeEvents events;
  std::size_t passed = 0;
  for (int i = 0; i < 200; ++i) passed += events.Take(std::string(16'384, 'x')).size();
  EXPECT_GT(passed, std::size_t{1} << 20);
  EXPECT_LE(events.held().size(), WholeEvents::kMostHeld);
  EXPECT_FALSE(events.between_events());
}

TEST(AnswerUsage, IsTheLastThatAnAnswerNames) {
  const auto tokens = [](std::string_view text) {
    const AnswerUsage usage = UsageIn(text);
    return usage.known ? std::pair(usage.prompt, usage.output) : std::pair<std::int64_t, std::int64_t>(-1, -1);
  };
  using Tokens = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(tokens(R"({"choices":[],"usage":{"prompt_tokens":7,"total_tokens":10,"completion_tokens":3}})"),
            Tokens(7, 3));
  EXPECT_EQ(tokens(R"({"usage": {"input_tokens": 5, "output_tokens": 6}})"), Tokens(5, 6));
  EXPECT_EQ(
      tokens("data: {\"usage\":null}\n\ndata: {\"usage\":{\"completion_tokens\":3}}\n\ndata: {\"usage\":null}\n\n"),
      Tokens(0, 3));
  for (const char* text : {"", R"({"usage":null})", R"({"text":"\"usage\":{\"prompt_tokens\":9}"})", R"({"usage":)",
                           R"({"usage":{"prompt_tokens":-5}})", R"({"usage":{"prompt_tokens":)"}) {
    EXPECT_EQ(tokens(text), Tokens(-1, -1)) << text;
  }
}

TEST(StreamEnd, HasTheFormOfEachApi) {
  const std::string openai = StreamEnd("/v1/chat/completions", 502, "it \"died\"");
  EXPECT_NE(openai.find(R"("message":"it \"died\"")"), std::string::npos);
  EXPECT_TRUE(openai.ends_with("\n\ndata: [DONE]\n\n"));
  EXPECT_TRUE(StreamEnd("/v1/messages", 502, "x").starts_with("event: error\ndata: {\"type\":\"error\",\"error\":"));
  EXPECT_TRUE(StreamEnd("/v1/responses", 502, "x").starts_with("event: error\n"));
}

TEST(ForwardedHeaders, ThoseOfTheConnectionStay) {
  const PassedHead head = ReadPassedHead({{"Content-Type", "application/json"},
                                          {"content-length", "12"},
                                          {"Connection", "close, X-Hop"},
                                          {"X-Hop", "1"},
                                          {"Transfer-Encoding", "chunked"},
                                          {"Access-Control-Allow-Origin", "*"},
                                          {"Retry-After", "3"},
                                          {"X-LoRAmux-Not-Started", "1"}});
  EXPECT_EQ(head.content_type, "application/json");
  EXPECT_EQ(head.content_length, 12u);
  EXPECT_TRUE(head.not_started);
  const HttpFields passed = {{"Retry-After", "3"}, {"X-LoRAmux-Not-Started", "1"}};
  EXPECT_EQ(head.headers, passed);
}

TEST(ServerSources, ReadsTheListAndNamesWhatIsWrong) {
  const auto sources = ServerSources::Parse({"10.0.0.1:8000", "https://gpu.example.com/llm/", "dns:svc:80", "file:/x"});
  ASSERT_TRUE(sources.ok());
  ASSERT_EQ(sources->fixed.size(), 2u);
  EXPECT_EQ(sources->fixed[0].name, "10.0.0.1:8000");
  EXPECT_EQ(sources->fixed[1].name, "gpu.example.com:443/llm");
  EXPECT_TRUE(sources->fixed[1].url.tls);
  EXPECT_EQ(sources->dns.front().host, "svc");
  EXPECT_EQ(sources->files.front(), "/x");
  for (const char* bad : {"", "host", "host:0", "dns:https://x:1", "ftp://x:1", "host:1:2x"}) {
    const auto failed = ServerSources::Parse({bad});
    ASSERT_FALSE(failed.ok()) << bad;
    EXPECT_NE(failed.error().message.find("--servers"), std::string::npos);
  }
}

}  // namespace
}  // namespace loramux::event_stream_test
