#include "model/device_lora.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace loramux {
namespace {

// Memory is taken in pieces of this size, or of one larger table.
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
constexpr std::size_t kSmallestBlock = 4096;

constexpr std::int64_t kExpertTargets = 3;  // gate, up, down

bool IsEmbedding(const DeviceLoraRows& module) { return module.target == LoraTarget::kEmbedding; }

// How many experts of a layer are changed, at most: those before the last that is.
std::int64_t ExpertsOf(std::span<const DeviceLoraRows> modules) {
  std::int64_t experts = 0;
  for (const DeviceLoraRows& module : modules) experts = std::max<std::int64_t>(experts, module.expert + 1);
  return experts;
}

void Fill(const DeviceLoraRows& from, gpu::LoraModule& to) {
  CHECK(to.rank == 0 && to.gains == nullptr);
  to.rank = static_cast<std::int32_t>(from.a_rows.size());
  to.scale = from.scale;
  to.gains = reinterpret_cast<const float*>(from.gains);
  to.shifts = reinterpret_cast<const float*>(from.shifts);
  to.factors = reinterpret_cast<const float*>(from.factors);
}

std::size_t TableBytes(std::int64_t num_layers, std::size_t count, std::span<const DeviceLoraRows> modules,
                       std::span<const DeviceOwnRows> own) {
  std::size_t rows = 0;
  for (const DeviceOwnRows& part : own) rows += 2 * part.rows.size() + 2;  // tokens are smaller
  if (!own.empty() || std::ranges::any_of(modules, IsEmbedding)) {
    rows += sizeof(gpu::OwnPartsOnDevice) / sizeof(void*) + 1;
    rows += LoraView::NormIndex(0, OwnKind::kFinalNorm, num_layers) + 1;
  }
  for (const DeviceLoraRows& module : modules) rows += module.a_rows.size() + module.b_rows.size();
  std::size_t bytes = count * sizeof(gpu::LoraModule) + rows * sizeof(void*);
  if (const std::int64_t experts = ExpertsOf(modules); experts > 0) {
    bytes += static_cast<std::size_t>(experts * num_layers * kExpertTargets) * sizeof(gpu::LoraModule);
    bytes += sizeof(gpu::ExpertLoraOnDevice);
  }
  return bytes;
}

}  // namespace

DeviceLoraTables::DeviceLoraTables(Device& device, const ModelConfig& config)
    : device_(device),
      num_layers_(config.num_layers),
      modules_(DeviceLoraView::Count(config.num_layers, config.recurrent.has_value())) {}

Status DeviceLoraTables::Place(DeviceStream& stream, std::size_t slot, DType dtype,
                               std::span<const DeviceLoraRows> modules, std::span<const DeviceOwnRows> own) {
  CHECK(IsAdapterRowDType(dtype));
  if (slot >= slots_.size()) slots_.resize(slot + 1);
  if (slots_[slot] == nullptr) slots_[slot] = std::make_unique<Slot>();
  Slot& place = *slots_[slot];
  const std::size_t bytes = TableBytes(num_layers_, modules_, modules, own);
  if (place.block.bytes < bytes) {
    if (place.block.bytes > 0) free_[place.block.bytes].push_back(std::exchange(place.block, {}));
    place.view.modules = nullptr;
    ASSIGN_OR_RETURN(place.block, Take(std::bit_ceil(std::max(bytes, kSmallestBlock))));
  }
  gpu::EmbeddingLoraOnDevice embedding;
  const std::size_t at = Write(modules, dtype, place, embedding);
  CHECK_LE(WriteOwn(own, embedding, at, place), bytes);
  stream.CopyToDevice(place.block.device, place.block.image, bytes);
  return Ok{};
}

// Writes the image: the modules, then the addresses of their rows.
std::size_t DeviceLoraTables::Write(std::span<const DeviceLoraRows> modules, DType dtype, Slot& slot,
                                    gpu::EmbeddingLoraOnDevice& embedding) const {
  const std::size_t count = modules_;
  auto* const table = reinterpret_cast<gpu::LoraModule*>(slot.block.image);
  std::fill_n(table, count, gpu::LoraModule{});
  slot.view = {.modules = reinterpret_cast<const gpu::LoraModule*>(slot.block.device), .dtype = dtype};
  slot.view.targets.assign(static_cast<std::size_t>(num_layers_) + 1, 0);
  std::size_t at = count * sizeof(gpu::LoraModule);
  gpu::LoraModule* const of_experts = PlaceExperts(modules, dtype, at, slot);
  const auto place_of = [&](const DeviceLoraRows& module) -> gpu::LoraModule& {
    if (IsEmbedding(module)) return embedding.module;
    if (module.expert < 0) {
      const std::size_t index = DeviceLoraView::Index(module.layer, module.target, num_layers_);
      CHECK_LT(index, count);
      return table[index];
    }
    const std::int64_t target = static_cast<int>(module.target) - static_cast<int>(LoraTarget::kGate);
    CHECK(target >= 0 && target < kExpertTargets);
    return of_experts[(module.expert * num_layers_ + module.layer) * kExpertTargets + target];
  };
  const auto add_rows = [&](std::span<const std::byte* const> rows) {
    if (!rows.empty()) std::memcpy(slot.block.image + at, rows.data(), rows.size_bytes());
    const auto* const on_device = reinterpret_cast<const void* const*>(slot.block.device + at);
    at += rows.size_bytes();
    return on_device;
  };
  for (const DeviceLoraRows& module : modules) {
    CHECK_EQ(module.a_rows.size(), module.b_rows.size());
    const auto rank = static_cast<std::int32_t>(module.a_rows.size());
    if (rank == 0 && module.gains == nullptr) continue;
    gpu::LoraModule& to = place_of(module);
    Fill(module, to);
    to.a_rows = add_rows(module.a_rows);
    to.b_rows = add_rows(module.b_rows);
    if (IsEmbedding(module)) {
      embedding.tokens = static_cast<std::int32_t>(module.in);
      embedding.dtype = dtype;
      continue;
    }
    if (module.expert < 0) slot.view.max_rank = std::max(slot.view.max_rank, rank);
    if (IsAfterLayers(module.target)) {
      slot.view.targets.back() |= AfterLayersBit(module.target);
    } else {
      slot.view.targets[static_cast<std::size_t>(module.layer)] |=
          static_cast<LayerTargets>(1u << static_cast<unsigned>(module.target));
    }
  }
  return at;
}

