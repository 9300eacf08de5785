// The engine's cache on a virtual clock: reuse of other requests' prompts, fetches from the host tier, and moves ahead
// of demand.
#include "engine/engine_world_for_test.h"

namespace loramux::engine_history_test {
namespace {

using World = AdapterWorld;

TEST(Engine, ASecondRequestComputesOnlyWhatIsNew) {
  World w(64, 8, {}, {2, 2});
  const std::vector<TokenId> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};  // two full pages and a half
  const auto ask = [&](std::uint32_t adapter, const std::vector<TokenId>& tokens) {
    const RequestId id = *w.Submit(tokens, adapter, 3);
    w.Drain();
    EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(AdapterGeneration{adapter}, tokens, 3));
    return w.outcomes[id].cached_tokens;
  };
  EXPECT_EQ(ask(1, prompt), 0);
  const std::int64_t prefilled = w.engine->Stats().tokens_prefilled;
  EXPECT_EQ(ask(1, prompt), 9);  // the third page was filled by the answer, and begins as the prompt ends
  EXPECT_EQ(w.engine->Stats().tokens_prefilled, prefilled + 1);
  EXPECT_EQ(ask(2, prompt), 0);  // other weights, other keys and values
  EXPECT_EQ(ask(0, prompt), 0);
  EXPECT_EQ(ask(1, {1, 2, 3, 4, 5, 6, 7, 8}), 7);  // the last token is always computed
  std::vector<TokenId> next_turn = prompt;         // the answer is part of the next turn's prompt
  for (const TokenId token : ExpectedTokens(AdapterGeneration{1}, prompt, 3)) next_turn.push_back(token);
  next_turn.push_back(500);
  EXPECT_EQ(ask(1, next_turn), 12);
  const EngineStats stats = w.engine->Stats();
  EXPECT_EQ(stats.prefix.found_tokens, 9 + 7 + 12);
  EXPECT_EQ(stats.prefix.copied_pages, 2);
  EXPECT_EQ(stats.prefix.looked_up_tokens, 10 * 4 + 8 + 14);
}

// An activated LoRA (aLoRA) finds what the base model and other activated ones have computed of a prompt before its
// invocation, and they find what it has. KvCheckingExecutor checks each position that is read.
TEST(Engine, ActivatedAdaptersShareTheirPromptsWithTheBase) {
  World w(64, 8, {.prefill_chunk = 100}, {2, 2});
  const AdapterGeneration judge = w.LoadActivated("judge", 2, {50, 51}),
                          rewriter = w.LoadActivated("rewriter", 2, {60});
  const auto ask = [&](AdapterGeneration adapter, const std::vector<TokenId>& prompt, AdapterGeneration acts) {
    const RequestId id = *w.Submit(prompt, adapter.value, 6);
    w.Drain();
    EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(acts, prompt, 6));
    return w.outcomes[id].cached_tokens;
  };
  const std::vector<TokenId> shared = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};  // two full pages, and most of a third
  const auto with = [&](std::vector<TokenId> more) {
    more.insert(more.begin(), shared.begin(), shared.end());
    return more;
  };
  EXPECT_EQ(ask(judge, with({50, 51, 12}), judge), 0);
  EXPECT_EQ(ask(rewriter, with({60, 61}), rewriter), 8);  // the page of its invocation stays with a request
  EXPECT_EQ(ask(kBaseModel, with({12, 13, 14}), kBaseModel), 8);
  EXPECT_EQ(ask(judge, with({50, 51, 12}), judge), 11);      // the base model has filled that page
  EXPECT_EQ(ask(judge, with({50, 51, 50, 51}), judge), 11);  // the last occurrence counts
  EXPECT_EQ(ask(judge, {50, 51, 3, 4, 5}, judge), 0);        // from the first token on it is as another adapter
  EXPECT_EQ(ask(judge, {50, 51, 3, 4, 5}, judge), 4);
  EXPECT_EQ(ask(judge, with({12, 13, 14}), kBaseModel), 13);  // not invoked: the base model answers
  EXPECT_EQ(ask(AdapterGeneration{1}, with({50, 51, 12}), AdapterGeneration{1}), 0);
  w.engine->CheckIntegrity();
}

