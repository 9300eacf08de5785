// The engine on a virtual clock: random loads against what must hold whatever the order of events. The real executor is
// tested in tests/.
#include "engine/engine_world_for_test.h"

namespace loramux {
namespace {

struct World : EngineWorld {
  World(std::int64_t device_pages, std::int64_t host_pages, SchedulerOptions scheduler,
        const std::vector<std::int64_t>& adapter_pages, bool prefix_cache = true, const std::string& cache = "lru",
        double host_bytes_per_second = 10e9)
      : EngineWorld({.device_pages = device_pages, .host_pages = host_pages, .scheduler = scheduler,
                     .prefix_cache = prefix_cache, .cache = cache, .host_bytes_per_second = host_bytes_per_second}) {
    for (std::size_t i = 0; i < adapter_pages.size(); ++i) Load("adapter-" + std::to_string(i), adapter_pages[i]);
  }
  Result<RequestId> Submit(std::vector<TokenId> prompt, std::uint32_t adapter, std::int32_t max_tokens, std::string tenant = {}) {
    return EngineWorld::Submit(std::move(prompt), AdapterGeneration{adapter}, max_tokens, std::move(tenant));
  }
};

struct Asked {
  std::vector<TokenId> prompt;
  std::uint32_t adapter;
  std::int32_t max_tokens;
  bool cancelled = false;
};

struct Fuzzed {
  std::uint64_t digest = 0;         // of all that happened
  CacheRegime regime;
  EngineStats stats;
  std::int64_t cancelled = 0;
  std::int64_t discarded = 0;       // chunks whose adapter or history failed to arrive
  std::int64_t invalid_pages = 0;   // the most at one time
};

// What the regime promises, whatever happens.
void CheckRegime(const CacheRegime& regime, World& w, Fuzzed& fuzzed) {
  w.engine->CheckIntegrity();
  const EngineStats stats = w.engine->Stats();
  const std::int64_t capacity = w.device->capacity_pages();
  if (regime.adapter_share > 0) {
    EXPECT_LE(w.device->Stats().used(PageCategory::kAdapter), capacity / 5);
    EXPECT_LE(w.device->Stats().used(PageCategory::kKv), capacity - capacity / 5);
  }
  if (!regime.keep_history) EXPECT_EQ(stats.history_pages, 0);
  if (regime.maintain_dependency) EXPECT_EQ(stats.invalid_history_pages, 0);
  EXPECT_LE(stats.invalid_history_pages, stats.device.used(PageCategory::kKv));
  fuzzed.invalid_pages = std::max(fuzzed.invalid_pages, stats.invalid_history_pages);
}

// Links so slow that a page takes up to 4 ms, and a step begins while layers arrive; some as fast as memory.
double HostLink(std::uint64_t seed) {
  const double kPageTimes[] = {0.2e-3, 1e-3, 4e-3};
  return seed % 4 == 0 ? 10e9 : 64 / kPageTimes[seed % 4 - 1];
}

// Random requests, adapters larger than memory, cancellations and broken disks.
Fuzzed FuzzOnce(std::uint64_t seed) {
  Fuzzed fuzzed;
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
  const std::span<const CacheRegime> regimes = CacheRegimes();
  fuzzed.regime = regimes[static_cast<std::size_t>(prng.NextBelow(regimes.size()))];
  World w(24 + static_cast<std::int64_t>(prng.NextBelow(20)), 4 + static_cast<std::int64_t>(prng.NextBelow(50)),
          scheduler, adapter_pages, /*prefix_cache=*/prng.NextBelow(4) != 0, std::string(fuzzed.regime.name),
          HostLink(seed));
  const std::int64_t share = AdapterSharePages(fuzzed.regime.adapter_share, w.device->capacity_pages());
  const bool faults = prng.NextBelow(2) == 0;
  Prng fault_prng(seed + 1);
  if (faults) {
    const auto sometimes = [&](const TransferJob&) {
      return fault_prng.NextBelow(4) == 0 ? std::optional<Error>(IoError("injected")) : std::nullopt;
    };
    w.transfer.set_fault(sometimes);
    w.kv_transfer.set_fault(sometimes);
  }
  std::map<RequestId, Asked> asked;
  int to_submit = 80;
  while (to_submit > 0 || !w.engine->Idle()) {
    for (std::uint64_t burst = prng.NextBelow(6); burst > 0 && to_submit > 0; --burst, --to_submit) {
      Asked ask;
      ask.prompt.resize(1 + prng.NextBelow(40));
      const std::uint64_t kinds = prng.NextBelow(2) == 0 ? 3 : kTestVocab;   // many begin alike
      for (TokenId& id : ask.prompt) id = static_cast<TokenId>(prng.NextBelow(5) == 0 ? prng.NextBelow(kinds) : 7);
      ask.adapter = static_cast<std::uint32_t>(prng.NextBelow(13));
      ask.max_tokens = 1 + static_cast<std::int32_t>(prng.NextBelow(24));
      const std::string tenant = named_tenants == 0 ? "" : std::to_string(prng.NextBelow(named_tenants));
      const auto id = w.Submit(ask.prompt, ask.adapter, ask.max_tokens, tenant);
      const bool fits = share == 0 || ask.adapter == 0 || adapter_pages[ask.adapter - 1] <= share;
      EXPECT_EQ(id.ok(), fits) << (id.ok() ? "" : id.error().message);
      if (id.ok()) asked.emplace(*id, std::move(ask));
    }
    if (!asked.empty() && prng.NextBelow(10) == 0) {
      auto victim = asked.begin();
      std::advance(victim, static_cast<std::ptrdiff_t>(prng.NextBelow(asked.size())));
      victim->second.cancelled = true;
      w.engine->Cancel(victim->first);
    }
    if (!w.Advance() && to_submit == 0) break;
    if (prng.NextBelow(16) == 0) w.engine->CheckIntegrity();
    if (prng.NextBelow(8) == 0) CheckRegime(fuzzed.regime, w, fuzzed);
  }
  w.Drain();
  CheckRegime(fuzzed.regime, w, fuzzed);
  if (!fuzzed.regime.keep_idle_adapters) EXPECT_EQ(w.engine->Stats().adapters.device_resident, 0);
  std::uint64_t digest = 0;
  for (const auto& [id, ask] : asked) {
    const World::Outcome& outcome = w.outcomes[id];
    EXPECT_EQ(outcome.ends, 1);
    const std::vector<TokenId> expected = ExpectedTokens(AdapterGeneration{ask.adapter}, ask.prompt, ask.max_tokens);
    if (outcome.finish == FinishReason::kCancelled) {
      EXPECT_TRUE(ask.cancelled);
      ++fuzzed.cancelled;
    } else if (outcome.finish == FinishReason::kError) {
      EXPECT_TRUE(faults);
      EXPECT_EQ(outcome.error, "injected");
    } else {
      EXPECT_EQ(outcome.tokens, expected);
      EXPECT_EQ(outcome.finish == FinishReason::kLength, static_cast<std::int32_t>(expected.size()) == ask.max_tokens);
    }
    digest = SplitMix64(digest ^ id.value ^ static_cast<std::uint64_t>(outcome.finish) << 40 ^ outcome.tokens.size() << 20);
  }
  fuzzed.stats = w.engine->Stats();
  fuzzed.discarded = w.executor->discarded();
  fuzzed.digest = SplitMix64(digest ^ static_cast<std::uint64_t>(w.clock.Now()));
  return fuzzed;
}

TEST(Engine, FuzzEveryRequestEndsOnceWithItsOwnTokens) {
  std::int64_t preemptions = 0, evictions = 0, failures = 0, cancelled = 0, found = 0, history_evictions = 0, copied_pages = 0;
  std::int64_t early = 0, discarded = 0;
  KvTierStats tiers;
  std::map<std::string_view, std::int64_t> runs, invalid, evicted;   // by regime
  std::map<bool, SwapStats> swaps;                                    // by whether the regime swaps proactively
  for (std::uint64_t seed = 1; seed <= 400 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Fuzzed fuzzed = FuzzOnce(seed);
    const EngineStats& stats = fuzzed.stats;
    ++runs[fuzzed.regime.name];
    invalid[fuzzed.regime.name] += fuzzed.invalid_pages;
    evicted[fuzzed.regime.name] += stats.adapters.device_evictions;
    SwapStats& swapped = swaps[fuzzed.regime.proactive_swapping];
    swapped.history_out += stats.swaps.history_out;
    swapped.history_in += stats.swaps.history_in;
    swapped.adapters_out += stats.swaps.adapters_out;
    swapped.adapters_in += stats.swaps.adapters_in;
    cancelled += fuzzed.cancelled;
    preemptions += stats.preemptions;
    evictions += stats.adapters.device_evictions;
    failures += stats.adapters.load_failures;
    found += stats.prefix.found_tokens;
    copied_pages += stats.prefix.copied_pages;
    early += stats.early_admissions;
    discarded += fuzzed.discarded;
    history_evictions += stats.history_evictions;
    tiers.pages_backed_up += stats.kv_tiers.pages_backed_up;
    tiers.pages_fetched += stats.kv_tiers.pages_fetched;
    tiers.fetches_ahead += stats.kv_tiers.fetches_ahead;
    tiers.failed_jobs += stats.kv_tiers.failed_jobs;
    if (seed <= 20) ASSERT_EQ(fuzzed.digest, FuzzOnce(seed).digest) << "not deterministic";
  }
  // The test is worth something only if the hard paths were taken.
  EXPECT_GT(preemptions, 100);
  EXPECT_GT(evictions, 1000);
  EXPECT_GT(failures, 100);
  EXPECT_GT(cancelled, 100);
  EXPECT_GT(found, 1000);
  EXPECT_GT(copied_pages, 1000);
  EXPECT_GT(history_evictions, 5000);
  EXPECT_GT(tiers.pages_backed_up, 5000);
  EXPECT_GT(tiers.pages_fetched, 200);
  EXPECT_GT(tiers.fetches_ahead, 10);
  EXPECT_GT(tiers.failed_jobs, 100);
  EXPECT_GT(swaps[true].history_out, 500);
  EXPECT_GT(swaps[true].adapters_out, 50);
  EXPECT_GT(swaps[true].adapters_in, 50);
  EXPECT_EQ(swaps[false].history_out + swaps[false].history_in + swaps[false].adapters_out + swaps[false].adapters_in, 0);
  EXPECT_GT(early, 500);
  EXPECT_GT(discarded, 25);
  for (const CacheRegime& regime : CacheRegimes()) {
    EXPECT_GT(runs[regime.name], 15) << regime.name;
    EXPECT_GT(evicted[regime.name], 100) << regime.name;
    EXPECT_EQ(invalid[regime.name] > 0, !regime.maintain_dependency) << regime.name;
  }
}

TEST(Engine, ASecondRequestComputesOnlyWhatIsNew) {
  World w(64, 8, {}, {2, 2});
  const std::vector<TokenId> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};   // two full pages and a half
  const auto ask = [&](std::uint32_t adapter, const std::vector<TokenId>& tokens) {
    const RequestId id = *w.Submit(tokens, adapter, 3);
    w.Drain();
    EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(AdapterGeneration{adapter}, tokens, 3));
    return w.outcomes[id].cached_tokens;
  };
  EXPECT_EQ(ask(1, prompt), 0);
  const std::int64_t prefilled = w.engine->Stats().tokens_prefilled;
  EXPECT_EQ(ask(1, prompt), 9);   // the third page was filled by the answer, and begins as the prompt ends
  EXPECT_EQ(w.engine->Stats().tokens_prefilled, prefilled + 1);
  EXPECT_EQ(ask(2, prompt), 0);   // other weights, other keys and values
  EXPECT_EQ(ask(0, prompt), 0);
  EXPECT_EQ(ask(1, {1, 2, 3, 4, 5, 6, 7, 8}), 7);   // the last token is computed in any case
  std::vector<TokenId> next_turn = prompt;          // the answer is part of the next turn's prompt
  for (const TokenId token : ExpectedTokens(AdapterGeneration{1}, prompt, 3)) next_turn.push_back(token);
  next_turn.push_back(500);
  EXPECT_EQ(ask(1, next_turn), 12);
  const EngineStats stats = w.engine->Stats();
  EXPECT_EQ(stats.prefix.found_tokens, 9 + 7 + 12);
  EXPECT_EQ(stats.prefix.copied_pages, 2);
  EXPECT_EQ(stats.prefix.looked_up_tokens, 10 * 4 + 8 + 14);
}

