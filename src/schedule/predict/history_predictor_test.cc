#include "schedule/predict/history_predictor.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <xxhash.h>

#include "base/prng.h"
#include "schedule/predict/hint_predictor.h"

namespace loramux::history_predictor_test {
namespace {

LengthQuery Query(std::string_view adapter, std::int32_t prompt = 100, std::int32_t most = 100000) {
  return {.adapter_digest = adapter, .prompt_tokens = prompt, .max_output_tokens = most};
}

void Observe(HistoryPredictor& history, const LengthQuery& query, std::int32_t tokens, int times = 1) {
  for (int i = 0; i < times; ++i) history.Observe(query, tokens);
}

// A log-normal number, from the sum of twelve uniform ones.
std::int32_t LogNormal(Prng& prng, double median, double sigma) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += prng.NextDouble();
  return static_cast<std::int32_t>(std::lround(std::max(1.0, median * std::exp(sigma * sum))));
}

TEST(HistoryPredictor, BucketsAreHalfOctavesAndTheLastIsOpen) {
  std::vector<std::size_t> buckets;
  for (const int tokens : {-5, 0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 15, 16})
    buckets.push_back(HistoryPredictor::BucketOf(tokens));
  EXPECT_EQ(buckets, (std::vector<std::size_t>{0, 0, 0, 2, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8}));
  for (int tokens = 2; tokens < 1 << 20; tokens += 1 + tokens / 3) {
    EXPECT_GE(HistoryPredictor::BucketOf(tokens), HistoryPredictor::BucketOf(tokens - 1));
  }
  EXPECT_EQ(HistoryPredictor::BucketOf(std::numeric_limits<std::int32_t>::max()), HistoryPredictor::kPromptBuckets - 1);
}

TEST(HistoryPredictor, WithoutHistoryTheUsualWithinWhatTheClientAllows) {
  HistoryPredictor history;
  EXPECT_EQ(history.Predict(Query("a")), 256);
  EXPECT_EQ(history.Predict(Query("a", 100, 16)), 16);
  // Even for a request that may not generate any more tokens, at least 1.
  EXPECT_EQ(history.Predict(Query("a", 100, 0)), 1);
  EXPECT_EQ(history.adapters(), 0u);
}

TEST(HistoryPredictor, LearnsAnAdaptersLengthsByThePromptsLength) {
  HistoryPredictor history;
  Observe(history, Query("a", 10), 20, 100);
  Observe(history, Query("a", 1000), 500, 100);
  Observe(history, Query("b", 10), 3, 100);
  EXPECT_NEAR(history.Predict(Query("a", 11)), 20, 2);
  EXPECT_NEAR(history.Predict(Query("a", 1000)), 500, 40);
  EXPECT_NEAR(history.Predict(Query("b", 10)), 3, 1);
  const int elsewhere = history.Predict(Query("a", 100));  // no such prompt seen: the adapter's mean over all prompts
  EXPECT_GT(elsewhere, 40);
  EXPECT_LT(elsewhere, 250);
}

TEST(HistoryPredictor, ANewAdapterBeginsWithWhatIsUsualAndLeavesItQuickly) {
  HistoryPredictor history;
  for (const char* adapter : {"a", "b", "c"}) Observe(history, Query(adapter), 100, 50);
  EXPECT_NEAR(history.Predict(Query("new")), 100, 5);
  Observe(history, Query("new"), 10, 3);
  EXPECT_LT(history.Predict(Query("new")), 50);
  Observe(history, Query("new"), 10, 20);
  EXPECT_LE(history.Predict(Query("new")), 12);
  EXPECT_GE(history.Predict(Query("a")), 90);  // other adapters keep their predictions
}

TEST(HistoryPredictor, FindsTheMedianOfLogNormalLengths) {
  for (const double median : {8.0, 150.0, 900.0}) {
    for (const double sigma : {0.3, 1.0}) {
      HistoryPredictor history;
      Prng prng(7);
      double guesses = 0;
      for (int i = 0; i < 2000; ++i) {
        history.Observe(Query("a"), LogNormal(prng, median, sigma));
        if (i >= 1000) guesses += std::log(history.Predict(Query("a"))) / 1000;
      }
      EXPECT_NEAR(std::exp(guesses), median, 0.1 * median) << sigma;
    }
  }
}

TEST(HistoryPredictor, FollowsAChange) {
  HistoryPredictor history;
  Observe(history, Query("a"), 400, 5000);
  Observe(history, Query("a"), 100, 512);
  EXPECT_LT(history.Predict(Query("a")), 150);
}

TEST(HistoryPredictor, OneOddLengthMovesLittle) {
  HistoryPredictor history;
  Observe(history, Query("a"), 20, 50);
  Observe(history, Query("a"), 30000, 1);
  EXPECT_LE(history.Predict(Query("a")), 22);
}

TEST(HistoryPredictor, WhatMaxTokensCutOffNeverShortensAGuess) {
  HistoryPredictor history;
  Observe(history, Query("a"), 200, 100);
  const int before = history.Predict(Query("a"));
  Observe(history, Query("a", 100, 16), 16, 100);  // all cut off
  EXPECT_EQ(history.Predict(Query("a")), before);
  EXPECT_EQ(history.Predict(Query("a", 100, 16)), 16);
  Observe(history, Query("a", 100, 1000), 1000, 100);  // at least a thousand
  EXPECT_GT(history.Predict(Query("a")), 400);
}

TEST(HistoryPredictor, ForgetsTheAdapterThatWasNotUsedForLongest) {
  HistoryPredictor history(/*max_adapters=*/3);
  for (const char* adapter : {"a", "b", "c"}) Observe(history, Query(adapter), 10, 100);
  Observe(history, Query("a"), 10);
  for (int i = 0; i < 100; ++i) history.Predict(Query("b"));  // predictions do not count as use
  Observe(history, Query("d"), 5000, 100);
  EXPECT_EQ(history.adapters(), 3u);
  EXPECT_NEAR(history.Predict(Query("a")), 10, 2);
  EXPECT_NEAR(history.Predict(Query("d")), 5000, 1000);
  EXPECT_EQ(history.Predict(Query("b")), history.Predict(Query("nobody")));
  for (int i = 0; i < 10000; ++i) Observe(history, Query("adapter " + std::to_string(i)), 10);
  EXPECT_EQ(history.adapters(), 3u);
}

TEST(HistoryPredictor, TheBaseModelIsAnAdapterOfItsOwn) {
  HistoryPredictor history;
  Observe(history, Query(""), 1000, 100);
  Observe(history, Query("a"), 10, 100);
  EXPECT_NEAR(history.Predict(Query("")), 1000, 150);
}

TEST(HintPredictor, AHintIsTakenAndTheHistoryLearnsBesides) {
  HistoryPredictor history;
  HintPredictor predictor(&history);
  for (int i = 0; i < 50; ++i) predictor.Observe(Query("a"), 30);
  EXPECT_NEAR(predictor.Predict(Query("a")), 30, 2);
  LengthQuery query = Query("a", 100, 500);
  query.hint = 77;
  EXPECT_EQ(predictor.Predict(query), 77);
  query.hint = 5000;
  EXPECT_EQ(predictor.Predict(query), 500);
}

// ---------------------------------------------------------------- Serialisation

HistoryPredictor& Filled(HistoryPredictor& history, std::uint64_t seed = 3) {
  Prng prng(seed);
  for (int i = 0; i < 3000; ++i) {
    const auto adapter = std::to_string(prng.NextBelow(40));
    history.Observe(Query(adapter, static_cast<std::int32_t>(1 + prng.NextBelow(4000))), LogNormal(prng, 50, 1));
  }
  return history;
}

TEST(HistoryPredictor, ComesBackAsItWas) {
  HistoryPredictor first, second;
  const std::string bytes = Filled(first).Serialise();
  ASSERT_TRUE(second.Restore(bytes).ok());
  EXPECT_EQ(second.Serialise(), bytes);
  for (int adapter = 0; adapter < 50; ++adapter) {
    for (const int prompt : {1, 30, 900, 100000}) {
      const std::string name = std::to_string(adapter);
      EXPECT_EQ(first.Predict(Query(name, prompt)), second.Predict(Query(name, prompt)));
    }
  }
  Filled(first, 4);  // both also learn alike
  Filled(second, 4);
  EXPECT_EQ(first.Serialise(), second.Serialise());
}

TEST(HistoryPredictor, OfTooManyTheMostRecentComeBack) {
  HistoryPredictor many, few(/*max_adapters=*/2);
  for (const char* adapter : {"a", "b", "c"}) Observe(many, Query(adapter), adapter[0] == 'b' ? 10 : 1000, 60);
  ASSERT_TRUE(few.Restore(many.Serialise()).ok());
  EXPECT_EQ(few.adapters(), 2u);
  EXPECT_LT(few.Predict(Query("b")), 15);
  EXPECT_EQ(few.Predict(Query("a")), few.Predict(Query("nobody")));
}

TEST(HistoryPredictor, DamagedBytesAreRefusedAndChangeNothing) {
  HistoryPredictor source, target;
  const std::string bytes = Filled(source).Serialise();
  Observe(target, Query("mine"), 12, 60);
  const std::string before = target.Serialise();
  for (std::size_t size = 0; size < bytes.size(); size += 1 + size / 7)
    EXPECT_FALSE(target.Restore(bytes.substr(0, size)).ok()) << size;
  EXPECT_FALSE(target.Restore(bytes + "x").ok());
  Prng prng(11);
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = bytes;
    const std::size_t at = i < 24 ? static_cast<std::size_t>(i) : prng.NextBelow(damaged.size());
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << prng.NextBelow(8)));
    EXPECT_FALSE(target.Restore(damaged).ok()) << at;
  }
  EXPECT_EQ(target.Serialise(), before);
}

