// Copies of the CPU's adapters in a device's memory, for tests.
#pragma once

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "formats/adapter_config.h"
#include "formats/model_config.h"
#include "gpu/device.h"
#include "model/device_lora.h"
#include "model/lora_view.h"

namespace loramux {

// Copies adapters one after the other; they stay until the end.
class DeviceAdaptersForTest {
 public:
  DeviceAdaptersForTest(Device& device, DeviceStream& stream, const ModelConfig& config)
      : device_(device), stream_(stream), config_(config), tables_(device, config) {}

  // Copies the rows and makes the table. All modules and own rows must have the same type.
  const DeviceLoraView* Copy(const LoraView& view) {
    std::vector<std::byte> image(64);  // so that no offset is null
    std::vector<DeviceLoraRows> modules;
    std::vector<std::vector<const std::byte*>> rows;  // offsets first
    DType dtype = DType::kF32;
    ForEachModule(view, [&](DeviceLoraRows to, const LoraWeights& from) {
      if (!from.changes()) return;
      if (from.rank > 0) dtype = from.dtype;
      to.scale = from.scale;
      const LinearShape shape = TargetShape(config_, to.target, to.layer, to.expert);
      rows.push_back(CopyRows(from, from.a_rows, shape.in, image));
      rows.push_back(CopyRows(from, from.b_rows, shape.out, image));
      if (from.gains != nullptr) {
        to.gains = CopyVector(from.gains, shape.out, image);
        to.shifts = CopyVector(from.shifts, shape.out, image);
      }
      modules.push_back(to);
    });
    if (view.embedding_lora.weights.rank > 0) {
      dtype = view.embedding_lora.weights.dtype;
      modules.push_back(CopyEmbeddingLora(view.embedding_lora, rows, image));
    }
    std::vector<DeviceOwnRows> own;
    std::vector<std::vector<const std::byte*>> own_rows;
    for (const auto& [kind, from] : {std::pair{OwnKind::kEmbedding, view.embedding}, {OwnKind::kOutput, view.output}}) {
      if (from.count == 0) continue;
      const LoraWeights rows_only = {.rank = static_cast<std::int32_t>(from.count), .dtype = from.dtype};
      own_rows.push_back(CopyRows(rows_only, from.rows, config_.hidden_size, image));
      own.push_back({kind, 0, {from.tokens, static_cast<std::size_t>(from.count)}, {}});
    }
    CopyNorms(view, own, own_rows, image);
    std::byte* const base = Upload(image);
    for (std::size_t i = 0; i < own.size(); ++i) {
      for (const std::byte*& row : own_rows[i]) row = base + reinterpret_cast<std::uintptr_t>(row);
      own[i].rows = own_rows[i];
    }
    for (auto& of_matrix : rows) {
      for (const std::byte*& row : of_matrix) row = base + reinterpret_cast<std::uintptr_t>(row);
    }
    for (std::size_t i = 0; i < modules.size(); ++i) {
      modules[i].a_rows = rows[2 * i];
      modules[i].b_rows = rows[2 * i + 1];
      for (const std::byte** vector : {&modules[i].gains, &modules[i].shifts}) {
        if (*vector != nullptr) *vector = base + reinterpret_cast<std::uintptr_t>(*vector);
      }
    }
    const std::size_t slot = count_++;
    CHECK(tables_.Place(stream_, slot, dtype, modules, own).ok());
    CHECK(stream_.Synchronize().ok());
    return &tables_.View(slot);
  }

 private:
  // Calls fn(place, module) for the modules of all places but the embedding.
  template <typename F>
  void ForEachModule(const LoraView& view, const F& fn) const {
    const auto visit = [&](std::int64_t layer, LoraTarget target) {
      if (const LoraWeights* const module = view.Find(layer, target, config_.num_layers)) {
        fn(DeviceLoraRows{.layer = layer, .target = target}, *module);
      }
    };
    for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
      for (int target = 0; target < static_cast<int>(LoraTarget::kLmHead); ++target) {
        visit(layer, static_cast<LoraTarget>(target));
      }
      for (int target = static_cast<int>(LoraTarget::kInQkv); target <= static_cast<int>(LoraTarget::kOut); ++target) {
        visit(layer, static_cast<LoraTarget>(target));
      }
      visit(layer, LoraTarget::kRouter);
      visit(layer, LoraTarget::kSharedGate);
      for (std::int32_t expert = 0; expert < view.experts_of_layer; ++expert) {
        for (const LoraTarget target : {LoraTarget::kGate, LoraTarget::kUp, LoraTarget::kDown}) {
          fn(DeviceLoraRows{layer, target, expert}, *view.OfExpert(layer, expert, target));
        }
      }
    }
    for (const LoraTarget target : {LoraTarget::kLmHead, LoraTarget::kProjectIn, LoraTarget::kProjectOut})
      visit(0, target);
  }