// Where a prompt parts from history within a page, what they have in common of it is not computed again: wherever that
// page is, also in the first one, and whoever computed it. KvCheckingExecutor looks at each position that is read.
TEST(Engine, APromptBeginsWithinAPage) {
  World w(64, 8, {}, {2, 2});
  const auto ask = [&](std::uint32_t adapter, const std::vector<TokenId>& tokens) {
    const RequestId id = *w.Submit(tokens, adapter, 3);
    w.Drain();
    EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(AdapterGeneration{adapter}, tokens, 3));
    return w.outcomes[id].cached_tokens;
  };
  EXPECT_EQ(ask(1, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), 0);
  EXPECT_EQ(ask(1, {1, 2, 3, 99, 5, 6, 7, 8}), 3);               // in the first page
  EXPECT_EQ(ask(1, {1, 2, 3, 4, 5, 6, 98, 8, 97}), 6);
  EXPECT_EQ(ask(1, {1, 2, 3, 4, 5, 6, 98, 96, 95}), 7);          // of two pages that begin alike, the better one
  EXPECT_EQ(ask(1, {1, 2}), 1);                                  // shorter than a page; the last token is computed
  EXPECT_EQ(ask(1, {1}), 0);
  EXPECT_EQ(ask(1, {2, 2, 3, 4, 5}), 0);
  EXPECT_EQ(ask(2, {1, 2, 3, 99, 5, 6, 7, 8}), 0);               // another adapter's pages are not the same
  EXPECT_EQ(w.engine->Stats().prefix.copied_pages, 4);
  EXPECT_GT(w.executor->checked(), 3 + 6 + 7 + 1);
}

