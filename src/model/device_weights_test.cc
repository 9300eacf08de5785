// How a device keeps the matrices of a model, by the shapes and forms of its files alone.
#include "model/device_weights.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/device_model.h"

namespace loramux {
namespace {

using Kept = StoredMatrix::Kept;

// A matrix without values.
class Shape : public StoredMatrix {
 public:
  Shape(const std::string& name, std::int64_t rows, std::int64_t columns, WeightFormat format, std::optional<Kept> kept)
      : StoredMatrix(name, rows, columns), format_(format), kept_(kept) {}

  std::int64_t bytes() const override { return rows() * static_cast<std::int64_t>(WeightRowBytes(format_, columns())); }
  WeightFormat format() const override { return format_; }
  std::optional<Kept> kept() const override { return kept_; }
  void ReadFloats(std::int64_t, std::int64_t, float*) const override { ADD_FAILURE() << name(); }
  GroupedRows ReadGroups(std::int64_t, std::int64_t) const override {
    ADD_FAILURE() << name();
    return {};
  }

 private:
  const WeightFormat format_;
  const std::optional<Kept> kept_;
};

struct Form {
  WeightFormat format;
  std::optional<Kept> kept;
};

// Files with these forms by name, and norms.
class Shapes : public ModelSource {
 public:
  explicit Shapes(std::function<Form(const std::string&)> form) : form_(std::move(form)) {}

  Result<std::shared_ptr<const StoredMatrix>> FindMatrix(const std::string& name, std::int64_t rows,
                                                         std::int64_t columns) override {
    if (name.ends_with("qkv_proj") || name.ends_with("gate_up_proj")) return std::shared_ptr<const StoredMatrix>();
    const Form form = form_(name);
    return std::shared_ptr<const StoredMatrix>(std::make_shared<Shape>(name, rows, columns, form.format, form.kept));
  }
  Result<std::optional<std::vector<float>>> FindVector(const std::string& name, std::int64_t size) override {
    if (name.find("norm") == std::string::npos) return std::optional<std::vector<float>>();
    return std::optional(std::vector<float>(static_cast<std::size_t>(size), 1.0f));
  }
  Status CheckAllUsed() const override { return Ok{}; }

 private:
  const std::function<Form(const std::string&)> form_;
};

ModelConfig ConfigOf70B() {
  ModelConfig c;
  c.hidden_size = 8192;
  c.num_layers = 80;
  c.num_heads = 64;
  c.num_kv_heads = 8;
  c.head_dim = 128;
  c.intermediate_size = 28672;
  c.vocab_size = 32000;
  c.max_position = 4096;
  c.sliding_window.assign(80, 0);
  return c;
}

bool OfLayer(const std::string& name) { return name.find("_proj") != std::string::npos; }

// The budget of published systems on a GPU of 80 GB: 35 for the weights, 30 for keys and values, 12 for adapters, 3 for
// the rest.
TEST(PlanModelWeights, AModelOf70BIn4BitsFitsItsBudget) {
  const ModelConfig config = ConfigOf70B();
  Shapes source([](const std::string& name) {
    return OfLayer(name) ? Form{WeightFormat::kQ4, Kept{WeightFormat::kQ4, 128}} : Form{WeightFormat::kF16, {}};
  });
  const ModelTensors tensors = FindModelTensors(config, source).value();
  const DeviceModelLimits limits = {
      .max_tokens = 2048, .max_sequences = 256, .max_logit_rows = 256, .max_positions = 4096, .max_rank = 64};
  const DeviceModel::Fit fit = DeviceModel::FitOf(config, tensors, {}, limits).value();
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  EXPECT_EQ(fit.layers, WeightFormat::kQ4);
  EXPECT_LE(fit.weights, 35 * kGiB);
  EXPECT_LE(fit.activations, 3 * kGiB);
  const std::int64_t card = std::int64_t{81'559} << 20, reserve = kGiB;  // what an H100 of 80 GB says
  EXPECT_GE(card - reserve - fit.weights - fit.activations, (30 + 12) * kGiB);
  // Four bits, and a scale and a minimum of 16 for 128 of them.
  const std::int64_t of_layers = 80 * (std::int64_t{8192} * (8192 * 2 + 1024 * 2 + 3 * 28672));
  const std::int64_t floats = 2 * 32000 * std::int64_t{8192} * 2;
  EXPECT_NEAR(static_cast<double>(fit.weights), static_cast<double>(of_layers) * 4.25 / 8 + static_cast<double>(floats),
              2e7);
  // Not so in 16 bits, as they were kept before.
  const auto widened = DeviceModel::FitOf(config, tensors, {.layers = WeightFormat::kBF16}, limits).value();
  EXPECT_GT(widened.weights, card);
}

TEST(PlanModelWeights, FloatsDecideTheType) {
  ModelConfig config = ConfigOf70B();
  config.num_layers = 1;
  config.sliding_window = {0};
  Shapes source([](const std::string& name) {
    return OfLayer(name) ? Form{WeightFormat::kQ4, Kept{WeightFormat::kQ4, 128}} : Form{WeightFormat::kF16, {}};
  });
  const ModelTensors tensors = FindModelTensors(config, source).value();
  const auto stored = PlanModelWeights(config, tensors, {});
  EXPECT_EQ(stored.weights.dtype, DType::kF16);
  EXPECT_EQ(stored.weights.layers[0].qkv.format(), WeightFormat::kQ4);
  EXPECT_EQ(stored.weights.layers[0].qkv.form().group_shift, 7);
  const auto rounded = PlanModelWeights(config, tensors, {.layers = WeightFormat::kQ8});
  EXPECT_EQ(rounded.weights.dtype, DType::kBF16);
  EXPECT_EQ(rounded.weights.lm_head.format(), WeightFormat::kQ8);
  EXPECT_EQ(rounded.weights.layers[0].down.form().group_shift, 5);
}

// What cannot share a product with what it is stacked with becomes floats, and is named.
TEST(PlanModelWeights, OtherFormsAreWidenedByName) {
  ModelConfig config = ConfigOf70B();
  config.num_layers = 1;
  config.sliding_window = {0};
  Shapes source([](const std::string& name) {
    if (name.find("v_proj") != std::string::npos) return Form{WeightFormat::kQ8, {}};  // as Q6_K
    if (name.find("up_proj") != std::string::npos) return Form{WeightFormat::kQ4, Kept{WeightFormat::kQ4, 96}};
    return OfLayer(name) ? Form{WeightFormat::kQ4, Kept{WeightFormat::kQ4, 128}} : Form{WeightFormat::kBF16, {}};
  });
  const ModelTensors tensors = FindModelTensors(config, source).value();
  const DeviceWeights weights = PlanModelWeights(config, tensors, {}).weights;
  EXPECT_EQ(weights.widened,
            (std::vector<std::string>{"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj",
                                      "model.layers.0.self_attn.v_proj"}));
  EXPECT_EQ(weights.layers[0].qkv.format(), WeightFormat::kBF16);
  EXPECT_EQ(weights.layers[0].gate_up.form().group_shift, 5);  // groups of both: 32
  EXPECT_EQ(weights.layers[0].o.form().group_shift, 7);
  EXPECT_TRUE(PlanModelWeights(config, tensors, {.layers = WeightFormat::kQ4}).weights.widened.empty());
}

}  // namespace
}  // namespace loramux
