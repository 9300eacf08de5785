// What the kernels of a device read about a step. It is written into one piece of pinned memory and copied at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "formats/model_config.h"
#include "gpu/device.h"
#include "gpu/kernels/attention.h"
#include "gpu/kernels/elementwise.h"
#include "gpu/kernels/lora.h"
#include "gpu/kernels/own_rows.h"
#include "gpu/kernels/step_data.h"
#include "model/device_limits.h"
#include "model/device_lora.h"
#include "model/mirrored_block.h"
#include "model/rope.h"
#include "model/step_room.h"
#include "model/step_rows.h"
#include "tensor/kv_layout.h"

namespace loramux {

// Rows whose attention is computed in one launch of each kernel.
struct StepAttention {
  gpu::AttentionWork work;
  std::int64_t max_rows = 0, max_chunks = 0, tiles = 0;  // what the launches cover; at least as many as there are
};

// Rows of logits that are computed together.
struct StepLogitBlock {
  std::int64_t first = 0;                 // as LogitBlock::first
  std::int64_t count = 0;                 // rows of the block
  std::int64_t max_rows = 0;              // rows that launches cover; at least `count`
  const std::int32_t* rows = nullptr;     // how many, in device memory
  const std::int32_t* indices = nullptr;  // rows of the batch, in device memory
  gpu::LoraWork lora;                     // work of adapters that change lm_head, in rows of the block
  // What each row's adapter brings; null: nothing. At most how many rows of the output matrix.
  const gpu::OwnPartsOnDevice* const* own = nullptr;
  std::int64_t max_own = 0;
};

// A step's data. Pointers are the device's unless said otherwise.
struct StepOnDevice {
  const std::int32_t* rows = nullptr;  // how many rows the batch has
  std::int64_t max_rows = 0;           // rows that launches cover; at least as many. In host memory
  const std::int32_t* tokens = nullptr;
  const std::int32_t* row_position = nullptr;
  const std::int32_t* row_sequence = nullptr;
  const gpu::SequenceOnDevice* sequences = nullptr;
  const std::int32_t* num_sequences = nullptr;
  std::int64_t max_sequences = 0;  // that launches cover; at least as many. In host memory
  const std::uint32_t* page_tables = nullptr;
  // The angles of ModelConfig::rope and of local_rope.
  struct Angles {
    const float* cos = nullptr;  // [rows, rotary_dim / 2]
    const float* sin = nullptr;
  };
  std::array<Angles, 2> angles;
  const float* query_scale = nullptr;      // [rows]; null: 1
  gpu::LoraWork lora;                      // work on the batch's rows; no items if none has an adapter
  std::vector<LayerTargets> lora_targets;  // as DeviceLoraView::targets, of any of the adapters; in host memory
  const gpu::OwnPartsOnDevice* const* own = nullptr;  // [rows]: what each row's adapter brings; null: nothing
  // [rows]: what each row's adapter does to experts; null: nothing. Their largest rank.
  const gpu::ExpertLoraOnDevice* const* experts = nullptr;
  std::int32_t expert_rank = 0;
  gpu::ExpertBounds expert_work;  // work that launches cover, in each layer with experts
  std::vector<StepAttention> attention;
  std::vector<StepLogitBlock> blocks;  // StepRows::logits, then StepRows::scored
  const gpu::PoolRangeOnDevice* pool_ranges = nullptr;
  StepPlace<double> pool_sums;  // [ranges, hidden_size]
};

// How much a step says, which bounds its bytes.
struct StepCounts {
  std::int64_t rows = 0, sequences = 0, pages = 0;
  std::int64_t lora_items = 0;       // items of all work lists of adapters
  std::int64_t attention_items = 0;  // items of all work lists of attention
  std::int64_t logit_rows = 0;       // scored ones included
  std::int64_t expert_rows = 0;      // rows of StepOnDevice::experts
  std::int64_t own_rows = 0;         // those whose adapters may bring rows, of the batch and of logits
  std::int64_t logit_blocks = 0, attention_groups = 0, pool_ranges = 0;

  // The bytes of a step of the model.
  std::int64_t Bytes(const ModelConfig& config) const;
};

// Writes steps. Memory grows to the largest step; then nothing allocates.
class StepUpload {
 public:
  // Takes no memory yet. The device and the configuration outlive it.
  StepUpload(Device& device, const ModelConfig& config) : device_(device), config_(config), rope_(config, config.rope) {
    if (config.local_rope) local_rope_.emplace(config, *config.local_rope);
  }

