// The forward pass on the emulated device against the CPU's, for each kind of model.
#include "model/device_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "gpu/device_for_test.h"
#include "gpu/emulated/emulated_device.h"
#include "gpu/open_device.h"
#include "model/cpu_ops.h"
#include "model/device_adapters_for_test.h"
#include "model/model.h"
#include "model/step_graphs.h"
#include "tensor/aligned_buffer.h"
#include "tensor/half_float.h"

namespace loramux::device_model_test {
namespace {

using Tokens = std::vector<TokenId>;
using Floats = std::vector<float>;

// ---- models

ModelConfig SmallConfig() {
  ModelConfig c;
  c.hidden_size = 64;
  c.num_layers = 2;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 16;
  c.intermediate_size = 96;
  c.vocab_size = 130;
  c.max_position = 1024;
  c.sliding_window = {0, 0};
  return c;
}

struct Kind {
  std::string name;
  ModelConfig config;
};

std::vector<Kind> Kinds() {
  std::vector<Kind> kinds;
  const auto add = [&](const std::string& name) -> ModelConfig& {
    kinds.push_back({name, SmallConfig()});
    return kinds.back().config;
  };
  add("llama");
  ModelConfig& biased = add("llama_biased");
  biased.attention_qkv_bias = biased.attention_output_bias = biased.mlp_bias = true;
  biased.num_heads = 3;
  biased.num_kv_heads = 1;
  biased.head_dim = 12;
  biased.hidden_size = 36;
  biased.intermediate_size = 50;
  biased.vocab_size = 97;
  ModelConfig& mistral = add("mistral");
  mistral.family = ModelFamily::kMistral;
  mistral.sliding_window = {9, 9};
  ModelConfig& qwen2 = add("qwen2");
  qwen2.family = ModelFamily::kQwen2;
  qwen2.attention_qkv_bias = true;
  qwen2.num_kv_heads = 4;
  ModelConfig& qwen3 = add("qwen3");
  qwen3.family = ModelFamily::kQwen3;
  qwen3.qk_norm = qwen3.tie_word_embeddings = true;
  qwen3.sliding_window = {0, 6};
  qwen3.head_dim = 32;
  qwen3.num_heads = 2;
  qwen3.num_kv_heads = 1;
  ModelConfig& dynamic = add("dynamic_rope");
  dynamic.rope.scaling = RopeConfig::Scaling::kDynamic;
  dynamic.rope.factor = 4;
  dynamic.max_position = dynamic.rope.original_max_position = 16;
  return kinds;
}

ModelConfig ConfigOf(const std::string& name) {
  for (const Kind& kind : Kinds()) {
    if (kind.name == name) return kind.config;
  }
  return {};
}

// Random weights with norms and biases that matter.
ModelWeights RandomWeights(const ModelConfig& config, DType dtype) {
  ModelWeights weights = RandomModelWeights(config, dtype, 1);
  Prng prng(2);
  const auto shake = [&](std::vector<float>& values) {
    for (float& value : values) value += static_cast<float>(prng.NextDouble() - 0.5);
  };
  for (LayerWeights& w : weights.layers) {
    for (auto* v : {&w.qkv_bias, &w.o_bias, &w.gate_up_bias, &w.down_bias, &w.input_norm, &w.post_attention_norm,
                    &w.q_norm, &w.k_norm}) {
      shake(*v);
    }
  }
  shake(weights.final_norm);
  return weights;
}

// ---- adapters

// Random pairs for some targets of all layers.
class HostAdapter {
 public:
  HostAdapter(const ModelConfig& config, std::int32_t rank, std::span<const LoraTarget> targets, DType dtype,
              std::uint64_t seed)
      : prng_(seed), dtype_(dtype) {
    view_.modules.resize(LoraView::Index(0, LoraTarget::kLmHead, config.num_layers) + 1);
    for (const LoraTarget target : targets) {
      for (std::int64_t layer = 0; layer < (target == LoraTarget::kLmHead ? 1 : config.num_layers); ++layer) {
        const LinearShape shape = TargetShape(config, target);
        // Ranks may differ between layers.
        const std::int32_t own = layer == 1 ? std::max(1, rank / 2) : rank;
        const float a_size = std::sqrt(3.0f / static_cast<float>(shape.in)),
                    b_size = std::sqrt(3.0f / static_cast<float>(own));
        const std::byte* const* a = Rows(own, shape.in, a_size);
        const std::byte* const* b = Rows(own, shape.out, b_size);
        view_.modules[LoraView::Index(layer, target, config.num_layers)] = {own, 0.5f, dtype, a, b};
      }
    }
  }

  const LoraView& view() const { return view_; }

 private:
  const std::byte* const* Rows(std::int32_t rank, std::int64_t count, float size) {
    std::vector<const std::byte*>& rows = rows_.emplace_back();
    for (std::int32_t j = 0; j < rank; ++j) {
      AlignedBuffer<std::byte>& row = memory_.emplace_back(count * static_cast<std::int64_t>(DTypeSize(dtype_)));
      for (std::int64_t i = 0; i < count; ++i) {
        StoreFromF32(dtype_, row.data(), i, static_cast<float>(2 * prng_.NextDouble() - 1) * size);
      }
      rows.push_back(row.data());
    }
    return rows.data();
  }

