#include "formats/adapter_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>

#include "base/message.h"
#include "formats/adapter_form.h"
#include "formats/adapter_patterns.h"
#include "formats/json_fields.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxNames = 8192;  // a model has at most 1,024 layers of seven modules
constexpr std::int64_t kMaxLayerIndex = std::int64_t{1} << 20;

// Options that change the computation of an adapter and that loramux does not serve. Each is refused unless it is off.
struct RefusedOption {
  const char* key;
  const char* why;
};
constexpr std::array<RefusedOption, 7> kRefusedOptions = {{
    {"layer_replication", "a model with repeated layers"},
    {"use_qalora", "QALoRA, which pools the input"},
    {"use_bdlora", "block-diagonal LoRA"},
    {"arrow_config", "Arrow, which routes between adapters"},
    {"kasa_config", "KaSA, which changes the base model's weights"},
    {"monteclora_config", "MonteCLoRA, which samples its weights"},
    {"fan_in_fan_out", "transposed weights"},
}};

// Values of init_lora_weights with which PEFT loads a plain LoRA for the unchanged base. The others (pissa, olora,
// corda, loftq) subtract the initial LoRA product from the base's weights. Such an adapter fits the changed base only,
// unless it was converted when saved; in that case PEFT writes `true`.
constexpr std::array<const char*, 5> kHarmlessInitializations = {"gaussian", "eva", "orthogonal", "mica", "lora_ga"};

Status RefuseUnsupportedAdapter(const JsonFields& fields) {
  ASSIGN_OR_RETURN(const auto peft_type, fields.String("peft_type"));
  if (!peft_type) return fields.Missing("peft_type", "\"LORA\"");
  if (*peft_type != "LORA") {
    return Unsupported(fields.label() + "peft_type " + Quote(*peft_type) +
                       " is not supported, only LORA; PEFT's convert_to_lora makes a LoRA of many other types");
  }
  for (const RefusedOption& option : kRefusedOptions) {
    const nlohmann::json* value = fields.Find(option.key);
    if (value == nullptr || IsOff(*value)) continue;
    return Unsupported(fields.label() + option.key + " is " + Describe(*value) + ": not supported (" + option.why +
                       ")");
  }
  return Ok{};
}

Status RefuseChangedBase(const JsonFields& fields) {
  const nlohmann::json* value = fields.Find("init_lora_weights");
  if (value == nullptr || value->is_boolean()) return Ok{};
  for (const char* harmless : kHarmlessInitializations) {
    if (*value == harmless) return Ok{};
  }
  return Unsupported(fields.label() + "init_lora_weights is " + Describe(*value) +
                     ": this initialization changes the base model's weights, and the adapter fits only the changed "
                     "base; save it with PEFT's path_initial_model_for_weight_conversion, which makes it a plain LoRA");
}

}  // namespace

Status ParseNames(const JsonFields& fields, const char* key, std::vector<std::string>& list,
                  std::optional<std::string>& text) {
  const nlohmann::json* value = fields.Find(key);
  if (value == nullptr) return Ok{};
  if (value->is_string()) {
    text = value->get<std::string>();
    return Ok{};
  }
  if (!value->is_array()) return fields.Bad(key, "a string or a list of strings");
  if (value->size() > kMaxNames) {
    return fields.Bad(key, "at most " + WithSeparators(kMaxNames) + " names");
  }
  for (const nlohmann::json& item : *value) {
    if (!item.is_string()) {
      return InvalidArgument(fields.label() + key + ": expected strings in the list, found " + Describe(item));
    }
    list.push_back(item.get<std::string>());
  }
  return Ok{};
}

