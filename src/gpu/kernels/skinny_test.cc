#include "gpu/kernels/skinny.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>

#include "gpu/device_for_test.h"
#include "gpu/emulated/emulated_device.h"
#include "gpu/kernels/lora_world_for_test.h"
#include "gpu/kernels/packed_for_test.h"

namespace loramux::gpu {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

std::vector<float> Rounded(DType dtype, std::vector<float> values) {
  for (float& value : values) {
    std::byte bytes[4];
    StoreFromF32(dtype, bytes, 0, value);
    value = LoadAsF32(dtype, bytes, 0);
  }
  return values;
}

// A matrix of the base model: [n, world.in()].
struct Matrix {
  std::int64_t n;
  std::vector<float> w, bias;           // bias: may be empty
  std::optional<PackedForTest> packed;  // what is multiplied in the place of w

  Matrix(LoraWorld& world, DType dtype, std::int64_t outputs, bool has_bias)
      : n(outputs),
        w(Rounded(dtype, world.Random(outputs * world.in()))),
        bias(has_bias ? world.Random(outputs) : std::vector<float>()) {}
  // Quantised; w has the same values.
  Matrix(LoraWorld& world, DType dtype, std::int64_t outputs, const PackedKind& kind, Prng& random)
      : n(outputs), bias(world.Random(outputs)), packed(std::in_place, kind, outputs, world.in(), random) {
    w = Rounded(dtype, packed->Floats());
  }
};

struct Results {
  std::vector<float> y;     // result of the product: [rows][n + 3], NaN where nothing may be written
  std::vector<float> lora;  // as LoraWorld::Run
};

// One launch of the skinny product and the expand. `after`: called between them, if set.
Results RunSkinny(LoraWorld& world, DType dtype, int multiprocessors, const Matrix& matrix,
                  std::span<const RangeForTest> ranges, const std::vector<float>& x, std::int32_t max_rows,
                  const std::function<void(const SkinnyMatMulLoraArguments&)>& before = nullptr) {
  Results results;
  const auto rows = static_cast<std::int32_t>(x.size() / static_cast<std::size_t>(world.in()));
  world.launch_shrink = [&](DeviceArrays& arrays, const LoraShrinkArguments& shrink) {
    SkinnyMatMulLoraArguments skinny = {};
    skinny.lora = shrink;
    std::vector<std::byte> image(matrix.w.size() * DTypeSize(dtype));
    for (std::size_t i = 0; i < matrix.w.size(); ++i)
      StoreFromF32(dtype, image.data(), static_cast<std::int64_t>(i), matrix.w[i]);
    skinny.w = arrays.Upload(image);
    if (matrix.packed) {
      skinny.w = arrays.Upload(matrix.packed->codes);
      skinny.form = matrix.packed->Upload(arrays);
    }
    skinny.n = matrix.n;
    if (!matrix.bias.empty()) skinny.bias = arrays.Upload(matrix.bias);
    skinny.y_stride = matrix.n + 3;
    const auto count = static_cast<std::size_t>(rows * skinny.y_stride);
    skinny.y = arrays.Upload(std::vector<float>(count, std::nanf("")));
    skinny.rows = arrays.Upload<std::int32_t>({rows});
    skinny.max_rows = max_rows;
    if (before) before(skinny);
    SkinnyMatMulLora(arrays.stream(), dtype, multiprocessors, skinny);
    arrays.Synchronize();
    results.y = arrays.Download(skinny.y, count);
  };
  results.lora = world.Run(dtype, ranges, x, std::vector<float>(static_cast<std::size_t>(rows * world.y_width())));
  world.launch_shrink = nullptr;
  return results;
}

void ExpectProduct(const LoraWorld& world, const Matrix& matrix, const std::vector<float>& x,
                   const std::vector<float>& y) {
  // Tensor cores round their sums in ways of their own.
  const double tolerance = world.device().properties().major == 0 ? 1e-6 : 1e-5;
  const auto in = static_cast<std::size_t>(world.in()), stride = static_cast<std::size_t>(matrix.n + 3);
  int wrong = 0;
  for (std::size_t row = 0; row < x.size() / in && wrong < 5; ++row)
    for (std::size_t o = 0; o < stride && wrong < 5; ++o) {
      const float got = y[row * stride + o];
      if (o >= static_cast<std::size_t>(matrix.n)) {
        if (!std::isnan(got)) ADD_FAILURE() << "row " << row << ": written beyond its end, at " << o << ++wrong;
        continue;
      }
      double sum = matrix.bias.empty() ? 0 : static_cast<double>(matrix.bias[o]), magnitude = std::abs(sum);
      for (std::size_t t = 0; t < in; ++t) {
        const double product = static_cast<double>(x[row * in + t]) * static_cast<double>(matrix.w[o * in + t]);
        sum += product;
        magnitude += std::abs(product);
      }
      if (std::abs(static_cast<double>(got) - sum) <= tolerance * magnitude) continue;
      ADD_FAILURE() << "row " << row << ", output " << o << ": " << got << ", expected " << sum << ++wrong;
    }
}

std::vector<std::uint32_t> Bits(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * 4);
  return bits;
}

