// The engine on a virtual clock: random loads, checked against invariants that hold for any order of events. The real
// executor is tested in tests/.
#include <array>

#include "engine/engine_world_for_test.h"

namespace loramux::engine_test {
namespace {

using World = AdapterWorld;

struct Asked {
  std::vector<TokenId> prompt;
  std::uint32_t adapter;
  std::int32_t max_tokens;
  std::int32_t prompt_logprobs;
  std::optional<Pooling> pooling = std::nullopt;
  bool cancelled = false, aborted = false;
  bool acts = true;  // false: it lacks the adapter's invocation tokens
  bool keeps_version = false;
  bool may_fail = false;                       // a new version may have no place for it
  std::vector<AdapterGeneration> generations;  // on which it began, and to which it was to move
  std::vector<std::size_t> begins;             // by generation: the first token that it must compute, at the latest
};

// What is loaded at random, by number.
struct Loaded {
  std::string name;
  std::int64_t pages = 0;
  std::vector<TokenId> invocation;
  AdapterGeneration generation;
};

// Loads a version anew, and notes what that does to the requests on the one before, of each of which a step in flight
// may give so many tokens.
void ReloadOne(AdapterWorld& w, Prng& prng, Loaded& loaded, std::map<RequestId, Asked>& asked, std::size_t in_flight) {
  const AdapterGeneration old = loaded.generation;
  const bool aborts = prng.NextBelow(6) == 0, differs = prng.NextBelow(20) == 0;
  if (prng.NextBelow(4) == 0)
    loaded.pages = 1 + static_cast<std::int64_t>(prng.NextBelow(prng.NextBelow(4) == 0 ? 24 : 8));
  if (differs) loaded.invocation = loaded.invocation.empty() ? std::vector<TokenId>{7} : std::vector<TokenId>{};
  auto version = AdapterWorld::Make(loaded.name, loaded.pages, "content " + std::to_string(prng.NextBelow(30)));
  version->file.config.invocation_tokens = loaded.invocation;
  loaded.generation = w.Reload(std::move(version), aborts);
  for (auto& [id, ask] : asked) {
    if (ask.keeps_version || !ask.acts || ask.generations.back() != old) continue;
    ask.aborted |= aborts;
    ask.may_fail = true;
    if (aborts || differs) continue;
    ask.generations.push_back(loaded.generation);
    ask.begins.push_back(w.outcomes[id].tokens.size() + in_flight);
  }
}

// Each token comes of the version that the request is on, and the versions in their order.
void CheckGenerations(const Asked& ask, const AdapterWorld::Outcome& outcome) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < outcome.adapters.size(); ++i) {
    while (at < ask.generations.size() && ask.generations[at] != outcome.adapters[i]) ++at;
    ASSERT_LT(at, ask.generations.size()) << "token " << i << " is of another version";
    if (at + 1 < ask.generations.size()) ASSERT_LT(i, ask.begins[at]) << "token " << i << " is of an old version";
  }
  EXPECT_NE(std::ranges::find(ask.generations, outcome.last), ask.generations.end());
}

// The embedding of a prompt, as the modelled executor would compute it in one piece.
std::vector<float> ExpectedEmbedding(std::optional<Pooling> pooling, std::span<const TokenId> prompt) {
  if (!pooling) return {};
  const std::span<const TokenId> pooled = *pooling == Pooling::kLast ? prompt.last(1) : prompt;
  double sum = 0;
  for (const TokenId token : pooled) sum += ModeledExecutor::HiddenOf(token)[0];
  return {static_cast<float>(sum / static_cast<double>(pooled.size())), 1};  // each position was counted once
}

// Each prompt token but the first, with its own alternatives, whatever was cached, preempted or failed.
void CheckScores(const Asked& ask, std::span<const ScoredToken> scores) {
  ASSERT_EQ(scores.size(), ask.prompt_logprobs < 0 ? 0 : ask.prompt.size() - 1);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const ScoredToken expected = ModeledExecutor::ScoreOf({ask.prompt[i + 1], ask.prompt_logprobs});
    ASSERT_EQ(scores[i].id, expected.id) << i;
    ASSERT_EQ(scores[i].logprob, expected.logprob);
    ASSERT_EQ(scores[i].top_logprobs.size(), expected.top_logprobs.size());
  }
}

// Makes the prompt go on from the beginning of an earlier one, with the same adapter.
void GoOn(Prng& prng, const std::map<RequestId, Asked>& asked, Asked& ask) {
  auto earlier = asked.begin();
  std::advance(earlier, static_cast<std::ptrdiff_t>(prng.NextBelow(asked.size())));
  ask.adapter = earlier->second.adapter;
  const std::vector<TokenId>& prompt = earlier->second.prompt;
  const std::size_t taken = prng.NextBelow(2) == 0 ? prompt.size() : prng.NextBelow(prompt.size() + 1);
  ask.prompt.insert(ask.prompt.begin(), prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(taken));
  ask.prompt.resize(std::min<std::size_t>(ask.prompt.size(), 40));
}

