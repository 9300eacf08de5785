#include "gpu/kernels/attention.h"

#include <cmath>
#include <cstring>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/device_for_test.h"
#include "gpu/emulated/emulated_device.h"
#include "gpu/kernels/attention_world_for_test.h"

namespace loramux::gpu::attention_test {
namespace {

using ::testing::ElementsAre;

class AttentionTest : public ::testing::TestWithParam<DType> {
 protected:
  AttentionShape Shape(AttentionShape shape) const {
    shape.dtype = GetParam();
    return shape;
  }
  // Values are within [-1, 1]. 16-bit: each weight is rounded, by up to 2^-8 (bf16) or 2^-11 of itself.
  double Tolerance() const { return GetParam() == DType::kF32 ? 1e-6 : GetParam() == DType::kBF16 ? 2.5e-3 : 3.5e-4; }
};
INSTANTIATE_TEST_SUITE_P(All, AttentionTest, ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

std::vector<float> RunBatch(const AttentionShape& shape, const std::vector<RowsForTest>& batch,
                            Device& device = DeviceForTest(), std::int64_t spare = 0) {
  AttentionWorld world(device, shape, batch);
  return world.Run(spare);
}

void ExpectRight(const AttentionShape& shape, const std::vector<RowsForTest>& batch, const std::vector<float>& out,
                 double tolerance) {
  double worst = 0;
  std::size_t at = 0;
  for (const RowsForTest& rows : batch) {
    for (std::int64_t i = 0; i < rows.rows; ++i) {
      for (const double expected : ExpectedRow(shape, *rows.sequence, rows.position + i)) {
        const double error = std::abs(static_cast<double>(out[at++]) - expected);
        worst = error <= worst ? worst : error;  // NaN too
      }
    }
  }
  EXPECT_LE(worst, tolerance) << "head_dim " << shape.head_dim << ", group " << shape.group << ", page_tokens "
                              << shape.page_tokens << ", window " << shape.window;
}

void ExpectSameBits(const float* a, const float* b, std::int64_t count, const char* what) {
  EXPECT_EQ(std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(float)), 0) << what;
}

// Single rows and prompts in one batch, through both kernels.
void ExpectMixedBatchRight(const AttentionShape& shape, double tolerance, std::int64_t longest) {
  const SequenceForTest a(shape, longest, 1), b(shape, 90, 2), c(shape, 1, 3), d(shape, 2, 4);
  const std::vector<RowsForTest> batch = {
      {&b, 0, 90}, {&a, longest - 1, 1, true}, {&c, 0, 1, true}, {&b, 37, 5}, {&d, 0, 2}, {&a, longest / 2, 2, true},
  };
  ExpectRight(shape, batch, RunBatch(shape, batch), tolerance);
}

TEST_P(AttentionTest, HeadDims) {
  for (const std::int64_t head_dim : {2, 8, 12, 16, 18, 32, 64, 80, 96, 128, 200, 256}) {
    ExpectMixedBatchRight(Shape({.head_dim = head_dim, .num_kv_heads = 1, .group = 2, .page_tokens = 8}), Tolerance(),
                          300);
  }
}

TEST_P(AttentionTest, Groups) {
  for (const std::int64_t group : {1, 2, 3, 4, 7, 8, 16, 20}) {
    ExpectMixedBatchRight(Shape({.head_dim = 32, .num_kv_heads = group > 4 ? 1 : 3, .group = group}), Tolerance(), 300);
  }
}

TEST_P(AttentionTest, PageSizes) {
  for (const std::int64_t page_tokens : {4, 8, 16, 32, 64}) {
    ExpectMixedBatchRight(Shape({.head_dim = 32, .group = 2, .page_tokens = page_tokens}), Tolerance(), 520);
  }
}

TEST_P(AttentionTest, Windows) {
  for (const std::int64_t window : {1, 2, 8, 63, 64, 65, 256, 300, 5000}) {
    ExpectMixedBatchRight(Shape({.head_dim = 32, .group = 2, .page_tokens = 8, .window = window}), Tolerance(), 700);
  }
}

TEST_P(AttentionTest, ScalesAndSoftCaps) {
  for (const double soft_cap : {0.0, 2.0, 50.0}) {
    AttentionShape shape = Shape({.head_dim = 32, .group = 2, .page_tokens = 8, .window = 100});
    shape.scale = 0.25;
    shape.soft_cap = soft_cap;
    ExpectMixedBatchRight(shape, Tolerance(), 700);
  }
}

// Slopes so small that far keys count, and as bfloat16 has them.
std::vector<float> SlopesForTest(std::int64_t heads) {
  std::vector<float> slopes;
  for (std::int64_t head = 0; head < heads; ++head) {
    slopes.push_back(RoundedTo(DType::kBF16, 0.021f / static_cast<float>(head + 1)));
  }
  return slopes;
}

TEST_P(AttentionTest, LinearBiases) {
  for (const bool rounds : {false, true}) {
    for (const double soft_cap : {0.0, 5.0}) {
      AttentionShape shape = Shape({.head_dim = 32, .group = 2, .page_tokens = 8, .window = soft_cap > 0 ? 100 : 0});
      shape.slopes = SlopesForTest(shape.NumHeads());
      shape.rounds_bias = rounds;
      shape.soft_cap = soft_cap;
      ExpectMixedBatchRight(shape, Tolerance(), 700);
    }
  }
}

// In one chunk, in several, and in prompts; sinks far above the scores, among them, and far below.
TEST_P(AttentionTest, Sinks) {
  for (const std::int64_t window : {0, 100}) {
    AttentionShape shape = Shape({.head_dim = 32, .group = 2, .page_tokens = 8, .window = window});
    for (std::int64_t head = 0; head < shape.NumHeads(); ++head)
      shape.sinks.push_back(static_cast<float>(head % 3 == 0 ? 9 : head % 3 == 1 ? 0.5 : -40));
    ExpectMixedBatchRight(shape, Tolerance(), 700);
  }
}

TEST_P(AttentionTest, LongContexts) {
  const AttentionShape shape = Shape({.head_dim = 64, .num_kv_heads = 1, .group = 4});
  const SequenceForTest sequence(shape, 1500, 5);
  std::vector<RowsForTest> batch;
  for (const std::int64_t position : {0, 1, 15, 16, 63, 64, 254, 255, 256, 257, 511, 512, 1023, 1024, 1499}) {
    batch.push_back({&sequence, position, 1, true});
  }
  batch.push_back({&sequence, 1490, 10});
  ExpectRight(shape, batch, RunBatch(shape, batch), Tolerance());
}

TEST_P(AttentionTest, ResultsOf16Bits) {
  for (const DType out_dtype : {DType::kBF16, DType::kF16}) {
    AttentionShape shape = Shape({.head_dim = 32, .group = 2});
    const SequenceForTest sequence(shape, 300, 6);
    const std::vector<RowsForTest> batch = {{&sequence, 0, 70}, {&sequence, 299, 1, true}, {&sequence, 3, 1, true}};
    std::vector<float> exact = RunBatch(shape, batch);
    for (float& value : exact) value = RoundedTo(out_dtype, value);
    shape.out_dtype = out_dtype;
    EXPECT_EQ(RunBatch(shape, batch), exact);
  }
}

TEST_P(AttentionTest, EveryCutOfAPromptAndBothKernelsGiveTheSameBits) {
  for (const std::int64_t window : {0, 100}) {
    AttentionShape shape = Shape({.head_dim = 32, .num_kv_heads = 1, .group = 3, .window = window});
    if (window > 0) shape.slopes = SlopesForTest(shape.NumHeads());
    constexpr std::int64_t kPositions = 530;
    const SequenceForTest sequence(shape, kPositions, 7);
    const std::vector<float> whole = RunBatch(shape, {{&sequence, 0, kPositions}});
    for (const std::int64_t cut : {1, 20, 64, 299}) {
      std::vector<RowsForTest> batch;
      for (std::int64_t first = 0; first < kPositions; first += cut) {
        const std::int64_t rows = std::min(cut, kPositions - first);
        if (cut == 1 && first % 13 != 0 && first % 64 > 2 && first % 64 != 63) continue;  // enough of them
        batch.push_back({&sequence, first, rows, cut <= 20});
      }
      const std::vector<float> parts = RunBatch(shape, batch);
      std::int64_t at = 0;
      for (const RowsForTest& rows : batch) {
        const std::int64_t count = rows.rows * shape.QWidth();
        ExpectSameBits(parts.data() + at, whole.data() + rows.position * shape.QWidth(), count, "cut");
        at += count;
      }
    }
  }
}

TEST_P(AttentionTest, BitsDependNeitherOnTheBatchNorOnTheGridNorOnTheOrderOfLanes) {
  const AttentionShape shape = Shape({.head_dim = 64, .group = 2, .page_tokens = 8});
  const SequenceForTest a(shape, 400, 8), b(shape, 100, 9), c(shape, 310, 10);
  const std::vector<RowsForTest> batch = {{&a, 399, 1, true}, {&b, 20, 80}, {&c, 309, 1, true}, {&c, 0, 5}};
  const std::vector<float> together = RunBatch(shape, batch, DeviceForTest(), 7);
  const float* at = together.data();
  for (const RowsForTest& rows : batch) {
    const std::vector<float> alone = RunBatch(shape, {rows});
    ExpectSameBits(alone.data(), at, static_cast<std::int64_t>(alone.size()), "alone");
    at += alone.size();
  }
  for (const std::uint64_t seed : {0, 2, 3}) {
    const auto device = MakeEmulatedDevice({.seed = seed});
    const auto same = MakeEmulatedDevice({.seed = 99});
    EXPECT_EQ(RunBatch(shape, batch, *device), RunBatch(shape, batch, *same));
  }
}

TEST_P(AttentionTest, WithoutWorkNothingIsDone) {
  const AttentionShape shape = Shape({});
  EXPECT_TRUE(RunBatch(shape, {}, DeviceForTest(), 3).empty());
}

// Decode reads the keys and values that a row sees once for up to 16 query heads, and nothing else of the pages.
TEST_P(AttentionTest, DecodeReadsEachByteOnce) {
  for (const std::int64_t window : {0, 50, 300}) {
    for (const std::int64_t group : {1, 8, 16, 20}) {
      const AttentionShape shape =
          Shape({.head_dim = 32, .num_kv_heads = 2, .group = group, .page_tokens = 8, .window = window});
      const SequenceForTest a(shape, 700, 11), b(shape, 5, 12);
      const auto device = MakeEmulatedDevice({});
      AttentionWorld world(*device, shape, {{&a, 699, 1, true}, {&b, 4, 1, true}});
      device->Watch("pages", world.arguments().pages.base, world.page_bytes());
      world.Run();
      const std::int64_t positions = (window > 0 ? window : 700) + 5;
      const auto row_bytes = static_cast<std::int64_t>(DTypeSize(shape.dtype)) * shape.head_dim;
      const std::int64_t expected = positions * 2 * shape.num_kv_heads * row_bytes * (group > 16 ? 2 : 1);
      EXPECT_EQ(static_cast<std::int64_t>(device->TrafficOf("pages").load_bytes), expected) << window << " " << group;
      EXPECT_EQ(static_cast<std::int64_t>(device->TrafficOf("pages").loads), expected / 16);
    }
  }
}

// A tile of 64 rows of 4 heads is four blocks, and each reads the positions up to its last row once.
TEST_P(AttentionTest, PrefillReadsKeysAndValuesOnceForABlockOfPairs) {
  const AttentionShape shape = Shape({.head_dim = 32, .num_kv_heads = 1, .group = 4});
  const SequenceForTest sequence(shape, 364, 13);
  const auto device = MakeEmulatedDevice({});
  AttentionWorld world(*device, shape, {{&sequence, 300, 64}});
  device->Watch("pages", world.arguments().pages.base, world.page_bytes());
  world.Run();
  const auto row_bytes = static_cast<std::int64_t>(DTypeSize(shape.dtype)) * shape.head_dim;
  EXPECT_EQ(static_cast<std::int64_t>(device->TrafficOf("pages").load_bytes), (316 + 332 + 348 + 364) * 2 * row_bytes);
}

// A list made for layers without a window serves layers that have one.
TEST_P(AttentionTest, ListsOfTheWidestLayerServeAll) {
  const AttentionShape shape = Shape({.head_dim = 32, .group = 2, .window = 40});
  const SequenceForTest sequence(shape, 900, 14);
  const std::vector<RowsForTest> batch = {{&sequence, 899, 1, true}, {&sequence, 520, 1, true}};
  const std::vector<float> own = RunBatch(shape, batch);
  AttentionWorld::list_window = 0;
  const std::vector<float> wide = RunBatch(shape, batch);
  AttentionWorld::list_window = -1;
  EXPECT_EQ(wide, own);
  ExpectRight(shape, batch, wide, Tolerance());
}

TEST(AttentionWorkListsTest, ChunksAndTiles) {
  AttentionWorkLists lists;
  lists.AddDecodeRow(4, 255, 0);
  lists.AddDecodeRow(6, 513, 0);
  lists.AddDecodeRow(7, 513, 3);
  std::vector<std::int32_t> chunks, rows;
  for (const DecodeChunk& chunk : lists.chunks) chunks.insert(chunks.end(), {chunk.row, chunk.chunk});
  for (const DecodeRow& row : lists.decode_rows) rows.insert(rows.end(), {row.row, row.first_item, row.first_chunk});
  EXPECT_THAT(chunks, ElementsAre(4, 0, 6, 0, 6, 1, 6, 2, 7, 1, 7, 2));
  EXPECT_THAT(rows, ElementsAre(4, 0, 0, 6, 1, 0, 7, 4, 1));
  lists.AddPrefill(2, 65);
  ASSERT_EQ(lists.tiles.size(), 2u);
  EXPECT_EQ(lists.tiles[1].sequence, 2);
  EXPECT_EQ(lists.tiles[1].first_row, 64);
  lists.Clear();
  EXPECT_TRUE(lists.chunks.empty() && lists.decode_rows.empty() && lists.tiles.empty());
}

}  // namespace
}  // namespace loramux::gpu::attention_test
