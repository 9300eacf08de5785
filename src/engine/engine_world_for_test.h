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

// Checks that each sequence's page table leads to keys and values computed for exactly its tokens under its adapter's
// content. A layer is checked when it is read: at once, or as soon as it has arrived. "Keys and values" are a hash of
// all tokens so far, written where a real executor would write them. As with a real executor, a batch is not done until
// every layer has arrived or failed, and a sequence with a failed arrival yields garbage.
class KvCheckingExecutor final : public Executor {
 public:
  KvCheckingExecutor(const Clock* clock, ModeledExecutor* executor, PagePool* device)
      : clock_(clock), executor_(executor), device_(device) {}

  void Submit(StepBatch batch) override {
    batch_ = batch;
    computed_ = false;
    next_layer_.assign(batch.sequences.size(), 0);
    for (const AdapterPlacement& placement : batch.placements) Place(placement);
    for (const PageCopy& copy : batch.copies) Copy(copy);
    for (const StepSequence& sequence : batch.sequences) Learn(sequence);
    for (std::size_t i = 0; i < batch.sequences.size(); ++i) ReadLayers(i);
    executor_->Submit(std::move(batch));
  }
  // Tells of a request's prompt, of which the cache may hold a part. Otherwise the prompt is learned from the batches.
  void Expect(RequestId id, std::vector<TokenId> prompt) { tokens_[id] = std::move(prompt); }
  // A real executor may copy a page at any time until now, so each source page must be unchanged.
  bool Poll(StepResult& result) override {
    if (!batch_.has_value()) return false;
    bool all_ended = true;
    for (std::size_t i = 0; i < batch_->sequences.size(); ++i) {
      ReadLayers(i);
      all_ended &= next_layer_[i] == kTestLayers || Failed(batch_->sequences[i]);
    }
    if (!computed_ && executor_->Poll(result)) {
      computed_ = true;
      computed_at_ = clock_->Now();
    }
    if (!computed_ || !all_ended) return false;
    result.waited = clock_->Now() - computed_at_ + held_up_;
    for (const StepSequence& sequence : batch_->sequences) {
      if (Failed(sequence)) WriteGarbage(sequence);
    }
    for (const auto& [page, bytes] : sources_) EXPECT_EQ(std::memcmp(PageAt(page), bytes.data(), bytes.size()), 0);
    sources_.clear();
    batch_.reset();
    return true;
  }
  // Adds the time for which the engine's thread is held up between its look at the clock and each Poll.
  void set_held_up(TimeNs duration) { held_up_ = duration; }
  // Positions read that another request had computed.
  std::int64_t checked() const { return checked_; }
  // Layers that were read before the last one of the same sequence had arrived.
  std::int64_t layers_read_early() const { return layers_read_early_; }
  std::int64_t discarded() const { return discarded_; }  // sequences with a failed arrival