// The product against double precision; the LoRA product against its own launches, bit by bit.
void ExpectRight(LoraWorld& world, DType dtype, std::int64_t n, const std::vector<RangeForTest>& ranges) {
  std::int32_t rows = 0;
  for (const RangeForTest& range : ranges) rows += range.rows;
  const std::vector<float> x = world.RandomX(dtype, rows);
  const Matrix matrix(world, dtype, n, n % 2 == 1);
  for (const int multiprocessors : {1, 50}) {
    const Results results = RunSkinny(world, dtype, multiprocessors, matrix, ranges, x, rows);
    ExpectProduct(world, matrix, x, results.y);
    const std::vector<float> zeros(static_cast<std::size_t>(rows * world.y_width()));
    EXPECT_EQ(Bits(results.lora), Bits(world.Run(dtype, ranges, x, zeros)));
  }
}

TEST(SkinnyMatMulLora, EverySizeOfInputAndOutput) {
  for (const DType dtype : kTypes)
    for (const std::int64_t in : {8, 24, 64, 136, 2056})
      for (const std::int64_t n : {1, 16, 17, 150}) {
        SCOPED_TRACE(std::string(DTypeName(dtype)) + ", in " + std::to_string(in) + ", n " + std::to_string(n));
        LoraWorld world(DeviceForTest(), in, {33}, 1);
        const auto adapter = world.AddAdapter(dtype, {1}), other = world.AddAdapter(dtype, {19});
        ExpectRight(world, dtype, n, {{adapter.get(), 2}, {nullptr, 1}, {other.get(), 1}});
      }
}

TEST(SkinnyMatMulLora, EveryNumberOfRows) {
  for (const DType dtype : kTypes)
    for (const std::int32_t rows : {1, 7, 8, 9, 16, 17, 32, 33, 57, 64}) {
      SCOPED_TRACE(std::string(DTypeName(dtype)) + ", " + std::to_string(rows) + " rows");
      LoraWorld world(DeviceForTest(), 136, {40, 8, 17}, 2);
      const auto adapter = world.AddAdapter(dtype, {16, 0, 33});
      ExpectRight(world, dtype, 65, {{nullptr, rows / 3}, {adapter.get(), rows - rows / 3}});
    }
}

TEST(SkinnyMatMulLora, AdaptersOfEveryType) {
  for (const DType dtype : kTypes) {
    LoraWorld world(DeviceForTest(), 2104, {70, 131}, 3);
    std::vector<std::unique_ptr<AdapterForTest>> adapters;
    std::vector<RangeForTest> ranges;
    for (const DType of_adapter : kTypes)
      for (const std::int32_t rank : {1, 16, 40}) {
        adapters.push_back(world.AddAdapter(of_adapter, {rank, rank / 2}));
        ranges.push_back({adapters.back().get(), 1 + rank % 4});
      }
    ExpectRight(world, dtype, 48, ranges);
  }
}

