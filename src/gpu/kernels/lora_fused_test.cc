#include "gpu/kernels/lora_fused.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "gpu/device_for_test.h"
#include "gpu/emulated/emulated_device.h"
#include "gpu/kernels/lora_world_for_test.h"

namespace loramux::gpu {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

using Image = std::vector<std::uint8_t>;

// A few adapters of all types, one of them with a module that changes nothing, and rows without adapter.
struct Batch {
  std::vector<std::unique_ptr<AdapterForTest>> adapters;
  std::vector<RangeForTest> ranges;
  std::int32_t rows = 0;

  Batch(LoraWorld& world, std::size_t slices) {
    const std::int32_t ranks[] = {1, 5, 16, 40, 70}, counts[] = {1, 8, 2, 11, 1};
    for (int i = 0; i < 5; ++i) {
      std::vector<std::int32_t> of_slices(slices, ranks[i]);
      if (i == 2 && slices > 1) of_slices[1] = 0;
      adapters.push_back(world.AddAdapter(kTypes[i % 3], of_slices, i % 2 == 0));
      if (i % 2 == 1) Add(nullptr, i);
      Add(adapters.back().get(), counts[i]);
    }
    Add(nullptr, 2);
  }
  void Add(const AdapterForTest* adapter, std::int32_t count) {
    ranges.push_back({adapter, count});
    rows += count;
  }
};

// Runs the shrink of a random batch, and `launch` with what the expand needs; twice: with `fused` true and false.
void ExpectSameBits(LoraWorld& world, const Batch& batch,
                    const std::function<Image(DeviceArrays&, LoraExpandArguments, bool fused)>& launch) {
  const std::vector<float> x = world.RandomX(DType::kBF16, batch.rows);
  const std::vector<float> y(static_cast<std::size_t>(batch.rows * world.y_width()));
  world.launch_expand = [&](DeviceArrays& arrays, const LoraExpandArguments& expand) {
    const Image apart = launch(arrays, expand, false), together = launch(arrays, expand, true);
    EXPECT_FALSE(apart.empty());
    EXPECT_TRUE(apart == together);
  };
  world.Run(DType::kBF16, batch.ranges, x, y);
  world.launch_expand = nullptr;
}

// The bytes of several arrays.
template <typename T>
void Append(DeviceArrays& arrays, const T* array, std::size_t count, Image& image) {
  const std::vector<T> values = arrays.Download(array, count);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(values.data());
  image.insert(image.end(), bytes, bytes + count * sizeof(T));
}

TEST(LoraFused, GateMulIsExpandAndGateMul) {
  for (const DType dtype : kTypes)
    for (const std::int64_t width : {8, 131, 512, 1104}) {
      SCOPED_TRACE(std::string(DTypeName(dtype)) + ", width " + std::to_string(width));
      LoraWorld world(DeviceForTest(), 264, {width, width}, 1);
      const Batch batch(world, 2);
      const std::int64_t stride = 2 * width + 4;
      const std::vector<float> gate_up = world.Random(batch.rows * stride);
      ExpectSameBits(world, batch, [&](DeviceArrays& arrays, LoraExpandArguments expand, bool fused) {
        float* x = arrays.Upload(gate_up);
        const auto bytes = static_cast<std::size_t>(batch.rows * width) * DTypeSize(dtype);
        std::byte* out = arrays.Upload(std::vector<std::byte>(bytes, std::byte{0xff}));
        const std::int32_t* rows = arrays.Upload<std::int32_t>({batch.rows});
        for (int half = 0; half < 2; ++half) {
          expand.y[half] = x + half * width;
          expand.y_stride[half] = stride;
        }
        const GateMulArguments silu = {x, out, rows, width, stride, width};
        if (fused) {
          LoraGateMul(arrays.stream(), dtype, {silu, expand});
        } else {
          LoraExpand(arrays.stream(), expand);
          GateMul(arrays.stream(), dtype, batch.rows, silu);
        }
        Image image;
        Append(arrays, out, bytes, image);
        return image;
      });
    }
}

TEST(LoraFused, NormRowsIsExpandAndNormRows) {
  for (const DType dtype : kTypes)
    for (const std::int64_t width : {8, 132, 1030, 4160}) {
      SCOPED_TRACE(std::string(DTypeName(dtype)) + ", width " + std::to_string(width));
      LoraWorld world(DeviceForTest(), 72, {width}, 2);
      const Batch batch(world, 1);
      const std::vector<float> before = world.Random(batch.rows * width), product = world.Random(batch.rows * width);
      const std::vector<float> weights = world.Random(width);
      ExpectSameBits(world, batch, [&](DeviceArrays& arrays, LoraExpandArguments expand, bool fused) {
        float *hidden = arrays.Upload(before), *added = arrays.Upload(product);
        const auto count = static_cast<std::size_t>(batch.rows * width);
        std::byte* out = arrays.Upload(std::vector<std::byte>(count * DTypeSize(dtype), std::byte{0xff}));
        expand.y[0] = added;
        expand.y_stride[0] = width;
        const NormRowsArguments norm = {
            hidden, added, arrays.Upload(weights), out, arrays.Upload<std::int32_t>({batch.rows}), width, width, width,
            width,  1e-5f};
        if (fused) {
          LoraNormRows(arrays.stream(), dtype, {norm, expand});
        } else {
          LoraExpand(arrays.stream(), expand);
          NormRows(arrays.stream(), dtype, batch.rows, norm);
        }
        Image image;
        Append(arrays, out, count * DTypeSize(dtype), image);
        Append(arrays, hidden, count, image);
        return image;
      });
    }
}

// Every row is a sequence of its own, at position 1 of its page.
struct Places {
  std::vector<std::int32_t> positions, sequence_of_row;
  std::vector<SequenceOnDevice> sequences;
  std::vector<std::uint32_t> tables;

