// Requests that begin while layers of their adapter or of their history are still arriving: on a virtual clock, and on
// a real model with a link that the test opens layer by layer.
#include <atomic>
#include <functional>
#include <thread>

#include "engine/engine_world_for_test.h"
#include "runtime/gated_world_for_test.h"
#include "runtime/runtime.h"

namespace loramux::arrival_test {
namespace {

constexpr std::int64_t kAdapterPages = 8;

// An adapter takes 20 ms from the host to the device, 5 ms per layer; so does a path of 8 pages. A step takes at least
// 5 ms.
struct World : EngineWorld {
  explicit World(std::int64_t device_pages = 60)
      : EngineWorld(
            {.device_pages = device_pages, .host_pages = 64, .host_bytes_per_second = kAdapterPages * 64 / 20e-3}) {}

  void StepUntil(const std::function<bool()>& condition) {
    for (int i = 0; i < 10000 && !condition(); ++i) {
      while (engine->Step()) {
      }
      if (!condition()) ASSERT_TRUE(Advance());
    }
  }
  void FailHostToDevice(ModeledTransfer& link, bool fail = true) {
    if (!fail) return link.set_fault(nullptr);
    link.set_fault([](const TransferJob& job) {
      return job.kind() == TransferKind::kHostToDevice ? std::optional<Error>(IoError("injected")) : std::nullopt;
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
  EXPECT_GT(w.engine->Stats().step_wait_total, 0);  // allowed when alone: its step is shorter than the link's 15 ms
  EXPECT_LE(w.engine->Stats().step_wait_total, 15 * kNsPerMs);
  EXPECT_EQ(w.executor->discarded(), 0);
}

// With others in the batch, a step starts with it only if the remaining layers are expected in time, and they are.
TEST(Arrival, TheStepsOfOthersDoNotWait) {
  World w(600);
  std::vector<RequestId> others;  // their step takes 7 ms
  for (TokenId first = 1; first <= 40; ++first) others.push_back(*w.Submit({first, 2, 3}, kBaseModel, 40));
  for (int i = 0; i < 5; ++i) w.Advance();
  const AdapterGeneration adapter = w.Load("x", kAdapterPages);
  const RequestId id = *w.Submit(kPrompt, adapter, 4);
  w.Drain();
  EXPECT_EQ(w.engine->Stats().early_admissions, 1);
  EXPECT_EQ(w.engine->Stats().step_wait_total, 0);
  EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(adapter, kPrompt, 4));
  for (TokenId first = 1; first <= 40; ++first) {
    EXPECT_EQ(w.outcomes[others[static_cast<std::size_t>(first - 1)]].tokens,
              ExpectedTokens(kBaseModel, {first, 2, 3}, 40));
  }
}

// Two names of one content share their history. It is usable with the resident name, while the other is still arriving.
TEST(Arrival, HistoryOfTheSameContentIsNotUsedBeforeTheAdapterIsThere) {
  for (int moment = 0; moment < 12; ++moment) {
    SCOPED_TRACE(moment);
    World w;
    const AdapterGeneration first = w.Load("first", kAdapterPages, "same"),
                            second = w.Load("second", kAdapterPages, "same");
    const RequestId before = *w.Submit(kPrompt, first, 4);
    w.Drain();
    EXPECT_GT(w.engine->Stats().history_pages, 0);
    const RequestId after = *w.Submit(kPrompt, second, 4);
    for (int i = 0; i < moment; ++i) {
      while (w.engine->Step()) {
      }
      w.clock.Advance(3 * kNsPerMs);
    }
    ASSERT_TRUE(w.registry.Remove("first").ok());
    w.Drain();
    EXPECT_EQ(w.outcomes[before].ends + w.outcomes[after].ends, 2);
    EXPECT_EQ(w.outcomes[after].tokens, ExpectedTokens(second, kPrompt, 4));
  }
}

// The load fails after the step that uses its first layers has started.
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
  EXPECT_EQ(w.outcomes[again].cached_tokens, 0);  // none of the garbage was kept
}

// A client cancels, and an adapter's name is removed, while the step is in flight.
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
  EXPECT_EQ(w.engine->Stats().kv_tiers.fetches, 0);  // it has not ended
  w.Drain();
  EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(kBaseModel, w.PromptOf(1), 2));
  EXPECT_GE(w.outcomes[id].cached_tokens, 24);
  EXPECT_EQ(w.Found(), w.outcomes[id].cached_tokens);
  EXPECT_GT(w.executor->layers_read_early(), 0);
  EXPECT_EQ(w.executor->discarded(), 0);
}

TEST(Arrival, HistoryThatFailsToArriveIsComputed) {
  HistoryWorld w;
  w.FailHostToDevice(w.transfer);
  const std::int64_t computed = w.engine->Stats().tokens_prefilled;
  const RequestId id = *w.Submit(w.PromptOf(1), kBaseModel, 2);
  w.StepUntil([&] { return w.engine->Stats().early_admissions > 0; });
  w.Drain();
  EXPECT_EQ(w.executor->discarded(), 1);
  EXPECT_EQ(w.engine->Stats().preemptions, 1);
  EXPECT_EQ(w.engine->Stats().kv_tiers.failed_jobs, 1);
  EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(kBaseModel, w.PromptOf(1), 2));
  EXPECT_EQ(w.outcomes[id].cached_tokens, 0);  // and it reports so
  EXPECT_EQ(w.Found(), 0);
  EXPECT_GE(w.engine->Stats().tokens_prefilled - computed, 33);
  w.FailHostToDevice(w.transfer, false);
  EXPECT_EQ(w.Ask(1), 32);  // the recomputed pages are valid: KvCheckingExecutor checks them
}