// Impossible values are refused even with a correct checksum.
TEST(HistoryPredictor, ValuesThatNoHistoryHasAreRefused) {
  HistoryPredictor source, target;
  Observe(source, Query("a"), 12, 5);
  Observe(source, Query("b"), 12, 5);
  const std::string bytes = source.Serialise();
  const std::size_t group = 8 * (1 + HistoryPredictor::kPromptBuckets), header = 24;
  const auto sealed = [&](std::string changed) {
    const std::uint64_t check = XXH3_64bits_withSeed(changed.data() + header, changed.size() - header, 2);
    std::memcpy(changed.data() + 16, &check, sizeof(check));
    return changed;
  };
  EXPECT_TRUE(target.Restore(sealed(bytes)).ok());
  for (const float value : {-1.0f, 1e30f, std::nanf(""), INFINITY}) {
    for (const std::size_t offset : {header, header + group + 8, header + 2 * group + 16 + 8}) {
      std::string changed = bytes;
      std::memcpy(changed.data() + offset, &value, sizeof(value));
      EXPECT_FALSE(target.Restore(sealed(changed)).ok()) << value << " at " << offset;
    }
  }
  std::string twice = bytes;
  std::memcpy(twice.data() + header + group, twice.data() + header + 2 * group + 8, 8);
  const Status refused = target.Restore(sealed(twice));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("twice"), std::string::npos);
}