  Prng prng_;
  DType dtype_;
  LoraView view_;
  std::vector<AlignedBuffer<std::byte>> memory_;
  std::vector<std::vector<const std::byte*>> rows_;
};

constexpr LoraTarget kAll[] = {LoraTarget::kQ,    LoraTarget::kK,  LoraTarget::kV,    LoraTarget::kO,
                               LoraTarget::kGate, LoraTarget::kUp, LoraTarget::kDown, LoraTarget::kLmHead};
constexpr LoraTarget kSome[] = {LoraTarget::kQ, LoraTarget::kV, LoraTarget::kDown};

// ---- the rounding of a device

// The operations of the CPU, with the inputs of products rounded to `dtype` as on a device. With pages of 16-bit types
// a device also rounds q and the weights of attention.
class RoundedOps : public CpuOps {
 public:
  RoundedOps(const ModelConfig& config, CpuWorkspace& workspace, const CpuForward& forward, DType dtype)
      : CpuOps(config, workspace, forward), c_(config), dtype_(dtype) {}

  ForwardBuffers<Rows> Begin(const ForwardBatch<LoraView>& batch) {
    rows_ = batch.num_rows;
    return CpuOps::Begin(batch);
  }
  void Norm(Rows x, std::int64_t rows, const Vector& weight, Rows y) {
    CpuOps::Norm(x, rows, weight, y);
    Round(y, rows, c_.hidden_size);
  }
  void Attention(std::int64_t layer, std::int64_t window, Rows q, Rows out) {
    CpuOps::Attention(layer, window, q, out);
    Round(out, rows_, c_.QDim());
  }
  void SiluMul(Rows gate_up, Rows y) {
    CpuOps::SiluMul(gate_up, y);
    Round(y, rows_, c_.intermediate_size);
  }

 private:
  void Round(Rows x, std::int64_t rows, std::int64_t width) const {
    std::byte rounded[4];
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < width; ++i) {
        float& value = x.data[row * x.stride + i];
        StoreFromF32(dtype_, rounded, 0, value);
        value = LoadAsF32(dtype_, rounded, 0);
      }
    }
  }

  const ModelConfig& c_;
  const DType dtype_;
  std::int64_t rows_ = 0;
};

// ---- both sides

struct Sequence {
  Tokens tokens;
  int adapter = -1;
  std::int64_t position = 0;  // tokens that were computed
  std::vector<std::uint32_t> pages;
};

// What a step computes of a sequence.
struct Part {
  std::size_t sequence;
  std::int64_t tokens;
};

// A model on the CPU and its copy on the device, with adapters, sequences and pages on both sides. Free pages are NaN.
class Twins {
 public:
  Twins(const ModelConfig& config, DType dtype, DType kv_dtype, bool batch_invariant = false)
      : config_(config),
        layout_{config.num_layers, config.num_kv_heads, config.head_dim, 8, kv_dtype},
        host_(config, RandomWeights(config, dtype)),
        workspace_(config_),
        host_pages_(static_cast<std::int64_t>(layout_.PageBytes()) * kPages),
        rounded_pages_(host_pages_.capacity()) {
    device_ = gpu::OpenDeviceForTest({.memory = std::int64_t{256} << 20, .batch_invariant = batch_invariant});
    stream_ = device_->CreateStream().value();
    model_ = DeviceModel::Upload(host_, *device_).value();
    pages_ = device_->Allocate("pages", static_cast<std::int64_t>(layout_.PageBytes()) * kPages).value();
    stream_->Fill(pages_->base(), 0xff, static_cast<std::size_t>(pages_->size()));
    std::memset(host_pages_.data(), 0xff, static_cast<std::size_t>(host_pages_.capacity()));
    std::memset(rounded_pages_.data(), 0xff, static_cast<std::size_t>(rounded_pages_.capacity()));
    adapters_ = std::make_unique<DeviceAdaptersForTest>(*device_, *stream_, config_);
  }

  const ModelConfig& config() const { return config_; }
  Device& device() { return *device_; }
  DeviceStream& stream() { return *stream_; }
  DeviceModel& model() { return *model_; }
  // Records and replays from now on.
  void Record() { graphs_ = std::make_unique<StepGraphs>(); }
  StepGraphs& graphs() { return *graphs_; }
  Sequence& sequence(std::size_t index) { return sequences_[index]; }

  int AddAdapter(std::int32_t rank, std::span<const LoraTarget> targets, DType dtype) {
    host_adapters_.push_back(std::make_unique<HostAdapter>(config_, rank, targets, dtype, 10 + host_adapters_.size()));
    device_adapters_.push_back(adapters_->Copy(host_adapters_.back()->view()));
    return static_cast<int>(host_adapters_.size()) - 1;
  }

  std::size_t AddSequence(std::int64_t tokens, int adapter) {
    Sequence& sequence = sequences_.emplace_back();
    sequence.adapter = adapter;
    for (std::int64_t i = 0; i < tokens; ++i) {
      sequence.tokens.push_back(static_cast<TokenId>(prng_.NextBelow(static_cast<std::uint64_t>(config_.vocab_size))));
    }
    return sequences_.size() - 1;
  }

