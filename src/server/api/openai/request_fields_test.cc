#include "server/api/openai/request_fields.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "server/api/openai/openai_request.h"

namespace loramux::request_fields_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

const RequestLimits kLimits{1000};

std::string Chat(const std::string& extra) {
  return R"({"model":"m","messages":[{"role":"user","content":"hi"}],)" + extra + "}";
}
std::string Completion(const std::string& extra) { return R"({"model":"m","prompt":"hi",)" + extra + "}"; }
std::string Embedding(const std::string& extra) { return R"({"model":"m","input":"hi",)" + extra + "}"; }

std::vector<std::pair<std::string, std::string>> Mistakes(const std::string& body) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const LikelyMistake& mistake : LikelyMistakes(*ParseJson(body), kChatBody)) {
    found.emplace_back(mistake.name, mistake.meant);
  }
  return found;
}

TEST(RequestFields, NoNameIsThereTwiceForOneEndpoint) {
  std::map<std::string_view, int> seen;
  for (const RequestField& field : RequestFields()) {
    EXPECT_EQ(seen[field.name] & field.endpoints, 0) << field.name;
    seen[field.name] |= field.endpoints;
    EXPECT_EQ(field.hint.find('\n'), std::string_view::npos) << field.name;
  }
}

TEST(RequestFields, NeutralValuesAreJsonAndOnlyOfRefusedFields) {
  for (const RequestField& field : RequestFields()) {
    if (field.neutral.empty()) continue;
    EXPECT_EQ(field.use, FieldUse::kRefused) << field.name;
    EXPECT_TRUE(ParseJson(field.neutral).ok()) << field.name;
  }
}

// A refused field is refused by name by the parser of its endpoint, and its neutral value is accepted.
TEST(RequestFields, ParsersRefuseByTheTable) {
  for (const RequestField& field : RequestFields()) {
    if (field.use != FieldUse::kRefused) continue;
    const std::string name = '"' + std::string(field.name) + "\":";
    const std::string neutral = name + (field.neutral.empty() ? "false" : std::string(field.neutral));
    if ((field.endpoints & kChatBody) != 0) {
      const auto refused = ParseChatRequest(Chat(name + "7"), kLimits);
      ASSERT_FALSE(refused.ok()) << field.name;
      EXPECT_EQ(refused.error().param, field.name);
      EXPECT_TRUE(ParseChatRequest(Chat(neutral), kLimits).ok()) << neutral;
    }
    if ((field.endpoints & kCompletionBody) != 0) {
      const auto refused = ParseCompletionRequest(Completion(name + "7"), kLimits);
      ASSERT_FALSE(refused.ok()) << field.name;
      EXPECT_EQ(refused.error().param, field.name);
      EXPECT_TRUE(ParseCompletionRequest(Completion(neutral), kLimits).ok()) << neutral;
    }
    if ((field.endpoints & kEmbeddingBody) != 0) {
      const auto refused = ParseEmbeddingRequest(Embedding(name + "7"), kLimits);
      ASSERT_FALSE(refused.ok()) << field.name;
      EXPECT_EQ(refused.error().param, field.name);
      EXPECT_TRUE(ParseEmbeddingRequest(Embedding(neutral), kLimits).ok()) << neutral;
    }
    const auto check = [&](FieldEndpoints endpoint, const std::string& body, auto parse) {
      if ((field.endpoints & endpoint) == 0) return;
      const auto refused = parse(body + name + "7}", kLimits);
      ASSERT_FALSE(refused.ok()) << field.name;
      EXPECT_EQ(refused.error().param, field.name);
      EXPECT_TRUE(parse(body + neutral + "}", kLimits).ok()) << neutral;
    };
    check(kClassifyBody, R"({"model":"m","input":"hi",)", ParseClassifyRequest);
    check(kScoreBody, R"({"model":"m","text_1":"hi","text_2":"ho",)", ParseScoreRequest);
    check(kRerankBody, R"({"model":"m","query":"hi","documents":["ho"],)",
          [](std::string_view body, const auto& limits) {
            RerankReply reply;
            return ParseRerankRequest(body, limits, reply);
          });
  }
}

