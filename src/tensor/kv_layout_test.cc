#include "tensor/kv_layout.h"

namespace loramux::kv_layout_test {
namespace {

KvLayout Example() {
  return {.num_layers = 3, .num_kv_heads = 2, .head_dim = 64, .page_tokens = 16, .dtype = DType::kBF16};
}

TEST(KvLayout, BlocksTileThePageWithoutGaps) {
  const KvLayout layout = Example();
  const std::size_t block = 64 * 16 * 2;
  std::size_t expected = 0;
  for (std::int64_t layer = 0; layer < 3; ++layer) {
    for (std::int64_t head = 0; head < 2; ++head) EXPECT_EQ(layout.KeyOffset(layer, head), expected + head * block);
    expected += 2 * block;
    for (std::int64_t head = 0; head < 2; ++head) EXPECT_EQ(layout.ValueOffset(layer, head), expected + head * block);
    expected += 2 * block;
  }
  EXPECT_EQ(layout.PageBytes(), expected);
  EXPECT_EQ(layout.BytesPerToken() * 16, layout.PageBytes());
}

TEST(KvLayout, InEightBitsEachHeadIsFollowedByItsScales) {
  KvLayout layout = Example();
  layout.dtype = DType::kI8;
  const std::size_t scales = 64 * 16, block = scales + 16 * 2;
  EXPECT_EQ(layout.ScalesOffset(), scales);
  EXPECT_EQ(layout.KeyOffset(0, 1), block);
  EXPECT_EQ(layout.ValueOffset(0, 0), 2 * block);
  EXPECT_EQ(layout.KeyOffset(1, 0), 4 * block);
  EXPECT_EQ(layout.ValueOffset(2, 1) + block, layout.PageBytes());
  EXPECT_EQ(layout.BytesPerToken() * 16, layout.PageBytes());
  EXPECT_EQ(layout.BytesPerToken(), std::size_t{3 * 2 * 2 * (64 + 2)});
}

TEST(KvLayout, PagesForRoundsUp) {
  const KvLayout layout = Example();
  EXPECT_EQ(layout.PagesFor(0), 0);
  EXPECT_EQ(layout.PagesFor(1), 1);
  EXPECT_EQ(layout.PagesFor(16), 1);
  EXPECT_EQ(layout.PagesFor(17), 2);
}

TEST(KvLayout, ValidateNamesWhatIsWrong) {
  EXPECT_TRUE(Example().Validate().ok());
  KvLayout layout = Example();
  layout.page_tokens = 12;
  ASSERT_FALSE(layout.Validate().ok());
  EXPECT_EQ(layout.Validate().error().param, "page_tokens");
  layout = Example();
  layout.dtype = DType::kI8;
  EXPECT_TRUE(layout.Validate().ok());
  layout.dtype = DType::kI16;
  ASSERT_FALSE(layout.Validate().ok());
  EXPECT_EQ(layout.Validate().error().param, "dtype");
  layout = Example();
  layout.head_dim = 0;
  EXPECT_FALSE(layout.Validate().ok());
}

}  // namespace
}  // namespace loramux::kv_layout_test
