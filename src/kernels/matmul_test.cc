#include "kernels/matmul.h"

#include <cmath>
#include <limits>

#include "kernels/kernel_test_support.h"

namespace loramux::matmul_test {
namespace {

class MatMulTest : public KernelTest {};
LORAMUX_INSTANTIATE_KERNEL_TEST(MatMulTest);

struct Shape {
  std::int64_t n;
  std::int64_t k;
};

// Complete and partial panels; depths below, at and beyond a block.
constexpr Shape kShapes[] = {{1, 1}, {31, 7}, {32, 64}, {33, 256}, {96, 300}, {128, 513}, {200, 96}, {330, 40}};
constexpr std::int64_t kRowCounts[] = {1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 16, 24, 25, 37, 100};

PackedMatrix RandomMatrix(Shape shape, DType dtype, Prng& prng) {
  PackedMatrix matrix(shape.n, shape.k, dtype);
  matrix.PackRows(0, shape.n, RandomElements(dtype, shape.n * shape.k, prng).data());
  return matrix;
}

TEST_P(MatMulTest, AgreesWithTheReference) {
  Prng prng(1);
  for (DType dtype : kStoredTypes) {
    for (const Shape& shape : kShapes) {
      const PackedMatrix w = RandomMatrix(shape, dtype, prng);
      const auto bias = RandomFloats(shape.n, prng);
      for (std::int64_t m : {1, 3, 14, 40}) {
        const auto x = RandomFloats(m * shape.k, prng);
        std::vector<float> expected(static_cast<std::size_t>(m * shape.n)), actual(expected);
        MatMul(reference(),
               {.x = {x.data(), shape.k}, .rows = m, .w = w, .bias = bias.data(), .y = {expected.data(), shape.n}});
        MatMul(context(),
               {.x = {x.data(), shape.k}, .rows = m, .w = w, .bias = bias.data(), .y = {actual.data(), shape.n}});
        for (std::size_t i = 0; i < expected.size(); ++i) {
          ASSERT_NEAR(actual[i], expected[i], SumTolerance(shape.k))
              << DTypeName(dtype) << " n=" << shape.n << " k=" << shape.k << " m=" << m << " at " << i;
        }
      }
    }
  }
}

TEST_P(MatMulTest, RowsHaveTheSameBitsInEveryBatch) {
  Prng prng(2);
  for (DType dtype : kStoredTypes) {
    for (const Shape& shape : kShapes) {
      const PackedMatrix w = RandomMatrix(shape, dtype, prng);
      const auto bias = RandomFloats(shape.n, prng);
      const std::int64_t most = 100;
      const auto x = RandomFloats(most * shape.k, prng);
      std::vector<float> alone(static_cast<std::size_t>(most * shape.n)), batch(alone);
      for (std::int64_t i = 0; i < most; ++i) {
        MatMul(context(), {.x = {x.data() + i * shape.k, shape.k},
                           .rows = 1,
                           .w = w,
                           .bias = bias.data(),
                           .y = {alone.data() + i * shape.n, shape.n}});
      }
      for (std::int64_t m : kRowCounts) {
        // The last m rows, so that a row is at different places in a tile.
        const std::int64_t first = most - m;
        MatMul(context(), {.x = {x.data() + first * shape.k, shape.k},
                           .rows = m,
                           .w = w,
                           .bias = bias.data(),
                           .y = {batch.data(), shape.n}});
        ASSERT_TRUE(BitwiseEqual(batch.data(), alone.data() + first * shape.n, m * shape.n))
            << DTypeName(dtype) << " n=" << shape.n << " k=" << shape.k << " m=" << m;
      }
    }
  }
}

TEST_P(MatMulTest, RespectsStridesAndLeavesGapsAlone) {
  Prng prng(3);
  const Shape shape = {70, 33};
  const PackedMatrix w = RandomMatrix(shape, DType::kBF16, prng);
  for (std::int64_t m : kRowCounts) {
    const std::int64_t x_stride = shape.k + 5, y_stride = shape.n + 3;
    const auto x = RandomFloats(m * x_stride, prng);
    std::vector<float> y(static_cast<std::size_t>(m * y_stride), -7.0f);
    std::vector<float> row(static_cast<std::size_t>(shape.n));
    MatMul(context(), {.x = {x.data(), x_stride}, .rows = m, .w = w, .y = {y.data(), y_stride}});
    for (std::int64_t i = 0; i < m; ++i) {
      MatMul(context(), {.x = {x.data() + i * x_stride, x_stride}, .rows = 1, .w = w, .y = {row.data(), shape.n}});
      EXPECT_TRUE(BitwiseEqual(y.data() + i * y_stride, row.data(), shape.n));
      for (std::int64_t gap = shape.n; gap < y_stride; ++gap) {
        EXPECT_EQ(y[static_cast<std::size_t>(i * y_stride + gap)], -7.0f);
      }
    }
  }
}

// A non-finite value in one row must not reach the others.
TEST_P(MatMulTest, NotANumberStaysInItsRow) {
  Prng prng(4);
  const Shape shape = {64, 48};
  const PackedMatrix w = RandomMatrix(shape, DType::kF32, prng);
  auto x = RandomFloats(13 * shape.k, prng);
  x[static_cast<std::size_t>(5 * shape.k + 9)] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> y(13 * 64);
  MatMul(context(), {.x = {x.data(), shape.k}, .rows = 13, .w = w, .y = {y.data(), shape.n}});
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 64 == 5) << i;
}

TEST(PackedMatrix, UnpackRowReturnsWhatWasPacked) {
  Prng prng(5);
  for (DType dtype : kStoredTypes) {
    const std::int64_t n = 75, k = 19;
    const auto source = RandomElements(dtype, n * k, prng);
    const std::size_t row_bytes = static_cast<std::size_t>(k) * DTypeSize(dtype);
    PackedMatrix matrix(n, k, dtype);
    // Three pieces, as q, k and v are packed, the first of them unaligned.
    std::vector<std::byte> unaligned(source.size() + 1);
    std::memcpy(unaligned.data() + 1, source.data(), source.size());
    matrix.PackRows(0, 40, unaligned.data() + 1);
    matrix.PackRows(40, 10, source.data() + 40 * row_bytes);
    matrix.PackRows(50, 25, source.data() + 50 * row_bytes);
    std::vector<float> row(static_cast<std::size_t>(k));
    for (std::int64_t j = 0; j < n; ++j) {
      matrix.UnpackRow(j, row.data());
      for (std::int64_t t = 0; t < k; ++t) {
        EXPECT_EQ(row[static_cast<std::size_t>(t)], LoadAsF32(dtype, source.data(), j * k + t));
      }
    }
  }
}

TEST(PackedMatrix, PanelSlotIsAPermutation) {
  for (DType dtype : kStoredTypes) {
    std::vector<int> seen(PackedMatrix::kPanel, 0);
    for (std::int64_t j = 0; j < PackedMatrix::kPanel; ++j) {
      ++seen[static_cast<std::size_t>(PackedMatrix::PanelSlot(dtype, j))];
    }
    for (int count : seen) EXPECT_EQ(count, 1);
  }
}

}  // namespace
}  // namespace loramux::matmul_test
