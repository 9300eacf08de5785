#include "engine/step_load.h"

#include <memory>

#include <gtest/gtest.h>

#include "engine/step_batch_builder.h"

namespace loramux::step_load_test {
namespace {

AdapterResidency AdapterOfRank(std::int32_t rank, std::uint32_t slot) {
  auto version = std::make_shared<AdapterVersion>();
  version->layout.max_rank = rank;
  AdapterResidency adapter;
  adapter.version = version;
  adapter.slot = slot;
  adapter.load_sequence = slot + 1;
  return adapter;
}

TEST(StepLoadTest, CountsBothPhasesAndEachAdapterOnce) {
  const AdapterResidency small = AdapterOfRank(8, 0), large = AdapterOfRank(64, 1);
  const std::vector<TokenId> tokens(100, 1);
  const std::vector<std::uint32_t> pages(100);
  StepBatchBuilder builder;
  const auto add = [&](std::size_t count, std::int64_t position, const AdapterResidency* adapter) {
    StepSequence& part = builder.batch().Add({}, std::span(tokens).first(count), position, pages);
    if (adapter != nullptr) builder.UseAdapter(part, *adapter);
  };
  add(1, 9, nullptr);
  add(3, 10, nullptr);
  add(1, 99, &small);
  add(4, 0, &small);
  add(1, 0, &large);
  const StepLoad load = LoadOf(builder.Take());
  EXPECT_EQ(load.prefill_tokens, 7);
  EXPECT_EQ(load.prefill_sequences, 2);
  EXPECT_EQ(load.prefill_context, 13 + 4);
  EXPECT_EQ(load.decode_sequences, 3);
  EXPECT_EQ(load.prefill_attention, (11 + 12 + 13) + (1 + 2 + 3 + 4));
  EXPECT_EQ(load.decode_context, 10 + 100 + 1);
  EXPECT_EQ(load.adapter_tokens, 6);
  EXPECT_EQ(load.distinct_adapters, 2);
  EXPECT_EQ(load.rank_sum, 72);
  EXPECT_EQ(load.max_rank, 64);
  EXPECT_EQ(load.token_ranks, 5 * 8 + 64);
}

TEST(StepLoadTest, NothingFromAnEmptyBatch) {
  PerformanceModel model;
  model.step = 0.5;
  model.per_adapter_token_rank = 7;
  EXPECT_EQ(model.SecondsOf(LoadOf({})), 0.5);
}

}  // namespace
}  // namespace loramux::step_load_test
