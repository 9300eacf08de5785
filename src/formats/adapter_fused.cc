#include "formats/adapter_fused.h"

#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "formats/message.h"
#include "formats/safetensors.h"

namespace loramux {
namespace {

std::vector<LoraTarget> LayersOf(FusedLayers fused) {
  if (fused == FusedLayers::kQkv) return {LoraTarget::kQ, LoraTarget::kK, LoraTarget::kV};
  return {LoraTarget::kGate, LoraTarget::kUp};
}

std::string NamesOf(std::span<const LoraTarget> targets) {
  std::string names;
  for (const LoraTarget target : targets) names += (names.empty() ? "" : ", ") + std::string(LoraTargetName(target));
  return names;
}

// The outputs of each layer. Empty: unknown without a model. gate and up have the same number.
std::vector<std::int64_t> OutputsOf(std::span<const LoraTarget> targets, const ModelConfig* model, std::int64_t rows) {
  std::vector<std::int64_t> outputs;
  for (const LoraTarget target : targets) {
    if (model != nullptr) outputs.push_back(TargetShape(*model, target).out);
    if (model == nullptr && targets.size() == 2 && rows > 0 && rows % 2 == 0) outputs.push_back(rows / 2);
  }
  return outputs;
}

// How a tensor lies that is read as it is stored.
TensorView ViewOfAll(const TensorEntry& tensor) {
  return {.rows = tensor.shape[0], .columns = tensor.shape.size() > 1 ? tensor.shape[1] : 1};
}

// Some rows of a tensor, in this order.
TensorEntry RowsOf(const TensorEntry& tensor, std::vector<std::int64_t> rows) {
  TensorEntry part = tensor;
  const std::uint64_t row_bytes = tensor.bytes / static_cast<std::uint64_t>(tensor.shape[0]);
  const auto count = static_cast<std::int64_t>(rows.size());
  part.shape[0] = count;
  part.bytes = row_bytes * static_cast<std::uint64_t>(count);
  if (tensor.view == nullptr && rows.back() - rows.front() == count - 1) {
    part.offset += row_bytes * static_cast<std::uint64_t>(rows.front());
    return part;
  }
  TensorView view = tensor.view == nullptr ? ViewOfAll(tensor) : *tensor.view;
  if (!view.picked.empty())
    for (std::int64_t& row : rows) row = view.picked[static_cast<std::size_t>(row)];
  view.picked = std::move(rows);
  part.view = std::make_shared<const TensorView>(std::move(view));
  return part;
}

}  // namespace

Result<std::vector<LayerTensor>> TensorsOfLayers(const AdapterTensorName& name, const TensorEntry& tensor,
                                                 const ModelConfig* model, const std::string& label,
                                                 TensorReader& reader) {
  if (name.fused == FusedLayers::kNone) return std::vector<LayerTensor>{{name.target, &tensor}};
  const std::vector<LoraTarget> targets = LayersOf(name.fused);
  std::vector<LayerTensor> parts;
  if (name.part == AdapterTensorName::Part::kLoraA) {
    for (const LoraTarget target : targets) parts.push_back({target, &tensor});
    return parts;
  }
  const std::int64_t rows = tensor.shape[0];
  const std::vector<std::int64_t> outputs = OutputsOf(targets, model, rows);
  const std::string which = label + ": tensor " + Quote(tensor.name);
  if (outputs.empty() && targets.size() > 2) {
    return Unsupported(which + " is of " + NamesOf(targets) +
                       " in one, and the base model says where each begins: give --base");
  }
  if (outputs.empty() || std::accumulate(outputs.begin(), outputs.end(), std::int64_t{0}) != rows) {
    std::string expected;
    for (const std::int64_t count : outputs) expected += (expected.empty() ? "" : " + ") + std::to_string(count);
    return InvalidArgument(which + ": expected " + (outputs.empty() ? "as many rows for each" : expected + " rows") +
                           " of the base model's " + NamesOf(targets) + ", found " + ShapeToString(tensor.shape));
  }
  const bool by_heads = model != nullptr && name.fused == FusedLayers::kQkv && FusesByHeads(model->family);
  const std::int64_t groups = by_heads ? model->num_kv_heads : 1;
  std::vector<std::vector<std::int64_t>> rows_of = RowsOfFused(outputs, groups);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    parts.push_back({targets[i], reader.Keep(RowsOf(tensor, std::move(rows_of[i])))});
  }
  return parts;
}

}  // namespace loramux