// The page that is copied may be one that is needed itself: then it goes, and the prompt is computed.
TEST(Engine, NobodyWaitsForThePageThatHeWouldCopy) {
  World w(8, 1, {}, {});
  const auto ask = [&](const std::vector<TokenId>& tokens) {
    const RequestId id = *w.Submit(tokens, 0, 1);
    w.Drain();
    EXPECT_EQ(w.outcomes[id].tokens.size(), 1u);
    return w.outcomes[id].cached_tokens;
  };
  std::vector<TokenId> prompt(31, 5);   // with what follows, all eight pages
  EXPECT_EQ(ask(prompt), 0);
  prompt[2] = 6;
  EXPECT_EQ(ask(prompt), 0);            // two would be found, in a page that is in the way
  EXPECT_EQ(w.engine->Stats().prefix.copied_pages, 0);
}

// Two names of one content share what is cached; the content's history goes with the last of them.
TEST(Engine, NamesOfOneContentShareTheirHistory) {
  World w(64, 8, {}, {});
  const AdapterGeneration first = w.Load("first", 3, "same weights"), second = w.Load("second", 3, "same weights");
  const std::vector<TokenId> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto cached = [&](AdapterGeneration adapter) {
    const RequestId id = *w.EngineWorld::Submit(prompt, adapter, 2);
    w.Drain();
    return w.outcomes[id].cached_tokens;
  };
  EXPECT_EQ(cached(first), 0);
  EXPECT_EQ(cached(second), 8);
  ASSERT_TRUE(w.registry.Remove("first").ok());
  w.Drain();
  EXPECT_GT(w.engine->Stats().history_pages, 0);
  EXPECT_EQ(cached(second), 8);
  const AdapterGeneration changed = w.Replace("second", 3, "other weights");
  w.Drain();
  EXPECT_EQ(w.engine->Stats().history_pages, 0);
  EXPECT_EQ(cached(changed), 0);
  w.Load("first", 3, "same weights");   // comes back, and nothing of the old history with it
  EXPECT_EQ(cached(AdapterGeneration{4}), 0);
}

