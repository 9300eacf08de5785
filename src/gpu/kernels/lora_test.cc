#include "gpu/kernels/lora.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "gpu/device_for_test.h"
#include "gpu/emulated/emulated_device.h"
#include "gpu/kernels/lora_world_for_test.h"

namespace loramux::gpu {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr DType kRowTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kI8, DType::kF8E4M3};
// A type of x for rows of a type: the same where x may have it.
DType XOf(DType rows) { return HasRowFactors(rows) ? DType::kF32 : rows; }

// Runs a batch of random rows and compares every float of y, those between the rows' outputs included.
void ExpectRight(LoraWorld& world, DType dtype, const std::vector<RangeForTest>& ranges) {
  std::int64_t rows = 0;
  for (const RangeForTest& range : ranges) rows += range.rows;
  const std::vector<float> x = world.RandomX(dtype, rows), y = world.Random(rows * world.y_width());
  const std::vector<float> got = world.Run(dtype, ranges, x, y);
  const LoraWorld::Expected expected = world.Reference(ranges, x, y);
  // Tensor cores round their sums in ways of their own.
  const double tolerance = world.device().properties().major == 0 ? 1e-6 : 1e-5;
  int wrong = 0;
  for (std::size_t i = 0; i < got.size() && wrong < 5; ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - expected.y[i]);
    if (error <= tolerance * expected.magnitude[i]) continue;
    ++wrong;
    ADD_FAILURE() << "row " << i / static_cast<std::size_t>(world.y_width()) << ", column "
                  << i % static_cast<std::size_t>(world.y_width()) << ": " << got[i] << ", expected " << expected.y[i];
  }
}

TEST(LoraKernels, EveryPairOfTypes) {
  for (const DType x : kTypes)
    for (const DType rows : kRowTypes) {
      SCOPED_TRACE(std::string(DTypeName(x)) + " x, rows of " + DTypeName(rows));
      LoraWorld world(DeviceForTest(), 299, {5, 130, 601}, 1);
      const auto first = world.AddAdapter(rows, {1, 5, 24}), second = world.AddAdapter(rows, {16, 0, 3}, true);
      ExpectRight(world, x, {{first.get(), 1}, {nullptr, 2}, {first.get(), 11}, {second.get(), 3}, {first.get(), 1}});
    }
}

TEST(LoraKernels, EveryRank) {
  for (const DType dtype : kRowTypes)
    for (const std::int32_t rank : {1, 5, 8, 16, 24, 64, 65, 128, 130}) {
      SCOPED_TRACE(std::string(DTypeName(dtype)) + ", rank " + std::to_string(rank));
      LoraWorld world(DeviceForTest(), 136, {520}, 2);
      const auto adapter = world.AddAdapter(dtype, {rank});
      ExpectRight(world, XOf(dtype),
                  {{adapter.get(), 1}, {nullptr, 1}, {adapter.get(), 3}, {nullptr, 1}, {adapter.get(), 9}});
    }
}

TEST(LoraKernels, InputsAndOutputsOfEverySize) {
  for (const DType dtype : kRowTypes)
    for (const std::int64_t in : {1, 7, 8, 31, 128, 1025, 2048, 2049, 2056, 4609})
      for (const std::int64_t out : {1, 4, 127, 1026}) {
        SCOPED_TRACE(std::string(DTypeName(dtype)) + ", in " + std::to_string(in) + ", out " + std::to_string(out));
        LoraWorld world(DeviceForTest(), in, {out}, 3);
        const auto adapter = world.AddAdapter(dtype, {6});
        ExpectRight(world, XOf(dtype), {{adapter.get(), 2}, {nullptr, 1}, {adapter.get(), 10}});
      }
}

TEST(LoraKernels, GainsAndShiftsOfOutputs) {
  for (const DType dtype : kRowTypes) {
    LoraWorld world(DeviceForTest(), 72, {5, 255, 601}, 7);
    const auto adapter = world.AddAdapter(dtype, {3, 9, 70}, true), alone = world.AddAdapter(dtype, {2, 0, 0}, true);
    ExpectRight(world, XOf(dtype),
                {{adapter.get(), 1},
                 {nullptr, 2},
                 {alone.get(), 4},
                 {adapter.get(), 8},
                 {alone.get(), 100},
                 {adapter.get(), 70}});
  }
}

TEST(LoraKernels, AlignedOutputsTakeTheWidePath) {
  for (const DType dtype : kTypes) {
    LoraWorld world(DeviceForTest(), 64, {255, 127}, 4);  // with one odd column each: 256 and 128
    const auto adapter = world.AddAdapter(dtype, {9, 4});
    ExpectRight(world, dtype, {{adapter.get(), 1}, {nullptr, 1}, {adapter.get(), 20}});
  }
}

