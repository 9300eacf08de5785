// The kernels of rows that adapters bring, against a double reference.
#include "gpu/kernels/own_rows.h"

#include <algorithm>
#include <cmath>
#include <vector>
#include <gtest/gtest.h>

#include "base/prng.h"
#include "gpu/device_arrays_for_test.h"
#include "gpu/device_for_test.h"
#include "tensor/half_float.h"

namespace loramux::gpu::own_rows_test {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr std::int64_t kVocab = 300;

std::vector<std::byte> RandomRow(DType dtype, std::int64_t width, Prng& random) {
  std::vector<std::byte> row(static_cast<std::size_t>(width) * DTypeSize(dtype));
  for (std::int64_t t = 0; t < width; ++t)
    StoreFromF32(dtype, row.data(), t, static_cast<float>(random.NextDouble() - 0.5));
  return row;
}

// What one adapter brings, on both sides.
struct Brought {
  std::vector<std::int32_t> tokens;
  std::vector<std::vector<std::byte>> rows;
  DType dtype;
  const OwnPartsOnDevice* on_device = nullptr;

  Brought(std::int32_t count, std::int32_t step, DType of, std::int64_t width, DeviceArrays& arrays, Prng& random)
      : dtype(of) {
    std::vector<const void*> addresses;
    for (std::int32_t j = 0; j < count; ++j) {
      tokens.push_back(2 + j * step);
      rows.push_back(RandomRow(dtype, width, random));
      addresses.push_back(arrays.Upload(rows.back()));
    }
    const OwnRowsOnDevice own = {arrays.Upload(tokens), arrays.Upload(addresses), count};
    on_device = arrays.Upload(std::vector<OwnPartsOnDevice>{{own, own, dtype, nullptr}});
  }
  // The index of a token's row; -1: none.
  std::int64_t Find(std::int64_t token) const {
    const auto at = std::ranges::find(tokens, static_cast<std::int32_t>(token));
    return at == tokens.end() ? -1 : at - tokens.begin();
  }
};

class OwnRowsTest : public testing::Test {
 protected:
  // What the adapter of each row brings: tiles of mixed adapters, rows without, one adapter in many rows.
  void Make(DType dtype, std::int64_t width) {
    brought_.clear();
    brought_.emplace_back(1, 1, dtype, width, arrays_, random_);
    brought_.emplace_back(0, 1, dtype, width, arrays_, random_);
    brought_.emplace_back(70, 4, dtype, width, arrays_, random_);
    of_row_ = {-1, 0, 0, 2, -1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0};
    own_.clear();
    for (const int index : of_row_) own_.push_back(index < 0 ? nullptr : brought_[index].on_device);
    own_.push_back(brought_[2].on_device);  // beyond the rows that there are
  }
  std::int64_t Rows() const { return static_cast<std::int64_t>(of_row_.size()); }
  const std::int32_t* RowsOnDevice() {
    return arrays_.Upload(std::vector<std::int32_t>{static_cast<std::int32_t>(Rows())});
  }

  DeviceArrays arrays_{DeviceForTest()};
  Prng random_{5};
  std::vector<Brought> brought_;
  std::vector<int> of_row_;
  std::vector<const OwnPartsOnDevice*> own_;
};

TEST_F(OwnRowsTest, EmbedOwnRows) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t width : {7, 64, 1100}) {
      Make(dtype, width);
      const std::int64_t stride = width + 8;
      std::vector<std::int32_t> tokens;
      for (std::int64_t i = 0; i <= Rows(); ++i)
        tokens.push_back(static_cast<std::int32_t>(i % 3 == 0 ? 3 : 2 + 4 * (i % 5)));
      std::vector<float> hidden(static_cast<std::size_t>((Rows() + 1) * stride));
      for (float& value : hidden) value = static_cast<float>(random_.NextDouble());
      float* const on_device = arrays_.Upload(hidden);
      EmbedOwnRows(arrays_.stream(), Rows() + 1,
                   {arrays_.Upload(own_), arrays_.Upload(tokens), RowsOnDevice(), on_device, width, stride});
      for (std::int64_t i = 0; i < Rows(); ++i) {
        if (of_row_[i] < 0) continue;
        const Brought& own = brought_[of_row_[i]];
        const std::int64_t at = own.Find(tokens[i]);
        for (std::int64_t t = 0; at >= 0 && t < width; ++t)
          hidden[i * stride + t] = LoadAsF32(dtype, own.rows[at].data(), t);
      }
      EXPECT_EQ(arrays_.Download(on_device, hidden.size()), hidden) << DTypeName(dtype) << " " << width;
    }
  }
}

