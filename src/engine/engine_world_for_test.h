// An engine on a virtual clock with a modelled executor and modelled transfers, shared by the engine's tests. A page
// holds 4 positions in 64 bytes: 4 layers with 4 bytes per position each.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "adapter/transfer.h"
#include "base/prng.h"
#include "engine/engine.h"
#include "engine/modeled_executor.h"

namespace loramux {

// Vocabulary size of the test model.
inline constexpr std::int64_t kTestVocab = 1000;
inline constexpr std::int64_t kTestPageTokens = 4;
inline constexpr std::int32_t kTestLayers = 4;
inline constexpr std::size_t kTestLayerBytes = kTestPageTokens * sizeof(std::uint32_t);  // of a page

// Checks that each chunk's page table leads to keys and values computed for exactly its tokens under its adapter's
// content. A layer is checked when it is read: at once, or as soon as it has arrived. "Keys and values" are a hash of
// all tokens so far, written where a real executor would write them. As with a real executor, a batch is not done until
// every layer has arrived or failed, and a chunk with a failed arrival yields garbage.
class KvCheckingExecutor final : public Executor {
 public:
  KvCheckingExecutor(const Clock* clock, ModeledExecutor* executor, PagePool* device)
      : clock_(clock), executor_(executor), device_(device) {}

  void Submit(const ExecutorBatch& batch) override {
    batch_ = &batch;
    computed_ = false;
    next_layer_.assign(batch.chunks.size(), 0);
    for (const PageCopy& copy : batch.copies) Copy(copy);
    for (std::size_t i = 0; i < batch.chunks.size(); ++i) ReadLayers(i);
    executor_->Submit(batch);
  }
  // A real executor may copy a page at any time until now, so each source page must be unchanged.
  bool Poll(ExecutorResult& result) override {
    if (batch_ == nullptr) return false;
    bool all_ended = true;
    for (std::size_t i = 0; i < batch_->chunks.size(); ++i) {
      ReadLayers(i);
      all_ended &= next_layer_[i] == kTestLayers || Failed(batch_->chunks[i]);
    }
    if (!computed_ && executor_->Poll(result)) {
      computed_ = true;
      computed_at_ = clock_->Now();
    }
    if (!computed_ || !all_ended) return false;
    result.waited = clock_->Now() - computed_at_ + held_up_;
    for (std::size_t i = 0; i < batch_->chunks.size(); ++i) {
      if (Failed(batch_->chunks[i])) WriteGarbage(batch_->chunks[i]);
    }
    for (const auto& [page, bytes] : sources_) EXPECT_EQ(std::memcmp(PageAt(page), bytes.data(), bytes.size()), 0);
    sources_.clear();
    batch_ = nullptr;
    return true;
  }
  // Adds the time for which the engine's thread is held up between its look at the clock and each Poll.
  void set_held_up(TimeNs duration) { held_up_ = duration; }
  // Positions read that another request had computed.
  std::int64_t checked() const { return checked_; }
  // Layers that were read before the last one of the same chunk had arrived.
  std::int64_t layers_read_early() const { return layers_read_early_; }
  std::int64_t discarded() const { return discarded_; }  // chunks with a failed arrival

