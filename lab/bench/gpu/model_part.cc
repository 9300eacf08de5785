// The part of gpu_bench that times steps of a whole model with random weights, with and without adapters.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "gpu/counting_stream.h"
#include "lab/bench/gpu/gpu_bench.h"
#include "lab/bench/shapes.h"
#include "model/device_model.h"
#include "model/step_graphs.h"
#include "step/sample_batch.h"

namespace loramux {
namespace {

constexpr LoraTarget kTargets[] = {LoraTarget::kQ, LoraTarget::kK, LoraTarget::kV, LoraTarget::kO};

ModelConfig TinyShape() {
  ModelConfig config;
  config.hidden_size = 64;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.intermediate_size = 96;
  config.vocab_size = 200;
  config.max_position = 512;
  return config;
}

// A batch: `sequences` sequences that each compute `tokens` tokens at the end of `context` positions.
struct ModelCase {
  std::int64_t sequences, tokens, context;
  bool adapters;
};

class ModelWorld {
 public:
  explicit ModelWorld(GpuBench& bench)
      : bench_(bench),
        stream_(bench.stream(), counts_),
        config_(bench.check() ? TinyShape() : Shape7B()),
        tables_(bench.device(), config_) {
    config_.sliding_window.assign(static_cast<std::size_t>(config_.num_layers), 0);
    layout_ = {config_.num_layers, config_.num_kv_heads, config_.head_dim, kPageTokens, DType::kBF16};
    model_ = std::make_unique<DeviceModel>(config_, RandomWeights(), bench.device());
    DeviceModelLimits limits;
    limits.max_tokens = bench.Size(2048, 64);
    limits.max_sequences = limits.max_logit_rows = 64;
    limits.max_positions = config_.max_position;
    limits.max_rank = 128;
    limits.page_tokens = kPageTokens;
    const Status reserved = model_->Reserve(limits);
    CHECK(reserved.ok());
    pages_ = {bench.AllocateRandom(NumPages() * static_cast<std::int64_t>(layout_.PageBytes()) / 2),
              layout_.PageBytes()};
    for (std::int64_t page = 0; page < NumPages(); ++page) page_table_.push_back(static_cast<std::uint32_t>(page));
    AddAdapters();
  }

  const ModelConfig& config() const { return config_; }
  std::int64_t WeightBytes() const { return weight_bytes_; }
  // Bytes of the adapters that a batch of this many sequences uses.
  std::int64_t AdapterBytes(std::int64_t sequences) const {
    std::int64_t bytes = 0;
    for (std::int64_t i = 0; i < sequences; ++i) bytes += adapter_bytes_.at(static_cast<std::size_t>(i));
    return bytes;
  }
  std::int64_t KvBytes(const ModelCase& of) const {
    return of.sequences * of.context * static_cast<std::int64_t>(layout_.BytesPerToken());
  }

  // How steps with graphs were enqueued.
  StepWays ways() const { return graphs_.ways(); }
  // What the host has enqueued for all steps so far.
  std::int64_t calls() const { return counts_.enqueued(); }

  // Tokens that the step samples. `graphs`: records and replays it if it only decodes.
  std::vector<TokenId> Step(const ModelCase& of, bool graphs) {
    const std::vector<TokenId> tokens(static_cast<std::size_t>(of.tokens), 1);
    const std::int64_t pages_each = layout_.PagesFor(of.context);
    CHECK_LE(pages_each * of.sequences, NumPages());
    StepBatch step;
    std::vector<const DeviceLoraView*> adapters;
    for (std::int64_t i = 0; i < of.sequences; ++i) {
      StepSequence& sequence =
          step.Add({}, tokens, of.context - of.tokens,
                   std::span(page_table_)
                       .subspan(static_cast<std::size_t>(i * pages_each), static_cast<std::size_t>(pages_each)));
      sequence.prompt_tokens = of.context;
      step.Sample(sequence, {.temperature = 0}, {});
      if (!of.adapters) continue;
      step.UseAdapter(sequence, {.slot = static_cast<std::uint32_t>(i)});
      adapters.push_back(&tables_.View(static_cast<std::size_t>(i)));
    }
    StepResult result;
    const Status done =
        model_->Forward({stream_, layout_, pages_, graphs ? &graphs_ : nullptr}, step, adapters, result);
    CHECK(done.ok());
    std::vector<TokenId> ids;
    for (const SampledToken& token : result.tokens) ids.push_back(token.id);
    return ids;
  }

 private:
  static constexpr std::int64_t kPageTokens = 16;
  std::int64_t NumPages() const { return bench_.Size(4160, 64); }
  std::int64_t NumAdapters() const { return bench_.Size(64, 3); }

  DeviceWeights RandomWeights() {
    DeviceWeights weights;
    weights.dtype = DType::kBF16;
    const auto matrix = [&](std::int64_t n, std::int64_t k) {
      weight_bytes_ += n * k * 2;
      return DeviceMatrix(bench_.AllocateRandom(n * k), n, k, DType::kBF16);
    };
    const DeviceVector ones = {bench_.Upload(std::vector<float>(static_cast<std::size_t>(config_.hidden_size), 1.0f))};
    weights.embedding = matrix(config_.vocab_size, config_.hidden_size);
    weight_bytes_ = 0;  // a step reads some rows of the embedding
    weights.lm_head = matrix(config_.vocab_size, config_.hidden_size);
    weights.final_norm.weight = ones;
    for (std::int64_t i = 0; i < config_.num_layers; ++i) {
      DeviceWeights::Layer layer;
      layer.qkv = matrix(config_.QDim() + 2 * config_.KvDim(), config_.hidden_size);
      layer.o = matrix(config_.hidden_size, config_.QDim());
      layer.gate_up = matrix(2 * config_.intermediate_size, config_.hidden_size);
      layer.down = matrix(config_.hidden_size, config_.intermediate_size);
      layer.input_norm.weight = layer.mlp_norm.weight = ones;
      weights.layers.push_back(layer);
    }
    return weights;
  }