struct Fuzzed {
  std::uint64_t digest = 0;  // digest of all events
  CacheRegime regime;
  EngineStats stats;
  std::int64_t cancelled = 0, aborted = 0;
  std::int64_t moved = 0, failed = 0;  // requests with tokens of several versions; that a new one had no place for
  std::int64_t embeddings = 0;
  std::int64_t dropped_pages = 0;  // what DropHistory dropped
  std::int64_t invoked = 0;        // requests that the base model begins and an activated adapter ends
  std::int64_t discarded = 0;      // chunks with a failed arrival of adapter or history
  std::int64_t invalid_pages = 0;  // the most at one time
};

// Checks the regime's promises.
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

// Bytes per second: most links are so slow that a page takes up to 4 ms and steps start while layers arrive; some are
// fast.
double HostLink(std::uint64_t seed) {
  const double kPageTimes[] = {0.2e-3, 1e-3, 4e-3};
  return seed % 4 == 0 ? 10e9 : 64 / kPageTimes[seed % 4 - 1];
}

// Random requests, adapters larger than memory, cancellations and broken disks.
// `holds`: requests are held and aborted too. `reloads`: adapters are loaded anew, and their requests move or end.
// `state_pages`: of each sequence, with snapshots. `drafts`: requests speculate.
Fuzzed FuzzOnce(std::uint64_t seed, bool holds = false, bool reloads = false, std::int64_t state_pages = 0,
                bool drafts = false) {
  Fuzzed fuzzed;
  Prng prng(seed);
  std::vector<std::int64_t> adapter_pages;
  for (int i = 0; i < 12; ++i) adapter_pages.push_back(1 + static_cast<std::int64_t>(prng.NextBelow(8)));
  SystemSpec scheduler;
  scheduler.max_running = 1 + static_cast<std::int64_t>(prng.NextBelow(16));
  scheduler.max_batch_tokens = 8 + static_cast<std::int64_t>(prng.NextBelow(40));
  scheduler.prefill_chunk = 1 + static_cast<std::int64_t>(prng.NextBelow(30));
  scheduler.lookahead = 1 + static_cast<std::int64_t>(prng.NextBelow(20));
  scheduler.max_distinct_adapters = static_cast<std::int64_t>(prng.NextBelow(4));
  scheduler.fairness.policy = prng.NextBelow(4) == 0 ? FairnessPolicy::kNone : FairnessPolicy::kVtc;
  scheduler.fairness.weights = {{"1", 4}, {"adapter-2", 0.5}};
  scheduler.fairness.max_wait = static_cast<TimeNs>(prng.NextBelow(3)) * 200 * kNsPerMs;
  scheduler.discard_share = prng.NextBelow(3) == 0 ? 0 : 0.25;
  scheduler.load_on_arrival = seed / 4 % 2 == 0;
  Prng cold_prng(seed + 3);
  scheduler.cold_start_policy =
      std::array{ColdStartPolicy::kWait, ColdStartPolicy::kAssist, ColdStartPolicy::kAuto}[cold_prng.NextBelow(3)];
  scheduler.reads_host_tier = cold_prng.NextBelow(2) == 0;
  scheduler.disk_by_layer = cold_prng.NextBelow(2) == 0;
  scheduler.state_pages = state_pages;
  if (state_pages > 0) scheduler.max_running = 1 + scheduler.max_running / 3;  // memory for snapshots is left
  scheduler.state_snapshot_tokens = std::array{4, 7, 16, 40}[seed % 4];
  if (drafts) scheduler.speculation.method = Speculation::kNgram;
  GuessingObserver guesses;
  const std::uint64_t named_tenants = prng.NextBelow(5);  // 0: one tenant per adapter
  const std::span<const CacheRegime> regimes = CacheRegimes();
  fuzzed.regime = regimes[static_cast<std::size_t>(prng.NextBelow(regimes.size()))];
  World w(24 + 16 * state_pages + static_cast<std::int64_t>(prng.NextBelow(20)),
          4 + static_cast<std::int64_t>(prng.NextBelow(50)), scheduler, adapter_pages,
          /*prefix_cache=*/prng.NextBelow(4) != 0, std::string(fuzzed.regime.name), HostLink(seed),
          drafts ? &guesses : nullptr);
  const std::int64_t share =
      AdapterPartPages({.adapter_share = fuzzed.regime.adapter_share}, w.device->capacity_pages(), 1);
  const bool faults = prng.NextBelow(2) == 0;
  Prng fault_prng(seed + 1), score_prng(seed + 2), hold_prng(seed + 5), reload_prng(seed + 6), state_prng(seed + 7);
  if (faults) {
    const auto sometimes = [&](const TransferJob&) {
      return fault_prng.NextBelow(4) == 0 ? std::optional<Error>(IoError("injected")) : std::nullopt;
    };
    w.transfer.set_fault(sometimes);
  }
  // Activated ones, which act from the last 7, from the last two of them, or from the last 1.
  Prng activated_prng(seed + 4);
  const bool activated = activated_prng.NextBelow(2) == 0;
  for (const std::vector<TokenId>& invocation : {std::vector<TokenId>{7}, {7, 7}, {1}}) {
    if (!activated) break;
    adapter_pages.push_back(1 + static_cast<std::int64_t>(activated_prng.NextBelow(8)));
    w.LoadActivated("activated-" + std::to_string(adapter_pages.size()), adapter_pages.back(), invocation);
  }
  std::vector<Loaded> loaded(1);  // the first stands for the base model
  for (const auto& version : w.registry.List()) {
    loaded.push_back(
        {version->name, version->layout.pages, version->file.config.invocation_tokens, version->generation});
  }
  std::ranges::sort(loaded, {}, &Loaded::generation);
  std::map<RequestId, Asked> asked;
  int to_submit = 80;
  while (to_submit > 0 || !w.engine->Idle()) {
    for (std::uint64_t burst = prng.NextBelow(6); burst > 0 && to_submit > 0; --burst, --to_submit) {
      Asked ask;
      ask.prompt.resize(1 + prng.NextBelow(40));
      const std::uint64_t kinds = prng.NextBelow(2) == 0 ? 3 : kTestVocab;  // many prompts begin alike
      for (TokenId& id : ask.prompt) id = static_cast<TokenId>(prng.NextBelow(5) == 0 ? prng.NextBelow(kinds) : 7);
      ask.adapter = static_cast<std::uint32_t>(prng.NextBelow(13));
      if (activated && activated_prng.NextBelow(3) == 0)
        ask.adapter = 13 + static_cast<std::uint32_t>(activated_prng.NextBelow(3));
      if (state_pages > 0 && !asked.empty() && state_prng.NextBelow(3) > 0) GoOn(state_prng, asked, ask);
      const Loaded& adapter = loaded[ask.adapter];
      const auto base_tokens = w.BaseTokens(ask.prompt, adapter.generation);
      fuzzed.invoked += base_tokens.value_or(0) > 0;
      ask.acts = base_tokens.has_value();
      ask.max_tokens = 1 + static_cast<std::int32_t>(prng.NextBelow(24));
      ask.prompt_logprobs = score_prng.NextBelow(4) == 0 ? static_cast<std::int32_t>(score_prng.NextBelow(3)) : -1;
      if (ask.prompt_logprobs >= 0 && score_prng.NextBelow(2) == 0) ask.max_tokens = 0;
      if (ask.prompt_logprobs < 0 && score_prng.NextBelow(12) == 0) {
        ask.pooling = score_prng.NextBelow(2) == 0 ? Pooling::kLast : Pooling::kMean;
        ask.max_tokens = 0;
      }
      w.prompt_logprobs = ask.prompt_logprobs;
      w.pooling = ask.pooling;
      const std::string tenant = named_tenants == 0 ? "" : std::to_string(prng.NextBelow(named_tenants));
      ask.keeps_version = w.keeps_version = reloads && reload_prng.NextBelow(8) == 0;
      ask.generations = {ask.acts ? adapter.generation : kBaseModel};
      const auto id = w.Submit(ask.prompt, adapter.generation.value, ask.max_tokens, tenant);
      const bool fits = share == 0 || ask.adapter == 0 || adapter.pages <= share;
      if (!reloads) EXPECT_EQ(id.ok(), fits) << (id.ok() ? "" : id.error().message);
      if (id.ok()) asked.emplace(*id, std::move(ask));
    }
    if (!asked.empty() && prng.NextBelow(10) == 0) {
      auto victim = asked.begin();
      std::advance(victim, static_cast<std::ptrdiff_t>(prng.NextBelow(asked.size())));
      victim->second.cancelled = true;
      w.engine->Cancel(victim->first);
    }
    if (holds && hold_prng.NextBelow(8) == 0) w.engine->SetHold(static_cast<Hold>(hold_prng.NextBelow(3)));
    if (holds && hold_prng.NextBelow(60) == 0) {
      w.engine->AbortAll();
      for (auto& [id, ask] : asked) ask.aborted = true;
    }
    if (holds && hold_prng.NextBelow(16) == 0) {
      w.engine->DropHistory([&](const Result<std::int64_t>& pages) {
        EXPECT_TRUE(pages.ok());
        EXPECT_EQ(w.tree.tiers().IdleLeaves().size(), 0u);
        fuzzed.dropped_pages += pages.ok() ? *pages : 0;
      });
    }
    for (int again = 0; reloads && again < 3 && reload_prng.NextBelow(3) == 0; ++again) {
      const std::size_t in_flight = 1 + (drafts ? GuessingObserver::kMost : 0);
      ReloadOne(w, reload_prng, loaded[1 + reload_prng.NextBelow(loaded.size() - 1)], asked, in_flight);
    }
    if (!w.Advance() && to_submit == 0) break;
    if (prng.NextBelow(16) == 0) w.engine->CheckIntegrity();
    if (prng.NextBelow(8) == 0) CheckRegime(fuzzed.regime, w, fuzzed);
  }
  w.engine->SetHold(Hold::kNone);
  w.Drain();
  CheckRegime(fuzzed.regime, w, fuzzed);
  if (!fuzzed.regime.keep_idle_adapters) EXPECT_EQ(w.engine->Stats().adapters.device_resident, 0);
  std::uint64_t digest = 0;
  for (const auto& [id, ask] : asked) {
    const World::Outcome& outcome = w.outcomes[id];
    EXPECT_EQ(outcome.ends, 1);
    const std::vector<TokenId> expected = ExpectedTokens(outcome, ask.prompt, ask.max_tokens);
    CheckGenerations(ask, outcome);
    fuzzed.moved += !outcome.adapters.empty() && outcome.adapters.front() != outcome.last;
    if (outcome.finish == FinishReason::kCancelled) {
      EXPECT_TRUE(ask.cancelled);
      ++fuzzed.cancelled;
    } else if (outcome.finish == FinishReason::kAborted) {
      EXPECT_TRUE(ask.aborted);
      EXPECT_LE(outcome.tokens.size(), expected.size());
      EXPECT_TRUE(std::ranges::equal(outcome.tokens,
                                     std::span(expected).first(std::min(outcome.tokens.size(), expected.size()))));
      ++fuzzed.aborted;
    } else if (outcome.finish == FinishReason::kError) {
      const bool failed = ask.may_fail && outcome.error != "injected";
      EXPECT_TRUE(faults || failed);
      if (failed) EXPECT_NE(outcome.error.find("was loaded anew"), std::string::npos) << outcome.error;
      if (!failed) EXPECT_EQ(outcome.error, "injected");
      fuzzed.failed += failed;
    } else {
      EXPECT_EQ(outcome.tokens, expected);
      CheckScores(ask, outcome.prompt_scores);
      EXPECT_EQ(outcome.embedding, ExpectedEmbedding(ask.pooling, ask.prompt));
      fuzzed.embeddings += ask.pooling.has_value();
      EXPECT_EQ(outcome.finish == FinishReason::kLength, static_cast<std::int32_t>(expected.size()) == ask.max_tokens);
    }
    digest =
        SplitMix64(digest ^ id.value ^ static_cast<std::uint64_t>(outcome.finish) << 40 ^ outcome.tokens.size() << 20);
  }
  fuzzed.stats = w.engine->Stats();
  fuzzed.discarded = w.executor->discarded();
  fuzzed.digest = SplitMix64(digest ^ static_cast<std::uint64_t>(w.clock.Now()));
  return fuzzed;
}

