#include "gpu/kernels/packed.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "gpu/device_for_test.h"
#include "gpu/emulated/emulated_device.h"
#include "gpu/kernels/elementwise.h"
#include "gpu/kernels/packed_for_test.h"

namespace loramux::gpu {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

TEST(PackTiles, KeepsEveryValue) {
  Prng random(1);
  for (const PackedKind& kind : kPackedKinds)
    for (const std::int64_t n : {1, 8, 16, 37})
      for (const std::int64_t k : {32, 96, 160, 256, 288, 640}) {
        SCOPED_TRACE(kind.Name() + ", " + std::to_string(n) + " x " + std::to_string(k));
        const PackedForTest packed(kind, n, k, random);
        const PackedForm form = {reinterpret_cast<const std::uint8_t*>(packed.scales.data()), kind.format,
                                 kind.group_shift};
        std::vector<float> found(static_cast<std::size_t>(n * k));
        for (std::int64_t row = 0; row < n; ++row)
          UnpackTileRow(form, packed.codes.data(), row, k, found.data() + row * k);
        EXPECT_EQ(found, packed.Floats());
      }
}

// Without what fills tiles, and chunks of 4 bits.
TEST(PackTiles, TakesNoMoreBytesThanTheFormatHas) {
  for (const std::int32_t shift : {5, 7}) {
    const std::int64_t weights = 64 * 4096, groups = weights >> shift;
    EXPECT_EQ(PackedCodeBytes(WeightFormat::kQ4, 64, 4096), weights / 2);
    EXPECT_EQ(PackedScaleBytes(WeightFormat::kQ4, shift, 64, 4096), groups * 4);
    EXPECT_EQ(PackedCodeBytes(WeightFormat::kQ8, 64, 4096), weights);
    EXPECT_EQ(PackedScaleBytes(WeightFormat::kQ8, shift, 64, 4096), groups * 2);
    EXPECT_EQ(PackedCodeBytes(WeightFormat::kMx4, 64, 4096), weights / 2);
    EXPECT_EQ(PackedScaleBytes(WeightFormat::kMx4, shift, 64, 4096), groups);
    EXPECT_EQ(PackedScaleBytes(WeightFormat::kF8, shift, 64, 4096), groups * 4);
  }
}

TEST(PackTiles, AGroupWithANumberThatIsNoneHasNone) {
  Prng random(2);
  PackedForTest packed({WeightFormat::kF8, 7}, 2, 256, random);
  packed.rows.ScalesOf(1)[2] = std::numeric_limits<float>::quiet_NaN();
  PackTiles(packed.rows, 7, packed.codes.data(), packed.scales.data());
  const PackedForm form = {reinterpret_cast<const std::uint8_t*>(packed.scales.data()), WeightFormat::kF8, 7};
  std::vector<float> row(256);
  UnpackTileRow(form, packed.codes.data(), 1, 256, row.data());
  for (std::size_t i = 0; i < 256; ++i) EXPECT_EQ(std::isnan(row[i]), i < 128) << i;
}

std::vector<std::byte> Stored(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * DTypeSize(dtype));
  for (std::size_t i = 0; i < values.size(); ++i)
    StoreFromF32(dtype, bytes.data(), static_cast<std::int64_t>(i), values[i]);
  return bytes;
}

TEST(WidenPacked, IsTheFloatsRoundedOnce) {
  Prng random(3);
  for (const DType dtype : kTypes)
    for (const PackedKind& kind : kPackedKinds)
      for (const std::int64_t k : {32, 288, 640}) {
        SCOPED_TRACE(std::string(DTypeName(dtype)) + ", " + kind.Name() + ", " + std::to_string(k));
        const std::int64_t n = 53, first = 16, rows = n - first - 2;
        DeviceArrays arrays(DeviceForTest());
        const PackedForTest packed(kind, n, k, random);
        const auto all = Stored(dtype, packed.Floats());
        const std::size_t row_bytes = static_cast<std::size_t>(k) * DTypeSize(dtype);
        // What follows the rows must stay.
        std::byte* const y = arrays.Upload(std::vector<std::byte>(static_cast<std::size_t>(n) * row_bytes));
        WidenPacked(arrays.stream(), dtype, {arrays.Upload(packed.codes), packed.Upload(arrays), k, first, rows, y});
        const std::vector<std::byte> found = arrays.Download(y, static_cast<std::size_t>(n) * row_bytes);
        const std::size_t bytes = static_cast<std::size_t>(rows) * row_bytes;
        EXPECT_EQ(std::memcmp(found.data(), all.data() + first * static_cast<std::int64_t>(row_bytes), bytes), 0);
        for (std::size_t i = bytes; i < found.size(); ++i) ASSERT_EQ(found[i], std::byte{0});
      }
}

TEST(WidenPacked, ReadsEachByteOfTheCodesOnce) {
  Prng random(4);
  for (const WeightFormat format : {WeightFormat::kQ8, WeightFormat::kQ4}) {
    EmulatedDeviceOptions options;
    options.memory = std::int64_t{64} << 20;
    const std::unique_ptr<EmulatedDevice> device = MakeEmulatedDevice(options);
    DeviceArrays arrays(*device);
    const PackedForTest packed({format, 5}, 64, 512, random);
    const std::byte* const codes = arrays.Upload(packed.codes);
    const PackedForm form = packed.Upload(arrays);
    auto* const y = arrays.Allocate<std::uint16_t>(64 * 512);
    device->Watch("codes", codes, packed.codes.size());
    device->ResetTraffic();
    WidenPacked(arrays.stream(), DType::kBF16, {codes, form, 512, 0, 64, y});
    arrays.Synchronize();
    EXPECT_EQ(device->TrafficOf("codes").load_bytes, static_cast<std::int64_t>(packed.codes.size()));
  }
}

TEST(EmbedRows, TakesRowsOfQuantisedTables) {
  Prng random(5);
  for (const PackedKind& kind : kPackedKinds) {
    SCOPED_TRACE(kind.Name());
    const std::int64_t n = 37, k = 288;
    DeviceArrays arrays(DeviceForTest());
    const PackedForTest packed(kind, n, k, random);
    const std::vector<float> all = packed.Floats();
    const std::vector<std::int32_t> tokens = {36, 0, 17, 99};
    EmbedRowsArguments a = {};
    a.table = arrays.Upload(packed.codes);
    a.form = packed.Upload(arrays);
    a.tokens = arrays.Upload(tokens);
    a.rows = arrays.Upload<std::int32_t>({4});
    a.hidden = arrays.Allocate<float>(4 * 288);
    a.width = a.hidden_stride = k;
    a.table_rows = n;
    EmbedRows(arrays.stream(), DType::kF32, 4, a);
    const std::vector<float> found = arrays.Download(a.hidden, 4 * 288);
    for (std::size_t i = 0; i < 4; ++i)
      for (std::size_t t = 0; t < 288; ++t)
        ASSERT_EQ(found[i * 288 + t], all[static_cast<std::size_t>(std::min(tokens[i], 36)) * 288 + t]);
  }
}

}  // namespace
}  // namespace loramux::gpu
