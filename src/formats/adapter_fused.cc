#include "formats/adapter_fused.h"

#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "base/message.h"
#include "formats/safetensors.h"

namespace loramux {
namespace {

std::vector<LoraTarget> LayersOf(FusedLayers fused) {
  if (fused == FusedLayers::kQkv) return {LoraTarget::kQ, LoraTarget::kK, LoraTarget::kV};
  if (fused == FusedLayers::kStates) return {LoraTarget::kInQkv, LoraTarget::kInZ};
  if (fused == FusedLayers::kStateGates) return {LoraTarget::kInB, LoraTarget::kInA};
  return {LoraTarget::kGate, LoraTarget::kUp};
}

std::string NamesOf(std::span<const LoraTarget> targets) {
  std::string names;
  for (const LoraTarget target : targets) names += (names.empty() ? "" : ", ") + std::string(LoraTargetName(target));
  return names;
}

// The outputs of each layer. Empty: unknown without a model. gate and up have the same number.
std::vector<std::int64_t> OutputsOf(std::span<const LoraTarget> targets, const ModelConfig* model, std::int32_t layer,
                                    std::int64_t rows) {
  std::vector<std::int64_t> outputs;
  for (const LoraTarget target : targets) {
    if (model != nullptr) outputs.push_back(TargetShape(*model, target, layer).out);
    const bool halves = targets.front() == LoraTarget::kGate && rows > 0 && rows % 2 == 0;
    if (model == nullptr && halves) outputs.push_back(rows / 2);
  }
  return outputs;
}

// How a tensor lies that is read as it is stored.
TensorView ViewOfAll(const TensorEntry& tensor) {
  return {.rows = tensor.shape[0], .columns = tensor.shape.size() > 1 ? tensor.shape[1] : 1};
}

// Some rows of a tensor, in this order.
using RowList = std::shared_ptr<const std::vector<std::int64_t>>;
RowList Share(std::vector<std::int64_t> rows) {
  return std::make_shared<const std::vector<std::int64_t>>(std::move(rows));
}
TensorEntry RowsOf(const TensorEntry& tensor, const RowList& rows) {
  TensorEntry part = tensor;
  const std::uint64_t row_bytes = tensor.bytes / static_cast<std::uint64_t>(tensor.shape[0]);
  const auto count = static_cast<std::int64_t>(rows->size());
  part.shape[0] = count;
  part.bytes = row_bytes * static_cast<std::uint64_t>(count);
  if (tensor.view == nullptr && rows->back() - rows->front() == count - 1) {
    part.offset += row_bytes * static_cast<std::uint64_t>(rows->front());
    return part;
  }
  TensorView view = tensor.view == nullptr ? ViewOfAll(tensor) : *tensor.view;
  if (view.picked == nullptr) {
    view.picked = rows;
  } else {
    std::vector<std::int64_t> of_picked;
    for (const std::int64_t row : *rows) of_picked.push_back((*view.picked)[static_cast<std::size_t>(row)]);
    view.picked = Share(std::move(of_picked));
  }
  part.view = std::make_shared<const TensorView>(std::move(view));
  return part;
}

constexpr const char* kDownOfAll = "down_proj";
// The parameter of gate and up, or of up where there is no gate.
const char* UpOfAll(const ModelConfig& model) { return model.gated ? "gate_up_proj" : "up_proj"; }
constexpr std::int64_t kMostBytesOfAll = std::int64_t{1} << 30;

// What a tensor of all experts of a layer is: of which parameter, and whether in and out have changed places.
struct OfAllExperts {
  const char* parameter = nullptr;  // null: the tensor's shape is of neither
  bool exchanged = false;
};

// The nesting of PEFT's wrappers tells the parameter: that of gate_up_proj lies within that of down_proj if there are
// both. The shape tells the places of in and out; where they are of one size, the version of PEFT does. Those of
// gpt-oss never changed.
OfAllExperts FindParameter(const AdapterTensorName& name, const TensorEntry& tensor, const AdapterConfig& config,
                           const ModelConfig& model) {
  const auto changes = [&](const char* of) { return config.TargetsParameter(name.module + "." + of); };
  const char* const parameter = !name.inner && changes(kDownOfAll) ? kDownOfAll : UpOfAll(model);
  const std::int64_t hidden = model.hidden_size, size = model.experts->intermediate_size;
  const bool is_a = name.part == AdapterTensorName::Part::kLoraA;
  const std::int64_t extent = tensor.shape[is_a ? 1 : 0];
  const std::int64_t in = parameter == kDownOfAll ? size : hidden,
                     out = parameter == kDownOfAll ? hidden : model.GateUpDim(size);
  const bool fits = extent == (is_a ? in : out);
  const bool fits_exchanged = extent == (is_a ? out : in) && model.family != ModelFamily::kGptOss;
  if (!fits && !fits_exchanged) return {};
  return {parameter, fits_exchanged && (!fits || config.before_peft_0_19)};
}

// The matrix of one expert: of rows [expert * rank, (expert + 1) * rank) of a tensor, or of the columns expert, expert
// + experts, ...; transposed, if in and out have changed places.
TensorEntry MatrixOfExpert(const TensorEntry& tensor, bool of_rows, bool transposed, std::int64_t expert,
                           std::int64_t experts, std::int64_t rank) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(rank));
  for (std::size_t j = 0; j < rows.size(); ++j) {
    const auto of_rank = static_cast<std::int64_t>(j);
    rows[j] = of_rows ? expert * rank + of_rank : of_rank * experts + expert;
  }
  if (of_rows && !transposed) return RowsOf(tensor, Share(std::move(rows)));
  TensorEntry part = tensor;
  TensorView view = ViewOfAll(tensor);
  view.transposed = transposed;
  const std::int64_t other = tensor.shape[of_rows ? 1 : 0];
  if (transposed && !of_rows) {
    view.picked = Share(std::move(rows));
    part.shape = {rank, other};
  } else {
    view.first_column = rows.front();
    view.column_step = of_rows ? 1 : experts;
    view.columns_read = rank;
    part.shape = {other, rank};
  }
  part.bytes = static_cast<std::uint64_t>(rank * other) * DTypeSize(tensor.dtype);
  part.view = std::make_shared<const TensorView>(std::move(view));
  return part;
}