// What a running request uses stays, and it goes on as if nothing had happened.
TEST(Engine, HistoryIsDroppedOnRequest) {
  World w(64, 8, {}, {2, 2});
  const std::vector<TokenId> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, other = {1, 2, 3, 4, 5, 60, 70, 80, 90};
  const auto ask = [&](const std::vector<TokenId>& tokens) {
    const RequestId id = *w.Submit(tokens, 1, 3);
    w.Drain();
    EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(AdapterGeneration{1}, tokens, 3));
    return w.outcomes[id].cached_tokens;
  };
  std::optional<std::int64_t> dropped;
  const auto drop = [&] {
    w.engine->DropHistory([&dropped](const Result<std::int64_t>& pages) {
      ASSERT_TRUE(pages.ok());
      dropped = *pages;
    });
  };
  EXPECT_EQ(ask(prompt), 0);
  EXPECT_EQ(ask(prompt), 9);
  drop();
  w.Drain();
  EXPECT_EQ(dropped, 3);
  EXPECT_EQ(w.engine->Stats().history_pages, 0);
  EXPECT_EQ(w.device->Stats().used(PageCategory::kKv), 0);
  EXPECT_EQ(ask(prompt), 0);

  const RequestId running = *w.Submit(other, 1, 20);
  for (int i = 0; i < 6; ++i) w.Advance();
  ASSERT_FALSE(w.outcomes[running].tokens.empty());
  dropped.reset();
  drop();
  while (!dropped.has_value()) w.Advance();
  EXPECT_EQ(dropped, 2) << "the running request uses the first page of the three";
  w.engine->CheckIntegrity();
  EXPECT_EQ(ask(other), 8) << "what the running request has is found";
  EXPECT_EQ(w.outcomes[running].tokens, ExpectedTokens(AdapterGeneration{1}, other, 20));
  w.engine->StopAccepting();
  w.engine->DropHistory([](const Result<std::int64_t>& pages) { EXPECT_FALSE(pages.ok()); });
}

// Also what would be copied before it leaves.
TEST(Engine, HistoryWithoutACopyIsDroppedToo) {
  EngineWorld w({.device_pages = 64, .host_pages = 64, .spec = {.swap_out = SwapOut::kEvicted}});
  const auto ask = [&w] {
    const RequestId id = *w.Submit(std::vector<TokenId>(33, 1), kBaseModel, 2);  // 8 full pages
    w.Drain();
    return w.outcomes[id].cached_tokens;
  };
  ask();
  EXPECT_EQ(ask(), 32);
  std::int64_t dropped = 0;
  w.engine->DropHistory([&dropped](const Result<std::int64_t>& pages) { dropped = pages.ok() ? *pages : -1; });
  w.Drain();
  EXPECT_EQ(dropped, 8);
  EXPECT_EQ(ask(), 0);
  w.engine->CheckIntegrity();
}

// The client is told of no cached tokens, and the host tier holds adapters alone.
TEST(Engine, WithoutAPrefixCacheEveryPromptIsComputed) {
  World w(64, 8, {}, {2, 2}, /*prefix_cache=*/false);
  const std::vector<TokenId> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  for (const std::uint32_t adapter : {1u, 1u, 0u, 2u}) {
    const RequestId id = *w.Submit(prompt, adapter, 3);
    w.Drain();
    EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(AdapterGeneration{adapter}, prompt, 3));
    EXPECT_EQ(w.outcomes[id].cached_tokens, 0);
  }
  const EngineStats stats = w.engine->Stats();
  EXPECT_EQ(stats.tokens_prefilled, 4 * 10);
  EXPECT_EQ(stats.prefix.looked_up_tokens, 0);
  EXPECT_EQ(stats.history_pages + stats.invalid_history_pages, 0);
  EXPECT_EQ(stats.device.used(PageCategory::kKv), 0);
  EXPECT_EQ(stats.host.used(PageCategory::kKv) + stats.kv_tiers.pages_backed_up, 0);
  EXPECT_EQ(stats.host.used(PageCategory::kAdapter), 4);
}

