// The engine on a virtual clock, with a modelled executor and modelled transfers: random loads against what must hold
// whatever the order of events. The real executor is tested in tests/.
#include "engine/engine.h"

#include <map>

#include "adapter/transfer.h"
#include "base/prng.h"
#include "engine/modeled_executor.h"

namespace loramux {
namespace {

constexpr std::int64_t kVocab = 1000;
constexpr std::int64_t kPageTokens = 4;

struct Outcome {
  std::vector<TokenId> tokens;
  FinishReason finish = FinishReason::kNone;
  std::string error;
  int ends = 0;
};

struct World {
  VirtualClock clock;
  std::unique_ptr<PagePool> device, host;
  ModeledTransfer transfer{&clock, {.latency_ns = 3 * kNsPerMs}, {.latency_ns = kNsPerMs}};
  ModeledExecutor executor{&clock, {}, kVocab};
  AdapterRegistry registry{ModelConfig{}, {"base"}, {}};
  std::unique_ptr<EvictionPolicy> policy = std::move(MakeEvictionPolicy("lru")).value();
  Wakeup wakeup;
  std::unique_ptr<Engine> engine;
  std::map<RequestId, Outcome> outcomes;

  World(std::int64_t device_pages, std::int64_t host_pages, SchedulerOptions scheduler,
        const std::vector<std::int64_t>& adapter_pages) {
    device = std::move(PagePool::Create("device", device_pages * 64, 64)).value();
    host = std::move(PagePool::Create("host", host_pages * 64, 64)).value();
    for (std::size_t i = 0; i < adapter_pages.size(); ++i) {
      auto version = std::make_shared<AdapterVersion>();
      version->name = "adapter-" + std::to_string(i);
      version->layout.pages = adapter_pages[i];
      version->layout.max_rank = 8;
      EXPECT_TRUE(registry.Commit(std::move(version)).ok());
    }
    scheduler.page_tokens = kPageTokens;
    EngineOptions options{.scheduler = scheduler, .max_model_len = 200, .eos_token_ids = {0}, .vocab_size = kVocab};
    engine = std::make_unique<Engine>(options, EngineParts{&clock, &executor, &transfer, device.get(), host.get(),
                                                           &registry, policy.get(), &wakeup});
  }

  Result<RequestId> Submit(std::vector<TokenId> prompt, std::uint32_t adapter, std::int32_t max_tokens,
                           std::string tenant = {}) {
    GenerationRequest request;
    request.tenant = std::move(tenant);
    request.prompt = std::move(prompt);
    request.adapter = AdapterGeneration{adapter};
    request.max_tokens = max_tokens;
    request.on_event = [this](const GenerationEvent& event) {
      Outcome& outcome = outcomes[event.id];
      EXPECT_EQ(outcome.ends, 0) << "an event after the last";
      if (event.token != nullptr) outcome.tokens.push_back(event.token->id);
      if (event.finish == FinishReason::kNone) return;
      ++outcome.ends;
      outcome.finish = event.finish;
      if (event.error != nullptr) outcome.error = event.error->message;
    };
    return engine->Submit(std::move(request));
  }

