#include "record/recording_setup.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <variant>

#include <nlohmann/json.hpp>

#include "base/message.h"
#include "costs/factors_json.h"
#include "formats/json_fields.h"
#include "schedule/plan_by_model.h"
#include "schedule/queue/queue_order.h"
#include "schedule/system_settings.h"
#include "worth/cache_regime.h"

namespace loramux {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::int64_t kMaxPages = std::int64_t{1} << 26;
constexpr std::int64_t kMaxPageBytes = std::int64_t{1} << 30;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 24;
constexpr std::int64_t kMaxSetupTime = 1'000'000 * kNsPerSecond;
constexpr double kMaxSeconds = 1e6;
constexpr std::size_t kMaxTenants = 1 << 20, kMaxText = 4096;

using Costs = std::shared_ptr<const PerformanceModel>;
template <typename Visitor>
Status VisitCosts(Visitor& v, PerformanceModel& model);

// The two directions of VisitSetup share one list of fields, so that writing and reading match.
class Writer {
 public:
  bool Has(const char*) const { return true; }
  template <typename T>
  Status Int(const char* key, std::int64_t, std::int64_t, T& value) {
    object_[key] = static_cast<std::int64_t>(value);
    return Ok{};
  }
  Status Number(const char* key, double, double, double& value) {
    object_[key] = value;
    return Ok{};
  }
  Status Bool(const char* key, bool& value) {
    object_[key] = value;
    return Ok{};
  }
  Status Text(const char* key, std::string& value) {
    object_[key] = value;
    return Ok{};
  }
  Status Weights(const char* key, std::vector<std::pair<std::string, double>>& weights) {
    object_[key] = json::array();
    for (const auto& [name, weight] : weights) object_[key].push_back(weight);
    return Ok{};
  }
  Status Factors(const char* key, std::vector<StepFactor>& factors) {
    object_[key] = FactorsAsJson<ordered_json>(factors);
    return Ok{};
  }
  Status OptionalCosts(const char* key, Costs& costs) {
    if (costs == nullptr) return Ok{};
    Writer inner;
    PerformanceModel copy = *costs;
    RETURN_IF_ERROR(VisitCosts(inner, copy));
    object_[key] = std::move(inner.object_);
    return Ok{};
  }
  Status Settings(const SystemSpec& spec) {
    for (const Setting& setting : kSettings) {
      std::visit([&](const auto& value) { object_[std::string(setting.key)] = value; }, setting.get(spec));
    }
    return Ok{};
  }
  std::string Dump() const { return object_.dump(1, ' ', false, json::error_handler_t::replace); }

 private:
  ordered_json object_;
};

class Reader {
 public:
  Reader(const json& object, const std::string& label) : fields_(object, label) {}

  bool Has(const char* key) const { return fields_.Has(key); }

  template <typename T>
  Status Int(const char* key, std::int64_t low, std::int64_t high, T& value) {
    ASSIGN_OR_RETURN(const std::int64_t read, fields_.RequiredInt(key, low, high));
    value = static_cast<T>(read);
    return Ok{};
  }
  Status Number(const char* key, double low, double high, double& value) {
    ASSIGN_OR_RETURN(const auto read, fields_.Number(key));
    if (!read || *read < low || *read > high) {
      return fields_.Bad(key, "a number from " + std::to_string(low) + " to " + std::to_string(high));
    }
    value = *read;
    return Ok{};
  }
  Status Bool(const char* key, bool& value) {
    if (!fields_.Has(key)) return fields_.Missing(key, "true or false");
    ASSIGN_OR_RETURN(value, fields_.BoolOr(key, false));
    return Ok{};
  }
  Status Text(const char* key, std::string& value) {
    ASSIGN_OR_RETURN(auto read, fields_.String(key));
    if (!read || read->size() > kMaxText)
      return fields_.Bad(key, "a string of at most " + std::to_string(kMaxText) + " bytes");
    value = std::move(*read);
    return Ok{};
  }
  // A recording does not contain the tenants' names.
  Status Weights(const char* key, std::vector<std::pair<std::string, double>>& weights) {
    const json* list = fields_.Find(key);
    if (list == nullptr || !list->is_array() || list->size() > kMaxTenants)
      return fields_.Bad(key, "an array of weights");
    weights.clear();
    for (const json& item : *list) {
      const auto weight = FiniteNumber(item);
      if (!weight || *weight < 0.001 || *weight > 1000) return fields_.Bad(key, "weights from 0.001 to 1000");
      weights.emplace_back(std::to_string(weights.size()), *weight);
    }
    return Ok{};
  }

  Status Factors(const char* key, std::vector<StepFactor>& factors) {
    const json* list = fields_.Find(key);
    if (list == nullptr) return fields_.Missing(key, "a table");
    ASSIGN_OR_RETURN(factors, FactorsFromJson(*list, fields_.label() + key));
    return Ok{};
  }
  // Recordings of servers without a profile do not have it.
  Status OptionalCosts(const char* key, Costs& costs) {
    const json* object = fields_.Find(key);
    if (object == nullptr) return Ok{};
    if (!object->is_object()) return fields_.Bad(key, "an object");
    Reader inner(*object, fields_.label() + key + ".");
    PerformanceModel model;
    RETURN_IF_ERROR(VisitCosts(inner, model));
    costs = std::make_shared<const PerformanceModel>(std::move(model));
    return Ok{};
  }

