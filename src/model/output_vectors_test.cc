// Gains and shifts against the same in double precision, from the weights as the model computes with them. Against
// PEFT: tests/golden_test.cc.
#include "model/output_vectors.h"

#include <cmath>
#include <filesystem>

#include <gtest/gtest.h>

#include "gpu/open_device.h"
#include "tensor/half_float.h"

namespace loramux::output_vectors_test {
namespace {

const std::filesystem::path kCase =
    std::filesystem::path(LORAMUX_SOURCE_DIR) / "tests" / "golden" / "models" / "kinds_llama";

std::vector<double> Values(const AdapterFile& file, const TensorEntry& tensor) {
  std::vector<std::byte> bytes;
  EXPECT_TRUE(file.tensors->Read(tensor, bytes).ok());
  std::vector<double> values;
  for (std::int64_t i = 0; i < tensor.ElementCount(); ++i)
    values.push_back(static_cast<double>(LoadAsF32(tensor.dtype, bytes.data(), i)));
  return values;
}

// |W + scale B A| of a row.
double Length(const AdapterFile& file, const LoraModule& module, const BaseMatrix& w, std::int64_t row) {
  std::vector<float> weights(static_cast<std::size_t>(w.k));
  EXPECT_TRUE(w.read(row, 1, weights.data()).ok());
  const std::vector<double> a = Values(file, *module.a), b = Values(file, *module.b);
  double squares = 0;
  for (std::int64_t t = 0; t < w.k; ++t) {
    double value = static_cast<double>(weights[static_cast<std::size_t>(t)]);
    for (std::int64_t j = 0; j < module.rank; ++j)
      value += static_cast<double>(module.scale) * b[static_cast<std::size_t>(row * module.rank + j)] *
               a[static_cast<std::size_t>(j * w.k + t)];
    squares += value * value;
  }
  return std::sqrt(squares);
}

// Returns the gains of the first module.
std::vector<float> ExpectRight(const BaseMatrices& base, const ModelConfig& config, const char* name) {
  auto opened = OpenAdapter(kCase / "adapters" / name, config);
  EXPECT_TRUE(opened.ok());
  AdapterFile file = std::move(opened).value();
  EXPECT_TRUE(ComputeVectors(base, file).ok());
  for (std::size_t m = 0; m < file.modules.size(); ++m) {
    const LoraModule& module = file.modules[m];
    const BaseLinear linear = base.linear(module.layer, module.target).value();
    EXPECT_EQ(linear.weight.n, TargetShape(config, module.target).out);
    const std::vector<double> magnitude = module.magnitude ? Values(file, *module.magnitude) : std::vector<double>();
    const std::vector<double> bias = module.bias ? Values(file, *module.bias) : std::vector<double>();
    const std::vector<double> b_bias = module.b_bias ? Values(file, *module.b_bias) : std::vector<double>();
    for (std::size_t o = 0; o < file.vectors[m].gains.size(); ++o) {
      const auto row = static_cast<std::int64_t>(o);
      const double gain = magnitude.empty() ? 1 : magnitude[o] / Length(file, module, linear.weight, row);
      const double before = static_cast<double>(linear.bias[o]);
      const double shift = (bias.empty() ? before : bias[o]) - gain * before +
                           (b_bias.empty() ? 0 : static_cast<double>(module.scale) * b_bias[o]);
      EXPECT_NEAR(file.vectors[m].gains[o], gain, 1e-6 * std::abs(gain))
          << name << ", module " << m << ", output " << o;
      EXPECT_NEAR(file.vectors[m].shifts[o], shift, 1e-6) << name << ", module " << m << ", output " << o;
    }
  }
  return file.vectors.at(0).gains;
}

TEST(OutputVectors, AreThoseOfTheWeightsAsServed) {
  std::vector<std::vector<float>> gains;
  for (const auto format :
       {std::optional<WeightFormat>(), std::optional(WeightFormat::kQ8), std::optional(WeightFormat::kQ4)}) {
    const auto model = Model::Load(kCase / "model", {.layers = format}, nullptr).value();
    for (const char* name : {"dora_bias", "bias_all", "lora_bias_f16"}) {
      ExpectRight(BaseMatricesOf(*model), model->config(), name);
    }
    gains.push_back(ExpectRight(BaseMatricesOf(*model), model->config(), "dora_r4"));
  }
  EXPECT_NE(gains[0], gains[1]);
  EXPECT_NE(gains[1], gains[2]);
}

TEST(OutputVectors, AreTheSameOfADevice) {
  const auto host = Model::Load(kCase / "model", {}, nullptr).value();
  const auto device = gpu::OpenDevice("emulated", {}).value();
  const auto model = DeviceModel::Load(kCase / "model", *device, {}, nullptr).value();
  const BaseMatrices base = BaseMatricesOf(*model, *device);
  for (const char* name : {"dora_r4", "dora_bias", "bias_all"}) {
    EXPECT_EQ(ExpectRight(base, host->config(), name), ExpectRight(BaseMatricesOf(*host), host->config(), name));
  }
}

TEST(OutputVectors, ARowWithoutAFiniteLengthIsRefused) {
  const auto model = Model::Load(kCase / "model", {}, nullptr).value();
  auto file = OpenAdapter(kCase / "adapters" / "dora_r4", model->config()).value();
  file.modules.resize(1);
  BaseMatrices base = BaseMatricesOf(*model);
  base.linear = [&file](std::int64_t, LoraTarget) -> Result<BaseLinear> {
    BaseMatrix w{file.modules[0].out(), file.modules[0].in(), WeightFormat::kF32, {}};
    w.read = [](std::int64_t, std::int64_t count, float* rows) -> Status {
      std::fill_n(rows, count * 32, std::nanf(""));
      return Ok{};
    };
    return BaseLinear{w, {}};
  };
  const auto refused = ComputeVectors(base, file);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("W + scale B A"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace loramux::output_vectors_test
