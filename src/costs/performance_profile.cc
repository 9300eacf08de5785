#include "costs/performance_profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <span>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/message.h"
#include "costs/factors_json.h"
#include "formats/file.h"
#include "formats/json_fields.h"

namespace loramux {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kFormat = "loramux-performance-profile";
constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxText = 1024, kMaxRanks = 65536;
constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;
constexpr double kMaxSeconds = 1e6;  // longest step or latency; eleven days

constexpr std::array<std::string_view, 3> kDeviceKinds = {"cpu", "cuda", "emulated"};

double InSeconds(TimeNs time) { return static_cast<double>(time) / static_cast<double>(kNsPerSecond); }

// Reads the fields of one object. Done() fails if the object has any other field.
class StrictFields {
 public:
  StrictFields(const json& object, const std::string& label, std::int64_t version)
      : object_(object), fields_(object, label), version_(version) {}
  std::int64_t version() const { return version_; }  // version of the file
  bool Has(const char* key) const { return fields_.Find(key) != nullptr; }

  Status Int(const char* key, std::int64_t low, std::int64_t high, std::int64_t& out) {
    seen_.insert(key);
    ASSIGN_OR_RETURN(out, fields_.RequiredInt(key, low, high));
    return Ok{};
  }
  // A number in [low, high].
  Status Number(const char* key, double low, double high, double& out) {
    seen_.insert(key);
    const json* value = fields_.Find(key);
    const auto number = value == nullptr ? std::nullopt : FiniteNumber(*value);
    if (!number || *number < low || *number > high) {
      const std::string expected = "a number from " + json(low).dump() + " to " + json(high).dump();
      return value == nullptr ? fields_.Missing(key, expected) : fields_.Bad(key, expected);
    }
    out = *number;
    return Ok{};
  }
  Status Text(const char* key, std::string& out) {
    seen_.insert(key);
    ASSIGN_OR_RETURN(const auto text, fields_.String(key));
    const std::string expected = "a string of at most " + std::to_string(kMaxText) + " bytes";
    if (!text) return fields_.Missing(key, expected);
    if (text->size() > kMaxText) return fields_.Bad(key, expected);
    out = *text;
    return Ok{};
  }
  // One of the names.
  Status OneOf(const char* key, std::span<const std::string_view> names, std::string& out) {
    RETURN_IF_ERROR(Text(key, out));
    if (std::find(names.begin(), names.end(), out) != names.end()) return Ok{};
    std::string expected;
    for (const std::string_view name : names) expected += (expected.empty() ? "" : ", ") + std::string(name);
    return fields_.Bad(key, "one of " + expected);
  }
  // Reads the object under `key` with `read`, and checks that it has no other fields.
  template <typename Read>
  Status Object(const char* key, Read read) {
    seen_.insert(key);
    const json* value = fields_.Find(key);
    if (value == nullptr) return fields_.Missing(key, "an object");
    if (!value->is_object()) return fields_.Bad(key, "an object");
    StrictFields inner(*value, fields_.label() + key + ".", version_);
    RETURN_IF_ERROR(read(inner));
    return inner.Done();
  }
  Status Ranks(const char* key, std::vector<std::int64_t>& out) {
    seen_.insert(key);
    const json* value = fields_.Find(key);
    const std::string expected = "a list of at most " + std::to_string(kMaxRanks) + " ascending ranks from 1 to 65536";
    if (value == nullptr) return fields_.Missing(key, expected);
    if (!value->is_array() || value->size() > kMaxRanks) return fields_.Bad(key, expected);
    for (const json& item : *value) {
      const auto rank = IntegerIn(item, out.empty() ? 1 : out.back(), 65536);
      if (!rank) return InvalidArgument(fields_.label() + key + ": expected " + expected + ", found " + Describe(item));
      out.push_back(*rank);
    }
    return Ok{};
  }
  // A table [[tokens, factor], ...], ascending by tokens.
  Status Factors(const char* key, std::vector<StepFactor>& out) {
    seen_.insert(key);
    const json* value = fields_.Find(key);
    if (value == nullptr) return fields_.Missing(key, "a list of pairs of tokens and a factor");
    ASSIGN_OR_RETURN(out, FactorsFromJson(*value, fields_.label() + key));
    return Ok{};
  }
  // A list [[seconds, factor], ...], ascending by time, within `period`.
  Status ChangesOf(const char* key, TimeNs period, Pace& out) {
    seen_.insert(key);
    const json* value = fields_.Find(key);
    const std::string expected = "a list of at most " + std::to_string(kMaxPaceChanges) +
                                 " pairs of seconds and a factor, in order of time, before period_seconds";
    if (value == nullptr) return fields_.Missing(key, expected);
    if (!value->is_array() || value->size() > kMaxPaceChanges) return fields_.Bad(key, expected);
    std::vector<Pace::Change> changes;
    for (const json& item : *value) {
      const auto seconds = item.is_array() && item.size() == 2 ? FiniteNumber(item[0]) : std::nullopt;
      const auto factor = seconds ? FiniteNumber(item[1]) : std::nullopt;
      bool sane = factor && *seconds >= 0 && *seconds < InSeconds(period) && *factor >= Pace::kMinFactor &&
                  *factor <= Pace::kMaxFactor;
      const TimeNs at = sane ? static_cast<TimeNs>(std::llround(*seconds * static_cast<double>(kNsPerSecond))) : 0;
      sane = sane && at < period && (changes.empty() || at > changes.back().at);
      if (!sane) return InvalidArgument(fields_.label() + key + ": expected " + expected + ", found " + Describe(item));
      changes.push_back({at, *factor});
    }
    out = Pace(std::move(changes), period);
    return Ok{};
  }
  Status Done() const {
    for (const auto& [key, value] : object_.items()) {
      if (!seen_.contains(key)) {
        return InvalidArgument(fields_.label() + Printable(key) + ": no such field in version " +
                               std::to_string(version_));
      }
    }
    return Ok{};
  }

