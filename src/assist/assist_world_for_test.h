// Layers of LoRA products on a device, computed by the device alone and with the processor's help.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "assist/assist_pool.h"
#include "base/prng.h"
#include "gpu/device_arrays_for_test.h"
#include "gpu/kernels/lora.h"
#include "tensor/half_float.h"

namespace loramux {

// An adapter in host memory, and in a device's.
struct AssistedAdapterForTest {
  DType dtype = DType::kF32;
  std::int32_t max_rank = 0;
  std::vector<std::vector<std::byte>> memory;  // rows
  std::vector<std::vector<const std::byte*>> addresses;
  std::vector<LoraWeights> modules;
  const gpu::LoraModule* on_device = nullptr;
};

// A batch: x of each group's input and y of each linear layer are arrays on the device, the same for all layers.
class AssistWorldForTest {
 public:
  AssistWorldForTest(Device& device, const AssistLayout& layout, std::int32_t rows, std::uint64_t seed)
      : layout(layout), rows(rows), arrays(device), prng_(seed) {
    for (int target = 0; target < kNumLoraTargets; ++target) {
      const LinearShape& shape = layout.shapes[static_cast<std::size_t>(target)];
      const std::int64_t stride = Stride(shape.in);
      std::vector<std::byte> x(static_cast<std::size_t>(rows * stride) * DTypeSize(layout.dtype));
      for (std::int64_t i = 0; i < rows * stride; ++i) StoreFromF32(layout.dtype, x.data(), i, Random());
      // Targets of a group share x.
      const bool first = target >= 7 || AssistLayout::FirstOf(AssistGroupOf(LoraTarget(target))) == LoraTarget(target);
      x_.push_back(first ? arrays.Upload(x) : x_.back());
    }
    std::int64_t floats = 0;
    for (std::int64_t layer = 0; layer <= layout.layers; ++layer) {
      for (int target = 0; target < kNumLoraTargets; ++target) {
        y_at_.push_back(floats);
        floats += rows * (layout.shapes[static_cast<std::size_t>(target)].out + 1);
      }
    }
    for (std::int64_t i = 0; i < floats; ++i) y_before_.push_back(Random());
  }

  // Ranks differ between linear layers; every fifth has none.
  std::unique_ptr<AssistedAdapterForTest> AddAdapter(DType dtype, std::int32_t max_rank, bool lm_head = false) {
    auto adapter = std::make_unique<AssistedAdapterForTest>();
    adapter->dtype = dtype;
    adapter->max_rank = max_rank;
    std::vector<gpu::LoraModule> tables;
    for (std::int64_t i = 0; i <= layout.layers * 7; ++i) {
      const bool head = i == layout.layers * 7;
      const LinearShape& shape = layout.shapes[static_cast<std::size_t>(head ? 7 : i % 7)];
      const std::int32_t rank = (head ? !lm_head : i % 5 == 3) ? 0 : max_rank - static_cast<std::int32_t>(i % 3);
      const float scale = 0.5f + static_cast<float>(prng_.NextDouble());
      std::vector<const void*> on_device[2];
      const std::byte* const* rows_of[2];
      for (int side = 0; side < 2; ++side) {
        adapter->addresses.emplace_back();
        for (std::int32_t j = 0; j < rank; ++j) {
          adapter->memory.push_back(RandomRow(dtype, side == 0 ? shape.in : shape.out));
          adapter->addresses.back().push_back(adapter->memory.back().data());
          on_device[side].push_back(arrays.Upload(adapter->memory.back()));
        }
        rows_of[side] = adapter->addresses.back().data();
      }
      adapter->modules.push_back({rank, scale, dtype, rows_of[0], rows_of[1]});
      tables.push_back({arrays.Upload(on_device[0]), arrays.Upload(on_device[1]), rank, scale});
    }
    adapter->on_device = arrays.Upload(tables);
    return adapter;
  }

  float* UploadY() { return arrays.Upload(y_before_); }
  std::vector<float> DownloadY(const float* y) { return arrays.Download(y, y_before_.size()); }
  const std::vector<float>& y_before() const { return y_before_; }
  const void* X(LoraTarget target) const { return x_[static_cast<std::size_t>(target)]; }
  static std::int64_t Stride(std::int64_t in) { return (in + 7) / 8 * 8 + 8; }
  std::int64_t YStride(LoraTarget target) const { return layout.Shape(target).out + 1; }
  float* Y(float* base, std::int64_t layer, LoraTarget target) const {
    return base + y_at_[static_cast<std::size_t>(layer * kNumLoraTargets + static_cast<int>(target))];
  }
  // The index in y of the first element of a row, for comparisons.
  std::int64_t YIndex(std::int64_t layer, LoraTarget target, std::int64_t row) const {
    return y_at_[static_cast<std::size_t>(layer * kNumLoraTargets + static_cast<int>(target))] + row * YStride(target);
  }