TEST(SkinnyMatMulLora, WithoutAdaptersAndWithoutRows) {
  for (const DType dtype : kTypes) {
    LoraWorld world(DeviceForTest(), 64, {16}, 4);
    ExpectRight(world, dtype, 20, {{nullptr, 3}});
    const Matrix matrix(world, dtype, 20, true);
    EXPECT_TRUE(RunSkinny(world, dtype, 2, matrix, {}, {}, 8).y.empty());
  }
}

TEST(SkinnyMatMulLora, ARowHasTheSameBitsInEveryBatch) {
  for (const DType dtype : kTypes) {
    LoraWorld world(DeviceForTest(), 520, {16}, 5);
    const auto adapter = world.AddAdapter(dtype, {5});
    const std::vector<float> x = world.RandomX(dtype, 64);
    const Matrix matrix(world, dtype, 70, true);
    const RangeForTest all[] = {{adapter.get(), 64}};
    const Results together = RunSkinny(world, dtype, 2, matrix, all, x, 64);
    for (const std::int32_t count : {1, 2, 8, 15, 31, 63}) {
      const RangeForTest some[] = {{adapter.get(), count}};
      const auto width = static_cast<std::size_t>(73), first = static_cast<std::size_t>(64 - count);
      const std::vector<float> rows(x.begin() + static_cast<std::ptrdiff_t>(first) * 520, x.end());
      for (const std::int32_t max_rows : {count, 64}) {  // as recorded for larger batches
        const Results alone = RunSkinny(world, dtype, 7, matrix, some, rows, max_rows);
        EXPECT_EQ(std::memcmp(alone.y.data(), together.y.data() + first * width, alone.y.size() * 4), 0)
            << DTypeName(dtype) << ", " << count << " rows";
      }
    }
  }
}

TEST(SkinnyMatMulLora, TheOrderOfLanesAndBlocksChangesNoBit) {
  std::vector<Results> results;
  for (const std::uint64_t seed : {0, 1, 2}) {
    EmulatedDeviceOptions options;
    options.seed = seed;
    options.memory = std::int64_t{64} << 20;
    const std::unique_ptr<EmulatedDevice> device = MakeEmulatedDevice(options);
    for (const DType dtype : kTypes) {
      LoraWorld world(*device, 264, {40}, 6);
      const auto adapter = world.AddAdapter(dtype, {19}), other = world.AddAdapter(DType::kF16, {3});
      const RangeForTest ranges[] = {{adapter.get(), 1}, {other.get(), 17}};
      const Matrix matrix(world, dtype, 100, false);
      results.push_back(RunSkinny(world, dtype, 3, matrix, ranges, world.RandomX(dtype, 18), 18));
    }
  }
  for (std::size_t i = 3; i < results.size(); ++i) {
    EXPECT_EQ(Bits(results[i].y), Bits(results[i % 3].y));
    EXPECT_EQ(Bits(results[i].lora), Bits(results[i % 3].lora));
  }
}

// The table of docs/design/gpu.md.
TEST(SkinnyMatMulLora, ReadsEachByteOfWeightsAndAdaptersOnce) {
  EmulatedDeviceOptions options;
  options.memory = std::int64_t{64} << 20;
  const std::unique_ptr<EmulatedDevice> device = MakeEmulatedDevice(options);
  std::printf("| batch | W, needed | read | A, needed | read | all loads |\n");
  for (const DType dtype : kTypes)
    for (const std::int32_t rows : {1, 8, 20, 64}) {
      LoraWorld world(*device, 1040, {40, 33}, 7);
      const std::int64_t n = 330;
      const Matrix matrix(world, dtype, n, true);
      const auto one = world.AddAdapter(dtype, {16, 19}), other = world.AddAdapter(dtype, {5, 40});
      std::vector<RangeForTest> ranges = {{one.get(), (rows + 1) / 2}};
      if (rows > 1) ranges.push_back({other.get(), rows / 2});
      const std::vector<float> x = world.RandomX(dtype, rows);
      const std::string name = std::string(DTypeName(dtype)) + ", " + std::to_string(rows) + " rows";
      std::int64_t needed_a = 0;
      for (const RangeForTest& range : ranges) {
        device->Watch(name + " A", range.adapter->a_rows.base, range.adapter->a_rows.bytes);
        needed_a += static_cast<std::int64_t>(range.adapter->a_rows.row_bytes);
      }
      const std::int64_t needed_w = n * world.in() * static_cast<std::int64_t>(DTypeSize(dtype));
      Traffic total;
      std::int64_t read_w = 0;
      const auto before = [&](const SkinnyMatMulLoraArguments& a) {
        device->Watch(name + " W", a.w, static_cast<std::size_t>(needed_w));
        device->ResetTraffic();
      };
      world.after_shrink = [&] {
        total = device->Total();
        read_w = device->TrafficOf(name + " W").load_bytes;
      };
      RunSkinny(world, dtype, 3, matrix, ranges, x, rows, before);
      const std::int64_t read_a = device->TrafficOf(name + " A").load_bytes;
      std::printf("| %s | %lld | %lld | %lld | %lld | %lld |\n", name.c_str(), static_cast<long long>(needed_w),
                  static_cast<long long>(read_w), static_cast<long long>(needed_a), static_cast<long long>(read_a),
                  static_cast<long long>(total.load_bytes));
      EXPECT_EQ(read_w, needed_w) << name;
      EXPECT_EQ(read_a, needed_a) << name;
    }
}

