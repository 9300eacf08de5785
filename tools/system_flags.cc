#include "tools/system_flags.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/check.h"
#include "costs/service_times.h"
#include "schedule/queue/queue_order.h"

namespace loramux {
namespace {

std::string FirstName(const Setting& setting) { return std::string(setting.flag.substr(0, setting.flag.find(','))); }

// The names that a setting may be, if it is one, as far as the text does not explain them.
std::vector<std::string> NamesFor(const Setting& setting) {
  std::vector<std::string> names;
  if (setting.key == "queue") names = QueueOrderNames();
  if (setting.key == "cache") {
    for (const CacheRegime& regime : CacheRegimes()) names.emplace_back(regime.name);
  }
  return names;
}

std::string HelpOf(const Setting& setting) {
  const std::vector<std::string> names = NamesFor(setting);
  return std::string(setting.text) + (names.empty() ? "" : ": ") + fmt::format("{}", fmt::join(names, ", "));
}

// A value as an operator writes it.
std::string ShowValue(const Setting& setting, const SettingValue& value) {
  if (const auto* on = std::get_if<bool>(&value)) return *on ? "on" : "off";
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* number = std::get_if<double>(&value)) return fmt::format("{:g}", *number);
  const std::int64_t count = std::get<std::int64_t>(value);
  if (!setting.values.empty()) return std::string(setting.values[static_cast<std::size_t>(count)]);
  return setting.is_time() ? fmt::format("{:g}", static_cast<double>(count) / kNsPerSecond) : std::to_string(count);
}

std::string DefaultOf(const Setting& setting, bool many_presets) {
  if (setting.in_presets && many_presets) return "each preset's";
  const std::string value =
      setting.default_text.empty() ? ShowValue(setting, setting.get(SystemSpec())) : std::string(setting.default_text);
  return setting.in_presets ? "the preset's, or " + value : value;
}

// "wait, assist or auto"
std::string Choices(const Setting& setting) {
  const auto names = setting.values;
  return fmt::format("{} or {}", fmt::join(names.first(names.size() - 1), ", "), names.back());
}

Result<std::int64_t> ValueOf(const Setting& setting, const std::string& name) {
  const auto found = std::find(setting.values.begin(), setting.values.end(), name);
  if (found != setting.values.end()) return found - setting.values.begin();
  const std::string flag = FirstName(setting);
  return InvalidArgument(flag + ": expected " + Choices(setting) + ", found '" + name + "'", flag);
}

// A number of tokens of vLLM's --speculative-config, in the range of the flag that stands for it. nullopt: not given.
Result<std::optional<std::int64_t>> TokensOf(const nlohmann::json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return std::optional<std::int64_t>();
  const bool good = found->is_number_integer() && *found >= 1 && *found <= SpeculationOptions::kMostStepTokens;
  if (good) return std::optional<std::int64_t>(found->get<std::int64_t>());
  return InvalidArgument(fmt::format("--speculate: {}: expected 1 to {}, found {}", key,
                                     SpeculationOptions::kMostStepTokens, found->dump()),
                         "--speculate");
}

// Sets what vLLM's --speculative-config says, a JSON object.
Status ApplySpeculativeConfig(const std::string& text, SpeculationOptions& speculation) {
  const auto config = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto refuse = [](const std::string& expected, const std::string& found) {
    return InvalidArgument("--speculate: expected " + expected + ", found " + found, "--speculate");
  };
  if (!config.is_object()) return refuse("none, ngram or a JSON object", text);
  const std::string method = config.contains("method") ? config["method"].dump() : "no method";
  if (method != "\"ngram\"") return refuse("\"method\": \"ngram\" (a draft model is not served)", method);
  for (const auto& [key, value] : config.items()) {
    const bool known = key == "method" || key == "num_speculative_tokens" || key == "prompt_lookup_min" ||
                       key == "prompt_lookup_max" || value.is_null();
    if (!known) return refuse("method, num_speculative_tokens, prompt_lookup_min and prompt_lookup_max", key);
  }
  ASSIGN_OR_RETURN(const auto tokens, TokensOf(config, "num_speculative_tokens"));
  ASSIGN_OR_RETURN(const auto least, TokensOf(config, "prompt_lookup_min"));
  ASSIGN_OR_RETURN(const auto most, TokensOf(config, "prompt_lookup_max"));
  speculation.method = Speculation::kNgram;
  speculation.draft_tokens = tokens.value_or(speculation.draft_tokens);
  speculation.least_ngram = least ? *least : most.value_or(speculation.least_ngram);  // as in vLLM, one means both
  speculation.most_ngram = most ? *most : least.value_or(speculation.most_ngram);
  return Ok{};
}

TimeNs Nanoseconds(double seconds) { return static_cast<TimeNs>(seconds * static_cast<double>(kNsPerSecond)); }

}  // namespace