TEST(LoraKernels, ManyAdaptersOfDifferentTypesRanksAndModules) {
  Prng prng(5);
  for (const DType dtype : kTypes) {
    LoraWorld world(DeviceForTest(), 520, {96, 33, 40}, 6);
    std::vector<std::unique_ptr<AdapterForTest>> adapters;
    std::vector<RangeForTest> ranges;
    for (int i = 0; i < 40; ++i) {
      std::vector<std::int32_t> ranks;
      for (int slice = 0; slice < 3; ++slice)
        ranks.push_back(prng.NextBelow(3) == 0 ? 0 : static_cast<std::int32_t>(1 + prng.NextBelow(40)));
      adapters.push_back(world.AddAdapter(kRowTypes[prng.NextBelow(std::size(kRowTypes))], ranks));
      if (prng.NextBelow(4) == 0) ranges.push_back({nullptr, static_cast<std::int32_t>(1 + prng.NextBelow(3))});
      ranges.push_back({adapters.back().get(), static_cast<std::int32_t>(1 + prng.NextBelow(4))});
    }
    ranges.push_back({adapters[7].get(), 130});
    ExpectRight(world, dtype, ranges);
  }
}

TEST(LoraKernels, EmptyWorkChangesNothing) {
  LoraWorld world(DeviceForTest(), 64, {40}, 7);
  const auto nothing = world.AddAdapter(DType::kBF16, {0});
  const std::vector<float> x = world.RandomX(DType::kBF16, 3), y = world.Random(3 * world.y_width());
  const RangeForTest without[] = {{nullptr, 3}}, unchanged[] = {{nothing.get(), 3}};
  EXPECT_EQ(world.Run(DType::kBF16, without, x, y), y);
  EXPECT_EQ(world.Run(DType::kBF16, unchanged, x, y), y);
}

// The bits of each row of `y`.
std::vector<std::vector<std::uint32_t>> RowBits(const std::vector<float>& y, std::int64_t width) {
  std::vector<std::vector<std::uint32_t>> rows(y.size() / static_cast<std::size_t>(width));
  for (std::size_t row = 0; row < rows.size(); ++row) {
    rows[row].resize(static_cast<std::size_t>(width));
    std::memcpy(rows[row].data(), y.data() + row * static_cast<std::size_t>(width), rows[row].size() * 4);
  }
  return rows;
}

TEST(LoraKernels, ARowHasTheSameBitsInEveryBatch) {
  constexpr std::int32_t kRows = 70;
  struct {
    DType x, rows;
  } const pairs[] = {{DType::kBF16, DType::kBF16},
                     {DType::kF16, DType::kF16},
                     {DType::kF32, DType::kBF16},
                     {DType::kBF16, DType::kF16}};
  for (const auto& pair : pairs) {
    LoraWorld world(DeviceForTest(), 2100, {70, 131}, 8);
    const auto adapter = world.AddAdapter(pair.rows, {19, 66}), other = world.AddAdapter(DType::kF32, {128, 1});
    const std::int64_t width = world.y_width();
    const std::vector<float> x = world.RandomX(pair.x, kRows), y = world.Random(kRows * width);
    // Rows [begin, begin + count) of x and y in a batch of their own, between rows of another adapter.
    const auto run = [&](std::int32_t begin, std::int32_t count, std::int32_t before) {
      std::vector<float> some_x = world.RandomX(pair.x, before), some_y = world.Random(before * width);
      some_x.insert(some_x.end(), x.begin() + begin * world.in(), x.begin() + (begin + count) * world.in());
      some_y.insert(some_y.end(), y.begin() + begin * width, y.begin() + (begin + count) * width);
      std::vector<RangeForTest> ranges = {{adapter.get(), count}};
      if (before > 0) ranges.insert(ranges.begin(), {other.get(), before});
      std::vector<std::vector<std::uint32_t>> bits = RowBits(world.Run(pair.x, ranges, some_x, some_y), width);
      bits.erase(bits.begin(), bits.begin() + before);
      return bits;
    };
    const std::vector<std::vector<std::uint32_t>> together = run(0, kRows, 0);
    for (std::int32_t row = 0; row < kRows; ++row)
      EXPECT_EQ(run(row, 1, 0)[0], together[static_cast<std::size_t>(row)]);
    for (std::int32_t count = 2; count < kRows; count += count < 18 ? 1 : 9) {
      const std::int32_t begin = kRows - count, before = count % 3 * 7;
      const std::vector<std::vector<std::uint32_t>> part = run(begin, count, before);
      for (std::int32_t row = 0; row < count; ++row)
        EXPECT_EQ(part[static_cast<std::size_t>(row)], together[static_cast<std::size_t>(begin + row)])
            << "row " << begin + row << " in a batch of " << count;
    }
  }
}

