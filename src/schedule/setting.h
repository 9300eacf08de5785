// A row of the table that describes SystemSpec (kSettings in schedule/system_settings.h): what one field is called,
// which values it takes, and with which flag an operator sets it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

namespace loramux {

struct SystemSpec;

// The value of a setting. Enumerations are integers, and so are times, in nanoseconds.
using SettingValue = std::variant<bool, std::int64_t, double, std::string>;

// Under which heading a command lists the flag.
enum class SettingGroup : std::uint8_t { kNoFlag, kAdapters, kMemory, kBatching, kOrder, kFairness, kDocuments };
// Which commands have the flag: all that compute, or one alone.
enum class SettingUse : std::uint8_t { kEverywhere, kServe, kSimulate };
// The least and the most, both valid.
struct SettingRange {
  double low = 0, high = 0;
};

struct Setting {
  std::string_view key;  // in recordings
  SettingRange range;    // range of a number or a time, as recordings have it
  SettingValue (*get)(const SystemSpec&) = nullptr;
  void (*set)(SystemSpec&, const SettingValue&) = nullptr;  // REQUIRES: the alternative that `get` returns
  std::span<const std::string_view> values = {};            // names of an enumeration's values, in order

  SettingGroup group = SettingGroup::kNoFlag;
  std::string_view flag = {};          // its names, separated by commas
  std::string_view unit = {};          // unit of the flag's value. SECONDS: it is a time
  std::string_view text = {};          // what it means to an operator
  SettingRange flag_range = {};        // range in the flag's unit; {0, 0}: names and switches
  std::string_view default_text = {};  // in place of the default's value
  bool in_presets = false;             // the default depends on the preset
  SettingUse use = SettingUse::kEverywhere;

  bool is_time() const { return unit == "SECONDS"; }
  bool is_bytes() const { return unit == "BYTES"; }

  // Each gives a row with more.
  constexpr Setting Names(std::span<const std::string_view> names) const {
    Setting row = *this;
    row.values = names;
    row.range = {0, static_cast<double>(names.size() - 1)};
    return row;
  }
  constexpr Setting Flag(SettingGroup in, std::string_view names, std::string_view of_value, std::string_view meaning,
                         SettingRange bounds = {}) const {
    Setting row = *this;
    row.group = in, row.flag = names, row.unit = of_value, row.text = meaning, row.flag_range = bounds;
    return row;
  }
  constexpr Setting Shown(std::string_view default_words) const {
    Setting row = *this;
    row.default_text = default_words;
    return row;
  }
  constexpr Setting InPresets() const {
    Setting row = *this;
    row.in_presets = true;
    return row;
  }
  constexpr Setting Only(SettingUse command) const {
    Setting row = *this;
    row.use = command;
    return row;
  }
};

// The field that the members lead to, each inside the one before.
template <auto Member, auto... Inner>
auto& FieldOf(auto& object) {
  if constexpr (sizeof...(Inner) == 0) {
    return object.*Member;
  } else {
    return FieldOf<Inner...>(object.*Member);
  }
}

// The alternative of SettingValue that holds a field.
template <typename Field>
using SettingHeld = std::conditional_t<std::is_same_v<Field, bool> || std::is_same_v<Field, double> ||
                                           std::is_same_v<Field, std::string>,
                                       Field, std::int64_t>;

// The row of the field that the members lead to.
template <auto... Members>
constexpr Setting Row(std::string_view key, SettingRange range = {}) {
  return {.key = key,
          .range = range,
          .get = [](const auto& spec) -> SettingValue {
            const auto& field = FieldOf<Members...>(spec);
            return static_cast<SettingHeld<std::remove_cvref_t<decltype(field)>>>(field);
          },
          .set =
              [](auto& spec, const SettingValue& value) {
                auto& field = FieldOf<Members...>(spec);
                using Field = std::remove_cvref_t<decltype(field)>;
                field = static_cast<Field>(std::get<SettingHeld<Field>>(value));
              }};
}

}  // namespace loramux