// Whatever the form, the bits are those of the same weights as floats.
TEST(SkinnyMatMulLora, QuantisedWeightsHaveTheBitsOfTheirFloats) {
  Prng random(8);
  for (const DType dtype : kTypes)
    for (const PackedKind& kind : kPackedKinds)
      for (const auto& [in, n, rows] : std::vector<std::array<std::int32_t, 3>>{
               {32, 1, 1}, {96, 17, 3}, {160, 32, 8}, {288, 50, 9}, {640, 33, 17}, {1056, 16, 40}, {256, 70, 64}}) {
        SCOPED_TRACE(std::string(DTypeName(dtype)) + ", " + kind.Name() + ", in " + std::to_string(in) + ", n " +
                     std::to_string(n) + ", rows " + std::to_string(rows));
        LoraWorld world(DeviceForTest(), in, {33}, 1);
        const auto adapter = world.AddAdapter(dtype, {19});
        const RangeForTest ranges[] = {{adapter.get(), rows}};
        Matrix matrix(world, dtype, n, kind, random);
        const std::vector<float> x = world.RandomX(dtype, rows);
        const Results found = RunSkinny(world, dtype, 2, matrix, ranges, x, rows);
        matrix.packed.reset();
        const Results expected = RunSkinny(world, dtype, 3, matrix, ranges, x, rows);
        EXPECT_EQ(Bits(found.y), Bits(expected.y));
        EXPECT_EQ(Bits(found.lora), Bits(expected.lora));
      }
}

TEST(SkinnyMatMulLora, AQuantisedRowHasTheSameBitsInEveryBatch) {
  Prng random(9);
  for (const DType dtype : kTypes)
    for (const PackedKind& kind : {kPackedKinds[0], kPackedKinds[1]}) {
      LoraWorld world(DeviceForTest(), 544, {16}, 5);
      const std::vector<float> x = world.RandomX(dtype, 64);
      const Matrix matrix(world, dtype, 70, kind, random);
      const RangeForTest all[] = {{nullptr, 64}};
      const Results together = RunSkinny(world, dtype, 2, matrix, all, x, 64);
      for (const std::int32_t count : {1, 8, 15, 31}) {
        const RangeForTest some[] = {{nullptr, count}};
        const std::vector<float> rows(x.end() - count * 544, x.end());
        const Results alone = RunSkinny(world, dtype, 7, matrix, some, rows, count == 15 ? 64 : count);
        EXPECT_EQ(std::memcmp(alone.y.data(), together.y.data() + (64 - count) * 73, alone.y.size() * 4), 0)
            << DTypeName(dtype) << ", " << kind.Name() << ", " << count << " rows";
      }
    }
}

