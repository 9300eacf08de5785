#include "formats/recurrent_fields.h"

#include <limits>
#include <string>

#include "base/message.h"

namespace loramux {
namespace {

// What the types of layers say: of Nemotron-H, with feed-forward blocks and experts among them; of others, that they
// are recurrent or not.
Status ReadLayerTypes(const JsonFields& fields, const nlohmann::json& types, const FamilyInfo& family,
                      ModelConfig& config, std::vector<bool>& layers) {
  const bool alone = family.family == ModelFamily::kNemotronH;
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    const nlohmann::json& type = types[layer];
    layers[layer] = type == "linear_attention" || (family.of_mamba && type == "mamba");
    const bool feeds = alone && (type == "mlp" || type == "moe");
    if (alone) config.layer_parts.push_back(feeds ? LayerPart::kFeedForward : LayerPart::kMixer);
    if (layers[layer] || feeds || type == "full_attention" || (family.of_mamba && type == "attention")) continue;
    return Unsupported(fields.label() + "layer_types[" + std::to_string(layer) + "]: " + Describe(type) +
                       " is not supported, only " + (alone ? "mlp, moe, " : "") +
                       (family.of_mamba ? "mamba and attention, or " : "") + "linear_attention and full_attention");
  }
  return Ok{};
}

// Which layers are recurrent: as layer_types says, else all but each n-th, or all of Mamba-2's. Before transformers 5,
// the latter's types had names of their own.
Status ParseRecurrentLayers(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config,
                            std::vector<bool>& layers) {
  ASSIGN_OR_RETURN(const std::int64_t interval, fields.IntOr("full_attention_interval", 1, 1024, 4));
  layers.assign(static_cast<std::size_t>(config.num_layers), family.of_mamba);
  if (family.family == ModelFamily::kFalconH1) return Ok{};
  const nlohmann::json* types = fields.Find("layer_types");
  if (types == nullptr && family.of_mamba) types = fields.Find("layers_block_type");  // transformers has both names
  if (types != nullptr && (!types->is_array() || types->size() != layers.size())) {
    return fields.Bad("layer_types", "a list of num_hidden_layers = " + std::to_string(config.num_layers) + " names");
  }
  if (types != nullptr) {
    RETURN_IF_ERROR(ReadLayerTypes(fields, *types, family, config, layers));
  } else if (!family.of_mamba) {
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
      layers[static_cast<std::size_t>(layer)] = (layer + 1) % interval != 0;
    }
  }
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    if (!layers[layer] && config.Has(LayerPart::kMixer, static_cast<std::int64_t>(layer))) return Ok{};
  }
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

// What families call Mamba-2's fields, and what is their default; null: there is no such field.
struct MambaFields {
  const char *conv = "mamba_d_conv", *groups = "mamba_n_groups", *state = "mamba_d_state", *heads = "mamba_n_heads",
             *head = "mamba_d_head", *conv_bias = "mamba_conv_bias", *input_bias = "mamba_proj_bias",
             *output_bias = "mamba_proj_bias";
  std::int64_t default_groups = 1, default_state = 256, default_head = 0;  // 0: "auto"
};
constexpr MambaFields kOfNemotronH = {.conv = "conv_kernel",
                                      .groups = "n_groups",
                                      .state = "ssm_state_size",
                                      .heads = "mamba_num_heads",
                                      .head = "mamba_head_dim",
                                      .conv_bias = "use_conv_bias",
                                      .input_bias = "use_bias",
                                      .output_bias = "use_bias",
                                      .default_groups = 8,
                                      .default_state = 128,
                                      .default_head = 64};

// The size of a head: as the field says, or "auto", what makes `values` of all heads.
Status ParseMambaHeads(const JsonFields& fields, const MambaFields& names, std::int64_t values,
                       RecurrentConfig& recurrent) {
  const nlohmann::json* const dim = fields.Find(names.head);
  const bool automatic = dim == nullptr ? names.default_head == 0 : *dim == "auto";
  if (automatic) {
    recurrent.value_dim = values / recurrent.value_heads;
  } else {
    ASSIGN_OR_RETURN(recurrent.value_dim, fields.IntOr(names.head, 1, kMost, names.default_head));
  }
  const bool bounded = names.default_head != 0;  // nothing else says how many values there are
  const bool fits = bounded || recurrent.Values() == values;
  if (fits && recurrent.value_dim >= 1 && recurrent.value_dim <= kMost) return Ok{};
  return InvalidArgument(fields.label() + names.heads + " " + std::to_string(recurrent.value_heads) + " times " +
                         names.head + " " + std::to_string(recurrent.value_dim) + ": expected " +
                         (fields.Has("mamba_d_ssm") ? "mamba_d_ssm" : "mamba_expand * hidden_size") + " = " +
                         std::to_string(values) + " in heads of 1 to " + std::to_string(kMost));
}

