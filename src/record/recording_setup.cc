#include "record/recording_setup.h"

#include <algorithm>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "cache/cache_regime.h"
#include "costs/factors_json.h"
#include "formats/json_fields.h"
#include "schedule/plan_by_model.h"

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

 private:
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

// What the documents give: DocumentConstants.
template <typename Visitor>
Status VisitConstants(Visitor& v, SystemSpec& o) {
  RETURN_IF_ERROR(v.Number("swap_lower", 0, 1, o.swapping.lower));
  RETURN_IF_ERROR(v.Number("swap_upper", 0, 1, o.swapping.upper));
  RETURN_IF_ERROR(v.Int("swap_interval", 1, kMaxSetupTime, o.swapping.interval));
  RETURN_IF_ERROR(v.Int("batch_window", kNsPerMs, kMaxSetupTime, o.batch_window));
  RETURN_IF_ERROR(v.Number("score_frequency", 0, 1e6, o.score_weights.frequency));
  RETURN_IF_ERROR(v.Number("score_recency", 0, 1e6, o.score_weights.recency));
  RETURN_IF_ERROR(v.Number("score_size", 0, 1e6, o.score_weights.size));
  RETURN_IF_ERROR(v.Int("expect_bin", kNsPerMs, kMaxSetupTime, o.expectation.bin));
  return v.Number("expect_variation", 0, 1e3, o.expectation.least_variation);
}

template <typename Visitor>
Status VisitScheduler(Visitor& v, SystemSpec& o) {
  RETURN_IF_ERROR(v.Int("page_tokens", 1, 65536, o.page_tokens));
  if (v.Has("state_pages")) RETURN_IF_ERROR(v.Int("state_pages", 0, 1 << 20, o.state_pages));  // older ones lack it
  RETURN_IF_ERROR(v.Int("max_running", 1, 1 << 20, o.max_running));
  RETURN_IF_ERROR(v.Int("max_batch_tokens", 1, kMaxTokens, o.max_batch_tokens));
  RETURN_IF_ERROR(v.Int("prefill_chunk", 1, kMaxTokens, o.prefill_chunk));
  RETURN_IF_ERROR(v.Int("whole_prompt_tokens", 0, kMaxTokens, o.whole_prompt_tokens));
  RETURN_IF_ERROR(v.Bool("spread_prompts", o.spread_prompts));
  RETURN_IF_ERROR(v.Bool("load_on_arrival", o.load_on_arrival));
  if (v.Has("prompts_by_objective")) {  // older recordings lack it
    RETURN_IF_ERROR(v.Bool("prompts_by_objective", o.prompts_by_objective));
  }
  RETURN_IF_ERROR(v.Bool("separate_phases", o.shape.separate_phases));
  RETURN_IF_ERROR(v.Int("decode_turns", 1, 1 << 20, o.shape.decode_turns));
  RETURN_IF_ERROR(v.Int("max_distinct_adapters", 0, 1 << 20, o.max_distinct_adapters));
  if (v.Has("max_decode_step")) {  // older recordings lack it
    RETURN_IF_ERROR(v.Int("max_decode_step", 0, kMaxSetupTime, o.max_decode_step));
  }
  RETURN_IF_ERROR(v.Int("lookahead", 1, 1 << 20, o.lookahead));
  RETURN_IF_ERROR(v.Int("max_loads_in_flight", 1, 1 << 20, o.max_loads_in_flight));
  RETURN_IF_ERROR(v.Int("cold_start", 0, 2, o.shape.cold_start));
  // Older recordings lack these three.
  if (v.Has("cold_start_policy")) {
    RETURN_IF_ERROR(v.Int("cold_start_policy", 0, 2, o.cold_start_policy));
    RETURN_IF_ERROR(v.Bool("reads_host_tier", o.reads_host_tier));
    RETURN_IF_ERROR(v.Bool("disk_by_layer", o.disk_by_layer));
  }
  RETURN_IF_ERROR(v.Int("prefetch_lookahead", 0, 1 << 20, o.shape.prefetch_lookahead));
  RETURN_IF_ERROR(v.Bool("skip_beyond_distinct", o.shape.skip_beyond_distinct));
  RETURN_IF_ERROR(v.Int("fairness", 0, 1, o.fairness.policy));
  RETURN_IF_ERROR(v.Weights("tenant_weights", o.fairness.weights));
  RETURN_IF_ERROR(v.Number("prompt_token_cost", 0, 1e6, o.fairness.prompt_token_cost));
  RETURN_IF_ERROR(v.Number("output_token_cost", 0, 1e6, o.fairness.output_token_cost));
  RETURN_IF_ERROR(v.Number("fairness_burst", 0, 1e12, o.fairness.burst));
  RETURN_IF_ERROR(v.Int("fairness_max_wait", 0, kMaxSetupTime, o.fairness.max_wait));
  RETURN_IF_ERROR(v.Int("max_idle_tenants", 1, 1 << 24, o.fairness.max_idle_tenants));
  RETURN_IF_ERROR(v.Bool("fetch_ahead", o.fetch_ahead));
  RETURN_IF_ERROR(v.Int("adapter_prefetch", 0, 1, o.adapter_prefetch));
  if (v.Has("swap_upper")) RETURN_IF_ERROR(VisitConstants(v, o));  // older recordings lack them
  RETURN_IF_ERROR(v.Int("age_bound", 1, kMaxSetupTime, o.age_bound));
  RETURN_IF_ERROR(v.Number("discard_share", 0, 1, o.discard_share));
  if (v.Has("reserve_output")) RETURN_IF_ERROR(v.Bool("reserve_output", o.reserve_output));  // older recordings lack it
  RETURN_IF_ERROR(v.Number("adapter_share", 0, 0.95, o.adapter_share));
  RETURN_IF_ERROR(v.Bool("keep_idle_adapters", o.keep_idle_adapters));
  RETURN_IF_ERROR(v.Bool("maintain_dependency", o.maintain_dependency));
  RETURN_IF_ERROR(v.Int("host_bonus", 0, kMaxSetupTime, o.host_bonus));
  return v.Bool("proactive_swapping", o.proactive_swapping);
}

