#include "model/rope.h"

#include <cmath>

#include <gtest/gtest.h>

namespace loramux::rope_test {
namespace {

// The expected numbers of this file were computed by LlamaRotaryEmbedding of transformers 5.23 with torch 2.15.

using Floats = std::vector<float>;

ModelConfig Config(double theta, std::int64_t head_dim, std::int64_t max_position) {
  ModelConfig config;
  config.head_dim = head_dim;
  config.max_position = max_position;
  config.rope.theta = theta;
  return config;
}

ModelConfig Dynamic(double factor) {
  ModelConfig config = Config(10000, 16, 32);
  config.rope.scaling = RopeConfig::Scaling::kDynamic;
  config.rope.factor = factor;
  return config;
}

ModelConfig Llama3(std::int64_t head_dim, std::int64_t original_max_position) {
  ModelConfig config = Config(500000, head_dim, 16 * original_max_position);
  config.rope.scaling = RopeConfig::Scaling::kLlama3;
  config.rope.factor = 8;
  config.rope.low_freq_factor = 1;
  config.rope.high_freq_factor = 4;
  config.rope.original_max_position = original_max_position;
  return config;
}

RopeTable TableOf(const ModelConfig& config) { return {config, config.rope}; }
Floats FrequenciesOf(const ModelConfig& config, std::int64_t length) {
  return RopeInverseFrequencies(config, config.rope, length);
}

// Within the last places of float32: libraries differ in how they round pow.
void ExpectClose(const Floats& found, const Floats& expected, float relative) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], relative * std::abs(expected[i])) << "pair " << i;
  }
}

constexpr float kFewUlps = 2.5e-7f;

struct Row {
  Floats cos, sin;
};

Row RowOf(RopeTable& table, std::int64_t half_dim, std::int64_t position, std::int64_t length) {
  Row row{Floats(half_dim), Floats(half_dim)};
  table.Row(position, length, row.cos.data(), row.sin.data());
  return row;
}

void ExpectAngles(const Row& row, const Floats& cos, const Floats& sin) {
  for (std::size_t i = 0; i < cos.size(); ++i) {
    // An angle of up to 255 radians times the relative error of a frequency.
    EXPECT_NEAR(row.cos[i], cos[i], 3e-5f) << "pair " << i;
    EXPECT_NEAR(row.sin[i], sin[i], 3e-5f) << "pair " << i;
  }
}

TEST(RopeFrequencies, Default) {
  ExpectClose(FrequenciesOf(Config(10000, 16, 256), 0),
              {0x1p+0f, 0x1.43d136p-2f, 0x1.99999ap-4f, 0x1.030dc6p-5f, 0x1.47ae14p-7f, 0x1.9e7c70p-9f, 0x1.0624dep-10f,
               0x1.4b96c0p-12f},
              kFewUlps);
}

TEST(RopeFrequencies, Linear) {
  ModelConfig config = Config(10000, 16, 256);
  config.rope.scaling = RopeConfig::Scaling::kLinear;
  config.rope.factor = 4;
  ExpectClose(FrequenciesOf(config, 0),
              {0x1p-2f, 0x1.43d136p-4f, 0x1.99999ap-6f, 0x1.030dc6p-7f, 0x1.47ae14p-9f, 0x1.9e7c70p-11f,
               0x1.0624dep-12f, 0x1.4b96c0p-14f},
              kFewUlps);
}

TEST(RopeFrequencies, Llama3) {
  ExpectClose(FrequenciesOf(Llama3(32, 64), 0),
              {0x1p+0f, 0x1.c2ef78p-2f, 0x1.453c18p-4f, 0x1.5dc95ap-7f, 0x1.341190p-8f, 0x1.0f5386p-9f, 0x1.ddee9ep-11f,
               0x1.a4ee40p-12f, 0x1.72ba42p-13f, 0x1.46831ap-14f, 0x1.1f91f0p-15f, 0x1.fa8b86p-17f, 0x1.be2188p-18f,
               0x1.88ec20p-19f, 0x1.5a0f4ep-20f, 0x1.30c94ep-21f},
              2e-6f);  // the blend of pair 2 subtracts
}