  // Adapters of q, k, v and o, with ranks of 8 to 128 and a mean of 45.
  void AddAdapters() {
    constexpr std::int32_t kRanks[] = {8, 16, 32, 64, 128, 16, 32, 64};
    for (std::int64_t i = 0; i < NumAdapters(); ++i) {
      const std::int32_t rank = bench_.check() ? 8 : kRanks[i % 8];
      std::vector<DeviceLoraRows> modules;
      std::vector<std::vector<const std::byte*>> rows;
      rows.reserve(static_cast<std::size_t>(config_.num_layers) * std::size(kTargets) * 2);
      std::int64_t bytes = 0;
      for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
        for (const LoraTarget target : kTargets) {
          const LinearShape shape = TargetShape(config_, target);
          const auto matrix = [&](std::int64_t elements) -> std::span<const std::byte* const> {
            const std::byte* base = bench_.AllocateRandom(rank * elements);
            std::vector<const std::byte*>& of_matrix = rows.emplace_back();
            for (std::int32_t row = 0; row < rank; ++row) of_matrix.push_back(base + row * elements * 2);
            bytes += rank * elements * 2;
            return of_matrix;
          };
          DeviceLoraRows module;
          module.layer = layer;
          module.target = target;
          module.scale = 1e-3f;
          module.a_rows = matrix(shape.in);
          module.b_rows = matrix(shape.out);
          modules.push_back(module);
        }
      }
      const Status placed = tables_.Place(bench_.stream(), static_cast<std::size_t>(i), DType::kBF16, modules);
      CHECK(placed.ok());
      bench_.Finish();
      adapter_bytes_.push_back(bytes);
    }
  }

  GpuBench& bench_;
  StreamCounts counts_;
  CountingStream stream_;
  StepGraphs graphs_;
  ModelConfig config_;
  KvLayout layout_;
  DeviceLoraTables tables_;
  std::int64_t weight_bytes_ = 0;  // bytes of weights that a step reads
  std::unique_ptr<DeviceModel> model_;
  PageArena pages_;
  std::vector<std::uint32_t> page_table_;
  std::vector<std::int64_t> adapter_bytes_;
};

struct StepCost {
  double seconds = 0;           // the median of some steps
  std::int64_t host_calls = 0;  // calls that enqueue one step
};

// Each step must sample the `expected` tokens, as far as products do not depend on the number of rows: a replayed step
// has a power of two of them.
StepCost CostOfStep(GpuBench& bench, ModelWorld& world, const ModelCase& of, bool graphs) {
  const std::vector<TokenId> expected = world.Step(of, graphs);
  if (graphs) world.Step(of, graphs);  // records it
  std::vector<double> seconds;
  std::int64_t calls = 0;
  for (int i = 0; i < (bench.check() ? 1 : 10); ++i) {
    const std::int64_t before = world.calls();
    const auto start = std::chrono::steady_clock::now();
    const std::vector<TokenId> found = world.Step(of, graphs);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    calls = world.calls() - before;
    CHECK(found == expected);
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], calls};
}

}  // namespace

void BenchModel(GpuBench& bench, double read_ceiling, GpuResults& results) {
  ModelWorld world(bench);
  std::vector<ModelCase> cases = {
      {1, 1, 512, false}, {1, 1, 512, true},    {16, 1, 512, false}, {16, 1, 512, true},     {64, 1, 512, false},
      {64, 1, 512, true}, {16, 1, 4096, false}, {16, 1, 4096, true}, {1, 2048, 2048, false}, {1, 2048, 2048, true}};
  if (bench.check()) cases = {{1, 1, 20, false}, {3, 1, 33, true}, {1, 20, 20, true}};
  for (const ModelCase& of : cases) {
    const StepCost eager = CostOfStep(bench, world, of, /*graphs=*/false);
    const bool decodes = of.tokens == 1;
    const std::int64_t replayed = world.ways().replayed;
    // What the server does: prompts are never recorded.
    const StepCost cost = decodes ? CostOfStep(bench, world, of, /*graphs=*/true) : eager;
    CHECK_EQ(world.ways().replayed > replayed, decodes);
    const double seconds = cost.seconds;
    const std::int64_t bytes =
        world.WeightBytes() + world.KvBytes(of) + (of.adapters ? world.AdapterBytes(of.sequences) : 0);
    AddRow(results, "model",
           {{"sequences", of.sequences},
            {"tokens_each", of.tokens},
            {"context", of.context},
            {"adapters", of.adapters ? of.sequences : 0},
            {"ms", 1e3 * seconds},
            {"host_calls", cost.host_calls},
            {"eager_ms", 1e3 * eager.seconds},
            {"eager_host_calls", eager.host_calls},
            {"tokens_per_s", static_cast<double>(of.sequences * of.tokens) / seconds},
            {"of_ceiling", static_cast<double>(bytes) / seconds / read_ceiling}});
  }
}

}  // namespace loramux