void ExpectMovesBetweenTiers(const KvTierStats& tiers) {
  EXPECT_GT(tiers.pages_backed_up, 5000);
  EXPECT_GT(tiers.pages_fetched, 200);
  EXPECT_GT(tiers.fetches_ahead, 10);
  EXPECT_GT(tiers.failed_jobs, 100);
}

TEST(Engine, FuzzEveryRequestEndsOnceWithItsOwnTokens) {
  std::int64_t preemptions = 0, evictions = 0, failures = 0, cancelled = 0, found = 0, history_evictions = 0,
               copied_pages = 0, early = 0, discarded = 0, embeddings = 0, invoked = 0;
  KvTierStats tiers;
  std::map<std::string_view, std::int64_t> runs, invalid, evicted;  // by regime
  std::map<bool, SwapStats> swaps;                                  // by whether the regime swaps proactively
  for (std::uint64_t seed = 1; seed <= 440 && !testing::Test::HasFailure(); ++seed) {
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
    embeddings += fuzzed.embeddings;
    invoked += fuzzed.invoked;
    history_evictions += stats.history_evictions;
    tiers.pages_backed_up += stats.kv_tiers.pages_backed_up;
    tiers.pages_fetched += stats.kv_tiers.pages_fetched;
    tiers.fetches_ahead += stats.kv_tiers.fetches_ahead;
    tiers.failed_jobs += stats.kv_tiers.failed_jobs;
    if (seed <= 20) ASSERT_EQ(fuzzed.digest, FuzzOnce(seed).digest) << "not deterministic";
  }
  // The test is meaningful only if the difficult paths were taken.
  EXPECT_GT(preemptions, 100);
  EXPECT_GT(evictions, 1000);
  EXPECT_GT(failures, 100);
  EXPECT_GT(cancelled, 100);
  EXPECT_GT(found, 1000);
  EXPECT_GT(copied_pages, 1000);
  EXPECT_GT(history_evictions, 5000);
  ExpectMovesBetweenTiers(tiers);
  EXPECT_GT(swaps[true].history_out, 500);
  EXPECT_GT(swaps[true].adapters_out, 50);
  EXPECT_GT(swaps[true].adapters_in, 50);
  EXPECT_EQ(swaps[false].history_out + swaps[false].history_in + swaps[false].adapters_out + swaps[false].adapters_in,
            0);
  EXPECT_GT(early, 500);
  EXPECT_GT(discarded, 20);
  EXPECT_GT(embeddings, 1000);
  EXPECT_GT(invoked, 2000);
  for (const CacheRegime& regime : CacheRegimes()) {
    EXPECT_GT(runs[regime.name], 15) << regime.name;
    EXPECT_GT(evicted[regime.name], 100) << regime.name;
    EXPECT_EQ(invalid[regime.name] > 0, !regime.maintain_dependency) << regime.name;
  }
}