template <typename Visitor>
Status VisitQueue(Visitor& v, QueueOrderOptions& o) {
  RETURN_IF_ERROR(v.Text("queue", o.name));
  RETURN_IF_ERROR(v.Int("queue_age_bound", 1, kMaxSetupTime, o.age_bound));
  RETURN_IF_ERROR(v.Int("ttft_objective", 1, kMaxSetupTime, o.objective));
  RETURN_IF_ERROR(v.Number("total_tokens", 1, 1e15, o.total_tokens));
  RETURN_IF_ERROR(v.Int("size_form", 0, 2, o.lanes.form));
  RETURN_IF_ERROR(v.Number("size_input_weight", 0, 1e6, o.lanes.input_weight));
  RETURN_IF_ERROR(v.Number("size_output_weight", 0, 1e6, o.lanes.output_weight));
  RETURN_IF_ERROR(v.Int("lane_count_rule", 0, 1, o.lanes.count_rule));
  if (v.Has("count_cached")) RETURN_IF_ERROR(v.Int("count_cached", 0, 2, o.lanes.count_cached));
  if (v.Has("most_lanes")) RETURN_IF_ERROR(v.Int("most_lanes", 1, kMaxLanes, o.lanes.most_lanes));
  RETURN_IF_ERROR(v.Bool("fixed_lanes", o.lanes.fixed));
  RETURN_IF_ERROR(v.Int("lane_refresh", 1, kMaxSetupTime, o.lanes.refresh));
  return v.Int("lane_slo", 1, kMaxSetupTime, o.lanes.slo);
}

template <typename Visitor>
Status VisitSetup(Visitor& v, RecordedSetup& setup) {
  RETURN_IF_ERROR(v.Text("program", setup.program));
  RETURN_IF_ERROR(v.Text("model", setup.model));
  RETURN_IF_ERROR(v.Int("started_unix_seconds", 0, std::int64_t{1} << 40, setup.started_unix_seconds));
  RETURN_IF_ERROR(v.Text("cache", setup.cache));
  RETURN_IF_ERROR(v.Text("length_predictor", setup.length_predictor));
  RETURN_IF_ERROR(v.Int("max_model_len", 2, kMaxTokens, setup.max_model_len));
  RETURN_IF_ERROR(v.Int("layers", 1, 1024, setup.kv_slices.layers));
  RETURN_IF_ERROR(v.Int("layer_bytes", 0, kMaxPageBytes, setup.kv_slices.layer_bytes));
  RETURN_IF_ERROR(v.Int("page_bytes", 64, kMaxPageBytes, setup.page_bytes));
  RETURN_IF_ERROR(v.Int("device_pages", 1, kMaxPages, setup.device_pages));
  RETURN_IF_ERROR(v.Int("host_pages", 0, kMaxPages, setup.host_pages));
  RETURN_IF_ERROR(v.Bool("prefix_cache", setup.tree));
  RETURN_IF_ERROR(v.Bool("kv_host_tier", setup.kv_transfer));
  RETURN_IF_ERROR(VisitScheduler(v, setup.scheduler));
  RETURN_IF_ERROR(VisitQueue(v, setup.queue));
  RETURN_IF_ERROR(v.OptionalCosts("costs", setup.scheduler.costs));
  PlanByModel(setup.scheduler.costs, setup.scheduler, setup.queue);
  return Ok{};
}

// Checks that the fields fit together.
Status CheckSetup(const RecordedSetup& setup) {
  const SystemSpec& scheduler = setup.scheduler;
  RETURN_IF_ERROR(FindCacheRegime(setup.cache));
  const auto names = QueueOrderNames();
  if (std::find(names.begin(), names.end(), setup.queue.name) == names.end()) {
    return InvalidArgument("recording: setup.queue: unknown queue order");
  }
  if (setup.length_predictor != "none" && setup.length_predictor != "history" && setup.length_predictor != "proxy") {
    return InvalidArgument("recording: setup.length_predictor: expected history, proxy or none");
  }
  if (setup.page_bytes % 64 != 0) return InvalidArgument("recording: setup.page_bytes: expected a multiple of 64");
  if (setup.kv_transfer && (!setup.tree || setup.host_pages == 0)) {
    return InvalidArgument("recording: setup.kv_host_tier: true requires a prefix cache and a host tier");
  }
  if (scheduler.swapping.lower > scheduler.swapping.upper) {
    return InvalidArgument("recording: setup.swap_lower: expected at most swap_upper");
  }
  if (scheduler.max_decode_step > 0 && scheduler.costs == nullptr) {
    return InvalidArgument("recording: setup.max_decode_step: expected 0 without costs");
  }
  const std::int64_t longest = std::min(setup.max_model_len, setup.device_pages * scheduler.page_tokens);
  const bool holds_any = scheduler.max_batch_tokens >= longest && scheduler.prefill_chunk >= longest;
  if (scheduler.whole_prompt_tokens > 0 && !holds_any) {
    return InvalidArgument("recording: setup.whole_prompt_tokens: a step could not hold the longest prompt");
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
  RecordedSetup setup;
  Reader reader(object, "recording: setup.");
  RETURN_IF_ERROR(VisitSetup(reader, setup));
  RETURN_IF_ERROR(CheckSetup(setup));
  return setup;
}

}  // namespace loramux