TEST(RequestFields, WhatIsRefusedAndWhatAsksForNothing) {
  const std::pair<const char*, const char*> refused[] = {{R"("ebnf":"root ::= x")", "ebnf"},
                                                         {R"("format":{"type":"object"})", "format"},
                                                         {R"("num_beams":4)", "num_beams"},
                                                         {R"("no_repeat_ngram_size":3)", "no_repeat_ngram_size"},
                                                         {R"("mirostat":2)", "mirostat"},
                                                         {R"("mirostat_tau":4.5)", "mirostat_tau"},
                                                         {R"("modalities":["text","audio"])", "modalities"},
                                                         {R"("return_tokens":true)", "return_tokens"},
                                                         {R"("do_sample":false)", "do_sample"},
                                                         {R"("enable_thinking":false)", "enable_thinking"},
                                                         {R"("options":{"num_predict":3})", "options"},
                                                         {R"("max_new_tokens":5)", "max_new_tokens"},
                                                         {R"("repeat_penalty":1.1)", "repeat_penalty"},
                                                         {R"("extra_body":{"top_k":1})", "extra_body"}};
  for (const auto& [extra, name] : refused) {
    const auto request = ParseChatRequest(Chat(extra), kLimits);
    ASSERT_FALSE(request.ok()) << extra;
    EXPECT_EQ(request.error().param, name);
    EXPECT_EQ(request.error().code, ErrorCode::kUnsupported);
  }
  for (const char* extra :
       {R"("mirostat":0,"mirostat_tau":5.0,"mirostat_eta":0.1)", R"("modalities":["text"],"num_beams":1)",
        R"("ebnf":null,"format":"","regex":"","options":{},"bad_words":[])", R"("typical_p":1.0,"repeat_penalty":1)",
        R"("do_sample":true,"think":null,"echo":false)"}) {
    EXPECT_TRUE(ParseChatRequest(Chat(extra), kLimits).ok()) << extra;
  }
}

TEST(RequestFields, AHintSaysWhatToDo) {
  const auto error = [](const char* extra) { return ParseChatRequest(Chat(extra), kLimits).error().message; };
  EXPECT_EQ(error(R"("max_new_tokens":5)"),
            "`max_new_tokens`: this server does not support it; send `max_tokens` (found 5)");
  EXPECT_EQ(error(R"("typical_p":0.5)"), "`typical_p`: this server does not support it; leave it out (found 0.5)");
}

TEST(RequestFields, NamesThatAreProbablyMisspelt) {
  EXPECT_THAT(Mistakes(R"({"temprature":1})"), ElementsAre(Pair("temprature", "temperature")));
  EXPECT_THAT(Mistakes(R"({"temperatur":1,"teemperature":1,"temperbture":1})"),
              ElementsAre(Pair("temperatur", "temperature"), Pair("teemperature", "temperature"),
                          Pair("temperbture", "temperature")));
  EXPECT_THAT(
      Mistakes(R"({"sotp":"x","max_token":3,"topK":1,"Seed":3})"),
      ElementsAre(Pair("sotp", "stop"), Pair("max_token", "max_tokens"), Pair("topK", "top_k"), Pair("Seed", "seed")));
  EXPECT_THAT(Mistakes(R"({"temperature":1,"model":"x","messages":[],"x":1,"m":1,"something_else":2,"":0})"),
              IsEmpty());
  EXPECT_THAT(Mistakes(R"({"temerture":1})"), IsEmpty());  // two edits
}

// What is reported goes into a header and the log.
TEST(RequestFields, MisspeltNamesAreHarmless) {
  EXPECT_THAT(Mistakes(R"({"temper\rature":1,"temper\nature":1,"temper;ature":1,"tempér":1})"),
              ElementsAre(Pair("temper?ature", "temperature"), Pair("temper?ature", "temperature"),
                          Pair("temper?ature", "temperature")));
  std::string many = "{";
  for (char c = 'a'; c <= 'z'; ++c) many += std::string(c == 'a' ? "" : ",") + "\"temperature" + c + "\":1";
  EXPECT_EQ(Mistakes(many + "}").size(), 8u);
}

TEST(RequestFields, ParsersReportMisspeltNames) {
  const auto chat = ParseChatRequest(Chat(R"("temprature":0)"), kLimits);
  ASSERT_EQ(chat->mistakes.size(), 1u);
  EXPECT_EQ(chat->mistakes[0].meant, "temperature");
  const auto completion = ParseCompletionRequest(Completion(R"("promt":"x","suffixx":1)"), kLimits);
  ASSERT_EQ(completion->mistakes.size(), 2u);
  EXPECT_EQ(completion->mistakes[0].meant, "prompt");
}

}  // namespace
}  // namespace loramux::request_fields_test
