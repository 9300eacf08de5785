#include "tensor/weight_format.h"

#include <gtest/gtest.h>

namespace loramux::weight_format_test {
namespace {

TEST(WeightFormat, RowsHoldElementsAndScales) {
  EXPECT_EQ(WeightFormat::Of(DType::kF32).RowBytes(100), 400u);
  EXPECT_EQ(WeightFormat::Of(DType::kBF16).RowBytes(100), 200u);
  EXPECT_EQ(WeightFormat::Of(DType::kF16), (WeightFormat{WeightType::kF16, 0}));
  EXPECT_EQ((WeightFormat{WeightType::kI8, 128}).RowBytes(256), 256u + 2 * 2);
  EXPECT_EQ((WeightFormat{WeightType::kI4, 32}).RowBytes(96), 48u + 3 * 2);
  EXPECT_EQ((WeightFormat{WeightType::kI4, 64}).RowBytes(65), 33u + 2 * 2);  // the last group is short
}

TEST(WeightFormat, NamesAndErrors) {
  EXPECT_EQ(WeightFormat::Of(DType::kBF16).Name(), "bf16");
  EXPECT_EQ((WeightFormat{WeightType::kI4, 128}).Name(), "int4:128");
  EXPECT_TRUE(WeightFormat::Of(DType::kF16).Validate().ok());
  EXPECT_TRUE((WeightFormat{WeightType::kI8, 64}).Validate().ok());
  EXPECT_EQ((WeightFormat{WeightType::kI4, 40}).Validate().error().message,
            "group of int4 weights: expected a multiple of 32, found 40");
  EXPECT_EQ((WeightFormat{WeightType::kBF16, 32}).Validate().error().message,
            "group of bf16 weights: expected 0, found 32");
  EXPECT_FALSE((WeightFormat{WeightType::kI8, 0}).Validate().ok());
}

}  // namespace
}  // namespace loramux::weight_format_test
