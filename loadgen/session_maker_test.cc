#include "loadgen/session_maker.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "loadgen/openai_wire.h"

namespace loramux::load::session_maker_test {
namespace {

SessionOptions Three() {
  SessionOptions options{.base_model = "base", .adapters = {"a", "b", "c"}, .seed = 4};
  options.input_tokens = *LengthDistribution::Parse("50", "--x");
  options.output_tokens = *LengthDistribution::Parse("7", "--x");
  return options;
}

std::map<std::string, int> Counts(const SessionMaker& maker, int sessions) {
  std::map<std::string, int> counts;
  for (int i = 0; i < sessions; ++i)
    ++counts[maker.models()[static_cast<std::size_t>(maker.MakeSession(i, nullptr).model)]];
  return counts;
}

std::size_t WordsIn(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), ' ')) + 1;
}

TEST(SessionMaker, ASessionDependsOnSeedAndIndexOnly) {
  const SessionMaker one = *SessionMaker::Make(Three(), nullptr), two = *SessionMaker::Make(Three(), nullptr);
  const Session late = two.MakeSession(9, nullptr);
  for (int i = 0; i < 9; ++i) (void)one.MakeSession(i, nullptr);
  const Session same = one.MakeSession(9, nullptr);
  EXPECT_EQ(late.turns[0].prompt, same.turns[0].prompt);
  EXPECT_EQ(late.model, same.model);
  EXPECT_NE(late.turns[0].prompt, one.MakeSession(8, nullptr).turns[0].prompt);
  EXPECT_EQ(late.turns[0].max_tokens, 7);
  EXPECT_TRUE(late.turns[0].ignore_eos);
}

TEST(SessionMaker, MakesAsManyWordsAsTheServerCountsTokens) {
  SessionMaker maker = *SessionMaker::Make(Three(), nullptr);
  maker.set_scale({.per_word = 2, .overhead = 10});
  EXPECT_EQ(WordsIn(maker.MakeSession(0, nullptr).turns[0].prompt), 20u);  // (50 - 10) / 2
}

TEST(SessionMaker, PicksAdapters) {
  SessionOptions options = Three();
  options.choice = AdapterChoice::kDistinct;
  EXPECT_EQ(Counts(*SessionMaker::Make(options, nullptr), 300),
            (std::map<std::string, int>{{"a", 100}, {"b", 100}, {"c", 100}}));
  options.choice = AdapterChoice::kZipf;
  options.zipf_exponent = 2;
  auto zipf = Counts(*SessionMaker::Make(options, nullptr), 4900);  // 36 : 9 : 4 of 49
  EXPECT_NEAR(zipf["a"], 3600, 130);
  EXPECT_NEAR(zipf["c"], 400, 80);
  options.choice = AdapterChoice::kUniform;
  options.base_share = 0.5;
  auto shared = Counts(*SessionMaker::Make(options, nullptr), 6000);
  EXPECT_NEAR(shared["base"], 3000, 160);
  EXPECT_NEAR(shared["b"], 1000, 120);
  options.adapters.clear();
  EXPECT_EQ(Counts(*SessionMaker::Make(options, nullptr), 5), (std::map<std::string, int>{{"base", 5}}));
}

TEST(SessionMaker, FollowsATrace) {
  SessionOptions options = Three();
  options.choice = AdapterChoice::kTrace;
  options.max_output_tokens = 30;
  EXPECT_FALSE(SessionMaker::Make(options, nullptr).ok());
  Trace without;
  EXPECT_FALSE(SessionMaker::Make(options, &without).ok());
  Trace trace{.clients = 5};
  SessionMaker maker = *SessionMaker::Make(options, &trace);
  maker.set_scale({.per_word = 1, .overhead = 0});
  const Arrival arrival{.input_tokens = 12, .output_tokens = 1000, .client = 4};
  const Session session = maker.MakeSession(0, &arrival);
  EXPECT_EQ(session.model, 1);  // client 4 of three adapters
  EXPECT_EQ(WordsIn(session.turns[0].prompt), 12u);
  EXPECT_EQ(session.turns[0].max_tokens, 30);
}