// LoRA of the embedding, on both sides.
struct BroughtLora {
  std::vector<std::vector<std::byte>> a, b;
  std::vector<float> factors, gains;
  float scale = 0.5F;
  DType dtype;
  const OwnPartsOnDevice* on_device = nullptr;

  BroughtLora(std::int32_t rank, std::int32_t tokens, DType of, std::int64_t width, bool with_gains,
              DeviceArrays& arrays, Prng& random)
      : dtype(of) {
    std::vector<const void*> a_rows, b_rows;
    for (std::int32_t j = 0; j < rank; ++j) {
      a_rows.push_back(arrays.Upload(a.emplace_back(RandomLoraRow(tokens, random))));
      b_rows.push_back(arrays.Upload(b.emplace_back(RandomLoraRow(width, random))));
      // So that the products of codes are as large in both types.
      const float step = dtype == DType::kI8 ? 0.01F : 0.0008F;
      if (HasRowFactors(dtype)) factors.push_back(step * static_cast<float>(j + 1));
    }
    for (std::int64_t t = 0; with_gains && t < width; ++t) gains.push_back(static_cast<float>(random.NextDouble()));
    EmbeddingLoraOnDevice lora = {tokens, dtype, {}};
    lora.module = {arrays.Upload(a_rows), arrays.Upload(b_rows), rank, scale};
    if (!factors.empty()) lora.module.factors = arrays.Upload(factors);
    if (!gains.empty()) lora.module.gains = arrays.Upload(gains);
    on_device = arrays.Upload(std::vector<OwnPartsOnDevice>{{{}, {}, DType::kF32, nullptr, lora}});
  }
  std::vector<std::byte> RandomLoraRow(std::int64_t count, Prng& random) const {
    std::vector<std::byte> row(static_cast<std::size_t>(count) * DTypeSize(dtype));
    const double most = dtype == DType::kI8 ? 254 : HasRowFactors(dtype) ? 896 : 1;
    for (std::int64_t t = 0; t < count; ++t)
      StoreFromF32(dtype, row.data(), t, static_cast<float>((random.NextDouble() - 0.5) * most));
    return row;
  }
  double Changed(double value, std::int32_t token, std::int64_t t) const {
    for (std::size_t j = 0; j < a.size(); ++j) {
      value += scale * (factors.empty() ? 1.0 : factors[j]) * LoadAsF32(dtype, a[j].data(), token) *
               LoadAsF32(dtype, b[j].data(), t);
    }
    return gains.empty() ? value : value * gains[static_cast<std::size_t>(t)];
  }
};

TEST_F(OwnRowsTest, LoraOfTheEmbedding) {
  constexpr std::int32_t kTokens = 20;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kI8, DType::kF8E4M3}) {
    for (const std::int64_t width : {7, 64, 1100}) {
      const std::int64_t stride = width + 8;
      const std::vector<BroughtLora> loras = {{1, kTokens, dtype, width, false, arrays_, random_},
                                              {5, kTokens, dtype, width, true, arrays_, random_}};
      const std::vector<int> of_row = {-1, 0, 1, 1, -1, 0, 0};
      const std::vector<std::int32_t> tokens = {1, 2, 2, kTokens, 7, kTokens - 1, kTokens + 5};
      std::vector<const OwnPartsOnDevice*> own;
      for (const int index : of_row) own.push_back(index < 0 ? nullptr : loras[index].on_device);
      std::vector<float> hidden(of_row.size() * static_cast<std::size_t>(stride));
      for (float& value : hidden) value = static_cast<float>(random_.NextDouble());
      float* const on_device = arrays_.Upload(hidden);
      const auto rows = static_cast<std::int32_t>(of_row.size());
      EmbedOwnRows(arrays_.stream(), rows,
                   {arrays_.Upload(own), arrays_.Upload(tokens), arrays_.Upload(std::vector<std::int32_t>{rows}),
                    on_device, width, stride});
      const std::vector<float> found = arrays_.Download(on_device, hidden.size());
      for (std::size_t i = 0; i < of_row.size(); ++i) {
        for (std::int64_t t = 0; t < stride; ++t) {
          const std::size_t at = i * static_cast<std::size_t>(stride) + static_cast<std::size_t>(t);
          const bool changes = of_row[i] >= 0 && tokens[i] < kTokens && t < width;
          const double expected = changes ? loras[of_row[i]].Changed(hidden[at], tokens[i], t) : hidden[at];
          ASSERT_NEAR(found[at], expected, 1e-5 * std::max(1.0, std::abs(expected)))
              << DTypeName(dtype) << " " << width << " " << i << " " << t;
        }
      }
    }
  }
}