  // Servers before a setting did what is its default now.
  Status Settings(SystemSpec& spec) {
    for (const Setting& setting : kSettings) {
      const std::string key(setting.key);
      if (!fields_.Has(key.c_str())) continue;
      SettingValue value = setting.get(spec);
      RETURN_IF_ERROR(std::visit([&](auto& held) { return Value(setting, key.c_str(), held); }, value));
      setting.set(spec, value);
    }
    return Ok{};
  }

 private:
  Status Value(const Setting&, const char* key, bool& value) { return Bool(key, value); }
  Status Value(const Setting&, const char* key, std::string& value) { return Text(key, value); }
  Status Value(const Setting& setting, const char* key, double& value) {
    return Number(key, setting.range.low, setting.range.high, value);
  }
  Status Value(const Setting& setting, const char* key, std::int64_t& value) {
    return Int(key, static_cast<std::int64_t>(setting.range.low), static_cast<std::int64_t>(setting.range.high), value);
  }

  JsonFields fields_;
};

template <typename Visitor>
Status VisitLink(Visitor& v, const std::string& name, PerformanceModel::Link& link) {
  RETURN_IF_ERROR(v.Number((name + "_latency").c_str(), 0, kMaxSeconds, link.latency));
  return v.Number((name + "_bytes_per_second").c_str(), 0, kMaxBytesPerSecond, link.bytes_per_second);
}

template <typename Visitor>
Status VisitAssist(Visitor& v, CpuAssist& assist) {
  RETURN_IF_ERROR(v.Int("assist_layers", 0, kMaxAssistLayers, assist.layers));
  RETURN_IF_ERROR(v.Int("assist_cores", 0, kMaxAssistCores, assist.cores));
  RETURN_IF_ERROR(v.Number("assist_per_token", 0, kMaxSeconds, assist.per_token));
  for (std::size_t i = 0; i < assist.groups.size(); ++i) {
    const std::string name = "assist_" + std::string(CpuAssist::kGroupNames[i]);
    CpuAssist::Group& group = assist.groups[i];
    RETURN_IF_ERROR(v.Number((name + "_hand_off").c_str(), 0, kMaxSeconds, group.hand_off));
    RETURN_IF_ERROR(v.Number((name + "_per_token_rank").c_str(), 0, kMaxSeconds, group.per_token_rank));
    RETURN_IF_ERROR(v.Number((name + "_base_share").c_str(), 0, 1, group.base_share));
  }
  return Ok{};
}

template <typename Visitor>
Status VisitExperts(Visitor& v, PerformanceModel& model) {
  RETURN_IF_ERROR(v.Int("experts", 0, kMaxExperts, model.experts.count));
  RETURN_IF_ERROR(v.Int("experts_per_token", 0, model.experts.count, model.experts.per_token));
  for (const PerformanceTerm& term : PerformanceTerms(model.shape)) {
    if (term.of_experts) RETURN_IF_ERROR(v.Number(term.name, 0, kMaxSeconds, model.*term.coefficient));
  }
  return v.Number("expert_floor", 0, kMaxSeconds, model.expert_floor);
}

// The coefficients that SecondsOf uses, the links and the assistance.
template <typename Visitor>
Status VisitCosts(Visitor& v, PerformanceModel& model) {
  RETURN_IF_ERROR(v.Int("shape", 0, 1, model.shape));
  for (const PerformanceTerm& term : PerformanceTerms(model.shape)) {
    if (!term.of_experts) RETURN_IF_ERROR(v.Number(term.name, 0, kMaxSeconds, model.*term.coefficient));
  }
  if (v.Has("experts")) RETURN_IF_ERROR(VisitExperts(v, model));  // older recordings lack them
  RETURN_IF_ERROR(v.Int("token_tile", 0, 65536, model.token_tile));
  RETURN_IF_ERROR(v.Number("floor", 0, kMaxSeconds, model.floor));
  RETURN_IF_ERROR(v.Number("dense_floor", 0, kMaxSeconds, model.dense_floor));
  RETURN_IF_ERROR(v.Factors("decode_factors", model.decode_factors));
  RETURN_IF_ERROR(v.Factors("prefill_factors", model.prefill_factors));
  RETURN_IF_ERROR(v.Factors("mixed_factors", model.mixed_factors));
  RETURN_IF_ERROR(v.Number("after_prefill", 0, kMaxSeconds, model.after_prefill));
  RETURN_IF_ERROR(v.Number("after_prefill_decay", 0, kMaxDecay, model.after_prefill_decay));
  RETURN_IF_ERROR(v.Number("after_prefill_per_sequence", 0, kMaxSeconds, model.after_prefill_per_sequence));
  RETURN_IF_ERROR(VisitLink(v, "disk", model.disk));
  RETURN_IF_ERROR(VisitLink(v, "host_to_device", model.host_to_device));
  RETURN_IF_ERROR(VisitLink(v, "device_to_host", model.device_to_host));
  return v.Has("assist_layers") ? VisitAssist(v, model.assist) : Ok{};  // older recordings lack it
}

template <typename Visitor>
Status VisitSetup(Visitor& v, RecordedSetup& setup) {
  RETURN_IF_ERROR(v.Text("program", setup.program));
  RETURN_IF_ERROR(v.Text("model", setup.model));
  RETURN_IF_ERROR(v.Int("started_unix_seconds", 0, std::int64_t{1} << 40, setup.started_unix_seconds));
  RETURN_IF_ERROR(v.Int("max_model_len", 2, kMaxTokens, setup.max_model_len));
  RETURN_IF_ERROR(v.Int("layers", 1, kMostLayers, setup.kv_slices.layers));
  RETURN_IF_ERROR(v.Int("layer_bytes", 0, kMaxPageBytes, setup.kv_slices.layer_bytes));
  RETURN_IF_ERROR(v.Int("page_bytes", 64, kMaxPageBytes, setup.page_bytes));
  RETURN_IF_ERROR(v.Int("device_pages", 1, kMaxPages, setup.device_pages));
  RETURN_IF_ERROR(v.Int("host_pages", 0, kMaxPages, setup.host_pages));
  RETURN_IF_ERROR(v.Bool("kv_host_tier", setup.moves_kv));
  RETURN_IF_ERROR(v.Settings(setup.spec));
  RETURN_IF_ERROR(v.Weights("tenant_weights", setup.spec.fairness.weights));
  RETURN_IF_ERROR(v.OptionalCosts("costs", setup.spec.costs));
  PlanByModel(setup.spec.costs, setup.spec);
  return Ok{};
}

// Checks that the fields fit together.
Status CheckSetup(const RecordedSetup& setup) {
  const SystemSpec& spec = setup.spec;
  RETURN_IF_ERROR(FindCacheRegime(spec.cache));
  const auto names = QueueOrderNames();
  if (std::find(names.begin(), names.end(), spec.queue) == names.end()) {
    return InvalidArgument("recording: setup.queue: unknown queue order");
  }
  if (spec.length_predictor != "none" && spec.length_predictor != "history" && spec.length_predictor != "proxy") {
    return InvalidArgument("recording: setup.length_predictor: expected history, proxy or none");
  }
  if (setup.page_bytes % 64 != 0) return InvalidArgument("recording: setup.page_bytes: expected a multiple of 64");
  if (setup.moves_kv && (!spec.keep_history || setup.host_pages == 0)) {
    return InvalidArgument("recording: setup.kv_host_tier: true requires a prefix cache and a host tier");
  }
  if (spec.swapping.lower > spec.swapping.upper) {
    return InvalidArgument("recording: setup.swap_lower: expected at most swap_upper");
  }
  if (spec.max_decode_step > 0 && spec.costs == nullptr) {
    return InvalidArgument("recording: setup.max_decode_step: expected 0 without costs");
  }
  const std::int64_t longest = std::min(setup.max_model_len, setup.device_pages * spec.page_tokens);
  const bool holds_any = spec.max_batch_tokens >= longest && spec.prefill_chunk >= longest;
  if (spec.whole_prompt_tokens > 0 && !holds_any) {
    return InvalidArgument("recording: setup.whole_prompt_tokens: a step could not hold the longest prompt");
  }
  return Ok{};
}

// A server that has what is not known here may decide otherwise than this program.
Status CheckKeys(const json& object) {
  // Versions up to 8 had the age bound and the objective of the queue twice, and the lanes of "mlq-static".
  static constexpr std::array<std::string_view, 3> kFormer = {"queue_age_bound", "lane_slo", "fixed_lanes"};
  const json known = json::parse(SetupAsJson({}));
  for (const auto& [key, value] : object.items()) {
    if (known.contains(key) || key == "costs" || std::ranges::find(kFormer, key) != kFormer.end()) continue;
    return InvalidArgument("recording: setup." + Printable(key) + ": not known to this version of loramux");
  }
  return Ok{};
}

}  // namespace

std::string SetupAsJson(const RecordedSetup& setup) {
  Writer writer;
  RecordedSetup copy = setup;
  CHECK(VisitSetup(writer, copy).ok());
  return writer.Dump();
}

Result<RecordedSetup> SetupFromJson(std::string_view text) {
  ASSIGN_OR_RETURN(const json object, ParseJsonObject(text, "recording: setup"));
  RETURN_IF_ERROR(CheckKeys(object));
  RecordedSetup setup;
  Reader reader(object, "recording: setup.");
  RETURN_IF_ERROR(VisitSetup(reader, setup));
  RETURN_IF_ERROR(CheckSetup(setup));
  return setup;
}

}  // namespace loramux