// History fills the memory; an adapter that is needed takes it, least recently used first, and no adapter goes before the
// history that depends on it.
TEST(Engine, AnAdapterGoesOnlyAfterItsHistory) {
  World w(14, 8, {}, {4, 4, 4});
  const auto ask = [&](std::uint32_t adapter) {
    ASSERT_TRUE(w.Submit({1, 2, 3, 4, 5, 6, 7, 8, 9}, adapter, 2).ok());
    w.Drain();   // checks that all history can be used
  };
  ask(1);
  ask(2);
  const EngineStats before = w.engine->Stats();
  EXPECT_EQ(before.history_pages, 4);
  ask(3);
  const EngineStats after = w.engine->Stats();
  EXPECT_EQ(after.history_evictions, 2);            // those of adapter 1
  EXPECT_EQ(after.adapters.device_evictions, 1);
  EXPECT_EQ(after.history_pages, 4);
}

// What gave way comes back from the host tier instead of being computed again, while others run; KvCheckingExecutor looks
// at each page that is read.
TEST(Engine, HistoryComesBackFromTheHostTier) {
  World w(24, 64, {}, {});
  const auto prompt_of = [](TokenId first) { return std::vector<TokenId>(33, first); };   // 8 full pages
  const auto ask = [&](TokenId first) {
    const RequestId id = *w.Submit(prompt_of(first), 0, 2);
    w.Drain();
    EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(kBaseModel, prompt_of(first), 2));
    return w.outcomes[id].cached_tokens;
  };
  for (TokenId first = 1; first <= 6; ++first) EXPECT_EQ(ask(first), 0);   // 48 pages of history in 24
  const EngineStats before = w.engine->Stats();
  EXPECT_GT(before.history_evictions, 20);
  const std::int64_t computed = before.tokens_prefilled;
  EXPECT_GE(ask(1), 24);   // one page at a time is copied here, and the end of a session goes first
  EXPECT_GE(ask(2), 24);
  const EngineStats after = w.engine->Stats();
  EXPECT_GE(after.kv_tiers.pages_fetched, 12);
  EXPECT_EQ(after.kv_tiers.fetches, 2);
  EXPECT_LE(after.tokens_prefilled, computed + 2 + 16);
}

// Once most of the device is in use, what has just ended is evicted before there was time to copy it: so it is copied before.
TEST(Engine, WhatRunsIsCopiedWhereLittleElseIsIdle) {
  const auto pages_copied = [](std::int64_t device_pages) {
    World w(device_pages, 64, {}, {});
    const std::vector<TokenId> prompt(69, 1);   // 17 full pages
    const RequestId running = *w.Submit(prompt, 0, 20);
    while (w.outcomes[running].tokens.size() < 18) EXPECT_TRUE(w.Advance());
    const std::int64_t copied = w.engine->Stats().kv_tiers.pages_backed_up;
    w.Drain();
    EXPECT_EQ(w.outcomes[running].tokens, ExpectedTokens(kBaseModel, prompt, 20));
    return copied;
  };
  EXPECT_GE(pages_copied(24), 5);   // one at a time
  EXPECT_EQ(pages_copied(128), 0);
}

// There are more who want theirs than fetches at a time: computing it instead would take longer than waiting.
TEST(Engine, HistoryIsWaitedForWhereOthersAreOnTheirWay) {
  World w(64, 256, {.fetch_ahead = false}, {});
  const auto prompt_of = [](TokenId first) { return std::vector<TokenId>(33, first); };   // 8 full pages
  for (TokenId first = 1; first <= 16; ++first) {   // 128 pages of history in 64
    ASSERT_TRUE(w.Submit(prompt_of(first), 0, 2).ok());
    w.Drain();
  }
  const EngineStats before = w.engine->Stats();
  std::vector<RequestId> ids;
  for (TokenId first = 1; first <= 6; ++first) ids.push_back(*w.Submit(prompt_of(first), 0, 2));
  w.Drain();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_GE(w.outcomes[ids[i]].cached_tokens, 24) << i;
    EXPECT_EQ(w.outcomes[ids[i]].tokens, ExpectedTokens(kBaseModel, prompt_of(static_cast<TokenId>(i + 1)), 2));
  }
  EXPECT_EQ(w.engine->Stats().kv_tiers.fetches - before.kv_tiers.fetches, 6);
}

// Who goes before takes pages that the next one would begin with, while the rest of what that one has is in the host tier. All of it
// is fetched then, whatever the first one needs.
TEST(Engine, HistoryThatAPlanTakesAPartOfIsFetched) {
  const auto prompt_of = [](TokenId first) { return std::vector<TokenId>(33, first); };   // 8 full pages
  for (std::size_t length = 5; length <= 81; length += 4) {
    World w(24, 64, {.fetch_ahead = false}, {});
    for (TokenId first = 1; first <= 3; ++first) {
      ASSERT_TRUE(w.Submit(prompt_of(first), 0, 2).ok());
      w.Drain();
    }
    ASSERT_TRUE(w.Submit(std::vector<TokenId>(21, 4), 0, 2).ok());   // some pages of the first one go
    w.Drain();
    ASSERT_GT(w.engine->Stats().history_evictions, 0);
    ASSERT_TRUE(w.Submit(std::vector<TokenId>(length, 9), 0, 2).ok());
    const RequestId next = *w.Submit(prompt_of(1), 0, 2);
    w.Drain();
    EXPECT_GE(w.outcomes[next].cached_tokens, 24) << length;
    EXPECT_EQ(w.outcomes[next].tokens, ExpectedTokens(kBaseModel, prompt_of(1), 2)) << length;
  }
}