// The rows of gate (0) or up (1) in the parameter of both.
RowList RowsOfPart(const ModelConfig& model, int part) {
  const bool alternate = model.family == ModelFamily::kGptOss;
  std::vector<std::int64_t> rows(static_cast<std::size_t>(model.experts->intermediate_size));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    rows[i] = alternate ? 2 * row + part : part * model.experts->intermediate_size + row;
  }
  return Share(std::move(rows));
}

// Error: target_parameters names no parameter that the tensor may be of. `which` names the tensor.
Status CheckNamed(const AdapterTensorName& name, const AdapterConfig& config, const ModelConfig& model,
                  const std::string& which) {
  const std::string gate_up = name.module + "." + UpOfAll(model), down = name.module + "." + kDownOfAll;
  if (config.TargetsParameter(gate_up) || (!name.inner && config.TargetsParameter(down))) return Ok{};
  return InvalidArgument(
      which + " is of a parameter of all experts, but target_parameters of adapter_config.json " +
      (name.inner ? "does not name " + Quote(gate_up) : "names neither " + Quote(gate_up) + " nor " + Quote(down)) +
      ": one of the two is wrong");
}

Error NoParameterFits(const ModelConfig& model, const TensorEntry& tensor, const std::string& which) {
  const std::int64_t hidden = model.hidden_size, size = model.experts->intermediate_size;
  return InvalidArgument(which + ": expected lora_A [experts * rank, in] or lora_B [out, rank * experts] of " +
                         std::to_string(model.experts->route.experts) + " experts with " + UpOfAll(model) + " [" +
                         std::to_string(model.GateUpDim(size)) + ", " + std::to_string(hidden) + "] and down_proj [" +
                         std::to_string(hidden) + ", " + std::to_string(size) + "], found " +
                         ShapeToString(tensor.shape));
}

// The matrices of a stacked tensor. `which` names it.
Result<std::vector<LayerTensor>> MatricesOfStack(const AdapterTensorName& name, const TensorEntry& tensor,
                                                 std::int64_t experts, const std::string& which, TensorReader& reader) {
  const std::int64_t count = tensor.shape[0];
  if (count != experts && count != 1) {
    return InvalidArgument(which + ": expected a matrix for each of " + std::to_string(experts) +
                           " experts, or one that all share, found " + ShapeToString(tensor.shape));
  }
  std::vector<LayerTensor> parts;
  const TensorEntry* matrix = nullptr;
  for (std::int32_t e = 0; e < experts; ++e) {
    if (e < count) {
      TensorEntry of_expert = tensor;
      of_expert.shape.erase(of_expert.shape.begin());
      of_expert.bytes = tensor.bytes / static_cast<std::uint64_t>(count);
      of_expert.offset += of_expert.bytes * static_cast<std::uint64_t>(e);
      matrix = reader.Keep(std::move(of_expert));
    }
    parts.push_back({name.target, matrix, e});
  }
  return parts;
}

