// Snapshots of the states of recurrent layers, on the engine and a virtual clock.
#include "engine/engine_world_for_test.h"

namespace loramux::engine_states_test {
namespace {

using World = AdapterWorld;

// With states a request begins after a snapshot: where a prompt ended, after so many tokens, or where two parted. Each
// version of an adapter has its own. KvCheckingExecutor checks each state.
TEST(Engine, ARequestWithStatesBeginsAfterASnapshot) {
  World w(128, 8, {.state_pages = 2, .state_snapshot_tokens = 16, .max_batch_tokens = 24}, {2, 2});
  std::vector<TokenId> prompt;
  for (TokenId i = 1; i <= 30; ++i) prompt.push_back(i);
  const auto ask = [&](std::uint32_t adapter, const std::vector<TokenId>& tokens) {
    const RequestId id = *w.Submit(tokens, adapter, 5);
    w.Drain();
    EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(AdapterGeneration{adapter}, tokens, 5));
    return w.outcomes[id].cached_tokens;
  };
  EXPECT_EQ(ask(1, prompt), 0);
  EXPECT_EQ(w.engine->Stats().prefix.snapshots, 3);  // at 16, 28 and, in the answer, 32
  EXPECT_EQ(ask(1, prompt), 28);
  EXPECT_EQ(ask(2, prompt), 0);
  EXPECT_EQ(ask(0, prompt), 0);
  std::vector<TokenId> next = prompt;
  for (const TokenId token : ExpectedTokens(AdapterGeneration{1}, prompt, 5)) next.push_back(token);
  next.insert(next.end(), {500, 501, 502, 503});
  EXPECT_EQ(ask(1, next), 32);
  EXPECT_EQ(ask(1, next), 36);  // where that prompt ended
  std::vector<TokenId> other(prompt.begin(), prompt.begin() + 23);
  other.insert(other.end(), 12, 900);
  EXPECT_EQ(ask(1, other), 16);
  std::fill(other.begin() + 23, other.end(), 901);
  EXPECT_EQ(ask(1, other), 20);  // where the two before parted
  const auto reloaded = w.Replace("adapter-0", 2);
  EXPECT_EQ(ask(reloaded.value, prompt), 0);
  EXPECT_EQ(w.engine->Stats().prefix.copied_pages, 0);
}

// A running request takes a snapshot of what a waiting one fetches from the host tier in the same plan.
TEST(Engine, ASnapshotIsTakenBesideAFetchOfIt) {
  std::int64_t from_host = 0;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {  // several of them have such plans
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    SystemSpec spec{.state_pages = 1 + static_cast<std::int64_t>(prng.NextBelow(3)),
                    .state_snapshot_tokens = std::array{8, 16, 24}[seed % 3],
                    .max_batch_tokens = 8 + static_cast<std::int64_t>(prng.NextBelow(16))};
    spec.max_running = 2 + static_cast<std::int64_t>(prng.NextBelow(4));
    World w(36 + static_cast<std::int64_t>(prng.NextBelow(40)), 60, spec, {}, /*prefix_cache=*/true,
            seed % 2 == 1 ? "lru" : "loramux", 5e3 + 1e5 * static_cast<double>(seed % 5));
    std::map<RequestId, std::vector<TokenId>> prompts;
    for (int request = 0; request < 60; ++request) {
      const auto family = static_cast<TokenId>(1 + prng.NextBelow(3));
      std::vector<TokenId> prompt(24 + 4 * prng.NextBelow(6), family);
      for (std::uint64_t more = prng.NextBelow(12); more > 0; --more)
        prompt.push_back(static_cast<TokenId>(10 + prng.NextBelow(3)));
      prompts[*w.Submit(prompt, 0, 1 + static_cast<std::int32_t>(prng.NextBelow(12)))] = prompt;
      for (std::uint64_t steps = prng.NextBelow(8); steps > 0; --steps) w.Advance();
    }
    w.Drain();
    for (const auto& [id, prompt] : prompts) {
      const std::vector<TokenId>& tokens = w.outcomes[id].tokens;
      EXPECT_EQ(tokens, ExpectedTokens(kBaseModel, prompt, static_cast<std::int32_t>(tokens.size())));
    }
    from_host += w.engine->Stats().prefix.from_host_tokens;
  }
  EXPECT_GT(from_host, 1000);
}

// An answer has a snapshot each sixteenth of the interval. The next one takes the place of the one before, so the next
// turn begins near the end of the answer, and the others hold no memory.
TEST(Engine, TheNextTurnBeginsNearTheEndOfTheAnswer) {
  World w(128, 8, {.state_pages = 2, .state_snapshot_tokens = 128}, {2, 2});
  std::vector<TokenId> prompt(20, 7);
  const auto ask = [&](std::uint32_t adapter, std::int32_t output) {
    const RequestId id = *w.Submit(prompt, adapter, output);
    w.Drain();
    const std::vector<TokenId> answer = ExpectedTokens(AdapterGeneration{adapter}, prompt, output);
    EXPECT_EQ(w.outcomes[id].tokens, answer);
    prompt.insert(prompt.end(), answer.begin(), answer.end());
    return w.outcomes[id].cached_tokens;
  };
  EXPECT_EQ(ask(1, 40), 0);
  EngineStats stats = w.engine->Stats();
  EXPECT_EQ(stats.prefix.snapshots, 6);  // at 16, and in the answer at 24, 32, 40, 48 and 56
  EXPECT_EQ(stats.prefix.dropped_snapshots, 4);
  EXPECT_EQ(stats.history_pages, 56 / 4 + 2 * 2);
  prompt.insert(prompt.end(), 9, 8);
  EXPECT_EQ(ask(1, 90), 56);  // and has 69 tokens
  stats = w.engine->Stats();
  EXPECT_EQ(stats.history_pages, 152 / 4 + 2 * 5);  // at 16, 56, 68, 128 and 152: multiples of the interval stay
  EXPECT_EQ(ask(1, 5), 152);
  EXPECT_EQ(ask(2, 5), 0);
}

TEST(Engine, WithoutSnapshotsStatesBeginAnew) {
  World w(128, 8, {.state_pages = 2, .state_snapshot_tokens = 0}, {});
  const std::vector<TokenId> prompt(30, 5);
  for (int i = 0; i < 2; ++i) {
    const RequestId id = *w.Submit(prompt, 0, 5);
    w.Drain();
    EXPECT_EQ(w.outcomes[id].cached_tokens, 0);
  }
  EXPECT_EQ(w.engine->Stats().prefix.snapshots, 0);
  EXPECT_EQ(w.engine->Stats().history_pages, 0);
}

// A request that loses its pages goes on from its last snapshot, not from its beginning.
TEST(Engine, WhoIsPreemptedGoesOnFromItsSnapshot) {
  World w(58, 1, {.state_pages = 2, .state_snapshot_tokens = 16}, {});
  std::vector<std::vector<TokenId>> prompts;
  std::vector<RequestId> ids;
  for (TokenId i = 1; i <= 3; ++i) {
    prompts.emplace_back(30, i);
    ids.push_back(*w.Submit(prompts.back(), 0, 40));
  }
  w.Drain();
  for (std::size_t i = 0; i < ids.size(); ++i)
    EXPECT_EQ(w.outcomes[ids[i]].tokens, ExpectedTokens(kBaseModel, prompts[i], 40));
  const EngineStats stats = w.engine->Stats();
  EXPECT_EQ(stats.preemptions, 1);
  EXPECT_EQ(stats.resumed.found, 48);
}

}  // namespace
}  // namespace loramux::engine_states_test
