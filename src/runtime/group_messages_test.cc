#include "runtime/group_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace loramux::group_messages_test {
namespace {

using ::testing::ElementsAre;

// A step with everything that travels.
struct Sample {
  std::shared_ptr<AdapterVersion> version = std::make_shared<AdapterVersion>();
  std::shared_ptr<LayerProgress> arriving = std::make_shared<LayerProgress>(4);
  StepBatch batch;

  Sample() {
    version->generation = {7};
    batch.copies = {{1, 2}};
    batch.placements.push_back({{3, 9}, version, {Tier::kDevice, {4, 5}}, {Tier::kHost, {6}}});
    const std::vector<TokenId> tokens = {10, 11, 12};
    const std::vector<std::uint32_t> pages = {20, 21};
    StepSequence& sequence = batch.Add({42}, tokens, 5, pages);
    sequence.logit_rows = 1;
    sequence.adapter_arrival = batch.Await(arriving);
    AdapterSegment& segment = batch.UseAdapter(sequence, {3, 9});
    segment.generation = {7};
    segment.rank = 8;
    segment.in_host = true;
    batch.Score(sequence, tokens, 0, 2);
    batch.samples.tokens = {1, 2, 3};
    batch.pools.Add(0, 3, {});
  }
};

std::uint64_t NumberOne(const LayerProgress*) { return 1; }

TEST(GroupMessages, AStepArrivesWithoutWhatRankZeroDoesAlone) {
  Sample sample;
  MessageWriter writer;
  PutStep(sample.batch, NumberOne, writer);
  MessageReader reader(writer.bytes());
  const auto progress = std::make_shared<LayerProgress>(4);
  const auto step = TakeStep(reader, {{1, progress}}, {{AdapterGeneration{7}, sample.version}});
  ASSERT_TRUE(step.ok()) << step.error().message;
  EXPECT_EQ(step->copies.front().destination, 2u);
  EXPECT_EQ(step->placements.front().version, sample.version);
  EXPECT_EQ(step->placements.front().adapter, (AdapterRef{3, 9}));
  EXPECT_THAT(step->placements.front().pages.pages, ElementsAre(4, 5));
  EXPECT_THAT(step->placements.front().host_pages.pages, ElementsAre(6));
  EXPECT_THAT(step->tokens, ElementsAre(10, 11, 12));
  EXPECT_THAT(step->pages, ElementsAre(20, 21));
  EXPECT_EQ(step->sequences.front().position, 5);
  EXPECT_EQ(step->sequences.front().logit_rows, 1);
  EXPECT_EQ(step->segments.front().rank, 8);
  EXPECT_TRUE(step->segments.front().in_host);
  EXPECT_EQ(step->Arrival(step->sequences.front().adapter_arrival), progress.get());
  EXPECT_EQ(step->scores.size(), 3u);
  EXPECT_TRUE(step->samples.tokens.empty());
  EXPECT_TRUE(step->pools.ranges.empty());
}

TEST(GroupMessages, ADamagedStepIsAnErrorAndNoCrash) {
  Sample sample;
  MessageWriter writer;
  PutStep(sample.batch, NumberOne, writer);
  const ProgressByNumber progress = {{1, std::make_shared<LayerProgress>(4)}};
  const AdapterByGeneration adapters = {{AdapterGeneration{7}, sample.version}};
  for (std::size_t size = 0; size < writer.bytes().size(); ++size) {
    MessageReader reader(writer.bytes().first(size));
    EXPECT_FALSE(TakeStep(reader, progress, adapters).ok()) << size;
  }
  MessageReader without_adapter(writer.bytes()), without_progress(writer.bytes());
  EXPECT_FALSE(TakeStep(without_adapter, progress, {}).ok());
  EXPECT_FALSE(TakeStep(without_progress, {}, adapters).ok());
}

TEST(GroupMessages, ATransferArrivesWithProgressOfItsOwn) {
  const TransferJob job{.id = 5,
                        .from = {Tier::kHost, {1, 2}},
                        .to = {Tier::kDevice, {3, 4}},
                        .page_bytes = 128,
                        .progress = std::make_shared<LayerProgress>(3),
                        .layer_bytes = 32,
                        .by_layer = true};
  MessageWriter writer;
  PutTransfer(job, writer);
  MessageReader reader(writer.bytes());
  const auto received = TakeTransfer(reader, 77, {});
  ASSERT_TRUE(received.ok());
  EXPECT_EQ(received->generation, kBaseModel);
  EXPECT_EQ(received->job.id, 77u);
  EXPECT_EQ(received->job.from.tier, Tier::kHost);
  EXPECT_THAT(received->job.to.pages, ElementsAre(3, 4));
  EXPECT_EQ(received->job.progress->layers(), 3);
  EXPECT_NE(received->job.progress, job.progress);
  EXPECT_EQ(received->job.layer_bytes, 32u);
  EXPECT_TRUE(received->job.by_layer);
  for (std::size_t size = 0; size < writer.bytes().size(); ++size) {
    MessageReader damaged(writer.bytes().first(size));
    EXPECT_FALSE(TakeTransfer(damaged, 1, {}).ok()) << size;
  }
}

TEST(GroupMessages, ErrorsKeepTheirCode) {
  MessageWriter writer;
  writer.PutError(std::nullopt);
  writer.PutError(IoError("the disk is gone", "file"));
  MessageReader reader(writer.bytes());
  EXPECT_FALSE(reader.TakeError());
  const auto error = reader.TakeError();
  ASSERT_TRUE(error && reader.AtEnd());
  EXPECT_EQ(error->code, ErrorCode::kIoError);
  EXPECT_EQ(error->message, "the disk is gone");
  EXPECT_EQ(error->param, "file");
}

}  // namespace
}  // namespace loramux::group_messages_test