// The parts of a tensor of all experts of a layer.
Result<std::vector<LayerTensor>> TensorsOfExperts(const AdapterTensorName& name, const TensorEntry& tensor,
                                                  const AdapterConfig& config, const ModelConfig* model,
                                                  const std::string& label, TensorReader& reader) {
  using Part = AdapterTensorName::Part;
  const std::string which = label + ": tensor " + Quote(tensor.name);
  if (model == nullptr) {
    return Unsupported(which +
                       " is of all experts of a layer in one, and the base model says how many there are: give "
                       "--base");
  }
  if (!model->HasExperts(name.layer)) {
    return InvalidArgument(which + " is of experts, but layer " + std::to_string(name.layer) +
                           " of the base model has none");
  }
  if (tensor.view != nullptr || tensor.bytes > kMostBytesOfAll ||
      (name.part != Part::kLoraA && name.part != Part::kLoraB)) {
    return Unsupported(which + ": of experts, loramux knows lora_A and lora_B of at most 1 GiB");
  }
  if (name.stacked) return MatricesOfStack(name, tensor, model->experts->route.experts, which, reader);
  RETURN_IF_ERROR(CheckNamed(name, config, *model, which));
  const OfAllExperts found = FindParameter(name, tensor, config, *model);
  const std::int64_t experts = model->experts->route.experts;
  // Which the file calls lora_A: its rows are those of one expert after the other.
  const bool of_rows = name.part == Part::kLoraA;
  const std::int64_t ranks = tensor.shape[of_rows ? 0 : 1];
  if (found.parameter == nullptr || ranks == 0 || ranks % experts != 0) {
    return NoParameterFits(*model, tensor, which);
  }
  const std::int64_t rank = ranks / experts, said = config.RankOf(name.module + "." + found.parameter);
  if (rank != said) {
    return InvalidArgument(which + ": expected rank " + std::to_string(said) +
                           " as in adapter_config.json for each of " + std::to_string(experts) +
                           " experts, found rank " + std::to_string(rank) + " in " + ShapeToString(tensor.shape));
  }
  std::vector<LayerTensor> parts;
  const bool is_a = of_rows != found.exchanged;
  const RowList of_part[] = {RowsOfPart(*model, 0), RowsOfPart(*model, 1)};
  for (std::int32_t e = 0; e < experts; ++e) {
    TensorEntry of_expert = MatrixOfExpert(tensor, of_rows, found.exchanged, e, experts, rank);
    const auto add = [&](LoraTarget target, const TensorEntry* mine) {
      parts.push_back({target, mine, e, found.parameter, found.exchanged});
    };
    if (found.parameter == kDownOfAll) {
      add(LoraTarget::kDown, reader.Keep(std::move(of_expert)));
      continue;
    }
    if (!model->gated) {
      add(LoraTarget::kUp, reader.Keep(std::move(of_expert)));
      continue;
    }
    const TensorEntry* const both = is_a ? reader.Keep(of_expert) : nullptr;
    for (const int part : {0, 1}) {
      const TensorEntry* const mine = is_a ? both : reader.Keep(RowsOf(of_expert, of_part[part]));
      add(part == 0 ? LoraTarget::kGate : LoraTarget::kUp, mine);
    }
  }
  return parts;
}

}  // namespace

Result<std::vector<LayerTensor>> TensorsOfLayers(const AdapterTensorName& name, const TensorEntry& tensor,
                                                 const AdapterConfig& config, const ModelConfig* model,
                                                 const std::string& label, TensorReader& reader) {
  if (name.of_all_experts) return TensorsOfExperts(name, tensor, config, model, label, reader);
  if (name.fused == FusedLayers::kNone) return std::vector<LayerTensor>{{name.target, &tensor, name.expert}};
  const std::vector<LoraTarget> targets = LayersOf(name.fused);
  std::vector<LayerTensor> parts;
  if (name.part == AdapterTensorName::Part::kLoraA) {
    for (const LoraTarget target : targets) parts.push_back({target, &tensor});
    return parts;
  }
  const std::int64_t rows = tensor.shape[0];
  const std::vector<std::int64_t> outputs = OutputsOf(targets, model, name.layer, rows);
  const std::string which = label + ": tensor " + Quote(tensor.name);
  if (outputs.empty() && name.fused != FusedLayers::kGateUp) {
    return Unsupported(which + " is of " + NamesOf(targets) +
                       " in one, and the base model says where each begins: give --base");
  }
  const std::int64_t wanted = std::accumulate(outputs.begin(), outputs.end(), std::int64_t{0});
  if (wanted == 0 || wanted != rows) {
    std::string expected;
    for (const std::int64_t count : outputs) expected += (expected.empty() ? "" : " + ") + std::to_string(count);
    return InvalidArgument(which + ": expected " + (outputs.empty() ? "as many rows for each" : expected + " rows") +
                           " of the base model's " + NamesOf(targets) + ", found " + ShapeToString(tensor.shape));
  }
  const bool by_heads = model != nullptr && name.fused == FusedLayers::kQkv && FusesByHeads(model->family);
  const std::int64_t groups = by_heads ? model->num_kv_heads : 1;
  const bool of_states = name.fused == FusedLayers::kStates || name.fused == FusedLayers::kStateGates;
  std::vector<std::vector<std::int64_t>> rows_of =
      of_states ? RowsOfFusedStates(*model->recurrent, name.fused == FusedLayers::kStateGates)
                : RowsOfFused(outputs, groups);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    parts.push_back({targets[i], reader.Keep(RowsOf(tensor, Share(std::move(rows_of[i]))))});
  }
  return parts;
}

}  // namespace loramux