  explicit Places(std::int32_t rows) : positions(static_cast<std::size_t>(rows), 1) {
    for (std::int32_t row = 0; row < rows; ++row) {
      sequence_of_row.push_back(row);
      sequences.push_back({row, 1, 1, row});
      tables.push_back(static_cast<std::uint32_t>(rows - 1 - row));
    }
  }
};

TEST(LoraFused, QkvPostIsExpandAndQkvPost) {
  const struct {
    std::int32_t heads, kv_heads, head_dim;
  } shapes[] = {{1, 1, 2}, {7, 3, 22}, {6, 2, 64}, {5, 5, 96}, {9, 1, 128}, {3, 1, 256}};
  for (const DType dtype : kTypes)
    for (const auto& shape : shapes) {
      SCOPED_TRACE(std::string(DTypeName(dtype)) + ", heads of " + std::to_string(shape.head_dim));
      const std::int64_t q = shape.heads * shape.head_dim, kv = shape.kv_heads * shape.head_dim, stride = q + 2 * kv;
      LoraWorld world(DeviceForTest(), 72, {q, kv, kv}, 3);
      const Batch batch(world, 3);
      const std::vector<float> qkv = world.Random(batch.rows * stride), norm = world.Random(shape.head_dim);
      const std::vector<float> cos = world.Random(batch.rows * shape.head_dim / 2),
                               sin = world.Random(batch.rows * shape.head_dim / 2);
      ExpectSameBits(world, batch, [&](DeviceArrays& arrays, LoraExpandArguments expand, bool fused) {
        float* x = arrays.Upload(qkv);
        expand.y[0] = x;
        expand.y[1] = x + q;
        expand.y[2] = x + q + kv;
        for (std::int64_t& slice_stride : expand.y_stride) slice_stride = stride;
        const Places places(batch.rows);
        const std::int64_t page = 2 * kv * 2 * static_cast<std::int64_t>(DTypeSize(dtype));  // 2 tokens
        const std::int64_t page_stride = (page + 15) / 16 * 16;
        const auto bytes = static_cast<std::size_t>(batch.rows * page_stride);
        std::byte* pages = arrays.Upload(std::vector<std::byte>(bytes, std::byte{0xff}));
        const QkvPostArguments post = {.qkv = x,
                                       .qkv_stride = stride,
                                       .q_norm = arrays.Upload(norm),
                                       .k_norm = shape.heads % 2 == 0 ? nullptr : arrays.Upload(norm),
                                       .eps = 1e-6f,
                                       .cos = arrays.Upload(cos),
                                       .sin = arrays.Upload(sin),
                                       .row_position = arrays.Upload(places.positions),
                                       .row_sequence = arrays.Upload(places.sequence_of_row),
                                       .sequences = arrays.Upload(places.sequences),
                                       .page_tables = arrays.Upload(places.tables),
                                       .pages = {pages, page_stride, 2, shape.kv_heads, shape.head_dim},
                                       .layer_offset = 0,
                                       .rows = arrays.Upload<std::int32_t>({batch.rows}),
                                       .num_heads = shape.heads};
        if (fused) {
          LoraQkvPost(arrays.stream(), dtype, {post, expand});
        } else {
          LoraExpand(arrays.stream(), expand);
          QkvPost(arrays.stream(), dtype, batch.rows, post);
        }
        Image image;
        Append(arrays, pages, bytes, image);
        for (std::int32_t row = 0; row < batch.rows; ++row)
          Append(arrays, x + row * stride, static_cast<std::size_t>(q), image);
        return image;
      });
    }
}

// The table of docs/design/gpu.md.
TEST(LoraFused, ReadsBOnceForEightRows) {
  EmulatedDeviceOptions options;
  options.memory = std::int64_t{64} << 20;
  const std::unique_ptr<EmulatedDevice> device = MakeEmulatedDevice(options);
  for (const std::int32_t rows : {1, 8, 30}) {
    LoraWorld world(*device, 72, {1100, 1100}, 4);
    const auto one = world.AddAdapter(DType::kBF16, {16, 70}), other = world.AddAdapter(DType::kBF16, {5, 9});
    const RangeForTest ranges[] = {{one.get(), rows}, {other.get(), 1}};
    const std::string name = std::to_string(rows) + " rows";
    std::int64_t needed = static_cast<std::int64_t>(other->b_rows.row_bytes);
    needed += (rows + 7) / 8 * static_cast<std::int64_t>(one->b_rows.row_bytes);
    device->Watch(name, one->b_rows.base, one->b_rows.bytes);
    device->Watch(name, other->b_rows.base, other->b_rows.bytes);
    world.launch_expand = [&](DeviceArrays& arrays, LoraExpandArguments expand) {
      std::byte* out = arrays.Allocate<std::byte>(static_cast<std::size_t>((rows + 1) * 1100 * 2));
      float* x = arrays.Upload(world.Random((rows + 1) * 2200));
      for (int half = 0; half < 2; ++half) {
        expand.y[half] = x + half * 1100;
        expand.y_stride[half] = 2200;
      }
      device->ResetTraffic();
      LoraGateMul(arrays.stream(), DType::kBF16,
                  {{x, out, arrays.Upload<std::int32_t>({rows + 1}), 1100, 2200, 1100}, expand});
      arrays.Synchronize();
    };
    world.Run(DType::kBF16, ranges, world.RandomX(DType::kBF16, rows + 1),
              std::vector<float>(static_cast<std::size_t>((rows + 1) * world.y_width())));
    const std::int64_t read = device->TrafficOf(name).load_bytes;
    std::printf("%s of one adapter, 1 of another: B, needed %lld, read %lld\n", name.c_str(),
                static_cast<long long>(needed), static_cast<long long>(read));
    EXPECT_EQ(read, needed) << name;
  }
}

}  // namespace
}  // namespace loramux::gpu