  // Appends the rows, each aligned; returns their offsets.
  static std::vector<const std::byte*> CopyRows(const LoraWeights& from, const std::byte* const* rows,
                                                std::int64_t count, std::vector<std::byte>& image) {
    std::vector<const std::byte*> offsets;
    const std::size_t bytes = static_cast<std::size_t>(count) * DTypeSize(from.dtype);
    for (std::int32_t j = 0; j < from.rank; ++j) {
      offsets.push_back(reinterpret_cast<const std::byte*>(image.size()));
      image.insert(image.end(), rows[j], rows[j] + bytes);
      image.resize((image.size() + 63) / 64 * 64);
    }
    return offsets;
  }

  // Adds the norms, without the addresses of their rows.
  void CopyNorms(const LoraView& view, std::vector<DeviceOwnRows>& own,
                 std::vector<std::vector<const std::byte*>>& own_rows, std::vector<std::byte>& image) const {
    const auto copy = [&](std::int64_t layer, OwnKind kind) {
      const float* const norm = view.Norm(LoraView::NormIndex(layer, kind, config_.num_layers));
      if (norm == nullptr) return;
      own_rows.push_back({CopyVector(norm, NormWidth(kind), image)});
      own.push_back({kind, layer, {}, {}});
    };
    for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
      for (const OwnKind kind : {OwnKind::kInputNorm, OwnKind::kAttentionOutputNorm, OwnKind::kMlpNorm,
                                 OwnKind::kMlpOutputNorm, OwnKind::kQNorm, OwnKind::kKNorm}) {
        copy(layer, kind);
      }
    }
    copy(0, OwnKind::kFinalNorm);
  }

  std::int64_t NormWidth(OwnKind kind) const {
    if (kind != OwnKind::kQNorm && kind != OwnKind::kKNorm) return config_.hidden_size;
    if (config_.qk_norm != QkNorm::kRow) return config_.head_dim;
    return kind == OwnKind::kQNorm ? config_.QDim() : config_.KvDim();
  }

  // The module of LoRA of the embedding, without the addresses of `rows`, to which its rows are added.
  DeviceLoraRows CopyEmbeddingLora(const EmbeddingLora& lora, std::vector<std::vector<const std::byte*>>& rows,
                                   std::vector<std::byte>& image) const {
    const LoraWeights& from = lora.weights;
    DeviceLoraRows to{.target = LoraTarget::kEmbedding, .scale = from.scale, .in = lora.tokens};
    rows.push_back(CopyRows(from, from.a_rows, to.in, image));
    rows.push_back(CopyRows(from, from.b_rows, config_.hidden_size, image));
    if (from.gains != nullptr) to.gains = to.shifts = CopyVector(from.gains, config_.hidden_size, image);
    return to;
  }

  // Appends one vector to the image, and returns its offset there.
  static const std::byte* CopyVector(const float* values, std::int64_t count, std::vector<std::byte>& image) {
    const auto* const offset = reinterpret_cast<const std::byte*>(image.size());
    const auto* const bytes = reinterpret_cast<const std::byte*>(values);
    image.insert(image.end(), bytes, bytes + static_cast<std::size_t>(count) * sizeof(float));
    image.resize((image.size() + 63) / 64 * 64);
    return offset;
  }

  std::byte* Upload(const std::vector<std::byte>& image) {
    if (image.empty()) return nullptr;
    const auto bytes = static_cast<std::int64_t>(image.size());
    Result<std::unique_ptr<Arena>> to = device_.Allocate("adapter", bytes),
                                   from = device_.AllocatePinned("adapter", bytes);
    CHECK(to.ok() && from.ok());
    std::memcpy((*from)->base(), image.data(), image.size());
    stream_.CopyToDevice((*to)->base(), (*from)->base(), image.size());
    CHECK(stream_.Synchronize().ok());
    arenas_.push_back(std::move(to).value());
    return arenas_.back()->base();
  }

  Device& device_;
  DeviceStream& stream_;
  const ModelConfig& config_;
  DeviceLoraTables tables_;
  std::size_t count_ = 0;
  std::vector<std::unique_ptr<Arena>> arenas_;
};

}  // namespace loramux