// Where a prompt departs from history within a page, the common part of the page is not recomputed: in any page,
// including the first, and whichever request computed it. KvCheckingExecutor checks each position that is read.
TEST(Engine, APromptBeginsWithinAPage) {
  World w(64, 8, {}, {2, 2});
  const auto ask = [&](std::uint32_t adapter, const std::vector<TokenId>& tokens) {
    const RequestId id = *w.Submit(tokens, adapter, 3);
    w.Drain();
    EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(AdapterGeneration{adapter}, tokens, 3));
    return w.outcomes[id].cached_tokens;
  };
  EXPECT_EQ(ask(1, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), 0);
  EXPECT_EQ(ask(1, {1, 2, 3, 99, 5, 6, 7, 8}), 3);  // in the first page
  EXPECT_EQ(ask(1, {1, 2, 3, 4, 5, 6, 98, 8, 97}), 6);
  EXPECT_EQ(ask(1, {1, 2, 3, 4, 5, 6, 98, 96, 95}), 7);  // two pages begin alike: the one with more in common counts
  EXPECT_EQ(ask(1, {1, 2}), 1);                          // shorter than a page; the last token is computed
  EXPECT_EQ(ask(1, {1}), 0);
  EXPECT_EQ(ask(1, {2, 2, 3, 4, 5}), 0);
  EXPECT_EQ(ask(2, {1, 2, 3, 99, 5, 6, 7, 8}), 0);  // another adapter's pages are different
  EXPECT_EQ(w.engine->Stats().prefix.copied_pages, 4);
  EXPECT_GT(w.executor->checked(), 3 + 6 + 7 + 1);
}

// Two sharing domains learn nothing of what the other has cached: not by cached tokens, and not by the time to the
// first token, which is that of a prompt that was never seen.
TEST(Engine, DomainsLearnNothingOfEachOthersPrompts) {
  World w(64, 8, {}, {2});
  const std::vector<TokenId> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const auto ask = [&](std::uint32_t adapter, const std::string& domain) {
    const TimeNs begun = w.clock.Now();
    const RequestId id = *w.Submit(prompt, adapter, 1, "", domain);
    w.Drain();
    EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(AdapterGeneration{adapter}, prompt, 1));
    return std::pair(w.outcomes[id].cached_tokens, w.clock.Now() - begun);
  };
  for (const std::uint32_t adapter : {0u, 1u}) {
    ask(adapter, "warm");  // loads the adapter
    const auto unseen = ask(adapter, "first");
    EXPECT_EQ(unseen.first, 0);
    EXPECT_EQ(ask(adapter, "second"), unseen);
    EXPECT_EQ(ask(adapter, ""), unseen);
    for (const char* domain : {"", "first", "second"}) EXPECT_EQ(ask(adapter, domain).first, 8) << domain;
  }
  EXPECT_TRUE(w.registry.Remove("adapter-0").ok());
  w.Drain();
}

// If the page to be copied is itself needed for memory, it is evicted and the prompt is computed.
TEST(Engine, NobodyWaitsForThePageThatHeWouldCopy) {
  World w(8, 1, {}, {});
  const auto ask = [&](const std::vector<TokenId>& tokens) {
    const RequestId id = *w.Submit(tokens, 0, 1);
    w.Drain();
    EXPECT_EQ(w.outcomes[id].tokens.size(), 1u);
    return w.outcomes[id].cached_tokens;
  };
  std::vector<TokenId> prompt(31, 5);  // with its answer, all eight pages
  EXPECT_EQ(ask(prompt), 0);
  prompt[2] = 6;
  EXPECT_EQ(ask(prompt), 0);  // two tokens would be found, but the memory of their page is needed
  EXPECT_EQ(w.engine->Stats().prefix.copied_pages, 0);
}

// Two names of one content share its cached pages; the history is freed with the last name.
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
  w.Load("first", 3, "same weights");  // loaded again, without any of the old history
  EXPECT_EQ(cached(AdapterGeneration{4}), 0);
}

