// Adapters and mixed batches in a device's memory, and what the LoRA kernels must make of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "gpu/device.h"
#include "gpu/kernels/lora.h"
#include "tensor/half_float.h"

namespace loramux::gpu {

// One adapter: a module for each slice. Rows lie in shuffled order, 64-byte aligned, with NaN between them.
struct AdapterForTest {
  DType dtype = DType::kF32;
  std::vector<std::int32_t> ranks;
  std::vector<float> scales;
  std::vector<std::vector<std::vector<float>>> a, b;  // [slice][rank][in or out], as rounded
  std::vector<const void*> rows;                      // device addresses, all of A, then all of B
  std::vector<std::size_t> row_bytes;
  std::unique_ptr<Arena> a_memory, b_memory, tables;
  const LoraModule* modules = nullptr;  // on the device

  std::int32_t max_rank() const { return *std::max_element(ranks.begin(), ranks.end()); }
  std::size_t bytes_of_a = 0, bytes_of_b = 0;
};

// Adjacent rows of a batch; adapter null: none.
struct RangeForTest {
  const AdapterForTest* adapter;
  std::int32_t rows;
};

// One group of linear layers that share x.
class LoraWorld {
 public:
  LoraWorld(Device& device, std::int64_t in, std::vector<std::int64_t> outs, std::uint64_t seed)
      : device_(device), in_(in), outs_(std::move(outs)), prng_(seed) {
    Result<std::unique_ptr<DeviceStream>> stream = device.CreateStream();
    CHECK(stream.ok());
    stream_ = std::move(stream).value();
  }

  std::int64_t in() const { return in_; }
  std::int64_t y_width() const {  // the slices stand side by side, one odd column apart
    std::int64_t width = 0;
    for (const std::int64_t out : outs_) width += out + 1;
    return width + y_padding;
  }
  std::int64_t y_padding = 0;

  std::vector<float> Random(std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = static_cast<float>(prng_.NextDouble() * 2 - 1);
    return values;
  }

  std::unique_ptr<AdapterForTest> AddAdapter(DType dtype, std::vector<std::int32_t> ranks) {
    auto adapter = std::make_unique<AdapterForTest>();
    adapter->dtype = dtype;
    adapter->ranks = std::move(ranks);
    std::vector<LoraModule> modules(outs_.size());
    std::vector<std::vector<float>*> a_rows, b_rows;
    adapter->a.resize(outs_.size());
    adapter->b.resize(outs_.size());
    for (std::size_t slice = 0; slice < outs_.size(); ++slice) {
      const std::size_t rank = static_cast<std::size_t>(adapter->ranks[slice]);
      adapter->scales.push_back(static_cast<float>(0.5 + prng_.NextDouble()));
      for (std::size_t j = 0; j < rank; ++j) {
        adapter->a[slice].push_back(Random(in_));
        adapter->b[slice].push_back(Random(outs_[slice]));
      }
    }
    for (std::size_t slice = 0; slice < outs_.size(); ++slice) {
      for (std::vector<float>& row : adapter->a[slice]) a_rows.push_back(&row);
      for (std::vector<float>& row : adapter->b[slice]) b_rows.push_back(&row);
    }
    const std::vector<const void*> a_addresses = PlaceRows(*adapter, a_rows, adapter->a_memory, adapter->bytes_of_a);
    const std::vector<const void*> b_addresses = PlaceRows(*adapter, b_rows, adapter->b_memory, adapter->bytes_of_b);
    // The tables: the modules, then the addresses.
    const std::size_t header = modules.size() * sizeof(LoraModule), pointers = a_addresses.size() * sizeof(void*);
    adapter->tables = Allocate(header + 2 * pointers);
    std::byte* base = adapter->tables->base();
    std::size_t first = 0;
    for (std::size_t slice = 0; slice < outs_.size(); ++slice) {
      const auto* const rows = reinterpret_cast<const void* const*>(base + header);
      modules[slice] = {rows + first, rows + a_addresses.size() + first, adapter->ranks[slice], adapter->scales[slice]};
      first += static_cast<std::size_t>(adapter->ranks[slice]);
    }
    std::vector<std::byte> image(header + 2 * pointers);
    std::memcpy(image.data(), modules.data(), header);
    if (pointers > 0) {
      std::memcpy(image.data() + header, a_addresses.data(), pointers);
      std::memcpy(image.data() + header + pointers, b_addresses.data(), pointers);
    }
    CopyIn(base, image.data(), image.size());
    adapter->modules = reinterpret_cast<const LoraModule*>(base);
    return adapter;
  }

  // x of the batch as the device has it: [rows][in], rounded to `dtype`.
  std::vector<float> RandomX(DType dtype, std::int64_t rows) {
    std::vector<float> x = Random(rows * in_);
    for (float& value : x) value = Round(dtype, value);
    return x;
  }