namespace {

std::string LowerCase(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

// Whether a version of PEFT such as "0.18.1" or "0.21.3.dev0" comes before 0.19.
bool IsBefore0_19(std::string_view version) {
  constexpr std::string_view kMajor = "0.";
  if (!version.starts_with(kMajor)) return false;
  int minor = 0;
  const char* const begin = version.data() + kMajor.size();
  return std::from_chars(begin, version.data() + version.size(), minor).ec == std::errc() && minor < 19;
}

Status ParseTargets(const JsonFields& fields, AdapterConfig& config) {
  RETURN_IF_ERROR(ParseNames(fields, "target_modules", config.target_modules, config.target_modules_regex));
  if (config.target_modules_regex && LowerCase(*config.target_modules_regex) == "all-linear") {
    config.all_linear = true;
    config.target_modules_regex.reset();
  }
  const nlohmann::json* const modules = fields.Find("target_modules");
  config.no_modules = modules != nullptr && modules->is_array() && modules->empty();
  RETURN_IF_ERROR(ParseNames(fields, "exclude_modules", config.exclude_modules, config.exclude_modules_regex));
  if (config.exclude_modules_regex && config.exclude_modules_regex->empty()) config.exclude_modules_regex.reset();
  std::optional<std::string> one_pattern;
  RETURN_IF_ERROR(ParseNames(fields, "target_parameters", config.target_parameters, one_pattern));
  if (one_pattern) return fields.Bad("target_parameters", "a list of names");
  // Versions before 0.18 do not say theirs.
  ASSIGN_OR_RETURN(const auto version, fields.String("peft_version"));
  config.before_peft_0_19 = !version || IsBefore0_19(*version);
  RETURN_IF_ERROR(ParseNames(fields, "layers_pattern", config.layers_pattern, one_pattern));
  if (one_pattern && !one_pattern->empty()) config.layers_pattern = {*one_pattern};
  const nlohmann::json* layers = fields.Find("layers_to_transform");
  if (layers == nullptr) return Ok{};
  for (const nlohmann::json& item : layers->is_array() ? *layers : nlohmann::json::array({*layers})) {
    const auto layer = IntegerIn(item, 0, kMaxLayerIndex);
    if (!layer) return fields.Bad("layers_to_transform", "a layer number or a list of them");
    config.layers_to_transform.push_back(*layer);
  }
  std::vector<std::int64_t>& sorted = config.layers_to_transform;
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  return Ok{};
}

// Passes the members of rank_pattern or alpha_pattern in file order to `take`, as (key, value) pairs.
template <typename Take>
Status ForEachPattern(const JsonFields& fields, const char* key, const MemberKeyOrder& order, const Take& take) {
  const nlohmann::json* value = fields.Find(key);
  if (value == nullptr) return Ok{};
  if (!value->is_object()) return fields.Bad(key, "an object of patterns");
  const auto keys = order.find(key);
  if (keys == order.end()) return Ok{};  // an empty object
  for (const std::string& pattern : keys->second) RETURN_IF_ERROR(take(pattern, value->at(pattern)));
  return Ok{};
}

Status ParsePatterns(const JsonFields& fields, const MemberKeyOrder& order, AdapterConfig& config) {
  RETURN_IF_ERROR(ForEachPattern(fields, "rank_pattern", order, [&](const auto& key, const auto& value) -> Status {
    const auto rank = IntegerIn(value, 1, kMaxLoraRank);
    if (!rank) {
      return InvalidArgument(fields.label() + "rank_pattern[" + Quote(key) + "]: expected a rank from 1 to " +
                             std::to_string(kMaxLoraRank) + ", found " + Describe(value));
    }
    config.rank_pattern.emplace_back(key, *rank);
    return Ok{};
  }));
  return ForEachPattern(fields, "alpha_pattern", order, [&](const auto& key, const auto& value) -> Status {
    const auto alpha = FiniteNumber(value);
    if (!alpha) {
      return InvalidArgument(fields.label() + "alpha_pattern[" + Quote(key) + "]: expected a finite number, found " +
                             Describe(value));
    }
    config.alpha_pattern.emplace_back(key, *alpha);
    return Ok{};
  });
}

// Reads the tokens that trainable_token_indices gives `module`.
Status ParseTrainedTokens(const JsonFields& fields, const std::string& module, const nlohmann::json& value,
                          AdapterConfig& config) {
  const auto bad = [&] {
    return InvalidArgument(fields.label() + "trainable_token_indices: expected a list of distinct token ids for " +
                           Quote(module) + ", found " + Describe(value));
  };
  if (!value.is_array()) return bad();
  std::vector<TokenId> tokens;
  std::set<TokenId> seen;
  for (const nlohmann::json& item : value) {
    const auto id = IntegerIn(item, 0, std::numeric_limits<TokenId>::max());
    if (!id || !seen.insert(static_cast<TokenId>(*id)).second) {
      return InvalidArgument(fields.label() + "trainable_token_indices: expected distinct token ids for " +
                             Quote(module) + ", found " + Describe(item) + (id ? " twice" : ""));
    }
    tokens.push_back(static_cast<TokenId>(*id));
  }
  config.trainable_tokens.emplace_back(module, std::move(tokens));
  return Ok{};
}

// Reads what says of which modules the adapter has its own weights.
Status ParseOwn(const JsonFields& fields, AdapterConfig& config) {
  std::optional<std::string> text;
  RETURN_IF_ERROR(ParseNames(fields, "modules_to_save", config.modules_to_save, text));
  if (text) return fields.Bad("modules_to_save", "a list of names, or null");
  ASSIGN_OR_RETURN(config.ensure_weight_tying, fields.BoolOr("ensure_weight_tying", false));
  const nlohmann::json* tokens = fields.Find("trainable_token_indices");
  if (tokens == nullptr || IsOff(*tokens)) return Ok{};
  if (!tokens->is_object()) return ParseTrainedTokens(fields, OwnKindName(OwnKind::kEmbedding), *tokens, config);
  for (const auto& [module, value] : tokens->items()) {
    RETURN_IF_ERROR(ParseTrainedTokens(fields, module, value, config));
  }
  return Ok{};
}

Status ParseInvocation(const JsonFields& fields, AdapterConfig& config) {
  const nlohmann::json* value = fields.Find("alora_invocation_tokens");
  if (value == nullptr || IsOff(*value)) return Ok{};
  const auto bad = [&] {
    return fields.Bad("alora_invocation_tokens",
                      "1 to " + std::to_string(kMaxInvocationTokens) + " token ids in a list, or null");
  };
  if (!value->is_array() || value->size() > kMaxInvocationTokens) return bad();
  for (const nlohmann::json& item : *value) {
    const auto id = IntegerIn(item, 0, std::numeric_limits<TokenId>::max());
    if (!id) return bad();
    config.invocation_tokens.push_back(static_cast<TokenId>(*id));
  }
  if (config.use_dora) {
    return Unsupported(fields.label() +
                       "found alora_invocation_tokens beside use_dora, which PEFT does not define together");
  }
  if (!config.modules_to_save.empty() || !config.trainable_tokens.empty()) {
    return Unsupported(fields.label() + "found alora_invocation_tokens beside " +
                       (config.modules_to_save.empty() ? "trainable_token_indices" : "modules_to_save") +
                       ": PEFT applies those before the invocation too, so that the adapter could share no context; "
                       "train it without");
  }
  return Ok{};
}

Status ParseRankAndAlpha(const JsonFields& fields, AdapterConfig& config) {
  const nlohmann::json* r = fields.Find("r");
  const auto rank = r == nullptr ? std::nullopt : IntegerIn(*r, 1, kMaxLoraRank);
  if (!rank) return fields.Bad("r", "a rank from 1 to " + std::to_string(kMaxLoraRank));
  config.r = *rank;
  ASSIGN_OR_RETURN(const auto alpha, fields.Number("lora_alpha"));
  if (!alpha) return fields.Bad("lora_alpha", "a finite number");
  config.lora_alpha = *alpha;
  ASSIGN_OR_RETURN(config.use_rslora, fields.BoolOr("use_rslora", false));
  ASSIGN_OR_RETURN(config.use_dora, fields.BoolOr("use_dora", false));
  ASSIGN_OR_RETURN(config.lora_bias, fields.BoolOr("lora_bias", false));
  if (config.use_dora && config.lora_bias) {
    return Unsupported(fields.label() + "found lora_bias beside use_dora, which PEFT does not define together");
  }
  return Ok{};
}

// PEFT's rule for lists of modules: an entry is the whole name, or its end after a dot.
bool InList(const std::vector<std::string>& list, std::string_view module) {
  return std::any_of(list.begin(), list.end(), [&](const std::string& name) {
    if (module == name) return true;
    return module.size() > name.size() && module.ends_with(name) && module[module.size() - name.size() - 1] == '.';
  });
}

}  // namespace

Status AdapterConfig::CompilePatterns(const std::string& label) {
  ASSIGN_OR_RETURN(patterns, AdapterPatterns::Compile(*this, label));
  return Ok{};
}

std::int64_t AdapterConfig::RankOf(std::string_view module) const {
  if (rank_pattern.empty()) return r;
  CHECK(patterns != nullptr);
  const int key = patterns->FirstRankKey(module);
  return key < 0 ? r : rank_pattern.at(static_cast<std::size_t>(key)).second;
}

double AdapterConfig::ScaleOf(std::string_view module) const {
  const auto rank = static_cast<double>(RankOf(module));
  double alpha = lora_alpha;
  if (!alpha_pattern.empty()) {
    CHECK(patterns != nullptr);
    const int key = patterns->FirstAlphaKey(module);
    if (key >= 0) alpha = alpha_pattern.at(static_cast<std::size_t>(key)).second;
  }
  return factor.value_or(alpha / (use_rslora ? std::sqrt(rank) : rank));
}

bool AdapterConfig::TargetsParameter(std::string_view parameter) const { return InList(target_parameters, parameter); }

bool AdapterConfig::Targets(std::string_view module) const {
  const bool needs_patterns = target_modules_regex || exclude_modules_regex || !layers_to_transform.empty();
  CHECK(!needs_patterns || patterns != nullptr);
  if (InList(exclude_modules, module) || (exclude_modules_regex && patterns->MatchesExcluded(module))) return false;
  if (target_modules_regex) return patterns->MatchesTargets(module);
  // PEFT excludes the output layer, and an embedding is no linear layer.
  if (all_linear) return !InList({"lm_head", "embed_tokens"}, module);
  if (no_modules) return false;
  if (target_modules.empty()) return true;
  if (!InList(target_modules, module)) return false;
  // A name given in full is targeted in every layer, as in PEFT.
  const bool in_full = std::find(target_modules.begin(), target_modules.end(), module) != target_modules.end();
  if (in_full || layers_to_transform.empty()) return true;
  const std::int64_t layer = patterns->LayerOf(module);
  return std::binary_search(layers_to_transform.begin(), layers_to_transform.end(), layer);
}

const std::string* AdapterConfig::SavedAs(std::string_view module) const {
  const auto named = std::ranges::find_if(modules_to_save, [&](const auto& name) { return module.ends_with(name); });
  return named == modules_to_save.end() ? nullptr : &*named;
}

const std::vector<TokenId>* AdapterConfig::TrainedTokens(std::string_view module) const {
  const auto named =
      std::ranges::find_if(trainable_tokens, [&](const auto& entry) { return module.ends_with(entry.first); });
  return named == trainable_tokens.end() ? nullptr : &named->second;
}

Result<AdapterConfig> ParseAdapterConfig(std::string_view json, const std::string& label) {
  MemberKeyOrder order;
  ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(json, label, &order));
  const JsonFields fields(object, label + ": ");
  if (IsMlxConfig(fields)) return ParseMlxConfig(fields, label);
  RETURN_IF_ERROR(RefuseUnsupportedAdapter(fields));
  RETURN_IF_ERROR(RefuseChangedBase(fields));
  AdapterConfig config;
  RETURN_IF_ERROR(ParseRankAndAlpha(fields, config));
  RETURN_IF_ERROR(ParsePatterns(fields, order, config));
  RETURN_IF_ERROR(ParseTargets(fields, config));
  RETURN_IF_ERROR(ParseOwn(fields, config));
  RETURN_IF_ERROR(ParseInvocation(fields, config));
  ASSIGN_OR_RETURN(auto base, fields.String("base_model_name_or_path"));
  config.base_model_name = base.value_or("");
  ASSIGN_OR_RETURN(auto task, fields.String("task_type"));
  config.task_type = task.value_or("");
  RETURN_IF_ERROR(config.CompilePatterns(label));
  return config;
}

}  // namespace loramux