FlagTarget SettingFlags::TargetIn(Slot& slot, const Setting& setting) {
  const SettingValue value = setting.get(SystemSpec());
  if (setting.is_bytes()) return &slot.text;
  if (std::holds_alternative<bool>(value)) return &slot.on;
  if (std::holds_alternative<std::string>(value) || !setting.values.empty()) return &slot.text;
  if (std::holds_alternative<double>(value) || setting.is_time()) return &slot.number;
  return &slot.count;
}

std::size_t SettingFlags::IndexOf(std::string_view flag) {
  const auto found = std::find_if(kSettings.begin(), kSettings.end(),
                                  [&](const Setting& setting) { return FirstName(setting) == flag; });
  CHECK(found != kSettings.end());
  return static_cast<std::size_t>(found - kSettings.begin());
}

void SettingFlags::AddTo(CommandLine& line, SettingGroup group, SettingUse command, const std::string& title,
                         bool many_presets) {
  for (std::size_t i = 0; i < kSettings.size(); ++i) {
    const Setting& setting = kSettings[i];
    if (setting.group != group || (setting.use != SettingUse::kEverywhere && setting.use != command)) continue;
    Flag flag{.names = std::string(setting.flag),
              .target = TargetIn(slots_[i], setting),
              .unit = std::string(setting.unit),
              .group = title,
              .help = HelpOf(setting),
              .default_text = DefaultOf(setting, many_presets)};
    if (setting.flag_range.high > 0 && !setting.is_bytes())
      flag.range = {setting.flag_range.low, setting.flag_range.high};
    line.Add(std::move(flag));
  }
}

bool SettingFlags::Gives(std::string_view flag) const { return slots_[IndexOf(flag)].given(); }

void SettingFlags::Give(std::string_view flag, const SettingValue& value) {
  const std::size_t i = IndexOf(flag);
  Slot& slot = slots_[i];
  slot = {};
  if (const auto* on = std::get_if<bool>(&value)) slot.on = *on;
  if (const auto* number = std::get_if<double>(&value)) slot.number = *number;
  if (const auto* text = std::get_if<std::string>(&value)) slot.text = *text;
  const auto* count = std::get_if<std::int64_t>(&value);
  if (count == nullptr) return;
  if (!kSettings[i].values.empty()) {
    slot.text = ShowValue(kSettings[i], value);
  } else if (kSettings[i].is_time()) {
    slot.number = static_cast<double>(*count) / kNsPerSecond;
  } else {
    slot.count = *count;
  }
}

Status SettingFlags::ApplyTo(SystemSpec& spec) const {
  for (std::size_t i = 0; i < kSettings.size(); ++i) {
    const Setting& setting = kSettings[i];
    const Slot& slot = slots_[i];
    if (slot.on) setting.set(spec, *slot.on);
    if (slot.count) setting.set(spec, *slot.count);
    if (slot.number) {
      setting.set(spec, setting.is_time() ? SettingValue(Nanoseconds(*slot.number)) : SettingValue(*slot.number));
    }
    if (slot.text.empty()) continue;
    if (setting.key == "speculation" && slot.text.starts_with('{')) {
      RETURN_IF_ERROR(ApplySpeculativeConfig(slot.text, spec.speculation));
    } else if (setting.is_bytes()) {
      ASSIGN_OR_RETURN(const std::int64_t bytes, ParseBytes(slot.text, FirstName(setting)));
      setting.set(spec, bytes);
    } else if (setting.values.empty()) {
      setting.set(spec, slot.text);
    } else {
      ASSIGN_OR_RETURN(const std::int64_t value, ValueOf(setting, slot.text));
      setting.set(spec, value);
    }
  }
  if (spec.speculation.least_ngram > spec.speculation.most_ngram) {
    return InvalidArgument(fmt::format("--draft-ngram-min: expected at most --draft-ngram-max, {}, found {}",
                                       spec.speculation.most_ngram, spec.speculation.least_ngram),
                           "--draft-ngram-min");
  }
  if (spec.swapping.lower <= spec.swapping.upper) return Ok{};
  return InvalidArgument(fmt::format("--swap-lower: expected at most --swap-upper, {:g}, found {:g}",
                                     spec.swapping.upper, spec.swapping.lower),
                         "--swap-lower");
}

Status CheckMaxDecodeStep(const SystemSpec& spec, const PerformanceModel* model) {
  if (spec.max_decode_step == 0) return Ok{};
  const std::string flag = "--max-decode-step";
  if (model == nullptr) {
    return InvalidArgument(
        flag +
            ": expected --profile FILE beside it, because the time of a step is predicted; `loramux profile` "
            "measures one",
        flag);
  }
  const double shortest = ShortestStepSeconds(*model),
               seconds = static_cast<double>(spec.max_decode_step) / kNsPerSecond;
  if (seconds >= shortest) return Ok{};
  return InvalidArgument(fmt::format("{}: expected at least {:.4g} seconds, which a step takes for one request alone, "
                                     "found {:.4g}",
                                     flag, shortest, seconds),
                         flag);
}

}  // namespace loramux