 private:
  std::byte* PageAt(std::uint32_t page) const { return device_->View().Page(page); }
  void Copy(const PageCopy& copy) {
    const auto bytes = static_cast<std::size_t>(device_->page_bytes());
    ASSERT_NE(copy.source, copy.destination);
    std::memcpy(PageAt(copy.destination), PageAt(copy.source), bytes);
    sources_.emplace_back(copy.source, std::vector<std::byte>(PageAt(copy.source), PageAt(copy.source) + bytes));
  }
  static std::uint64_t Content(const ExecutorChunk& chunk) {
    if (chunk.adapter == nullptr) return 0;
    const AdapterVersion& version = *chunk.adapter->version;
    return version.file.digest.empty() ? version.generation.value : std::hash<std::string>()(version.file.digest);
  }
  static bool Failed(const ExecutorChunk& chunk) {
    const auto failed = [](const LayerProgress* arrival) { return arrival != nullptr && arrival->failed(); };
    return failed(chunk.adapter_arrival) || failed(chunk.kv_arrival);
  }
  // The number of layers available of everything that the chunk reads.
  static std::int32_t Layers(const ExecutorChunk& chunk) {
    std::int32_t layers = kTestLayers;
    for (const LayerProgress* arrival : {chunk.adapter_arrival, chunk.kv_arrival}) {
      if (arrival != nullptr && arrival->arrived() < arrival->layers()) layers = std::min(layers, arrival->arrived());
    }
    return layers;
  }
  std::byte* At(const ExecutorChunk& chunk, std::int64_t position, std::int32_t layer) const {
    return PageAt(chunk.pages[position / kTestPageTokens]) + layer * static_cast<std::int64_t>(kTestLayerBytes) +
           position % kTestPageTokens * static_cast<std::int64_t>(sizeof(std::uint32_t));
  }
  void ReadLayers(std::size_t i) {
    const ExecutorChunk& chunk = batch_->chunks[i];
    if (Failed(chunk)) return;
    const std::int32_t end = Layers(chunk);
    for (std::int32_t& layer = next_layer_[i]; layer < end; ++layer) {
      CheckAndWrite(chunk, layer);
      layers_read_early_ += end < kTestLayers;
    }
  }
  void CheckAndWrite(const ExecutorChunk& chunk, std::int32_t layer) {
    const auto prompt = chunk.context.prompt, generated = chunk.context.generated;
    std::uint64_t hash = SplitMix64(Content(chunk));
    for (std::int64_t p = 0; p < chunk.position + static_cast<std::int64_t>(chunk.tokens.size()); ++p) {
      const auto at = static_cast<std::size_t>(p);
      hash = SplitMix64(hash ^
                        static_cast<std::uint64_t>(at < prompt.size() ? prompt[at] : generated[at - prompt.size()]));
      const auto expected = static_cast<std::uint32_t>(SplitMix64(hash + static_cast<std::uint64_t>(layer)));
      if (p >= chunk.position) {
        std::memcpy(At(chunk, p, layer), &expected, sizeof(expected));
        continue;
      }
      std::uint32_t found = 0;
      std::memcpy(&found, At(chunk, p, layer), sizeof(found));
      ASSERT_EQ(found, expected) << "request " << chunk.id << " reads wrong keys and values at position " << p
                                 << ", layer " << layer;
      checked_ += layer == 0;
    }
  }
  void WriteGarbage(const ExecutorChunk& chunk) {
    ++discarded_;
    for (std::int64_t p = chunk.position; p < chunk.position + static_cast<std::int64_t>(chunk.tokens.size()); ++p) {
      for (std::int32_t layer = 0; layer < kTestLayers; ++layer)
        std::memset(At(chunk, p, layer), 0xee, sizeof(std::uint32_t));
    }
  }

