// The row-wise kernels against a double reference.
#include "gpu/kernels/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>
#include <gtest/gtest.h>

#include "base/prng.h"
#include "gpu/device_arrays_for_test.h"
#include "gpu/device_for_test.h"
#include "tensor/half_float.h"

namespace loramux::gpu::elementwise_test {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
// What rounding to the type changes at most, relatively.
double UnitOf(DType dtype) { return dtype == DType::kF32 ? 2e-6 : dtype == DType::kBF16 ? 0x1p-8 : 0x1p-10; }

std::vector<float> RandomFloats(std::uint64_t seed, std::int64_t count) {
  Prng random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(random.NextDouble() * 4 - 2);
  return values;
}

std::vector<std::byte> Rounded(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * DTypeSize(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    StoreFromF32(dtype, bytes.data(), static_cast<std::int64_t>(i), values[i]);
  }
  return bytes;
}

std::vector<float> Widened(DType dtype, const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / DTypeSize(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = LoadAsF32(dtype, bytes.data(), static_cast<std::int64_t>(i));
  }
  return values;
}

// A matrix whose rows are wider than what the kernel may touch.
struct Shape {
  std::int64_t width, stride;
};
// Aligned and not, shorter than a group, one element, more than one block of a row, more than NormRows keeps.
constexpr Shape kShapes[] = {{64, 64},   {1, 1},       {7, 9},       {260, 264},
                             {260, 261}, {1030, 1032}, {2048, 2056}, {8456, 8456}};
constexpr std::int64_t kRows = 3, kMaxRows = 5;

class Elementwise : public testing::Test {
 protected:
  DeviceArrays arrays_{DeviceForTest()};
  const std::int32_t* rows_ = arrays_.Upload(std::vector<std::int32_t>{kRows});
};

TEST_F(Elementwise, EmbedRows) {
  const std::vector<std::int32_t> tokens = {6, 0, 9, 100, 100};  // 9: beyond the table; 100: beyond kRows
  for (const DType dtype : kTypes) {
    for (const auto& [width, stride] : kShapes) {
      const auto table = Rounded(dtype, RandomFloats(1, 7 * width));
      const std::vector<float> before = RandomFloats(2, kMaxRows * stride);
      float* hidden = arrays_.Upload(before);
      EmbedRows(arrays_.stream(), dtype, kMaxRows,
                {arrays_.Upload(table), arrays_.Upload(tokens), rows_, hidden, width, stride, 7});
      std::vector<float> expected = before;
      for (std::int64_t i = 0; i < kRows; ++i) {
        for (std::int64_t j = 0; j < width; ++j) {
          expected[i * stride + j] = LoadAsF32(dtype, table.data(), std::min(tokens[i], 6) * width + j);
        }
      }
      EXPECT_EQ(arrays_.Download(hidden, before.size()), expected) << DTypeName(dtype) << " " << width;
    }
  }
}

TEST_F(Elementwise, EmbedPositions) {
  const std::vector<std::int32_t> positions = {4, 0, 2, 1'000'000, 1'000'000};
  for (const DType dtype : kTypes) {
    for (const auto& [width, stride] : kShapes) {
      const auto table = Rounded(dtype, RandomFloats(1, 7 * width));
      const std::vector<float> before = RandomFloats(2, kMaxRows * stride);
      float* hidden = arrays_.Upload(before);
      EmbedPositions(arrays_.stream(), dtype, kMaxRows,
                     {arrays_.Upload(table), arrays_.Upload(positions), rows_, hidden, width, stride, 2});
      std::vector<float> expected = before;
      for (std::int64_t i = 0; i < kRows; ++i) {
        for (std::int64_t j = 0; j < width; ++j) {
          expected[i * stride + j] += LoadAsF32(dtype, table.data(), (positions[i] + 2) * width + j);
        }
      }
      EXPECT_EQ(arrays_.Download(hidden, before.size()), expected) << DTypeName(dtype) << " " << width;
    }
  }
}

// In place, with what the norms of single families have: an offset of the weights, a factor of what is added, no
// weights.
TEST_F(Elementwise, NormRowsInPlace) {
  for (const auto& [width, stride] : kShapes) {
    const std::vector<float> x = RandomFloats(1, kRows * stride), added = RandomFloats(2, kRows * stride);
    const std::vector<float> weight = RandomFloats(3, width);
    for (const bool weighs : {false, true}) {
      float* y = arrays_.Upload(x);
      NormRowsArguments arguments = {y,
                                     arrays_.Upload(added),
                                     weighs ? arrays_.Upload(weight) : nullptr,
                                     y,
                                     rows_,
                                     width,
                                     stride,
                                     stride,
                                     stride,
                                     1e-5f};
      arguments.added_scale = 0.22f;
      arguments.weight_offset = 1;
      NormRows(arrays_.stream(), DType::kF32, kRows, arguments);
      const std::vector<float> result = arrays_.Download(y, x.size());
      for (std::int64_t i = 0; i < kRows; ++i) {
        std::vector<double> sum;
        double squares = 0;
        for (std::int64_t j = 0; j < width; ++j) {
          sum.push_back(x[i * stride + j] + 0.22f * static_cast<double>(added[i * stride + j]));
          squares += sum.back() * sum.back();
        }
        const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
        for (std::int64_t j = 0; j < width; ++j) {
          const double normed = sum[static_cast<std::size_t>(j)] * scale * (1 + static_cast<double>(weight[j]));
          const double expected = weighs ? normed : sum[static_cast<std::size_t>(j)];
          ASSERT_NEAR(result[i * stride + j], expected, std::abs(expected) * 2e-6 + 1e-6) << width << " " << weighs;
        }
      }
    }
  }
}

TEST_F(Elementwise, LayerNorm) {
  for (const auto& [width, stride] : kShapes) {
    std::vector<float> x = RandomFloats(1, kRows * stride);
    for (float& value : x) value += 3;
    const std::vector<float> weight = RandomFloats(2, width), bias = RandomFloats(3, width);
    float* y = arrays_.Allocate<float>(x.size());
    NormRowsArguments arguments = {
        arrays_.Upload(x), nullptr, arrays_.Upload(weight), y, rows_, width, stride, 0, stride, 1e-5f};
    arguments.bias = arrays_.Upload(bias);
    NormRows(arrays_.stream(), DType::kF32, kRows, arguments);
    const std::vector<float> result = arrays_.Download(y, x.size());
    for (std::int64_t i = 0; i < kRows; ++i) {
      double mean = 0, squares = 0;
      for (std::int64_t j = 0; j < width; ++j)
        mean += static_cast<double>(x[i * stride + j]) / static_cast<double>(width);
      for (std::int64_t j = 0; j < width; ++j) squares += std::pow(static_cast<double>(x[i * stride + j]) - mean, 2);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
      for (std::int64_t j = 0; j < width; ++j) {
        const double expected = (static_cast<double>(x[i * stride + j]) - mean) * scale * weight[j] + bias[j];
        // The mean is rounded, and one column alone is its own mean.
        ASSERT_NEAR(result[i * stride + j], expected, width == 1 ? 1e-3 : 1e-5) << width << " " << j;
      }
    }
  }
}

TEST_F(Elementwise, NormRows) {
  for (const DType dtype : kTypes) {
    for (const auto& [width, stride] : kShapes) {
      for (const bool add : {false, true}) {
        const std::vector<float> x = RandomFloats(1, kMaxRows * stride), added = RandomFloats(2, kMaxRows * stride);
        const std::vector<float> weight = RandomFloats(3, width);
        const auto before = Rounded(dtype, RandomFloats(4, kMaxRows * stride));
        float* x_device = arrays_.Upload(x);
        std::byte* y = arrays_.Upload(before);
        NormRows(arrays_.stream(), dtype, kMaxRows,
                 {x_device, add ? arrays_.Upload(added) : nullptr, arrays_.Upload(weight), y, rows_, width, stride,
                  stride, stride, 1e-5f});
        std::vector<float> sum = x;
        std::vector<float> result = Widened(dtype, arrays_.Download(y, before.size()));
        const std::vector<float> untouched = Widened(dtype, before);
        for (std::int64_t i = 0; i < kMaxRows; ++i) {
          double squares = 0;
          const std::int64_t used = i < kRows ? width : 0;
          for (std::int64_t j = 0; j < used; ++j) {
            if (add) sum[i * stride + j] += added[i * stride + j];
            squares += static_cast<double>(sum[i * stride + j]) * sum[i * stride + j];
          }
          const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
          for (std::int64_t j = 0; j < used; ++j) {
            const double expected = sum[i * stride + j] * scale * weight[j];
            ASSERT_NEAR(result[i * stride + j], expected, std::abs(expected) * UnitOf(dtype) + 1e-6)
                << DTypeName(dtype) << " " << width << " row " << i << " column " << j;
          }
          for (std::int64_t j = used; j < stride; ++j) ASSERT_EQ(result[i * stride + j], untouched[i * stride + j]);
        }
        EXPECT_EQ(arrays_.Download(x_device, x.size()), sum);
      }
    }
  }
}

// Rows of adapters that bring the norm take their weights, others the base model's.
TEST_F(Elementwise, NormRowsWithWeightsOfAdapters) {
  constexpr std::int64_t kWidth = 260;
  const std::vector<float> x = RandomFloats(1, kRows * kWidth), base = RandomFloats(2, kWidth);
  const std::vector<float> brought = RandomFloats(3, kWidth);
  const std::vector<const float*> norms = {nullptr, arrays_.Upload(brought)};
  const std::vector<OwnPartsOnDevice> parts = {{.norms = arrays_.Upload(norms)}, {}};
  const OwnPartsOnDevice* const on_device = arrays_.Upload(parts);
  const OwnPartsOnDevice* const* const own =
      arrays_.Upload(std::vector<const OwnPartsOnDevice*>{on_device, nullptr, on_device + 1});
  const auto norm = [&](const std::vector<float>& weights, OwnNorm of) {
    float* y = arrays_.Allocate<float>(x.size());
    NormRows(arrays_.stream(), DType::kF32, kRows,
             {arrays_.Upload(x), nullptr, arrays_.Upload(weights), y, rows_, kWidth, kWidth, 0, kWidth, 1e-5f, of});
    return arrays_.Download(y, x.size());
  };
  const std::vector<float> by_base = norm(base, {}), by_brought = norm(brought, {});
  std::vector<float> expected = by_base;
  std::copy_n(by_brought.begin(), kWidth, expected.begin());
  EXPECT_EQ(norm(base, {own, 1}), expected);
  EXPECT_EQ(norm(base, {own, 0}), by_base);  // another norm, which none brings
}

TEST_F(Elementwise, GateMul) {
  for (const DType dtype : kTypes) {
    for (const auto& [width, stride] : kShapes) {
      const std::int64_t x_stride = 2 * stride;
      std::vector<float> x = RandomFloats(1, kMaxRows * x_stride);
      x[0] = -1000, x[x_stride] = 1000;  // exp overflows
      const auto before = Rounded(dtype, RandomFloats(2, kMaxRows * stride));
      std::byte* y = arrays_.Upload(before);
      GateMul(arrays_.stream(), dtype, kMaxRows, {arrays_.Upload(x), y, rows_, width, x_stride, stride});
      const std::vector<float> result = Widened(dtype, arrays_.Download(y, before.size()));
      const std::vector<float> untouched = Widened(dtype, before);
      for (std::int64_t i = 0; i < kMaxRows; ++i) {
        const std::int64_t used = i < kRows ? width : 0;
        for (std::int64_t j = 0; j < used; ++j) {
          const double gate = x[i * x_stride + j];
          const double expected = gate / (1 + std::exp(-gate)) * x[i * x_stride + width + j];
          ASSERT_NEAR(result[i * stride + j], expected, std::abs(expected) * UnitOf(dtype) + 1e-6);
        }
        for (std::int64_t j = used; j < stride; ++j) ASSERT_EQ(result[i * stride + j], untouched[i * stride + j]);
      }
    }
  }
}

TEST_F(Elementwise, ActivationsWithAndWithoutAGate) {
  const auto apply = [](Activation f, double x) {
    switch (f) {
      case Activation::kSilu:
        return x / (1 + std::exp(-x));
      case Activation::kGeluTanh:
        return x / 2 * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
      case Activation::kGelu:
        return x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
      case Activation::kRelu2:
        return std::max(x, 0.0) * std::max(x, 0.0);
      default:
        return std::max(x, 0.0);
    }
  };
  constexpr std::int64_t kWidth = 260;
  std::vector<float> x = RandomFloats(1, kRows * 2 * kWidth);
  for (float& value : x) value *= 4;
  for (const Activation f :
       {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kRelu, Activation::kRelu2}) {
    for (const bool gated : {false, true}) {
      float* y = arrays_.Allocate<float>(kRows * kWidth);
      GateMul(arrays_.stream(), DType::kF32, kRows,
              {arrays_.Upload(x), y, rows_, kWidth, 2 * kWidth, kWidth, f, gated});
      const std::vector<float> result = arrays_.Download(y, kRows * kWidth);
      for (std::int64_t i = 0; i < kRows * kWidth; ++i) {
        const std::int64_t at = i / kWidth * 2 * kWidth + i % kWidth;
        const double expected = apply(f, x[at]) * (gated ? static_cast<double>(x[at + kWidth]) : 1.0);
        ASSERT_NEAR(result[i], expected, 2e-6 * (1 + std::abs(expected))) << static_cast<int>(f) << gated << " " << i;
      }
    }
  }
}

TEST_F(Elementwise, ClampedSwiglu) {
  constexpr std::int64_t kWidth = 260;
  constexpr float kAlpha = 1.4f, kLimit = 1.5f;
  std::vector<float> x = RandomFloats(1, kRows * 2 * kWidth);
  for (float& value : x) value *= 4;  // beyond the limits on both sides
  float* y = arrays_.Allocate<float>(kRows * kWidth);
  GateMul(arrays_.stream(), DType::kF32, kRows,
          {arrays_.Upload(x), y, rows_, kWidth, 2 * kWidth, kWidth, Activation::kClampedSwiglu, true, kAlpha, kLimit});
  const std::vector<float> result = arrays_.Download(y, kRows * kWidth);
  for (std::int64_t i = 0; i < kRows * kWidth; ++i) {
    const std::int64_t at = i / kWidth * 2 * kWidth + i % kWidth;
    const double gate = std::min(x[at], kLimit), up = std::clamp(x[at + kWidth], -kLimit, kLimit);
    ASSERT_NEAR(result[i], gate / (1 + std::exp(-static_cast<double>(kAlpha) * gate)) * (up + 1), 1e-5) << i;
  }
}

TEST_F(Elementwise, ScaleRows) {
  for (const auto& [width, stride] : kShapes) {
    for (const float cap : {0.0f, 3.0f}) {
      std::vector<float> x = RandomFloats(1, kMaxRows * stride);
      x[0] = -INFINITY;  // a token that may not be generated stays one
      float* device = arrays_.Upload(x);
      ScaleRows(arrays_.stream(), kMaxRows, {device, rows_, width, stride, 5.5f, cap});
      const std::vector<float> result = arrays_.Download(device, x.size());
      for (std::int64_t i = 0; i < kMaxRows * stride; ++i) {
        const bool used = i / stride < kRows && i % stride < width;
        const double scaled = 5.5 * static_cast<double>(x[i]);
        const bool capped = used && cap > 0 && std::isfinite(scaled);
        const double expected = !used ? static_cast<double>(x[i]) : capped ? cap * std::tanh(scaled / cap) : scaled;
        if (i == 0) {
          ASSERT_EQ(result[0], x[0]);
        } else {
          ASSERT_NEAR(result[i], expected, 2e-6 * (1 + std::abs(expected))) << width << " " << i;
        }
      }
    }
  }
}

TEST_F(Elementwise, GatherAndAddRows) {
  const std::vector<std::int32_t> indices = {4, 1, 4, 1'000'000, 1'000'000};
  for (const auto& [width, stride] : kShapes) {
    const std::vector<float> x = RandomFloats(1, kMaxRows * stride), before = RandomFloats(2, kMaxRows * stride);
    float *gathered = arrays_.Upload(before), *added = arrays_.Upload(before);
    const float* x_device = arrays_.Upload(x);
    GatherRows(arrays_.stream(), kMaxRows, {x_device, arrays_.Upload(indices), rows_, gathered, width, stride, stride});
    AddRows(arrays_.stream(), kMaxRows, {x_device, added, rows_, width, stride, stride});
    std::vector<float> expected_gathered = before, expected_added = before;
    for (std::int64_t i = 0; i < kRows; ++i) {
      for (std::int64_t j = 0; j < width; ++j) {
        expected_gathered[i * stride + j] = x[indices[i] * stride + j];
        expected_added[i * stride + j] += x[i * stride + j];
      }
    }
    EXPECT_EQ(arrays_.Download(gathered, before.size()), expected_gathered) << width;
    EXPECT_EQ(arrays_.Download(added, before.size()), expected_added) << width;
  }
}

TEST_F(Elementwise, PoolRows) {
  const std::vector<PoolRangeOnDevice> ranges = {{1, 3}, {0, 0}, {4, 1}};
  for (const DType dtype : kTypes) {
    for (const auto& [width, stride] : kShapes) {
      const auto x = Rounded(dtype, RandomFloats(1, kMaxRows * stride));
      std::vector<double> expected(ranges.size() * static_cast<std::size_t>(width));
      std::iota(expected.begin(), expected.end(), 0.5);
      double* sums = arrays_.Upload(expected);
      PoolRows(arrays_.stream(), dtype, static_cast<std::int64_t>(ranges.size()),
               {arrays_.Upload(x), arrays_.Upload(ranges), sums, width, stride});
      for (std::size_t r = 0; r < ranges.size(); ++r) {
        for (std::int64_t row = ranges[r].first_row; row < ranges[r].first_row + ranges[r].rows; ++row) {
          for (std::int64_t j = 0; j < width; ++j) {
            expected[static_cast<std::int64_t>(r) * width + j] += LoadAsF32(dtype, x.data(), row * stride + j);
          }
        }
      }
      EXPECT_EQ(arrays_.Download(sums, expected.size()), expected) << DTypeName(dtype) << " " << width;
    }
  }
}

TEST_F(Elementwise, CopyPages) {
  for (const std::int64_t page_bytes : {16, 4096, 40'000}) {
    const std::int64_t stride = page_bytes + 48;
    std::vector<std::byte> bytes(static_cast<std::size_t>(5 * stride));
    Prng random(7);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Next());
    std::byte* pages = arrays_.Upload(bytes);
    CopyPages(arrays_.stream(), 2, {pages, stride, page_bytes, arrays_.Upload(std::vector<std::uint32_t>{3, 0, 1, 4})});
    std::memcpy(&bytes[0], &bytes[3 * stride], static_cast<std::size_t>(page_bytes));
    std::memcpy(&bytes[4 * stride], &bytes[stride], static_cast<std::size_t>(page_bytes));
    EXPECT_EQ(arrays_.Download(pages, bytes.size()), bytes);
  }
}

// The order of a row's sum depends on the width alone: not on the rows beside it, on alignment or on strides.
TEST_F(Elementwise, NormsOfARowHaveTheSameBitsInEveryBatch) {
  for (const std::int64_t width : {7, 260, 1030, 8456}) {
    const std::vector<float> row = RandomFloats(1, width), weight = RandomFloats(2, width);
    std::vector<std::uint32_t> first;
    for (const std::int64_t rows : {1, 4}) {
      for (const std::int64_t gap : {0, 1, 8}) {
        const std::int64_t stride = width + gap;
        std::vector<float> x = RandomFloats(3, rows * stride);
        std::copy(row.begin(), row.end(), x.end() - stride);
        float* y = arrays_.Allocate<float>(x.size());
        NormRows(arrays_.stream(), DType::kF32, rows,
                 {arrays_.Upload(x), nullptr, arrays_.Upload(weight), y,
                  arrays_.Upload(std::vector<std::int32_t>{static_cast<std::int32_t>(rows)}), width, stride, 0, stride,
                  1e-5f});
        const auto result = arrays_.Download(reinterpret_cast<const std::uint32_t*>(y), x.size());
        const std::vector<std::uint32_t> bits(result.end() - stride, result.end() - gap);
        if (first.empty()) first = bits;
        EXPECT_EQ(bits, first) << width << " " << rows << " " << gap;
      }
    }
  }
}

TEST_F(Elementwise, NoRowsTouchNothing) {
  const std::int32_t* none = arrays_.Upload(std::vector<std::int32_t>{0});
  EmbedRows(arrays_.stream(), DType::kF32, 4, {nullptr, nullptr, none, nullptr, 8, 8, 8});
  NormRows(arrays_.stream(), DType::kBF16, 4, {nullptr, nullptr, nullptr, nullptr, none, 8, 8, 8, 8, 0});
  GateMul(arrays_.stream(), DType::kF16, 4, {nullptr, nullptr, none, 8, 8, 8});
  GatherRows(arrays_.stream(), 4, {nullptr, nullptr, none, nullptr, 8, 8, 8});
  AddRows(arrays_.stream(), 4, {nullptr, nullptr, none, 8, 8, 8});
  EmbedRows(arrays_.stream(), DType::kF32, 0, {});
  PoolRows(arrays_.stream(), DType::kF32, 0, {});
  CopyPages(arrays_.stream(), 0, {});
  arrays_.Synchronize();
}

}  // namespace
}  // namespace loramux::gpu::elementwise_test
