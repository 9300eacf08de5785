#include "formats/recurrent_fields.h"

#include <string>

#include "base/message.h"

namespace loramux {
namespace {

// Which layers are recurrent: as layer_types says, else all but each n-th.
Status ParseRecurrentLayers(const JsonFields& fields, const ModelConfig& config, std::vector<bool>& layers) {
  ASSIGN_OR_RETURN(const std::int64_t interval, fields.IntOr("full_attention_interval", 1, 1024, 4));
  layers.assign(static_cast<std::size_t>(config.num_layers), false);
  const nlohmann::json* types = fields.Find("layer_types");
  if (types != nullptr && (!types->is_array() || types->size() != layers.size())) {
    return fields.Bad("layer_types", "a list of num_hidden_layers = " + std::to_string(config.num_layers) + " names");
  }
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    if (types == nullptr) {
      layers[layer] = (static_cast<std::int64_t>(layer) + 1) % interval != 0;
      continue;
    }
    const nlohmann::json& type = (*types)[layer];
    layers[layer] = type == "linear_attention";
    if (layers[layer] || type == "full_attention") continue;
    return Unsupported(fields.label() + "layer_types[" + std::to_string(layer) + "]: " + Describe(type) +
                       " is not supported, only linear_attention and full_attention");
  }
  if (std::ranges::find(layers, false) != layers.end()) return Ok{};
  return Unsupported(fields.label() + "layer_types: expected at least one layer of full_attention, found none");
}

}  // namespace

Status ParseRecurrent(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config) {
  if (!family.of_deltanet) return Ok{};
  constexpr std::int64_t kMost = 1024;
  RecurrentConfig recurrent;
  ASSIGN_OR_RETURN(recurrent.conv_width, fields.IntOr("linear_conv_kernel_dim", 2, 8, 4));
  ASSIGN_OR_RETURN(recurrent.key_heads, fields.IntOr("linear_num_key_heads", 1, kMost, 16));
  ASSIGN_OR_RETURN(recurrent.value_heads, fields.IntOr("linear_num_value_heads", 1, kMost, 32));
  ASSIGN_OR_RETURN(recurrent.key_dim, fields.IntOr("linear_key_head_dim", 1, kMost, 128));
  ASSIGN_OR_RETURN(recurrent.value_dim, fields.IntOr("linear_value_head_dim", 1, kMost, 128));
  if (recurrent.value_heads % recurrent.key_heads != 0) {
    return InvalidArgument(fields.label() + "linear_num_key_heads " + std::to_string(recurrent.key_heads) +
                           " does not divide linear_num_value_heads " + std::to_string(recurrent.value_heads));
  }
  RETURN_IF_ERROR(ParseRecurrentLayers(fields, config, recurrent.layers));
  config.recurrent = std::move(recurrent);
  config.output_gate = true;
  return Ok{};
}

}  // namespace loramux
