#include "kernels/lora_sums.h"

#include <cmath>
#include <vector>

#include "kernels/kernel_test_support.h"
#include "tensor/aligned_buffer.h"

namespace loramux::lora_sums_test {
namespace {

class LoraSumsTest : public KernelTest {};
LORAMUX_INSTANTIATE_KERNEL_TEST(LoraSumsTest);

// Rows of A and B at odd distances.
struct Weights {
  std::vector<std::vector<std::byte>> rows;
  std::vector<const std::byte*> a, b;
  std::vector<float> factors;
  LoraWeights weights;

  Weights(std::int32_t rank, DType dtype, std::int64_t in, std::int64_t out, Prng& prng) {
    for (std::int32_t j = 0; j < 2 * rank; ++j) rows.push_back(RandomElements(dtype, j < rank ? in : out, prng));
    for (std::int32_t j = 0; j < rank; ++j) a.push_back(rows[static_cast<std::size_t>(j)].data());
    for (std::int32_t j = rank; j < 2 * rank; ++j) b.push_back(rows[static_cast<std::size_t>(j)].data());
    weights = {rank, 1, dtype, a.data(), b.data()};
    if (!HasRowFactors(dtype)) return;
    factors = RandomFactors(dtype, rank, prng);
    weights.factors = factors.data();
  }
};

// `input`: but for the outputs and the workspace.
std::vector<float> Sums(const KernelContext& context, LoraSumsArguments input, const LoraWeights& weights,
                        IndexRange range) {
  const std::int64_t out = range.end - range.begin;
  std::vector<float> sums(static_cast<std::size_t>(input.rows * (out + 3)), 7);
  AlignedBuffer<float> workspace(LoraSumsFloats(input.rows, input.in, weights.rank));
  const LoraSumsOutput output = {weights, range.begin, out, sums.data(), out + 3};
  input.outputs = {&output, 1};
  input.workspace = workspace.data();
  LoraSums(context, input);
  return sums;
}

struct Case {
  std::int64_t rows, in, out;
  std::int32_t rank;
};
constexpr Case kCases[] = {{1, 64, 33, 8}, {2, 130, 70, 3},    {16, 2048, 40, 16}, {5, 2600, 4200, 5},
                           {3, 7, 130, 1}, {16, 5000, 100, 9}, {67, 600, 64, 4}};

// Every instruction set has the bits of the reference, which sums as the device does. (The gpu room's and the assist
// room's tests compare with the device itself.)
TEST_P(LoraSumsTest, HasTheBitsOfTheReference) {
  Prng prng(1);
  for (const Case& c : kCases) {
    for (const DType x_dtype : kStoredTypes) {
      for (const DType dtype : kAdapterTypes) {
        const Weights weights(c.rank, dtype, c.in, c.out + 5, prng);
        const auto x = RandomElements(x_dtype, c.rows * (c.in + 8), prng);
        const LoraSumsArguments input = {x_dtype, x.data(), c.in + 8, c.rows, c.in};
        const auto expected = Sums(reference(), input, weights.weights, {5, 5 + c.out});
        const auto actual = Sums(context(), input, weights.weights, {5, 5 + c.out});
        ASSERT_TRUE(BitwiseEqual(actual.data(), expected.data(), static_cast<std::int64_t>(actual.size())))
            << DTypeName(x_dtype) << " " << DTypeName(dtype) << " rows=" << c.rows << " in=" << c.in;
      }
    }
  }
}

// Fused multiply-adds change rounding alone, and have the reference's bits where the instruction set has them.
TEST_P(LoraSumsTest, FusedAgrees) {
  Prng prng(2);
  const bool has_fused = context().backend == Backend::kReference ||
                         (GetParam().target & (HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL | HWY_NEON | HWY_SVE)) != 0;
  for (const Case& c : kCases) {
    const Weights weights(c.rank, DType::kBF16, c.in, c.out, prng);
    const auto x = RandomElements(DType::kBF16, c.rows * c.in, prng);
    const LoraSumsArguments input = {
        .dtype = DType::kBF16, .x = x.data(), .x_stride = c.in, .rows = c.rows, .in = c.in, .fused = true};
    const auto expected = Sums(reference(), input, weights.weights, {0, c.out});
    const auto actual = Sums(context(), input, weights.weights, {0, c.out});
    if (has_fused) {
      ASSERT_TRUE(BitwiseEqual(actual.data(), expected.data(), static_cast<std::int64_t>(actual.size()))) << c.in;
    }
    const float tolerance = SumTolerance(c.in) * static_cast<float>(c.rank) * 20;
    for (std::size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], tolerance) << c.in;
  }
}

TEST_P(LoraSumsTest, RowsHaveTheSameBitsInEveryPiece) {
  Prng prng(3);
  const std::int64_t in = 1100, out = 300;
  const Weights weights(6, DType::kBF16, in, out, prng);
  const auto x = RandomElements(DType::kBF16, 16 * in, prng);
  const auto whole = Sums(context(), {DType::kBF16, x.data(), in, 16, in}, weights.weights, {0, out});
  for (std::int64_t rows = 1; rows < 9; ++rows) {
    const LoraSumsArguments input = {DType::kBF16, x.data() + 7 * in * 2, in, rows, in};
    const auto part = Sums(context(), input, weights.weights, {0, out});
    ASSERT_TRUE(BitwiseEqual(part.data(), whole.data() + 7 * (out + 3), rows * (out + 3))) << rows;
  }
}

// Several outputs share x; a column range is that part of the whole.
TEST_P(LoraSumsTest, OutputsTogetherEqualOutputsApart) {
  Prng prng(4);
  const std::int64_t in = 700, rows = 5;
  const Weights one(7, DType::kF16, in, 90, prng), two(20, DType::kF32, in, 64, prng);
  const auto x = RandomElements(DType::kF16, rows * in, prng);
  LoraSumsArguments input = {DType::kF16, x.data(), in, rows, in};
  std::vector<float> sums(static_cast<std::size_t>(rows * 200));
  AlignedBuffer<float> workspace(LoraSumsFloats(rows, in, 20));
  const LoraSumsOutput outputs[] = {{one.weights, 0, 90, sums.data(), 200},
                                    {two.weights, 10, 50, sums.data() + 92, 200}};
  input.outputs = outputs;
  input.workspace = workspace.data();
  LoraSums(context(), input);
  const auto first = Sums(context(), input, one.weights, {0, 90});
  const auto second = Sums(context(), input, two.weights, {0, 64});
  for (std::int64_t i = 0; i < rows; ++i) {
    EXPECT_TRUE(BitwiseEqual(sums.data() + i * 200, first.data() + i * 93, 90));
    EXPECT_TRUE(BitwiseEqual(sums.data() + i * 200 + 92, second.data() + i * 67 + 10, 50));
  }
}

}  // namespace
}  // namespace loramux::lora_sums_test