 private:
  std::byte* PageAt(std::uint32_t page) const { return device_->View().Page(page); }
  void Copy(const PageCopy& copy) {
    const auto bytes = static_cast<std::size_t>(device_->page_bytes());
    ASSERT_NE(copy.source, copy.destination);
    std::memcpy(PageAt(copy.destination), PageAt(copy.source), bytes);
    sources_.emplace_back(copy.source, std::vector<std::byte>(PageAt(copy.source), PageAt(copy.source) + bytes));
  }
  void Place(const AdapterPlacement& placement) {
    const AdapterVersion& version = *placement.version;
    EXPECT_EQ(static_cast<std::int64_t>(placement.pages.pages.size()), version.layout.pages);
    contents_[placement.adapter.slot] = {placement.adapter.load, version.file.digest.empty()
                                                                     ? version.generation.value
                                                                     : std::hash<std::string>()(version.file.digest)};
  }
  // Of the adapter that the sequence runs with; 0: the base model.
  std::uint64_t Content(const StepSequence& sequence) const {
    const AdapterSegment* const segment = batch_->SegmentOf(sequence);
    if (segment == nullptr) return 0;
    const auto& [load, content] = contents_.at(segment->adapter.slot);
    EXPECT_EQ(load, segment->adapter.load) << "a load of the adapter was not registered";
    return content;
  }
  void Learn(const StepSequence& sequence) {
    std::vector<TokenId>& known = tokens_[sequence.id];
    const auto position = static_cast<std::size_t>(sequence.position);
    ASSERT_LE(position, known.size());
    const auto tokens = batch_->TokensOf(sequence);
    known.resize(std::max(known.size(), position + tokens.size()));
    std::copy(tokens.begin(), tokens.end(), known.begin() + sequence.position);
  }
  bool Failed(const StepSequence& sequence) const {
    const auto failed = [this](std::int32_t arrival) { return arrival >= 0 && batch_->Arrival(arrival)->failed(); };
    return failed(sequence.adapter_arrival) || failed(sequence.kv_arrival);
  }
  // The number of layers available of everything that the sequence reads.
  std::int32_t Layers(const StepSequence& sequence) const {
    std::int32_t layers = kTestLayers;
    for (const std::int32_t index : {sequence.adapter_arrival, sequence.kv_arrival}) {
      const LayerProgress* const arrival = batch_->Arrival(index);
      if (arrival != nullptr && arrival->arrived() < arrival->layers()) layers = std::min(layers, arrival->arrived());
    }
    return layers;
  }
  std::byte* At(const StepSequence& sequence, std::int64_t position, std::int32_t layer) const {
    return PageAt(batch_->PagesOf(sequence)[static_cast<std::size_t>(position / kTestPageTokens)]) +
           layer * static_cast<std::int64_t>(kTestLayerBytes) +
           position % kTestPageTokens * static_cast<std::int64_t>(sizeof(std::uint32_t));
  }
  void ReadLayers(std::size_t i) {
    const StepSequence& sequence = batch_->sequences[i];
    if (Failed(sequence)) return;
    const std::int32_t end = Layers(sequence);
    for (std::int32_t& layer = next_layer_[i]; layer < end; ++layer) {
      CheckAndWrite(sequence, layer);
      layers_read_early_ += end < kTestLayers;
    }
  }
  void CheckAndWrite(const StepSequence& sequence, std::int32_t layer) {
    const std::vector<TokenId>& tokens = tokens_.at(sequence.id);
    std::uint64_t hash = SplitMix64(Content(sequence));
    for (std::int64_t p = 0; p < sequence.position + sequence.tokens.size; ++p) {
      hash = SplitMix64(hash ^ static_cast<std::uint64_t>(tokens[static_cast<std::size_t>(p)]));
      const auto expected = static_cast<std::uint32_t>(SplitMix64(hash + static_cast<std::uint64_t>(layer)));
      if (p >= sequence.position) {
        std::memcpy(At(sequence, p, layer), &expected, sizeof(expected));
        continue;
      }
      std::uint32_t found = 0;
      std::memcpy(&found, At(sequence, p, layer), sizeof(found));
      ASSERT_EQ(found, expected) << "request " << sequence.id << " reads wrong keys and values at position " << p
                                 << ", layer " << layer;
      checked_ += layer == 0;
    }
  }
  void WriteGarbage(const StepSequence& sequence) {
    ++discarded_;
    for (std::int64_t p = sequence.position; p < sequence.position + sequence.tokens.size; ++p) {
      for (std::int32_t layer = 0; layer < kTestLayers; ++layer)
        std::memset(At(sequence, p, layer), 0xee, sizeof(std::uint32_t));
    }
  }

  const Clock* clock_;
  ModeledExecutor* executor_;
  PagePool* device_;
  std::optional<StepBatch> batch_;  // in flight
  std::map<RequestId, std::vector<TokenId>> tokens_;
  std::map<std::uint32_t, std::pair<std::uint64_t, std::uint64_t>> contents_;  // by slot: load, content
  TimeNs computed_at_ = 0;
  TimeNs held_up_ = 0;
  bool computed_ = false;
  std::vector<std::int32_t> next_layer_;  // by sequence: the next layer to read
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
    const std::vector<TokenId> tokens = request.prompt;
    const auto id = engine->Submit(std::move(request));
    if (id.ok()) executor->Expect(*id, tokens);
    return id;
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