// History fills the memory. An adapter that is needed takes it, least recently used first, and no adapter is evicted
// before the history that depends on it.
TEST(Engine, AnAdapterGoesOnlyAfterItsHistory) {
  World w(14, 8, {}, {4, 4, 4});
  const auto ask = [&](std::uint32_t adapter) {
    ASSERT_TRUE(w.Submit({1, 2, 3, 4, 5, 6, 7, 8, 9}, adapter, 2).ok());
    w.Drain();  // checks that all history is usable
  };
  ask(1);
  ask(2);
  const EngineStats before = w.engine->Stats();
  EXPECT_EQ(before.history_pages, 4);
  ask(3);
  const EngineStats after = w.engine->Stats();
  EXPECT_EQ(after.history_evictions, 2);  // those of adapter 1
  EXPECT_EQ(after.adapters.device_evictions, 1);
  EXPECT_EQ(after.history_pages, 4);
}

// Evicted history comes back from the host tier instead of being recomputed, while others run. KvCheckingExecutor
// checks each page that is read.
TEST(Engine, HistoryComesBackFromTheHostTier) {
  World w(24, 64, {}, {});
  const auto prompt_of = [](TokenId first) { return std::vector<TokenId>(33, first); };  // 8 full pages
  const auto ask = [&](TokenId first) {
    const RequestId id = *w.Submit(prompt_of(first), 0, 2);
    w.Drain();
    EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(kBaseModel, prompt_of(first), 2));
    return w.outcomes[id].cached_tokens;
  };
  for (TokenId first = 1; first <= 6; ++first) EXPECT_EQ(ask(first), 0);  // 48 pages of history in 24
  const EngineStats before = w.engine->Stats();
  EXPECT_GT(before.history_evictions, 20);
  const std::int64_t computed = before.tokens_prefilled;
  EXPECT_GE(ask(1), 24);  // one page at a time is copied here, and the end of a session is evicted first
  EXPECT_GE(ask(2), 24);
  const EngineStats after = w.engine->Stats();
  EXPECT_GE(after.kv_tiers.pages_fetched, 12);
  EXPECT_EQ(after.kv_tiers.fetches, 2);
  EXPECT_LE(after.tokens_prefilled, computed + 2 + 16);
}

// When most of the device is in use, pages of a request are evicted before they could be copied after its end. So they
// are copied while it runs.
TEST(Engine, WhatRunsIsCopiedWhereLittleElseIsIdle) {
  const auto pages_copied = [](std::int64_t device_pages) {
    World w(device_pages, 64, {}, {});
    const std::vector<TokenId> prompt(69, 1);  // 17 full pages
    const RequestId running = *w.Submit(prompt, 0, 20);
    while (w.outcomes[running].tokens.size() < 18) EXPECT_TRUE(w.Advance());
    const std::int64_t copied = w.engine->Stats().kv_tiers.pages_backed_up;
    w.Drain();
    EXPECT_EQ(w.outcomes[running].tokens, ExpectedTokens(kBaseModel, prompt, 20));
    return copied;
  };
  EXPECT_GE(pages_copied(24), 5);  // one at a time
  EXPECT_EQ(pages_copied(128), 0);
}

// And what lies in the host tier, alone or as a copy.
TEST(Engine, HistoryInTheHostTierIsDroppedToo) {
  EngineWorld w({.device_pages = 24, .host_pages = 200});
  const auto ask = [&w](TokenId first) {
    const RequestId id = *w.Submit(std::vector<TokenId>(33, first), kBaseModel, 2);  // 8 full pages
    w.Drain();
    return w.outcomes[id].cached_tokens;
  };
  for (TokenId first = 1; first <= 12; ++first) ask(first);
  ASSERT_GT(w.engine->Stats().host.used(PageCategory::kKv), 8);
  w.engine->DropHistory([](const Result<std::int64_t>& pages) { EXPECT_TRUE(pages.ok()); });
  w.Drain();
  EXPECT_EQ(w.engine->Stats().host.used(PageCategory::kKv), 0);
  EXPECT_EQ(w.engine->Stats().device.used(PageCategory::kKv), 0);
  for (TokenId first = 1; first <= 12; ++first) EXPECT_EQ(ask(first), 0);
  w.engine->CheckIntegrity();
}