  // All rows need logits unless the options say what else they are for.
  template <typename View>
  std::vector<SequenceChunkOf<View>> Chunks(std::span<const Part> parts, const std::vector<const View*>& adapters,
                                            std::int32_t scored = 0) {
    std::vector<SequenceChunkOf<View>> chunks;
    for (const Part& part : parts) {
      Sequence& s = sequences_[part.sequence];
      while (static_cast<std::int64_t>(s.pages.size()) < layout_.PagesFor(s.position + part.tokens)) {
        // Scattered over the arena.
        s.pages.push_back(next_page_ * 37 % kPages);
        CHECK(++next_page_ <= kPages);
      }
      chunks.push_back(
          {std::span(s.tokens).subspan(static_cast<std::size_t>(s.position), static_cast<std::size_t>(part.tokens)),
           s.position, s.pages.data(), s.adapter < 0 ? nullptr : adapters[static_cast<std::size_t>(s.adapter)],
           static_cast<std::int32_t>(part.tokens) - scored, static_cast<std::int64_t>(s.tokens.size()), 0, scored});
    }
    return chunks;
  }

  Floats ForwardOnHost(std::span<const Part> parts, const ForwardOptions& options = {}, std::int32_t scored = 0) {
    const auto chunks = Chunks<LoraView>(parts, HostViews(), scored);
    host_.Forward({Backend::kCpu, &threads_}, chunks, layout_, {host_pages_.data(), layout_.PageBytes()}, options);
    if (scored > 0) return {};
    return {host_.logits().begin(), host_.logits().end()};
  }

  // As a device rounds.
  Floats ForwardRounded(std::span<const Part> parts, DType dtype) {
    const auto chunks = Chunks<LoraView>(parts, HostViews());
    workspace_.batch.Describe(chunks);
    const KernelContext context = {Backend::kCpu, &threads_};
    const PageArena arena = {rounded_pages_.data(), layout_.PageBytes()};
    const CpuForward forward{context, layout_, arena};
    RoundedOps ops(config_, workspace_, forward, dtype);
    ForwardPass<RoundedOps>(config_, host_.weights(), ops).Run(workspace_.batch, nullptr);
    const auto count = static_cast<std::ptrdiff_t>(workspace_.batch.num_logit_rows * config_.vocab_size);
    return {workspace_.logits.data(), workspace_.logits.data() + count};
  }

  Result<TimeNs> TryOnDevice(std::span<const Part> parts, const ForwardOptions& options, std::int32_t scored = 0) {
    const auto chunks = Chunks<DeviceLoraView>(parts, device_adapters_, scored);
    return model_->Forward(*stream_, chunks, layout_, {pages_->base(), layout_.PageBytes()}, options, graphs_.get());
  }

  Floats ForwardOnDevice(std::span<const Part> parts, const ForwardOptions& options = {}, std::int32_t scored = 0) {
    const Result<TimeNs> result = TryOnDevice(parts, options, scored);
    EXPECT_TRUE(result.ok()) << result.error().message;
    Floats logits;
    if (scored > 0) return {};
    EXPECT_TRUE(model_->CopyLogits(*stream_, logits).ok());
    return logits;
  }

  void Advance(std::span<const Part> parts) {
    for (const Part& part : parts) sequences_[part.sequence].position += part.tokens;
  }

 private:
  static constexpr std::uint32_t kPages = 128;

  std::vector<const LoraView*> HostViews() const {
    std::vector<const LoraView*> views;
    for (const auto& adapter : host_adapters_) views.push_back(&adapter->view());
    return views;
  }

  ModelConfig config_;
  KvLayout layout_;
  Model host_;
  CpuWorkspace workspace_;  // of ForwardRounded
  AlignedBuffer<std::byte> host_pages_, rounded_pages_;
  ThreadPool threads_{2};
  Prng prng_{3};
  std::vector<std::unique_ptr<HostAdapter>> host_adapters_;
  std::vector<Sequence> sequences_;
  std::uint32_t next_page_ = 0;
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<StepGraphs> graphs_;
  std::unique_ptr<DeviceModel> model_;
  std::unique_ptr<Arena> pages_;
  std::unique_ptr<DeviceAdaptersForTest> adapters_;
  std::vector<const DeviceLoraView*> device_adapters_;
};

// Five sequences: adapters of rank 8, 64 and 13, one of them twice, and the base model. The steps mix whole prompts,
// chunks, and single tokens.
struct Scenario {
  std::vector<std::vector<Part>> steps;

  explicit Scenario(Twins& twins, DType adapter_dtype) {
    const int r8 = twins.AddAdapter(8, kAll, adapter_dtype);
    const int r64 = twins.AddAdapter(64, kSome, adapter_dtype);
    const int r13 = twins.AddAdapter(13, kAll, adapter_dtype);
    twins.AddSequence(90, r8);
    twins.AddSequence(30, r8);
    twins.AddSequence(23, r64);
    twins.AddSequence(20, -1);
    twins.AddSequence(12, r13);
    steps = {{{0, 70}, {2, 20}},
             {{0, 15}, {1, 28}, {2, 1}, {3, 17}, {4, 1}},
             {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 9}},
             {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}},
             {{0, 3}, {3, 1}, {4, 1}}};
  }
};

// ---- comparing

struct Errors {
  std::vector<double> rows;  // relative to the row's length
  std::int64_t other_argmax = 0;
  bool explained = true;  // the margin of every other argmax is below twice the row's largest error

