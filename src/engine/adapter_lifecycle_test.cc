// Adapters that are loaded, changed and unloaded under a running engine, on a virtual clock. A trivial model says which
// generation each request must run with. ModeledExecutor's tokens depend on the generation, so a request that used
// another adapter's weights, even for one token, gives another answer.
#include <set>

#include "engine/engine_world_for_test.h"

namespace loramux::adapter_lifecycle_test {
namespace {

struct World : EngineWorld {
  explicit World(SystemSpec scheduler = {}, std::string_view cache = "lru", double host_bytes_per_second = 10e9)
      : EngineWorld({.spec = scheduler,
                     .max_model_len = 60,
                     .cache = std::string(cache),
                     .host_bytes_per_second = host_bytes_per_second}) {}
  // No pages of adapters or their history are left; the base model's history may stay.
  void ExpectNothingKept() {
    EXPECT_EQ(device->Stats().used(PageCategory::kAdapter), 0);
    EXPECT_EQ(host->Stats().used(PageCategory::kAdapter), 0);
    EXPECT_EQ(device->Stats().used(PageCategory::kKv), tree.tiers().pages(tree.Hold("")));
    EXPECT_EQ(engine->Stats().invalid_history_pages, 0);
    EXPECT_EQ(registry.held_generations(), 0u);
  }
};

TEST(Peers, Point1_AnotherTenantsAdapterNeverAnswersAfterAHotLoad) {
  World w;
  const std::vector<TokenId> prompt = {7, 8, 9};
  AdapterGeneration mine = w.Load("mine", 6);
  std::map<RequestId, AdapterGeneration> asked;
  for (int round = 0; round < 50; ++round) {
    asked.emplace(*w.Submit(prompt, mine, 20), mine);
    for (int i = 0; i < 3; ++i) w.Advance();  // it decodes
    const std::string other = "other-" + std::to_string(round);
    const AdapterGeneration theirs = w.Load(other, 6);  // needs the memory and the slot
    asked.emplace(*w.Submit(prompt, theirs, 20), theirs);
    w.Advance();
    mine = w.Replace("mine", 6);
    asked.emplace(*w.Submit(prompt, mine, 20), mine);
    ASSERT_TRUE(w.registry.Remove(other).ok());
    if (round % 7 == 0) w.Drain();
  }
  w.Drain();
  for (const auto& [id, adapter] : asked) EXPECT_EQ(w.outcomes[id].tokens, ExpectedTokens(adapter, prompt, 20)) << id;
  EXPECT_TRUE(w.registry.Remove("mine").ok());
  w.Drain();
  w.ExpectNothingKept();
}

TEST(Peers, Point2_AReloadUnderTheSameNameIsANewGeneration) {
  World w;
  const AdapterGeneration before = w.Load("x", 3);
  const auto held = *w.registry.Resolve("x");
  const AdapterGeneration after = w.Replace("x", 3);
  EXPECT_NE(before, after);
  EXPECT_EQ((*w.registry.Resolve("x"))->generation, after);
  // A request that resolved the name before is served by that generation, even if it is submitted after the reload.
  const auto late = w.Submit({1, 2}, held->generation, 8);
  ASSERT_TRUE(late.ok());
  const auto fresh = w.Submit({1, 2}, after, 8);
  w.Drain();
  EXPECT_EQ(w.outcomes[*late].tokens, ExpectedTokens(before, {1, 2}, 8));
  EXPECT_EQ(w.outcomes[*fresh].tokens, ExpectedTokens(after, {1, 2}, 8));
}

// Unloading in each state of an adapter: absent, loading (with and without a waiting request), decoding, twice, after a
// reload.
TEST(Peers, Point7_UnloadNeverLeaksOrDeadlocks) {
  for (int steps = 0; steps < 12; ++steps) {
    for (const bool cancel : {false, true}) {
      SCOPED_TRACE(testing::Message() << steps << " steps, " << (cancel ? "cancelled" : "served"));
      World w;
      const AdapterGeneration x = w.Load("x", 5);
      const auto running = w.Submit({1, 2, 3}, x, 10);
      for (int i = 0; i < steps; ++i) w.Advance();
      const auto queued = w.Submit({4}, x, 10);
      ASSERT_TRUE(w.registry.Remove("x").ok());
      EXPECT_EQ(w.registry.Remove("x").error().code, ErrorCode::kNotFound);
      const AdapterGeneration again = w.Load("x", 4);
      const auto fresh = w.Submit({4}, again, 10);
      if (cancel) {
        w.engine->Cancel(*running);
        w.engine->Cancel(*queued);
      }
      w.Drain();
      if (!cancel) {
        EXPECT_EQ(w.outcomes[*running].tokens, ExpectedTokens(x, {1, 2, 3}, 10));
        EXPECT_EQ(w.outcomes[*queued].tokens, ExpectedTokens(x, {4}, 10));
      }
      EXPECT_EQ(w.outcomes[*fresh].tokens, ExpectedTokens(again, {4}, 10));
      EXPECT_EQ(w.registry.held_generations(), 1u);
      EXPECT_EQ(w.device->Stats().used(PageCategory::kAdapter), 4);
      ASSERT_TRUE(w.registry.Remove("x").ok());
      w.Drain();
      w.ExpectNothingKept();
    }
  }
}

TEST(AdapterLifecycle, MemoryIsBoundedOverManyReloads) {
  World w;
  w.Load("x", 3);
  for (int i = 0; i < 50'000; ++i) {
    const AdapterGeneration x = w.Replace("x", 1 + i % 5);
    if (i % 100 == 0) {
      ASSERT_TRUE(w.Submit({1}, x, 2).ok());
    }
    if (i % 10 == 0) w.Advance();
    if (i % 1000 == 0) w.Drain();
  }
  w.Drain();
  EXPECT_EQ(w.registry.held_generations(), 1u);
  EXPECT_LE(w.engine->Stats().adapters.known, 1);
  ASSERT_TRUE(w.registry.Remove("x").ok());
  w.Drain();
  w.ExpectNothingKept();
}

// ---- Pins ----

struct Pinned {
  bool done = false;
  Status status = Ok{};
};

std::shared_ptr<Pinned> Pin(World& w, const std::string& name, bool pinned = true) {
  auto result = std::make_shared<Pinned>();
  w.engine->SetPinned(*w.registry.Resolve(name), pinned, [result](Status status) {
    EXPECT_FALSE(result->done);
    *result = {true, std::move(status)};
  });
  return result;
}

TEST(AdapterLifecycle, APinnedAdapterIsLoadedAtOnceAndStays) {
  World w;
  w.Load("pinned", 8);
  const auto pin = Pin(w, "pinned");
  w.Drain();
  ASSERT_TRUE(pin->done && pin->status.ok());
  for (int i = 0; i < 10; ++i) {  // together much more than the device
    const AdapterGeneration other = w.Load("other-" + std::to_string(i), 9);
    ASSERT_TRUE(w.Submit({1, 2, 3}, other, 20).ok());
  }
  w.Drain();
  EXPECT_GT(w.engine->Stats().adapters.device_evictions, 3);
  const std::int64_t loads = w.engine->Stats().adapters.device_loads;
  ASSERT_TRUE(w.Submit({5}, (*w.registry.Resolve("pinned"))->generation, 3).ok());
  w.Drain();
  EXPECT_EQ(w.engine->Stats().adapters.device_loads, loads);  // it was resident
  const auto unpin = Pin(w, "pinned", false);
  w.Drain();
  EXPECT_TRUE(unpin->done && unpin->status.ok());
  EXPECT_EQ(w.engine->Stats().adapters.kept, 0);
}

TEST(AdapterLifecycle, APinThatCannotFitIsRefused) {
  World w;
  w.Load("large", 30);  // 15 of the 40 pages stay for the longest request
  const auto pin = Pin(w, "large");
  w.Drain();
  ASSERT_TRUE(pin->done);
  ASSERT_FALSE(pin->status.ok());
  EXPECT_EQ(pin->status.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(pin->status.error().message.find("30 pages"), std::string::npos) << pin->status.error().message;
  EXPECT_EQ(w.device->Stats().used(PageCategory::kAdapter), 0);
}

// With a regime that gives adapters a share of the device: 8 of 40 pages.
TEST(AdapterLifecycle, PinsTakeFromTheShareOfAdapters) {
  World w({}, "vllm");
  w.Load("pinned", 5);
  w.Load("second", 4);
  const AdapterGeneration small = w.Load("small", 3), large = w.Load("large", 4);
  const auto pin = Pin(w, "pinned");
  w.Drain();
  ASSERT_TRUE(pin->done && pin->status.ok());
  const auto second = Pin(w, "second");
  w.Drain();
  ASSERT_TRUE(second->done);
  ASSERT_FALSE(second->status.ok());
  EXPECT_NE(second->status.error().message.find("8 pages that this cache has for adapters"), std::string::npos)
      << second->status.error().message;
  EXPECT_EQ(w.engine->MaxSequenceTokens(small), 60);
  EXPECT_EQ(w.engine->MaxSequenceTokens(kBaseModel), 60);
  EXPECT_EQ(w.engine->MaxSequenceTokens(large), 0);  // it would not fit beside the pinned one
  ASSERT_TRUE(w.Submit({1, 2, 3}, small, 20).ok());
  w.Drain();
  EXPECT_EQ(w.engine->Stats().adapters.device_evictions, 0);
}

TEST(AdapterLifecycle, APinWaitsForRunningRequestsAndNeverBreaksAPromise) {
  World w;
  w.Load("pinned", 20);
  const AdapterGeneration big = w.Load("big", 12);
  const auto promised = w.Submit(std::vector<TokenId>(20, 3), big, 36);  // 14 + 12 pages
  w.Advance();
  const auto refused = Pin(w, "pinned");
  w.Advance();
  ASSERT_TRUE(refused->done);
  EXPECT_EQ(refused->status.error().code, ErrorCode::kUnavailable);
  w.Drain();
  EXPECT_EQ(w.outcomes[*promised].tokens, ExpectedTokens(big, std::vector<TokenId>(20, 3), 36));
  const auto pin = Pin(w, "pinned");
  w.Drain();
  EXPECT_TRUE(pin->done && pin->status.ok());
  EXPECT_EQ(w.engine->MaxSequenceTokens(big), (40 - 20 - 12) * 4);
  EXPECT_FALSE(w.Submit(std::vector<TokenId>(20, 3), big, 36).ok());
}

TEST(AdapterLifecycle, AFailedLoadEndsThePinWithItsError) {
  World w;
  w.Load("x", 4);
  w.transfer.set_fault([](const TransferJob&) { return std::optional<Error>(IoError("injected")); });
  const auto pin = Pin(w, "x");
  w.Drain();
  ASSERT_TRUE(pin->done);
  EXPECT_EQ(pin->status.error().message, "injected");
  EXPECT_EQ(w.engine->Stats().adapters.kept, 0);
  EXPECT_EQ(w.device->Stats().used(PageCategory::kAdapter), 0);
}

// ---- What a new version does to the requests on the old one ----

// Steps until the request has so many tokens.
void WaitForTokens(World& w, RequestId id, std::size_t tokens) {
  while (w.outcomes[id].tokens.size() < tokens) ASSERT_TRUE(w.Advance());
}

// Tokens by each adapter: as many by each as `counts` says.
using Counts = std::vector<std::pair<AdapterGeneration, std::size_t>>;
Counts CountsOf(const World::Outcome& outcome) {
  Counts counts;
  for (const AdapterGeneration adapter : outcome.adapters) {
    if (counts.empty() || counts.back().first != adapter) counts.emplace_back(adapter, 0);
    ++counts.back().second;
  }
  return counts;
}

TEST(Retarget, WhatRunsGoesOnFromItsTokens) {
  World w;
  const std::vector<TokenId> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const AdapterGeneration a = w.Load("x", 3, "a"), other = w.Load("other", 3);
  const RequestId running = *w.Submit(prompt, a, 30), aside = *w.Submit(prompt, other, 30);
  WaitForTokens(w, running, 8);
  const std::size_t had = w.outcomes[running].tokens.size();
  const AdapterGeneration b = w.Reload(World::Make("x", 3, "b"));
  const RequestId fresh = *w.Submit(prompt, b, 30);
  w.Drain();
  const World::Outcome& outcome = w.outcomes[running];
  ASSERT_EQ(CountsOf(outcome).size(), 2u);
  EXPECT_EQ(outcome.adapters[had + 1], b);  // one more was in flight
  EXPECT_EQ(outcome.tokens, ExpectedTokens(outcome, prompt, 30));
  EXPECT_EQ(w.outcomes[aside].tokens, ExpectedTokens(other, prompt, 30));
  EXPECT_EQ(w.outcomes[fresh].tokens, ExpectedTokens(b, prompt, 30));
  // The same prompt on both versions: the keys are by content, so the new one finds nothing of the old one.
  EXPECT_EQ(outcome.cached_tokens, 0);
  EXPECT_EQ(w.engine->Stats().retargeted.moved, 1);
  EXPECT_EQ(w.engine->Stats().preemptions, 0);
  EXPECT_EQ(w.registry.held_generations(), 2u);
  for (const char* name : {"x", "other"}) EXPECT_TRUE(w.registry.Remove(name).ok());
  w.Drain();
  w.ExpectNothingKept();
}

// It moves with its whole history where a request on the new version has computed it.
TEST(Retarget, TheNewVersionsHistoryIsFound) {
  World w;
  const std::vector<TokenId> prompt(17, 5);
  const AdapterGeneration a = w.Load("x", 3, "a");
  const RequestId running = *w.Submit(prompt, a, 20);
  WaitForTokens(w, running, 4);
  const auto old = *w.registry.Resolve("x");
  const AdapterGeneration b = w.Replace("x", 3, "b");
  const RequestId fresh = *w.Submit(prompt, b, 2);
  while (w.outcomes[fresh].ends == 0) ASSERT_TRUE(w.Advance());
  const std::int64_t prefilled = w.engine->Stats().tokens_prefilled;
  const auto known = static_cast<std::int64_t>(w.outcomes[running].tokens.size()) + 17;
  w.engine->Retarget(*old, *w.registry.Resolve("x"));
  w.Drain();
  EXPECT_EQ(w.outcomes[running].tokens, ExpectedTokens(w.outcomes[running], prompt, 20));
  EXPECT_LE(w.engine->Stats().tokens_prefilled - prefilled, known + 1 - 16);
  EXPECT_GT(w.executor->checked(), 16);
}

TEST(Retarget, TheLastOfSeveralCounts) {
  World w;
  const AdapterGeneration a = w.Load("x", 3);
  const RequestId running = *w.Submit({1, 2, 3}, a, 20), waiting = *w.Submit({4}, a, 20);
  WaitForTokens(w, running, 3);
  w.Reload(World::Make("x", 30));  // they would not fit beside it
  w.Reload(World::Make("x", 2));
  const RequestId late = *w.Submit({5}, a, 20);  // it resolved the name before
  w.engine->Step();                              // takes the calls; a step may be in flight
  const AdapterGeneration last = w.Reload(World::Make("x", 4));
  w.Drain();
  for (const RequestId id : {running, waiting, late}) {
    const World::Outcome& outcome = w.outcomes[id];
    EXPECT_EQ(outcome.last, last);
    EXPECT_LE(CountsOf(outcome).size(), 2u);
  }
  EXPECT_EQ(w.outcomes[late].tokens, ExpectedTokens(last, {5}, 20));
  EXPECT_EQ(w.outcomes[running].tokens, ExpectedTokens(w.outcomes[running], {1, 2, 3}, 20));
  EXPECT_EQ(w.registry.held_generations(), 1u);
}

// What trainers do: hold, load, let go.
TEST(Retarget, WhatIsHeldMovesBeforeItGoesOn) {
  World w;
  const AdapterGeneration a = w.Load("x", 3);
  const RequestId running = *w.Submit({1, 2, 3}, a, 20);
  WaitForTokens(w, running, 3);
  w.engine->SetHold(Hold::kAll);
  while (w.Advance()) {
  }
  const std::size_t had = w.outcomes[running].tokens.size();
  const RequestId held = *w.Submit({4, 5}, a, 20);
  const AdapterGeneration b = w.Reload(World::Make("x", 3));
  while (w.Advance()) {
  }
  EXPECT_EQ(w.outcomes[running].tokens.size(), had);
  EXPECT_EQ(w.registry.held_generations(), 1u);  // nothing is on the old one
  w.engine->SetHold(Hold::kNone);
  w.Drain();
  EXPECT_EQ(CountsOf(w.outcomes[running]).front(), (std::pair{a, had}));
  EXPECT_EQ(w.outcomes[running].last, b);
  EXPECT_EQ(w.outcomes[running].tokens, ExpectedTokens(w.outcomes[running], {1, 2, 3}, 20));
  EXPECT_EQ(w.outcomes[held].tokens, ExpectedTokens(b, {4, 5}, 20));
}

TEST(Retarget, AnAbortEndsThisVersionsRequestsAlone) {
  World w;
  const AdapterGeneration a = w.Load("x", 3), other = w.Load("other", 3);
  const RequestId running = *w.Submit({1, 2, 3}, a, 20), aside = *w.Submit({1, 2, 3}, other, 20);
  WaitForTokens(w, running, 3);
  w.engine->SetHold(Hold::kNew);
  w.keeps_version = true;
  const RequestId stays = *w.Submit({6}, a, 20);
  w.keeps_version = false;
  const RequestId held = *w.Submit({4}, a, 20);
  const AdapterGeneration b = w.Reload(World::Make("x", 3), /*aborts=*/true);
  const RequestId late = *w.Submit({5}, a, 20), fresh = *w.Submit({5}, b, 20);
  w.Advance();
  w.Advance();
  for (const RequestId id : {running, held}) EXPECT_EQ(w.outcomes[id].finish, FinishReason::kAborted);
  w.engine->SetHold(Hold::kNone);
  w.Drain();
  EXPECT_EQ(w.outcomes[late].finish, FinishReason::kAborted);
  EXPECT_EQ(w.outcomes[fresh].tokens, ExpectedTokens(b, {5}, 20));
  EXPECT_EQ(w.outcomes[stays].tokens, ExpectedTokens(a, {6}, 20));
  EXPECT_EQ(w.outcomes[aside].tokens, ExpectedTokens(other, {1, 2, 3}, 20));
  EXPECT_EQ(w.engine->Stats().retargeted.aborted, 3);
}

TEST(Retarget, WhatHasNoPlaceOnTheNewVersionSaysSo) {
  World w;
  const AdapterGeneration a = w.Load("x", 3), y = w.LoadActivated("y", 3, {7});
  const RequestId large = *w.Submit(std::vector<TokenId>(30, 1), a, 20), small = *w.Submit({1}, a, 20);
  const RequestId activated = *w.Submit({7, 8}, y, 20), by_base = *w.Submit({8, 9}, y, 20);
  WaitForTokens(w, large, 2);
  const AdapterGeneration b = w.Reload(World::Make("x", 30));  // leaves 10 pages
  w.Reload(World::Make("y", 3));                               // acts from the first token on
  w.Drain();
  EXPECT_EQ(w.outcomes[large].finish, FinishReason::kError);
  EXPECT_NE(w.outcomes[large].error.find("50 tokens beside the new version (30 pages)"), std::string::npos)
      << w.outcomes[large].error;
  EXPECT_EQ(w.outcomes[small].last, b);
  EXPECT_EQ(w.outcomes[activated].finish, FinishReason::kError);
  EXPECT_NE(w.outcomes[activated].error.find("alora_invocation_tokens"), std::string::npos);
  EXPECT_EQ(w.outcomes[by_base].tokens, ExpectedTokens(kBaseModel, {8, 9}, 20));
  EXPECT_EQ(w.engine->Stats().retargeted.failed, 2);
  EXPECT_EQ(w.engine->Stats().retargeted.moved, 1);
}

// The registry does not make a composite anew: its requests end on it, or with the part's.
TEST(Retarget, ACompositeEndsOnItsPartsOrIsAborted) {
  for (const bool aborts : {false, true}) {
    World w;
    const AdapterGeneration a = w.Load("x", 3);
    auto joined = World::Make("x+y", 4);
    joined->parts = {*w.registry.Resolve("x")};
    const AdapterGeneration composite = (*w.registry.Commit(std::move(joined)))->generation;
    const RequestId of_part = *w.Submit({1}, a, 20), of_both = *w.Submit({1, 2}, composite, 20);
    WaitForTokens(w, of_both, 2);
    w.Reload(World::Make("x", 3), aborts);
    w.Drain();
    EXPECT_EQ(w.outcomes[of_both].finish == FinishReason::kAborted, aborts);
    EXPECT_EQ(w.outcomes[of_part].finish == FinishReason::kAborted, aborts);
    if (!aborts) EXPECT_EQ(w.outcomes[of_both].tokens, ExpectedTokens(composite, {1, 2}, 20));
    if (!aborts) EXPECT_NE(w.outcomes[of_part].last, a);
  }
}

// A prompt that is half computed begins anew; its log-probabilities and its mean come whole, and once.
TEST(Retarget, APromptThatIsHalfComputedBeginsAnew) {
  SystemSpec scheduler;
  scheduler.prefill_chunk = 4;
  World w(scheduler);
  const AdapterGeneration a = w.Load("x", 3);
  const std::vector<TokenId> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  w.prompt_logprobs = 1;
  const RequestId scored = *w.Submit(prompt, a, 5);
  w.prompt_logprobs = -1;
  w.pooling = Pooling::kMean;
  const RequestId pooled = *w.Submit(prompt, a, 0);
  while (w.engine->Stats().tokens_prefilled < 12) ASSERT_TRUE(w.Advance());
  const AdapterGeneration b = w.Reload(World::Make("x", 3));
  w.Drain();
  EXPECT_EQ(CountsOf(w.outcomes[scored]).front().first, b);
  EXPECT_EQ(w.outcomes[scored].prompt_scores.size(), prompt.size() - 1);
  EXPECT_EQ(w.outcomes[scored].prompt_scores.back().top_logprobs.size(), 1u);
  EXPECT_EQ(w.outcomes[pooled].last, b);
  EXPECT_EQ(w.outcomes[pooled].embedding, (std::vector<float>{9.5F, 1}));  // each position once
}

// Two pinned versions, as a load with `pinned` has them for a moment.
TEST(Retarget, APinnedVersionTakesThePlaceOfAPinnedOne) {
  World w;
  const AdapterGeneration a = w.Load("x", 3);
  const auto first = Pin(w, "x");
  const RequestId running = *w.Submit({1, 2, 3}, a, 20);
  WaitForTokens(w, running, 3);
  auto next = w.registry.Commit(World::Make("y", 3));
  const auto second = Pin(w, "y");
  w.Drain();
  ASSERT_TRUE(first->status.ok() && second->status.ok());
  const RequestId again = *w.Submit({1, 2, 3}, a, 20);
  WaitForTokens(w, again, 3);
  w.engine->Retarget(*w.registry.Find(a), *next);
  ASSERT_TRUE(w.registry.Remove("x").ok());
  w.Drain();
  EXPECT_EQ(w.outcomes[again].last, (*next)->generation);
  EXPECT_EQ(w.outcomes[again].tokens, ExpectedTokens(w.outcomes[again], {1, 2, 3}, 20));
  EXPECT_EQ(w.engine->Stats().adapters.kept, 1);
}

TEST(Retarget, ManyVersionsLeaveNothing) {
  World w;
  AdapterGeneration x = w.Load("x", 3);
  RequestId last;
  for (int i = 0; i < 2000; ++i) {
    if (i % 3 == 0) last = *w.Submit({1, 2, 3}, x, 12);
    x = w.Reload(World::Make("x", 1 + i % 3, "content " + std::to_string(i % 2)), /*aborts=*/i % 50 == 7);
    if (i % 5 == 0) w.engine->Cancel(last);
    for (int steps = i % 4; steps > 0; --steps) w.Advance();
    if (i % 100 == 0) w.engine->CheckIntegrity();
  }
  w.Drain();
  EXPECT_GT(w.engine->Stats().retargeted.moved, 500);
  EXPECT_EQ(w.registry.held_generations(), 1u);
  EXPECT_LE(w.engine->Stats().adapters.known, 1);
  ASSERT_TRUE(w.registry.Remove("x").ok());
  w.Drain();
  w.ExpectNothingKept();
}

// ---- Registered adapters in the host tier (SystemSpec::host_copies) ----

struct HostWorld : EngineWorld {
  explicit HostWorld(HostCopies which, std::int64_t host_pages = 20, std::int64_t device_pages = 40)
      : EngineWorld({.device_pages = device_pages,
                     .host_pages = host_pages,
                     .spec = {.host_copies = which},
                     .max_model_len = 60}) {}
  AdapterStats stats() const { return engine->Stats().adapters; }
  void BeginReading() {
    while (engine->Step()) {
    }
  }
  // A request answers as with this adapter.
  void ExpectAnswer(AdapterGeneration adapter) {
    const RequestId id = *Submit({1, 2, 3}, adapter, 8);
    Drain();
    EXPECT_EQ(outcomes[id].tokens, ExpectedTokens(adapter, {1, 2, 3}, 8));
  }
};

TEST(HostCopies, RegisteredAdaptersAreReadInTheirOrderAsFarAsThereIsRoom) {
  for (const HostCopies which : {HostCopies::kLoaded, HostCopies::kRegistered, HostCopies::kAlways}) {
    SCOPED_TRACE(static_cast<int>(which));
    const bool reads = which != HostCopies::kLoaded;
    HostWorld w(which);
    const AdapterGeneration a = w.Load("a", 6);
    for (const auto& [name, pages] : {std::pair("b", 6), {"too large beside them", 12}, {"d", 6}}) w.Load(name, pages);
    w.Drain();
    EXPECT_EQ(w.stats().host_resident, reads ? 3 : 0);
    EXPECT_EQ(w.stats().disk_loads, reads ? 3 : 0);
    EXPECT_EQ(w.stats().device_loads, 0);
    w.ExpectAnswer(a);
    EXPECT_EQ(w.stats().asked_in_host, reads ? 1 : 0);
    EXPECT_EQ(w.stats().disk_loads, reads ? 3 : 1);
    EXPECT_EQ(w.stats().device_loads, 1);
    for (const char* name : {"b", "d"}) EXPECT_TRUE(w.registry.Remove(name).ok());
    w.Drain();  // now the large one has room
    EXPECT_EQ(w.stats().host_resident, reads ? 2 : 1);
    EXPECT_EQ(w.stats().disk_loads, reads ? 4 : 1);
  }
}

TEST(HostCopies, WithAlwaysNoLoadAndNoHistoryTakesTheirRoom) {
  for (const HostCopies which : {HostCopies::kRegistered, HostCopies::kAlways}) {
    SCOPED_TRACE(static_cast<int>(which));
    HostWorld w(which, /*host_pages=*/12);
    for (const char* name : {"a", "b"}) w.Load(name, 6);
    w.Drain();
    const AdapterGeneration x = w.Load("x", 6);
    w.Drain();
    EXPECT_EQ(w.stats().host_resident, 2);
    w.ExpectAnswer(x);  // its load bypasses the tier, or takes the place of a copy
    EXPECT_EQ(w.stats().host_evictions, which == HostCopies::kAlways ? 0 : 1);

    HostWorld full(which, /*host_pages=*/8, /*device_pages=*/16);
    for (TokenId first = 1; first <= 8; ++first) {
      static_cast<void>(*full.Submit(std::vector<TokenId>(20, first), kBaseModel, 12));
      full.Drain();
    }
    EXPECT_EQ(full.host->Stats().used(PageCategory::kKv), 8);
    full.Load("a", 6);
    full.Drain();
    EXPECT_EQ(full.stats().host_resident, which == HostCopies::kAlways ? 1 : 0);
  }
}

TEST(HostCopies, ARequestThatComesDuringTheReadGoesOnFromThere) {
  HostWorld w(HostCopies::kRegistered);
  const AdapterGeneration a = w.Load("a", 6), b = w.Load("b", 6);
  w.BeginReading();
  w.ExpectAnswer(a);
  w.ExpectAnswer(b);
  EXPECT_EQ(w.stats().disk_loads, 2);
  EXPECT_EQ(w.stats().device_loads, 2);
}

TEST(HostCopies, AReadThatFailsHarmsWhoWaitsForItAlone) {
  HostWorld w(HostCopies::kAlways);
  int failures = 2;
  w.transfer.set_fault(
      [&](const TransferJob&) { return failures-- > 0 ? std::optional<Error>(IoError("injected")) : std::nullopt; });
  const AdapterGeneration a = w.Load("a", 6);
  w.Drain();
  EXPECT_EQ(w.stats().load_failures, 1);
  EXPECT_EQ(w.stats().host_resident, 0);
  const AdapterGeneration b = w.Load("b", 6);
  w.BeginReading();
  const RequestId waits = *w.Submit({1}, b, 4);
  w.Drain();
  EXPECT_EQ(w.outcomes[waits].error, "injected");
  EXPECT_EQ(w.stats().host_resident, 0);
  w.ExpectAnswer(a);
  w.ExpectAnswer(b);
  EXPECT_EQ(w.stats().host_resident, 2);
}

TEST(HostCopies, WhatLosesItsNameLeavesAndTheNewContentIsRead) {
  HostWorld w(HostCopies::kAlways, /*host_pages=*/8);
  w.Load("a", 6);
  w.BeginReading();
  const AdapterGeneration next = w.Replace("a", 6);  // there is no room for both
  w.Drain();
  EXPECT_EQ(w.stats().host_resident, 1);
  w.ExpectAnswer(next);
  EXPECT_EQ(w.stats().disk_loads, 2);
  EXPECT_TRUE(w.registry.Remove("a").ok());
  w.Load("b", 6);
  w.BeginReading();
  EXPECT_TRUE(w.registry.Remove("b").ok());
  w.Drain();
  EXPECT_EQ(w.host->Stats().used(PageCategory::kAdapter), 0);
  EXPECT_EQ(w.device->Stats().used(PageCategory::kAdapter), 0);
  EXPECT_EQ(w.registry.held_generations(), 0u);
  EXPECT_EQ(w.stats().known, 0);
}

// ---- Everything at random ----

struct Asked {
  std::vector<TokenId> prompt;
  AdapterGeneration adapter;
  std::int32_t max_tokens;
};

struct FuzzTotals {
  std::int64_t reloads = 0, unloads = 0, served_after_retirement = 0, failures = 0, dropped = 0, pins = 0,
               refused_pins = 0;
  std::int64_t history_swapped_in = 0, adapters_swapped_in = 0;  // ahead of demand
  std::int64_t early = 0, cancelled_loads = 0;
};

void FuzzOnce(std::uint64_t seed, FuzzTotals& totals) {
  Prng prng(seed);
  SystemSpec scheduler;
  scheduler.max_running = 1 + static_cast<std::int64_t>(prng.NextBelow(12));
  scheduler.max_batch_tokens = 8 + static_cast<std::int64_t>(prng.NextBelow(40));
  scheduler.lookahead = 1 + static_cast<std::int64_t>(prng.NextBelow(20));
  scheduler.cold_start_policy = seed % 2 == 0 ? ColdStartPolicy::kWait : ColdStartPolicy::kAuto;
  scheduler.reads_host_tier = seed % 4 < 3;
  scheduler.disk_by_layer = seed % 3 == 0;
  scheduler.host_copies = static_cast<HostCopies>(seed % 5 % 3);
  const auto regime = static_cast<std::size_t>(prng.NextBelow(CacheRegimes().size()));
  // a page per millisecond: layer by layer
  World w(scheduler, CacheRegimes()[regime].name, seed % 2 == 0 ? 10e9 : 64 / 1e-3);
  const bool faults = prng.NextBelow(3) == 0;
  Prng fault_prng(seed + 1);
  if (faults) {
    const auto sometimes = [&](const TransferJob&) {
      return fault_prng.NextBelow(5) == 0 ? std::optional<Error>(IoError("injected")) : std::nullopt;
    };
    w.transfer.set_fault(sometimes);
  }
  std::map<std::string, AdapterGeneration> named;  // the expected content of the registry
  std::map<RequestId, Asked> asked;
  std::set<RequestId> cancelled;
  std::vector<std::shared_ptr<Pinned>> pins;
  const auto pages = [&] { return 1 + static_cast<std::int64_t>(prng.NextBelow(12)); };
  // Sometimes the weights of another name.
  const auto digest = [&] { return prng.NextBelow(2) == 0 ? "" : "content " + std::to_string(prng.NextBelow(4)); };
  for (int step = 0; step < 150; ++step) {
    const std::string name(1, static_cast<char>('a' + prng.NextBelow(6)));
    switch (prng.NextBelow(9)) {
      case 0:
        if (!named.contains(name)) named[name] = w.Load(name, pages(), digest());
        break;
      case 1:
        if (named.contains(name)) ++totals.reloads;
        named[name] = w.Replace(name, pages(), digest());
        break;
      case 2:
        EXPECT_EQ(w.registry.Remove(name).ok(), named.contains(name));
        totals.unloads += static_cast<std::int64_t>(named.erase(name));
        break;
      case 3:
        if (named.contains(name)) pins.push_back(Pin(w, name, prng.NextBelow(3) > 0));
        break;
      case 4:
        if (!asked.empty()) {
          auto victim = asked.begin();
          std::advance(victim, static_cast<std::ptrdiff_t>(prng.NextBelow(asked.size())));
          cancelled.insert(victim->first);
          w.engine->Cancel(victim->first);
        }
        break;
      default: {
        Asked ask;
        ask.prompt.resize(1 + prng.NextBelow(20));
        for (TokenId& id : ask.prompt) id = static_cast<TokenId>(prng.NextBelow(kTestVocab));
        ask.max_tokens = 1 + static_cast<std::int32_t>(prng.NextBelow(20));
        const bool base = prng.NextBelow(5) == 0;
        const auto version = w.registry.Resolve(base ? "base" : name);
        ASSERT_EQ(version.ok(), base || named.contains(name));
        if (!version.ok()) break;
        ask.adapter = *version == nullptr ? kBaseModel : (*version)->generation;
        ASSERT_TRUE(*version == nullptr || ask.adapter == named.at(name));
        if (*version != nullptr && prng.NextBelow(8) == 0) {  // the name is removed between resolution and submission
          ASSERT_TRUE(w.registry.Remove(name).ok());
          named.erase(name);
          while (w.engine->Step()) {
          }
        }
        const auto id = w.Submit(ask.prompt, ask.adapter, ask.max_tokens);
        if (id.ok()) asked.emplace(*id, std::move(ask));  // otherwise a pin has taken the memory
      }
    }
    for (std::uint64_t n = prng.NextBelow(4); n > 0; --n) w.Advance();
    if (prng.NextBelow(8) == 0) w.clock.AdvanceTo(w.clock.Now() + 100 * kNsPerMs);
    if (step % 10 == 0) w.engine->CheckIntegrity();
  }
  w.Drain();
  for (const auto& [id, ask] : asked) {
    const World::Outcome& outcome = w.outcomes[id];
    if (outcome.finish == FinishReason::kCancelled) {
      EXPECT_TRUE(cancelled.contains(id));
    } else if (outcome.finish == FinishReason::kError) {
      EXPECT_TRUE(faults);
      ++totals.failures;
    } else {
      ASSERT_EQ(outcome.tokens, ExpectedTokens(ask.adapter, ask.prompt, ask.max_tokens)) << "request " << id;
      totals.served_after_retirement += w.registry.IsRetired(ask.adapter);
    }
  }
  for (const auto& pin : pins) {
    EXPECT_TRUE(pin->done);
    ++(pin->status.ok() ? totals.pins : totals.refused_pins);
  }
  EXPECT_EQ(w.registry.held_generations(), named.size());
  for (const auto& [name, generation] : named) EXPECT_TRUE(w.registry.Remove(name).ok());
  w.Drain();
  w.ExpectNothingKept();
  EXPECT_EQ(w.engine->Stats().adapters.known, 0);
  totals.history_swapped_in += w.engine->Stats().swaps.history_in;
  totals.adapters_swapped_in += w.engine->Stats().swaps.adapters_in;
  totals.dropped += w.engine->Stats().adapters.dropped;
  totals.early += w.engine->Stats().early_admissions;
  totals.cancelled_loads += w.engine->Stats().adapters.cancelled_loads;
}

TEST(AdapterLifecycle, FuzzEveryRequestRunsWithTheGenerationItResolved) {
  FuzzTotals totals;
  for (std::uint64_t seed = 1; seed <= 400 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    FuzzOnce(seed, totals);
  }
  EXPECT_GT(totals.reloads, 1000);
  EXPECT_GT(totals.unloads, 1000);
  EXPECT_GT(totals.served_after_retirement, 1000);
  EXPECT_GT(totals.failures, 100);
  EXPECT_GT(totals.dropped, 1000);
  EXPECT_GT(totals.pins, 500);
  EXPECT_GT(totals.refused_pins, 50);
  EXPECT_GT(totals.history_swapped_in, 30);
  EXPECT_GT(totals.adapters_swapped_in, 100);
  EXPECT_GT(totals.early, 200);
  EXPECT_GT(totals.cancelled_loads, 20);
}

}  // namespace
}  // namespace loramux::adapter_lifecycle_test