 private:
  const json& object_;
  JsonFields fields_;
  const std::int64_t version_;
  std::set<std::string, std::less<>> seen_;
};

Status ReadQuality(StrictFields& fields, FitQuality& quality) {
  RETURN_IF_ERROR(fields.Int("points", 0, kMaxCount, quality.points));
  RETURN_IF_ERROR(fields.Number("r2", -1e300, 1, quality.r2));
  RETURN_IF_ERROR(fields.Number("mean_error", 0, 1e300, quality.mean_error));
  return fields.Number("p90_error", 0, 1e300, quality.p90_error);
}

Status ReadQuality(StrictFields& fields, const char* key, FitQuality& quality) {
  return fields.Object(key, [&](StrictFields& inner) { return ReadQuality(inner, quality); });
}

// Only mixtures of experts have them.
Status ReadExperts(StrictFields& fields, PerformanceModel& model) {
  if (!fields.Has("experts")) return Ok{};
  return fields.Object("experts", [&](StrictFields& inner) -> Status {
    RETURN_IF_ERROR(inner.Int("count", 1, kMaxExperts, model.experts.count));
    RETURN_IF_ERROR(inner.Int("per_token", 1, model.experts.count, model.experts.per_token));
    for (const PerformanceTerm& term : PerformanceTerms(model.shape)) {
      if (term.of_experts) RETURN_IF_ERROR(inner.Number(term.name, 0, kMaxSeconds, model.*term.coefficient));
    }
    return inner.Number("floor", 0, kMaxSeconds, model.expert_floor);
  });
}

ordered_json ExpertsJson(const PerformanceModel& model) {
  ordered_json experts = {{"count", model.experts.count}, {"per_token", model.experts.per_token}};
  for (const PerformanceTerm& term : PerformanceTerms(model.shape)) {
    if (term.of_experts) experts[term.name] = model.*term.coefficient;
  }
  experts["floor"] = model.expert_floor;
  return experts;
}

Status ReadModel(StrictFields& fields, LoraCostShape shape, FittedModel& fitted) {
  fitted.model.shape = shape;
  double sum = 0;
  RETURN_IF_ERROR(fields.Object("seconds", [&](StrictFields& seconds) -> Status {
    for (const PerformanceTerm& term : PerformanceTerms(shape)) {
      if (term.of_experts) continue;
      RETURN_IF_ERROR(seconds.Number(term.name, 0, kMaxSeconds, fitted.model.*term.coefficient));
      sum += fitted.model.*term.coefficient;
    }
    RETURN_IF_ERROR(seconds.Number("dense_floor", 0, kMaxSeconds, fitted.model.dense_floor));
    return seconds.Number("floor", 0, kMaxSeconds, fitted.model.floor);
  }));
  if (sum + fitted.model.floor + fitted.model.dense_floor <= 0) {
    return InvalidArgument(std::string(LoraCostShapeName(shape)) +
                           ".seconds: expected at least one value above 0, found none");
  }
  RETURN_IF_ERROR(fields.Int("token_tile", 0, 65536, fitted.model.token_tile));
  RETURN_IF_ERROR(ReadExperts(fields, fitted.model));
  RETURN_IF_ERROR(ReadQuality(fields, "fitted", fitted.fitted));
  RETURN_IF_ERROR(ReadQuality(fields, "held_out", fitted.held_out));
  RETURN_IF_ERROR(ReadQuality(fields, "held_out_prefill", fitted.held_out_prefill));
  RETURN_IF_ERROR(ReadQuality(fields, "held_out_decode", fitted.held_out_decode));
  RETURN_IF_ERROR(ReadQuality(fields, "held_out_mixed", fitted.held_out_mixed));
  RETURN_IF_ERROR(ReadQuality(fields, "caraserve_decode", fitted.caraserve_decode));
  if (fields.version() == 1) return Ok{};
  return fields.Object("engine", [&](StrictFields& inner) -> Status {
    RETURN_IF_ERROR(inner.Factors("decode_factors", fitted.model.decode_factors));
    RETURN_IF_ERROR(inner.Factors("prefill_factors", fitted.model.prefill_factors));
    RETURN_IF_ERROR(inner.Factors("mixed_factors", fitted.model.mixed_factors));
    RETURN_IF_ERROR(inner.Number("after_prefill_seconds", 0, kMaxSeconds, fitted.model.after_prefill));
    if (fields.version() > 2) {
      RETURN_IF_ERROR(inner.Number("after_prefill_decay", 0, kMaxDecay, fitted.model.after_prefill_decay));
    }
    if (fields.version() > 3) {
      RETURN_IF_ERROR(
          inner.Number("after_prefill_per_sequence_seconds", 0, kMaxSeconds, fitted.model.after_prefill_per_sequence));
    }
    RETURN_IF_ERROR(ReadQuality(inner, "held_out", fitted.engine));
    return ReadQuality(inner, "held_out_linear", fitted.engine_linear);
  });
}

Status ReadLink(StrictFields& fields, const char* key, PerformanceModel::Link& link, FitQuality& quality) {
  return fields.Object(key, [&](StrictFields& inner) -> Status {
    RETURN_IF_ERROR(inner.Number("latency_seconds", 0, kMaxSeconds, link.latency));
    RETURN_IF_ERROR(inner.Number("bytes_per_second", kMinBytesPerSecond, kMaxBytesPerSecond, link.bytes_per_second));
    return ReadQuality(inner, "fitted", quality);
  });
}

Status ReadLinks(StrictFields& fields, PerformanceProfile& profile) {
  PerformanceModel& model = profile.mbgmv.model;
  RETURN_IF_ERROR(ReadLink(fields, "disk", model.disk, profile.disk));
  RETURN_IF_ERROR(ReadLink(fields, "host_to_device", model.host_to_device, profile.host_to_device));
  RETURN_IF_ERROR(ReadLink(fields, "device_to_host", model.device_to_host, profile.device_to_host));
  profile.bgmv.model.disk = model.disk;
  profile.bgmv.model.host_to_device = model.host_to_device;
  profile.bgmv.model.device_to_host = model.device_to_host;
  return Ok{};
}

Status ReadPace(StrictFields& fields, Pace& pace) {
  return fields.Object("pace", [&](StrictFields& inner) -> Status {
    double period = 0;
    RETURN_IF_ERROR(inner.Number("period_seconds", 0, InSeconds(kMaxPacePeriod), period));
    return inner.ChangesOf("changes", static_cast<TimeNs>(std::llround(period * static_cast<double>(kNsPerSecond))),
                           pace);
  });
}

Status ReadBase(StrictFields& fields, PerformanceProfile::BaseModel& base) {
  constexpr std::int64_t kMaxExtent = std::int64_t{1} << 24;
  RETURN_IF_ERROR(fields.Text("name", base.name));
  RETURN_IF_ERROR(fields.Text("digest", base.digest));
  RETURN_IF_ERROR(fields.Int("hidden_size", 1, kMaxExtent, base.hidden_size));
  RETURN_IF_ERROR(fields.Int("num_layers", 1, kMaxExtent, base.num_layers));
  RETURN_IF_ERROR(fields.Int("num_heads", 1, kMaxExtent, base.num_heads));
  RETURN_IF_ERROR(fields.Int("num_kv_heads", 1, kMaxExtent, base.num_kv_heads));
  RETURN_IF_ERROR(fields.Int("head_dim", 1, kMaxExtent, base.head_dim));
  RETURN_IF_ERROR(fields.Int("intermediate_size", 1, kMaxExtent, base.intermediate_size));
  RETURN_IF_ERROR(fields.Int("vocab_size", 1, kMaxExtent, base.vocab_size));
  RETURN_IF_ERROR(fields.Text("dtype", base.dtype));
  RETURN_IF_ERROR(fields.Text("kv_dtype", base.kv_dtype));
  return fields.Int("page_tokens", 1, 4096, base.page_tokens);
}

Status ReadAssist(StrictFields& fields, CpuAssist& assist) {
  RETURN_IF_ERROR(fields.Int("layers", 1, kMaxAssistLayers, assist.layers));
  RETURN_IF_ERROR(fields.Int("cores", 0, kMaxAssistCores, assist.cores));
  RETURN_IF_ERROR(fields.Number("per_token_seconds", 0, kMaxSeconds, assist.per_token));
  for (std::size_t i = 0; i < assist.groups.size(); ++i) {
    RETURN_IF_ERROR(fields.Object(CpuAssist::kGroupNames[i].data(), [&](StrictFields& inner) -> Status {
      CpuAssist::Group& group = assist.groups[i];
      RETURN_IF_ERROR(inner.Number("hand_off_seconds", 0, kMaxSeconds, group.hand_off));
      RETURN_IF_ERROR(inner.Number("per_token_rank_seconds", 0, kMaxSeconds, group.per_token_rank));
      return inner.Number("base_share", 0, 1, group.base_share);
    }));
  }
  return Ok{};
}

Status ReadProfile(StrictFields& fields, PerformanceProfile& profile) {
  RETURN_IF_ERROR(fields.Text("device", profile.device));
  if (fields.version() > 4) RETURN_IF_ERROR(fields.OneOf("device_kind", kDeviceKinds, profile.device_kind));
  RETURN_IF_ERROR(fields.Int("threads", 1, 65536, profile.threads));
  RETURN_IF_ERROR(fields.Int("unix_seconds", 0, kMaxCount, profile.unix_seconds));
  RETURN_IF_ERROR(fields.Object("model", [&](StrictFields& inner) { return ReadBase(inner, profile.base); }));
  RETURN_IF_ERROR(fields.Object("adapters", [&](StrictFields& inner) -> Status {
    RETURN_IF_ERROR(inner.Ranks("ranks", profile.ranks));
    return inner.Text("targets", profile.lora_targets);
  }));
  RETURN_IF_ERROR(fields.Object("largest_step", [&](StrictFields& inner) -> Status {
    RETURN_IF_ERROR(inner.Int("batch_tokens", 1, kMaxCount, profile.max_batch_tokens));
    RETURN_IF_ERROR(inner.Int("sequences", 1, kMaxCount, profile.max_running));
    return inner.Int("positions", 1, kMaxCount, profile.max_positions);
  }));
  RETURN_IF_ERROR(fields.Number("repeat_error", 0, 1e300, profile.repeat_error));
  RETURN_IF_ERROR(fields.Object(
      "mbgmv", [&](StrictFields& inner) { return ReadModel(inner, LoraCostShape::kMbgmv, profile.mbgmv); }));
  RETURN_IF_ERROR(
      fields.Object("bgmv", [&](StrictFields& inner) { return ReadModel(inner, LoraCostShape::kBgmv, profile.bgmv); }));
  RETURN_IF_ERROR(fields.Number("between_steps_seconds", 0, kMaxSeconds, profile.between_steps));
  if (fields.version() > 1) {
    RETURN_IF_ERROR(fields.Number("submit_latency_seconds", 0, kMaxSeconds, profile.submit_latency));
    RETURN_IF_ERROR(fields.Number("requests_per_second", 0, 1e12, profile.requests_per_second));
  }
  if (fields.version() > 3) RETURN_IF_ERROR(ReadPace(fields, profile.pace));
  for (PerformanceModel* model : {&profile.mbgmv.model, &profile.bgmv.model}) {
    model->between_steps = profile.between_steps;
    model->submit_latency = profile.submit_latency;
  }
  RETURN_IF_ERROR(fields.Object("links", [&](StrictFields& inner) { return ReadLinks(inner, profile); }));
  if (fields.version() < 5 || !fields.Has("cpu_assist")) return Ok{};
  CpuAssist& assist = profile.mbgmv.model.assist;
  RETURN_IF_ERROR(fields.Object("cpu_assist", [&](StrictFields& inner) { return ReadAssist(inner, assist); }));
  profile.bgmv.model.assist = assist;
  return Ok{};
}

ordered_json QualityJson(const FitQuality& quality) {
  return {{"points", quality.points},
          {"r2", quality.r2},
          {"mean_error", quality.mean_error},
          {"p90_error", quality.p90_error}};
}

ordered_json ModelJson(const FittedModel& fitted) {
  ordered_json seconds = ordered_json::object();
  for (const PerformanceTerm& term : PerformanceTerms(fitted.model.shape)) {
    if (!term.of_experts) seconds[term.name] = fitted.model.*term.coefficient;
  }
  seconds["dense_floor"] = fitted.model.dense_floor;
  seconds["floor"] = fitted.model.floor;
  ordered_json out = {{"seconds", std::move(seconds)},
                      {"token_tile", fitted.model.token_tile},
                      {"fitted", QualityJson(fitted.fitted)},
                      {"held_out", QualityJson(fitted.held_out)},
                      {"held_out_prefill", QualityJson(fitted.held_out_prefill)},
                      {"held_out_decode", QualityJson(fitted.held_out_decode)},
                      {"held_out_mixed", QualityJson(fitted.held_out_mixed)},
                      {"caraserve_decode", QualityJson(fitted.caraserve_decode)},
                      {"engine",
                       {{"decode_factors", FactorsAsJson<ordered_json>(fitted.model.decode_factors)},
                        {"prefill_factors", FactorsAsJson<ordered_json>(fitted.model.prefill_factors)},
                        {"mixed_factors", FactorsAsJson<ordered_json>(fitted.model.mixed_factors)},
                        {"after_prefill_seconds", fitted.model.after_prefill},
                        {"after_prefill_decay", fitted.model.after_prefill_decay},
                        {"after_prefill_per_sequence_seconds", fitted.model.after_prefill_per_sequence},
                        {"held_out", QualityJson(fitted.engine)},
                        {"held_out_linear", QualityJson(fitted.engine_linear)}}}};
  if (fitted.model.experts.count > 0) out["experts"] = ExpertsJson(fitted.model);
  return out;
}

ordered_json LinkJson(const PerformanceModel::Link& link, const FitQuality& quality) {
  return {
      {"latency_seconds", link.latency}, {"bytes_per_second", link.bytes_per_second}, {"fitted", QualityJson(quality)}};
}

ordered_json PaceJson(const Pace& pace) {
  ordered_json changes = ordered_json::array();
  for (const Pace::Change& change : pace.changes())
    changes.push_back(ordered_json::array({InSeconds(change.at), change.factor}));
  return {{"period_seconds", InSeconds(pace.period())}, {"changes", std::move(changes)}};
}

ordered_json AssistJson(const CpuAssist& assist) {
  ordered_json object = {{"layers", assist.layers}, {"cores", assist.cores}, {"per_token_seconds", assist.per_token}};
  for (std::size_t i = 0; i < assist.groups.size(); ++i) {
    object[std::string(CpuAssist::kGroupNames[i])] = {{"hand_off_seconds", assist.groups[i].hand_off},
                                                      {"per_token_rank_seconds", assist.groups[i].per_token_rank},
                                                      {"base_share", assist.groups[i].base_share}};
  }
  return object;
}

ordered_json BaseJson(const PerformanceProfile::BaseModel& base) {
  return {{"name", base.name},
          {"digest", base.digest},
          {"hidden_size", base.hidden_size},
          {"num_layers", base.num_layers},
          {"num_heads", base.num_heads},
          {"num_kv_heads", base.num_kv_heads},
          {"head_dim", base.head_dim},
          {"intermediate_size", base.intermediate_size},
          {"vocab_size", base.vocab_size},
          {"dtype", base.dtype},
          {"kv_dtype", base.kv_dtype},
          {"page_tokens", base.page_tokens}};
}

}  // namespace