  // The device's own LoRA of one group of a layer (or of lm_head: layer == layout.layers) for some rows.
  void AddOnDevice(DeviceStream& stream, float* y, std::int64_t layer, LoraTarget first, int targets,
                   const AssistedAdapterForTest& adapter, std::int32_t first_row, std::int32_t count) {
    std::vector<gpu::LoraItem> shrink_items, expand_items;
    gpu::AppendLoraItems(adapter.on_device, adapter.dtype, adapter.max_rank, first_row, count, shrink_items,
                         expand_items);
    gpu::LoraShrinkArguments shrink = {};
    const std::int64_t in = layout.Shape(first).in;
    shrink.x = X(first);
    shrink.x_stride = Stride(in);
    shrink.in = in;
    shrink.work.shrink = arrays.Upload(shrink_items);
    shrink.work.expand = arrays.Upload(expand_items);
    shrink.work.max_shrink = static_cast<std::int32_t>(shrink_items.size());
    shrink.work.max_expand = static_cast<std::int32_t>(expand_items.size());
    shrink.work.shrink_count = arrays.Upload<std::int32_t>({shrink.work.max_shrink});
    shrink.work.expand_count = arrays.Upload<std::int32_t>({shrink.work.max_expand});
    shrink.work.max_rank = adapter.max_rank;
    shrink.slices = targets;
    shrink.partial_rows = rows;
    const std::int64_t floats = gpu::LoraPartialFloats(rows, in, targets, adapter.max_rank);
    shrink.partial = arrays.Allocate<float>(static_cast<std::size_t>(floats));
    gpu::LoraExpandArguments expand = {};
    expand.work = shrink.work;
    expand.slices = targets;
    expand.partial = shrink.partial;
    expand.partial_rows = rows;
    expand.in = in;
    for (int i = 0; i < targets; ++i) {
      const LoraTarget target = AssistLayout::Plus(first, i);
      const std::size_t module = layout.ModuleOf(layer, target);
      shrink.module[i] = expand.module[i] = static_cast<std::int32_t>(module);
      expand.y[i] = Y(y, layer, target);
      expand.y_stride[i] = YStride(target);
      expand.out[i] = layout.Shape(target).out;
    }
    gpu::LoraShrink(stream, layout.dtype, shrink);
    gpu::LoraExpand(stream, expand);
  }
  void AddLayerOnDevice(DeviceStream& stream, float* y, std::int64_t layer, const AssistedAdapterForTest& adapter,
                        std::int32_t first_row, std::int32_t count) {
    for (int group = 0; group < kNumAssistGroups; ++group) {
      const auto kind = static_cast<AssistGroup>(group);
      AddOnDevice(stream, y, layer, AssistLayout::FirstOf(kind), AssistLayout::TargetsOf(kind), adapter, first_row,
                  count);
    }
  }

  // The launches of one layer with the processor's help.
  void AddLayerAssisted(DeviceStream& stream, AssistPool& pool, float* y, std::int64_t layer) {
    pool.BeginLayer(stream, layer);
    for (int group = 0; group < kNumAssistGroups; ++group) {
      const auto kind = static_cast<AssistGroup>(group);
      const LoraTarget first = AssistLayout::FirstOf(kind);
      pool.Send(stream, kind, layer, X(first), Stride(layout.Shape(first).in));
      std::vector<AssistOutput> outputs;
      for (int i = 0; i < AssistLayout::TargetsOf(kind); ++i) {
        const LoraTarget target = AssistLayout::Plus(first, i);
        outputs.push_back({target, Y(y, layer, target), YStride(target)});
      }
      pool.Add(stream, kind, layer, outputs);
    }
  }

  const AssistLayout layout;
  const std::int32_t rows;
  gpu::DeviceArrays arrays;

 private:
  float Random() { return static_cast<float>(prng_.NextDouble() * 2 - 1); }
  std::vector<std::byte> RandomRow(DType dtype, std::int64_t count) {
    std::vector<std::byte> row(static_cast<std::size_t>(count) * DTypeSize(dtype));
    for (std::int64_t i = 0; i < count; ++i) StoreFromF32(dtype, row.data(), i, Random());
    return row;
  }

  Prng prng_;
  std::vector<const void*> x_;      // by target
  std::vector<std::int64_t> y_at_;  // [layers + 1][targets]
  std::vector<float> y_before_;
};

// A model of small, odd extents.
inline AssistLayout SmallLayoutForTest(DType dtype, std::int64_t layers) {
  AssistLayout layout;
  layout.layers = layers;
  layout.dtype = dtype;
  layout.shapes = {{{200, 96}, {200, 41}, {200, 40}, {96, 200}, {200, 301}, {200, 301}, {301, 200}, {200, 1000}}};
  return layout;
}

}  // namespace loramux