// Where Falcon-H1's norm stands.
Status ParseNormOfFalcon(const JsonFields& fields, RecurrentConfig& recurrent) {
  ASSIGN_OR_RETURN(const bool normed, fields.BoolOr("mamba_rms_norm", false));
  ASSIGN_OR_RETURN(const bool before, fields.BoolOr("mamba_norm_before_gate", true));
  using Norm = RecurrentConfig::Norm;
  recurrent.norm = !normed ? Norm::kNone : before ? Norm::kBeforeGate : Norm::kAfterGate;
  return Ok{};
}

Status ParseMamba(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config) {
  const bool falcon = family.family == ModelFamily::kFalconH1, nemotron = family.family == ModelFamily::kNemotronH;
  MambaFields names = nemotron ? kOfNemotronH : MambaFields();
  if (falcon) names.output_bias = "projectors_bias";
  RecurrentConfig recurrent{.mamba = true, .beside_attention = falcon};
  RETURN_IF_ERROR(ParseRecurrentLayers(fields, family, config, recurrent.layers));
  if (std::ranges::find(recurrent.layers, true) == recurrent.layers.end()) return Ok{};  // the family has such models
  ASSIGN_OR_RETURN(recurrent.conv_width, fields.IntOr(names.conv, 2, 8, 4));
  ASSIGN_OR_RETURN(recurrent.key_heads, fields.IntOr(names.groups, 1, kMost, names.default_groups));
  ASSIGN_OR_RETURN(recurrent.key_dim, fields.IntOr(names.state, 1, kMost, names.default_state));
  ASSIGN_OR_RETURN(recurrent.value_heads, fields.IntOr(names.heads, 1, kMost, 128));
  ASSIGN_OR_RETURN(const std::int64_t expand, fields.IntOr("mamba_expand", 1, kMost, 2));
  std::int64_t values = expand * config.hidden_size;
  if (falcon && !fields.IsExplicitNull("mamba_d_ssm")) {
    ASSIGN_OR_RETURN(values, fields.IntOr("mamba_d_ssm", 1, kMost * kMost, 1024));
  }
  RETURN_IF_ERROR(ParseMambaHeads(fields, names, values, recurrent));
  RETURN_IF_ERROR(CheckDivides(fields, names.groups, names.heads, recurrent));
  ASSIGN_OR_RETURN(recurrent.conv_bias, fields.BoolOr(names.conv_bias, true));
  ASSIGN_OR_RETURN(recurrent.input_bias, fields.BoolOr(names.input_bias, false));
  ASSIGN_OR_RETURN(recurrent.output_bias, fields.BoolOr(names.output_bias, false));
  RETURN_IF_ERROR(ParseStepLimits(fields, recurrent));
  if (falcon) RETURN_IF_ERROR(ParseNormOfFalcon(fields, recurrent));
  config.recurrent = std::move(recurrent);
  return Ok{};
}

}  // namespace

Status ParseRecurrent(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config) {
  if (family.of_mamba) return ParseMamba(fields, family, config);
  if (!family.of_deltanet) return Ok{};
  RecurrentConfig recurrent;
  ASSIGN_OR_RETURN(recurrent.conv_width, fields.IntOr("linear_conv_kernel_dim", 2, 8, 4));
  ASSIGN_OR_RETURN(recurrent.key_heads, fields.IntOr("linear_num_key_heads", 1, kMost, 16));
  ASSIGN_OR_RETURN(recurrent.value_heads, fields.IntOr("linear_num_value_heads", 1, kMost, 32));
  ASSIGN_OR_RETURN(recurrent.key_dim, fields.IntOr("linear_key_head_dim", 1, kMost, 128));
  ASSIGN_OR_RETURN(recurrent.value_dim, fields.IntOr("linear_value_head_dim", 1, kMost, 128));
  RETURN_IF_ERROR(CheckDivides(fields, "linear_num_key_heads", "linear_num_value_heads", recurrent));
  RETURN_IF_ERROR(ParseRecurrentLayers(fields, family, config, recurrent.layers));
  config.recurrent = std::move(recurrent);
  config.output_gate = true;
  return Ok{};
}

}  // namespace loramux
