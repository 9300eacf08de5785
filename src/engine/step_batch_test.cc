// What an executor is given: everything by value, each adapter registered once a load, each arrival once.
#include "engine/step_batch_builder.h"

#include <numeric>
#include <utility>

#include <gtest/gtest.h>

namespace loramux::step_batch_test {
namespace {

// An adapter on the device.
AdapterResidency Resident(std::uint32_t slot, std::uint64_t load, std::vector<std::uint32_t> pages) {
  auto version = std::make_shared<AdapterVersion>();
  version->generation = AdapterGeneration{slot + 1};
  version->layout.max_rank = 8;
  AdapterResidency adapter;
  adapter.version = version;
  adapter.slot = slot;
  adapter.load_sequence = load;
  for (const std::uint32_t page : pages) adapter.device_pages.push_back({page, 1});
  return adapter;
}

// A request of 40 tokens, of which the first 30 are the prompt, in pages of 4 positions.
struct Asking {
  std::vector<TokenId> tokens = std::vector<TokenId>(40);
  std::vector<std::uint32_t> pages = std::vector<std::uint32_t>(20);
  std::vector<TokenId> banned = {7, 9};
  std::vector<LogitBias> biases;
  SamplingParams sampling;

  Asking() {
    std::iota(tokens.begin(), tokens.end(), 100);
    std::iota(pages.begin(), pages.end(), 500u);
  }
  StepSequence& AddTo(StepBatchBuilder& builder, std::int64_t position, std::size_t count,
                      const AdapterResidency* adapter = nullptr) const {
    StepBatch& batch = builder.batch();
    const auto first = static_cast<std::size_t>(position);
    StepSequence& part = batch.Add(RequestId{3}, std::span(tokens).subspan(first, count), position,
                                   std::span(pages).first((first + count + 3) / 4));
    if (adapter != nullptr) builder.UseAdapter(part, *adapter);
    batch.Sample(part, sampling,
                 {.prompt = std::span(tokens).first(30),
                  .generated = std::span(tokens).subspan(30),
                  .banned = banned,
                  .logit_bias = biases});
    return part;
  }
};

TEST(StepBatch, HoldsCopiesOfWhatItNeeds) {
  StepBatchBuilder builder;
  StepBatch batch;
  {
    Asking asking;
    asking.sampling = {.temperature = 0.5f, .top_k = 11, .top_p = 0.75f, .min_p = 0.125f, .presence_penalty = 0.25f};
    asking.sampling.seed = 77;
    asking.sampling.top_logprobs = 4;
    asking.biases = {{5, 1.5f}, {6, -2.0f}};
    builder.batch().copies.push_back({1, 2});
    asking.AddTo(builder, 9, 4);
    batch = builder.Take();
  }  // the request is gone
  ASSERT_EQ(batch.sequences.size(), 1u);
  const StepSequence& sequence = batch.sequences[0];
  EXPECT_EQ(std::vector<TokenId>(batch.TokensOf(sequence).begin(), batch.TokensOf(sequence).end()),
            (std::vector<TokenId>{109, 110, 111, 112}));
  EXPECT_EQ(std::vector<std::uint32_t>(batch.PagesOf(sequence).begin(), batch.PagesOf(sequence).end()),
            (std::vector<std::uint32_t>{500, 501, 502, 503}));
  EXPECT_EQ(batch.SegmentOf(sequence), nullptr);
  EXPECT_EQ(sequence.logit_rows, 1);
  EXPECT_EQ(sequence.sample, 0);
  EXPECT_EQ(batch.copies.size(), 1u);
  const SampleRow& row = batch.samples.rows[0];
  EXPECT_EQ(row.params.temperature, 0.5f);
  EXPECT_EQ(row.params.top_k, 11);
  EXPECT_EQ(row.params.top_p, 0.75f);
  EXPECT_EQ(row.params.min_p, 0.125f);
  EXPECT_EQ(row.params.presence_penalty, 0.25f);
  EXPECT_EQ(row.params.frequency_penalty, 0.0f);
  EXPECT_EQ(row.params.repetition_penalty, 1.0f);
  EXPECT_EQ(row.params.seed, 77u);
  EXPECT_EQ(row.params.top_logprobs, 4);
  const SamplerContext context = batch.samples.ContextOf(row);
  EXPECT_EQ(std::vector<LogitBias>(context.logit_bias.begin(), context.logit_bias.end()),
            (std::vector<LogitBias>{{5, 1.5f}, {6, -2.0f}}));
  EXPECT_EQ(std::vector<TokenId>(context.banned.begin(), context.banned.end()), (std::vector<TokenId>{7, 9}));
  EXPECT_TRUE(context.prompt.empty());  // a presence penalty does not read it
  EXPECT_EQ(context.generated.size(), 10u);
  EXPECT_EQ(context.generated.front(), 130);
  EXPECT_EQ(context.step(), 10u);
}

// Histories may be long: they are copied for penalties alone, and the number of the draw does not depend on them.
TEST(StepBatch, TokensOfTheSequenceComeWithPenaltiesOnly) {
  StepBatchBuilder builder;
  Asking asking;
  asking.banned.clear();
  asking.AddTo(builder, 39, 1);
  EXPECT_TRUE(builder.Take().samples.tokens.empty());
  asking.sampling.repetition_penalty = 1.5f;
  asking.AddTo(builder, 39, 1);
  const StepBatch batch = builder.Take();
  const SamplerContext context = batch.samples.ContextOf(batch.samples.rows[0]);
  EXPECT_EQ(context.prompt.size(), 30u);
  EXPECT_EQ(context.prompt.front(), 100);
  EXPECT_EQ(context.generated.size(), 10u);
  EXPECT_EQ(context.step(), 10u);
}

TEST(StepBatch, AnAdapterIsPlacedByTheFirstBatchOfEachLoad) {
  StepBatchBuilder builder;
  const Asking asking;
  const AdapterResidency a = Resident(0, 1, {4, 2}), b = Resident(5, 2, {9}), a_again = Resident(0, 3, {7, 8});
  const auto batch_of = [&](std::initializer_list<const AdapterResidency*> adapters) {
    for (const AdapterResidency* adapter : adapters) asking.AddTo(builder, 0, 2, adapter);
    return builder.Take();
  };
  StepBatch batch = batch_of({nullptr, &a, &a, &b});
  ASSERT_EQ(batch.segments.size(), 2u);
  EXPECT_EQ(batch.segments[0].first_token, 2);
  EXPECT_EQ(batch.segments[0].num_tokens, 4);
  EXPECT_EQ(batch.segments[1].first_token, 6);
  EXPECT_EQ(batch.segments[1].generation, AdapterGeneration{6});
  EXPECT_EQ(batch.SegmentOf(batch.sequences[3]), &batch.segments[1]);
  ASSERT_EQ(batch.placements.size(), 2u);
  EXPECT_EQ(batch.placements[0].pages.pages, (std::vector<std::uint32_t>{4, 2}));
  EXPECT_EQ(batch.placements[0].pages.tier, Tier::kDevice);
  EXPECT_EQ(batch.placements[1].adapter, (AdapterRef{5, 2}));
  EXPECT_TRUE(batch_of({&a, &b}).placements.empty());
  batch = batch_of({&a_again, &b});
  ASSERT_EQ(batch.placements.size(), 1u);
  EXPECT_EQ(batch.placements[0].adapter, (AdapterRef{0, 3}));
  const std::weak_ptr<const AdapterVersion> version = batch.placements[0].version;
  const long users = version.use_count();
  builder.Recycle(std::move(batch));
  EXPECT_EQ(version.use_count(), users - 1) << "a computed batch keeps a retired adapter's file open";
}

TEST(StepBatch, EachArrivalIsWaitedForOnce) {
  StepBatchBuilder builder;
  const Asking asking;
  const AdapterResidency adapter = Resident(0, 1, {1});
  const auto weights = std::make_shared<LayerProgress>(2), history = std::make_shared<LayerProgress>(2);
  for (int i = 0; i < 3; ++i) {
    StepSequence& part = asking.AddTo(builder, 4, 1, &adapter);
    part.adapter_arrival = builder.batch().Await(weights);
    part.kv_arrival = builder.batch().Await(i == 2 ? history : nullptr);
  }
  const StepBatch batch = builder.Take();
  ASSERT_EQ(batch.arrivals.size(), 2u);
  EXPECT_EQ(batch.Arrival(batch.sequences[1].adapter_arrival), weights.get());
  EXPECT_EQ(batch.Arrival(batch.sequences[1].kv_arrival), nullptr);
  EXPECT_EQ(batch.Arrival(batch.sequences[2].kv_arrival), history.get());
}

// What an executor that reads no contents can see is the same.
TEST(StepBatch, WithoutContentsHasTheSameSequencesAndSegments) {
  const Asking asking;
  const AdapterResidency adapter = Resident(2, 1, {4});
  std::vector<StepBatch> batches;
  for (const bool contents : {true, false}) {
    StepBatchBuilder builder(contents);
    for (const auto& [position, count] : {std::pair{0, 7}, {8, 1}, {12, 2}}) {
      const auto first = static_cast<std::size_t>(position), tokens = static_cast<std::size_t>(count);
      StepSequence& part = builder.Add(RequestId{3}, std::span(asking.tokens).subspan(first, tokens), position,
                                       std::span(asking.pages).first(first + tokens));
      if (position > 0) builder.UseAdapter(part, adapter);
    }
    batches.push_back(builder.Take());
  }
  const StepBatch &full = batches[0], &bare = batches[1];
  EXPECT_EQ(full.tokens.size(), 10u);
  EXPECT_EQ(full.placements.size(), 1u);
  EXPECT_TRUE(bare.tokens.empty() && bare.pages.empty() && bare.placements.empty());
  ASSERT_EQ(bare.sequences.size(), full.sequences.size());
  for (std::size_t i = 0; i < full.sequences.size(); ++i) {
    EXPECT_EQ(bare.sequences[i].tokens.first, full.sequences[i].tokens.first);
    EXPECT_EQ(bare.sequences[i].tokens.size, full.sequences[i].tokens.size);
    EXPECT_EQ(bare.sequences[i].position, full.sequences[i].position);
    EXPECT_EQ(bare.sequences[i].segment, full.sequences[i].segment);
  }
  ASSERT_EQ(bare.segments.size(), 1u);
  EXPECT_EQ(bare.segments[0].num_tokens, 3);
  EXPECT_EQ(bare.segments[0].first_token, 7);
  EXPECT_EQ(bare.segments[0].rank, full.segments[0].rank);
}

TEST(StepBatch, MemoryIsUsedAgain) {
  StepBatchBuilder builder;
  const Asking asking;
  asking.AddTo(builder, 0, 30);
  StepBatch first = builder.Take();
  const TokenId* const memory = first.tokens.data();
  builder.Recycle(std::move(first));
  EXPECT_TRUE(builder.Take().sequences.empty());  // the batch after next has it: a step may still be in flight
  asking.AddTo(builder, 0, 30);
  const StepBatch third = builder.Take();
  EXPECT_EQ(third.tokens.data(), memory);
  EXPECT_EQ(third.sequences.size(), 1u);
}

}  // namespace
}  // namespace loramux::step_batch_test
