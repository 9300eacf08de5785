#include "tensor/weight_format.h"

#include <gtest/gtest.h>

namespace loramux::weight_format_test {
namespace {

TEST(WeightFormat, SizesOfARow) {
  EXPECT_EQ(WeightRowBytes(WeightFormat::kF32, 64), 256u);
  EXPECT_EQ(WeightRowBytes(WeightFormat::kBF16, 64), 128u);
  EXPECT_EQ(WeightRowBytes(WeightFormat::kQ8, 64), 68u);
  EXPECT_EQ(WeightRowBytes(WeightFormat::kQ4, 64), 40u);
}

TEST(WeightFormat, AnIncompleteGroupCountsWhole) {
  EXPECT_EQ(WeightGroups(33), 2);
  EXPECT_EQ(WeightRowBytes(WeightFormat::kQ8, 33), 68u);
}

TEST(WeightFormat, NamesAreReadBack) {
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kF16, WeightFormat::kQ8, WeightFormat::kQ4}) {
    EXPECT_EQ(ParseWeightFormat(WeightFormatName(format)), format);
  }
  EXPECT_EQ(ParseWeightFormat("q5"), std::nullopt);
}

TEST(WeightFormat, TypesOfFloats) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) EXPECT_EQ(DTypeOf(FormatOf(dtype)), dtype);
}

}  // namespace
}  // namespace loramux::weight_format_test
