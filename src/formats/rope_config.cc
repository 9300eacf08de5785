#include "formats/rope_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"

namespace loramux {
namespace {

using Scaling = RopeConfig::Scaling;

constexpr std::int64_t kMostPositions = std::int64_t{1} << 24;
constexpr const char* kOfWindows = "sliding_attention";
constexpr const char* kOfOthers = "full_attention";

Status RequirePositive(const JsonFields& fields, const char* key, const std::optional<double>& number, double& out) {
  if (!number) return Ok{};
  if (*number <= 0) return fields.Bad(key, "a number above 0");
  out = *number;
  return Ok{};
}

Status ReadPositive(const JsonFields& fields, const char* key, double& out) {
  ASSIGN_OR_RETURN(const auto number, fields.Number(key));
  return RequirePositive(fields, key, number, out);
}

Status RequiredPositive(const JsonFields& fields, const char* key, double& out) {
  if (!fields.Has(key)) return fields.Missing(key, "a number above 0");
  return ReadPositive(fields, key, out);
}

// One set of parameters. `top`: the fields of the whole model.
class RopeParser {
 public:
  RopeParser(const JsonFields& top, const JsonFields& fields, const FamilyInfo& family, const ModelConfig& config,
             std::int64_t head_dim)
      : top_(top), fields_(fields), family_(family), config_(config), head_dim_(head_dim) {}

  Status Parse(RopeConfig& rope) {
    RETURN_IF_ERROR(ReadPositive(fields_, "rope_theta", rope.theta));
    ASSIGN_OR_RETURN(const auto new_name, fields_.String("rope_type"));
    ASSIGN_OR_RETURN(const auto old_name, fields_.String("type"));
    const std::string type = new_name ? *new_name : old_name.value_or("default");
    if (type == "proportional" && family_.of_gemma4) return ParseProportional(rope);
    RETURN_IF_ERROR(ParseShare(rope));
    RETURN_IF_ERROR(ParseTemperature(rope));
    // "mrope" turns text beside images (the text part of some models of Qwen's). Text alone turns as by "default".
    const bool may_be_mrope = family_.family == ModelFamily::kQwen2 || family_.family == ModelFamily::kQwen3 ||
                              family_.family == ModelFamily::kQwen35 || family_.family == ModelFamily::kQwen35Moe;
    if (type == "default" || (type == "mrope" && may_be_mrope)) return Ok{};
    if (type == "linear") return ParseLinear(rope);
    if (type == "dynamic") return ParseDynamic(rope);
    if (type == "llama3") return ParseLlama3(rope);
    if (type == "yarn") return ParseYarn(rope);
    if (type == "longrope" || type == "su") return ParseLongRope(rope);
    return Unsupported(fields_.label() + "rope_type " + Quote(type) +
                       " is not supported; loramux knows default, linear, dynamic, llama3, yarn and longrope");
  }

 private:
  // All of a head turns, most of it by nothing.
  Status ParseProportional(RopeConfig& rope) {
    rope.scaling = Scaling::kProportional;
    RETURN_IF_ERROR(ReadPositive(fields_, "factor", rope.factor));
    ASSIGN_OR_RETURN(const auto share, fields_.Number("partial_rotary_factor"));
    if (share && (*share < 0 || *share > 1)) return fields_.Bad("partial_rotary_factor", "a number from 0 to 1");
    rope.rotary_dim = head_dim_;
    rope.turning_pairs = static_cast<std::int64_t>(share.value_or(1.0) * static_cast<double>(head_dim_) / 2);
    return Ok{};
  }

  Status ParseShare(RopeConfig& rope) {
    for (const JsonFields* fields : {&top_, &fields_}) {
      ASSIGN_OR_RETURN(const auto factor, fields->Number("partial_rotary_factor"));
      if (!factor) continue;
      if (*factor <= 0 || *factor > 1) {
        return fields->Bad("partial_rotary_factor", "a number above 0 and at most 1");
      }
      if (*factor != 1 && !family_.partial_rotary) {
        return Unsupported(fields->label() + "partial_rotary_factor " +
                           Describe(*fields->Find("partial_rotary_factor")) + " is not supported for " + family_.name +
                           ", only 1");
      }
      rope.rotary_dim = static_cast<std::int64_t>(static_cast<double>(head_dim_) * *factor);
    }
    if (rope.rotary_dim >= 2 && rope.rotary_dim % 2 == 0) return Ok{};
    return Unsupported(fields_.label() +
                       "partial_rotary_factor: expected an even number of elements of a head to turn, " + "found " +
                       std::to_string(rope.rotary_dim));
  }

