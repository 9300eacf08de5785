#include "formats/model_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/adapter_config.h"

namespace loramux::model_part_test {
namespace {

using ::testing::HasSubstr;

ModelConfig Config() {
  ModelConfig config;
  config.hidden_size = 64;
  config.num_layers = 2;
  config.num_heads = 12;
  config.num_kv_heads = 4;
  config.head_dim = 8;
  config.intermediate_size = 50;
  config.vocab_size = 97;
  config.sliding_window = {0, 0};
  return config;
}

// The ranks' ranges are adjacent and make up the whole, and no rank has more than the first.
TEST(ModelPart, RangesOfAllRanksMakeUpTheWhole) {
  for (const std::int64_t ranks : {1, 2, 3, 4, 6}) {
    for (const std::int64_t total : {6, 50, 97, 1000}) {
      std::int64_t next = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const OutputRange range = RangeOf({rank, ranks}, total);
        ASSERT_EQ(range.first, next);
        ASSERT_LE(range.count, range.room);
        ASSERT_EQ(range.room, RangeOf({0, ranks}, total).count);
        next += range.count;
      }
      ASSERT_EQ(next, total);
    }
  }
}

// The heads of keys and values that a rank has are those that its heads read.
TEST(ModelPart, HeadsOfKeysAreThoseThatTheRanksHeadsRead) {
  const ModelConfig config = Config();
  for (const std::int64_t ranks : {2, 4, 12}) {
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const ModelPart part{rank, ranks};
      const OutputRange heads = HeadsOf(part, config), kv = KvHeadsOf(part, config.num_kv_heads);
      const std::int64_t per_kv = config.num_heads / config.num_kv_heads;
      EXPECT_EQ(heads.first / per_kv, kv.first);
      EXPECT_EQ((heads.first + heads.count - 1) / per_kv, kv.first + kv.count - 1);
      EXPECT_EQ(heads.count % kv.count, 0);
    }
  }
}

TEST(ModelPart, TheConfigurationOfAPartHasTheExtentsOfItsOutputs) {
  const ModelConfig config = Config();
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const ModelPart part{rank, 4};
    ASSERT_TRUE(CheckParts(config, 4).ok());
    const ModelConfig own = ConfigOfPart(part, config);
    for (const LoraTarget target :
         {LoraTarget::kQ, LoraTarget::kK, LoraTarget::kV, LoraTarget::kGate, LoraTarget::kUp}) {
      EXPECT_EQ(TargetShape(own, target).out, OutputsOf(part, config, target).count) << LoraTargetName(target);
      EXPECT_EQ(TargetShape(own, target).in, TargetShape(config, target).in);
    }
    EXPECT_EQ(OutputsOf(part, config, LoraTarget::kO).count, 16);
    EXPECT_EQ(OutputsOf(part, config, LoraTarget::kLmHead).first, 25 * rank);
    EXPECT_EQ(OutputsOf(part, config, LoraTarget::kRouter).first, 0);
    EXPECT_EQ(own.hidden_size, config.hidden_size);
    EXPECT_EQ(own.vocab_size, config.vocab_size);
  }
}

TEST(ModelPart, WhatDoesNotDivideIsRefusedByName) {
  ModelConfig config = Config();
  EXPECT_TRUE(CheckParts(config, 1).ok());
  EXPECT_THAT(CheckParts(config, 5).error().message,
              HasSubstr("its attention heads (num_attention_heads) are 12; expected one of 1, 2, 4"));
  EXPECT_THAT(CheckParts(config, 3).error().message, HasSubstr("num_key_value_heads"));
  EXPECT_EQ(CheckParts(config, 0).error().code, ErrorCode::kInvalidArgument);
  config.intermediate_size = 2;
  EXPECT_THAT(CheckParts(config, 4).error().message, HasSubstr("intermediate_size"));
  config.recurrent.emplace();
  EXPECT_THAT(CheckParts(config, 2).error().message, HasSubstr("recurrent layers"));
}

}  // namespace
}  // namespace loramux::model_part_test
