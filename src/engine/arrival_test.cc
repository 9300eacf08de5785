// Requests that begin while layers of their adapter or of their history are still arriving: on a virtual clock, and on a
// real model with a link that the test opens layer by layer.
#include "engine/engine_world_for_test.h"

namespace loramux {
namespace {

constexpr std::int64_t kAdapterPages = 8;

// An adapter takes 20 ms from the host to the device, 5 ms a layer; so does a path of 8 pages. A step takes 5 ms and more.
struct World : EngineWorld {
  explicit World(std::int64_t device_pages = 60)
      : EngineWorld({.device_pages = device_pages, .host_pages = 64, .host_bytes_per_second = kAdapterPages * 64 / 20e-3}) {}

  void StepUntil(const std::function<bool()>& condition) {
    for (int i = 0; i < 10000 && !condition(); ++i) {
      while (engine->Step()) {}
      if (!condition()) ASSERT_TRUE(Advance());
    }
  }
  void FailHostToDevice(ModeledTransfer& link, bool fail = true) {
    if (!fail) return link.set_fault(nullptr);
    link.set_fault([](const TransferJob& job) {
      return job.kind == TransferKind::kHostToDevice ? std::optional<Error>(IoError("injected")) : std::nullopt;
    });
  }
};

const std::vector<TokenId> kPrompt(9, 5);

TEST(Arrival, ARequestBeginsWithTheFirstLayersOfItsAdapter) {
  World w;
  const AdapterGeneration adapter = w.Load("x", kAdapterPages);
  const RequestId id = *w.Submit(kPrompt, adapter, 4);
  w.StepUntil([&] { return w.engine->Stats().early_admissions > 0; });
  EXPECT_EQ(w.engine->Stats().adapters.device_loads, 0);
  EXPECT_EQ(w.engine->Stats().running, 1);
  w.Drain();
  EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(adapter, kPrompt, 4));
  EXPECT_GT(w.executor->layers_read_early(), 0);
  EXPECT_GT(w.engine->Stats().step_wait_total, 0);   // alone it may: its step is shorter than the link's 15 ms
  EXPECT_LE(w.engine->Stats().step_wait_total, 15 * kNsPerMs);
  EXPECT_EQ(w.executor->discarded(), 0);
}

// With others in the batch, a step begins with it only when the rest is expected in time: and then it is.
TEST(Arrival, TheStepsOfOthersDoNotWait) {
  World w(600);
  std::vector<RequestId> others;   // whose step takes 7 ms
  for (TokenId first = 1; first <= 40; ++first) others.push_back(*w.Submit({first, 2, 3}, kBaseModel, 40));
  for (int i = 0; i < 5; ++i) w.Advance();
  const AdapterGeneration adapter = w.Load("x", kAdapterPages);
  const RequestId id = *w.Submit(kPrompt, adapter, 4);
  w.Drain();
  EXPECT_EQ(w.engine->Stats().early_admissions, 1);
  EXPECT_EQ(w.engine->Stats().step_wait_total, 0);
  EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(adapter, kPrompt, 4));
  for (TokenId first = 1; first <= 40; ++first) {
    EXPECT_EQ(w.outcomes[others[static_cast<std::size_t>(first - 1)]].tokens, ExpectedTokens(kBaseModel, {first, 2, 3}, 40));
  }
}

// The load fails when the step that uses its first layers has begun.
TEST(Arrival, AFaultFailsOnlyTheRequestsOfItsAdapter) {
  World w;
  w.FailHostToDevice(w.transfer);
  const AdapterGeneration adapter = w.Load("x", kAdapterPages);
  const RequestId broken = *w.Submit(kPrompt, adapter, 4);
  w.StepUntil([&] { return w.engine->Stats().early_admissions > 0; });
  const RequestId waiting = *w.Submit(kPrompt, adapter, 4), other = *w.Submit(kPrompt, kBaseModel, 4);
  w.Drain();
  EXPECT_EQ(w.executor->discarded(), 1);
  for (const RequestId id : {broken, waiting}) {
    EXPECT_EQ(w.outcomes[id].error, "injected");
    EXPECT_TRUE(w.outcomes[id].tokens.empty());
    EXPECT_EQ(w.outcomes[id].ends, 1);
  }
  EXPECT_EQ(w.outcomes[other].tokens, ExpectedTokens(kBaseModel, kPrompt, 4));
  EXPECT_EQ(w.device->Stats().used(PageCategory::kAdapter), 0);
  EXPECT_EQ(w.engine->Stats().adapters.load_failures, 1);
  w.FailHostToDevice(w.transfer, false);
  const RequestId again = *w.Submit(kPrompt, adapter, 4);
  w.Drain();
  EXPECT_EQ(w.outcomes[again].tokens, ExpectedTokens(adapter, kPrompt, 4));
  EXPECT_EQ(w.outcomes[again].cached_tokens, 0);   // nothing of the garbage was kept
}