// What came for a request that then had no room gives way to one that runs, and comes again when there is room.
TEST(Engine, WhatWasFetchedAndWentIsFetchedAgain) {
  World w(24, 256, {.fetch_ahead = false}, {});
  const std::vector<TokenId> prompt(33, 1);   // 8 full pages
  for (TokenId first = 1; first <= 6; ++first) {
    ASSERT_TRUE(w.Submit(std::vector<TokenId>(33, first), 0, 2).ok());
    w.Drain();
  }
  const EngineStats before = w.engine->Stats();
  const RequestId running = *w.Submit(std::vector<TokenId>(56, 9), 0, 30);   // 15 pages, then up to 22
  while (w.outcomes[running].tokens.size() < 2) ASSERT_TRUE(w.Advance());
  const RequestId waiting = *w.Submit(prompt, 0, 2);
  w.Drain();
  EXPECT_EQ(w.outcomes[waiting].tokens, ExpectedTokens(kBaseModel, prompt, 2));
  EXPECT_GE(w.outcomes[waiting].cached_tokens, 24);
  EXPECT_GE(w.engine->Stats().kv_tiers.fetches - before.kv_tiers.fetches, 2);
}

// A request without a seat gets its history while another one runs, and begins the moment that one has ended.
TEST(Engine, HistoryIsFetchedAheadForThoseWithoutASeat) {
  const auto time_of_second = [](bool ahead, EngineStats* stats) {
    World w(24, 64, {.max_running = 1, .fetch_ahead = ahead}, {});
    for (TokenId first = 1; first <= 6; ++first) {   // 48 pages of history in 24
      EXPECT_TRUE(w.Submit(std::vector<TokenId>(33, first), 0, 2).ok());
      w.Drain();
    }
    const RequestId running = *w.Submit({9, 9, 9}, 0, 12);
    while (w.outcomes[running].tokens.empty()) EXPECT_TRUE(w.Advance());
    const RequestId waiting = *w.Submit(std::vector<TokenId>(33, 1), 0, 2);
    while (w.outcomes[running].ends == 0) EXPECT_TRUE(w.Advance());
    EXPECT_EQ(w.outcomes[waiting].tokens.size(), 0u);
    const TimeNs end_of_first = w.clock.Now();
    w.Drain();
    EXPECT_GE(w.outcomes[waiting].cached_tokens, 24);
    EXPECT_EQ(w.outcomes[waiting].tokens, ExpectedTokens(kBaseModel, std::vector<TokenId>(33, 1), 2));
    *stats = w.engine->Stats();
    return w.clock.Now() - end_of_first;
  };
  EngineStats with, without;
  const TimeNs ahead = time_of_second(true, &with);
  EXPECT_GE(time_of_second(false, &without) - ahead, 2 * kNsPerMs);   // a copy's time
  EXPECT_EQ(with.kv_tiers.fetches_ahead, 1);
  EXPECT_EQ(with.kv_tiers.fetches, 0);
  EXPECT_EQ(with.kv_tiers.pages_fetched, without.kv_tiers.pages_fetched);
  EXPECT_EQ(without.kv_tiers.fetches_ahead, 0);
  EXPECT_EQ(without.kv_tiers.fetches, 1);
}

// With a device that does not hold the history of all who wait, nobody loses what he would have got, and next to nothing
// is copied in vain.
TEST(Engine, FetchingAheadTakesNothingFromThoseAhead) {
  const auto cached_tokens = [](bool ahead, KvTierStats* stats) {
    World w(24, 128, {.max_running = 1, .fetch_ahead = ahead}, {});
    for (TokenId first = 1; first <= 6; ++first) {
      EXPECT_TRUE(w.Submit(std::vector<TokenId>(33, first), 0, 2).ok());
      w.Drain();
    }
    const RequestId running = *w.Submit({9, 9, 9}, 0, 20);
    while (w.outcomes[running].tokens.empty()) EXPECT_TRUE(w.Advance());
    std::vector<RequestId> waiting;
    for (TokenId first = 1; first <= 5; ++first) waiting.push_back(*w.Submit(std::vector<TokenId>(33, first), 0, 2));
    while (w.outcomes[running].ends == 0) EXPECT_TRUE(w.Advance());
    stats[0] = w.engine->Stats().kv_tiers;
    w.Drain();
    stats[1] = w.engine->Stats().kv_tiers;
    std::vector<std::int32_t> cached;
    for (const RequestId id : waiting) cached.push_back(w.outcomes[id].cached_tokens);
    return cached;
  };
  KvTierStats with[2], without[2];
  const std::vector<std::int32_t> best = cached_tokens(false, without), ahead = cached_tokens(true, with);
  std::int64_t used = 0;
  for (std::size_t i = 0; i < best.size(); ++i) {
    EXPECT_GE(ahead[i], best[i]) << i;
    used += ahead[i] / kTestPageTokens;
  }
  EXPECT_GE(ahead[0], 24);
  EXPECT_GE(with[0].fetches_ahead, 1);
  EXPECT_LE(with[0].fetches_ahead, 2);   // while the first one runs there are pages for two at most
  EXPECT_LE(with[1].pages_fetched, used + 6);   // the running one took 6 pages
}

