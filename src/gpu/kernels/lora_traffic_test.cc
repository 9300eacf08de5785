// How many bytes the LoRA kernels read on the emulated device, against how many they must.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "gpu/emulated/emulated_device.h"
#include "gpu/kernels/lora_world_for_test.h"

namespace loramux::gpu {
namespace {

std::unique_ptr<EmulatedDevice> SmallDevice() {
  EmulatedDeviceOptions options;
  options.memory = std::int64_t{256} << 20;
  return MakeEmulatedDevice(options);
}

struct Bytes {
  std::int64_t needed_a = 0, needed_b = 0, read_a = 0, read_b = 0;
};

// Runs one batch and prints its line of the table. An adapter's rows are needed once for each 64 rows of a range.
Bytes Measure(const char* name, DType dtype, std::int64_t in, std::vector<std::int64_t> outs,
              const std::vector<std::pair<std::vector<std::int32_t>, std::int32_t>>& ranks_and_rows) {
  const std::unique_ptr<EmulatedDevice> device = SmallDevice();
  LoraWorld world(*device, in, std::move(outs), 1);
  std::vector<std::unique_ptr<AdapterForTest>> adapters;
  std::vector<RangeForTest> ranges;
  Bytes bytes;
  std::int64_t rows = 0;
  for (const auto& [ranks, count] : ranks_and_rows) {
    adapters.push_back(world.AddAdapter(dtype, ranks));
    const AdapterForTest& adapter = *adapters.back();
    device->Watch("A", adapter.a_rows.base, adapter.a_rows.bytes);
    device->Watch("B", adapter.b_rows.base, adapter.b_rows.bytes);
    const std::int64_t items = (count + kLoraItemRows - 1) / kLoraItemRows;
    bytes.needed_a += items * static_cast<std::int64_t>(adapter.a_rows.row_bytes);
    bytes.needed_b += items * static_cast<std::int64_t>(adapter.b_rows.row_bytes);
    ranges.push_back({&adapter, count});
    rows += count;
  }
  const std::vector<float> x = world.RandomX(dtype, rows), y = world.Random(rows * world.y_width());
  device->ResetTraffic();
  Traffic shrink;
  world.after_shrink = [&] {
    shrink = device->Total();
    EXPECT_EQ(device->TrafficOf("B").load_bytes, 0);
    bytes.read_a = device->TrafficOf("A").load_bytes;
  };
  world.Run(dtype, ranges, x, y);
  const Traffic total = device->Total();
  EXPECT_EQ(device->TrafficOf("A").load_bytes, bytes.read_a) << "the expand kernel reads A";
  bytes.read_b = device->TrafficOf("B").load_bytes;
  const auto line = [&](const char* kernel, std::int64_t needed, std::int64_t read, std::int64_t other) {
    std::printf("| %-26s | %-10s | %9lld | %9lld | %5.3f | %9lld |\n", name, kernel, static_cast<long long>(needed),
                static_cast<long long>(read), static_cast<double>(read) / static_cast<double>(needed),
                static_cast<long long>(other));
  };
  line("LoraShrink", bytes.needed_a, bytes.read_a, shrink.load_bytes - bytes.read_a);
  line("LoraExpand", bytes.needed_b, bytes.read_b, total.load_bytes - shrink.load_bytes - bytes.read_b);
  return bytes;
}

TEST(LoraTraffic, ReadsTheRowsOfAdaptersOnceForEachItem) {
  std::printf("| %-26s | %-10s | %9s | %9s | %5s | %9s |\n", "batch", "kernel", "needed", "read", "ratio", "others");
  const struct {
    const char* name;
    DType dtype;
    std::vector<std::pair<std::vector<std::int32_t>, std::int32_t>> ranks_and_rows;
  } batches[] = {
      {"bf16, 1 row, rank 16", DType::kBF16, {{{16, 16, 16}, 1}}},
      {"bf16, 8 adapters, 1-8 rows",
       DType::kBF16,
       {{{8, 8, 8}, 1},
        {{16, 0, 3}, 2},
        {{64, 1, 64}, 3},
        {{1, 1, 1}, 4},
        {{24, 5, 0}, 5},
        {{17, 16, 15}, 6},
        {{8, 8, 8}, 7},
        {{66, 66, 66}, 8}}},
      {"bf16, 64 rows, rank 24", DType::kBF16, {{{24, 24, 24}, 64}}},
      {"bf16, 200 rows, rank 8", DType::kBF16, {{{8, 8, 8}, 200}}},
      {"f16, 20 rows, rank 70", DType::kF16, {{{70, 1, 9}, 20}}},
      {"f32, 3 and 40 rows", DType::kF32, {{{16, 5, 24}, 3}, {{9, 70, 1}, 40}}},
  };
  for (const auto& batch : batches) {
    const Bytes bytes = Measure(batch.name, batch.dtype, 2304, {640, 136, 136}, batch.ranks_and_rows);
    EXPECT_EQ(bytes.read_a, bytes.needed_a) << batch.name;
    EXPECT_EQ(bytes.read_b, bytes.needed_b) << batch.name;
  }
}

// Sizes that fill no tile: still no byte twice, and none beyond a row.
TEST(LoraTraffic, ReadsEachRowOnceAtOddSizes) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    for (const std::int32_t rows : {1, 7, 30}) {
      const std::unique_ptr<EmulatedDevice> device = SmallDevice();
      LoraWorld world(*device, 2155, {521, 3}, 2);
      const auto adapter = world.AddAdapter(dtype, {19, 5});
      const std::size_t size = DTypeSize(dtype);
      std::vector<std::pair<std::string, std::size_t>> rows_of_adapter;  // name, bytes
      const auto watch = [&](const std::string& name, const void* row, std::size_t bytes) {
        device->Watch(name, row, bytes);
        rows_of_adapter.emplace_back(name, bytes);
      };
      for (std::size_t j = 0; j < 24; ++j) {
        watch("A " + std::to_string(j), adapter->a_rows.addresses[j], 2155 * size);
        watch("B " + std::to_string(j), adapter->b_rows.addresses[j], (j < 19 ? 521 : 3) * size);
      }
      const RangeForTest ranges[] = {{adapter.get(), rows}};
      const std::vector<float> x = world.RandomX(dtype, rows), y = world.Random(rows * world.y_width());
      device->ResetTraffic();
      world.Run(dtype, ranges, x, y);
      for (const auto& [name, bytes] : rows_of_adapter)
        EXPECT_EQ(device->TrafficOf(name).load_bytes, static_cast<std::int64_t>(bytes))
            << DTypeName(dtype) << ", " << rows << " rows, " << name;
    }
}

}  // namespace
}  // namespace loramux::gpu