  const Clock* clock_;
  ModeledExecutor* executor_;
  PagePool* device_;
  const ExecutorBatch* batch_ = nullptr;
  TimeNs computed_at_ = 0;
  TimeNs held_up_ = 0;
  bool computed_ = false;
  std::vector<std::int32_t> next_layer_;  // by chunk: the next layer to read
  std::int64_t checked_ = 0, layers_read_early_ = 0, discarded_ = 0;
  // pages copied by the step in flight, and their content
  std::vector<std::pair<std::uint32_t, std::vector<std::byte>>> sources_;
};

// An engine with all parts, and the outcomes of its requests.
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
  ModeledTransfer transfer, kv_transfer;
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
    // of each link between host and device; a slow link makes transfers arrive layer by layer
    double host_bytes_per_second = 10e9;
    LengthPredictor* predictor = nullptr;
    EngineObserver* observer = nullptr;
  };
  explicit EngineWorld(Options options)
      : device(std::move(PagePool::Create("device", options.device_pages * 64, 64)).value()),
        host(std::move(PagePool::Create("host", options.host_pages * 64, 64)).value()),
        transfer(&clock, {.latency_ns = 3 * kNsPerMs}, {kNsPerMs, options.host_bytes_per_second}),
        kv_transfer(&clock, {}, {2 * kNsPerMs, options.host_bytes_per_second}, {host->View(), device->View()}) {
    executor = std::make_unique<KvCheckingExecutor>(&clock, &modeled, device.get());
    const CacheRegime regime = *FindCacheRegime(options.cache);
    policy = std::move(MakeEvictionPolicy(regime.policy)).value();
    ApplyRegime(regime, options.scheduler);
    if (options.prefix_cache && regime.keep_history)
      tree = std::make_unique<DependencyTree>(kTestPageTokens, device.get(), host.get());
    options.scheduler.page_tokens = kTestPageTokens;
    EngineOptions engine_options{.scheduler = options.scheduler,
                                 .max_model_len = options.max_model_len,
                                 .eos_token_ids = {0},
                                 .vocab_size = kTestVocab,
                                 .kv_slices = {.layers = kTestLayers, .layer_bytes = kTestLayerBytes}};
    engine = std::make_unique<Engine>(engine_options,
                                      EngineParts{.clock = &clock,
                                                  .executor = executor.get(),
                                                  .transfer = &transfer,
                                                  .device = device.get(),
                                                  .host = host.get(),
                                                  .registry = &registry,
                                                  .eviction = policy.get(),
                                                  .tree = tree.get(),
                                                  .kv_transfer = options.kv_host_tier ? &kv_transfer : nullptr,
                                                  .predictor = options.predictor,
                                                  .wakeup = &wakeup,
                                                  .observer = options.observer});
  }

  static std::shared_ptr<AdapterVersion> Make(const std::string& name, std::int64_t pages,
                                              const std::string& digest = "") {
    auto version = std::make_shared<AdapterVersion>();
    version->name = name;
    version->layout.pages = pages;
    for (std::int32_t layer = 1; layer <= kTestLayers; ++layer) {
      version->layout.layer_pages.push_back(static_cast<std::int32_t>((pages * layer + kTestLayers - 1) / kTestLayers));
    }
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
                           std::string tenant = {}, std::string prefix_domain = {}) {
    GenerationRequest request;
    request.tenant = std::move(tenant);
    request.prefix_domain = std::move(prefix_domain);
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

  // Steps the engine until nothing changes, then advances the clock to the next event. False if no event is left.
  bool Advance() {
    while (engine->Step()) {
    }
    TimeNs next = modeled.ends_at();
    for (const TimeNs end : {transfer.next_end(), kv_transfer.next_end()}) {
      if (end >= 0 && (next < 0 || end < next)) next = end;
    }
    if (next < 0) return false;
    clock.AdvanceTo(std::max(next, clock.Now()));
    return true;
  }
  // Advances until all requests have ended, then checks the engine's integrity.
  void Drain() {
    while (Advance()) {
    }
    EXPECT_TRUE(engine->Idle());
    engine->CheckIntegrity();
    EXPECT_EQ(device->Stats().used(PageCategory::kKv), engine->Stats().history_pages);
  }
};

// A world with adapters of the given sizes in pages, generations 1, 2, ...
struct AdapterWorld : EngineWorld {
  AdapterWorld(std::int64_t device_pages, std::int64_t host_pages, SchedulerOptions scheduler,
               const std::vector<std::int64_t>& adapter_pages, bool prefix_cache = true,
               const std::string& cache = "lru", double host_bytes_per_second = 10e9)
      : EngineWorld({.device_pages = device_pages,
                     .host_pages = host_pages,
                     .scheduler = scheduler,
                     .prefix_cache = prefix_cache,
                     .cache = cache,
                     .host_bytes_per_second = host_bytes_per_second}) {
    for (std::size_t i = 0; i < adapter_pages.size(); ++i) Load("adapter-" + std::to_string(i), adapter_pages[i]);
  }
  Result<RequestId> Submit(std::vector<TokenId> prompt, std::uint32_t adapter, std::int32_t max_tokens,
                           std::string tenant = {}, std::string prefix_domain = {}) {
    return EngineWorld::Submit(std::move(prompt), AdapterGeneration{adapter}, max_tokens, std::move(tenant),
                               std::move(prefix_domain));
  }
};

// The tokens a request must get, whatever shared its batches: the chain of NextToken up to eos or max_tokens.
inline std::vector<TokenId> ExpectedTokens(AdapterGeneration adapter, const std::vector<TokenId>& prompt,
                                           std::int32_t max_tokens) {
  std::vector<TokenId> generated;
  while (static_cast<std::int32_t>(generated.size()) < max_tokens) {
    const TokenId next = ModeledExecutor::NextToken(adapter, prompt, generated, kTestVocab);
    if (next == 0) break;
    generated.push_back(next);
  }
  return generated;
}

}  // namespace loramux
