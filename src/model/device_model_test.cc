// The forward pass on the emulated device against the CPU's, for each kind of model.
#include "model/device_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "model/base_matrix.h"
#include "model/device_model_world_for_test.h"
#include "model/step_parts_for_test.h"

namespace loramux::device_model_test {
namespace {

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
  qwen3.qk_norm = QkNorm::kHeads;
  qwen3.tie_word_embeddings = true;
  qwen3.sliding_window = {0, 6};
  qwen3.head_dim = 32;
  qwen3.num_heads = 2;
  qwen3.num_kv_heads = 1;
  ModelConfig& dynamic = add("dynamic_rope");
  dynamic.rope.scaling = RopeConfig::Scaling::kDynamic;
  dynamic.rope.factor = 4;
  dynamic.max_position = dynamic.rope.original_max_position = 16;
  kinds.push_back({"experts", SmallConfigWithExperts()});
  kinds.push_back({"delta", SmallHybridConfig()});
  kinds.push_back({"mamba", SmallHybridConfig(/*mamba=*/true)});
  return kinds;
}

ModelConfig ConfigOf(const std::string& name) {
  for (const Kind& kind : Kinds()) {
    if (kind.name == name) return kind.config;
  }
  return {};
}

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
class DenseKindTest : public KindTest {};

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
// A router may take other experts because of them, and states gather them.
TEST_P(DenseKindTest, SixteenBitIsNearTheCpus) {
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
                         ::testing::Values("llama", "llama_biased", "mistral", "qwen2", "qwen3", "dynamic_rope",
                                           "experts", "delta", "mamba"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Kinds, DenseKindTest,
                         ::testing::Values("llama", "llama_biased", "mistral", "qwen2", "qwen3", "dynamic_rope"),
                         [](const auto& info) { return info.param; });

// Each sequence alone, in one piece, gives the bits that it has in the mixed batches of the scenario.
void ExpectBatchesToChangeNoBits(const ModelWeights& weights, DType dtype) {
  Twins together(SmallConfig(), weights, dtype, /*batch_invariant=*/true), alone(SmallConfig(), weights, dtype, true);
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

TEST(DeviceModelBatches, ChangeNoBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(DTypeName(dtype));
    ExpectBatchesToChangeNoBits(RandomWeights(SmallConfig(), dtype), dtype);
  }
}

TEST(DeviceModelBatches, ChangeNoBitsOfQuantisedModels) {
  for (const WeightFormat format : {WeightFormat::kQ8, WeightFormat::kQ4}) {
    SCOPED_TRACE(WeightFormatName(format));
    ExpectBatchesToChangeNoBits(RandomWeights(SmallConfig(), format), DType::kBF16);
  }
}

// The same values as floats.
PackedMatrix AsFloats(const PackedMatrix& from, DType dtype) {
  if (from.n() == 0) return {};
  PackedMatrix to(from.n(), from.k(), dtype);
  Floats row(static_cast<std::size_t>(from.k()));
  std::vector<std::byte> stored(row.size() * DTypeSize(dtype));
  for (std::int64_t r = 0; r < from.n(); ++r) {
    from.UnpackRow(r, row.data());
    for (std::size_t i = 0; i < row.size(); ++i)
      StoreFromF32(dtype, stored.data(), static_cast<std::int64_t>(i), row[i]);
    to.PackRows(r, 1, stored.data());
  }
  return to;
}

ModelWeights AsFloats(const ModelWeights& from, DType dtype) {
  ModelWeights to;
  to.embedding = AsFloats(from.embedding, DType::kF32);  // rows of it are not rounded
  to.lm_head = AsFloats(from.lm_head, dtype);
  to.final_norm = from.final_norm;
  for (const LayerWeights& w : from.layers) {
    LayerWeights& layer = to.layers.emplace_back();
    for (auto matrix : {&LayerWeights::qkv, &LayerWeights::o, &LayerWeights::gate_up, &LayerWeights::down,
                        &LayerWeights::router, &LayerWeights::shared_gate})
      layer.*matrix = AsFloats(w.*matrix, dtype);
    for (auto vector : {&LayerWeights::qkv_bias, &LayerWeights::o_bias, &LayerWeights::gate_up_bias,
                        &LayerWeights::down_bias, &LayerWeights::router_bias})
      layer.*vector = w.*vector;
    for (auto norm : {&LayerWeights::input_norm, &LayerWeights::mlp_norm, &LayerWeights::q_norm, &LayerWeights::k_norm})
      layer.*norm = w.*norm;
    for (const PackedMatrix& expert : w.expert_gate_up) layer.expert_gate_up.push_back(AsFloats(expert, dtype));
    for (const PackedMatrix& expert : w.expert_down) layer.expert_down.push_back(AsFloats(expert, dtype));
  }
  return to;
}

// Few rows multiply the packed bytes, many what they are widened to. The experts' down matrices, of 40 inputs, are
// widened at once.
TEST(DeviceModelQuantised, HasTheBitsOfItsFloats) {
  for (const WeightFormat format : {WeightFormat::kQ8, WeightFormat::kQ4})
    for (const bool experts : {false, true}) {
      SCOPED_TRACE(WeightFormatName(format));
      const ModelConfig config = experts ? SmallConfigWithExperts() : SmallConfig();
      const ModelWeights weights = RandomWeights(config, format);
      Twins packed(config, weights, DType::kBF16);
      Twins floats(config, AsFloats(weights, DType::kBF16), DType::kBF16);
      const Scenario scenario(packed, DType::kBF16), same(floats, DType::kBF16);
      EXPECT_EQ(packed.model().weights().layers[0].down.format(), format);
      EXPECT_EQ(packed.model().dtype(), DType::kBF16);
      EXPECT_LT(packed.model().WeightBytes(), floats.model().WeightBytes());
      for (const std::vector<Part>& parts : scenario.steps) {
        const Floats found = packed.ForwardOnDevice(parts), expected = floats.ForwardOnDevice(parts);
        ASSERT_EQ(found.size(), expected.size());
        if (packed.device().properties().major == 0) {
          EXPECT_TRUE(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) == 0);
        } else {  // products of floats are others' from fewer rows on
          Errors errors;
          errors.Add(expected, found, config.vocab_size);
          EXPECT_LE(errors.Largest(), 4e-2);
        }
        packed.Advance(parts);
        floats.Advance(parts);
      }
    }
}

// What adapters are compared with.
TEST(DeviceModelQuantised, ItsMatricesReadAsTheCpus) {
  for (const WeightFormat format : {WeightFormat::kQ8, WeightFormat::kQ4}) {
    const ModelConfig config = SmallConfig();
    const ModelWeights weights = RandomWeights(config, format);
    const Model host(config, weights);
    const auto device = gpu::OpenDevice("emulated", {.memory = std::int64_t{16} << 20}).value();
    const auto model = DeviceModel::Upload(host, *device).value();
    const BaseMatrices expected = BaseMatricesOf(host), found = BaseMatricesOf(*model, *device);
    const BaseMatrix v = expected.linear(1, LoraTarget::kV).value().weight;
    const BaseMatrix on_device = found.linear(1, LoraTarget::kV).value().weight;
    EXPECT_EQ(on_device.format, format);
    Floats a(static_cast<std::size_t>(5 * v.k)), b(a);
    ASSERT_TRUE(v.read(7, 5, a.data()).ok());
    ASSERT_TRUE(on_device.read(7, 5, b.data()).ok());
    EXPECT_EQ(a, b);
    EXPECT_EQ(on_device.digest(7, 5).value(), on_device.digest(7, 5).value());
    EXPECT_NE(on_device.digest(7, 5).value(), on_device.digest(8, 5).value());
  }
}

// Adds a row; what it asks for depends on its number.
void AddSampleOfAnyKind(int row, SampleBatch& samples) {
  SamplingParams params;
  params.seed = static_cast<std::uint64_t>(row);
  params.temperature = row % 3 == 0 ? 0.0f : 0.8f;
  if (row % 4 == 1) params.top_k = 5;
  if (row % 5 == 0) params.top_logprobs = 2;
  if (row % 7 == 0) params.repetition_penalty = 1.5f;
  if (row % 20 == 0) params.top_logprobs = 25;  // more than the device serves
  params.logprobs_mode = static_cast<LogprobsMode>(row % 4);
  const Tokens generated = {row, 1, 2}, banned = {row + 1};
  const Tokens listed = row % 15 == 5 ? Tokens{3, row} : Tokens();
  std::vector<LogitBias> biases;
  if (row % 8 == 0) biases = {{row, 3.0f}};
  samples.Add(
      params,
      {.prompt = generated, .generated = generated, .banned = banned, .logit_bias = biases, .logprob_ids = listed},
      row % 9 == 0 ? std::make_shared<EveryThird>() : nullptr);
}

// Tokens, scores and pooled states are what the CPU gives.
TEST(DeviceModelResults, AreTheCpus) {
  Twins twins(SmallConfig(), DType::kF32, DType::kF32);
  const int adapter = twins.AddAdapter(8, kAll, DType::kF32);
  twins.AddSequence(80, adapter);
  twins.AddSequence(3, -1);
  const Part parts[] = {{0, 80}, {1, 3}};

  StepBatch what;
  for (int row = 0; row < 83; ++row) AddSampleOfAnyKind(row, what.samples);
  what.pools.Add(0, 80, {});
  const std::vector<double> before(static_cast<std::size_t>(twins.config().hidden_size), 0.5);
  what.pools.Add(81, 2, before);
  const StepResult &host = twins.host_result, &device = twins.device_result;
  twins.ForwardOnHost(parts, what);
  twins.ForwardOnDevice(parts, what);
  ASSERT_EQ(host.tokens.size(), 83u);
  ASSERT_EQ(device.tokens.size(), host.tokens.size());
  for (std::size_t i = 0; i < host.tokens.size(); ++i) {
    EXPECT_EQ(device.tokens[i].id, host.tokens[i].id) << i;
    EXPECT_NEAR(device.tokens[i].logprob, host.tokens[i].logprob, 1e-4);
    const std::vector<TokenLogprob>&tops = device.tokens[i].top_logprobs, &expected = host.tokens[i].top_logprobs;
    ASSERT_EQ(tops.size(), expected.size());
    for (std::size_t j = 0; j < tops.size(); ++j) {
      if (tops[j].logprob == expected[j].logprob) continue;  // also infinities
      EXPECT_NEAR(tops[j].logprob, expected[j].logprob, 1e-4) << i << ", place " << j;
    }
  }
  ASSERT_EQ(host.pooled.size(), 2 * before.size());
  ASSERT_EQ(device.pooled.size(), host.pooled.size());
  for (std::size_t i = 0; i < host.pooled.size(); ++i) EXPECT_NEAR(device.pooled[i], host.pooled[i], 1e-3);

  // Two of three rows are scored, in blocks.
  what.Clear();
  for (int row = 0; row < 4; ++row) what.scores.push_back({row, 2});
  for (int row = 0; row < 79; ++row) what.samples.Add({.temperature = 0}, {});
  twins.ForwardOnHost(parts, what);
  twins.ForwardOnDevice(parts, what);
  ASSERT_EQ(host.tokens.size(), 79u);
  ASSERT_EQ(device.tokens.size(), host.tokens.size());
  for (std::size_t i = 0; i < host.tokens.size(); ++i) EXPECT_EQ(device.tokens[i].id, host.tokens[i].id) << i;
  ASSERT_EQ(host.scores.size(), 4u);
  ASSERT_EQ(device.scores.size(), host.scores.size());
  for (std::size_t i = 0; i < host.scores.size(); ++i) {
    EXPECT_EQ(device.scores[i].rank, host.scores[i].rank);
    EXPECT_NEAR(device.scores[i].logprob, host.scores[i].logprob, 1e-4);
  }
}

void ExpectReserveToLeaveNothing(const ModelWeights& weights) {
  Twins twins(SmallConfig(), weights, DType::kBF16);
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

TEST(DeviceModelMemory, ReserveLeavesNothingToAllocate) {
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kQ4}) {
    SCOPED_TRACE(WeightFormatName(format));
    ExpectReserveToLeaveNothing(RandomWeights(SmallConfig(), format));
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

TEST(DeviceModelStates, WhatKernelsCannotHoldIsRefusedByName) {
  const auto refusal = [](ModelConfig config, bool mamba) {
    config.recurrent->mamba = mamba;
    const Model host(config, RandomWeights(config, DType::kF32));
    const auto device = gpu::OpenDevice("emulated", {}).value();
    const auto model = DeviceModel::Upload(host, *device);
    return model.ok() ? Error{ErrorCode::kInternal, "computed"} : model.error();
  };
  ModelConfig wide = SmallHybridConfig(), long_view = wide;
  wide.recurrent->key_dim = 257;
  long_view.recurrent->conv_width = 9;
  for (const bool mamba : {false, true}) {
    const Error keys = refusal(wide, mamba), view = refusal(long_view, mamba);
    EXPECT_EQ(keys.code, ErrorCode::kUnsupported);
    EXPECT_EQ(keys.param, mamba ? "mamba_d_state" : "linear_key_head_dim");
    EXPECT_NE(keys.message.find("keys of at most 256, but the model has 257"), std::string::npos) << keys.message;
    EXPECT_EQ(view.param, mamba ? "mamba_d_conv" : "linear_conv_kernel_dim");
    EXPECT_NE(view.message.find("convolutions over at most 8, but the model has 9"), std::string::npos) << view.message;
  }
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
    StepBatch what;
    for (int row = 0; row < 4; ++row) what.samples.Add({.temperature = 0.5f}, {});
    const Status result = twins.TryOnDevice({&part, 1}, what);
    ASSERT_FALSE(result.ok()) << launches;
    EXPECT_EQ(result.error().code, ErrorCode::kUnavailable);
    EXPECT_FALSE(twins.TryOnDevice({&part, 1}).ok());  // for good
  }
}

TEST(DeviceModelArrivals, EventsAreWaitedForByTheStream) {
  Twins twins(SmallConfig(), DType::kF32, DType::kF32);
  twins.AddSequence(4, -1);
  std::vector<std::int64_t> waits;
  const auto with_events = std::make_shared<LayerProgress>(2);
  with_events->AttachEvents(std::make_unique<CountingEvents>(waits));
  const auto by_the_host = std::make_shared<LayerProgress>(2);
  by_the_host->Publish(2);
  StepBatch what;
  what.arrivals = {with_events, by_the_host};
  const Part part = {0, 4};
  twins.ForwardOnDevice({&part, 1}, what);
  EXPECT_EQ(waits, (std::vector<std::int64_t>{0, 1}));
}

}  // namespace
}  // namespace loramux::device_model_test