TEST(Arrival, AFetchForNobodyIsCancelled) {
  for (const bool another_waits : {false, true}) {
    HistoryWorld w;
    const RequestId id = *w.Submit(w.PromptOf(1), kBaseModel, 2);
    while (w.engine->Step()) {
    }
    const auto other = another_waits ? std::optional(*w.Submit(w.PromptOf(1), kBaseModel, 2)) : std::nullopt;
    while (w.engine->Step()) {
    }
    const std::int64_t free = w.device->free_pages();
    w.engine->Cancel(id);
    while (w.engine->Step()) {
    }
    EXPECT_EQ(w.engine->Stats().kv_tiers.cancelled_fetches, another_waits ? 0 : 1);
    if (!another_waits) EXPECT_GT(w.device->free_pages(), free);  // at once, not after 20 ms
    w.Drain();
    EXPECT_EQ(w.engine->Stats().kv_tiers.fetches, another_waits ? 1 : 0);
    EXPECT_EQ(w.engine->Stats().kv_tiers.failed_jobs, 0);
    if (other) EXPECT_GE(w.outcomes[*other].cached_tokens, 24);
    EXPECT_GE(w.Ask(1), 24);  // the copy in the host tier still exists
  }
}

// ---------------------------------------------------------------- A real model

TEST(ArrivalOnARealModel, PrefillComputesTheFirstLayersBeforeTheLastOnesArrive) {
  RealWorld truth;
  const RealWorld::Answer expected = truth.Ask(RealWorld::Prompt(1), truth.adapter);
  EXPECT_EQ(truth.runtime->engine().Stats().early_admissions, 0);

  RealWorld w;
  RealWorld::Answer answer;
  w.Submit(RealWorld::Prompt(1), w.adapter, answer);
  w.StepUntil([&] { return w.transfer->adapters.holding(); });
  w.PassInLockstep(w.transfer->adapters, 6);
  EXPECT_TRUE(answer.tokens.empty());
  // all layers have arrived, but the transfer has not completed
  for (int i = 0; i < 100; ++i) w.runtime->engine().Step();
  EXPECT_TRUE(answer.tokens.empty());
  w.transfer->adapters.Complete();
  w.StepUntil([&] { return answer.ended; });
  EXPECT_EQ(answer, expected);  // bitwise
  EXPECT_GT(w.runtime->engine().Stats().step_wait_total, 0);
  w.ExpectExact();
}

