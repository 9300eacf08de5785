#include "formats/recurrent_fields.h"

#include <limits>
#include <string>

#include "base/message.h"

namespace loramux {
namespace {

// Which layers are recurrent: as layer_types says, else all but each n-th, or all of Mamba-2's. Before transformers 5,
// the latter's types had names of their own.
Status ParseRecurrentLayers(const JsonFields& fields, bool mamba, const ModelConfig& config,
                            std::vector<bool>& layers) {
  ASSIGN_OR_RETURN(const std::int64_t interval, fields.IntOr("full_attention_interval", 1, 1024, 4));
  layers.assign(static_cast<std::size_t>(config.num_layers), false);
  const nlohmann::json* types = fields.Find("layer_types");
  if (types == nullptr && mamba) types = fields.Find("layers_block_type");  // transformers has both names
  if (types != nullptr && (!types->is_array() || types->size() != layers.size())) {
    return fields.Bad("layer_types", "a list of num_hidden_layers = " + std::to_string(config.num_layers) + " names");
  }
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    if (types == nullptr) {
      layers[layer] = mamba || (static_cast<std::int64_t>(layer) + 1) % interval != 0;
      continue;
    }
    const nlohmann::json& type = (*types)[layer];
    layers[layer] = type == "linear_attention" || (mamba && type == "mamba");
    if (layers[layer] || type == "full_attention" || (mamba && type == "attention")) continue;
    return Unsupported(fields.label() + "layer_types[" + std::to_string(layer) + "]: " + Describe(type) +
                       " is not supported, only " + (mamba ? "mamba and attention, or " : "") +
                       "linear_attention and full_attention");
  }
  if (std::ranges::find(layers, false) != layers.end()) return Ok{};
  return Unsupported(fields.label() + "layer_types" + (types == nullptr ? " is missing" : "") +
                     ": expected at least one layer of full_attention, found none");
}

constexpr std::int64_t kMost = 1024;

Status CheckDivides(const JsonFields& fields, const char* keys, const char* values, const RecurrentConfig& recurrent) {
  if (recurrent.value_heads % recurrent.key_heads == 0) return Ok{};
  return InvalidArgument(fields.label() + keys + " " + std::to_string(recurrent.key_heads) + " does not divide " +
                         values + " " + std::to_string(recurrent.value_heads));
}

// A limit of steps as transformers saves it: infinity is an object.
Result<double> StepLimit(const JsonFields& fields, const nlohmann::json& value) {
  const auto named = value.is_object() ? value.find("__float__") : value.end();
  if (named != value.end() && value.size() == 1 && *named == "Infinity") return std::numeric_limits<double>::infinity();
  const auto number = FiniteNumber(value);
  if (number && *number >= 0) return *number;
  return fields.Bad("time_step_limit", "two numbers of at least 0");
}

Status ParseStepLimits(const JsonFields& fields, RecurrentConfig& recurrent) {
  const nlohmann::json* const limits = fields.Find("time_step_limit");
  if (limits == nullptr) return Ok{};
  if (!limits->is_array() || limits->size() != 2) return fields.Bad("time_step_limit", "two numbers of at least 0");
  ASSIGN_OR_RETURN(recurrent.least_step, StepLimit(fields, (*limits)[0]));
  ASSIGN_OR_RETURN(recurrent.most_step, StepLimit(fields, (*limits)[1]));
  if (recurrent.least_step <= recurrent.most_step) return Ok{};
  return fields.Bad("time_step_limit", "two numbers, of which the second is not below the first");
}

Status ParseMamba(const JsonFields& fields, ModelConfig& config) {
  RecurrentConfig recurrent{.mamba = true};
  RETURN_IF_ERROR(ParseRecurrentLayers(fields, true, config, recurrent.layers));
  if (std::ranges::find(recurrent.layers, true) == recurrent.layers.end()) return Ok{};  // the family has such models
  ASSIGN_OR_RETURN(recurrent.conv_width, fields.IntOr("mamba_d_conv", 2, 8, 4));
  ASSIGN_OR_RETURN(recurrent.key_heads, fields.IntOr("mamba_n_groups", 1, kMost, 1));
  ASSIGN_OR_RETURN(recurrent.key_dim, fields.IntOr("mamba_d_state", 1, kMost, 256));
  ASSIGN_OR_RETURN(recurrent.value_heads, fields.IntOr("mamba_n_heads", 1, kMost, 128));
  ASSIGN_OR_RETURN(const std::int64_t expand, fields.IntOr("mamba_expand", 1, kMost, 2));
  const std::int64_t values = expand * config.hidden_size;
  const nlohmann::json* const dim = fields.Find("mamba_d_head");
  if (dim == nullptr || *dim == "auto") {
    recurrent.value_dim = values / recurrent.value_heads;
  } else {
    ASSIGN_OR_RETURN(recurrent.value_dim, fields.IntOr("mamba_d_head", 1, kMost, 0));
  }
  if (recurrent.value_dim < 1 || recurrent.value_dim > kMost || recurrent.Values() != values) {
    return InvalidArgument(fields.label() + "mamba_n_heads " + std::to_string(recurrent.value_heads) +
                           " times mamba_d_head " + std::to_string(recurrent.value_dim) +
                           ": expected mamba_expand * hidden_size = " + std::to_string(values) + " in heads of 1 to " +
                           std::to_string(kMost));
  }
  RETURN_IF_ERROR(CheckDivides(fields, "mamba_n_groups", "mamba_n_heads", recurrent));
  ASSIGN_OR_RETURN(recurrent.conv_bias, fields.BoolOr("mamba_conv_bias", true));
  ASSIGN_OR_RETURN(recurrent.projection_bias, fields.BoolOr("mamba_proj_bias", false));
  RETURN_IF_ERROR(ParseStepLimits(fields, recurrent));
  config.recurrent = std::move(recurrent);
  return Ok{};
}

}  // namespace

Status ParseRecurrent(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config) {
  if (family.of_mamba) return ParseMamba(fields, config);
  if (!family.of_deltanet) return Ok{};
  RecurrentConfig recurrent;
  ASSIGN_OR_RETURN(recurrent.conv_width, fields.IntOr("linear_conv_kernel_dim", 2, 8, 4));
  ASSIGN_OR_RETURN(recurrent.key_heads, fields.IntOr("linear_num_key_heads", 1, kMost, 16));
  ASSIGN_OR_RETURN(recurrent.value_heads, fields.IntOr("linear_num_value_heads", 1, kMost, 32));
  ASSIGN_OR_RETURN(recurrent.key_dim, fields.IntOr("linear_key_head_dim", 1, kMost, 128));
  ASSIGN_OR_RETURN(recurrent.value_dim, fields.IntOr("linear_value_head_dim", 1, kMost, 128));
  RETURN_IF_ERROR(CheckDivides(fields, "linear_num_key_heads", "linear_num_value_heads", recurrent));
  RETURN_IF_ERROR(ParseRecurrentLayers(fields, false, config, recurrent.layers));
  config.recurrent = std::move(recurrent);
  config.output_gate = true;
  return Ok{};
}

}  // namespace loramux
