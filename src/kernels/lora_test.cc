#include "kernels/lora.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/kernel_test_support.h"
#include "kernels/own_rows.h"
#include "tensor/aligned_buffer.h"

namespace loramux::lora_test {
namespace {

class LoraTest : public KernelTest {};
LORAMUX_INSTANTIATE_KERNEL_TEST(LoraTest);

struct Case {
  std::int64_t in, out;
};

// An adapter with rows scattered in memory, each 64-byte aligned, in descending order.
struct Adapter {
  AlignedBuffer<std::byte> memory;
  std::vector<const std::byte*> a, b;
  std::vector<float> gains, shifts, factors;
  LoraWeights weights;

  Adapter(std::int32_t rank, float scale, DType dtype, Case c, Prng& prng) {
    const auto [in, out] = c;
    const auto row_bytes = [dtype](std::int64_t n) {
      return (n * static_cast<std::int64_t>(DTypeSize(dtype)) + 63) / 64 * 64;
    };
    memory.Reserve(std::max<std::int64_t>(1, rank * (row_bytes(in) + row_bytes(out))));
    std::int64_t offset = rank * (row_bytes(in) + row_bytes(out));
    const auto add = [&](std::int64_t n) {
      offset -= row_bytes(n);
      const auto row = RandomElements(dtype, n, prng);
      std::copy(row.begin(), row.end(), memory.data() + offset);
      return static_cast<const std::byte*>(memory.data() + offset);
    };
    for (std::int32_t j = 0; j < rank; ++j) {
      a.push_back(add(in));
      b.push_back(add(out));
    }
    if (HasRowFactors(dtype)) factors = RandomFactors(dtype, rank, prng);
    weights = {.rank = rank, .scale = scale, .dtype = dtype, .a_rows = a.data(), .b_rows = b.data()};
    if (!factors.empty()) weights.factors = factors.data();
  }
  // With vectors over the outputs.
  Adapter& WithVectors(std::int64_t out, Prng& prng) {
    gains = RandomFloats(out, prng);
    shifts = RandomFloats(out, prng);
    weights.gains = gains.data();
    weights.shifts = shifts.data();
    return *this;
  }
};

constexpr Case kCases[] = {{64, 96}, {100, 70}, {7, 130}, {768, 33}, {300, 1100}};

// LoraMatMul of segments of one layer.
struct Layer {
  Case c;
  const std::vector<float>& x;
  LoraVariant variant = LoraVariant::kMbgmv;
};
std::vector<float> Apply(const KernelContext& context, const Layer& layer, const std::vector<LoraSegment>& segments,
                         std::vector<float> y) {
  const Case c = layer.c;
  std::int64_t rank = 0, end = 0;
  for (const LoraSegment& segment : segments) {
    rank = std::max<std::int64_t>(rank, segment.weights.rank);
    end = std::max(end, segment.end);
  }
  AlignedBuffer<float> workspace(rank * end);
  const LoraProjection projection = {segments, {y.data(), c.out}, c.out};
  LoraMatMul(context, {layer.variant, {&projection, 1}, {layer.x.data(), c.in}, c.in, workspace.data()});
  return y;
}

// A random matrix in the format.
PackedMatrix RandomMatrix(WeightFormat format, std::int64_t n, std::int64_t k, Prng& prng) {
  PackedMatrix matrix(n, k, format);
  if (!IsQuantised(format)) {
    const DType type = matrix.dtype();
    matrix.PackRows(0, n, RandomElements(type, n * k, prng).data());
    return matrix;
  }
  GroupedRows rows(format, n, k);
  for (std::uint8_t& code : rows.codes) code = static_cast<std::uint8_t>(1 + prng.NextBelow(15));
  std::fill(rows.scales.begin(), rows.scales.end(), 0.125f);
  std::fill(rows.minimums.begin(), rows.minimums.end(), format == WeightFormat::kQ8 ? -16.0f : -1.0f);
  matrix.PackGroups(0, rows);
  return matrix;
}

TEST_P(LoraTest, AgreesWithTheReference) {
  Prng prng(1);
  for (DType dtype : kAdapterTypes) {
    for (const Case& c : kCases) {
      Adapter one(8, 0.5f, dtype, c, prng), two(13, -2.0f, dtype, c, prng), none(0, 1.0f, dtype, c, prng),
          big(64, 0.25f, dtype, c, prng);
      two.WithVectors(c.out, prng);
      big.WithVectors(c.out, prng);
      const std::vector<LoraSegment> segments = {
          {0, 1, one.weights}, {2, 5, two.weights}, {5, 7, none.weights}, {7, 30, big.weights}, {30, 47, one.weights}};
      const auto x = RandomFloats(50 * c.in, prng);
      const auto y = RandomFloats(50 * c.out, prng);
      const auto expected = Apply(reference(), {c, x}, segments, y);
      for (LoraVariant variant : {LoraVariant::kMbgmv, LoraVariant::kBgmv}) {
        const auto actual = Apply(context(), {c, x, variant}, segments, y);
        for (std::size_t i = 0; i < y.size(); ++i) {
          // s| stays below about sqrt(in), so the sum over the rank is of order sqrt(in * rank).
          ASSERT_NEAR(actual[i], expected[i], SumTolerance(c.in) * 20)
              << DTypeName(dtype) << " in=" << c.in << " out=" << c.out << " at " << i;
        }
      }
    }
  }
}

// Padding to the largest rank changes no bit: neither of -0, nor if x is infinite or NaN.
TEST_P(LoraTest, VariantsAreBitwiseEqual) {
  Prng prng(2);
  for (DType dtype : kAdapterTypes) {
    for (const Case& c : kCases) {
      Adapter one(3, -0.5f, dtype, c, prng), two(16, 2.0f, dtype, c, prng), none(0, 1.0f, dtype, c, prng),
          shift(0, 1.0f, dtype, c, prng);
      two.WithVectors(c.out, prng);
      shift.WithVectors(c.out, prng);
      const std::vector<LoraSegment> segments = {{0, 3, one.weights},
                                                 {3, 24, two.weights},
                                                 {25, 27, none.weights},
                                                 {27, 45, one.weights},
                                                 {45, 47, shift.weights}};
      auto x = RandomFloats(50 * c.in, prng);
      auto y = RandomFloats(50 * c.out, prng);
      std::fill_n(x.begin(), c.in, -0.0f);
      std::fill_n(y.begin(), c.out, -0.0f);
      std::fill_n(y.begin() + 25 * c.out, c.out, -0.0f);
      x[static_cast<std::size_t>(28 * c.in)] = std::numeric_limits<float>::infinity();
      const auto exact = Apply(context(), {c, x}, segments, y);
      const auto padded = Apply(context(), {c, x, LoraVariant::kBgmv}, segments, y);
      ASSERT_TRUE(BitwiseEqual(exact.data(), padded.data(), 50 * c.out))
          << DTypeName(dtype) << " in=" << c.in << " out=" << c.out;
    }
  }
}

TEST_P(LoraTest, RowsHaveTheSameBitsInEveryBatch) {
  Prng prng(3);
  for (DType dtype : kAdapterTypes) {
    for (const Case& c : kCases) {
      Adapter adapter(21, 0.5f, dtype, c, prng), other(40, 1.5f, dtype, c, prng);
      adapter.WithVectors(c.out, prng);
      const auto x = RandomFloats(60 * c.in, prng);
      const auto y = RandomFloats(60 * c.out, prng);
      const auto whole = Apply(context(), {c, x}, {{0, 60, adapter.weights}}, y);
      for (std::int64_t length : {1, 2, 3, 4, 5, 15, 16, 17, 31}) {
        for (std::int64_t begin : {0, 7, 29}) {
          const std::vector<LoraSegment> segments = {
              {0, begin, other.weights}, {begin, begin + length, adapter.weights}, {begin + length, 60, other.weights}};
          const auto out = Apply(context(), {c, x}, segments, y);
          ASSERT_TRUE(BitwiseEqual(out.data() + begin * c.out, whole.data() + begin * c.out, length * c.out))
              << DTypeName(dtype) << " in=" << c.in << " out=" << c.out << " " << begin << "+" << length;
        }
      }
    }
  }
}

TEST_P(LoraTest, RowsWithoutAnAdapterStayAsTheyAre) {
  Prng prng(4);
  const Case c = {64, 96};
  const Adapter adapter(8, 1.0f, DType::kBF16, c, prng), none(0, 1.0f, DType::kBF16, c, prng);
  const auto x = RandomFloats(10 * c.in, prng);
  const auto y = RandomFloats(10 * c.out, prng);
  const auto out = Apply(context(), {c, x}, {{2, 3, adapter.weights}, {4, 6, none.weights}}, y);
  for (std::int64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(BitwiseEqual(out.data() + i * c.out, y.data() + i * c.out, c.out), i != 2) << i;
  }
  EXPECT_TRUE(BitwiseEqual(Apply(context(), {c, x}, {}, y).data(), y.data(), 10 * c.out));
}

TEST_P(LoraTest, VectorsActOnTheWholeOutputOfTheirRowsAlone) {
  Prng prng(9);
  const Case c = {40, 1030};
  for (const std::int32_t rank : {0, 5}) {
    Adapter adapter(rank, 0.5f, DType::kF32, c, prng);
    const Adapter other(rank, 0.5f, DType::kF32, c, prng);
    const auto x = RandomFloats(30 * c.in, prng);
    const auto y = RandomFloats(30 * c.out, prng);
    const auto plain = Apply(context(), {c, x}, {{1, 25, adapter.weights}, {26, 28, other.weights}}, y);
    adapter.WithVectors(c.out, prng);
    const auto out = Apply(context(), {c, x}, {{1, 25, adapter.weights}, {26, 28, other.weights}}, y);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t row = i / static_cast<std::size_t>(c.out), o = i % static_cast<std::size_t>(c.out);
      if (row >= 1 && row < 25) {
        ASSERT_NEAR(out[i], adapter.gains[o] * plain[i] + adapter.shifts[o], 2e-6 * (1 + std::abs(plain[i]))) << i;
      } else {
        ASSERT_EQ(out[i], plain[i]) << i;
      }
    }
  }
}

// A product of which no adapter has rows of A, and one of which some have.
TEST_P(LoraTest, VectorsWithTheProductEqualTheTwoCalls) {
  Prng prng(10);
  const std::int64_t in = 200, outs[] = {160, 70}, n = 230;
  for (WeightFormat format : {WeightFormat::kBF16, WeightFormat::kQ4}) {
    const PackedMatrix w = RandomMatrix(format, n, in, prng);
    for (const std::int32_t rank : {0, 8}) {
      Adapter first(rank, 0.7f, DType::kBF16, {in, outs[0]}, prng), second(0, 0.7f, DType::kBF16, {in, outs[1]}, prng);
      first.WithVectors(outs[0], prng);
      second.WithVectors(outs[1], prng);
      for (std::int64_t m : {1, 5, 40, 130}) {
        const auto x = RandomFloats(m * in, prng);
        std::vector<float> apart(static_cast<std::size_t>(m * n)), together = apart;
        const std::vector<LoraSegment> of_first = {{0, m, first.weights}}, of_second = {{m / 2, m, second.weights}};
        const auto projections_of = [&](float* y) {
          return std::vector<LoraProjection>{{of_first, {y, n}, outs[0]}, {of_second, {y + outs[0], n}, outs[1]}};
        };
        AlignedBuffer<float> workspace(m * 16);
        MatMul(context(), {.x = {x.data(), in}, .rows = m, .w = w, .y = {apart.data(), n}});
        const auto of_apart = projections_of(apart.data()), of_together = projections_of(together.data());
        LoraMatMul(context(), {.projections = of_apart, .x = {x.data(), in}, .in = in, .workspace = workspace.data()});
        MatMulWithLora(context(), {.product = {.x = {x.data(), in}, .rows = m, .w = w, .y = {together.data(), n}},
                                   .projections = of_together,
                                   .workspace = workspace.data()});
        ASSERT_TRUE(BitwiseEqual(together.data(), apart.data(), m * n)) << WeightFormatName(format) << " m=" << m;
      }
    }
  }
}

// q, k and v in one call, with their columns side by side in one y, as in the model.
TEST_P(LoraTest, ProjectionsTogetherEqualProjectionsApart) {
  Prng prng(5);
  const std::int64_t in = 192, outs[] = {192, 64, 80}, y_stride = 192 + 64 + 80, rows = 40;
  for (LoraVariant variant : {LoraVariant::kMbgmv, LoraVariant::kBgmv}) {
    std::vector<Adapter> adapters;
    for (std::int64_t out : outs) {
      for (std::int32_t rank : {8, 30, 0}) adapters.emplace_back(rank, 0.7f, DType::kBF16, Case{in, out}, prng);
    }
    const auto x = RandomFloats(rows * in, prng);
    const auto y = RandomFloats(rows * y_stride, prng);
    auto apart = y, together = y;
    AlignedBuffer<float> workspace(3 * rows * 30);
    std::vector<std::vector<LoraSegment>> segments;
    std::vector<LoraProjection> projections;
    std::int64_t column = 0;
    for (std::size_t p = 0; p < 3; ++p) {
      segments.push_back({{0, 1, adapters[3 * p].weights},
                          {1, 2, adapters[3 * p + 1].weights},
                          {3, 20, adapters[3 * p].weights},
                          {20, 22, adapters[3 * p + 2].weights},
                          {22, 40, adapters[3 * p + 1].weights}});
    }
    for (std::size_t p = 0; p < 3; column += outs[p++]) {
      projections.push_back({segments[p], {together.data() + column, y_stride}, outs[p]});
      const LoraProjection one = {segments[p], {apart.data() + column, y_stride}, outs[p]};
      LoraMatMul(context(), {variant, {&one, 1}, {x.data(), in}, in, workspace.data()});
    }
    LoraMatMul(context(), {variant, projections, {x.data(), in}, in, workspace.data()});
    EXPECT_TRUE(BitwiseEqual(together.data(), apart.data(), rows * y_stride));
  }
}

// q, k and v of one matrix; k's adapters do not change all rows. Row counts reach every kind of tile, and parts of
// segments. Three threads also make tasks that wait for each other.
TEST_P(LoraTest, WithTheProductEqualsTheTwoCalls) {
  Prng prng(6);
  const std::int64_t in = 200, outs[] = {160, 70, 96}, n = 160 + 70 + 96, y_stride = n + 5, x_stride = in + 3;
  for (WeightFormat format : {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kQ8, WeightFormat::kQ4}) {
    const PackedMatrix w = RandomMatrix(format, n, in, prng);
    const DType dtype = format == WeightFormat::kF32 ? DType::kF32 : DType::kBF16;
    const auto bias = RandomFloats(n, prng);
    std::vector<Adapter> adapters;
    for (std::int64_t out : outs) {
      for (std::int32_t rank : {8, 33}) adapters.emplace_back(rank, 0.7f, dtype, Case{in, out}, prng);
    }
    for (std::int64_t m : {1, 2, 3, 5, 16, 36, 40, 130, 600}) {
      const auto x = RandomFloats(m * x_stride, prng);
      std::vector<float> apart(static_cast<std::size_t>(m * y_stride), -7.0f), together = apart;
      std::vector<std::vector<LoraSegment>> segments;
      for (std::size_t p = 0; p < 3; ++p) {
        segments.push_back({{0, 1, adapters[2 * p].weights}});
        if (m > 4) segments[p].push_back({2, m - 2, adapters[2 * p + 1].weights});
        if (m > 4 && p != 1) segments[p].push_back({m - 1, m, adapters[2 * p].weights});
      }
      AlignedBuffer<float> workspace(3 * m * 33);
      for (LoraVariant variant : {LoraVariant::kMbgmv, LoraVariant::kBgmv}) {
        const auto projections_of = [&](float* y) {
          std::vector<LoraProjection> projections;
          for (std::size_t p = 0; p < 3; y += outs[p++]) projections.push_back({segments[p], {y, y_stride}, outs[p]});
          return projections;
        };
        MatMul(context(),
               {.x = {x.data(), x_stride}, .rows = m, .w = w, .bias = bias.data(), .y = {apart.data(), y_stride}});
        const auto of_apart = projections_of(apart.data()), of_together = projections_of(together.data());
        LoraMatMul(context(), {variant, of_apart, {x.data(), x_stride}, in, workspace.data()});
        const MatMulArguments product = {{x.data(), x_stride}, m, w, bias.data(), {together.data(), y_stride}};
        MatMulWithLora(context(), {product, variant, of_together, workspace.data()});
        ASSERT_TRUE(BitwiseEqual(together.data(), apart.data(), m * y_stride))
            << WeightFormatName(format) << " m=" << m;
      }
    }
  }
}

// Enough rows of B that tiles of the product fetch them; the last adapter's outputs end within a cache line.
TEST_P(LoraTest, WithTheProductAndAHighRankEqualsTheTwoCalls) {
  Prng prng(8);
  for (std::int64_t in : {1, 65}) {
    const std::int64_t out = 973, m = 30;
    const PackedMatrix w = RandomMatrix(WeightFormat::kBF16, out, in, prng);
    const Adapter one(300, 0.5f, DType::kBF16, {in, out}, prng), two(40, 2.0f, DType::kF32, {in, out}, prng);
    const std::vector<LoraSegment> segments = {{0, 7, one.weights}, {7, 20, two.weights}, {21, 30, one.weights}};
    const auto x = RandomFloats(m * in, prng);
    std::vector<float> y(static_cast<std::size_t>(m * out));
    MatMul(context(), {.x = {x.data(), in}, .rows = m, .w = w, .y = {y.data(), out}});
    const auto expected = Apply(context(), {{in, out}, x}, segments, y);
    AlignedBuffer<float> workspace(m * 300);
    const LoraProjection projection = {segments, {y.data(), out}, out};
    MatMulWithLora(context(), {.product = {.x = {x.data(), in}, .rows = m, .w = w, .y = {y.data(), out}},
                               .projections = {&projection, 1},
                               .workspace = workspace.data()});
    EXPECT_TRUE(BitwiseEqual(y.data(), expected.data(), m * out)) << in;
  }
}

TEST_P(LoraTest, WithTheProductTakesTheRegionsOfTheProduct) {
  if (GetParam().backend == Backend::kReference) GTEST_SKIP() << "the oracle has no regions";
  Prng prng(7);
  const std::int64_t in = 64, out = 400;
  PackedMatrix w(out, in, DType::kBF16);
  const Adapter adapter(8, 0.5f, DType::kBF16, {in, out}, prng);
  AlignedBuffer<float> workspace(600 * 8);
  for (std::int64_t m : {1, 16, 600}) {
    const auto x = RandomFloats(m * in, prng);
    std::vector<float> y(static_cast<std::size_t>(m * out));
    const std::int64_t before = context().pool->loops();
    MatMul(context(), {.x = {x.data(), in}, .rows = m, .w = w, .y = {y.data(), out}});
    const std::int64_t alone = context().pool->loops() - before;
    const LoraSegment segment = {0, m, adapter.weights};
    const LoraProjection projection = {{&segment, 1}, {y.data(), out}, out};
    MatMulWithLora(context(), {.product = {.x = {x.data(), in}, .rows = m, .w = w, .y = {y.data(), out}},
                               .projections = {&projection, 1},
                               .workspace = workspace.data()});
    EXPECT_EQ(context().pool->loops() - before, 2 * alone) << m;
  }
}

// Rows of an adapter's own, with tokens that are not adjacent.
struct OwnMatrix {
  Adapter adapter;
  std::vector<TokenId> tokens;
  OwnRows own;