Result<PerformanceProfile> ParsePerformanceProfile(std::string_view text, const std::string& label) {
  ASSIGN_OR_RETURN(const json object, ParseJsonObject(text, label));
  // Checked first, because a file of another kind or version differs in every field.
  const JsonFields head(object, label + ": ");
  ASSIGN_OR_RETURN(const auto format, head.String("format"));
  if (format != kFormat) return head.Bad("format", Quote(kFormat));
  ASSIGN_OR_RETURN(const std::int64_t version, head.RequiredInt("version", 1, kMaxCount));
  if (version > PerformanceProfile::kVersion) {
    return Unsupported(label + ": expected format version " + std::to_string(PerformanceProfile::kVersion) +
                       " or older, found " + std::to_string(version) + ": measure again with `loramux profile`");
  }
  json rest = object;
  rest.erase("format");
  rest.erase("version");
  PerformanceProfile profile;
  StrictFields fields(rest, label + ": ", version);
  RETURN_IF_ERROR(ReadProfile(fields, profile));
  RETURN_IF_ERROR(fields.Done());
  profile.mbgmv.model.device = profile.bgmv.model.device = profile.device;
  return profile;
}

Result<PerformanceProfile> LoadPerformanceProfile(const std::filesystem::path& file) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file, kMaxFileBytes));
  return ParsePerformanceProfile(text, file.string());
}