  Status ParseTemperature(RopeConfig& rope) {
    ASSIGN_OR_RETURN(const auto beta, fields_.Number("llama_4_scaling_beta"));
    if (!beta && family_.family != ModelFamily::kMinistral3) return Ok{};
    if (family_.family != ModelFamily::kMinistral3) {
      return Unsupported(fields_.label() + "llama_4_scaling_beta is not supported for " + family_.name);
    }
    rope.query_beta = beta.value_or(0.0);
    return ParseOriginal(rope);
  }

  Status ParseLinear(RopeConfig& rope) {
    rope.scaling = Scaling::kLinear;
    return RequiredPositive(fields_, "factor", rope.factor);
  }

  Status ParseDynamic(RopeConfig& rope) {
    if (rope.rotary_dim == 2) return Unsupported(fields_.label() + "rope_type 'dynamic' needs a head_dim above 2");
    if (rope.rotary_dim != config_.head_dim) {
      return Unsupported(fields_.label() + "rope_type 'dynamic' with a partial_rotary_factor is not supported");
    }
    rope.scaling = Scaling::kDynamic;
    // transformers scales from max_position_embeddings and uses no other original length for this type.
    rope.original_max_position = config_.max_position;
    return RequiredPositive(fields_, "factor", rope.factor);
  }

  // As in transformers: the top-level field wins; without any, the trained length is used.
  Status ParseOriginal(RopeConfig& rope) {
    const bool at_top = top_.Has("original_max_position_embeddings");
    ASSIGN_OR_RETURN(
        rope.original_max_position,
        (at_top ? top_ : fields_).IntOr("original_max_position_embeddings", 1, kMostPositions, config_.max_position));
    return Ok{};
  }

  Status ParseLlama3(RopeConfig& rope) {
    rope.scaling = Scaling::kLlama3;
    RETURN_IF_ERROR(RequiredPositive(fields_, "low_freq_factor", rope.low_freq_factor));
    RETURN_IF_ERROR(RequiredPositive(fields_, "high_freq_factor", rope.high_freq_factor));
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      return fields_.Bad("high_freq_factor", "a number above low_freq_factor");
    }
    RETURN_IF_ERROR(ParseOriginal(rope));
    return RequiredPositive(fields_, "factor", rope.factor);
  }

  // transformers takes the quotient of the lengths where there is no factor, and for longrope always.
  Status ParseFactor(RopeConfig& rope) {
    rope.factor = static_cast<double>(config_.max_position) / static_cast<double>(rope.original_max_position);
    return ReadPositive(fields_, "factor", rope.factor);
  }

  // Source: YaRN (arXiv 2309.00071), as in transformers' modeling_rope_utils.py.
  Status ParseYarn(RopeConfig& rope) {
    rope.scaling = Scaling::kYarn;
    RETURN_IF_ERROR(ParseOriginal(rope));
    RETURN_IF_ERROR(ParseFactor(rope));
    RETURN_IF_ERROR(ReadPositive(fields_, "beta_fast", rope.beta_fast));
    RETURN_IF_ERROR(ReadPositive(fields_, "beta_slow", rope.beta_slow));
    if (rope.beta_fast < rope.beta_slow) return fields_.Bad("beta_fast", "a number of at least beta_slow");
    ASSIGN_OR_RETURN(rope.truncate, fields_.BoolOr("truncate", true));
    ASSIGN_OR_RETURN(const auto attention_factor, fields_.Number("attention_factor"));
    ASSIGN_OR_RETURN(const auto mscale, fields_.Number("mscale"));
    ASSIGN_OR_RETURN(const auto all_dim, fields_.Number("mscale_all_dim"));
    const auto scale = [&](double by) { return rope.factor <= 1 ? 1.0 : 0.1 * by * std::log(rope.factor) + 1.0; };
    if (attention_factor) {
      rope.attention_factor = *attention_factor;
    } else if (mscale.value_or(0) != 0 && all_dim.value_or(0) != 0) {
      rope.attention_factor = scale(*mscale) / scale(*all_dim);
    } else {
      rope.attention_factor = scale(1);
    }
    return Ok{};
  }

  Result<std::vector<double>> Factors(const char* key, std::int64_t count) const {
    const nlohmann::json* list = fields_.Find(key);
    const std::string expected = "a list of " + std::to_string(count) + " numbers above 0";
    if (list == nullptr) return fields_.Missing(key, expected);
    if (!list->is_array() || static_cast<std::int64_t>(list->size()) != count) return fields_.Bad(key, expected);
    std::vector<double> factors;
    for (const nlohmann::json& item : *list) {
      const auto number = FiniteNumber(item);
      if (!number || *number <= 0) return fields_.Bad(key, expected);
      factors.push_back(*number);
    }
    return factors;
  }

