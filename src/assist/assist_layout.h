// Where the activations and answers of each group lie in a slot, and which ticket means which group. The same for the
// launches and for the workers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/ceil_divide.h"
#include "formats/adapter_config.h"
#include "formats/dtype.h"
#include "gpu/kernels/assist.h"

namespace loramux {

// Linear layers that share an input. A group's number within a step is layer * 4 + the value; those of lm_head follow.
enum class AssistGroup : std::uint8_t { kQkv, kO, kGateUp, kDown };
inline constexpr int kNumAssistGroups = 4;

// The group of a target. REQUIRES: not kLmHead.
constexpr AssistGroup AssistGroupOf(LoraTarget target) {
  if (target <= LoraTarget::kV) return AssistGroup::kQkv;
  if (target == LoraTarget::kO) return AssistGroup::kO;
  return target == LoraTarget::kDown ? AssistGroup::kDown : AssistGroup::kGateUp;
}

// What one request of the device means.
struct AssistRequest {
  std::int64_t layer = 0;  // index of the layer; lm_head counts as the layer after the last
  LoraTarget first = LoraTarget::kQ;
  int targets = 1;
  std::int64_t first_out = 0, out = 0;  // the columns of lm_head's part; 0: all outputs
};

// The linear layers of a model, and the layout that follows. Plain data: processes share it.
struct AssistLayout {
  std::int64_t layers = 0;
  std::array<LinearShape, kNumLoraTargets> shapes = {};  // by LoraTarget
  DType dtype = DType::kBF16;                            // type of the activations
  bool fused = false;                                    // multiply-adds round once, as the device's

  static constexpr LoraTarget FirstOf(AssistGroup group) {
    constexpr LoraTarget kFirst[] = {LoraTarget::kQ, LoraTarget::kO, LoraTarget::kGate, LoraTarget::kDown};
    return kFirst[static_cast<int>(group)];
  }
  static constexpr int TargetsOf(AssistGroup group) {
    constexpr int kTargets[] = {3, 1, 2, 1};
    return kTargets[static_cast<int>(group)];
  }
  const LinearShape& Shape(LoraTarget target) const { return shapes[static_cast<std::size_t>(target)]; }
  // Floats of a slice in a row of answers.
  static std::int64_t SliceWidth(std::int64_t out) { return CeilDivide(out, 4) * 4; }
  // Bits of the group's targets in AssistSegment::targets.
  static constexpr std::uint32_t MaskOf(AssistGroup group) {
    return ((1u << TargetsOf(group)) - 1) << static_cast<int>(FirstOf(group));
  }
  // Where the group's slice `index` begins in a row of answers.
  std::int64_t ColumnOf(AssistGroup group, int index) const {
    std::int64_t column = 0;
    for (int i = 0; i < index; ++i) column += SliceWidth(Shape(Plus(FirstOf(group), i)).out);
    return column;
  }
  // Floats of a row of answers.
  std::int64_t Width(AssistGroup group) const { return ColumnOf(group, TargetsOf(group)); }
  std::int64_t MostWidth() const {
    std::int64_t most = 0;
    for (int group = 0; group < kNumAssistGroups; ++group) {
      most = std::max(most, Width(static_cast<AssistGroup>(group)));
    }
    return most;
  }
  std::int64_t MostIn() const {
    std::int64_t most = 0;
    for (const LinearShape& shape : shapes) most = std::max(most, shape.in);
    return most;
  }
  // Logits have more columns than an answer has room for: they come in parts.
  std::int64_t HeadParts() const { return CeilDivide(Shape(LoraTarget::kLmHead).out, MostWidth()); }
  std::int64_t HeadPartOut(std::int64_t part) const {
    return std::min(MostWidth(), Shape(LoraTarget::kLmHead).out - part * MostWidth());
  }

  // Group numbers of a step.
  std::uint32_t GroupOf(std::int64_t layer, AssistGroup group) const {
    return static_cast<std::uint32_t>(layer * kNumAssistGroups + static_cast<int>(group));
  }
  std::uint32_t GroupOfHead(std::int64_t block, std::int64_t part) const {
    return static_cast<std::uint32_t>(layers * kNumAssistGroups + block * HeadParts() + part);
  }
  // The block of logits of a group of lm_head.
  std::int64_t BlockOf(std::uint32_t group) const {
    return (static_cast<std::int64_t>(group) - layers * kNumAssistGroups) / HeadParts();
  }
  // Index in LoraView::modules.
  std::size_t ModuleOf(std::int64_t layer, LoraTarget target) const {
    return static_cast<std::size_t>(target == LoraTarget::kLmHead ? layers * 7 : layer * 7 + static_cast<int>(target));
  }
  AssistRequest RequestOf(std::uint32_t group) const {
    const std::int64_t head = static_cast<std::int64_t>(group) - layers * kNumAssistGroups;
    if (head >= 0) {
      const std::int64_t part = head % HeadParts();
      return {layers, LoraTarget::kLmHead, 1, part * MostWidth(), HeadPartOut(part)};
    }
    const auto kind = static_cast<AssistGroup>(group % kNumAssistGroups);
    return {static_cast<std::int64_t>(group) / kNumAssistGroups, FirstOf(kind), TargetsOf(kind), 0, 0};
  }

  // Bytes of the parts of a slot; each begins at a cache line.
  std::int64_t XBytes() const {
    return Lines(gpu::kAssistPieceRows * MostIn() * static_cast<std::int64_t>(DTypeSize(dtype)));
  }
  std::int64_t AnswerBytes() const { return Lines(gpu::kAssistPieceRows * MostWidth() * 4); }
  std::int64_t SlotBytes() const { return XBytes() + AnswerBytes() + Lines(sizeof(gpu::AssistWords)); }

  static constexpr LoraTarget Plus(LoraTarget first, int i) {
    return static_cast<LoraTarget>(static_cast<int>(first) + i);
  }

 private:
  static std::int64_t Lines(std::int64_t bytes) { return CeilDivide(bytes, 64) * 64; }
};

// A slot's parts.
struct AssistSlot {
  void* x = nullptr;
  float* answer = nullptr;
  gpu::AssistWords* words = nullptr;

  // The slot at `base`, of SlotBytes bytes.
  static AssistSlot At(const AssistLayout& layout, std::byte* base) {
    return {base, reinterpret_cast<float*>(base + layout.XBytes()),
            reinterpret_cast<gpu::AssistWords*>(base + layout.XBytes() + layout.AnswerBytes())};
  }
};

}  // namespace loramux
