#include "formats/experts_config.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/message.h"

namespace loramux {
namespace {

constexpr std::int64_t kMostOfField = std::int64_t{1} << 24;
constexpr std::int64_t kMaxExperts = 1024;

constexpr const char* kCounts[] = {"num_experts", "num_local_experts", "n_routed_experts"};

Status RefuseOfOthers(const JsonFields& fields, const FamilyInfo& family) {
  for (const char* key : kCounts) {
    const nlohmann::json* experts = fields.Find(key);
    if (experts == nullptr || *experts == 0) continue;
    return Unsupported(fields.label() + key + " is " + Describe(*experts) + ": mixtures of experts are not supported " +
                       "for " + family.name);
  }
  return Ok{};
}

Result<std::int64_t> ParseCount(const JsonFields& fields, const ExpertRule& rule) {
  const std::int64_t least = rule.may_be_none ? 0 : 1;
  if (rule.other_count == nullptr) return fields.RequiredInt(rule.count, least, kMaxExperts);
  ASSIGN_OR_RETURN(const auto count, fields.Int(rule.count, least, kMaxExperts));
  ASSIGN_OR_RETURN(const auto other, fields.Int(rule.other_count, least, kMaxExperts));
  if (count && other && *count != *other) {
    return InvalidArgument(fields.label() + rule.count + " " + std::to_string(*count) + " contradicts " +
                           rule.other_count + " " + std::to_string(*other));
  }
  return count ? *count : other.value_or(rule.default_count);
}

// Which layers have experts: each decoder_sparse_step-th, but those that mlp_only_layers lists.
Status ParseLayers(const JsonFields& fields, const ExpertRule& rule, const ModelConfig& config,
                   ExpertsConfig& experts) {
  experts.layers.assign(static_cast<std::size_t>(config.num_layers), true);
  const nlohmann::json* const types = rule.listed ? fields.Find("layer_types") : nullptr;
  if (types != nullptr && types->is_array() && types->size() == experts.layers.size()) {  // ParseRecurrent checks them
    for (std::size_t layer = 0; layer < types->size(); ++layer) experts.layers[layer] = (*types)[layer] == "moe";
  }
  if (!rule.sparse_step) return Ok{};
  ASSIGN_OR_RETURN(const std::int64_t step, fields.IntOr("decoder_sparse_step", 1, kMostOfField, 1));
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    experts.layers[static_cast<std::size_t>(layer)] = (layer + 1) % step == 0;
  }
  const nlohmann::json* const own = fields.Find("mlp_only_layers");
  if (own == nullptr) return Ok{};
  const std::string expected = "a list of layers below num_hidden_layers = " + std::to_string(config.num_layers);
  if (!own->is_array()) return fields.Bad("mlp_only_layers", expected);
  for (const nlohmann::json& item : *own) {
    const auto layer = IntegerIn(item, 0, config.num_layers - 1);
    if (!layer) return fields.Bad("mlp_only_layers", expected);
    experts.layers[static_cast<std::size_t>(*layer)] = false;
  }
  return Ok{};
}

// The size of blocks that are no experts.
Status ParseOwnSize(const JsonFields& fields, const ExpertRule& rule, ModelConfig& config) {
  ExpertsConfig& experts = *config.experts;
  if (experts.beside_block) return Ok{};
  const bool some_without = std::ranges::find(experts.layers, false) != experts.layers.end();
  if (rule.default_shared == 0) {
    if (!some_without) config.intermediate_size = experts.intermediate_size;
    return Ok{};
  }
  ASSIGN_OR_RETURN(experts.shared_size, fields.IntOr(rule.shared, 1, kMostOfField, rule.default_shared));
  experts.shared_gate = rule.shared_gate;
  if (!some_without) config.intermediate_size = experts.shared_size;
  return Ok{};
}

// What DeepSeek-V3's routers do besides.
Status ParseRouter(const JsonFields& fields, ExpertsConfig& experts) {
  RouteForm& route = experts.route;
  route.score = RouteForm::Score::kSigmoid;
  experts.route_bias = true;
  ASSIGN_OR_RETURN(const auto scale, fields.Number("routed_scaling_factor"));
  if (scale && *scale <= 0) return fields.Bad("routed_scaling_factor", "a number above 0");
  route.scale = static_cast<float>(scale.value_or(1.0));
  ASSIGN_OR_RETURN(const std::int64_t groups, fields.IntOr("n_group", 1, route.experts, 1));
  ASSIGN_OR_RETURN(const std::int64_t chosen, fields.IntOr("topk_group", 1, groups, 1));
  route.groups = static_cast<std::int32_t>(groups);
  route.chosen_groups = static_cast<std::int32_t>(chosen);
  const std::int64_t of_group = route.experts / groups;
  if (route.experts % groups == 0 && (groups == 1 || of_group >= 2) && route.per_token <= chosen * of_group)
    return Ok{};
  return InvalidArgument(fields.label() + "n_group " + std::to_string(groups) + " with topk_group " +
                         std::to_string(chosen) + ": expected groups of equally many experts, of which the chosen " +
                         "have num_experts_per_tok = " + std::to_string(route.per_token) + ", found " +
                         std::to_string(route.experts) + " experts");
}

}  // namespace

Status ParseExperts(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config) {
  const ExpertRule& rule = family.experts;
  if (rule.count == nullptr) return RefuseOfOthers(fields, family);
  if (rule.enabled != nullptr) {
    ASSIGN_OR_RETURN(const bool enabled, fields.BoolOr(rule.enabled, false));
    if (!enabled) return Ok{};  // whatever the other fields say
  }
  ExpertsConfig experts;
  ASSIGN_OR_RETURN(const std::int64_t count, ParseCount(fields, rule));
  if (count == 0) {
    ASSIGN_OR_RETURN(config.intermediate_size, fields.IntOr(rule.shared, 1, kMostOfField, rule.default_shared));
    return Ok{};
  }
  experts.route.experts = static_cast<std::int32_t>(count);
  const std::int64_t usual = rule.default_per_token;
  ASSIGN_OR_RETURN(const std::int64_t chosen, usual == 0 ? fields.RequiredInt(rule.per_token, 1, count)
                                                         : fields.IntOr(rule.per_token, 1, count, usual));
  if (chosen > count) {
    return InvalidArgument(fields.label() + rule.per_token + ": expected at most " + rule.count + " " +
                           std::to_string(count) + ", found none and the default is " + std::to_string(chosen));
  }
  experts.route.per_token = static_cast<std::int32_t>(chosen);
  ASSIGN_OR_RETURN(const bool asked, fields.BoolOr("norm_topk_prob", rule.renormalises));
  experts.route.renormalise = rule.always_renormalises || asked;
  experts.router_bias = experts.biases = rule.biases;
  experts.beside_block = rule.beside_block;
  const std::int64_t fallback = rule.default_intermediate;
  ASSIGN_OR_RETURN(experts.intermediate_size, fallback == 0
                                                  ? fields.RequiredInt(rule.intermediate, 1, kMostOfField)
                                                  : fields.IntOr(rule.intermediate, 1, kMostOfField, fallback));
  RETURN_IF_ERROR(ParseLayers(fields, rule, config, experts));
  const bool any = std::ranges::find(experts.layers, true) != experts.layers.end();
  if (!any) return Ok{};  // a dense model
  if (rule.sigmoid) RETURN_IF_ERROR(ParseRouter(fields, experts));
  config.experts = std::move(experts);
  return ParseOwnSize(fields, rule, config);
}

}  // namespace loramux