// FastLibra 3.2: "if its LoRAs or KV caches are in main memory but HBM is full, the cache manager swaps out cold LoRAs
// or KVs ..., then swaps in the required ones". Nothing is copied while the device has room, and what leaves it is in
// main memory with all that depends on it, so that no prompt is computed twice.
TEST(Engine, WhatIsEvictedIsSwappedOutAndNothingIsLost) {
  for (const SwapOut when : {SwapOut::kEvicted, SwapOut::kAhead}) {
    EngineWorld w({.device_pages = 24, .host_pages = 200, .spec = {.swap_out = when}});
    const auto ask = [&w](TokenId first) {
      const std::vector<TokenId> prompt(33, first);  // 8 full pages
      const RequestId id = *w.Submit(prompt, kBaseModel, 2);
      w.Drain();
      EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(kBaseModel, prompt, 2));
      return w.outcomes[id].cached_tokens;
    };
    ask(1);
    ask(2);  // 16 of 24 pages; the request had 9
    const bool evicted = when == SwapOut::kEvicted;
    EXPECT_EQ(w.engine->Stats().kv_tiers.pages_backed_up == 0, evicted);
    for (TokenId first = 3; first <= 12; ++first) ask(first);
    const EngineStats filled = w.engine->Stats();
    EXPECT_GT(filled.history_evictions, 70);
    std::int64_t found = 0;
    for (TokenId first = 1; first <= 12; ++first) found += ask(first);
    EXPECT_EQ(found == 12 * 32, evicted);  // ahead, a page whose copy is not there in time is lost
    EXPECT_EQ(w.engine->Stats().preemptions, 0);
    w.engine->CheckIntegrity();
  }
}

// Where the pages of others have to be copied first, a request waits for its history and does not compute it again:
// "swaps in the required ones" (FastLibra 3.2).
TEST(Engine, HistoryIsWaitedForWhileOthersAreSwappedOut) {
  EngineWorld w({.device_pages = 24, .host_pages = 200, .spec = {.swap_out = SwapOut::kEvicted}});
  const auto submit = [&w](TokenId first) {
    return *w.Submit(std::vector<TokenId>(33, first), kBaseModel, 2);  // 8 full pages
  };
  for (TokenId first = 1; first <= 12; ++first) {
    submit(first);
    w.Drain();
  }
  std::vector<RequestId> again;
  for (TokenId first = 1; first <= 12; ++first) again.push_back(submit(first));  // all at once
  w.Drain();
  for (const RequestId id : again) EXPECT_EQ(w.outcomes[id].cached_tokens, 32);
  w.engine->CheckIntegrity();
}

// A host tier that takes no more keeps no request waiting: history is dropped then.
TEST(Engine, WhereNothingCanBeSwappedOutHistoryIsDropped) {
  EngineWorld w({.device_pages = 24, .host_pages = 4, .spec = {.swap_out = SwapOut::kEvicted}});
  for (TokenId first = 1; first <= 12; ++first) {
    const std::vector<TokenId> prompt(33, first);
    const RequestId id = *w.Submit(prompt, kBaseModel, 2);
    w.Drain();
    EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(kBaseModel, prompt, 2));
  }
  w.engine->CheckIntegrity();
}

// FastLibra's figure 3: two queries of two LoRAs, whose histories and LoRAs do not fit together. Without usage
// dependencies (a) LoRA-1 goes first and KV1-1 stays, "invalid" since no query can use it. With them (b) all KV in HBM
// is valid, after every step.
TEST(Engine, FigureThreeOfFastLibra) {
  for (const char* cache : {"fastlibra-wom", "fastlibra"}) {
    EngineWorld w({.device_pages = 20, .host_pages = 200, .spec = {.swap_out = SwapOut::kEvicted}, .cache = cache});
    const AdapterGeneration lora1 = w.Load("lora-1", 5), lora2 = w.Load("lora-2", 5);
    std::int64_t invalid = 0;
    for (const AdapterGeneration lora : {lora1, lora2, lora1, lora2}) {
      const std::vector<TokenId> prompt(37, 7);  // 9 full pages
      const RequestId id = *w.Submit(prompt, lora, 2);
      w.Drain();
      EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(lora, prompt, 2));
      invalid = std::max(invalid, w.engine->Stats().invalid_history_pages);
    }
    EXPECT_EQ(invalid > 0, std::string(cache) == "fastlibra-wom") << cache;
  }
}