TEST(LoraKernels, TheOrderOfLanesAndBlocksChangesNoBit) {
  std::vector<std::vector<float>> results;
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    EmulatedDeviceOptions options;
    options.seed = seed;
    options.memory = std::int64_t{64} << 20;
    const std::unique_ptr<EmulatedDevice> device = MakeEmulatedDevice(options);
    for (const DType dtype : kTypes) {
      LoraWorld world(*device, 2300, {70, 131}, 9);
      const auto one = world.AddAdapter(dtype, {19, 66}), two = world.AddAdapter(DType::kF16, {3, 16});
      const RangeForTest ranges[] = {{one.get(), 1}, {two.get(), 17}, {one.get(), 5}};
      const std::vector<float> x = world.RandomX(dtype, 23), y = world.Random(23 * world.y_width());
      results.push_back(world.Run(dtype, ranges, x, y));
    }
  }
  for (std::size_t i = 3; i < results.size(); ++i) EXPECT_EQ(results[i], results[i % 3]);
}

TEST(LoraItems, CoverEachRowAndRankOnceWithinTheirBounds) {
  Prng prng(10);
  for (int round = 0; round < 300; ++round) {
    const std::int32_t ranges = static_cast<std::int32_t>(prng.NextBelow(12));
    const std::int32_t max_rank = static_cast<std::int32_t>(1 + prng.NextBelow(70));
    std::vector<LoraItem> shrink, expand;
    std::vector<std::int32_t> ranks_of_row;
    std::int32_t rows = 0;
    for (std::int32_t i = 0; i < ranges; ++i) {
      const std::int32_t count = static_cast<std::int32_t>(1 + prng.NextBelow(prng.NextBelow(2) == 0 ? 10 : 200));
      const std::int32_t rank = static_cast<std::int32_t>(1 + prng.NextBelow(static_cast<std::uint64_t>(max_rank)));
      AppendLoraItems(nullptr, DType::kBF16, rank, rows, count, shrink, expand);
      rows += count;
      ranks_of_row.resize(static_cast<std::size_t>(rows), rank);
    }
    const LoraItemBounds bounds = MaxLoraItems(rows, ranges, max_rank);
    EXPECT_LE(static_cast<std::int32_t>(shrink.size()), bounds.shrink);
    EXPECT_LE(static_cast<std::int32_t>(expand.size()), bounds.expand);
    std::vector<std::int32_t> quarters(static_cast<std::size_t>(rows)), tiles(static_cast<std::size_t>(rows));
    for (const LoraItem& item : expand)
      for (std::int32_t row = item.first_row; row < item.first_row + item.rows; ++row)
        quarters[static_cast<std::size_t>(row)] += 4 / item.parts;
    for (const LoraItem& item : shrink)
      for (std::int32_t row = item.first_row; row < item.first_row + item.rows; ++row) {
        EXPECT_EQ(item.first_rank, tiles[static_cast<std::size_t>(row)]++ * kLoraRankTile);
        EXPECT_LE(item.rows, kLoraItemRows);
      }
    for (std::size_t row = 0; row < quarters.size(); ++row) {
      EXPECT_EQ(quarters[row], 4);
      EXPECT_EQ(tiles[row], (ranks_of_row[row] + kLoraRankTile - 1) / kLoraRankTile);
    }
  }
}

// Keeps the grids and arguments of launches of LoraExpand; nothing runs.
class ExpandLaunches final : public DeviceStream {
 public:
  std::vector<std::pair<std::uint32_t, std::int32_t>> items;  // number of items of the grid, and index of the first one

  void Launch(const KernelLaunch& launch) override {
    items.emplace_back(launch.grid.y, static_cast<const LoraExpandArguments*>(launch.arguments)->first_item);
  }
  void CopyToDevice(void*, const void*, std::size_t) override {}
  void CopyToHost(void*, const void*, std::size_t) override {}
  void Fill(void*, std::uint8_t, std::size_t) override {}
  void Multiply(const DenseProduct&) override {}
  void Record(DeviceEvent&) override {}
  void Wait(const DeviceEvent&) override {}
  Status Synchronize() override { return Ok{}; }
  Result<std::unique_ptr<DeviceGraph>> Capture(const std::function<void()>&) override { return Unsupported("a test"); }
  void Replay(const DeviceGraph&) override {}
};

TEST(LoraExpand, HasALaunchForAsManyItemsAsAGridHolds) {
  ExpandLaunches stream;
  LoraExpandArguments expand = {};
  expand.slices = 1;
  expand.out[0] = 8;
  for (const std::int32_t items : {1, 65535, 70000}) {
    expand.work.max_expand = items;
    LoraExpand(stream, expand);
  }
  using Items = std::pair<std::uint32_t, std::int32_t>;
  EXPECT_EQ(stream.items, (std::vector<Items>{{1, 0}, {65535, 0}, {65535, 0}, {4465, 65535}}));
}

}  // namespace
}  // namespace loramux::gpu