// Requests begin after snapshots of states, in either tier, and take them, whatever else happens. KvCheckingExecutor
// checks the state that each chunk goes on from.
TEST(Engine, FuzzStatesAreThoseOfTheirTokens) {
  EngineStats sum;
  std::int64_t aborted = 0, moved = 0, discarded = 0, dropped = 0, invoked = 0;
  for (std::uint64_t seed = 1; seed <= 240 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const bool holds = seed % 3 == 1, reloads = seed % 3 == 2;
    const auto state_pages = 1 + static_cast<std::int64_t>(seed % 5 % 3);
    const Fuzzed fuzzed = FuzzOnce(seed, holds, reloads, state_pages);
    sum.prefix.snapshots += fuzzed.stats.prefix.snapshots;
    sum.prefix.found_tokens += fuzzed.stats.prefix.found_tokens;
    sum.prefix.from_host_tokens += fuzzed.stats.prefix.from_host_tokens;
    sum.resumed.found += fuzzed.stats.resumed.found;
    sum.preemptions += fuzzed.stats.preemptions;
    sum.history_evictions += fuzzed.stats.history_evictions;
    sum.kv_tiers.pages_fetched += fuzzed.stats.kv_tiers.pages_fetched;
    EXPECT_EQ(fuzzed.stats.prefix.copied_pages, 0);
    aborted += fuzzed.aborted, moved += fuzzed.moved, discarded += fuzzed.discarded;
    dropped += fuzzed.dropped_pages, invoked += fuzzed.invoked;
    if (seed <= 12) ASSERT_EQ(fuzzed.digest, FuzzOnce(seed, holds, reloads, state_pages).digest) << "not deterministic";
  }
  EXPECT_GT(sum.prefix.snapshots, 10000);
  EXPECT_GT(sum.prefix.found_tokens, 5000);
  EXPECT_GT(sum.prefix.from_host_tokens, 50);
  EXPECT_GT(sum.resumed.found, 1000);
  EXPECT_GT(sum.preemptions, 500);
  EXPECT_GT(sum.history_evictions, 5000);
  EXPECT_GT(sum.kv_tiers.pages_fetched, 100);
  EXPECT_GT(aborted, 100);
  EXPECT_GT(moved, 10);
  EXPECT_GT(discarded, 5);
  EXPECT_GT(dropped, 100);
  EXPECT_GT(invoked, 500);
}

