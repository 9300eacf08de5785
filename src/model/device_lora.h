// Adapters as the kernels of a device see them: tables in device memory that say where each row of A and B lies.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/ids.h"
#include "base/result.h"
#include "formats/adapter_config.h"
#include "formats/dtype.h"
#include "formats/model_config.h"
#include "gpu/device.h"
#include "gpu/kernels/experts.h"
#include "gpu/kernels/lora.h"
#include "gpu/kernels/own_rows.h"
#include "memory/arena.h"
#include "model/lora_view.h"
#include "model/step_room.h"

namespace loramux {

// What of one layer is changed: bit t is that of LoraTarget t, of an expert too. Those of what comes after the layers
// are in an entry of its own, which has bits of its own.
constexpr bool IsAfterLayers(LoraTarget target) {
  return target == LoraTarget::kLmHead || target == LoraTarget::kProjectOut;
}
constexpr LayerTargets AfterLayersBit(LoraTarget target) { return target == LoraTarget::kLmHead ? 1 : 2; }
// Whether bits as DeviceLoraView::targets have the one of a layer's target.
inline bool ChangesTarget(std::span<const LayerTargets> targets, std::int64_t layer, LoraTarget target) {
  if (IsAfterLayers(target)) return (targets.back() & AfterLayersBit(target)) != 0;
  return (targets[static_cast<std::size_t>(layer)] >> static_cast<int>(target) & 1) != 0;
}

// One device-resident adapter: a table in device memory, and what the host must know of it to launch kernels.
struct DeviceLoraView {
  const gpu::LoraModule* modules = nullptr;  // in device memory, by Index
  std::int32_t max_rank = 0;
  // What it does to experts, in device memory; null: nothing. Their largest rank.
  const gpu::ExpertLoraOnDevice* experts = nullptr;
  std::int32_t expert_rank = 0;
  DType dtype = DType::kBF16;  // type of the rows: f32, bf16, f16 or i8
  // In the step: who computes it, if that is decided layer by layer (LoraItem::gate), and then its segment in the
  // step's AssistPool.
  const std::uint32_t* gate = nullptr;
  std::int32_t assisted = -1;
  // [num_layers + 1]: bit t is set if the adapter changes LoraTarget t of the layer; the last is of what comes after.
  std::vector<LayerTargets> targets;
  // Norms, and rows of the embedding and of the output matrix, that it brings, and its LoRA of the embedding, in device
  // memory; null: none. How many rows of the output matrix.
  const gpu::OwnPartsOnDevice* own = nullptr;
  std::int32_t own_outputs = 0;

