// The scanner of bodies against whole parsers, at every place where a body may end.
#include "router/request_scan.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "cluster/prompt_text.h"
#include "http/json_reader.h"
#include "router/answer_lengths.h"

namespace loramux::request_scan_test {
namespace {

ScannedRequest Scanned(std::string_view body) {
  ScannedRequest request;
  EXPECT_TRUE(ScanRequest(body, request)) << body;
  return request;
}

TEST(RequestScan, FindsTheFieldsWhereverTheyAre) {
  const ScannedRequest request =
      Scanned(R"( {"messages" : [{"content":"hi","role":"user"}], "tools":[{"model":"not me","stream":true}],)"
              R"("stream_options":{"stream":true}, "max_tokens": 77 ,"model":"sql"} )");
  EXPECT_EQ(request.model, "sql");
  EXPECT_FALSE(request.stream);
  EXPECT_EQ(request.max_tokens, 77);
  EXPECT_EQ(request.text, "user\x1fhi\x1e");
  EXPECT_EQ(request.text_bytes, 2);
}

TEST(RequestScan, KnowsTheFormsOfPrompts) {
  EXPECT_EQ(Scanned(R"({"prompt":"one"})").text, "one");
  EXPECT_EQ(Scanned(R"({"prompt":["one","second"]})").text, "one");
  EXPECT_EQ(Scanned(R"({"prompt":["one","second"]})").text_bytes, 9);
  EXPECT_EQ(Scanned(R"({"prompt":[1,2,3]})").token_ids, 3);
  EXPECT_EQ(Scanned(R"({"prompt":[[1,2],[3]]})").token_ids, 3);
  EXPECT_EQ(Scanned(R"({"inputs":"one","parameters":{"adapter_id":"a","max_new_tokens":5}})").adapter, "a");
  EXPECT_EQ(Scanned(R"({"inputs":"one","parameters":{"adapter_id":"a","max_new_tokens":5}})").max_tokens, 5);
  EXPECT_EQ(Scanned(R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image","x":[{}]},)"
                    R"({"type":"text","text":"b"}]}],"system":"s"})")
                .text,
            "system\x1fs\x1euser\x1f"
            "ab\x1e");
  EXPECT_EQ(Scanned(R"({"input":"one","instructions":"be brief"})").text,
            "system\x1f"
            "be brief\x1euser\x1fone\x1e");
  EXPECT_EQ(Scanned(R"({"stream":true,"lora_path":"x","model":"base"})").adapter, "x");
  EXPECT_TRUE(Scanned(R"({"stream":true})").stream);
}

TEST(RequestScan, DecodesEscapes) {
  EXPECT_EQ(Scanned(R"({"prompt":"a\n\"\\\u00e4\ud83d\ude00\/z"})").text, "a\n\"\\\u00e4\U0001F600/z");
  EXPECT_EQ(Scanned(R"({"mod\u0065l":"m"})").model, "m");
}

TEST(RequestScan, SurvivesEveryBeginningOfABody) {
  const std::string body = R"({"messages":[{"role":"user","content":[{"type":"text","text":"a\u00e4\\"}]}],)"
                           R"("n":[1,{"a":[true,null]}],"model":"sql","max_tokens":3,"parameters":{"lora":"x"}})";
  for (std::size_t size = 0; size < body.size(); ++size) {
    ScannedRequest request;
    EXPECT_FALSE(ScanRequest(std::string_view(body).substr(0, size), request)) << size;
  }
  EXPECT_EQ(Scanned(body).model, "sql");
}

// Random documents, also broken ones: the scanner finds what a parser finds, and never reads beyond the end.
TEST(RequestScan, AgreesWithAParser) {
  Prng prng(7);
  const std::vector<std::string> pieces = {"{",
                                           "}",
                                           "[",
                                           "]",
                                           ",",
                                           ":",
                                           "\"",
                                           "\\",
                                           "model",
                                           "\"model\":",
                                           "\"a\"",
                                           "1",
                                           "true",
                                           "\\u00e4",
                                           "\\ud800",
                                           " ",
                                           "\"messages\":[",
                                           "\"role\":\"user\",",
                                           "\"content\":\"c\"}",
                                           "\"content\":[{\"text\":\"t\"}]}",
                                           "]",
                                           ",",
                                           "\"prompt\":",
                                           "\"system\":",
                                           "\"input\":",
                                           "[\"x\",",
                                           "{"};
  int parsed = 0;
  for (int round = 0; round < 200'000; ++round) {
    std::string body = "{";
    for (std::uint64_t i = prng.Next() % 12; i > 0; --i) body += pieces[prng.Next() % pieces.size()];
    if (prng.Next() % 2 == 0) body += "}";
    const std::unique_ptr<char[]> exact(new char[body.size()]);  // so that sanitizers see a read beyond it
    std::copy(body.begin(), body.end(), exact.get());
    ScannedRequest request;
    const bool scanned = ScanRequest({exact.get(), body.size()}, request);
    const Json json = Json::parse(body, nullptr, false);
    if (!json.is_object()) continue;
    ++parsed;
    EXPECT_TRUE(scanned) << body;
    const auto model = json.find("model");
    if (model != json.end() && model->is_string()) EXPECT_EQ(request.model, model->get<std::string>()) << body;
    EXPECT_EQ(request.text, PromptText(json)) << body;
  }
  EXPECT_GT(parsed, 100);
}

TEST(RequestScan, KeepsTheBeginningOfALongPromptOnly) {
  const std::string prompt(5'000'000, 'x');
  const ScannedRequest request = Scanned(R"({"prompt":")" + prompt + R"(","model":"m"})");
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.text_bytes, 5'000'000);
  EXPECT_LE(request.text.size(), 65'536u);
  EXPECT_EQ(PromptTokens(request), 1'250'000);
}

TEST(RequestScan, CountsWhatARequestStarts) {
  const auto starts = [](const std::string& body) {
    const ScannedRequest request = Scanned(body);
    return std::pair(request.choices, request.prompts);
  };
  using Counts = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(starts(R"({"prompt":"x","n":4})"), Counts(4, 1));
  EXPECT_EQ(starts(R"({"prompt":["x","y","z"]})"), Counts(1, 3));
  EXPECT_EQ(starts(R"({"prompt":[1,2,3],"n":2})"), Counts(2, 1));
  EXPECT_EQ(starts(R"({"prompt":[[1,2],[3]],"n":null})"), Counts(1, 2));
  EXPECT_EQ(starts(R"({"input":["x","y"]})"), Counts(1, 2));
  EXPECT_EQ(starts(R"({"query":"q","documents":["x","y",{"text":"z"}]})"), Counts(1, 2));
  EXPECT_EQ(starts(R"({"text_1":["q"],"text_2":["x","y","z"]})"), Counts(1, 3));
  EXPECT_EQ(Scanned(R"({"query":"ab","documents":["cde",7]})").text_bytes, 5);
  EXPECT_EQ(starts(R"({"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]})"), Counts(1, 1));
}

