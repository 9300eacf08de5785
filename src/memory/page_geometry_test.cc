#include "memory/page_geometry.h"

#include <gtest/gtest.h>

#include "memory/page_pool.h"

namespace loramux::page_geometry_test {
namespace {

ModelConfig Llama1B() {
  ModelConfig config;
  config.hidden_size = 2048;
  config.intermediate_size = 8192;
  config.num_layers = 16;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 64;
  config.vocab_size = 128256;
  return config;
}

// Tokens whose keys and values fit a pool of this size.
std::int64_t TokensIn(std::int64_t bytes, const PageGeometry& geometry) {
  auto pool = PagePool::Create("device", ArenaWithoutBytes(bytes), geometry.page_bytes);
  return (*pool)->capacity_pages() * geometry.kv.page_tokens;
}

TEST(PageGeometry, EightBitsHoldNearlyTwiceTheHistoryInTheSameMemory) {
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  const ModelConfig model = Llama1B();
  const std::int64_t wide = TokensIn(kGiB, ChoosePageGeometry(model, DType::kBF16));
  const std::int64_t narrow = TokensIn(kGiB, ChoosePageGeometry(model, DType::kI8));
  EXPECT_EQ(wide, 32768);
  // A head of 64 takes 64 + 2 bytes instead of 128.
  EXPECT_GE(narrow, wide * 128 / 66 - 16);
  EXPECT_LE(narrow, wide * 128 / 66);
}

TEST(PageGeometry, PagesInEightBitsHoldRowsOfWiderAdapters) {
  ModelConfig model = Llama1B();
  for (const DType rows : {DType::kBF16, DType::kF32}) {
    const PageGeometry geometry = ChoosePageGeometry(model, DType::kI8, 0, rows);
    EXPECT_GE(geometry.page_bytes, model.vocab_size * static_cast<std::int64_t>(DTypeSize(rows)));
  }
  EXPECT_EQ(ChoosePageGeometry(model, DType::kI8).kv.page_tokens, 16);
  EXPECT_EQ(ChoosePageGeometry(model, DType::kI8, 0, DType::kF32).kv.page_tokens, 32);
}

TEST(PageGeometry, StatesTakeWholePagesBesideTheKeysOfOtherLayers) {
  ModelConfig model = Llama1B();
  model.recurrent = RecurrentConfig{.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128};
  for (int layer = 0; layer < 16; ++layer) model.recurrent->layers.push_back(layer % 4 != 3);
  for (const DType dtype : {DType::kBF16, DType::kI8}) {
    const KvLayout kv = ChoosePageGeometry(model, dtype).kv;
    EXPECT_EQ(kv.num_layers, 4);
    const std::int64_t bytes = kv.state_pages * kv.StateFloats() * 4;
    EXPECT_GE(bytes, model.recurrent->StateBytes());
    EXPECT_LT(bytes - kv.StateFloats() * 4, model.recurrent->StateBytes());
    EXPECT_EQ(kv.PagesFor(0), kv.state_pages);
    EXPECT_EQ(kv.PagesFor(kv.page_tokens + 1), kv.state_pages + 2);
  }
  EXPECT_EQ(ChoosePageGeometry(Llama1B(), DType::kBF16).kv.state_pages, 0);
}

}  // namespace
}  // namespace loramux::page_geometry_test