  // Takes memory for steps with these counts, and angles of `max_positions` positions. Error: it does not fit.
  Status Reserve(const StepCounts& counts, std::int64_t max_positions);

  // Writes the step into pinned memory. One launch of attention has at most `max_chunks`
  // gpu::DecodeChunks, or one row. `room`: null, or of a batch with single rows alone. Error: memory cannot grow.
  // REQUIRES: copies of the step before are done; tokens in the vocabulary.
  Status Write(const StepRows<DeviceLoraView>& batch, const KvLayout& layout, std::int64_t max_chunks,
               const StepRoom* room);
  // Enqueues the copy of what Write wrote.
  void Enqueue(DeviceStream& stream) const { block_.CopyToDevice(stream); }
  std::int64_t device_bytes() const { return block_.bytes(); }
  // How often the step's memory has changed.
  std::uint64_t generation() const { return block_.generation(); }
  // The step that Write wrote.
  const StepOnDevice& step() const { return step_; }

 private:
  // Items of the lists below.
  struct ItemRange {
    std::size_t first_shrink = 0, shrink = 0, first_expand = 0, expand = 0;
    std::int32_t max_rank = 0;
    std::size_t shrink_room = 0, expand_room = 0;  // places in the arrays
  };

  Status Begin(const StepCounts& counts);
  StepCounts Count(const StepRows<DeviceLoraView>& batch, const KvLayout& layout) const;
  void ListAttention(const StepRows<DeviceLoraView>& batch, std::int64_t max_chunks);
  void ListLora(const StepRows<DeviceLoraView>& batch, const StepRoom* room);
  void ListPieces(const StepRows<DeviceLoraView>& batch, const StepRoom* room);
  // Rounds the counts up to the room.
  void WidenTo(const StepRoom& room);
  ItemRange AppendItems(std::span<const AdapterRowsOf<DeviceLoraView>> groups, bool of_block);
  // A copy in an array with room for `room` values.
  template <typename T>
  const T* Copy(std::span<const T> values, std::size_t room);
  const std::int32_t* CopyCount(std::size_t value);
  void WriteRows(const StepRows<DeviceLoraView>& batch, const KvLayout& layout);
  void WritePages(const StepRows<DeviceLoraView>& batch, const KvLayout& layout);
  StepOnDevice::Angles WriteAngles(const StepRows<DeviceLoraView>& batch, RopeTable& table);
  const float* WriteQueryScales(const StepRows<DeviceLoraView>& batch);
  void WriteAttention(const StepRoom* room);
  gpu::LoraWork WriteLora(const ItemRange& items);
  // What the adapter of each row brings; null if none brings anything.
  const gpu::OwnPartsOnDevice* const* WriteOwn(std::span<const AdapterRowsOf<DeviceLoraView>> groups,
                                               std::int64_t rows);
  // Whose experts each row takes; null if no adapter changes any.
  const gpu::ExpertLoraOnDevice* const* WriteExperts(std::span<const AdapterRowsOf<DeviceLoraView>> groups);
  void WriteBlock(const StepRows<DeviceLoraView>& batch, const LogitBlock& block, const ItemRange& items);
  void WritePools(const PoolBatch& pools);

  Device& device_;
  const ModelConfig& config_;
  RopeTable rope_;
  std::optional<RopeTable> local_rope_;
  MirroredBlock block_;
  StepOnDevice step_;
  // What is listed before its place is known. Kept, so that nothing allocates.
  std::vector<gpu::AttentionWorkLists> attention_;
  std::size_t attention_groups_ = 0;  // lists that this step uses
  std::vector<gpu::LoraItem> shrink_, expand_;
  std::vector<gpu::LoraItem> pieces_;  // all rows of the batch, if they are few, and adapters or room for them
  std::size_t piece_room_ = 0;         // for pieces; 0: there are none
  std::vector<ItemRange> items_;       // items of the batch, then those of each block of logits
  StepCounts counts_;                  // what the step's arrays have room for
};

// The most counts of a step within the limits, without pooling.
StepCounts MostCounts(const DeviceModelLimits& limits);

}  // namespace loramux