// If adapters have a share, neither side takes from the other.
TEST(Engine, AFixedShareIsFixed) {
  World w(40, 60, {}, {6, 6, 9}, /*prefix_cache=*/true, "vllm");
  EXPECT_EQ(w.Submit({1}, 3, 4).error().code, ErrorCode::kResourceExhausted);  // 9 pages of 8
  EXPECT_EQ(w.engine->MaxSequenceTokens(AdapterGeneration{1}), 32 * kTestPageTokens);
  EXPECT_EQ(w.engine->MaxSequenceTokens(kBaseModel), 32 * kTestPageTokens);
  for (TokenId i = 1; i <= 12; ++i) {  // 3 pages each
    ASSERT_TRUE(w.Submit(std::vector<TokenId>(12, i), 1, 2).ok());
    w.Drain();
  }
  const EngineStats full = w.engine->Stats();
  EXPECT_GE(full.history_pages, 30);  // all of their side, and nothing of the adapters'
  EXPECT_LE(full.history_pages, 32);
  EXPECT_GT(full.history_evictions, 0);
  EXPECT_EQ(full.adapters.device_evictions, 0);
  ASSERT_TRUE(w.Submit({1, 2}, 2, 2).ok());
  w.Drain();
  EXPECT_EQ(w.engine->Stats().adapters.device_evictions, 1);  // one adapter for another
  EXPECT_EQ(w.engine->Stats().adapters.device_resident, 1);
  EXPECT_GE(w.engine->Stats().history_pages, 30);
}

// S-LoRA: the adapter is evicted with its last request, and nothing of the prompt stays.
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

TEST(Engine, FuzzHoldsAndAborts) {
  std::int64_t aborted = 0, cancelled = 0;
  for (std::uint64_t seed = 1; seed <= 120 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Fuzzed fuzzed = FuzzOnce(seed, /*holds=*/true);
    aborted += fuzzed.aborted;
    cancelled += fuzzed.cancelled;
  }
  EXPECT_GT(aborted, 200);
  EXPECT_GT(cancelled, 100);
}

TEST(Engine, FuzzReloadsMoveAndAbort) {
  std::int64_t moved = 0, failed = 0, aborted = 0;
  RetargetedRequests counts;
  for (std::uint64_t seed = 1; seed <= 200 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Fuzzed fuzzed = FuzzOnce(seed, /*holds=*/seed % 2 == 0, /*reloads=*/true);
    moved += fuzzed.moved;
    failed += fuzzed.failed;
    aborted += fuzzed.aborted;
    counts.moved += fuzzed.stats.retargeted.moved;
    counts.failed += fuzzed.stats.retargeted.failed;
    counts.aborted += fuzzed.stats.retargeted.aborted;
    if (seed <= 20) ASSERT_EQ(fuzzed.digest, FuzzOnce(seed, seed % 2 == 0, true).digest) << "not deterministic";
  }
  EXPECT_GT(moved, 300);
  EXPECT_GT(failed, 100);
  EXPECT_GT(aborted, 500);
  EXPECT_EQ(counts.failed, failed);
  EXPECT_GT(counts.moved, 2 * moved);  // those that wait, and that move again
  EXPECT_GT(counts.aborted, 200);
}

