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

#include "base/prng.h"
#include "engine/control_plane.h"
#include "engine/engine.h"
#include "engine/kv_checking_executor_for_test.h"
#include "engine/modeled_executor.h"
#include "residency/transfer.h"

namespace loramux {

// An engine with all parts, and the outcomes of its requests.
struct EngineWorld {
  struct Outcome {
    std::vector<TokenId> tokens;
    std::vector<AdapterGeneration> adapters;  // with which each token was computed
    AdapterGeneration last;                   // as the last event says
    FinishReason finish = FinishReason::kNone;
    std::string error;
    std::int32_t cached_tokens = 0;
    std::vector<ScoredToken> prompt_scores;
    std::vector<float> embedding;
    int ends = 0;
  };

  struct Options {
    std::int64_t device_pages = 40, host_pages = 20;
    SystemSpec spec = {};
    std::int64_t max_model_len = 200;
    bool prefix_cache = true, kv_host_tier = true;
    std::string cache = "lru";
    // speed of each link between host and device; a slow link makes transfers arrive layer by layer
    double host_bytes_per_second = 10e9;
    LengthPredictor* predictor = nullptr;
    EngineObserver* observer = nullptr;
  };
  VirtualClock clock;
  std::unique_ptr<ControlPlane> plane;
  PagePool* device;
  PagePool* host;
  DependencyTree& tree;
  ModeledTransfer transfer;
  ModeledExecutor modeled{&clock, {}, kTestVocab};
  std::unique_ptr<KvCheckingExecutor> executor;
  AdapterRegistry registry{
      ModelConfig{}, {"base"}, {.on_publish = [this](const auto& version) { engine->Register(version); }}};
  Wakeup wakeup;
  std::unique_ptr<Engine> engine;
  std::map<RequestId, Outcome> outcomes;
  std::int32_t prompt_logprobs = -1;  // for the next requests; -1: none
  std::optional<Pooling> pooling;     // for the next requests; nullopt: none
  bool keeps_version = false;         // for the next requests

  explicit EngineWorld(Options options)
      : plane(Assemble(options)),
        device(&plane->device()),
        host(&plane->host()),
        tree(plane->tree()),
        transfer(&clock, {.latency_ns = 3 * kNsPerMs}, {kNsPerMs, options.host_bytes_per_second},
                 {2 * kNsPerMs, options.host_bytes_per_second}, plane->tiers()),
        executor(std::make_unique<KvCheckingExecutor>(&clock, &modeled, device)),
        engine(plane->Connect({.clock = clock,
                               .executor = *executor,
                               .transfer = transfer,
                               .registry = registry,
                               .wakeup = wakeup,
                               .predictor = options.predictor,
                               .observer = options.observer})) {
    executor->set_state_pages(options.spec.state_pages);
  }