  // Runs the engine until nothing moves, then the clock to the next event. False when all is quiet for good.
  bool Advance() {
    while (engine->Step()) {}
    TimeNs next = executor.ends_at();
    if (transfer.next_end() >= 0 && (next < 0 || transfer.next_end() < next)) next = transfer.next_end();
    if (next < 0) return false;
    clock.AdvanceTo(std::max(next, clock.Now()));
    return true;
  }
  void Drain() {
    while (Advance()) {}
    EXPECT_TRUE(engine->Idle());
    engine->CheckIntegrity();
    EXPECT_EQ(device->Stats().used(PageCategory::kKv), 0);
  }
};

// What a request must get, whatever shared its batches: the chain of NextToken up to eos or max_tokens.
std::vector<TokenId> Expected(std::uint32_t adapter, const std::vector<TokenId>& prompt, std::int32_t max_tokens) {
  std::vector<TokenId> generated;
  while (static_cast<std::int32_t>(generated.size()) < max_tokens) {
    const TokenId next = ModeledExecutor::NextToken(AdapterGeneration{adapter}, prompt, generated, kVocab);
    if (next == 0) break;
    generated.push_back(next);
  }
  return generated;
}

struct Asked {
  std::vector<TokenId> prompt;
  std::uint32_t adapter;
  std::int32_t max_tokens;
  bool cancelled = false;
};

// Random requests, adapters larger than memory, cancellations and broken disks. Returns a digest of all that happened.
std::uint64_t FuzzOnce(std::uint64_t seed, EngineStats* stats, std::int64_t* cancelled) {
  Prng prng(seed);
  std::vector<std::int64_t> adapter_pages;
  for (int i = 0; i < 12; ++i) adapter_pages.push_back(1 + static_cast<std::int64_t>(prng.NextBelow(8)));
  SchedulerOptions scheduler;
  scheduler.max_running = 1 + static_cast<std::int64_t>(prng.NextBelow(16));
  scheduler.max_batch_tokens = 8 + static_cast<std::int64_t>(prng.NextBelow(40));
  scheduler.prefill_chunk = 1 + static_cast<std::int64_t>(prng.NextBelow(30));
  scheduler.lookahead = 1 + static_cast<std::int64_t>(prng.NextBelow(20));
  scheduler.max_distinct_adapters = static_cast<std::int64_t>(prng.NextBelow(4));
  scheduler.fairness.policy = prng.NextBelow(4) == 0 ? FairnessPolicy::kNone : FairnessPolicy::kVtc;
  scheduler.fairness.weights = {{"1", 4}, {"adapter-2", 0.5}};
  scheduler.fairness.max_wait = static_cast<TimeNs>(prng.NextBelow(3)) * 200 * kNsPerMs;
  scheduler.discard_share = prng.NextBelow(3) == 0 ? 0 : 0.25;
  const std::uint64_t named_tenants = prng.NextBelow(5);   // 0: a tenant each adapter
  World w(24 + static_cast<std::int64_t>(prng.NextBelow(20)), 4 + static_cast<std::int64_t>(prng.NextBelow(30)),
          scheduler, adapter_pages);
  const bool faults = prng.NextBelow(2) == 0;
  Prng fault_prng(seed + 1);
  if (faults) {
    w.transfer.set_fault([&](const TransferJob&) {
      return fault_prng.NextBelow(4) == 0 ? std::optional<Error>(IoError("injected")) : std::nullopt;
    });
  }
  std::map<RequestId, Asked> asked;
  int to_submit = 80;
  while (to_submit > 0 || !w.engine->Idle()) {
    for (std::uint64_t burst = prng.NextBelow(6); burst > 0 && to_submit > 0; --burst, --to_submit) {
      Asked ask;
      ask.prompt.resize(1 + prng.NextBelow(40));
      for (TokenId& id : ask.prompt) id = static_cast<TokenId>(prng.NextBelow(kVocab));
      ask.adapter = static_cast<std::uint32_t>(prng.NextBelow(13));
      ask.max_tokens = 1 + static_cast<std::int32_t>(prng.NextBelow(24));
      const std::string tenant = named_tenants == 0 ? "" : std::to_string(prng.NextBelow(named_tenants));
      const auto id = w.Submit(ask.prompt, ask.adapter, ask.max_tokens, tenant);
      EXPECT_TRUE(id.ok()) << (id.ok() ? "" : id.error().message);
      if (id.ok()) asked.emplace(*id, std::move(ask));
    }
    if (!asked.empty() && prng.NextBelow(10) == 0) {
      auto victim = asked.begin();
      std::advance(victim, static_cast<std::ptrdiff_t>(prng.NextBelow(asked.size())));
      victim->second.cancelled = true;
      w.engine->Cancel(victim->first);
    }
    if (!w.Advance() && to_submit == 0) break;
  }
  w.Drain();
  std::uint64_t digest = 0;
  for (const auto& [id, ask] : asked) {
    const Outcome& outcome = w.outcomes[id];
    EXPECT_EQ(outcome.ends, 1);
    const std::vector<TokenId> expected = Expected(ask.adapter, ask.prompt, ask.max_tokens);
    if (outcome.finish == FinishReason::kCancelled) {
      EXPECT_TRUE(ask.cancelled);
      ++*cancelled;
    } else if (outcome.finish == FinishReason::kError) {
      EXPECT_TRUE(faults);
      EXPECT_EQ(outcome.error, "injected");
    } else {
      EXPECT_EQ(outcome.tokens, expected);
      EXPECT_EQ(outcome.finish == FinishReason::kLength, static_cast<std::int32_t>(expected.size()) == ask.max_tokens);
    }
    digest = SplitMix64(digest ^ id.value ^ static_cast<std::uint64_t>(outcome.finish) << 40 ^ outcome.tokens.size() << 20);
  }
  *stats = w.engine->Stats();
  return SplitMix64(digest ^ static_cast<std::uint64_t>(w.clock.Now()));
}

TEST(Engine, FuzzEveryRequestEndsOnceWithItsOwnTokens) {
  std::int64_t preemptions = 0, evictions = 0, failures = 0, cancelled = 0;
  for (std::uint64_t seed = 1; seed <= 300 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    EngineStats stats;
    const std::uint64_t digest = FuzzOnce(seed, &stats, &cancelled);
    preemptions += stats.preemptions;
    evictions += stats.adapters.device_evictions;
    failures += stats.adapters.load_failures;
    if (seed <= 20) {
      EngineStats again;
      ASSERT_EQ(digest, FuzzOnce(seed, &again, &cancelled)) << "not deterministic";
    }
  }
  // The test is worth something only if the hard paths were taken.
  EXPECT_GT(preemptions, 100);
  EXPECT_GT(evictions, 1000);
  EXPECT_GT(failures, 100);
  EXPECT_GT(cancelled, 100);
}

TEST(Engine, RefusesWhatCanNeverRun) {
  World w(8, 8, {}, {5});
  EXPECT_EQ(w.Submit({}, 0, 4).error().param, "prompt");
  EXPECT_EQ(w.Submit({1, 2, static_cast<TokenId>(kVocab)}, 0, 4).error().param, "prompt");
  EXPECT_EQ(w.Submit({-1}, 0, 4).error().param, "prompt");
  EXPECT_EQ(w.Submit({1}, 0, 0).error().param, "max_tokens");
  EXPECT_EQ(w.Submit({1}, 7, 4).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(w.Submit(std::vector<TokenId>(30, 1), 0, 10).error().code, ErrorCode::kResourceExhausted);   // 8 pages = 32 tokens
  EXPECT_TRUE(w.Submit(std::vector<TokenId>(22, 1), 0, 10).ok());
  EXPECT_FALSE(w.Submit(std::vector<TokenId>(12, 1), 1, 10).ok());   // 3 pages are left beside the adapter
  EXPECT_EQ(w.engine->MaxSequenceTokens(AdapterGeneration{1}), 12);
  EXPECT_TRUE(w.Submit(std::vector<TokenId>(8, 1), 1, -1).ok());
  w.Drain();
}

TEST(Engine, ShuttingDownRefusesTheNewAndEndsTheOld) {
  World w(64, 8, {}, {});
  ASSERT_TRUE(w.Submit({1, 2, 3}, 0, 100).ok());
  w.Advance();
  w.engine->StopAccepting();
  EXPECT_EQ(w.Submit({1}, 0, 4).error().code, ErrorCode::kUnavailable);
  w.engine->CancelAll();
  w.Drain();
  EXPECT_EQ(w.outcomes.begin()->second.finish, FinishReason::kCancelled);
}

TEST(Engine, AStopTokenEndsTheRequestAndIsNotDelivered) {
  World w(64, 8, {}, {});
  GenerationRequest request;
  request.prompt = {5};
  request.max_tokens = 30;
  request.stop_token_ids = {static_cast<TokenId>(ModeledExecutor::NextToken(kBaseModel, request.prompt, {}, kVocab))};
  Outcome outcome;
  request.on_event = [&](const GenerationEvent& event) {
    outcome.finish = event.finish;
    EXPECT_EQ(event.stop_token, request.stop_token_ids[0]);
    EXPECT_EQ(event.token, nullptr);
  };
  ASSERT_TRUE(w.engine->Submit(request).ok());
  w.Drain();
  EXPECT_EQ(outcome.finish, FinishReason::kStop);
}

// A snapshot is made when somebody asks, by the engine's own step, and is not made again for a while.
TEST(Engine, SnapshotOnRequest) {
  World world(64, 64, {}, {4, 2, 3});
  const auto ask = [&] { return world.engine->Snapshot(std::chrono::milliseconds(0)); };
  EXPECT_EQ(ask(), nullptr);
  ASSERT_TRUE(world.Submit({1, 2, 3}, 2, 40).ok());
  ASSERT_TRUE(world.Submit({4, 5}, 0, 40).ok());
  world.engine->Step();
  const auto first = ask();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->page_tokens, kPageTokens);
  ASSERT_EQ(first->adapters.size(), 1u);   // the only one that was asked for
  EXPECT_EQ(first->adapters[0].version.name, "adapter-1");
  EXPECT_EQ(first->adapters[0].device, TierState::kLoading);
  EXPECT_EQ(first->adapters[0].waiting, 1);
  EXPECT_EQ(ask(), first);
  world.Drain();
  world.clock.Advance(kNsPerSecond);
  EXPECT_EQ(ask(), first);                 // nobody steps: the last one
  world.engine->Step();                    // idle, and still answers
  const auto last = ask();
  ASSERT_NE(last, first);
  EXPECT_EQ(last->stats.finished, 2);
  EXPECT_EQ(last->adapters[0].device, TierState::kResident);
  EXPECT_EQ(last->adapters[0].waiting + last->adapters[0].running, 0);
  std::int64_t loads = 0;
  for (const std::int64_t count : last->stats.adapters.load_times) loads += count;
  EXPECT_EQ(loads, 1);
}

}  // namespace
}  // namespace loramux
