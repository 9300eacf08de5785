#include "lab/bench/prefix_replay.h"

#include "base/prng.h"
#include "worth/eviction_policy.h"

namespace loramux::prefix_replay_test {
namespace {

Trace TraceOf(std::vector<std::vector<std::int32_t>> prompts) {
  Trace trace{.block_tokens = 512};
  for (auto& blocks : prompts) {
    // the last token's page is always computed
    const auto tokens = static_cast<std::int64_t>(blocks.size()) * 512 + 1;
    trace.arrivals.push_back({.at = static_cast<TimeNs>(trace.arrivals.size()) * kNsPerSecond,
                              .input_tokens = tokens,
                              .blocks = std::move(blocks)});
  }
  return trace;
}

std::int64_t Found(const Trace& trace, const std::string& policy, std::int64_t capacity,
                   std::int64_t pages_per_block = 1) {
  const auto recorded = PromptsOf(trace, pages_per_block);
  CHECK(recorded.ok());
  return Replay(*recorded, policy, capacity, [] {})->found_pages;
}

TEST(PromptsOf, CountsFullPagesWithoutTheLastToken) {
  Trace trace = TraceOf({{1, 2, 3}, {1, 2}});
  trace.arrivals[0].input_tokens = 1536;  // ends with a page
  trace.arrivals[1].input_tokens = 700;   // ends within one
  const auto recorded = PromptsOf(trace, 1);
  ASSERT_TRUE(recorded.ok());
  EXPECT_EQ(recorded->prompts[0].pages, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(recorded->prompts[1].pages, (std::vector<TokenId>{1}));
  EXPECT_EQ(recorded->distinct_pages, 2);
  const auto finer = PromptsOf(trace, 4);  // pages of 128
  ASSERT_TRUE(finer.ok());
  EXPECT_EQ(finer->prompts[0].pages.size(), 11u);
  EXPECT_EQ(finer->prompts[1].pages, (std::vector<TokenId>{4, 5, 6, 7, 8}));
  EXPECT_FALSE(PromptsOf(trace, 3).ok());
  EXPECT_FALSE(PromptsOf(Trace{}, 1).ok());
}

TEST(Replay, FindsWhatTheDeviceStillHolds) {
  const auto trace = TraceOf({{1, 2, 3}, {4, 5}, {1, 2, 3}, {1, 2, 6}});
  EXPECT_EQ(Found(trace, "lru", 5), 5);  // everything fits until the last prompt
  EXPECT_EQ(Found(trace, "lru", 4), 4);  // 5 replaces 3, the only leaf
  EXPECT_EQ(Found(trace, "lru", 100), 5);
  EXPECT_EQ(Found(trace, "lru", 20, 4), 20);
}

TEST(Replay, TheFutureKeepsWhatComesBack) {
  const auto trace = TraceOf({{1}, {2}, {3}, {1}, {4}, {2}});
  const auto recorded = PromptsOf(trace, 1);
  EXPECT_EQ(Found(trace, "lru", 2), 0);
  EXPECT_EQ(ReplayKnowingTheFuture(*recorded, 2).found_pages, 1);
  EXPECT_EQ(ReplayKnowingTheFuture(*recorded, 3).found_pages, 2);
}

TEST(Replay, NoPolicyFindsMoreThanTheFutureAllows) {
  Prng prng(1);
  std::vector<std::vector<std::int32_t>> prompts;
  for (int i = 0; i < 600; ++i) {
    auto& prompt = prompts.emplace_back();
    std::int64_t at = 0;  // an id names a whole prefix, as in the trace
    for (std::uint64_t depth = 1 + prng.NextBelow(6); depth > 0; --depth) {
      at = at * 5 + 1 + static_cast<std::int64_t>(std::min(prng.NextBelow(5), prng.NextBelow(5)));
      prompt.push_back(at);
    }
  }
  const auto recorded = PromptsOf(TraceOf(prompts), 1);
  ASSERT_TRUE(recorded.ok());
  std::int64_t before = 0;
  for (const std::int64_t capacity : {std::int64_t{6}, std::int64_t{20}, std::int64_t{60}, recorded->distinct_pages}) {
    const std::int64_t most = ReplayKnowingTheFuture(*recorded, capacity).found_pages;
    EXPECT_GT(most, before);
    before = most;
    for (const std::string& policy : EvictionPolicyNames()) {
      const std::int64_t found = Replay(*recorded, policy, capacity, [] {})->found_pages;
      EXPECT_LE(found, most) << policy << " with " << capacity;
      if (capacity == recorded->distinct_pages) {
        EXPECT_EQ(found, recorded->pages - recorded->distinct_pages) << policy;
      }
    }
  }
}

}  // namespace
}  // namespace loramux::prefix_replay_test
