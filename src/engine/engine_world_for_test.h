// An engine on a virtual clock, with a modelled executor and modelled transfers: what the engine's own tests share.
// Pages hold 4 positions in 64 bytes.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "adapter/transfer.h"
#include "base/prng.h"
#include "engine/engine.h"
#include "engine/modeled_executor.h"

namespace loramux {

inline constexpr std::int64_t kTestVocab = 1000;
inline constexpr std::int64_t kTestPageTokens = 4;

// Before it lets a batch through: each chunk's page table must lead to what was computed for exactly its tokens under its
// adapter's content. "Keys and values" are a hash of all tokens so far, written where a real executor would write them.
class KvCheckingExecutor final : public Executor {
 public:
  KvCheckingExecutor(ModeledExecutor* executor, PagePool* device) : executor_(executor), device_(device) {}

  void Submit(const ExecutorBatch& batch) override {
    for (const ExecutorChunk& chunk : batch.chunks) CheckAndWrite(chunk);
    executor_->Submit(batch);
  }
  bool Poll(ExecutorResult& result) override { return executor_->Poll(result); }
  // Positions that were found computed by somebody else.
  std::int64_t checked() const { return checked_; }

 private:
  static std::uint64_t Content(const ExecutorChunk& chunk) {
    if (chunk.adapter == nullptr) return 0;
    const AdapterVersion& version = *chunk.adapter->version;
    return version.file.digest.empty() ? version.generation.value : std::hash<std::string>()(version.file.digest);
  }
  std::byte* At(const ExecutorChunk& chunk, std::int64_t position) const {
    return device_->base() + chunk.pages[position / kTestPageTokens] * device_->page_bytes() +
           position % kTestPageTokens * static_cast<std::int64_t>(sizeof(std::uint64_t));
  }
  void CheckAndWrite(const ExecutorChunk& chunk) {
    const auto prompt = chunk.context.prompt, generated = chunk.context.generated;
    std::uint64_t hash = SplitMix64(Content(chunk));
    for (std::int64_t p = 0; p < chunk.position + static_cast<std::int64_t>(chunk.tokens.size()); ++p) {
      const auto at = static_cast<std::size_t>(p);
      hash = SplitMix64(hash ^ static_cast<std::uint64_t>(at < prompt.size() ? prompt[at] : generated[at - prompt.size()]));
      if (p >= chunk.position) {
        std::memcpy(At(chunk, p), &hash, sizeof(hash));
        continue;
      }
      std::uint64_t found = 0;
      std::memcpy(&found, At(chunk, p), sizeof(found));
      ASSERT_EQ(found, hash) << "request " << chunk.id << " reads other keys and values at position " << p;
      ++checked_;
    }
  }

  ModeledExecutor* executor_;
  PagePool* device_;
  std::int64_t checked_ = 0;
};

struct EngineWorld {
  struct Outcome {
    std::vector<TokenId> tokens;
    FinishReason finish = FinishReason::kNone;
    std::string error;
    std::int32_t cached_tokens = 0;
    int ends = 0;
  };

  VirtualClock clock;
  std::unique_ptr<PagePool> device, host;
  ModeledTransfer transfer{&clock, {.latency_ns = 3 * kNsPerMs}, {.latency_ns = kNsPerMs}};
  ModeledTransfer kv_transfer{&clock, {}, {.latency_ns = 2 * kNsPerMs}};
  ModeledExecutor modeled{&clock, {}, kTestVocab};
  std::unique_ptr<KvCheckingExecutor> executor;
  AdapterRegistry registry{ModelConfig{}, {"base"}, {}};
  std::unique_ptr<EvictionPolicy> policy;
  std::unique_ptr<DependencyTree> tree;
  Wakeup wakeup;
  std::unique_ptr<Engine> engine;
  std::map<RequestId, Outcome> outcomes;

