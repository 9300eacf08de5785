#include "gpu/kernels/qkv_post.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>
#include <gtest/gtest.h>

#include "gpu/device_for_test.h"
#include "gpu/emulated/emulated_device.h"
#include "gpu/kernels/attention_world_for_test.h"

namespace loramux::gpu::qkv_post_test {
namespace {

class QkvPostTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(All, QkvPostTest, ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

constexpr std::int64_t kLayers = 3, kLayer = 1;

struct Case {
  KvLayout layout;
  std::int64_t num_heads, padding;
  bool norm;
  std::int64_t rotary_dim = -1;  // -1: the whole head; 0: nothing turns
  bool adjacent_pairs = false;
  float norm_offset = 0;
  std::vector<float> query_scale = {};
  bool centers = false;

  std::int64_t Rotary() const { return rotary_dim < 0 ? layout.head_dim : rotary_dim; }
};

// Two sequences in the middle of their pages.
struct Batch {
  std::vector<SequenceOnDevice> sequences = {{0, 3, 6, 0}, {3, 1, 0, 3}};
  std::vector<std::int32_t> row_position = {6, 7, 8, 0}, row_sequence = {0, 0, 0, 1};
  std::vector<std::uint32_t> tables = {4, 0, 3, 2};
  std::int64_t num_pages = 5, rows = 4;
};

struct Outcome {
  std::vector<float> qkv;
  std::vector<std::byte> pages;
  bool operator==(const Outcome& other) const {
    return std::memcmp(qkv.data(), other.qkv.data(), qkv.size() * sizeof(float)) == 0 && pages == other.pages;
  }
};

struct Inputs {
  std::vector<float> qkv, q_norm, k_norm, cos, sin;
  std::int64_t stride;
  Inputs(const Case& c, const Batch& batch) {
    Prng prng(3);
    const std::int64_t dim = c.layout.head_dim;
    stride = (c.num_heads + 2 * c.layout.num_kv_heads) * dim + c.padding;
    qkv = RandomFloats(prng, batch.rows * stride, 2);
    q_norm = RandomFloats(prng, c.centers ? dim * c.num_heads : dim, 1);
    k_norm = RandomFloats(prng, c.centers ? dim * c.layout.num_kv_heads : dim, 1);
    for (std::int64_t i = 0; i < batch.rows * c.Rotary() / 2; ++i) {
      const double angle = prng.NextDouble() * 6.28;
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
};

Outcome RunOn(const Case& c, Device& device, std::int64_t spare = 0) {
  const Batch batch;
  const Inputs inputs(c, batch);
  DeviceArrays vectors(device);
  PagesForTest pages(c.layout, batch.num_pages);
  QkvPostArguments a = {};
  a.qkv = vectors.Upload(inputs.qkv);
  a.qkv_stride = inputs.stride;
  if (c.norm) {
    a.q_norm = vectors.Upload(inputs.q_norm);
    a.k_norm = vectors.Upload(inputs.k_norm);
  }
  a.eps = 1e-5f;
  if (c.Rotary() > 0) {
    a.cos = vectors.Upload(inputs.cos);
    a.sin = vectors.Upload(inputs.sin);
  }
  a.rotary_dim = static_cast<std::int32_t>(c.Rotary());
  a.adjacent_pairs = c.adjacent_pairs;
  a.norm_offset = c.norm_offset;
  a.centers = c.centers;
  if (!c.query_scale.empty()) a.query_scale = vectors.Upload(c.query_scale);
  a.row_position = vectors.Upload(batch.row_position);
  a.row_sequence = vectors.Upload(batch.row_sequence);
  a.sequences = vectors.Upload(batch.sequences);
  a.page_tables = vectors.Upload(batch.tables);
  a.pages = {vectors.Upload(pages.bytes), static_cast<std::int64_t>(pages.stride()),
             static_cast<std::int32_t>(c.layout.page_tokens), static_cast<std::int32_t>(c.layout.num_kv_heads),
             static_cast<std::int32_t>(c.layout.head_dim)};
  a.layer_offset = static_cast<std::int64_t>(c.layout.KeyOffset(kLayer, 0));
  a.rows = vectors.Upload(std::vector<std::int32_t>{static_cast<std::int32_t>(batch.rows)});
  a.num_heads = static_cast<std::int32_t>(c.num_heads);
  QkvPost(vectors.stream(), c.layout.dtype, batch.rows + spare, a);
  return {vectors.Download(a.qkv, inputs.qkv.size()), vectors.Download(a.pages.base, pages.bytes.size())};
}

// One head of one row, as the reference kernels compute it.
std::vector<double> ExpectedHead(const Inputs& inputs, const Case& c, std::int64_t row, std::int64_t head) {
  const std::int64_t dim = c.layout.head_dim, half = c.Rotary() / 2;
  std::vector<double> x;
  for (std::int64_t d = 0; d < dim; ++d) {
    x.push_back(static_cast<double>(inputs.qkv[static_cast<std::size_t>(row * inputs.stride + head * dim + d)]));
  }
  if (head >= c.num_heads + c.layout.num_kv_heads) return x;
  if (c.norm) {
    double squares = 0, sum = 0;
    for (const double value : x) sum += value;
    if (c.centers) {
      for (double& value : x) value -= sum / static_cast<double>(dim);
    }
    for (const double value : x) squares += value * value;
    const std::vector<float>& weight = head < c.num_heads ? inputs.q_norm : inputs.k_norm;
    const std::int64_t first = c.centers ? (head < c.num_heads ? head : head - c.num_heads) * dim : 0;
    for (std::int64_t d = 0; d < dim; ++d) {
      const auto i = static_cast<std::size_t>(d);
      x[i] *= static_cast<double>(weight[static_cast<std::size_t>(first + d)] + c.norm_offset) /
              std::sqrt(squares / static_cast<double>(dim) + 1e-5);
    }
  }
  std::vector<double> turned = x;
  for (std::int64_t t = 0; t < half; ++t) {
    const auto low = static_cast<std::size_t>(c.adjacent_pairs ? 2 * t : t);
    const auto high = static_cast<std::size_t>(c.adjacent_pairs ? 2 * t + 1 : t + half);
    const auto angle = static_cast<std::size_t>(row * half + t);
    const auto cos = static_cast<double>(inputs.cos[angle]), sin = static_cast<double>(inputs.sin[angle]);
    turned[low] = x[low] * cos - x[high] * sin;
    turned[high] = x[high] * cos + x[low] * sin;
  }
  if (head < c.num_heads && !c.query_scale.empty()) {
    for (double& value : turned) value *= static_cast<double>(c.query_scale[static_cast<std::size_t>(row)]);
  }
  return turned;
}

void ExpectRight(const Case& c, const Outcome& outcome) {
  const Batch batch;
  const Inputs inputs(c, batch);
  const DType dtype = c.layout.dtype;
  const std::int64_t dim = c.layout.head_dim, kv_heads = c.layout.num_kv_heads;
  // Half a unit of the last place of the pages' type.
  const double rounding = dtype == DType::kF32 ? 0 : dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
  std::vector<float> expected_qkv = inputs.qkv;
  PagesForTest touched(c.layout, batch.num_pages);  // 0 where something was stored
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    const auto i = static_cast<std::size_t>(row);
    const std::int64_t position = batch.row_position[i], slot = position % c.layout.page_tokens;
    const SequenceOnDevice& sequence = batch.sequences[static_cast<std::size_t>(batch.row_sequence[i])];
    const std::uint32_t page =
        batch.tables[static_cast<std::size_t>(sequence.first_page + position / c.layout.page_tokens)];
    PagesForTest stored(c.layout, 0);
    stored.bytes = outcome.pages;
    for (std::int64_t head = 0; head < c.num_heads + 2 * kv_heads; ++head) {
      const std::vector<double> expected = ExpectedHead(inputs, c, row, head);
      for (std::int64_t d = 0; d < dim; ++d) {
        const double want = expected[static_cast<std::size_t>(d)];
        if (head < c.num_heads) {
          const auto at = static_cast<std::size_t>(row * inputs.stride + head * dim + d);
          EXPECT_NEAR(static_cast<double>(outcome.qkv[at]), want, 2e-6);
          expected_qkv[at] = outcome.qkv[at];
        } else {
          const std::int64_t kv_head = (head - c.num_heads) % kv_heads, is_v = (head - c.num_heads) / kv_heads;
          const std::int64_t index = stored.Index(is_v, kv_head, slot) + d;
          const float value = LoadAsF32(dtype, stored.Layer(page, kLayer), index);
          EXPECT_NEAR(static_cast<double>(value), want, 2e-6 + std::abs(want) * rounding) << "head " << head;
          StoreFromF32(dtype, touched.Layer(page, kLayer), index, 0);
        }
      }
    }
  }
  // k, v and the padding of qkv are as they were, and so is the rest of the pages.
  EXPECT_EQ(expected_qkv, outcome.qkv);
  for (std::size_t i = 0; i < touched.bytes.size(); ++i) {
    if (touched.bytes[i] == std::byte{0xff}) ASSERT_EQ(outcome.pages[i], std::byte{0xff}) << i;
  }
}

Case MakeCase(DType dtype, std::int64_t head_dim, std::int64_t page_tokens, bool norm) {
  return {{kLayers, 2, head_dim, page_tokens, dtype}, 6, head_dim % 4, norm};
}

TEST_P(QkvPostTest, NormsTurnsAndStores) {
  for (const std::int64_t head_dim : {2, 8, 12, 16, 18, 32, 64, 80, 96, 128, 200, 256}) {
    for (const bool norm : {false, true}) {
      for (const std::int64_t page_tokens : {4, 16}) {
        const Case c = MakeCase(GetParam(), head_dim, page_tokens, norm);
        SCOPED_TRACE(std::to_string(head_dim) + (norm ? " with norm" : ""));
        ExpectRight(c, RunOn(c, DeviceForTest(), 3));
      }
    }
  }
}

TEST_P(QkvPostTest, APartOfAHeadTurnsOrNothing) {
  for (const std::int64_t head_dim : {16, 32, 80, 96}) {
    for (const std::int64_t rotary_dim : {0L, 2L, 16L, head_dim / 4 * 2, head_dim}) {
      for (const bool adjacent : {false, true}) {
        Case c = MakeCase(GetParam(), head_dim, 16, rotary_dim % 4 == 0);
        c.rotary_dim = rotary_dim;
        c.adjacent_pairs = adjacent;
        c.norm_offset = 1;
        if (adjacent) c.query_scale = {1, 0.5f, 2, 1.25f};
        SCOPED_TRACE(std::to_string(head_dim) + ", of which turn " + std::to_string(rotary_dim));
        ExpectRight(c, RunOn(c, DeviceForTest(), 1));
      }
    }
  }
}

TEST_P(QkvPostTest, LayerNormsOfHeads) {
  for (const std::int64_t head_dim : {8, 12, 16, 64, 80, 200, 256}) {
    Case c = MakeCase(GetParam(), head_dim, 16, true);
    c.centers = true;
    c.rotary_dim = head_dim / 8 * 4;
    SCOPED_TRACE(head_dim);
    ExpectRight(c, RunOn(c, DeviceForTest(), 1));
  }
}

TEST_P(QkvPostTest, OddStridesAreServed) {
  Case c = MakeCase(GetParam(), 64, 8, true);
  c.padding = 3;
  ExpectRight(c, RunOn(c, DeviceForTest()));
}

TEST_P(QkvPostTest, BitsDoNotDependOnTheOrderOfLanes) {
  const Case c = MakeCase(GetParam(), 64, 8, true);
  const Outcome first = RunOn(c, *MakeEmulatedDevice({.seed = 0}));
  for (const std::uint64_t seed : {1, 2, 3}) EXPECT_TRUE(RunOn(c, *MakeEmulatedDevice({.seed = seed})) == first);
}

}  // namespace
}  // namespace loramux::gpu::qkv_post_test