  OwnMatrix(std::int32_t count, TokenId step, DType dtype, std::int64_t in, Prng& prng)
      : adapter(count, 1.0f, dtype, {in, 1}, prng) {
    for (std::int32_t j = 0; j < count; ++j) tokens.push_back(1 + j * step);
    own = {count, dtype, tokens.data(), adapter.a.data()};
  }
};

TEST_P(LoraTest, OwnProductsTakeThePlaceOfWhatWasThere) {
  Prng prng(21);
  constexpr std::int64_t kVocab = 700, kRows = 21;
  for (DType dtype : kStoredTypes) {
    for (const std::int64_t in : {7, 64, 100, 768}) {
      OwnMatrix few(5, 3, dtype, in, prng), none(0, 1, dtype, in, prng), many(600, 1, dtype, in, prng);
      const std::vector<OwnSegment> segments = {{0, 1, few.own}, {2, 5, many.own}, {5, 6, none.own}, {7, 20, few.own}};
      const auto x = RandomFloats(kRows * in, prng), y = RandomFloats(kRows * kVocab, prng);
      auto expected = y, actual = y;
      OwnProducts(reference(), {segments, {x.data(), in}, in, {expected.data(), kVocab}});
      OwnProducts(context(), {segments, {x.data(), in}, in, {actual.data(), kVocab}});
      for (std::size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(actual[i], expected[i], SumTolerance(in)) << i;
      EXPECT_EQ(few.own.Find(4), few.own.rows[1]);
      EXPECT_EQ(few.own.Find(5), nullptr);
      EXPECT_EQ(none.own.Find(1), nullptr);
      // A product of its own is what the reference's dot product is; the rest is untouched.
      float dot = 0;
      for (std::int64_t t = 0; t < in; ++t) dot += x[t] * LoadAsF32(dtype, few.own.rows[1], t);
      EXPECT_EQ(expected[4], dot);
      EXPECT_EQ(expected[5], y[5]);
      EXPECT_EQ(expected[kVocab + 4], y[kVocab + 4]);
      // Bits do not depend on the rest of the batch.
      for (const OwnSegment& segment : segments) {
        for (std::int64_t i = segment.begin; i < segment.end; ++i) {
          std::vector<float> alone(y.begin() + i * kVocab, y.begin() + (i + 1) * kVocab);
          const OwnSegment one = {0, 1, segment.own};
          OwnProducts(context(), {std::span(&one, 1), {x.data() + i * in, in}, in, {alone.data(), kVocab}});
          ASSERT_TRUE(std::equal(alone.begin(), alone.end(), actual.begin() + i * kVocab)) << "row " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace loramux::lora_test