// Steps that verify drafts give the same tokens, whatever is preempted, fetched, reloaded or cancelled; wrong drafts
// leave nothing in the cache, which the executor would find.
TEST(Engine, FuzzSpeculation) {
  std::int64_t preemptions = 0, found = 0, drafted = 0, accepted = 0, moved = 0;
  for (std::uint64_t seed = 1; seed <= 240 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Fuzzed fuzzed =
        FuzzOnce(seed, /*holds=*/seed % 4 == 0, /*reloads=*/seed % 4 == 1, /*state_pages=*/0, /*drafts=*/true);
    preemptions += fuzzed.stats.preemptions;
    found += fuzzed.stats.prefix.found_tokens;
    drafted += fuzzed.stats.drafted_tokens;
    accepted += fuzzed.stats.accepted_tokens;
    moved += fuzzed.moved;
    if (seed <= 20) {
      ASSERT_EQ(fuzzed.digest, FuzzOnce(seed, seed % 4 == 0, seed % 4 == 1, 0, true).digest) << "not deterministic";
    }
  }
  EXPECT_GT(preemptions, 100);
  EXPECT_GT(found, 1000);
  EXPECT_GT(moved, 50);
  EXPECT_GT(accepted, 5000);
  EXPECT_GT(drafted - accepted, 5000);
}

TEST(Engine, WhatIsHeldKeepsItsPlaceAndItsTokens) {
  World w(64, 8, {}, {});
  const RequestId running = *w.Submit({1, 2, 3}, 0, 20);
  const auto tokens = [&](RequestId id) { return w.outcomes[id].tokens.size(); };
  while (tokens(running) < 4) ASSERT_TRUE(w.Advance());

  w.engine->SetHold(Hold::kNew);
  const RequestId held = *w.Submit({4, 5}, 0, 4), given_up = *w.Submit({6}, 0, 4);
  while (tokens(running) < 8) ASSERT_TRUE(w.Advance());
  EXPECT_EQ(w.engine->Stats().waiting + w.engine->Stats().running, 1);
  w.engine->Cancel(given_up);
  ASSERT_TRUE(w.Advance());
  ASSERT_TRUE(w.Advance());
  EXPECT_EQ(w.outcomes[given_up].finish, FinishReason::kCancelled);

  w.engine->SetHold(Hold::kAll);
  while (w.Advance()) {
  }
  const std::size_t before = tokens(running);
  EXPECT_FALSE(w.Advance());
  EXPECT_EQ(w.engine->TimeToNextMove(), std::nullopt);
  EXPECT_EQ(tokens(running), before);
  EXPECT_LT(before, 20u);
  Status pinned = Ok{};
  w.Load("late", 1);
  w.engine->SetPinned(w.registry.Find(AdapterGeneration{1}), true, [&](Status status) { pinned = std::move(status); });
  EXPECT_EQ(pinned.error().code, ErrorCode::kUnavailable);

  w.engine->SetHold(Hold::kNone);
  w.Drain();
  EXPECT_EQ(w.outcomes[running].tokens, ExpectedTokens(kBaseModel, {1, 2, 3}, 20));
  EXPECT_EQ(w.outcomes[held].tokens, ExpectedTokens(kBaseModel, {4, 5}, 4));
  EXPECT_EQ(w.outcomes[given_up].ends, 1);
}

TEST(Engine, AnAbortEndsWhatIsHeldToo) {
  World w(64, 8, {}, {});
  const RequestId running = *w.Submit({1, 2, 3}, 0, 20);
  ASSERT_TRUE(w.Advance());
  w.engine->SetHold(Hold::kAll);
  const RequestId held = *w.Submit({4, 5}, 0, 4);
  w.engine->AbortAll();
  while (w.Advance()) {
  }
  const RequestId later = *w.Submit({4, 5}, 0, 4);
  EXPECT_FALSE(w.Advance());
  EXPECT_EQ(w.outcomes[running].finish, FinishReason::kAborted);
  EXPECT_EQ(w.outcomes[held].finish, FinishReason::kAborted);
  w.engine->SetHold(Hold::kNone);
  w.Drain();
  EXPECT_EQ(w.outcomes[later].tokens, ExpectedTokens(kBaseModel, {4, 5}, 4));
}

// A server that ends does not wait until its requests are let go: with what it has accepted it goes on.
TEST(Engine, ShuttingDownEndsAHold) {
  World w(64, 8, {}, {});
  const RequestId running = *w.Submit({1, 2, 3}, 0, 8);
  ASSERT_TRUE(w.Advance());
  w.engine->SetHold(Hold::kAll);
  const RequestId held = *w.Submit({4, 5}, 0, 4);
  while (w.Advance()) {
  }
  w.engine->StopAccepting();
  w.Drain();
  EXPECT_EQ(w.outcomes[running].tokens, ExpectedTokens(kBaseModel, {1, 2, 3}, 8));
  EXPECT_EQ(w.outcomes[held].tokens, ExpectedTokens(kBaseModel, {4, 5}, 4));
}