  struct Options {
    std::int64_t device_pages = 40, host_pages = 20;
    SchedulerOptions scheduler = {};
    std::int64_t max_model_len = 200;
    bool prefix_cache = true, kv_host_tier = true;
    std::string cache = "lru";
    LengthPredictor* predictor = nullptr;
  };
  explicit EngineWorld(Options options) {
    device = std::move(PagePool::Create("device", options.device_pages * 64, 64)).value();
    host = std::move(PagePool::Create("host", options.host_pages * 64, 64)).value();
    executor = std::make_unique<KvCheckingExecutor>(&modeled, device.get());
    const CacheRegime regime = *FindCacheRegime(options.cache);
    policy = std::move(MakeEvictionPolicy(regime.policy)).value();
    ApplyRegime(regime, options.scheduler);
    if (options.prefix_cache && regime.keep_history) tree = std::make_unique<DependencyTree>(kTestPageTokens, device.get(), host.get());
    options.scheduler.page_tokens = kTestPageTokens;
    EngineOptions engine_options{.scheduler = options.scheduler, .max_model_len = options.max_model_len,
                                 .eos_token_ids = {0}, .vocab_size = kTestVocab};
    engine = std::make_unique<Engine>(engine_options, EngineParts{.clock = &clock, .executor = executor.get(),
                                                                  .transfer = &transfer, .device = device.get(),
                                                                  .host = host.get(), .registry = &registry,
                                                                  .eviction = policy.get(), .tree = tree.get(),
                                                                  .kv_transfer = options.kv_host_tier ? &kv_transfer : nullptr,
                                                                  .predictor = options.predictor, .wakeup = &wakeup});
  }

  static std::shared_ptr<AdapterVersion> Make(const std::string& name, std::int64_t pages, const std::string& digest = "") {
    auto version = std::make_shared<AdapterVersion>();
    version->name = name;
    version->layout.pages = pages;
    version->layout.max_rank = 8;
    version->file.digest = digest;
    return version;
  }
  AdapterGeneration Load(const std::string& name, std::int64_t pages, const std::string& digest = "") {
    return (*registry.Commit(Make(name, pages, digest)))->generation;
  }
  AdapterGeneration Replace(const std::string& name, std::int64_t pages, const std::string& digest = "") {
    return (*registry.Commit(Make(name, pages, digest), /*replace=*/true))->generation;
  }

  Result<RequestId> Submit(std::vector<TokenId> prompt, AdapterGeneration adapter, std::int32_t max_tokens,
                           std::string tenant = {}) {
    GenerationRequest request;
    request.tenant = std::move(tenant);
    request.prompt = std::move(prompt);
    request.adapter = adapter;
    request.max_tokens = max_tokens;
    request.on_event = [this](const GenerationEvent& event) {
      Outcome& outcome = outcomes[event.id];
      EXPECT_EQ(outcome.ends, 0) << "an event after the last";
      if (event.token != nullptr) outcome.tokens.push_back(event.token->id);
      outcome.cached_tokens = event.cached_prompt_tokens;
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
    TimeNs next = modeled.ends_at();
    for (const TimeNs end : {transfer.next_end(), kv_transfer.next_end()}) {
      if (end >= 0 && (next < 0 || end < next)) next = end;
    }
    if (next < 0) return false;
    clock.AdvanceTo(std::max(next, clock.Now()));
    return true;
  }
  void Drain() {
    while (Advance()) {}
    EXPECT_TRUE(engine->Idle());
    engine->CheckIntegrity();
    EXPECT_EQ(device->Stats().used(PageCategory::kKv), engine->Stats().history_pages);
  }
};

// What a request must get, whatever shared its batches: the chain of NextToken up to eos or max_tokens.
inline std::vector<TokenId> ExpectedTokens(AdapterGeneration adapter, const std::vector<TokenId>& prompt, std::int32_t max_tokens) {
  std::vector<TokenId> generated;
  while (static_cast<std::int32_t>(generated.size()) < max_tokens) {
    const TokenId next = ModeledExecutor::NextToken(adapter, prompt, generated, kTestVocab);
    if (next == 0) break;
    generated.push_back(next);
  }
  return generated;
}

}  // namespace loramux