// Rows beyond those that one launch takes.
TEST(SkinnyMatMulLora, LaunchesOverPartsOfABatch) {
  Prng random(10);
  LoraWorld world(DeviceForTest(), 96, {16}, 5);
  const Matrix matrix(world, DType::kBF16, 20, kPackedKinds[1], random);
  const RangeForTest all[] = {{nullptr, 64}};
  const std::vector<float> x = world.RandomX(DType::kBF16, 64);
  const Results whole = RunSkinny(world, DType::kBF16, 2, matrix, all, x, 64);
  DeviceArrays arrays(world.device());
  std::vector<std::byte> image(x.size() * 2);
  for (std::size_t i = 0; i < x.size(); ++i)
    StoreFromF32(DType::kBF16, image.data(), static_cast<std::int64_t>(i), x[i]);
  SkinnyMatMulLoraArguments a = {};
  const std::byte* const rows = arrays.Upload(image);
  a.lora.x_stride = a.lora.in = 96;
  a.w = arrays.Upload(matrix.packed->codes);
  a.form = matrix.packed->Upload(arrays);
  a.n = 20;
  a.bias = arrays.Upload(matrix.bias);
  float* const y = arrays.Upload(std::vector<float>(80 * 23, std::nanf("")));
  a.y_stride = 23;
  a.rows = arrays.Upload<std::int32_t>({64});
  a.max_rows = 24;
  for (a.first_row = 0; a.first_row < 80; a.first_row += 24) {
    a.lora.x = rows + std::min(a.first_row, 63) * 96 * 2;
    a.y = y + a.first_row * 23;
    SkinnyMatMulLora(arrays.stream(), DType::kBF16, 2, a);
  }
  const std::vector<float> found = arrays.Download(y, 80 * 23);
  EXPECT_EQ(std::memcmp(found.data(), whole.y.data(), whole.y.size() * 4), 0);
  for (std::size_t i = 64 * 23; i < found.size(); ++i) EXPECT_TRUE(std::isnan(found[i]));
}

// The scales of larger groups are read by each warp that has one of their blocks of 32 inputs: from the caches.
TEST(SkinnyMatMulLora, ReadsEachByteOfQuantisedWeightsOnce) {
  std::printf("| form | rows | W, needed | read | scales, needed | read |\n");
  Prng random(11);
  for (const DType dtype : {DType::kBF16, DType::kF32})
    for (const PackedKind& kind : kPackedKinds)
      for (const std::int32_t rows : {1, 8, 20, 64}) {
        EmulatedDeviceOptions options;
        options.memory = std::int64_t{64} << 20;
        const std::unique_ptr<EmulatedDevice> device = MakeEmulatedDevice(options);
        LoraWorld world(*device, 1280, {40}, 7);
        const Matrix matrix(world, dtype, 330, kind, random);
        const RangeForTest ranges[] = {{nullptr, rows}};
        std::int64_t read_w = 0, read_scales = 0;
        const auto codes = static_cast<std::int64_t>(matrix.packed->codes.size());
        const auto scales = static_cast<std::int64_t>(matrix.packed->scales.size());
        const auto before = [&](const SkinnyMatMulLoraArguments& a) {
          device->Watch("W", a.w, matrix.packed->codes.size());
          device->Watch("S", a.form.scales, matrix.packed->scales.size());
          device->ResetTraffic();
        };
        world.after_shrink = [&] {
          read_w = device->TrafficOf("W").load_bytes;
          read_scales = device->TrafficOf("S").load_bytes;
        };
        RunSkinny(world, dtype, 3, matrix, ranges, world.RandomX(dtype, rows), rows, before);
        if (dtype == DType::kF32) {  // reads only the rows that there are
          EXPECT_EQ(read_w, codes / 336 * 330) << kind.Name();
          continue;
        }
        std::printf("| %s | %d | %lld | %lld | %lld | %lld |\n", kind.Name().c_str(), rows,
                    static_cast<long long>(codes), static_cast<long long>(read_w), static_cast<long long>(scales),
                    static_cast<long long>(read_scales));
        EXPECT_EQ(read_w, codes) << kind.Name();
        if (kind.group_shift == 5) {
          EXPECT_EQ(read_scales, scales) << kind.Name();
        }
      }
}

}  // namespace
}  // namespace loramux::gpu