// The extents of Llama 3.1: pairs 28 to 35 are in and around the blended band.
TEST(RopeFrequencies, Llama31Band) {
  const Floats all = FrequenciesOf(Llama3(128, 8192), 0);
  ExpectClose(Floats(all.begin() + 28, all.begin() + 37),
              {0x1.a4ee40p-9f, 0x1.1bfa0cp-9f, 0x1.67a23ap-10f, 0x1.c12f3cp-11f, 0x1.132ba4p-11f, 0x1.47e210p-12f,
               0x1.765ba4p-13f, 0x1.90d10cp-14f, 0x1.46831ap-14f},
              2e-6f);
}

TEST(RopeFrequencies, DynamicScalesWithTheLengthBeyondTheMaximum) {
  const Floats plain = FrequenciesOf(Config(10000, 16, 32), 0);
  EXPECT_EQ(FrequenciesOf(Dynamic(2), 1), plain);
  EXPECT_EQ(FrequenciesOf(Dynamic(2), 32), plain);
  ExpectClose(FrequenciesOf(Dynamic(2), 40),
              {0x1p+0f, 0x1.3197eep-2f, 0x1.6ccb5ep-4f, 0x1.b376c8p-6f, 0x1.03e97ap-7f, 0x1.36436ap-9f, 0x1.725e72p-11f,
               0x1.ba1e54p-13f},
              1e-6f);
  ExpectClose(FrequenciesOf(Dynamic(4), 100),
              {0x1p+0f, 0x1.d5856ap-3f, 0x1.ae910cp-5f, 0x1.8ad810p-7f, 0x1.6a15cep-9f, 0x1.4c0b52p-11f,
               0x1.307ee4p-13f, 0x1.173b92p-15f},
              1e-6f);
}

TEST(RopeTable, Rows) {
  RopeTable table = TableOf(Config(10000, 16, 256));
  ExpectAngles(RowOf(table, 8, 0, 1), Floats(8, 1.0f), Floats(8, 0.0f));
  ExpectAngles(RowOf(table, 8, 100, 101),
               {0.8623188734f, 0.978682816f, -0.83907151222f, -0.99978607893f, 0.54030233622f, 0.95041525364f,
                0.99500417709f, 0.99950003624f},
               {-0.50636565685f, 0.20537757874f, -0.54402112961f, -0.02068380825f, 0.84147095680f, 0.31098362803f,
                0.09983342141f, 0.03161750734f});
}

TEST(RopeTable, DynamicRowsDependOnTheLength) {
  RopeTable table = TableOf(Dynamic(2));
  ExpectAngles(RowOf(table, 8, 7, 40),
               {0.75390225649f, -0.49533596635f, 0.81188189983f, 0.98274248838f, 0.99845898151f, 0.9998627305f,
                0.99998778105f, 0.99999892712f},
               {0.65698659420f, 0.86870145798f, 0.58382165432f, 0.18497881293f, 0.05549467355f, 0.01656909101f,
                0.0049449387f, 0.00147572905f});
  RopeTable plain = TableOf(Config(10000, 16, 32));
  EXPECT_EQ(RowOf(table, 8, 7, 32).cos, RowOf(plain, 8, 7, 32).cos);
  EXPECT_NE(RowOf(table, 8, 7, 41).cos, RowOf(table, 8, 7, 40).cos);
}

TEST(RopeTable, RowsDoNotDependOnTheOrderOfQuestions) {
  for (const ModelConfig& config : {Config(10000, 16, 32), Dynamic(2), Llama3(16, 8)}) {
    RopeTable forwards = TableOf(config), backwards = forwards, reserved = forwards;
    reserved.Reserve(100);
    std::vector<Row> rows;
    for (std::int64_t p = 0; p < 100; ++p) rows.push_back(RowOf(forwards, 8, p, p + 3));
    for (std::int64_t p = 99; p >= 0; --p) {
      EXPECT_EQ(RowOf(backwards, 8, p, p + 3).sin, rows[static_cast<std::size_t>(p)].sin);
      EXPECT_EQ(RowOf(reserved, 8, p, p + 3).cos, rows[static_cast<std::size_t>(p)].cos);
    }
  }
}

}  // namespace
}  // namespace loramux::rope_test