// A copy that fails costs the request nothing but the computation that the history would have saved.
TEST(Engine, AFetchThatFailsIsComputedAgain) {
  World w(24, 64, {}, {});
  const auto ask = [&](TokenId first) {
    const RequestId id = *w.Submit(std::vector<TokenId>(33, first), 0, 2);
    w.Drain();
    EXPECT_EQ(w.outcomes[id].finish, FinishReason::kLength);
    EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(kBaseModel, std::vector<TokenId>(33, first), 2));
    return w.outcomes[id].cached_tokens;
  };
  for (TokenId first = 1; first <= 6; ++first) ask(first);
  w.kv_transfer.set_fault([](const TransferJob& job) {
    return job.kind == TransferKind::kHostToDevice ? std::optional<Error>(IoError("injected")) : std::nullopt;
  });
  EXPECT_EQ(ask(1), 0);
  w.kv_transfer.set_fault({});
  EXPECT_EQ(ask(2), 32);
  EXPECT_EQ(w.engine->Stats().kv_tiers.failed_jobs, 1);
}

// ---------------------------------------------------------------- Proactive swapping

// Of a device of 80 pages, 76 are the upper threshold and 56 the lower one.
struct SwappingWorld : World {
  AdapterGeneration large, small;
  explicit SwappingWorld(const std::string& cache = "fastlibra-wos") : World(80, 400, {}, {}, /*prefix_cache=*/true, cache) {
    large = Load("large", 32);
    small = Load("small", 2);
  }
  std::int32_t Ask(AdapterGeneration who, TokenId first) {   // 8 full pages
    const std::vector<TokenId> prompt(31, first);
    const RequestId id = *EngineWorld::Submit(prompt, who, 2);
    Drain();
    EXPECT_EQ(outcomes[id].tokens, ExpectedTokens(who, prompt, 2));
    return outcomes[id].cached_tokens;
  }
  void Wait(TimeNs time = 100 * kNsPerMs) {
    Drain();
    for (const TimeNs end = clock.Now() + time; clock.Now() < end; Drain()) {
      const auto swap = engine->TimeToNextMove();
      clock.AdvanceTo(swap.has_value() ? clock.Now() + std::max<TimeNs>(1, swap->count()) : end);
    }
  }
  std::int64_t Used() const { return device->capacity_pages() - device->free_pages(); }
  // What was asked first is in the host tier alone; then the large adapter leaves for good, and with it 16 pages.
  void MakeRoom() {
    Ask(small, 1);
    for (TokenId first = 2; first <= 18; ++first) Ask(kBaseModel, first);
    Ask(large, 19);
    Wait();
    EXPECT_EQ(residency_pages(), 32);
    CHECK(registry.Remove("large").ok());
  }
  std::int64_t residency_pages() const { return device->Stats().used(PageCategory::kAdapter); }
};

TEST(Engine, AboveTheUpperThresholdTheOldestGoesBeforeAnybodyNeedsItsPlace) {
  for (const char* cache : {"lru", "fastlibra", "fastlibra-wom", "fastlibra-wos", "fastlibra-wol"}) {
    SCOPED_TRACE(cache);
    SwappingWorld w(cache);
    for (TokenId first = 1; first <= 18; ++first) w.Ask(kBaseModel, first);
    w.Wait();
    const bool swaps = std::string(cache) != "lru";
    EXPECT_EQ(w.Used() <= 76, swaps);
    const EngineStats stats = w.engine->Stats();
    EXPECT_EQ(stats.swaps.history_out > 0, swaps);
    EXPECT_GE(w.Used(), 76);   // and no more than that
    w.Wait(kNsPerSecond);
    EXPECT_EQ(w.engine->Stats().swaps.history_out, stats.swaps.history_out);
    EXPECT_EQ(w.engine->Stats().swaps.history_in, 0);
  }
}

// Its adapter first, then what depends on it; until 70 % are in use again.
TEST(Engine, BelowTheLowerThresholdTheMostValuableComesBeforeAnybodyAsks) {
  SwappingWorld w;
  w.MakeRoom();
  EXPECT_EQ(w.residency_pages(), 32);   // the small one is not there
  w.Wait(5 * kNsPerSecond);
  EXPECT_EQ(w.residency_pages(), 2);
  EXPECT_EQ(w.Used(), 56);
  const EngineStats before = w.engine->Stats();
  EXPECT_EQ(before.swaps.adapters_in, 2);
  EXPECT_GT(before.swaps.history_in, 4);
  EXPECT_EQ(before.kv_tiers.pages_fetched_ahead, before.swaps.history_in);
  EXPECT_EQ(before.kv_tiers.fetches, 0);
  EXPECT_EQ(w.Ask(kBaseModel, 18), 30);   // 28 in full pages, 2 in a page that is copied
  EXPECT_EQ(w.engine->Stats().kv_tiers.fetches, 0);
  EXPECT_FALSE(w.engine->TimeToNextMove().has_value());   // nothing to do: nobody wakes for it
}

TEST(Engine, SwapsThatFailHarmNobody) {
  SwappingWorld w;
  w.MakeRoom();
  const auto fault = [](const TransferJob& job) {
    return job.kind == TransferKind::kHostToDevice ? std::optional<Error>(IoError("injected")) : std::nullopt;
  };
  w.kv_transfer.set_fault(fault);
  w.transfer.set_fault(fault);
  w.Wait(kNsPerSecond);
  const EngineStats failed = w.engine->Stats();
  EXPECT_GT(failed.kv_tiers.failed_jobs, 0);    // tried again
  EXPECT_LE(failed.kv_tiers.failed_jobs, 12);   // at ticks, and no more often
  EXPECT_EQ(failed.kv_tiers.pages_fetched_ahead, 0);
  w.kv_transfer.set_fault({});
  w.transfer.set_fault({});
  w.Ask(kBaseModel, 18);   // something happens
  w.Wait();                // a tick
  w.Wait(5 * kNsPerSecond);
  EXPECT_EQ(w.Used(), 56);
  w.Ask(w.small, 1);
}