  // y after both kernels, from `y` before: [rows][y_width()].
  std::vector<float> Run(DType dtype, std::span<const RangeForTest> ranges, const std::vector<float>& x,
                         const std::vector<float>& y) {
    const std::int64_t rows = static_cast<std::int64_t>(y.size()) / y_width();
    // x: padded with NaN, which no kernel may read.
    const std::int64_t x_stride = (in_ + 7) / 8 * 8 + 8;
    const std::size_t size = DTypeSize(dtype);
    std::vector<std::byte> x_image(static_cast<std::size_t>(rows * x_stride) * size, std::byte{0xff});
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t t = 0; t < in_; ++t)
        StoreFromF32(dtype, x_image.data(), row * x_stride + t, x[static_cast<std::size_t>(row * in_ + t)]);
    const std::unique_ptr<Arena> x_memory = Upload(x_image.data(), x_image.size());
    const std::unique_ptr<Arena> y_memory = Upload(y.data(), y.size() * sizeof(float));

    std::vector<LoraItem> shrink, expand;
    std::int32_t row = 0, max_rank = 1;
    for (const RangeForTest& range : ranges) {
      if (range.adapter != nullptr) {
        AppendLoraItems(range.adapter->modules, range.adapter->dtype, range.adapter->max_rank(), row, range.rows,
                        shrink, expand);
        max_rank = std::max(max_rank, range.adapter->max_rank());
      }
      row += range.rows;
    }
    CHECK_EQ(row, rows);
    const LoraItemBounds bounds = MaxLoraItems(row, static_cast<std::int32_t>(ranges.size()), max_rank);
    CHECK_LE(static_cast<std::int32_t>(shrink.size()), bounds.shrink);
    CHECK_LE(static_cast<std::int32_t>(expand.size()), bounds.expand);
    const std::int32_t counts[2] = {static_cast<std::int32_t>(shrink.size()), static_cast<std::int32_t>(expand.size())};
    const std::unique_ptr<Arena> counts_memory = Upload(counts, sizeof(counts));
    const std::unique_ptr<Arena> shrink_memory = Upload(shrink.data(), shrink.size() * sizeof(LoraItem));
    const std::unique_ptr<Arena> expand_memory = Upload(expand.data(), expand.size() * sizeof(LoraItem));

    LoraShrinkArguments first = {};
    first.x = x_memory->base();
    first.x_stride = x_stride;
    first.in = in_;
    first.work.shrink = reinterpret_cast<const LoraItem*>(shrink_memory->base());
    first.work.expand = reinterpret_cast<const LoraItem*>(expand_memory->base());
    first.work.shrink_count = reinterpret_cast<const std::int32_t*>(counts_memory->base());
    first.work.expand_count = first.work.shrink_count + 1;
    first.work.max_shrink = bounds.shrink;
    first.work.max_expand = bounds.expand;
    first.work.max_rank = max_rank;
    first.slices = static_cast<std::int32_t>(outs_.size());
    first.partial_rows = rows;
    const std::int64_t floats = LoraPartialFloats(rows, in_, first.slices, max_rank);
    partial_ = Allocate(static_cast<std::size_t>(floats) * sizeof(float));
    stream_->Fill(partial_->base(), 0xff, static_cast<std::size_t>(floats) * sizeof(float));
    first.partial = reinterpret_cast<float*>(partial_->base());

    LoraExpandArguments second = {};
    second.work = first.work;
    second.slices = first.slices;
    second.partial = first.partial;
    second.partial_rows = rows;
    second.in = in_;
    std::int64_t column = 0;
    for (std::size_t slice = 0; slice < outs_.size(); ++slice) {
      first.module[slice] = second.module[slice] = static_cast<std::int32_t>(slice);
      second.y[slice] = reinterpret_cast<float*>(y_memory->base()) + column;
      second.y_stride[slice] = y_width();
      second.out[slice] = outs_[slice];
      column += outs_[slice] + 1;
    }
    LoraShrink(*stream_, dtype, first);
    if (after_shrink) {
      Synchronize();
      after_shrink();
    }
    LoraExpand(*stream_, second);
    std::vector<float> result(y.size());
    CopyOut(result.data(), y_memory->base(), y.size() * sizeof(float));
    return result;
  }

  // Called between the two kernels, if set.
  std::function<void()> after_shrink;

  // The same in double precision, and for each element what its rounding errors scale with.
  struct Expected {
    std::vector<double> y, magnitude;
  };
  Expected Reference(std::span<const RangeForTest> ranges, const std::vector<float>& x,
                     const std::vector<float>& y) const {
    Expected expected;
    expected.y.assign(y.begin(), y.end());
    for (const float value : y) expected.magnitude.push_back(std::abs(static_cast<double>(value)));
    std::int64_t row = 0;
    for (const RangeForTest& range : ranges) {
      for (std::int32_t i = 0; i < range.rows; ++i, ++row)
        if (range.adapter != nullptr) AddReference(*range.adapter, row, x, expected);
    }
    return expected;
  }