  static std::unique_ptr<ControlPlane> Assemble(Options& options) {
    options.spec.cache = options.cache;
    options.spec.keep_history = options.prefix_cache;
    options.spec.page_tokens = kTestPageTokens;
    CHECK(Complete(options.spec, options.max_model_len).ok());
    ControlPlaneOptions plane;
    plane.device = std::move(PagePool::Create("device", options.device_pages * 64, 64)).value();
    plane.host = std::move(PagePool::Create("host", options.host_pages * 64, 64)).value();
    plane.kv_in_host_tier = options.kv_host_tier;
    plane.engine = {.spec = options.spec,
                    .max_model_len = options.max_model_len,
                    .eos_token_ids = {0},
                    .vocab_size = kTestVocab,
                    .kv_slices = {.layers = kTestLayers, .layer_bytes = kTestLayerBytes}};
    if (options.spec.state_pages > 0) plane.engine.kv_slices = {};
    return std::move(ControlPlane::Create(std::move(plane))).value();
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
  AdapterGeneration LoadActivated(const std::string& name, std::int64_t pages, std::vector<TokenId> invocation) {
    auto version = Make(name, pages);
    version->file.config.invocation_tokens = std::move(invocation);
    return (*registry.Commit(std::move(version)))->generation;
  }
  // Replaces the version of a name, and moves its requests to the new one, or aborts them.
  AdapterGeneration Reload(std::shared_ptr<AdapterVersion> version, bool aborts = false) {
    const auto old = *registry.Resolve(version->name);
    const auto next = *registry.Commit(std::move(version), /*replace=*/true);
    engine->Retarget(*old, aborts ? nullptr : next);
    return next->generation;
  }
  // Tokens of the prompt before the last occurrence of the adapter's invocation tokens; nullopt: there is none.
  std::optional<std::int64_t> BaseTokens(std::span<const TokenId> prompt, AdapterGeneration adapter) const {
    const auto version = registry.Find(adapter);
    if (version == nullptr || version->file.config.invocation_tokens.empty()) return 0;
    const std::vector<TokenId>& invocation = version->file.config.invocation_tokens;
    for (std::size_t tail = invocation.size(); tail <= prompt.size(); ++tail) {
      if (std::ranges::equal(prompt.subspan(prompt.size() - tail, invocation.size()), invocation))
        return static_cast<std::int64_t>(prompt.size() - tail);
    }
    return std::nullopt;
  }
  AdapterGeneration Replace(const std::string& name, std::int64_t pages, const std::string& digest = "") {
    return (*registry.Commit(Make(name, pages, digest), /*replace=*/true))->generation;
  }

  Result<RequestId> Submit(std::vector<TokenId> prompt, AdapterGeneration adapter, std::int32_t max_tokens,
                           std::string tenant = {}, std::string prefix_domain = {},
                           std::shared_ptr<TokenConstraint> constraint = nullptr) {
    GenerationRequest request;
    request.constraint = std::move(constraint);
    request.tenant = std::move(tenant);
    request.prefix_domain = std::move(prefix_domain);
    request.prompt = std::move(prompt);
    request.adapter = adapter;
    request.max_tokens = max_tokens;
    request.prompt_logprobs = prompt_logprobs;
    request.pooling = pooling;
    request.keeps_version = keeps_version;
    request.on_event = [this](const GenerationEvent& event) {
      Outcome& outcome = outcomes[event.id];
      EXPECT_EQ(outcome.ends, 0) << "an event after the last";
      if (event.token.has_value()) {
        outcome.tokens.push_back(event.token->id);
        outcome.adapters.push_back(event.adapter);
      }
      outcome.last = event.adapter;
      if (!event.prompt_scores.empty()) {
        EXPECT_TRUE(outcome.prompt_scores.empty()) << "scores were given twice";
        outcome.prompt_scores.assign(event.prompt_scores.begin(), event.prompt_scores.end());
      }
      if (!event.embedding.empty()) {
        EXPECT_EQ(event.finish, FinishReason::kLength) << "an embedding before the end";
        outcome.embedding.assign(event.embedding.begin(), event.embedding.end());
      }
      outcome.cached_tokens = event.cached_prompt_tokens;
      if (event.finish == FinishReason::kNone) return;
      ++outcome.ends;
      outcome.finish = event.finish;
      if (event.error.has_value()) outcome.error = event.error->message;
    };
    const std::vector<TokenId> tokens = request.prompt;
    const auto id = engine->Submit(std::move(request));
    if (id.ok()) executor->Expect(*id, tokens, BaseTokens(tokens, adapter).value_or(0));
    return id;
  }

  // Steps the engine until nothing changes, then advances the clock to the next event. False if no event is left.
  bool Advance() {
    while (engine->Step()) {
    }
    TimeNs next = modeled.ends_at();
    const TimeNs end = transfer.next_end();
    if (end >= 0 && (next < 0 || end < next)) next = end;
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

// Drafts of the modelled executor's next tokens, so that speculating engines have some: each token is wrong with a
// chance of a quarter.
class GuessingObserver final : public EngineObserver {
 public:
  static constexpr std::int64_t kMost = 8;

  void Arrived(const Request& request, const AdapterVersion*) override { requests_[request.id] = &request; }
  void Drafted(RequestId id, std::vector<TokenId>& draft) override {
    draft.clear();
    const Request& request = *requests_.at(id);
    std::vector<TokenId> generated(request.generated().begin(), request.generated().end());
    const std::int64_t most =
        std::min(kMost, request.max_total_tokens - static_cast<std::int64_t>(request.tokens.size()) - 1);
    for (std::int64_t i = 0; i < most; ++i) {
      TokenId next = ModeledExecutor::NextToken(request.adapter, request.prompt(), generated, kTestVocab);
      if (prng_.NextBelow(4) == 0) next = (next + 1) % kTestVocab;
      if (next == 0) return;  // it would end the request
      draft.push_back(next);
      generated.push_back(next);
    }
  }

 private:
  Prng prng_{17};
  std::map<RequestId, const Request*> requests_;
};

// A world with adapters of the given sizes in pages, generations 1, 2, ...
struct AdapterWorld : EngineWorld {
  AdapterWorld(std::int64_t device_pages, std::int64_t host_pages, SystemSpec scheduler,
               const std::vector<std::int64_t>& adapter_pages, bool prefix_cache = true,
               const std::string& cache = "lru", double host_bytes_per_second = 10e9,
               EngineObserver* observer = nullptr)
      : EngineWorld({.device_pages = device_pages,
                     .host_pages = host_pages,
                     .spec = scheduler,
                     .prefix_cache = prefix_cache,
                     .cache = cache,
                     .host_bytes_per_second = host_bytes_per_second,
                     .observer = observer}) {
    for (std::size_t i = 0; i < adapter_pages.size(); ++i) Load("adapter-" + std::to_string(i), adapter_pages[i]);
  }
  Result<RequestId> Submit(std::vector<TokenId> prompt, std::uint32_t adapter, std::int32_t max_tokens,
                           std::string tenant = {}, std::string prefix_domain = {}) {
    return EngineWorld::Submit(std::move(prompt), AdapterGeneration{adapter}, max_tokens, std::move(tenant),
                               std::move(prefix_domain));
  }
};

// The tokens a request must get, computed by the adapters that its outcome names.
inline std::vector<TokenId> ExpectedTokens(const EngineWorld::Outcome& outcome, const std::vector<TokenId>& prompt,
                                           std::int32_t max_tokens) {
  std::vector<TokenId> generated;
  while (static_cast<std::int32_t>(generated.size()) < max_tokens) {
    const std::size_t at = generated.size();
    const TokenId next = ModeledExecutor::NextToken(at < outcome.adapters.size() ? outcome.adapters[at] : outcome.last,
                                                    prompt, generated, kTestVocab);
    if (next == 0) break;
    generated.push_back(next);
  }
  return generated;
}

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