// A client that goes, and an adapter whose name goes, while the step is in flight.
TEST(Arrival, WhoLeavesInTheMiddleLeavesNothing) {
  for (const bool fail : {false, true}) {
    World w;
    w.FailHostToDevice(w.transfer, fail);
    const AdapterGeneration adapter = w.Load("x", kAdapterPages);
    const RequestId id = *w.Submit(kPrompt, adapter, 4);
    w.StepUntil([&] { return w.engine->Stats().early_admissions > 0; });
    w.engine->Cancel(id);
    ASSERT_TRUE(w.registry.Remove("x").ok());
    w.Drain();
    EXPECT_EQ(w.outcomes[id].ends, 1);
    EXPECT_EQ(w.engine->Stats().adapters.known, 0);
    EXPECT_EQ(w.device->free_pages(), w.device->capacity_pages());
    EXPECT_EQ(w.host->free_pages(), w.host->capacity_pages());
  }
}

// ---------------------------------------------------------------- History

// Six prompts of 8 full pages each in 24 pages: the first ones are in the host tier.
struct HistoryWorld : World {
  HistoryWorld() : World(24) {
    for (TokenId first = 1; first <= 6; ++first) Ask(first);
    EXPECT_GT(engine->Stats().kv_tiers.pages_backed_up, 0);
    found = engine->Stats().prefix.found_tokens;
  }
  static std::vector<TokenId> PromptOf(TokenId first) { return std::vector<TokenId>(33, first); }
  std::int32_t Ask(TokenId first) {
    const RequestId id = *Submit(PromptOf(first), kBaseModel, 2);
    Drain();
    EXPECT_EQ(outcomes[id].tokens, ExpectedTokens(kBaseModel, PromptOf(first), 2));
    return outcomes[id].cached_tokens;
  }
  std::int64_t Found() const { return engine->Stats().prefix.found_tokens - found; }
  std::int64_t found = 0;
};

TEST(Arrival, ARequestBeginsWithTheFirstLayersOfItsHistory) {
  HistoryWorld w;
  const RequestId id = *w.Submit(w.PromptOf(1), kBaseModel, 2);
  w.StepUntil([&] { return w.engine->Stats().early_admissions > 0; });
  EXPECT_EQ(w.engine->Stats().kv_tiers.fetches, 0);   // it has not ended
  w.Drain();
  EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(kBaseModel, w.PromptOf(1), 2));
  EXPECT_GE(w.outcomes[id].cached_tokens, 24);
  EXPECT_EQ(w.Found(), w.outcomes[id].cached_tokens);
  EXPECT_GT(w.executor->layers_read_early(), 0);
  EXPECT_EQ(w.executor->discarded(), 0);
}

TEST(Arrival, HistoryThatFailsToArriveIsComputed) {
  HistoryWorld w;
  w.FailHostToDevice(w.kv_transfer);
  const std::int64_t computed = w.engine->Stats().tokens_prefilled;
  const RequestId id = *w.Submit(w.PromptOf(1), kBaseModel, 2);
  w.StepUntil([&] { return w.engine->Stats().early_admissions > 0; });
  w.Drain();
  EXPECT_EQ(w.executor->discarded(), 1);
  EXPECT_EQ(w.engine->Stats().preemptions, 1);
  EXPECT_EQ(w.engine->Stats().kv_tiers.failed_jobs, 1);
  EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(kBaseModel, w.PromptOf(1), 2));
  EXPECT_EQ(w.outcomes[id].cached_tokens, 0);   // and it says so
  EXPECT_EQ(w.Found(), 0);
  EXPECT_GE(w.engine->Stats().tokens_prefilled - computed, 33);
  w.FailHostToDevice(w.kv_transfer, false);
  EXPECT_EQ(w.Ask(1), 32);   // what it computed the second time is right: KvCheckingExecutor looks
}

TEST(Arrival, AFetchForNobodyIsCancelled) {
  for (const bool another_waits : {false, true}) {
    HistoryWorld w;
    const RequestId id = *w.Submit(w.PromptOf(1), kBaseModel, 2);
    while (w.engine->Step()) {}
    const auto other = another_waits ? std::optional(*w.Submit(w.PromptOf(1), kBaseModel, 2)) : std::nullopt;
    while (w.engine->Step()) {}
    const std::int64_t free = w.device->free_pages();
    w.engine->Cancel(id);
    while (w.engine->Step()) {}
    EXPECT_EQ(w.engine->Stats().kv_tiers.cancelled_fetches, another_waits ? 0 : 1);
    if (!another_waits) EXPECT_GT(w.device->free_pages(), free);   // at once, not after 20 ms
    w.Drain();
    EXPECT_EQ(w.engine->Stats().kv_tiers.fetches, another_waits ? 1 : 0);
    EXPECT_EQ(w.engine->Stats().kv_tiers.failed_jobs, 0);
    if (other) EXPECT_GE(w.outcomes[*other].cached_tokens, 24);
    EXPECT_GE(w.Ask(1), 24);   // the copy in the host tier is still there
  }
}

}  // namespace
}  // namespace loramux