TEST_F(OwnRowsTest, ExcludeTokens) {
  constexpr std::int64_t kRows = 3, kStride = 1300;
  const std::int32_t* rows = arrays_.Upload(std::vector<std::int32_t>{kRows});
  for (const std::int64_t begin : {0, 8, 101}) {
    for (const std::int64_t width : {0, 1, 64, 1100}) {
      std::vector<float> y(static_cast<std::size_t>((kRows + 1) * kStride), 1.0f);
      float* const on_device = arrays_.Upload(y);
      ExcludeTokens(arrays_.stream(), kRows + 1, {rows, on_device, begin, width, kStride});
      for (std::int64_t i = 0; i < kRows; ++i) std::fill_n(y.begin() + i * kStride + begin, width, -INFINITY);
      EXPECT_EQ(arrays_.Download(on_device, y.size()), y) << begin << " " << width;
    }
  }
}

TEST_F(OwnRowsTest, OwnProducts) {
  for (const DType x_dtype : kTypes) {
    for (const DType dtype : kTypes) {
      for (const std::int64_t width : {7, 64, 520}) {
        Make(dtype, width);
        const std::int64_t stride = width + 8;
        const auto x = RandomRow(x_dtype, (Rows() + 1) * stride, random_);
        std::vector<float> y(static_cast<std::size_t>((Rows() + 1) * kVocab));
        for (float& value : y) value = static_cast<float>(random_.NextDouble());
        float* const on_device = arrays_.Upload(y);
        OwnProducts(arrays_.stream(), x_dtype, Rows() + 1, 70,
                    {arrays_.Upload(own_), arrays_.Upload(x), RowsOnDevice(), on_device, width, stride, kVocab});
        const std::vector<float> found = arrays_.Download(on_device, y.size());
        for (std::int64_t i = 0; i <= Rows(); ++i) {
          for (std::int64_t token = 0; token < kVocab; ++token) {
            const bool is_row = i < Rows() && of_row_[i] >= 0;
            const std::int64_t at = is_row ? brought_[of_row_[i]].Find(token) : -1;
            double expected = y[i * kVocab + token];
            if (at >= 0) expected = 0;
            for (std::int64_t t = 0; at >= 0 && t < width; ++t) {
              expected += static_cast<double>(LoadAsF32(x_dtype, x.data(), i * stride + t)) *
                          LoadAsF32(dtype, brought_[of_row_[i]].rows[at].data(), t);
            }
            ASSERT_NEAR(found[i * kVocab + token], expected, at < 0 ? 0 : 2e-5) << "row " << i << " token " << token;
          }
        }
      }
    }
  }
}

// The order of a sum depends on the width alone.
TEST_F(OwnRowsTest, ProductsOfARowHaveTheSameBitsInEveryBatch) {
  constexpr std::int64_t kWidth = 264;
  Make(DType::kBF16, kWidth);
  const auto row = RandomRow(DType::kF32, kWidth, random_);
  std::vector<float> first;
  for (const std::int64_t rows : {1, 3, 8, 9, 17}) {
    std::vector<std::byte> x;
    for (std::int64_t i = 0; i < rows; ++i) x.insert(x.end(), row.begin(), row.end());
    const std::vector<const OwnPartsOnDevice*> own(static_cast<std::size_t>(rows), brought_[2].on_device);
    float* const y = arrays_.Upload(std::vector<float>(static_cast<std::size_t>(rows * kVocab)));
    OwnProducts(
        arrays_.stream(), DType::kF32, rows, 70,
        {arrays_.Upload(own), arrays_.Upload(x),
         arrays_.Upload(std::vector<std::int32_t>{static_cast<std::int32_t>(rows)}), y, kWidth, kWidth, kVocab});
    const std::vector<float> found = arrays_.Download(y, static_cast<std::size_t>(rows * kVocab));
    if (first.empty()) first.assign(found.begin(), found.begin() + kVocab);
    for (std::int64_t i = 0; i < rows; ++i) {
      ASSERT_TRUE(std::equal(first.begin(), first.end(), found.begin() + i * kVocab)) << rows << " rows, row " << i;
    }
  }
}

}  // namespace
}  // namespace loramux::gpu::own_rows_test