Status CheckSameShape(const PerformanceProfile::BaseModel& measured, const PerformanceProfile::BaseModel& wanted,
                      const std::string& label) {
  using Base = PerformanceProfile::BaseModel;
  constexpr std::pair<const char*, std::int64_t Base::*> kFields[] = {
      {"hidden_size", &Base::hidden_size}, {"num_layers", &Base::num_layers},
      {"num_heads", &Base::num_heads},     {"num_kv_heads", &Base::num_kv_heads},
      {"head_dim", &Base::head_dim},       {"intermediate_size", &Base::intermediate_size},
      {"vocab_size", &Base::vocab_size}};
  for (const auto& [name, field] : kFields) {
    if (measured.*field == wanted.*field) continue;
    return InvalidArgument(label + ": measured with " + Quote(measured.name) + ", a model of another shape than " +
                               Quote(wanted.name) + ": " + name + " is " + std::to_string(measured.*field) + ", not " +
                               std::to_string(wanted.*field),
                           "--profile");
  }
  return Ok{};
}

Status CheckSameDevice(const PerformanceProfile& profile, const std::string& kind, const std::string& description,
                       const std::string& label) {
  if (profile.device_kind == kind) return Ok{};
  return InvalidArgument(label + ": measured on the device " + profile.device_kind + " (" + Printable(profile.device) +
                             "), but this is " + kind + " (" + description +
                             "): measure with `loramux profile --device " + kind + "`, or choose --device " +
                             profile.device_kind,
                         "--profile");
}