// ---------------------------------------------------------------- Accuracy (figures: docs/design/scheduling.md)

struct Quality {
  int requests = 0, within_quarter = 0, within_half = 0;  // error within this part of the true length
  double error_tokens = 0, tokens = 0;
  void Add(int guess, int truth) {
    ++requests;
    const double error = std::abs(guess - truth);
    within_quarter += error <= 0.25 * truth;
    within_half += error <= 0.5 * truth;
    error_tokens += error;
    tokens += truth;
  }
  double relative_error() const { return error_tokens / tokens; }
  void Print(const char* name) const {
    std::printf(
        "[ accuracy ] %-24s %6d requests: %4.1f %% within a quarter, %4.1f %% within half; error %4.1f %% of the "
        "tokens\n",
        name, requests, 100.0 * within_quarter / requests, 100.0 * within_half / requests, 100 * relative_error());
  }
};

struct Served {
  std::string adapter;
  int prompt = 0, output = 0;
};

// Predicts each request before learning from it. `knows`: the predictor is told the adapter and the length of the
// prompt.
Quality Replay(const std::vector<Served>& requests, bool knows) {
  HistoryPredictor history;
  Quality quality;
  for (const Served& served : requests) {
    const LengthQuery query = knows ? Query(served.adapter, served.prompt) : Query("", 1);
    quality.Add(history.Predict(query), served.output);
    history.Observe(query, served.output);
  }
  return quality;
}

// The demo's held-out questions, shuffled. Its tokens are bytes.
std::vector<Served> DemoRequests() {
  std::vector<Served> requests;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(LORAMUX_SOURCE_DIR) / "demo" / "eval")) {
    std::ifstream lines(entry.path());
    for (std::string line; std::getline(lines, line);) {
      const auto sample = nlohmann::json::parse(line);
      requests.push_back({entry.path().stem(), static_cast<int>(sample["prompt"].get<std::string>().size()) + 4,
                          static_cast<int>(sample["answer"].get<std::string>().size())});
    }
  }
  std::sort(requests.begin(), requests.end(), [](const Served& a, const Served& b) {
    return std::tie(a.adapter, a.prompt, a.output) < std::tie(b.adapter, b.prompt, b.output);
  });
  Prng prng(5);
  for (std::size_t i = requests.size(); i > 1; --i) std::swap(requests[i - 1], requests[prng.NextBelow(i)]);
  return requests;
}

TEST(HistoryPredictor, IsAccurateOnTheDemoTasks) {
  const std::vector<Served> requests = DemoRequests();
  ASSERT_GE(requests.size(), 1200u);
  const Quality informed = Replay(requests, true), blind = Replay(requests, false);
  informed.Print("demo, history");
  blind.Print("demo, one mean for all");
  EXPECT_GT(informed.within_quarter, 0.7 * informed.requests);
  EXPECT_LT(informed.relative_error(), 0.6 * blind.relative_error());
}

// A trace of conversations with one model, so the length of the prompt is the only information.
TEST(HistoryPredictor, OnAConversationTrace) {
  std::ifstream lines(std::filesystem::path(LORAMUX_SOURCE_DIR) / ".." / "shared" / "data" / "traces" /
                      "AzureLLMInferenceTrace_conv.csv");
  if (!lines) GTEST_SKIP() << "no shared/ beside the checkout";
  std::vector<Served> requests;
  std::string line;
  std::getline(lines, line);  // the header
  while (std::getline(lines, line)) {
    const std::size_t first = line.find(','), second = line.find(',', first + 1);
    requests.push_back({"", std::atoi(line.c_str() + first + 1), std::atoi(line.c_str() + second + 1)});
  }
  ASSERT_GT(requests.size(), 19000u);
  const Quality informed = Replay(requests, true), blind = Replay(requests, false);
  informed.Print("conversations, history");
  blind.Print("conversations, one mean");
  EXPECT_LE(informed.relative_error(), blind.relative_error());
}

}  // namespace
}  // namespace loramux::history_predictor_test