  void Add(const Floats& expected, const Floats& found, std::int64_t vocab) {
    ASSERT_EQ(expected.size(), found.size());
    for (std::size_t first = 0; first < expected.size(); first += static_cast<std::size_t>(vocab)) {
      const auto e = std::span(expected).subspan(first, static_cast<std::size_t>(vocab));
      const auto f = std::span(found).subspan(first, static_cast<std::size_t>(vocab));
      double error = 0, length = 0, largest = 0;
      for (std::size_t i = 0; i < e.size(); ++i) {
        const double difference = static_cast<double>(f[i]) - static_cast<double>(e[i]);
        error += difference * difference;
        length += static_cast<double>(e[i]) * static_cast<double>(e[i]);
        largest = std::max(largest, std::abs(difference));
      }
      ASSERT_FALSE(std::isnan(error));
      rows.push_back(std::sqrt(error / length));
      const auto best = std::ranges::max_element(e), other = std::ranges::max_element(f);
      const auto index = other - f.begin();
      if (index == best - e.begin()) continue;
      ++other_argmax;
      if (static_cast<double>(*best - e[static_cast<std::size_t>(index)]) > 2 * largest) explained = false;
    }
  }
  double Median() {
    std::ranges::sort(rows);
    return rows[rows.size() / 2];
  }
  double Largest() const { return *std::ranges::max_element(rows); }
};

class KindTest : public ::testing::TestWithParam<std::string> {};

TEST_P(KindTest, Float32IsTheCpus) {
  Twins twins(ConfigOf(GetParam()), DType::kF32, DType::kF32);
  const Scenario scenario(twins, DType::kF32);
  Errors errors;
  for (const std::vector<Part>& parts : scenario.steps) {
    ASSERT_NO_FATAL_FAILURE(
        errors.Add(twins.ForwardOnHost(parts), twins.ForwardOnDevice(parts), twins.config().vocab_size));
    twins.Advance(parts);
  }
  EXPECT_LE(errors.Largest(), 2e-5);
}

// These models have random weights and strong adapters, so that they make rounding errors larger than trained ones do.
TEST_P(KindTest, SixteenBitIsNearTheCpus) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(DTypeName(dtype));
    Twins twins(ConfigOf(GetParam()), dtype, dtype);
    const Scenario scenario(twins, dtype);
    Errors errors;
    for (const std::vector<Part>& parts : scenario.steps) {
      ASSERT_NO_FATAL_FAILURE(
          errors.Add(twins.ForwardOnHost(parts), twins.ForwardOnDevice(parts), twins.config().vocab_size));
      twins.Advance(parts);
    }
    const double scale = dtype == DType::kBF16 ? 1 : 0.125;  // three bits more
    EXPECT_LE(errors.Largest(), 4e-2 * scale);
    EXPECT_LE(errors.Median(), 1e-2 * scale);
    EXPECT_TRUE(errors.explained);
  }
}

// With pages of float32, rounding the inputs of products is all that differs from float32. What remains are values that
// lie between two neighbours and go the other way.
TEST_P(KindTest, SixteenBitRoundsTheInputsOfProducts) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(DTypeName(dtype));
    Twins twins(ConfigOf(GetParam()), dtype, DType::kF32);
    const Scenario scenario(twins, dtype);
    Errors errors;
    for (const std::vector<Part>& parts : scenario.steps) {
      ASSERT_NO_FATAL_FAILURE(
          errors.Add(twins.ForwardRounded(parts, dtype), twins.ForwardOnDevice(parts), twins.config().vocab_size));
      twins.Advance(parts);
    }
    // f16 has more neighbours to choose from: such values are more, and each matters less.
    EXPECT_LE(errors.Median(), dtype == DType::kBF16 ? 1e-6 : 5e-4);
    EXPECT_LE(errors.Largest(), dtype == DType::kBF16 ? 1e-2 : 2e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, KindTest,
                         ::testing::Values("llama", "llama_biased", "mistral", "qwen2", "qwen3", "dynamic_rope"),
                         [](const auto& info) { return info.param; });

// Each sequence alone, in one piece, gives the bits that it has in the mixed batches of the scenario.
TEST(DeviceModelBatches, ChangeNoBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(DTypeName(dtype));
    Twins together(SmallConfig(), dtype, dtype, /*batch_invariant=*/true), alone(SmallConfig(), dtype, dtype, true);
    const Scenario scenario(together, dtype), same(alone, dtype);
    const auto vocab = static_cast<std::size_t>(together.config().vocab_size);
    std::map<std::size_t, Floats> mixed;
    for (const std::vector<Part>& parts : scenario.steps) {
      const Floats logits = together.ForwardOnDevice(parts);
      std::size_t at = 0;
      for (const Part& part : parts) {
        const std::size_t size = static_cast<std::size_t>(part.tokens) * vocab;
        mixed[part.sequence].insert(mixed[part.sequence].end(), logits.begin() + static_cast<std::ptrdiff_t>(at),
                                    logits.begin() + static_cast<std::ptrdiff_t>(at + size));
        at += size;
      }
      together.Advance(parts);
    }
    for (const auto& [sequence, expected] : mixed) {
      const Part whole = {sequence, static_cast<std::int64_t>(expected.size() / vocab)};
      const Floats found = alone.ForwardOnDevice({&whole, 1});
      EXPECT_TRUE(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) == 0)
          << "sequence " << sequence;
    }
  }
}

