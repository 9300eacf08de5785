// Bytes from the wire, split anywhere, must result in the right record.
#include "loadgen/reply_reader.h"
#include "report/shown_text.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "loadgen/openai_wire.h"
#include "loadgen/sse_parser.h"

namespace loramux::load::reply_reader_test {
namespace {

using Kind = ExchangeEnd::Kind;

std::vector<std::string> Events(const std::vector<std::string>& pieces) {
  SseParser parser;
  std::vector<std::string> events;
  for (const std::string& piece : pieces) {
    EXPECT_TRUE(parser.Feed(piece, [&](std::string_view data) { events.emplace_back(data); }));
  }
  return events;
}

TEST(SseParser, EverySplitGivesTheSameEvents) {
  const std::string stream =
      ": hello\r\n\r\ndata: one\r\n\r\nevent: x\ndata:two\ndata: lines\n\nid: 7\n\ndata:\r\rdata: [DONE]\n\n";
  const std::vector<std::string> expected{"one", "two\nlines", "", "[DONE]"};
  EXPECT_EQ(Events({stream}), expected);
  for (std::size_t i = 0; i <= stream.size(); ++i) {
    for (std::size_t j = i; j <= stream.size(); ++j) {
      ASSERT_EQ(Events({stream.substr(0, i), stream.substr(i, j - i), stream.substr(j)}), expected) << i << " " << j;
    }
  }
  std::vector<std::string> bytes;
  for (const char c : stream) bytes.emplace_back(1, c);
  EXPECT_EQ(Events(bytes), expected);
}

TEST(SseParser, KnowsThatItIsInsideAnEvent) {
  SseParser parser;
  const auto ignore = [](std::string_view) {};
  EXPECT_TRUE(parser.Feed("data: x\n\n", ignore));
  EXPECT_FALSE(parser.mid_event());
  EXPECT_TRUE(parser.Feed("dat", ignore));
  EXPECT_TRUE(parser.mid_event());
}

TEST(SseParser, DoesNotKeepAnEndlessEvent) {
  SseParser parser;
  const std::string block(1 << 20, 'x');
  bool fits = true;
  for (int i = 0; i < 20 && fits; ++i) fits = parser.Feed(block, [](std::string_view) {});
  EXPECT_FALSE(fits);
}

// A reader with the objects that it writes to.
struct Reading {
  explicit Reading(bool stream = true, ApiEndpoint endpoint = ApiEndpoint::kChat)
      : reader(endpoint, stream, record, live) {}
  void Feed(const std::string& bytes, TimeNs now) { reader.OnBody(bytes, now); }
  RequestRecord record;
  std::int64_t live = 0;
  ReplyReader reader;
};

std::string Chunk(const std::string& text, const std::string& finish = "null") {
  return "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" + text + "\"},\"finish_reason\":" + finish +
         "}]}\n\n";
}
constexpr const char* kRole =
    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n";
constexpr const char* kUsage =
    "data: "
    "{\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":5,\"prompt_tokens_details\":{\"cached_"
    "tokens\":8}}}\n\n";

TEST(ReplyReader, MeasuresAStream) {
  Reading r;
  r.record.sent = 100 * kNsPerMs;
  r.reader.OnStatus(200);
  r.Feed(kRole, 110 * kNsPerMs);  // no text yet, so not the first token
  r.Feed(Chunk("ab"), 130 * kNsPerMs);
  r.Feed(Chunk("c"), 150 * kNsPerMs);
  r.Feed(Chunk("d", "\"stop\"") + kUsage + "data: [DONE]\n\n", 190 * kNsPerMs);
  r.reader.Finish({}, 195 * kNsPerMs, "abcd");
  EXPECT_TRUE(r.record.ok()) << r.record.detail;
  EXPECT_TRUE(r.record.checked);
  EXPECT_EQ(r.reader.text(), "abcd");
  EXPECT_DOUBLE_EQ(r.record.ttft_ms(), 30);
  EXPECT_DOUBLE_EQ(r.record.tpot_ms(), 60.0 / 4);  // 5 tokens by the reported usage, in three pieces
  EXPECT_DOUBLE_EQ(r.record.e2e_ms(), 95);
  EXPECT_EQ(r.record.gaps_ms, (std::vector<float>{20, 40}));
  EXPECT_EQ(r.record.input_tokens, 11);
  EXPECT_EQ(r.record.cached_tokens, 8);
  EXPECT_EQ(r.record.finish_reason, "stop");
  EXPECT_EQ(r.live, 3);
}

TEST(ReplyReader, CountsPiecesWithoutUsage) {
  Reading r(true, ApiEndpoint::kCompletions);
  r.reader.OnStatus(200);
  for (int i = 0; i < 4; ++i) r.Feed("data: {\"choices\":[{\"text\":\"x\",\"finish_reason\":null}]}\n\n", i);
  r.Feed("data: [DONE]\n\n", 9);
  r.reader.Finish({}, 9, std::nullopt);
  EXPECT_TRUE(r.record.ok()) << r.record.detail;
  EXPECT_FALSE(r.record.has_usage);
  EXPECT_EQ(r.record.output_tokens, 4);
}

TEST(ReplyReader, TellsEveryKindOfFailure) {
  const auto failure = [](int status, const std::string& body, ExchangeEnd end, bool stream = true) {
    Reading r(stream);
    if (status != 0) r.reader.OnStatus(status);
    if (!body.empty()) r.Feed(body, 1);
    r.reader.Finish(end, 2, "right");
    return r.record.failure_kind() + "|" + r.record.detail;
  };
  const std::string done = "data: [DONE]\n\n";
  EXPECT_EQ(failure(0, "", {Kind::kConnect, "refused"}), "connect|refused");
  EXPECT_EQ(failure(200, Chunk("ri"), {Kind::kTimeout, "slow"}), "timeout|slow");
  EXPECT_EQ(failure(404, R"({"error":{"message":"The model `x` does not exist."}})", {}),
            "http_404|The model `x` does not exist.");
  EXPECT_EQ(failure(503, "<html>busy", {}), "http_503|<html>busy");
  EXPECT_EQ(failure(200, Chunk("ri") + "data: {\"error\":{\"message\":\"lost\"}}\n\n" + done, {}), "stream_error|lost");
  EXPECT_EQ(failure(200, Chunk("right"), {}), "cut_off|the stream ended without [DONE] after 1 pieces of text");
  EXPECT_EQ(failure(200, Chunk("right"), {Kind::kBroken, "reset"}), "cut_off|reset");
  EXPECT_EQ(failure(0, "", {Kind::kBroken, "reset"}), "cut_off|reset");
  EXPECT_EQ(failure(200, "data: {\"choices\":\n\n" + done, {}).substr(0, 10), "malformed|");
  EXPECT_EQ(failure(200, "data: {\"choices\":[{\"delta\":7}]}\n\n" + done, {}).substr(0, 10), "malformed|");
  EXPECT_EQ(failure(200, "data: [1]\n\n" + done, {}).substr(0, 10), "malformed|");
  EXPECT_EQ(failure(200, Chunk("wrong") + done, {}), "wrong_answer|expected 'right', found 'wrong'");
  EXPECT_EQ(failure(200, Chunk("right") + done, {}), "none|");
  EXPECT_EQ(failure(200, Chunk("ri"), {Kind::kCancelled, "stopped"}), "cancelled|stopped");
  const std::string whole =
      R"({"choices":[{"message":{"content":"right"},"finish_reason":"stop"}],"usage":{"completion_tokens":3}})";
  EXPECT_EQ(failure(200, whole, {}, false), "none|");
  EXPECT_EQ(failure(200, whole.substr(0, 40), {}, false).substr(0, 10), "malformed|");
  EXPECT_EQ(failure(200, R"({"error":"no"})", {}, false), "stream_error|no");
  EXPECT_EQ(failure(200, R"({"choices":[]})", {}, false).substr(0, 10), "malformed|");
}

// ----------------------------------------------------------------------------------------- answers that are too much

TEST(ReplyReader, EndsAnEndlessEvent) {
  Reading r;
  r.reader.OnStatus(200);
  const std::string block(1 << 20, 'x');
  int blocks = 0;
  while (r.reader.OnBody(block, 1) && blocks < 100) ++blocks;
  EXPECT_EQ(blocks, 16);
  r.reader.Finish({Kind::kRefused, "too large"}, 2, std::nullopt);
  EXPECT_EQ(r.record.failure_kind() + "|" + r.record.detail, "malformed|an event of more than 16 MiB");
}

TEST(ReplyReader, EndsAnEndlessStreamAndAnswer) {
  const auto failure = [](bool stream, int status, const std::string& block) {
    Reading r(stream);
    r.reader.OnStatus(status);
    std::size_t bytes = 0;
    while (r.reader.OnBody(block, 1) && bytes < (std::size_t{1} << 30)) bytes += block.size();
    r.reader.Finish({Kind::kRefused, "too large"}, 2, std::nullopt);
    return r.record.failure_kind() + "|" + r.record.detail.substr(0, 40);
  };
  const std::string comment = ":" + std::string((1 << 20) - 2, 'c') + "\n";
  EXPECT_EQ(failure(true, 200, comment), "malformed|a stream of more than 256 MiB");
  EXPECT_EQ(failure(false, 200, std::string(1 << 20, ' ')), "malformed|an answer of more than 64 MiB");
  EXPECT_EQ(failure(false, 500, std::string(1 << 20, 'e')), "http_500|" + std::string(40, 'e'));
  BodyCollector models;
  while (models.OnBody(comment, 1)) {
  }
  EXPECT_EQ(models.body().size(), BodyCollector::kMaxBytes);
}

TEST(ReplyReader, DeepJsonCostsNoStack) {
  const std::string deep = "{\"error\":" + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}";
  EXPECT_TRUE(ParsePiece(deep, ApiEndpoint::kChat, true).malformed);
  EXPECT_EQ(ErrorText(deep), deep.substr(0, 300));
  EXPECT_TRUE(ParseModels(deep).bases.empty());
}

TEST(ReplyReader, WhatFollowsTheJsonIsMalformed) {
  const std::string good = R"({"choices":[{"delta":{"content":"x"}}]})";
  EXPECT_FALSE(ParsePiece(good, ApiEndpoint::kChat, true).malformed);
  EXPECT_TRUE(ParsePiece(good + "x", ApiEndpoint::kChat, true).malformed);
  EXPECT_TRUE(ParsePiece(good + std::string(1, '\0') + "x", ApiEndpoint::kChat, true).malformed);
}

TEST(ReplyReader, CountsOfTokensAreBounded) {
  const auto tokens = [](const std::string& number) {
    const std::string body = R"({"choices":[],"usage":{"completion_tokens":)" + number + "}}";
    return ParsePiece(body, ApiEndpoint::kChat, true).usage->output_tokens;
  };
  EXPECT_EQ(tokens("12"), 12);
  EXPECT_EQ(tokens("-5"), 0);
  EXPECT_EQ(tokens("1e300"), 1'000'000'000);
  EXPECT_EQ(tokens("18446744073709551615"), 1'000'000'000);
}

TEST(ReplyReader, ShowsNoControlCharacters) {
  Reading r;
  r.reader.OnStatus(200);
  r.Feed("data: {\"error\":{\"message\":\"\\u001b[2J" + std::string(5000, 'x') + "\"}}\n\n", 1);
  r.reader.Finish({}, 2, std::nullopt);
  EXPECT_EQ(r.record.detail.substr(0, 6), " [2Jxx");
  EXPECT_EQ(r.record.detail.size(), 300u);
}

TEST(ReplyReader, ShowsValidUtf8) {
  EXPECT_EQ(ShownText("a\xFF\n\x7F"
                      "b"),
            "a\xEF\xBF\xBD  b");
  EXPECT_EQ(ShownText("\xC2\x9B"
                      "2J\xC3\xA9"),
            " 2J\xC3\xA9");  // U+009B is a control character, U+00E9 is not
  EXPECT_EQ(ShownText(std::string(299, 'x') + "\xC3\xA9"), std::string(299, 'x') + "\xEF\xBF\xBD");  // cut in two
}

TEST(ReplyReader, SurvivesGarbage) {
  Prng prng(99);
  const std::string good = std::string(kRole) + Chunk("x") + kUsage + "data: [DONE]\n\n";
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = good;
    for (int flips = 0; flips < 5; ++flips) bytes[prng.NextBelow(bytes.size())] = static_cast<char>(prng.Next());
    Reading r(prng.NextBelow(4) != 0);
    r.reader.OnStatus(200);
    r.Feed(bytes, 1);
    r.reader.Finish({}, 2, std::nullopt);
    EXPECT_GE(r.record.end, 0);
  }
}

TEST(OpenAiWire, AsksForWhatIsMeasured) {
  ApiRequest request{
      .model = "a\"b", .dialogue = {{"system", "s"}, {"user", "u\xff"}}, .max_tokens = 9, .ignore_eos = true};
  const std::string chat = ToJson(request);
  EXPECT_NE(chat.find(R"("model":"a\"b")"), std::string::npos) << chat;
  EXPECT_NE(chat.find(R"("include_usage":true)"), std::string::npos);
  EXPECT_NE(chat.find(R"("ignore_eos":true)"), std::string::npos);
  EXPECT_NE(chat.find(R"("min_tokens":9)"), std::string::npos);
  EXPECT_NE(chat.find(R"({"content":"s","role":"system"})"), std::string::npos);
  request.endpoint = ApiEndpoint::kCompletions;
  request.dialogue = {{"user", "u"}, {"assistant", "v"}, {"user", "w"}};
  EXPECT_NE(ToJson(request).find(R"("prompt":"uvw")"), std::string::npos);
}

TEST(OpenAiWire, TellsBasesFromAdapters) {
  const ModelNames names = ParseModels(
      R"({"data":[{"id":"base","parent":null},{"id":"a","parent":"base"},{"id":"b","parent":"base"},{"id":7},3,{"id":"other"}]})");
  EXPECT_EQ(names.bases, (std::vector<std::string>{"base", "other"}));
  EXPECT_EQ(names.adapters, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(ParseModels("{\"data\":3}").bases.empty());
}

TEST(OpenAiWire, LeavesOutWhatGeneratesNoText) {
  const ModelNames names = ParseModels(
      R"({"data":[{"id":"base"},{"id":"kinds","parent":"base","capabilities":["classify"]},)"
      R"({"id":"reward","parent":"base","capabilities":["classify","score","rerank"]},)"
      R"({"id":"vectors","capabilities":["embed"]},{"id":"a","parent":"base","capabilities":[]},)"
      R"({"id":"b","parent":"base","capabilities":["completion","embed"]},)"
      R"({"id":"c","parent":"base","capabilities":[3]},{"id":"d","parent":"base","capabilities":"classify"}]})");
  EXPECT_EQ(names.bases, std::vector<std::string>{"base"});
  EXPECT_EQ(names.adapters, (std::vector<std::string>{"a", "b", "c", "d"}));
}

}  // namespace
}  // namespace loramux::load::reply_reader_test
