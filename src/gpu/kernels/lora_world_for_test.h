// Adapters and mixed batches in a device's memory, and what the LoRA kernels must make of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "gpu/device.h"
#include "gpu/device_arrays_for_test.h"
#include "gpu/kernels/lora.h"
#include "gpu/kernels/lora_adapter_for_test.h"
#include "tensor/half_float.h"

namespace loramux::gpu {

// One group of linear layers that share x.
class LoraWorld {
 public:
  LoraWorld(Device& device, std::int64_t in, std::vector<std::int64_t> outs, std::uint64_t seed)
      : device_(device), in_(in), outs_(std::move(outs)), prng_(seed), arrays_(device) {}

  std::int64_t in() const { return in_; }
  std::int64_t y_width() const {  // the slices stand side by side, one odd column apart
    std::int64_t width = 0;
    for (const std::int64_t out : outs_) width += out + 1;
    return width;
  }

  std::vector<float> Random(std::int64_t count, double range = 1) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = static_cast<float>((prng_.NextDouble() * 2 - 1) * range);
    return values;
  }

  // `with_vectors`: the outputs of all slices but the first have gains and shifts.
  std::unique_ptr<AdapterForTest> AddAdapter(DType dtype, std::vector<std::int32_t> ranks, bool with_vectors = false) {
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
        const float most = dtype == DType::kI8 ? 127 : HasRowFactors(dtype) ? kLargestF8E4M3 : 1;
        adapter->a[slice].push_back(Random(in_, most));
        adapter->b[slice].push_back(Random(outs_[slice], most));
      }
    }
    for (std::size_t slice = 0; slice < outs_.size(); ++slice) {
      for (std::vector<float>& row : adapter->a[slice]) a_rows.push_back(&row);
      for (std::vector<float>& row : adapter->b[slice]) b_rows.push_back(&row);
    }
    adapter->a_rows = PlaceRows(adapter->dtype, a_rows);
    adapter->b_rows = PlaceRows(adapter->dtype, b_rows);
    const void* const* a = arrays_.Upload(adapter->a_rows.addresses);
    const void* const* b = arrays_.Upload(adapter->b_rows.addresses);
    for (std::size_t slice = 0; slice < outs_.size(); ++slice) {
      const std::int32_t rank = adapter->ranks[slice];
      modules[slice] = {a, b, rank, adapter->scales[slice], nullptr, nullptr};
      if (HasRowFactors(dtype)) modules[slice].factors = arrays_.Upload(Scale(adapter->b[slice]));
      adapter->gains.emplace_back();
      adapter->shifts.emplace_back();
      if (with_vectors && slice > 0) {
        adapter->gains[slice] = Random(outs_[slice]);
        adapter->shifts[slice] = Random(outs_[slice]);
        modules[slice].gains = arrays_.Upload(adapter->gains[slice]);
        modules[slice].shifts = arrays_.Upload(adapter->shifts[slice]);
      }
      a += rank;
      b += rank;
    }
    adapter->modules = arrays_.Upload(modules);
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
    DeviceArrays arrays(device_);
    float* const device_y = arrays.Upload(y);
    const std::int64_t rows = static_cast<std::int64_t>(y.size()) / y_width();
    LoraShrinkArguments shrink = {};
    shrink.x_stride = (in_ + 7) / 8 * 8 + 8;
    shrink.x = arrays.Upload(PadX(dtype, x, rows, shrink.x_stride));
    shrink.in = in_;
    shrink.work = UploadWork(arrays, ranges);
    shrink.slices = static_cast<std::int32_t>(outs_.size());
    const std::int64_t floats = LoraPartialFloats(rows, in_, shrink.slices, shrink.work.max_rank);
    shrink.partial = arrays.Upload(std::vector<float>(static_cast<std::size_t>(floats), std::nanf("")));
    shrink.partial_rows = rows;

    LoraExpandArguments expand = {};
    expand.work = shrink.work;
    expand.slices = shrink.slices;
    expand.partial = shrink.partial;
    expand.partial_rows = rows;
    expand.in = in_;
    std::int64_t column = 0;
    for (std::size_t slice = 0; slice < outs_.size(); ++slice) {
      shrink.module[slice] = expand.module[slice] = static_cast<std::int32_t>(slice);
      expand.y[slice] = device_y + column;
      expand.y_stride[slice] = y_width();
      expand.out[slice] = outs_[slice];
      column += outs_[slice] + 1;
    }
    if (launch_shrink) {
      launch_shrink(arrays, shrink);
    } else {
      LoraShrink(arrays.stream(), dtype, shrink);
    }
    if (after_shrink) {
      arrays.Synchronize();
      after_shrink();
    }
    if (launch_expand) {
      launch_expand(arrays, expand);
    } else {
      LoraExpand(arrays.stream(), expand);
    }
    return arrays.Download(device_y, y.size());
  }

  // Called instead of LoraShrink, if set.
  std::function<void(DeviceArrays&, const LoraShrinkArguments&)> launch_shrink;
  // Called instead of LoraExpand, if set.
  std::function<void(DeviceArrays&, const LoraExpandArguments&)> launch_expand;
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

  // Random factors of ranks, with which it multiplies the reference's columns of B.
  std::vector<float> Scale(std::vector<std::vector<float>>& b) {
    const std::vector<float> factors = Random(static_cast<std::int64_t>(b.size()), 1.0 / (127 * 127));
    for (std::size_t j = 0; j < b.size(); ++j)
      for (float& value : b[j]) value *= factors[j];
    return factors;
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
      for (std::size_t o = 0; o < adapter.gains[slice].size(); ++o) {
        const std::size_t at = static_cast<std::size_t>(row * y_width() + column) + o;
        const double gain = static_cast<double>(adapter.gains[slice][o]);
        const double shift = static_cast<double>(adapter.shifts[slice][o]);
        expected.y[at] = gain * expected.y[at] + shift;
        expected.magnitude[at] = std::abs(gain) * expected.magnitude[at] + std::abs(shift);
      }
      column += outs_[slice] + 1;
    }
  }

  // x with NaN behind each row, which no kernel may read.
  std::vector<std::byte> PadX(DType dtype, const std::vector<float>& x, std::int64_t rows, std::int64_t stride) const {
    std::vector<std::byte> image(static_cast<std::size_t>(rows * stride) * DTypeSize(dtype), std::byte{0xff});
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t t = 0; t < in_; ++t)
        StoreFromF32(dtype, image.data(), row * stride + t, x[static_cast<std::size_t>(row * in_ + t)]);
    return image;
  }

  // The items of the ranges. The grids are as large as the bounds, so that some blocks have no work.
  static LoraWork UploadWork(DeviceArrays& arrays, std::span<const RangeForTest> ranges) {
    std::vector<LoraItem> shrink, expand, pieces;
    std::int32_t row = 0, max_rank = 1;
    for (const RangeForTest& range : ranges) {
      if (range.adapter != nullptr) {
        AppendLoraItems(range.adapter->modules, range.adapter->dtype, range.adapter->max_rank(), row, range.rows,
                        shrink, expand);
        max_rank = std::max(max_rank, range.adapter->max_rank());
      }
      AppendLoraPieces(range.adapter == nullptr ? nullptr : range.adapter->modules,
                       range.adapter == nullptr ? DType::kF32 : range.adapter->dtype, row, range.rows, pieces);
      row += range.rows;
    }
    const LoraItemBounds bounds = MaxLoraItems(row, static_cast<std::int32_t>(ranges.size()), max_rank);
    LoraWork work = {};
    work.shrink = arrays.Upload(shrink);
    work.expand = arrays.Upload(expand);
    work.shrink_count = arrays.Upload<std::int32_t>({static_cast<std::int32_t>(shrink.size())});
    work.expand_count = arrays.Upload<std::int32_t>({static_cast<std::int32_t>(expand.size())});
    work.pieces = arrays.Upload(pieces);
    work.piece_count = arrays.Upload<std::int32_t>({static_cast<std::int32_t>(pieces.size())});
    work.max_pieces = row;
    work.max_shrink = bounds.shrink;
    work.max_expand = bounds.expand;
    work.max_rank = max_rank;
    return work;
  }

  // Rounds the rows and brings them to the device.
  PlacedRowsForTest PlaceRows(DType dtype, const std::vector<std::vector<float>*>& rows) {
    const std::size_t size = DTypeSize(dtype);
    std::vector<std::size_t> order(rows.size()), offsets(rows.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[prng_.NextBelow(i)]);
    std::size_t end = 64;
    for (const std::size_t i : order) {
      offsets[i] = end;
      end = (end + rows[i]->size() * size + 63) / 64 * 64 + 64 * prng_.NextBelow(2);
    }
    std::vector<std::byte> image(end, std::byte{0xff});
    PlacedRowsForTest placed;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (std::size_t t = 0; t < rows[i]->size(); ++t) {
        const float value = Round(dtype, (*rows[i])[t]);
        (*rows[i])[t] = value;
        StoreFromF32(dtype, image.data() + offsets[i], static_cast<std::int64_t>(t), value);
      }
      placed.row_bytes += rows[i]->size() * size;
    }
    placed.base = arrays_.Upload(image);
    placed.bytes = image.size();
    for (const std::size_t offset : offsets) placed.addresses.push_back(placed.base + offset);
    return placed;
  }

  Device& device_;
  const std::int64_t in_;
  const std::vector<std::int64_t> outs_;
  Prng prng_;
  DeviceArrays arrays_;
};

}  // namespace loramux::gpu