// Allows every third token.
class EveryThird final : public TokenConstraint {
 public:
  EveryThird() {
    for (std::size_t id = 0; id < 96; id += 3) mask_[id / 32] |= 1u << (id % 32);
  }
  void Advance(TokenId /*token*/) override {}
  std::span<const std::uint32_t> Allowed() override { return mask_; }
  const Error* failure() const override { return nullptr; }

 private:
  std::uint32_t mask_[3] = {};
};

// Tokens, scores and pooled states are what the CPU gives.
TEST(DeviceModelResults, AreTheCpus) {
  Twins twins(SmallConfig(), DType::kF32, DType::kF32);
  const int adapter = twins.AddAdapter(8, kAll, DType::kF32);
  twins.AddSequence(80, adapter);
  twins.AddSequence(3, -1);
  const Part parts[] = {{0, 80}, {1, 3}};

  SampleBatch samples;
  for (int row = 0; row < 83; ++row) {
    SamplingParams params;
    params.seed = static_cast<std::uint64_t>(row);
    params.temperature = row % 3 == 0 ? 0.0f : 0.8f;
    if (row % 4 == 1) params.top_k = 5;
    if (row % 5 == 0) params.top_logprobs = 2;
    if (row % 7 == 0) params.repetition_penalty = 1.5f;
    if (row % 8 == 0) params.logit_bias = {{row, 3.0f}};
    if (row % 20 == 0) params.top_logprobs = 25;  // more than the device serves
    const Tokens generated = {row, 1, 2}, banned = {row + 1};
    samples.Add(params, {.prompt = generated, .generated = generated, .banned = banned},
                row % 9 == 0 ? std::make_shared<EveryThird>() : nullptr);
  }
  PoolBatch pools;
  pools.Add(0, 80, {});
  const std::vector<double> before(static_cast<std::size_t>(twins.config().hidden_size), 0.5);
  pools.Add(81, 2, before);
  std::vector<SampledToken> tokens[2];
  std::vector<double> pooled[2];
  const auto options = [&](int side) {
    return ForwardOptions{.samples = &samples, .tokens = &tokens[side], .pools = &pools, .pooled = &pooled[side]};
  };
  twins.ForwardOnHost(parts, options(0));
  twins.ForwardOnDevice(parts, options(1));
  ASSERT_EQ(tokens[1].size(), tokens[0].size());
  for (std::size_t i = 0; i < tokens[0].size(); ++i) {
    EXPECT_EQ(tokens[1][i].id, tokens[0][i].id) << i;
    EXPECT_NEAR(tokens[1][i].logprob, tokens[0][i].logprob, 1e-4);
    EXPECT_EQ(tokens[1][i].top_logprobs.size(), tokens[0][i].top_logprobs.size());
  }
  ASSERT_EQ(pooled[1].size(), pooled[0].size());
  for (std::size_t i = 0; i < pooled[0].size(); ++i) EXPECT_NEAR(pooled[1][i], pooled[0][i], 1e-3);

  // Two of three rows are scored, in blocks.
  std::vector<ScoreRow> rows;
  for (int row = 0; row < 4; ++row) rows.push_back({row, 2});
  std::vector<ScoredToken> scores[2];
  SampleBatch one;
  for (int row = 0; row < 79; ++row) one.Add({.temperature = 0}, {});
  const auto scored = [&](int side) {
    return ForwardOptions{.samples = &one, .tokens = &tokens[side], .score_rows = rows, .scores = &scores[side]};
  };
  twins.ForwardOnHost(parts, scored(0), 2);
  twins.ForwardOnDevice(parts, scored(1), 2);
  for (std::size_t i = 0; i < tokens[0].size(); ++i) EXPECT_EQ(tokens[1][i].id, tokens[0][i].id) << i;
  ASSERT_EQ(scores[1].size(), scores[0].size());
  for (std::size_t i = 0; i < scores[0].size(); ++i) {
    EXPECT_EQ(scores[1][i].rank, scores[0][i].rank);
    EXPECT_NEAR(scores[1][i].logprob, scores[0][i].logprob, 1e-4);
  }
}

TEST(DeviceModelMemory, ReserveLeavesNothingToAllocate) {
  Twins twins(SmallConfig(), DType::kBF16, DType::kBF16);
  const Scenario scenario(twins, DType::kBF16);
  ASSERT_TRUE(twins.model()
                  .Reserve({.max_tokens = 128,
                            .max_sequences = 8,
                            .max_logit_rows = 128,
                            .max_positions = 128,
                            .max_rank = 64,
                            .page_tokens = 8})
                  .ok());
  const std::int64_t free = twins.device().FreeMemory();
  EXPECT_GT(twins.model().WorkspaceBytes(), 0);
  for (const std::vector<Part>& parts : scenario.steps) {
    twins.ForwardOnDevice(parts);
    twins.Advance(parts);
    EXPECT_EQ(twins.device().FreeMemory(), free);
  }
}