TEST(RequestScan, KeepsFewNamesOfABodyThatRepeatsThem) {
  std::string same = "{", many = "{";
  for (int i = 0; i < 1000; ++i) {
    same += R"("model":"m",)";
    many += R"("model":")" + std::to_string(i) + "\",";
  }
  const ScannedRequest one = Scanned(same + R"("x":1})"), bounded = Scanned(many + R"("x":1})");
  EXPECT_EQ(one.names, std::vector<std::string>{"m"});
  EXPECT_TRUE(one.names_known);
  EXPECT_EQ(bounded.names.size(), ScannedRequest::kMostNames);
  EXPECT_FALSE(bounded.names_known);
}

TEST(AnswerLengths, LearnsAMeanAndForgetsWhatIsTooMuch) {
  AnswerLengths lengths;
  EXPECT_EQ(lengths.Expect("a", -1), 128);
  EXPECT_EQ(lengths.Expect("a", 10), 10);
  for (int i = 0; i < 200; ++i) lengths.Learn("a", 40);
  EXPECT_EQ(lengths.Expect("a", -1), 40);
  for (std::size_t i = 0; i <= AnswerLengths::kMostAdapters; ++i) lengths.Learn(std::to_string(i), 1);
  EXPECT_EQ(lengths.Expect("a", -1), 128);
}

}  // namespace
}  // namespace loramux::request_scan_test