// Who stops takes no more in.
TEST(Engine, NothingComesOnceTheServerEnds) {
  SwappingWorld w;
  w.MakeRoom();
  w.engine->StopAccepting();
  w.Wait(kNsPerSecond);
  EXPECT_EQ(w.engine->Stats().swaps.history_in + w.engine->Stats().swaps.adapters_in, 0);
  EXPECT_FALSE(w.engine->TimeToNextMove().has_value());
}

// The adapter goes while its history is on its way: both pages of each move are freed when it ends.
TEST(Engine, AnUnloadDuringAFetchLeaksNothing) {
  World w(24, 64, {}, {});
  const AdapterGeneration adapter = w.Load("x", 2, "weights");
  const auto submit = [&](AdapterGeneration who, TokenId first) { return *w.EngineWorld::Submit(std::vector<TokenId>(33, first), who, 2); };
  submit(adapter, 1);
  w.Drain();
  for (TokenId first = 2; first <= 6; ++first) {
    submit(kBaseModel, first);
    w.Drain();
  }
  w.kv_transfer.set_fault({});
  const RequestId id = submit(adapter, 1);
  while (w.engine->Stats().adapters.device_loads < 2) w.Advance();   // it had to go as well
  while (w.kv_transfer.next_end() < 0) ASSERT_TRUE(w.Advance());
  w.engine->Cancel(id);
  ASSERT_TRUE(w.registry.Remove("x").ok());
  while (w.engine->Step()) {}
  w.Drain();
  EXPECT_EQ(w.device->Stats().used(PageCategory::kAdapter), 0);
  EXPECT_EQ(w.tree->orphans(), 0);
  w.engine->CheckIntegrity();
}

// Without dependency between them, an adapter goes and its history stays: useless for now, and of use again when the
// adapter is back.
TEST(Engine, HistoryWithoutItsAdapterIsInvalidUntilItIsBack) {
  World w(40, 12, {}, {6, 6}, /*prefix_cache=*/true, "vllm");   // adapters have 8 pages: one at a time
  const auto ask = [&](std::uint32_t adapter) {
    const RequestId id = *w.Submit({1, 2, 3, 4, 5, 6, 7, 8, 9}, adapter, 2);
    w.Drain();
    return w.outcomes[id].cached_tokens;
  };
  EXPECT_EQ(ask(1), 0);
  EXPECT_EQ(w.engine->Stats().invalid_history_pages, 0);
  EXPECT_EQ(ask(2), 0);
  EXPECT_EQ(w.engine->Stats().adapters.device_evictions, 1);
  EXPECT_EQ(w.engine->Stats().history_pages, 4);
  EXPECT_EQ(w.engine->Stats().invalid_history_pages, 2);   // those of adapter 1
  EXPECT_EQ(ask(1), 8);
  EXPECT_EQ(w.engine->Stats().history_pages, 4);
  EXPECT_EQ(w.engine->Stats().invalid_history_pages, 2);   // now those of adapter 2
  ASSERT_TRUE(w.registry.Remove("adapter-1").ok());        // which nobody can bring back any more
  w.Drain();
  EXPECT_EQ(w.engine->Stats().history_pages, 2);
  EXPECT_EQ(w.engine->Stats().invalid_history_pages, 0);
}

// The content's history outlives the one name of it that goes, though the other is not on the device at the time.
TEST(Engine, HistoryStaysForTheOtherNameOfItsContent) {
  World w(40, 20, {}, {}, /*prefix_cache=*/true, "vllm");
  const AdapterGeneration first = w.Load("first", 6, "same weights"), second = w.Load("second", 6, "same weights");
  const AdapterGeneration other = w.Load("other", 6);
  const auto cached = [&](AdapterGeneration adapter) {
    const RequestId id = *w.EngineWorld::Submit({1, 2, 3, 4, 5, 6, 7, 8, 9}, adapter, 2);
    w.Drain();
    return w.outcomes[id].cached_tokens;
  };
  EXPECT_EQ(cached(second), 0);
  EXPECT_EQ(cached(first), 8);   // and takes the place of the second
  EXPECT_EQ(cached(other), 0);   // of the first
  ASSERT_TRUE(w.registry.Remove("first").ok());
  w.Drain();
  EXPECT_EQ(w.engine->Stats().invalid_history_pages, 2);
  EXPECT_EQ(cached(second), 8);
}

// Where adapters have a share, neither side takes from the other.
TEST(Engine, AFixedShareIsFixed) {
  World w(40, 60, {}, {6, 6, 9}, /*prefix_cache=*/true, "vllm");
  EXPECT_EQ(w.Submit({1}, 3, 4).error().code, ErrorCode::kResourceExhausted);   // 9 pages of 8
  EXPECT_EQ(w.engine->MaxSequenceTokens(AdapterGeneration{1}), 32 * kTestPageTokens);
  EXPECT_EQ(w.engine->MaxSequenceTokens(kBaseModel), 32 * kTestPageTokens);
  for (TokenId i = 1; i <= 12; ++i) {   // 3 pages each
    ASSERT_TRUE(w.Submit(std::vector<TokenId>(12, i), 1, 2).ok());
    w.Drain();
  }
  const EngineStats full = w.engine->Stats();
  EXPECT_GE(full.history_pages, 30);       // all of their side, and nothing of the adapters'
  EXPECT_LE(full.history_pages, 32);
  EXPECT_GT(full.history_evictions, 0);
  EXPECT_EQ(full.adapters.device_evictions, 0);
  ASSERT_TRUE(w.Submit({1, 2}, 2, 2).ok());
  w.Drain();
  EXPECT_EQ(w.engine->Stats().adapters.device_evictions, 1);   // one adapter for another
  EXPECT_EQ(w.engine->Stats().adapters.device_resident, 1);
  EXPECT_GE(w.engine->Stats().history_pages, 30);
}