TEST(DeviceModelMemory, ReserveSaysWhatFits) {
  Twins twins(SmallConfig(), DType::kBF16, DType::kBF16);
  const DeviceModelLimits limits = {
      .max_tokens = 10'000'000, .max_sequences = 8, .max_logit_rows = 8, .max_positions = 128, .max_rank = 8};
  const Status status = twins.model().Reserve(limits);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kResourceExhausted);
  const std::string& message = status.error().message;
  const std::size_t at = message.find("batches of up to ", 30);
  ASSERT_NE(at, std::string::npos) << message;
  DeviceModelLimits less = limits;
  less.max_tokens = std::stoll(message.substr(at + 17));
  EXPECT_GT(less.max_tokens, 1000);
  EXPECT_TRUE(twins.model().Reserve(less).ok());
  ++less.max_tokens;
  EXPECT_FALSE(twins.model().Reserve(less).ok());
}

TEST(DeviceModelMemory, WeightsThatDoNotFitAreAnError) {
  const Model host(SmallConfig(), RandomWeights(SmallConfig(), DType::kF32));
  const auto device = gpu::OpenDevice("emulated", {.memory = 100'000}).value();
  const auto model = DeviceModel::Upload(host, *device);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(model.error().message.find("the model's weights"), std::string::npos);
}

// At whatever launch of a step.
TEST(DeviceModelFailures, ALostDeviceIsAnError) {
  for (int launches = 0; launches < 25; launches += 6) {
    Twins twins(SmallConfig(), DType::kBF16, DType::kBF16);
    twins.AddSequence(4, twins.AddAdapter(8, kAll, DType::kBF16));
    dynamic_cast<gpu::EmulatedDevice&>(twins.device()).LoseAfter(launches);
    const Part part = {0, 4};
    SampleBatch samples;
    for (int row = 0; row < 4; ++row) samples.Add({.temperature = 0.5f}, {});
    std::vector<SampledToken> tokens;
    const Result<TimeNs> result = twins.TryOnDevice({&part, 1}, {.samples = &samples, .tokens = &tokens});
    ASSERT_FALSE(result.ok()) << launches;
    EXPECT_EQ(result.error().code, ErrorCode::kUnavailable);
    EXPECT_FALSE(twins.TryOnDevice({&part, 1}, {}).ok());  // for good
  }
}

// Counts the waits that are enqueued.
class CountingEvents final : public LayerEvents {
 public:
  explicit CountingEvents(std::vector<std::int64_t>& waits) : waits_(waits) {}
  void EnqueueWait(DeviceStream& /*stream*/, std::int64_t layer) const override { waits_.push_back(layer); }

 private:
  std::vector<std::int64_t>& waits_;
};

TEST(DeviceModelArrivals, EventsAreWaitedForByTheStream) {
  Twins twins(SmallConfig(), DType::kF32, DType::kF32);
  twins.AddSequence(4, -1);
  std::vector<std::int64_t> waits;
  const auto with_events = std::make_shared<LayerProgress>(2);
  with_events->AttachEvents(std::make_unique<CountingEvents>(waits));
  const auto by_the_host = std::make_shared<LayerProgress>(2);
  by_the_host->Publish(2);
  const std::shared_ptr<const LayerProgress> arrivals[] = {with_events, by_the_host};
  const Part part = {0, 4};
  twins.ForwardOnDevice({&part, 1}, {.arrivals = arrivals});
  EXPECT_EQ(waits, (std::vector<std::int64_t>{0, 1}));
}

// ---- recorded steps

// Two equal devices: one enqueues launch by launch, the other records and replays. Adapters 0 to 2 have ranks 8, 64 and
// 13, the last one other targets.
class Replay {
 public:
  explicit Replay(DType dtype = DType::kBF16, bool batch_invariant = false)
      : eager_(SmallConfig(), dtype, dtype, batch_invariant), replays_(SmallConfig(), dtype, dtype, batch_invariant) {
    for (Twins* twins : {&eager_, &replays_}) {
      twins->AddAdapter(8, kAll, DType::kBF16);
      twins->AddAdapter(64, kAll, DType::kF32);
      twins->AddAdapter(13, kSome, DType::kBF16);
    }
    replays_.Record();
  }

  Twins& replays() { return replays_; }
  StepWays ways() { return replays_.graphs().ways(); }

  void Reserve(std::int64_t max_tokens) {
    const DeviceModelLimits limits = {.max_tokens = max_tokens,
                                      .max_sequences = 8,
                                      .max_logit_rows = 8,
                                      .max_positions = 512,
                                      .max_rank = 64,
                                      .page_tokens = 8};
    ASSERT_TRUE(eager_.model().Reserve(limits).ok() && replays_.model().Reserve(limits).ok());
  }

  // A sequence of which `computed` tokens are computed.
  void AddSequence(std::int64_t computed, int adapter) {
    std::size_t index = 0;
    for (Twins* twins : {&eager_, &replays_}) index = twins->AddSequence(computed + 40, adapter);
    Step({{index, computed}});
  }

  // Both sides' logits and tokens are the same to the bit.
  void Step(const std::vector<Part>& parts, const SampleBatch* samples = nullptr) {
    std::vector<SampledToken> tokens[2];
    Floats logits[2];
    for (int side = 0; side < 2; ++side) {
      Twins& twins = side == 0 ? eager_ : replays_;
      ForwardOptions options;
      options.samples = samples;
      if (samples != nullptr) options.tokens = &tokens[side];
      logits[side] = twins.ForwardOnDevice(parts, options);
      twins.Advance(parts);
    }
    ASSERT_EQ(logits[0].size(), logits[1].size());
    ASSERT_EQ(std::memcmp(logits[0].data(), logits[1].data(), logits[0].size() * sizeof(float)), 0);
    ASSERT_EQ(tokens[0].size(), tokens[1].size());
    for (std::size_t i = 0; i < tokens[0].size(); ++i) {
      EXPECT_EQ(tokens[0][i].id, tokens[1][i].id);
      EXPECT_EQ(tokens[0][i].logprob, tokens[1][i].logprob);
      EXPECT_EQ(tokens[0][i].top_logprobs.size(), tokens[1][i].top_logprobs.size());
    }
  }

 private:
  Twins eager_, replays_;
};

void ExpectWays(const StepWays& found, const StepWays& before, const StepWays& more) {
  EXPECT_EQ(found.eager - before.eager, more.eager);
  EXPECT_EQ(found.recorded - before.recorded, more.recorded);
  EXPECT_EQ(found.replayed - before.replayed, more.replayed);
}

// Samples of this many rows that are not all greedy.
SampleBatch Samples(int rows, std::uint64_t seed) {
  SampleBatch samples;
  for (int row = 0; row < rows; ++row) {
    SamplingParams params;
    params.seed = seed * 100 + static_cast<std::uint64_t>(row);
    params.temperature = (seed + static_cast<std::uint64_t>(row)) % 3 == 0 ? 0.0f : 0.3f * static_cast<float>(seed);
    params.top_p = seed % 2 == 0 ? 0.7f : 1.0f;
    params.top_k = static_cast<int>(seed);
    params.top_logprobs = static_cast<int>(seed);
    samples.Add(params, {});
  }
  return samples;
}

// Mixes of adapters of other ranks and types, three or four rows, and sampling parameters change from step to step.
TEST(RecordedSteps, AGraphServesEveryMix) {
  Replay world;
  world.Reserve(64);
  for (const int adapter : {0, 0, 1, 2, -1, -1, 1}) world.AddSequence(9 + adapter, adapter);
  const StepWays before = world.ways();
  const std::vector<std::vector<std::size_t>> mixes = {{0, 1, 2, 3}, {2, 6, 4},    {4, 5, 3, 2}, {0, 1, 4},
                                                       {5, 3, 4, 0}, {1, 0, 5, 2}, {6, 2, 3},    {1, 3, 4},
                                                       {3, 4, 5, 1}, {3, 2, 6, 1}};
  std::uint64_t seed = 0;
  for (const std::vector<std::size_t>& mix : mixes) {
    std::vector<Part> parts;
    for (const std::size_t sequence : mix) parts.push_back({sequence, 1});
    const SampleBatch samples = Samples(static_cast<int>(mix.size()), ++seed);
    ASSERT_NO_FATAL_FAILURE(world.Step(parts, &samples));
  }
  // One graph for ranks up to 64, and one for ranks up to 16.
  ExpectWays(world.ways(), before, {.eager = 2, .recorded = 2, .replayed = 6});
  EXPECT_EQ(world.replays().graphs().size(), 2u);
}

TEST(RecordedSteps, KeepTheMemoryOfReserve) {
  Replay world;
  world.Reserve(8);
  for (int i = 0; i < 7; ++i) world.AddSequence(5, i % 3);
  const std::int64_t free = world.replays().device().FreeMemory();
  std::vector<Part> parts;
  for (std::size_t i = 0; i < 7; ++i) parts.push_back({i, 1});
  for (int step = 0; step < 4; ++step) ASSERT_NO_FATAL_FAILURE(world.Step(parts));
  EXPECT_EQ(world.replays().device().FreeMemory(), free);
  EXPECT_EQ(world.ways().replayed, 2);
}

TEST(RecordedSteps, WithAndWithoutAdaptersAlternate) {
  Replay world(DType::kF32, /*batch_invariant=*/true);
  world.Reserve(64);
  for (const int adapter : {0, -1}) world.AddSequence(9, adapter);
  const StepWays before = world.ways();
  for (int step = 0; step < 4; ++step) {
    for (const std::size_t sequence : {0, 1}) ASSERT_NO_FATAL_FAILURE(world.Step({{sequence, 1}}));
  }
  ExpectWays(world.ways(), before, {.eager = 2, .recorded = 2, .replayed = 4});
}

// A graph has room for a power of two of attention's chunks; those behind the first chunk need another one.
TEST(RecordedSteps, ContextsGrowBeyondAChunk) {
  Replay world;
  world.Reserve(300);
  world.AddSequence(252, 0);
  world.AddSequence(6, -1);
  const StepWays before = world.ways();
  for (int step = 0; step < 8; ++step) ASSERT_NO_FATAL_FAILURE(world.Step({{0, 1}, {1, 1}}));
  ExpectWays(world.ways(), before, {.eager = 2, .recorded = 2, .replayed = 4});
}

// An adapter of further targets, a larger rank and a longer batch each make the graphs so far useless.
TEST(RecordedSteps, AreForgottenWhenMemoryOrTargetsChange) {
  Replay world;
  world.AddSequence(6, 2);  // kSome
  world.AddSequence(6, -1);
  const auto decode = [&](std::size_t sequence, const StepWays& more) {
    const StepWays before = world.ways();
    for (int step = 0; step < 3; ++step) ASSERT_NO_FATAL_FAILURE(world.Step({{sequence, 1}}));
    ExpectWays(world.ways(), before, more);
  };
  decode(0, {1, 1, 1});
  decode(1, {1, 1, 1});
  world.AddSequence(60, -1);  // more rows than before
  decode(0, {1, 1, 1});
  world.AddSequence(6, 0);  // a smaller rank, other targets
  decode(3, {1, 1, 1});
  decode(0, {0, 0, 3});
  world.AddSequence(6, 1);  // a larger rank: other memory
  decode(0, {1, 1, 1});
  decode(1, {1, 1, 1});
}

// What the host samples, and masks of grammars, come after the graph.
TEST(RecordedSteps, TheHostSamplesBehindTheGraph) {
  Replay world;
  world.Reserve(64);
  world.AddSequence(9, 0);
  world.AddSequence(9, 1);
  const StepWays before = world.ways();
  for (int step = 0; step < 6; ++step) {
    SampleBatch samples;
    SamplingParams params;
    params.temperature = 0.7f;
    params.seed = static_cast<std::uint64_t>(step);
    samples.Add(params, {}, step % 2 == 0 ? std::make_shared<EveryThird>() : nullptr);
    params.top_logprobs = step % 2 == 0 ? 3 : 25;
    samples.Add(params, {});
    ASSERT_NO_FATAL_FAILURE(world.Step({{0, 1}, {1, 1}}, &samples));
  }
  ExpectWays(world.ways(), before, {.eager = 1, .recorded = 1, .replayed = 4});
}

// Penalties, biases and bans have arrays of any length.
TEST(RecordedSteps, ListsOfTokensGrow) {
  Replay world;
  world.Reserve(64);
  world.AddSequence(9, 0);
  const StepWays before = world.ways();
  Tokens generated;
  for (int step = 0; step < 8; ++step) {
    generated.push_back(step * 7);
    SamplingParams params;
    params.temperature = 0.9f;
    params.repetition_penalty = 1.3f;
    params.logit_bias = {{step, 2.0f}};
    SampleBatch samples;
    samples.Add(params, {.prompt = {}, .generated = generated, .banned = {}});
    ASSERT_NO_FATAL_FAILURE(world.Step({{0, 1}}, &samples));
  }
  // Lists of 1, 2, 3 to 4, and 5 to 8 tokens.
  ExpectWays(world.ways(), before, {.eager = 4, .recorded = 2, .replayed = 2});
}

TEST(RecordedSteps, WithArrivalsAreEager) {
  Twins twins(SmallConfig(), DType::kF32, DType::kF32);
  twins.Record();
  twins.AddSequence(20, -1);
  std::vector<std::int64_t> waits;
  const auto arriving = std::make_shared<LayerProgress>(2);
  arriving->AttachEvents(std::make_unique<CountingEvents>(waits));
  const std::shared_ptr<const LayerProgress> arrivals[] = {arriving};
  const Part part = {0, 1};
  for (int step = 0; step < 3; ++step) twins.ForwardOnDevice({&part, 1}, {.arrivals = arrivals});
  EXPECT_EQ(waits.size(), 6u);
  ExpectWays(twins.graphs().ways(), {}, {.eager = 3});
  arriving->Publish(2);
  for (int step = 0; step < 3; ++step) twins.ForwardOnDevice({&part, 1}, {.arrivals = arrivals});
  EXPECT_EQ(waits.size(), 6u);
  ExpectWays(twins.graphs().ways(), {}, {.eager = 4, .recorded = 1, .replayed = 1});
}

TEST(RecordedSteps, ALostDeviceIsAnError) {
  for (int steps = 1; steps < 4; ++steps) {  // lost before the recording, before the first replay, and later
    for (const int launches : {0, 9}) {
      Twins twins(SmallConfig(), DType::kBF16, DType::kBF16);
      twins.Record();
      twins.AddSequence(20, twins.AddAdapter(8, kAll, DType::kBF16));
      const Part part = {0, 1};
      for (int i = 0; i < steps; ++i) twins.ForwardOnDevice({&part, 1});
      dynamic_cast<gpu::EmulatedDevice&>(twins.device()).LoseAfter(launches);
      for (int i = 0; i < 2; ++i) {
        const Result<TimeNs> result = twins.TryOnDevice({&part, 1}, {});
        ASSERT_FALSE(result.ok()) << steps << ", " << launches;
        EXPECT_EQ(result.error().code, ErrorCode::kUnavailable);
      }
    }
  }
}

// The shape that was used least lately goes first.
TEST(RecordedSteps, HaveABound) {
  const auto device = gpu::OpenDevice("emulated", {}).value();
  const auto stream = device->CreateStream().value();
  StepGraphs graphs;
  int calls = 0;
  const auto run = [&](std::int64_t rows) {
    const GraphShape shape = {.rows = rows};
    ASSERT_TRUE(graphs.Run(*stream, shape, 1, false, [&] { ++calls; }).ok());
  };
  for (std::int64_t rows = 0; rows < 60; ++rows) {
    for (int i = 0; i < 3; ++i) run(rows);
    run(0);
  }
  EXPECT_EQ(graphs.size(), StepGraphs::kMaxGraphs);
  EXPECT_EQ(calls, 120);
  run(59);
  run(0);
  EXPECT_EQ(calls, 120);
  run(1);
  EXPECT_EQ(calls, 121);
}

}  // namespace
}  // namespace loramux::device_model_test