  bool Changes(std::int64_t layer, LoraTarget target) const { return ChangesTarget(targets, layer, target); }
  std::int32_t MostRank() const { return std::max(max_rank, expert_rank); }
  // The index of a layer's target: that in LoraView::modules, behind these that in LoraView::routers, then project_in
  // and project_out, then those of recurrent layers. REQUIRES: not the embedding's, and none that devices refuse.
  static std::size_t Index(std::int64_t layer, LoraTarget target, std::int64_t num_layers) {
    const std::size_t routers = LoraView::Index(0, LoraTarget::kLmHead, num_layers) + 1;
    if (IsOfRouting(target)) return routers + LoraView::RouterIndex(layer, target);
    if (!LoraView::IsRare(target)) return LoraView::Index(layer, target, num_layers);
    const std::size_t projections = routers + LoraView::RouterIndex(num_layers, LoraTarget::kRouter);
    if (IsOfStates(target)) {
      const std::int64_t place = static_cast<int>(target) - static_cast<int>(LoraTarget::kInQkv);
      return projections + 2 + static_cast<std::size_t>(kStateTargets * layer + place);
    }
    CHECK(target == LoraTarget::kProjectIn || target == LoraTarget::kProjectOut);
    return projections + (target == LoraTarget::kProjectOut ? 1 : 0);
  }
  static constexpr int kStateTargets = static_cast<int>(LoraTarget::kOut) - static_cast<int>(LoraTarget::kInQkv) + 1;
  // The number of these indices; `of_states`: of a model with recurrent layers.
  static std::size_t Count(std::int64_t num_layers, bool of_states) {
    return of_states ? Index(num_layers, LoraTarget::kInQkv, num_layers)
                     : Index(0, LoraTarget::kProjectOut, num_layers) + 1;
  }
};

// One linear layer of an adapter, or the embedding, with the device's addresses of its rows. Not owning.
struct DeviceLoraRows {
  std::int64_t layer = 0;  // 0 for lm_head and the embedding
  LoraTarget target = LoraTarget::kQ;
  std::int32_t expert = -1;  // -1: none
  float scale = 0;
  std::span<const std::byte*const> a_rows, b_rows;      // `rank` entries each
  const std::byte *gains = nullptr, *shifts = nullptr;  // the vectors of LoraModule; null both: none
  const std::byte* factors = nullptr;                   // LoraModule::factors; null: none
  std::int64_t in = 0;                                  // tokens of an embedding
};

// Rows of a matrix, or a norm, that an adapter brings, with the device's addresses. Not owning.
struct DeviceOwnRows {
  OwnKind kind = OwnKind::kEmbedding;
  std::int64_t layer = 0;                  // layer of a norm
  std::span<const TokenId> tokens;         // ascending
  std::span<const std::byte* const> rows;  // a row for each of these tokens
};

// The tables of all device-resident adapters, by slot. Device memory is taken in large pieces and used again when a
// slot gets another adapter. Not thread-safe: the thread of the executor calls it.
class DeviceLoraTables {
 public:
  // For adapters of the model. Takes no memory yet.
  DeviceLoraTables(Device& device, const ModelConfig& config);
  DeviceLoraTables(const DeviceLoraTables&) = delete;
  DeviceLoraTables& operator=(const DeviceLoraTables&) = delete;

  // Writes the table of the adapter whose rows are now `modules` into `slot`, in place of the one before. The copy is
  // enqueued on `stream`, before later work there. Error (kResourceExhausted): no device memory or pinned memory for
  // the table; the slot is then empty. REQUIRES: `stream` was synchronised since the slot's last Place; modules of
  // distinct targets, own parts of distinct kinds and layers.
  Status Place(DeviceStream& stream, std::size_t slot, DType dtype, std::span<const DeviceLoraRows> modules,
               std::span<const DeviceOwnRows> own = {});
  // The slot's adapter; valid until the slot's next Place. REQUIRES: Place succeeded.
  const DeviceLoraView& View(std::size_t slot) const;
  // Says who computes the slot's adapter from the next step on (DeviceLoraView::gate). REQUIRES: Place succeeded.
  void SetGate(std::size_t slot, const std::uint32_t* gate, std::int32_t assisted);
  // Bytes of device memory taken.
  std::int64_t bytes() const { return bytes_; }

 private:
  // A piece of device memory, and its image in pinned memory: the table is written there and copied.
  struct Block {
    std::byte* device = nullptr;
    std::byte* image = nullptr;
    std::size_t bytes = 0;
  };
  struct Slot {
    Block block;
    DeviceLoraView view;
  };

  Result<Block> Take(std::size_t bytes);
  // Both write into the image of the slot. Returns the bytes written.
  std::size_t Write(std::span<const DeviceLoraRows> modules, DType dtype, Slot& slot,
                    gpu::EmbeddingLoraOnDevice& embedding) const;
  // Places an empty table of experts behind the first `at` bytes, if any are changed; else returns null.
  gpu::LoraModule* PlaceExperts(std::span<const DeviceLoraRows> modules, DType dtype, std::size_t& at,
                                Slot& slot) const;
  std::size_t WriteOwn(std::span<const DeviceOwnRows> own, const gpu::EmbeddingLoraOnDevice& embedding, std::size_t at,
                       Slot& slot) const;

  Device& device_;
  std::int64_t num_layers_;
  std::size_t modules_;  // entries of a table
  std::int64_t bytes_ = 0;
  std::vector<std::unique_ptr<Arena>> arenas_;      // in pairs: device, pinned
  Block rest_;                                      // what is left of the last pair
  std::map<std::size_t, std::vector<Block>> free_;  // by size, a power of two
  std::vector<std::unique_ptr<Slot>> slots_;        // pointers: views stay where they are
};

}  // namespace loramux