gpu::LoraModule* DeviceLoraTables::PlaceExperts(std::span<const DeviceLoraRows> modules, DType dtype, std::size_t& at,
                                                Slot& slot) const {
  const std::int64_t experts = ExpertsOf(modules);
  if (experts == 0) return nullptr;
  for (const DeviceLoraRows& module : modules) {
    if (module.expert < 0) continue;
    slot.view.expert_rank = std::max(slot.view.expert_rank, static_cast<std::int32_t>(module.a_rows.size()));
  }
  const auto count = static_cast<std::size_t>(experts * num_layers_ * kExpertTargets);
  auto* const table = reinterpret_cast<gpu::LoraModule*>(slot.block.image + at);
  std::fill_n(table, count, gpu::LoraModule{});
  const gpu::ExpertLoraOnDevice lora = {reinterpret_cast<const gpu::LoraModule*>(slot.block.device + at),
                                        static_cast<std::int32_t>(experts), slot.view.expert_rank, dtype};
  at += count * sizeof(gpu::LoraModule);
  std::memcpy(slot.block.image + at, &lora, sizeof(lora));
  slot.view.experts = reinterpret_cast<const gpu::ExpertLoraOnDevice*>(slot.block.device + at);
  at += sizeof(lora);
  return table;
}

// Behind the modules, the rows' addresses, their tokens, and what says where these are.
std::size_t DeviceLoraTables::WriteOwn(std::span<const DeviceOwnRows> own, const gpu::EmbeddingLoraOnDevice& embedding,
                                       std::size_t at, Slot& slot) const {
  if (own.empty() && embedding.tokens == 0) return at;
  constexpr std::size_t kAlignment = alignof(gpu::OwnPartsOnDevice);
  const auto add = [&](const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(slot.block.image + at, from, bytes);
    const std::byte* const on_device = slot.block.device + at;
    at += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return on_device;
  };
  gpu::OwnPartsOnDevice parts = {.dtype = OwnRowDType(OwnKind::kOutput, slot.view.dtype), .embedding_lora = embedding};
  std::vector<const std::byte*> norms;
  for (const DeviceOwnRows& part : own) {
    if (IsNorm(part.kind)) {
      norms.resize(LoraView::NormIndex(0, OwnKind::kFinalNorm, num_layers_) + 1, nullptr);
      norms[LoraView::NormIndex(part.layer, part.kind, num_layers_)] = part.rows[0];
      continue;
    }
    CHECK_EQ(part.tokens.size(), part.rows.size());
    gpu::OwnRowsOnDevice& to = part.kind == OwnKind::kEmbedding ? parts.embedding : parts.output;
    to.rows = reinterpret_cast<const void* const*>(add(part.rows.data(), part.rows.size_bytes()));
    to.tokens = reinterpret_cast<const std::int32_t*>(add(part.tokens.data(), part.tokens.size_bytes()));
    to.count = static_cast<std::int32_t>(part.rows.size());
  }
  if (!norms.empty())
    parts.norms = reinterpret_cast<const float* const*>(add(norms.data(), norms.size() * sizeof(norms[0])));
  slot.view.own_outputs = parts.output.count;
  slot.view.own = reinterpret_cast<const gpu::OwnPartsOnDevice*>(add(&parts, sizeof(parts)));
  return at;
}

const DeviceLoraView& DeviceLoraTables::View(std::size_t slot) const {
  CHECK(slot < slots_.size() && slots_[slot] != nullptr && slots_[slot]->view.modules != nullptr);
  return slots_[slot]->view;
}

void DeviceLoraTables::SetGate(std::size_t slot, const std::uint32_t* gate, std::int32_t assisted) {
  CHECK(slot < slots_.size() && slots_[slot] != nullptr);
  slots_[slot]->view.gate = gate;
  slots_[slot]->view.assisted = assisted;
}

Result<DeviceLoraTables::Block> DeviceLoraTables::Take(std::size_t bytes) {
  std::vector<Block>& free = free_[bytes];
  if (!free.empty()) {
    const Block block = free.back();
    free.pop_back();
    return block;
  }
  if (rest_.bytes < bytes) {
    const auto piece = static_cast<std::int64_t>(std::max(bytes, kPieceBytes));
    ASSIGN_OR_RETURN(std::unique_ptr<Arena> device, device_.Allocate("tables of adapters", piece));
    ASSIGN_OR_RETURN(std::unique_ptr<Arena> image, device_.AllocatePinned("tables of adapters", piece));
    rest_ = {device->base(), image->base(), static_cast<std::size_t>(piece)};
    bytes_ += piece;
    arenas_.push_back(std::move(device));
    arenas_.push_back(std::move(image));
  }
  const Block block = {rest_.device, rest_.image, bytes};
  rest_ = {rest_.device + bytes, rest_.image + bytes, rest_.bytes - bytes};
  return block;
}

}  // namespace loramux