TEST(Engine, RefusesWhatCanNeverRun) {
  World w(8, 8, {}, {5});
  EXPECT_EQ(w.Submit({}, 0, 4).error().param, "prompt");
  EXPECT_EQ(w.Submit({1, 2, static_cast<TokenId>(kTestVocab)}, 0, 4).error().param, "prompt");
  EXPECT_EQ(w.Submit({-1}, 0, 4).error().param, "prompt");
  EXPECT_EQ(w.Submit({1}, 7, 4).error().code, ErrorCode::kNotFound);
  // 8 pages = 32 tokens
  EXPECT_EQ(w.Submit(std::vector<TokenId>(30, 1), 0, 10).error().code, ErrorCode::kResourceExhausted);
  EXPECT_TRUE(w.Submit(std::vector<TokenId>(22, 1), 0, 10).ok());
  EXPECT_FALSE(w.Submit(std::vector<TokenId>(12, 1), 1, 10).ok());  // 3 pages are left beside the adapter
  EXPECT_EQ(w.engine->MaxSequenceTokens(AdapterGeneration{1}), 12);
  EXPECT_TRUE(w.Submit(std::vector<TokenId>(8, 1), 1, -1).ok());
  w.Drain();
}

// A prompt that fills the memory to the last position is computed, if nothing follows it.
TEST(Engine, APromptAloneMayFillTheMemory) {
  World w(8, 8, {}, {3});
  w.pooling = Pooling::kMean;
  const RequestId embedding = *w.Submit(std::vector<TokenId>(20, 1), 1, 0);  // 5 pages beside the adapter's 3
  w.Drain();
  EXPECT_EQ(w.outcomes[embedding].finish, FinishReason::kLength);
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

// The engine reads the clock before it asks the executor, which measures with a clock of its own.
TEST(Engine, AStepHasNotWaitedLongerThanItWasInFlight) {
  World w(64, 8, {}, {});
  w.executor->set_held_up(kNsPerSecond);
  ASSERT_TRUE(w.Submit({1, 2, 3}, 0, 4).ok());
  w.Drain();
  EXPECT_GT(w.engine->Stats().step_wait_total, 0);
  EXPECT_LE(w.engine->Stats().step_wait_total, w.clock.Now());
}

TEST(Engine, AStopTokenEndsTheRequestAndIsNotDelivered) {
  World w(64, 8, {}, {});
  GenerationRequest request;
  request.prompt = {5};
  request.max_tokens = 30;
  request.stop_token_ids = {
      static_cast<TokenId>(ModeledExecutor::NextToken(kBaseModel, request.prompt, {}, kTestVocab))};
  World::Outcome outcome;
  request.on_event = [&](const GenerationEvent& event) {
    outcome.finish = event.finish;
    ASSERT_TRUE(event.stop.has_value());
    EXPECT_EQ(event.stop->id, request.stop_token_ids[0]);
    EXPECT_FALSE(event.token.has_value());
  };
  ASSERT_TRUE(w.engine->Submit(request).ok());
  w.Drain();
  EXPECT_EQ(outcome.finish, FinishReason::kStop);
}

// Predicts 3, and records its calls.
class RecordingPredictor final : public LengthPredictor {
 public:
  std::string_view name() const override { return "recording"; }
  std::int32_t Predict(const LengthQuery& query) override {
    hints.push_back(query.hint);
    return 3;
  }
  void Observe(const LengthQuery& query, std::int32_t output_tokens) override {
    observed.emplace_back(std::string(query.adapter_digest), query.prompt_tokens, query.max_output_tokens,
                          output_tokens);
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
  const std::vector<Seen> observed = {{"digest of x", 3, 12, static_cast<std::int32_t>(expected.size())},
                                      {"", 1, 1, 1}};
  EXPECT_EQ(predictor.observed, observed);
  EXPECT_EQ(predictor.hints, (std::vector<std::int32_t>{0, 0, 77}));
  const PredictionStats stats = w.engine->Stats().predictions;
  EXPECT_EQ(stats.right + stats.low + stats.high, 2);
  EXPECT_EQ(stats.high, 1);  // 3 instead of 1
  EXPECT_EQ(stats.error_tokens, 2 + std::abs(static_cast<std::int64_t>(expected.size()) - 3));
}

// A last token needs only itself to be computed, a mean all of them. Neither generates a token.
TEST(Engine, AnEmbeddingReusesWhatItsPoolingAllows) {
  SystemSpec scheduler;
  scheduler.prefill_chunk = 5;
  World w(64, 8, scheduler, {});
  const std::vector<TokenId> prompt = {9, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144};
  ASSERT_TRUE(w.Submit(prompt, 0, 4).ok());
  w.Drain();
  for (const Pooling pooling : {Pooling::kLast, Pooling::kMean, Pooling::kMean}) {
    w.pooling = pooling;
    const RequestId id = *w.Submit(prompt, 0, 0);
    w.Drain();
    const World::Outcome& outcome = w.outcomes[id];
    EXPECT_EQ(outcome.embedding, ExpectedEmbedding(pooling, prompt));
    EXPECT_EQ(outcome.cached_tokens, pooling == Pooling::kLast ? static_cast<std::int32_t>(prompt.size()) - 1 : 0);
    EXPECT_EQ(outcome.finish, FinishReason::kLength);
    EXPECT_TRUE(outcome.tokens.empty());
  }
}

// A snapshot is made on request, by the engine's own step, and is not made again for a while.
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
  ASSERT_EQ(first->adapters.size(), 1u);  // the only one that was requested
  EXPECT_EQ(first->adapters[0].version.name, "adapter-1");
  EXPECT_EQ(first->adapters[0].device, TierState::kLoading);
  EXPECT_EQ(first->adapters[0].waiting, 1);
  EXPECT_EQ(first->waiting_tokens, 3);
  EXPECT_EQ(first->running_prompt_tokens, 2);  // prompt tokens of the step in flight
  EXPECT_EQ(first->running_context, 0);
  EXPECT_EQ(first->max_batch_tokens, SystemSpec().max_batch_tokens);
  EXPECT_EQ(ask(), first);
  world.Drain();
  world.clock.Advance(kNsPerSecond);
  EXPECT_EQ(ask(), first);  // no step is made: the last snapshot
  world.engine->Step();     // idle, and still answers
  const auto last = ask();
  ASSERT_NE(last, first);
  EXPECT_EQ(last->stats.finished, 2);
  EXPECT_EQ(last->adapters[0].device, TierState::kResident);
  EXPECT_EQ(last->adapters[0].waiting + last->adapters[0].running, 0);
  EXPECT_EQ(last->waiting_tokens + last->running_prompt_tokens + last->running_context, 0);
  EXPECT_EQ(last->stats.max_running, SystemSpec().Seats());
  EXPECT_GT(last->stats.idle_adapter_pages, 0);
  EXPECT_LE(last->stats.idle_adapter_pages, last->stats.device.used(PageCategory::kAdapter));
  std::int64_t loads = 0;
  for (const std::int64_t count : last->stats.adapters.load_times) loads += count;
  EXPECT_EQ(loads, 1);
}

// Allows everything, and fails after some tokens.
class CountingConstraint final : public TokenConstraint {
 public:
  explicit CountingConstraint(std::size_t fails_after) : fails_after_(fails_after) {}
  void Advance(TokenId token) override { tokens.push_back(token); }
  std::span<const std::uint32_t> Allowed() override { return all_; }
  const Error* failure() const override { return tokens.size() >= fails_after_ ? &error_ : nullptr; }

  std::vector<TokenId> tokens;

 private:
  const std::size_t fails_after_;
  const std::vector<std::uint32_t> all_ = std::vector<std::uint32_t>(kTestVocab / 32 + 1, ~0u);
  const Error error_ = InvalidArgument("stuck");
};

// With so little memory that requests are preempted: a constraint sees each token once, and one that fails ends its
// request alone. Drafts change nothing.
void ExpectConstraintsSeeEachTokenOnce(bool drafts) {
  SystemSpec scheduler;
  scheduler.max_running = 16;
  if (drafts) scheduler.speculation.method = Speculation::kNgram;
  GuessingObserver guesses;
  World w(24, 8, scheduler, {}, /*prefix_cache=*/true, "lru", 10e9, drafts ? &guesses : nullptr);
  struct Case {
    std::vector<TokenId> prompt;
    std::shared_ptr<CountingConstraint> constraint;
    std::size_t fails_after;
  };
  std::map<RequestId, Case> cases;
  for (TokenId i = 0; i < 12; ++i) {
    const std::size_t fails_after = i % 3 == 0 ? 2 : 1000;
    Case one{{i + 1, 7, i + 2}, std::make_shared<CountingConstraint>(fails_after), fails_after};
    const auto id = w.EngineWorld::Submit(one.prompt, kBaseModel, 30, {}, {}, one.constraint);
    ASSERT_TRUE(id.ok());
    cases.emplace(*id, std::move(one));
  }
  w.Drain();
  EXPECT_GT(w.engine->Stats().preemptions, 0);
  for (const auto& [id, one] : cases) {
    const auto& outcome = w.outcomes[id];
    std::vector<TokenId> expected = ExpectedTokens(kBaseModel, one.prompt, 30);
    const bool stuck = expected.size() >= one.fails_after;
    if (stuck) expected.resize(one.fails_after);
    EXPECT_EQ(outcome.tokens, expected);
    EXPECT_EQ(outcome.finish == FinishReason::kError, stuck);
    EXPECT_EQ(outcome.error, stuck ? "stuck" : "");
    if (expected.size() == 30) expected.pop_back();  // nothing follows the last one
    EXPECT_EQ(one.constraint->tokens, expected);
  }
  EXPECT_EQ(w.engine->Stats().accepted_tokens > 50, drafts);
}

TEST(EngineConstraint, SeesEachTokenOnceAndFailsAlone) { ExpectConstraintsSeeEachTokenOnce(/*drafts=*/false); }

TEST(EngineConstraint, SeesEachTokenOfADraftOnce) { ExpectConstraintsSeeEachTokenOnce(/*drafts=*/true); }

}  // namespace
}  // namespace loramux::engine_test