  // Source: LongRoPE (arXiv 2402.13753), as in transformers' modeling_rope_utils.py.
  Status ParseLongRope(RopeConfig& rope) {
    rope.scaling = Scaling::kLongRope;
    ASSIGN_OR_RETURN(rope.short_factors, Factors("short_factor", rope.rotary_dim / 2));
    ASSIGN_OR_RETURN(rope.long_factors, Factors("long_factor", rope.rotary_dim / 2));
    const bool has_original =
        top_.Has("original_max_position_embeddings") || fields_.Has("original_max_position_embeddings");
    RETURN_IF_ERROR(ParseOriginal(rope));
    if (has_original) {
      rope.factor = static_cast<double>(config_.max_position) / static_cast<double>(rope.original_max_position);
    } else {
      RETURN_IF_ERROR(RequiredPositive(fields_, "factor", rope.factor));
    }
    ASSIGN_OR_RETURN(const auto attention_factor, fields_.Number("attention_factor"));
    if (attention_factor) {
      rope.attention_factor = *attention_factor;
    } else if (rope.factor > 1 && rope.original_max_position > 1) {
      rope.attention_factor =
          std::sqrt(1 + std::log(rope.factor) / std::log(static_cast<double>(rope.original_max_position)));
    }
    return Ok{};
  }

  const JsonFields& top_;
  const JsonFields& fields_;
  const FamilyInfo& family_;
  const ModelConfig& config_;
  const std::int64_t head_dim_;
};

// Whether the parameters differ between kinds of layers.
bool IsByLayerType(const nlohmann::json& parameters) {
  return std::ranges::any_of(parameters.items(), [](const auto& item) { return item.value().is_object(); });
}

Status ParseByLayerType(const JsonFields& top, const FamilyInfo& family, const nlohmann::json& parameters,
                        const std::string& label, ModelConfig& config) {
  for (const auto& [name, member] : parameters.items()) {
    if (member.is_null() || ((name == kOfWindows || name == kOfOthers) && member.is_object())) continue;
    return Unsupported(label + Printable(name) + ": expected parameters of " + kOfOthers + " and " + kOfWindows +
                       ", found " + Describe(member));
  }
  for (const auto& [name, rope] : {std::pair{kOfOthers, &config.rope}, std::pair{kOfWindows, &*config.local_rope}}) {
    const std::int64_t head_dim = config.HeadsOfKind(rope != &config.rope).head_dim;
    if (family.of_gemma4) rope->rotary_dim = head_dim;
    const auto found = parameters.find(name);
    if (found == parameters.end() || found->is_null()) {
      if (family.of_gemma4 && rope == &config.rope) return InvalidArgument(label + name + " is missing");
      continue;
    }
    const JsonFields fields(*found, label + name + ".");
    RETURN_IF_ERROR(RopeParser(top, fields, family, config, head_dim).Parse(*rope));
  }
  return Ok{};
}

// no_rope_layers as saved by transformers: 1 where a layer turns; else each no_rope_layer_interval-th does not.
Status ApplyList(const JsonFields& fields, ModelConfig& config) {
  ASSIGN_OR_RETURN(const std::int64_t interval, fields.IntOr("no_rope_layer_interval", 1, 1 << 20, 4));
  const nlohmann::json* list = fields.Find("no_rope_layers");
  if (list != nullptr && list->is_array() && list->empty()) list = nullptr;  // as in transformers
  const auto layers = static_cast<std::size_t>(config.num_layers);
  if (list != nullptr && (!list->is_array() || list->size() != layers)) {
    return fields.Bad("no_rope_layers", "a list of num_hidden_layers = " + std::to_string(layers) + " numbers, 0 or 1");
  }
  for (std::size_t layer = 0; layer < layers; ++layer) {
    bool turns = (layer + 1) % static_cast<std::size_t>(interval) != 0;
    if (list != nullptr) {
      const auto flag = IntegerIn((*list)[layer], 0, 1);
      if (!flag) return fields.Bad("no_rope_layers", "numbers 0 or 1");
      turns = *flag == 1;
    }
    if (!turns) config.layer_rope[layer] = LayerRope::kNone;
  }
  return Ok{};
}

// position_embedding_type; "nope" is what published models without an embedding say.
Status ApplyName(const JsonFields& fields, ModelConfig& config) {
  ASSIGN_OR_RETURN(const auto name, fields.String("position_embedding_type"));
  if (name && *name != "rope" && *name != "nope") {
    return Unsupported(fields.label() + "position_embedding_type " + Quote(*name) +
                       " is not supported, only rope, nope and null");
  }
  if (name != "rope") config.layer_rope.assign(config.layer_rope.size(), LayerRope::kNone);
  return Ok{};
}

// Which layers have which embedding.
Status Distribute(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config) {
  const auto has_window = [](std::int64_t window) { return window != 0; };
  const bool any_window = std::ranges::any_of(config.sliding_window, has_window);
  config.layer_rope.assign(static_cast<std::size_t>(config.num_layers), LayerRope::kMain);
  for (std::size_t layer = 0; layer < config.layer_rope.size(); ++layer) {
    const bool slides = has_window(config.sliding_window[layer]);
    if (slides && config.local_rope) config.layer_rope[layer] = LayerRope::kLocal;
    if (family.ropes == RopeRule::kSlidingOnly && any_window && !slides) config.layer_rope[layer] = LayerRope::kNone;
  }
  if (family.learned_positions || config.alibi != Alibi::kNone || family.ropes == RopeRule::kNever)
    config.layer_rope.assign(config.layer_rope.size(), LayerRope::kNone);
  if (family.ropes == RopeRule::kNamed) RETURN_IF_ERROR(ApplyName(fields, config));
  return family.ropes == RopeRule::kListed ? ApplyList(fields, config) : Ok{};
}

// Reads the fields of GPT-NeoX that transformers 4 saved.
Status ReadOldNeoX(const JsonFields& top, ModelConfig& config) {
  RETURN_IF_ERROR(ReadPositive(top, "rotary_emb_base", config.rope.theta));
  ASSIGN_OR_RETURN(const auto share, top.Number("rotary_pct"));
  if (!share) return Ok{};
  if (*share <= 0 || *share > 1) return top.Bad("rotary_pct", "a number above 0 and at most 1");
  config.rope.rotary_dim = static_cast<std::int64_t>(static_cast<double>(config.head_dim) * *share);
  return Ok{};
}

}  // namespace

