#include "model/part_tensors.h"

#include <initializer_list>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/matmul.h"

namespace loramux {
namespace {

void Take(OutputRange range, std::vector<float>& vector) {
  if (vector.empty()) return;
  CHECK_LE(range.first + range.count, static_cast<std::int64_t>(vector.size()));
  const auto first = vector.begin() + range.first;
  vector = std::vector<float>(first, first + range.count);
}

void Take(OutputRange range, LinearTensors& linear) {
  if (linear.weight == nullptr) return;
  std::vector<std::int64_t> rows(static_cast<std::size_t>(range.count));
  std::iota(rows.begin(), rows.end(), range.first);
  linear.weight = RowsOfMatrix(std::move(linear.weight), std::move(rows));
  Take(range, linear.bias);
}

void Take(OutputRange range, NormTensors& norm) {
  Take(range, norm.weight);
  Take(range, norm.bias);
}

// Whether one matrix can hold them without other values (PackedMatrix::ArePanels).
bool Mix(std::initializer_list<const LinearTensors*> linears) {
  std::vector<PackedMatrix::Part> parts;
  for (const LinearTensors* linear : linears) {
    if (linear->weight != nullptr) parts.push_back({linear->weight->rows(), linear->weight->format()});
  }
  return parts.empty() || PackedMatrix::ArePanels(parts);
}

bool Mixes(const LayerTensors& t) { return Mix({&t.q, &t.k, &t.v}) && Mix({&t.gate, &t.up}); }

}  // namespace

Status TakePart(const ModelPart& part, const ModelConfig& whole, ModelTensors& tensors) {
  if (part.whole()) return Ok{};
  const OutputRange tokens = OutputsOf(part, whole, LoraTarget::kLmHead);
  Take(tokens, tensors.embedding);
  Take(tokens, tensors.layer_embedding);
  Take(tokens, tensors.lm_head);
  for (std::size_t i = 0; i < tensors.layers.size(); ++i) {
    LayerTensors& t = tensors.layers[i];
    const bool mixes = Mixes(t);
    const auto layer = static_cast<std::int64_t>(i);
    const auto take = [&](LoraTarget target, LinearTensors& linear, std::int32_t expert = -1) {
      if (linear.weight != nullptr) Take(OutputsOf(part, whole, target, layer, expert), linear);
    };
    const auto take_block = [&](BlockTensors& block, std::int32_t expert) {
      take(LoraTarget::kGate, block.gate, expert);
      take(LoraTarget::kUp, block.up, expert);
      take(LoraTarget::kDown, block.down, expert);
    };
    take(LoraTarget::kQ, t.q);
    take(LoraTarget::kK, t.k);
    take(LoraTarget::kV, t.v);
    take(LoraTarget::kO, t.o);
    take_block(t, -1);
    for (std::size_t e = 0; e < t.experts.size(); ++e) take_block(t.experts[e], static_cast<std::int32_t>(e));
    if (mixes && !Mixes(t)) {
      return Unsupported("--tensor-parallel-size: in layer " + std::to_string(i) +
                             " the formats of q, k and v or of gate and up differ, and a rank's rows of them are no "
                             "multiple of " +
                             std::to_string(PackedMatrix::kPanel) + "; expected fewer ranks, found " +
                             std::to_string(part.ranks),
                         "--tensor-parallel-size");
    }
    Take(HeadsOf(part, whole), t.sinks);
    if (whole.qk_norm != QkNorm::kLayerOfHeads) continue;
    Take(OutputsOf(part, whole, LoraTarget::kQ, layer), t.q_norm);
    Take(OutputsOf(part, whole, LoraTarget::kK, layer), t.k_norm);
  }
  return Ok{};
}

}  // namespace loramux
