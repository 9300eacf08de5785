#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/kernel_test_support.h"
#include "kernels/matmul.h"

namespace loramux::group_matmul_test {
namespace {

class GroupMatMulTest : public KernelTest {};
LORAMUX_INSTANTIATE_KERNEL_TEST(GroupMatMulTest);

struct Shape {
  std::int64_t n;
  std::int64_t k;
};

// Complete and partial panels and groups.
constexpr Shape kShapes[] = {{1, 1}, {31, 7}, {32, 64}, {33, 256}, {96, 300}, {200, 96}, {330, 40}};
constexpr WeightFormat kFormats[] = {WeightFormat::kQ8, WeightFormat::kQ4, WeightFormat::kMx4};
constexpr std::int64_t kRowCounts[] = {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 24, 37, 100};

// Codes over the whole range, the extremes included.
GroupedRows RandomGroups(WeightFormat format, Shape shape, Prng& prng) {
  GroupedRows out(format, shape.n, shape.k);
  const int most = format == WeightFormat::kQ8 ? 255 : 15, least = 0;
  for (std::uint8_t& code : out.codes) {
    const auto random = static_cast<int>(prng.NextDouble() * 4 * most) - most;
    code = static_cast<std::uint8_t>(std::clamp(random, least, most));
    if (format == WeightFormat::kMx4) code = kMx4Codes[code];
  }
  for (std::size_t g = 0; g < out.scales.size(); ++g) {
    out.scales[g] = F16ToF32(F32ToF16(static_cast<float>(prng.NextDouble()) / static_cast<float>(most)));
    out.minimums[g] =
        IsCentred(format) ? -128 * out.scales[g] : F16ToF32(F32ToF16(static_cast<float>(prng.NextDouble() - 1)));
  }
  return out;
}

PackedMatrix Packed(const GroupedRows& rows) {
  PackedMatrix matrix(rows.rows, rows.columns, rows.format);
  matrix.PackGroups(0, rows);
  return matrix;
}

// Activations of all sizes; every fifth group has a value that dwarfs the others, or is zero.
std::vector<float> Activations(std::int64_t count, Prng& prng) {
  std::vector<float> x = RandomFloats(count, prng);
  for (std::int64_t i = 0; i < count; i += 5 * kWeightGroup) x[static_cast<std::size_t>(i)] *= 1000;
  for (std::int64_t i = 64; i + 32 < count; i += 7 * kWeightGroup) {
    std::fill_n(x.begin() + i, 32, 0.0f);
  }
  return x;
}

TEST(PackedGroups, AreReadBackAsTheyWere) {
  Prng prng(1);
  for (const WeightFormat format : kFormats) {
    for (const Shape& shape : kShapes) {
      const GroupedRows rows = RandomGroups(format, shape, prng);
      const PackedMatrix matrix = Packed(rows);
      std::vector<float> expected(static_cast<std::size_t>(shape.k)), actual(expected);
      for (std::int64_t row = 0; row < shape.n; ++row) {
        rows.ReadRow(row, expected.data());
        matrix.UnpackRow(row, actual.data());
        ASSERT_EQ(actual, expected) << WeightFormatName(format) << " row " << row;
      }
    }
  }
}

TEST_P(GroupMatMulTest, HasTheBitsOfTheReference) {
  Prng prng(2);
  for (const WeightFormat format : kFormats) {
    for (const Shape& shape : kShapes) {
      const PackedMatrix w = Packed(RandomGroups(format, shape, prng));
      const auto bias = RandomFloats(shape.n, prng);
      for (const std::int64_t m : {1, 3, 14, 40}) {
        const auto x = Activations(m * shape.k, prng);
        std::vector<float> expected(static_cast<std::size_t>(m * shape.n)), actual(expected);
        MatMul(reference(),
               {.x = {x.data(), shape.k}, .rows = m, .w = w, .bias = bias.data(), .y = {expected.data(), shape.n}});
        MatMul(context(),
               {.x = {x.data(), shape.k}, .rows = m, .w = w, .bias = bias.data(), .y = {actual.data(), shape.n}});
        for (std::size_t i = 0; i < expected.size(); ++i) {
          // Without fused multiply-adds, a product is rounded once more.
          ASSERT_NEAR(actual[i], expected[i], 1e-6f * static_cast<float>(1 + shape.k) + 1e-5f * std::fabs(expected[i]))
              << WeightFormatName(format) << " n=" << shape.n << " k=" << shape.k << " m=" << m << " at " << i;
        }
        const bool fused = GetParam().target != HWY_SSE4 && GetParam().target != HWY_SCALAR;
        if (fused) ASSERT_TRUE(BitwiseEqual(actual.data(), expected.data(), m * shape.n));
      }
    }
  }
}

// Against sums in double precision of the unpacked weights: the distance is that of 8-bit activations.
TEST_P(GroupMatMulTest, IsCloseToTheProductOfTheValues) {
  Prng prng(3);
  for (const WeightFormat format : kFormats) {
    const Shape shape = {96, 512};
    const PackedMatrix w = Packed(RandomGroups(format, shape, prng));
    const auto x = RandomFloats(shape.k, prng);
    std::vector<float> y(static_cast<std::size_t>(shape.n)), row(static_cast<std::size_t>(shape.k));
    MatMul(context(), {.x = {x.data(), shape.k}, .rows = 1, .w = w, .y = {y.data(), shape.n}});
    double squares = 0, errors = 0;
    for (std::int64_t j = 0; j < shape.n; ++j) {
      w.UnpackRow(j, row.data());
      double sum = 0;
      for (std::size_t t = 0; t < row.size(); ++t) sum += static_cast<double>(row[t]) * static_cast<double>(x[t]);
      squares += sum * sum;
      errors += (sum - static_cast<double>(y[static_cast<std::size_t>(j)])) *
                (sum - static_cast<double>(y[static_cast<std::size_t>(j)]));
    }
    EXPECT_LT(std::sqrt(errors / squares), 6e-3) << WeightFormatName(format);
  }
}

TEST_P(GroupMatMulTest, RowsHaveTheSameBitsInEveryBatch) {
  Prng prng(4);
  for (const WeightFormat format : kFormats) {
    for (const Shape& shape : kShapes) {
      const PackedMatrix w = Packed(RandomGroups(format, shape, prng));
      const auto bias = RandomFloats(shape.n, prng);
      const std::int64_t most = 100;
      const auto x = Activations(most * shape.k, prng);
      std::vector<float> alone(static_cast<std::size_t>(most * shape.n)), batch(alone);
      for (std::int64_t i = 0; i < most; ++i) {
        MatMul(context(), {.x = {x.data() + i * shape.k, shape.k},
                           .rows = 1,
                           .w = w,
                           .bias = bias.data(),
                           .y = {alone.data() + i * shape.n, shape.n}});
      }
      for (const std::int64_t m : kRowCounts) {
        const std::int64_t first = most - m;
        MatMul(context(), {.x = {x.data() + first * shape.k, shape.k},
                           .rows = m,
                           .w = w,
                           .bias = bias.data(),
                           .y = {batch.data(), shape.n}});
        ASSERT_TRUE(BitwiseEqual(batch.data(), alone.data() + first * shape.n, m * shape.n))
            << WeightFormatName(format) << " n=" << shape.n << " k=" << shape.k << " m=" << m;
      }
    }
  }
}

TEST_P(GroupMatMulTest, PartsOfSeveralFormats) {
  Prng prng(5);
  const std::int64_t k = 128;
  const std::array<PackedMatrix::Part, 3> parts = {
      {{64, WeightFormat::kQ4}, {32, WeightFormat::kQ8}, {40, WeightFormat::kQ4}}};
  PackedMatrix mixed(parts, k);
  std::vector<float> expected, actual(136);
  const auto x = RandomFloats(k, prng);
  std::int64_t row = 0;
  for (const PackedMatrix::Part& part : parts) {
    const GroupedRows rows = RandomGroups(part.format, {part.rows, k}, prng);
    mixed.PackGroups(row, rows);
    row += part.rows;
    std::vector<float> y(static_cast<std::size_t>(part.rows));
    MatMul(context(), {.x = {x.data(), k}, .rows = 1, .w = Packed(rows), .y = {y.data(), part.rows}});
    expected.insert(expected.end(), y.begin(), y.end());
  }
  MatMul(context(), {.x = {x.data(), k}, .rows = 1, .w = mixed, .y = {actual.data(), mixed.n()}});
  EXPECT_EQ(actual, expected);
}

TEST(PackedGroups, PartsThatCannotShareAMatrix) {
  const auto share = [](std::vector<PackedMatrix::Part> parts) { return PackedMatrix::ArePanels(parts); };
  EXPECT_TRUE(share({{7, WeightFormat::kQ4}, {9, WeightFormat::kQ4}}));
  EXPECT_TRUE(share({{32, WeightFormat::kQ4}, {9, WeightFormat::kQ8}}));
  EXPECT_FALSE(share({{31, WeightFormat::kQ4}, {9, WeightFormat::kQ8}}));
  EXPECT_FALSE(share({{32, WeightFormat::kQ4}, {32, WeightFormat::kBF16}}));
  EXPECT_FALSE(share({{32, WeightFormat::kF32}, {32, WeightFormat::kBF16}}));
}

TEST_P(GroupMatMulTest, WhatIsNotFiniteStaysInItsRow) {
  Prng prng(6);
  const Shape shape = {40, 96};
  const PackedMatrix w = Packed(RandomGroups(WeightFormat::kQ8, shape, prng));
  auto x = RandomFloats(3 * shape.k, prng);
  std::vector<float> y(static_cast<std::size_t>(3 * shape.n));
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    x[static_cast<std::size_t>(shape.k + 50)] = bad;
    MatMul(context(), {.x = {x.data(), shape.k}, .rows = 3, .w = w, .y = {y.data(), shape.n}});
    for (std::size_t j = 0; j < y.size(); ++j) {
      EXPECT_EQ(std::isnan(y[j]), j / static_cast<std::size_t>(shape.n) == 1) << j;
    }
  }
}

}  // namespace
}  // namespace loramux::group_matmul_test