// S-LoRA: the adapter leaves with its last request, and nothing of the prompt stays.
TEST(Engine, SLoraKeepsNothingThatIsIdle) {
  World w(64, 12, {}, {4, 4}, /*prefix_cache=*/true, "s-lora");
  const auto ask = [&](std::int32_t max_tokens) { return *w.Submit({1, 2, 3, 4, 5, 6, 7, 8, 9}, 1, max_tokens); };
  const RequestId first = ask(40);
  ask(2);
  std::int64_t steps = 0;
  for (; w.Advance(); ++steps) {
    const EngineStats stats = w.engine->Stats();
    if (stats.running > 0) EXPECT_EQ(stats.adapters.device_resident, 1);
  }
  EXPECT_GT(steps, 30);
  EXPECT_EQ(w.outcomes[first].ends, 1);
  w.Drain();
  EXPECT_EQ(w.engine->Stats().adapters.device_resident, 0);
  EXPECT_EQ(w.engine->Stats().adapters.host_resident, 1);
  EXPECT_EQ(w.device->free_pages(), 64);
  EXPECT_EQ(w.outcomes[ask(2)].cached_tokens, 0);
  w.Drain();
  EXPECT_EQ(w.engine->Stats().prefix.found_tokens, 0);
  EXPECT_EQ(w.engine->Stats().adapters.device_loads, 2);
}

TEST(Engine, RefusesWhatCanNeverRun) {
  World w(8, 8, {}, {5});
  EXPECT_EQ(w.Submit({}, 0, 4).error().param, "prompt");
  EXPECT_EQ(w.Submit({1, 2, static_cast<TokenId>(kTestVocab)}, 0, 4).error().param, "prompt");
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
  request.stop_token_ids = {static_cast<TokenId>(ModeledExecutor::NextToken(kBaseModel, request.prompt, {}, kTestVocab))};
  World::Outcome outcome;
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
// Says 3, and writes down what it is told.
class RecordingPredictor final : public LengthPredictor {
 public:
  std::string_view name() const override { return "recording"; }
  std::int32_t Predict(const LengthQuery& query) override {
    hints.push_back(query.hint);
    return 3;
  }
  void Observe(const LengthQuery& query, std::int32_t output_tokens) override {
    observed.emplace_back(std::string(query.adapter_digest), query.prompt_tokens, query.max_output_tokens, output_tokens);
  }
  std::vector<std::int32_t> hints;
  std::vector<std::tuple<std::string, std::int32_t, std::int32_t, std::int32_t>> observed;
};

TEST(Engine, ThePredictorLearnsFromRequestsThatEndByThemselves) {
  RecordingPredictor predictor;
  EngineWorld w({.predictor = &predictor});
  const AdapterGeneration adapter = w.Load("x", 2, "digest of x");
  const std::vector<TokenId> prompt = {5, 6, 7};
  const auto expected = ExpectedTokens(adapter, prompt, 12);
  ASSERT_TRUE(w.Submit(prompt, adapter, 12).ok());
  const RequestId cancelled = *w.Submit({8, 9}, adapter, 50);
  while (w.outcomes[cancelled].tokens.empty()) w.Advance();
  w.engine->Cancel(cancelled);
  w.Drain();
  GenerationRequest hinted;
  hinted.prompt = {4};
  hinted.max_tokens = 1;
  hinted.length_hint = 77;
  ASSERT_TRUE(w.engine->Submit(std::move(hinted)).ok());
  w.Drain();
  using Seen = std::tuple<std::string, std::int32_t, std::int32_t, std::int32_t>;
  const std::vector<Seen> observed = {{"digest of x", 3, 12, static_cast<std::int32_t>(expected.size())}, {"", 1, 1, 1}};
  EXPECT_EQ(predictor.observed, observed);
  EXPECT_EQ(predictor.hints, (std::vector<std::int32_t>{0, 0, 77}));
  const PredictionStats stats = w.engine->Stats().predictions;
  EXPECT_EQ(stats.right + stats.low + stats.high, 2);
  EXPECT_EQ(stats.high, 1);   // 3 instead of 1
  EXPECT_EQ(stats.error_tokens, 2 + std::abs(static_cast<std::int64_t>(expected.size()) - 3));
}

TEST(Engine, SnapshotOnRequest) {
  World world(64, 64, {}, {4, 2, 3});
  const auto ask = [&] { return world.engine->Snapshot(std::chrono::milliseconds(0)); };
  EXPECT_EQ(ask(), nullptr);
  ASSERT_TRUE(world.Submit({1, 2, 3}, 2, 40).ok());
  ASSERT_TRUE(world.Submit({4, 5}, 0, 40).ok());
  world.engine->Step();
  const auto first = ask();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->page_tokens, kTestPageTokens);
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