std::string PerformanceProfileAsJson(const PerformanceProfile& profile) {
  const PerformanceModel& model = profile.mbgmv.model;
  ordered_json object = {{"format", kFormat},
                         {"version", PerformanceProfile::kVersion},
                         {"device", profile.device},
                         {"device_kind", profile.device_kind},
                         {"threads", profile.threads},
                         {"unix_seconds", profile.unix_seconds},
                         {"model", BaseJson(profile.base)},
                         {"adapters", {{"ranks", profile.ranks}, {"targets", profile.lora_targets}}},
                         {"largest_step",
                          {{"batch_tokens", profile.max_batch_tokens},
                           {"sequences", profile.max_running},
                           {"positions", profile.max_positions}}},
                         {"repeat_error", profile.repeat_error},
                         {"mbgmv", ModelJson(profile.mbgmv)},
                         {"bgmv", ModelJson(profile.bgmv)},
                         {"between_steps_seconds", profile.between_steps},
                         {"submit_latency_seconds", profile.submit_latency},
                         {"requests_per_second", profile.requests_per_second},
                         {"pace", PaceJson(profile.pace)},
                         {"links",
                          {{"disk", LinkJson(model.disk, profile.disk)},
                           {"host_to_device", LinkJson(model.host_to_device, profile.host_to_device)},
                           {"device_to_host", LinkJson(model.device_to_host, profile.device_to_host)}}}};
  if (model.assist.measured()) object["cpu_assist"] = AssistJson(model.assist);
  return object.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace loramux