TEST(SessionMaker, SharedBlocksAreSharedText) {
  Trace trace{.block_tokens = 10};
  SessionMaker maker = *SessionMaker::Make(Three(), &trace);
  maker.set_scale({.per_word = 1, .overhead = 0});
  const Arrival one{.input_tokens = 20, .blocks = {5, 6}}, two{.input_tokens = 20, .blocks = {5, 7}};
  const std::string a = maker.MakeSession(0, &one).turns[0].prompt, b = maker.MakeSession(1, &two).turns[0].prompt;
  std::size_t common = 0;
  while (a[common] == b[common]) ++common;
  EXPECT_EQ(std::count(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(common), ' '), 10);
  EXPECT_NE(a, b);
}

TEST(SessionMaker, AsksEachAdapterItsOwnQuestions) {
  SessionOptions options = Three();
  options.turns = 3;
  options.tasks = {{"a", {{"qa", "1"}}}, {"b", {{"qb", "2"}}}, {"c", {{"qc", "3"}}}};
  const SessionMaker maker = *SessionMaker::Make(options, nullptr);
  for (int i = 0; i < 20; ++i) {
    const Session session = maker.MakeSession(i, nullptr);
    ASSERT_EQ(session.turns.size(), 3u);
    EXPECT_EQ(session.turns[2].prompt, "q" + maker.models()[static_cast<std::size_t>(session.model)]);
    EXPECT_EQ(session.turns[2].answer, std::to_string(session.model + 1));
  }
  options.base_share = 0.1;  // the base model would get requests, but has no questions
  EXPECT_FALSE(SessionMaker::Make(options, nullptr).ok());
  options.base_share = 0;
  options.tasks.pop_back();
  const auto missing = SessionMaker::Make(options, nullptr);
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("c.jsonl"), std::string::npos);
}

TEST(SessionMaker, PrefixesAreSharedWithinAModel) {
  SessionOptions options = Three();
  options.prefix_tokens = 30;
  const SessionMaker maker = *SessionMaker::Make(options, nullptr);
  std::map<int, std::string> prefixes;
  for (int i = 0; i < 30; ++i) {
    const Session session = maker.MakeSession(i, nullptr);
    const auto [at, added] = prefixes.emplace(session.model, session.prefix);
    EXPECT_EQ(at->second, session.prefix);
  }
  EXPECT_EQ(prefixes.size(), 3u);
  EXPECT_NE(prefixes[0], prefixes[1]);
}

TEST(AdapterChoice, AnUnknownNameListsTheValidOnes) {
  EXPECT_EQ(*ParseAdapterChoice("zipf"), AdapterChoice::kZipf);
  const auto unknown = ParseAdapterChoice("random");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("uniform, zipf, distinct, trace"), std::string::npos);
}

TEST(ParseServerUrl, ReadsWhatOpenAiClientsTake) {
  const auto check = [](const char* text, bool tls, const char* authority, const char* prefix) {
    const auto url = ParseServerUrl(text, "--url");
    ASSERT_TRUE(url.ok()) << text;
    EXPECT_EQ(url->tls, tls) << text;
    EXPECT_EQ(url->authority(), authority) << text;
    EXPECT_EQ(url->prefix, prefix) << text;
  };
  check("http://127.0.0.1:8000", false, "127.0.0.1:8000", "");
  check("http://host/v1/", false, "host:80", "");
  check("https://host/api/v1", true, "host:443", "/api");
  check("http://[::1]:9", false, "[::1]:9", "");
  for (const char* text : {"", "host:80", "ftp://host", "http://", "http://:80", "http://host:0", "http://host:99999",
                           "http://host:x", "http://host /x", "http://me:pw@host", "http://host/\r\nX: y"}) {
    EXPECT_FALSE(ParseServerUrl(text, "--url").ok()) << text;
  }
}

}  // namespace
}  // namespace loramux::load::session_maker_test