  Device& device() const { return device_; }

 private:
  static float Round(DType dtype, float value) {
    std::byte bytes[4];
    StoreFromF32(dtype, bytes, 0, value);
    return LoadAsF32(dtype, bytes, 0);
  }

  void AddReference(const AdapterForTest& adapter, std::int64_t row, const std::vector<float>& x,
                    Expected& expected) const {
    std::int64_t column = 0;
    for (std::size_t slice = 0; slice < outs_.size(); ++slice) {
      for (std::size_t j = 0; j < adapter.a[slice].size(); ++j) {
        double v = 0, magnitude = 0;
        for (std::int64_t t = 0; t < in_; ++t) {
          const double product = static_cast<double>(x[static_cast<std::size_t>(row * in_ + t)]) *
                                 static_cast<double>(adapter.a[slice][j][static_cast<std::size_t>(t)]);
          v += product;
          magnitude += std::abs(product);
        }
        for (std::int64_t o = 0; o < outs_[slice]; ++o) {
          const std::size_t at = static_cast<std::size_t>(row * y_width() + column + o);
          const double b = static_cast<double>(adapter.scales[slice]) *
                           static_cast<double>(adapter.b[slice][j][static_cast<std::size_t>(o)]);
          expected.y[at] += v * b;
          expected.magnitude[at] += magnitude * std::abs(b);
        }
      }
      column += outs_[slice] + 1;
    }
  }

  // Rounds the rows and brings them to new device memory.
  std::vector<const void*> PlaceRows(AdapterForTest& adapter, const std::vector<std::vector<float>*>& rows,
                                     std::unique_ptr<Arena>& memory, std::size_t& bytes) {
    const std::size_t size = DTypeSize(adapter.dtype);
    std::vector<std::size_t> order(rows.size()), offsets(rows.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[prng_.NextBelow(i)]);
    std::size_t end = 64;
    for (const std::size_t i : order) {
      offsets[i] = end;
      end = (end + rows[i]->size() * size + 63) / 64 * 64 + 64 * prng_.NextBelow(2);
    }
    std::vector<std::byte> image(end, std::byte{0xff});
    for (std::size_t i = 0; i < rows.size(); ++i)
      for (std::size_t t = 0; t < rows[i]->size(); ++t) {
        const float value = Round(adapter.dtype, (*rows[i])[t]);
        (*rows[i])[t] = value;
        StoreFromF32(adapter.dtype, image.data() + offsets[i], static_cast<std::int64_t>(t), value);
      }
    memory = Upload(image.data(), image.size());
    std::vector<const void*> addresses;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      addresses.push_back(memory->base() + offsets[i]);
      adapter.row_bytes.push_back(rows[i]->size() * size);
      bytes += rows[i]->size() * size;
    }
    adapter.rows.insert(adapter.rows.end(), addresses.begin(), addresses.end());
    return addresses;
  }

  std::unique_ptr<Arena> Allocate(std::size_t bytes) {
    Result<std::unique_ptr<Arena>> arena =
        device_.Allocate("test", static_cast<std::int64_t>(std::max<std::size_t>(bytes, 64)));
    CHECK(arena.ok());
    return std::move(arena).value();
  }
  std::unique_ptr<Arena> Pinned(std::size_t bytes) {
    Result<std::unique_ptr<Arena>> arena =
        device_.AllocatePinned("test", static_cast<std::int64_t>(std::max<std::size_t>(bytes, 64)));
    CHECK(arena.ok());
    return std::move(arena).value();
  }
  void Synchronize() {
    const Status status = stream_->Synchronize();
    if (!status.ok()) CheckFailed(__FILE__, __LINE__, status.error().message);
  }
  void CopyIn(void* device, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    const std::unique_ptr<Arena> pinned = Pinned(bytes);
    std::memcpy(pinned->base(), from, bytes);
    stream_->CopyToDevice(device, pinned->base(), bytes);
    Synchronize();
  }
  void CopyOut(void* to, const void* device, std::size_t bytes) {
    const std::unique_ptr<Arena> pinned = Pinned(bytes);
    stream_->CopyToHost(pinned->base(), device, bytes);
    Synchronize();
    std::memcpy(to, pinned->base(), bytes);
  }
  std::unique_ptr<Arena> Upload(const void* from, std::size_t bytes) {
    std::unique_ptr<Arena> memory = Allocate(bytes);
    CopyIn(memory->base(), from, bytes);
    return memory;
  }

  Device& device_;
  const std::int64_t in_;
  const std::vector<std::int64_t> outs_;
  Prng prng_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<Arena> partial_;
};

}  // namespace loramux::gpu
