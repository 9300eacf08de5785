#include "formats/random_adapter.h"

#include <algorithm>
#include <bit>
#include <fstream>

#include "base/prng.h"
#include "formats/model_family.h"

namespace loramux {
namespace {

const char* ModuleParent(LoraTarget target, bool mamba) {
  switch (target) {
    case LoraTarget::kGate:
    case LoraTarget::kUp:
    case LoraTarget::kDown:
      return "mlp.";
    default:
      return !IsOfStates(target) ? "self_attn." : mamba ? "mamba." : "linear_attn.";
  }
}

// Whether recurrent layers have such a layer.
bool HasOfStates(const RecurrentConfig& config, LoraTarget target) {
  return target == LoraTarget::kOut || (target == LoraTarget::kInAll) == config.mamba;
}

struct Tensor {
  std::string name;
  std::int64_t rows, columns;
};

std::vector<Tensor> Tensors(const ModelConfig& model, std::int32_t rank, const std::vector<LoraTarget>& targets) {
  std::vector<Tensor> tensors;
  const auto add = [&](const std::string& module, LoraTarget target, std::int64_t layer, std::int32_t expert = -1) {
    const LinearShape shape = TargetShape(model, target, layer, expert);
    tensors.push_back({"base_model.model." + module + ".lora_A.weight", rank, shape.in});
    tensors.push_back({"base_model.model." + module + ".lora_B.weight", shape.out, rank});
  };
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) {
    for (const LoraTarget target : targets) {
      if (target == LoraTarget::kLmHead) continue;
      const bool of_block = target <= LoraTarget::kO || IsOfStates(target);
      const bool has_it = IsOfStates(target) ? model.IsRecurrent(layer)
                          : of_block         ? model.HasAttention(layer)
                                             : model.Has(LayerPart::kFeedForward, layer);
      if (!has_it || (target == LoraTarget::kGate && !model.gated)) continue;
      if (IsOfStates(target) && !HasOfStates(*model.recurrent, target)) continue;
      const bool of_keys = target == LoraTarget::kK || target == LoraTarget::kV;
      if (of_keys && (model.SharesKv(layer) || (target == LoraTarget::kV && model.ValuesAreKeys(layer)))) continue;
      const std::string name = LoraTargetName(target);
      const std::string parent = "model.layers." + std::to_string(layer) + "." +
                                 ModuleParent(target, model.recurrent && model.recurrent->mamba);
      if (of_block || !model.HasExperts(layer)) {
        add(parent + name, target, layer);
        continue;
      }
      for (std::int32_t e = 0; e < model.experts->route.experts; ++e) {
        add(parent + "experts." + std::to_string(e) + "." + name, target, layer, e);
      }
      if (!model.HasOwnBlock(layer)) continue;
      add("model.layers." + std::to_string(layer) + "." + InfoOf(model.family).experts.shared_block + name, target,
          layer);
    }
  }
  if (std::ranges::find(targets, LoraTarget::kLmHead) != targets.end()) add("lm_head", LoraTarget::kLmHead, 0);
  return tensors;
}

}  // namespace

Status WriteRandomAdapter(const std::filesystem::path& directory, const ModelConfig& model, std::int32_t rank,
                          const std::vector<LoraTarget>& targets, std::uint64_t seed) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return IoError("cannot make " + directory.string() + ": " + error.message());
  std::string modules;
  for (const LoraTarget target : targets)
    modules += (modules.empty() ? "\"" : ",\"") + std::string(LoraTargetName(target)) + "\"";
  std::ofstream config(directory / "adapter_config.json");
  config << "{\"peft_type\":\"LORA\",\"r\":" << rank << ",\"lora_alpha\":" << rank << ",\"target_modules\":[" << modules
         << "]}\n";

  const std::vector<Tensor> tensors = Tensors(model, rank, targets);
  std::string header = "{";
  std::int64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    const std::int64_t end = offset + tensor.rows * tensor.columns * 2;
    header += (offset == 0 ? "\"" : ",\"") + tensor.name + "\":{\"dtype\":\"BF16\",\"shape\":[" +
              std::to_string(tensor.rows) + "," + std::to_string(tensor.columns) + "],\"data_offsets\":[" +
              std::to_string(offset) + "," + std::to_string(end) + "]}";
    offset = end;
  }
  header += "}";
  std::ofstream file(directory / "adapter_model.safetensors", std::ios::binary);
  const std::uint64_t header_bytes = header.size();
  file.write(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  Prng prng(seed);
  std::vector<std::uint16_t> row;
  for (const Tensor& tensor : tensors) {
    row.resize(static_cast<std::size_t>(tensor.columns));
    for (std::int64_t r = 0; r < tensor.rows; ++r) {
      for (std::uint16_t& value : row) {
        const float random = static_cast<float>(prng.NextDouble() - 0.5) * 0.02f;
        value = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(random) >> 16);
      }
      file.write(reinterpret_cast<const char*>(row.data()), static_cast<std::streamsize>(row.size() * 2));
    }
  }
  file.close();
  if (!file) return IoError("cannot write " + directory.string());
  return Ok{};
}

}  // namespace loramux