Status ParseRopes(const JsonFields& top, const FamilyInfo& family, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  rope.theta = family.theta;
  rope.adjacent_pairs = family.adjacent_pairs;
  rope.rotary_dim = static_cast<std::int64_t>(static_cast<double>(config.head_dim) * family.partial_rotary_factor);
  RETURN_IF_ERROR(ReadPositive(top, "rope_theta", rope.theta));
  if (family.family == ModelFamily::kGptNeoX) RETURN_IF_ERROR(ReadOldNeoX(top, config));
  const bool may_differ = family.windows != WindowRule::kNever;
  const nlohmann::json* old_scaling = top.Find("rope_scaling");
  const char* key = old_scaling != nullptr && !IsOff(*old_scaling) ? "rope_scaling" : "rope_parameters";
  const nlohmann::json* value = top.Find(key);
  if (value != nullptr && !value->is_object()) return top.Bad(key, "an object or null");
  const nlohmann::json of_gemma4 = {
      {kOfOthers, {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1000000.0}}}};
  if (value == nullptr && family.of_gemma4) value = &of_gemma4;
  const std::string label = top.label() + key + ".";
  const bool by_type = value != nullptr && may_differ && IsByLayerType(*value);
  if (by_type || family.local_theta > 0) {
    // The embedding of layers with a window is never scaled, unless the parameters say so.
    config.local_rope = rope;
    // OLMo 3's older files have one theta for all layers.
    if (family.local_theta > 0 && family.local_theta != family.theta) config.local_rope->theta = family.local_theta;
    RETURN_IF_ERROR(ReadPositive(top, "rope_local_base_freq", config.local_rope->theta));
  }
  if (by_type) {
    RETURN_IF_ERROR(ParseByLayerType(top, family, *value, label, config));
  } else {
    const nlohmann::json none = nlohmann::json::object();
    const JsonFields fields(value == nullptr ? none : *value, label);
    if (family.of_gemma4) return InvalidArgument(label + kOfOthers + " is missing");
    if (value != nullptr && IsByLayerType(*value)) {
      return Unsupported(label.substr(0, label.size() - 1) +
                         ": rotary embeddings that differ between layers are not supported for " + family.name);
    }
    RETURN_IF_ERROR(RopeParser(top, fields, family, config, config.head_dim).Parse(rope));
  }
  const auto depends = [](const RopeConfig& of) {
    return of.scaling == Scaling::kDynamic || of.scaling == Scaling::kLongRope;
  };
  if (config.local_rope && depends(*config.local_rope)) {
    return Unsupported(label + kOfWindows +
                       ".rope_type: a scaling by the length of the text is not supported for "
                       "layers with a window");
  }
  return Distribute(top, family, config);
}

}  // namespace loramux