TEST(ArrivalOnARealModel, AFaultAfterAnyLayerFailsOnlyTheRequestsOfItsAdapter) {
  RealWorld w;
  const RealWorld::Answer base = w.Ask(RealWorld::Prompt(2), kBaseModel);
  const RealWorld::Answer expected = RealWorld().Ask(RealWorld::Prompt(1), w.adapter);
  for (std::int32_t layers = 2; layers <= 6; ++layers) {
    RealWorld broken;
    RealWorld::Answer answer, other;
    broken.Submit(RealWorld::Prompt(1), broken.adapter, answer);
    broken.StepUntil([&] { return broken.transfer->adapters.holding(); });
    broken.PassInLockstep(broken.transfer->adapters, layers);
    broken.Submit(RealWorld::Prompt(2), kBaseModel, other);
    broken.transfer->adapters.Fail();
    broken.StepUntil([&] { return answer.ended && other.ended; });
    EXPECT_EQ(answer.error, "injected");
    EXPECT_TRUE(answer.tokens.empty());
    EXPECT_EQ(other, base);
    broken.ExpectExact();
    const EngineStats stats = broken.runtime->engine().Stats();
    EXPECT_EQ(stats.device.used(PageCategory::kAdapter), 0);
    EXPECT_EQ(stats.device.used(PageCategory::kKv), stats.history_pages);
    // tried again; none of the garbage was kept
    EXPECT_EQ(broken.Ask(RealWorld::Prompt(1), broken.adapter), expected);
  }
}

// History that was evicted to the host tier comes back layer by layer, or fails after some layers. The answer is the
// same.
TEST(ArrivalOnARealModel, HistoryArrivesLayerByLayerOrIsComputed) {
  const std::int64_t page = RealWorld().runtime->geometry().page_bytes;
  for (std::int32_t layers = 2; layers <= 7; ++layers) {  // 7: no failure
    SCOPED_TRACE(layers);
    RealWorld w(24 * page);
    const RealWorld::Answer expected = w.Ask(RealWorld::Prompt(1), kBaseModel);
    for (TokenId first = 2; first <= 6; ++first) w.Ask(RealWorld::Prompt(first), kBaseModel);
    w.ExpectExact();
    ASSERT_EQ(w.runtime->engine().Stats().early_admissions, 0);
    RealWorld::Answer answer;
    w.Submit(RealWorld::Prompt(1), kBaseModel, answer);
    w.StepUntil([&] { return w.transfer->kv.holding(); });
    w.PassInLockstep(w.transfer->kv, std::min(layers, 6));
    layers == 7 ? w.transfer->kv.Complete() : w.transfer->kv.Fail();
    w.StepUntil([&] {
      w.transfer->kv.PassAll();  // lets later fetches pass
      return answer.ended;
    });
    EXPECT_EQ(answer.error, "");
    EXPECT_EQ(answer, expected);
    // After a failure the request is computed, or fetches its history again and finds it: both are right.
    if (layers == 7) {
      EXPECT_GT(answer.cached_tokens, 0);
    }
    w.ExpectExact();
    EXPECT_EQ(w.Ask(RealWorld::Prompt(1), kBaseModel), expected);
  }
}

// The engine is stopped while a step waits for layers on a slow link; nothing hangs.
TEST(ArrivalOnARealModel, StoppingInTheMiddleEnds) {
  RuntimeOptions options;
  options.device_memory = options.host_memory = std::int64_t{64} << 20;
  options.threads = 1;
  options.base_names = {"base"};
  // A machine that stands still may miss the middle: then once more, with a slower link.
  bool in_the_middle = false;
  for (options.transfer.bytes_per_second = 1e6; !in_the_middle; options.transfer.bytes_per_second /= 4) {
    std::atomic<bool> ended = false;
    auto runtime = std::move(Runtime::Load(kDemo / "model", options, {})).value();
    const auto version = runtime->registry().Register("rot13", kDemo / "adapters/rot13", 0);
    ASSERT_TRUE(version.ok());
    GenerationRequest request;
    request.prompt = RealWorld::Prompt(1);
    request.adapter = (*version)->generation;
    request.max_tokens = 4;
    request.on_event = [&ended](const GenerationEvent& event) { ended = event.finish != FinishReason::kNone; };
    ASSERT_TRUE(runtime->engine().Submit(std::move(request)).ok());
    runtime->Start();
    while (runtime->engine().Stats().early_admissions == 0 && !ended) std::this_thread::yield();
    in_the_middle = !ended;
    runtime.reset();  // checks the integrity
  }
}

}  // namespace
}  // namespace loramux::arrival_test