// More requests want history than fetches may run at a time; recomputing it would take longer than waiting.
TEST(Engine, HistoryIsWaitedForWhereOthersAreOnTheirWay) {
  World w(64, 256, {.fetch_ahead = false}, {});
  const auto prompt_of = [](TokenId first) { return std::vector<TokenId>(33, first); };  // 8 full pages
  for (TokenId first = 1; first <= 16; ++first) {                                        // 128 pages of history in 64
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

// The first request takes pages that the next one would start with, while the rest of the next one's history is in the
// host tier. All of it is then fetched, whatever the first one needs.
TEST(Engine, HistoryThatAPlanTakesAPartOfIsFetched) {
  const auto prompt_of = [](TokenId first) { return std::vector<TokenId>(33, first); };  // 8 full pages
  for (std::size_t length = 5; length <= 81; length += 4) {
    World w(24, 64, {.fetch_ahead = false}, {});
    for (TokenId first = 1; first <= 3; ++first) {
      ASSERT_TRUE(w.Submit(prompt_of(first), 0, 2).ok());
      w.Drain();
    }
    ASSERT_TRUE(w.Submit(std::vector<TokenId>(21, 4), 0, 2).ok());  // some pages of the first prompt are evicted
    w.Drain();
    ASSERT_GT(w.engine->Stats().history_evictions, 0);
    ASSERT_TRUE(w.Submit(std::vector<TokenId>(length, 9), 0, 2).ok());
    const RequestId next = *w.Submit(prompt_of(1), 0, 2);
    w.Drain();
    EXPECT_GE(w.outcomes[next].cached_tokens, 24) << length;
    EXPECT_EQ(w.outcomes[next].tokens, ExpectedTokens(kBaseModel, prompt_of(1), 2)) << length;
  }
}

// Fetched pages of a request that then had no room are evicted for a running request, and fetched again when there is
// room.
TEST(Engine, WhatWasFetchedAndWentIsFetchedAgain) {
  World w(24, 256, {.fetch_ahead = false}, {});
  const std::vector<TokenId> prompt(33, 1);  // 8 full pages
  for (TokenId first = 1; first <= 6; ++first) {
    ASSERT_TRUE(w.Submit(std::vector<TokenId>(33, first), 0, 2).ok());
    w.Drain();
  }
  const EngineStats before = w.engine->Stats();
  const RequestId running = *w.Submit(std::vector<TokenId>(56, 9), 0, 30);  // 15 pages, then up to 22
  while (w.outcomes[running].tokens.size() < 2) ASSERT_TRUE(w.Advance());
  const RequestId waiting = *w.Submit(prompt, 0, 2);
  w.Drain();
  EXPECT_EQ(w.outcomes[waiting].tokens, ExpectedTokens(kBaseModel, prompt, 2));
  EXPECT_GE(w.outcomes[waiting].cached_tokens, 24);
  EXPECT_GE(w.engine->Stats().kv_tiers.fetches - before.kv_tiers.fetches, 2);
}

// A request without a seat gets its history while another one runs, and starts as soon as that one has ended.
TEST(Engine, HistoryIsFetchedAheadForThoseWithoutASeat) {
  const auto time_of_second = [](bool ahead, EngineStats* stats) {
    World w(24, 64, {.max_running = 1, .fetch_ahead = ahead}, {});
    for (TokenId first = 1; first <= 6; ++first) {  // 48 pages of history in 24
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
  EXPECT_GE(time_of_second(false, &without) - ahead, 2 * kNsPerMs);  // the time of a copy
  EXPECT_EQ(with.kv_tiers.fetches_ahead, 1);
  EXPECT_EQ(with.kv_tiers.fetches, 0);
  EXPECT_EQ(with.kv_tiers.pages_fetched, without.kv_tiers.pages_fetched);
  EXPECT_EQ(without.kv_tiers.fetches_ahead, 0);
  EXPECT_EQ(without.kv_tiers.fetches, 1);
}

// On a device too small for the history of all waiting requests, no request finds less cached than without fetching
// ahead, and almost nothing is copied in vain.
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
  EXPECT_LE(with[0].fetches_ahead, 2);         // while the first one runs, there are pages for at most two
  EXPECT_LE(with[1].pages_fetched, used + 6);  // the running one took 6 pages
}

// A failed copy costs the request only the computation that the history would have saved.
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
  w.transfer.set_fault([](const TransferJob& job) {
    return job.kind() == TransferKind::kHostToDevice ? std::optional<Error>(IoError("injected")) : std::nullopt;
  });
  EXPECT_EQ(ask(1), 0);
  w.transfer.set_fault({});
  EXPECT_EQ(ask(2), 32);
  EXPECT_EQ(w.engine->Stats().kv_tiers.failed_jobs, 1);
}

// ---------------------------------------------------------------- Proactive swapping

// On a device of 80 pages, the upper threshold is 76 pages and the lower one 56.
struct SwappingWorld : World {
  AdapterGeneration large, small;
  explicit SwappingWorld(const std::string& cache = "fastlibra-wos")
      : World(80, 400, {}, {}, /*prefix_cache=*/true, cache) {
    large = Load("large", 32);
    small = Load("small", 2);
  }
  std::int32_t Ask(AdapterGeneration who, TokenId first) {  // 8 full pages
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
  // The history asked first is in the host tier alone. Then the large adapter is unloaded, which frees 16 pages with
  // its history.
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
    EXPECT_GE(w.Used(), 76);  // and no more than that
    w.Wait(kNsPerSecond);
    EXPECT_EQ(w.engine->Stats().swaps.history_out, stats.swaps.history_out);
    EXPECT_EQ(w.engine->Stats().swaps.history_in, 0);
  }
}

// The adapter first, then the history that depends on it, until 70 % are in use again.
TEST(Engine, BelowTheLowerThresholdTheMostValuableComesBeforeAnybodyAsks) {
  SwappingWorld w;
  w.MakeRoom();
  EXPECT_EQ(w.residency_pages(), 32);  // the small one is not resident
  w.Wait(5 * kNsPerSecond);
  EXPECT_EQ(w.residency_pages(), 2);
  EXPECT_EQ(w.Used(), 56);
  const EngineStats before = w.engine->Stats();
  EXPECT_EQ(before.swaps.adapters_in, 2);
  EXPECT_GT(before.swaps.history_in, 4);
  EXPECT_EQ(before.kv_tiers.pages_fetched_ahead, before.swaps.history_in);
  EXPECT_EQ(before.kv_tiers.fetches, 0);
  EXPECT_EQ(w.Ask(kBaseModel, 18), 30);  // 28 in full pages, 2 in a page that is copied
  EXPECT_EQ(w.engine->Stats().kv_tiers.fetches, 0);
  EXPECT_FALSE(w.engine->TimeToNextMove().has_value());  // nothing to do: no wake-up
}

TEST(Engine, SwapsThatFailHarmNobody) {
  SwappingWorld w;
  w.MakeRoom();
  const auto fault = [](const TransferJob& job) {
    return job.kind() == TransferKind::kHostToDevice ? std::optional<Error>(IoError("injected")) : std::nullopt;
  };
  w.transfer.set_fault(fault);
  w.Wait(kNsPerSecond);
  const EngineStats failed = w.engine->Stats();
  EXPECT_GT(failed.kv_tiers.failed_jobs, 0);   // tried again
  EXPECT_LE(failed.kv_tiers.failed_jobs, 12);  // at ticks only
  EXPECT_EQ(failed.kv_tiers.pages_fetched_ahead, 0);
  w.transfer.set_fault({});
  w.Ask(kBaseModel, 18);  // causes steps
  w.Wait();               // a tick
  w.Wait(5 * kNsPerSecond);
  EXPECT_EQ(w.Used(), 56);
  w.Ask(w.small, 1);
}

// A server that is stopping fetches nothing ahead.
TEST(Engine, NothingComesOnceTheServerEnds) {
  SwappingWorld w;
  w.MakeRoom();
  w.engine->StopAccepting();
  w.Wait(kNsPerSecond);
  EXPECT_EQ(w.engine->Stats().swaps.history_in + w.engine->Stats().swaps.adapters_in, 0);
  EXPECT_FALSE(w.engine->TimeToNextMove().has_value());
}

// Nothing moves while all is held, and the engine is not woken up for it.
TEST(Engine, NothingComesWhileAllIsHeld) {
  SwappingWorld w;
  w.MakeRoom();
  w.Drain();
  ASSERT_TRUE(w.engine->TimeToNextMove().has_value());
  w.engine->SetHold(Hold::kAll);
  w.Drain();
  EXPECT_FALSE(w.engine->TimeToNextMove().has_value());
  w.engine->SetHold(Hold::kNone);
  w.Wait(5 * kNsPerSecond);
  EXPECT_EQ(w.Used(), 56);
}

// The adapter is unloaded while its history is being fetched: both pages of each move are freed when it ends.
TEST(Engine, AnUnloadDuringAFetchLeaksNothing) {
  World w(24, 64, {}, {});
  const AdapterGeneration adapter = w.Load("x", 2, "weights");
  const auto submit = [&](AdapterGeneration who, TokenId first) {
    return *w.EngineWorld::Submit(std::vector<TokenId>(33, first), who, 2);
  };
  submit(adapter, 1);
  w.Drain();
  for (TokenId first = 2; first <= 6; ++first) {
    submit(kBaseModel, first);
    w.Drain();
  }
  w.transfer.set_fault({});
  const RequestId id = submit(adapter, 1);
  while (w.engine->Stats().adapters.device_loads < 2) w.Advance();  // it had been evicted as well
  while (w.transfer.next_end() < 0) ASSERT_TRUE(w.Advance());
  w.engine->Cancel(id);
  ASSERT_TRUE(w.registry.Remove("x").ok());
  while (w.engine->Step()) {
  }
  w.Drain();
  EXPECT_EQ(w.device->Stats().used(PageCategory::kAdapter), 0);
  EXPECT_EQ(w.tree.tiers().orphans(), 0);
  w.engine->CheckIntegrity();
}

// Without dependency maintenance, an adapter is evicted and its history stays: invalid for now, and usable again when
// the adapter is back.
TEST(Engine, HistoryWithoutItsAdapterIsInvalidUntilItIsBack) {
  World w(40, 12, {}, {6, 6}, /*prefix_cache=*/true, "vllm");  // adapters have 8 pages: one at a time
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
  EXPECT_EQ(w.engine->Stats().invalid_history_pages, 2);  // those of adapter 1
  EXPECT_EQ(ask(1), 8);
  EXPECT_EQ(w.engine->Stats().history_pages, 4);
  EXPECT_EQ(w.engine->Stats().invalid_history_pages, 2);  // now those of adapter 2
  ASSERT_TRUE(w.registry.Remove("adapter-1").ok());       // which no request can bring back
  w.Drain();
  EXPECT_EQ(w.engine->Stats().history_pages, 2);
  EXPECT_EQ(w.engine->Stats().invalid_history_pages, 0);
}

// A content's history outlives one of its names, even if the other is not resident at the time.
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
  EXPECT_EQ(cached(first), 8);  // and evicts the second
  EXPECT_EQ(cached(other), 0);  // and evicts the first
  ASSERT_TRUE(w.registry.Remove("first").ok());
  w.Drain();
  EXPECT_EQ(w.engine->Stats().invalid_history_pages, 2);
  EXPECT_EQ(cached(second), 8);
}

}  // namespace
}  // namespace loramux::engine_history_test
