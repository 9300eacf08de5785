// The flags of the settings of a system (kSettings). Every command has them from here, so that a name, a unit, a range,
// a default and an explanation is the same in all, and in what is made from the flags: help, configuration file,
// environment and reference.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "costs/performance_model.h"
#include "schedule/system_settings.h"
#include "tools/command_line/command_line.h"

namespace loramux {

// The settings that a command line gives. Those that it leaves open stay what a preset or the default says.
class SettingFlags {
 public:
  // Adds the flags of a group that `command` has, under the heading `title`. With `many_presets` the help says that
  // each preset has its default. The flags write into this object, which must outlive the parse.
  void AddTo(CommandLine& line, SettingGroup group, SettingUse command, const std::string& title,
             bool many_presets = false);
  // Whether the flag, by its first name, was given.
  bool Gives(std::string_view flag) const;
  // As if the flag were on the command line with the value of its setting; times in nanoseconds. For tests.
  void Give(std::string_view flag, const SettingValue& value);
  // Sets what was given. Errors: not the name of a value; thresholds in the wrong order.
  Status ApplyTo(SystemSpec& spec) const;

 private:
  // The value as the command line has it: one of these.
  struct Slot {
    std::optional<bool> on;
    std::optional<std::int64_t> count;
    std::optional<double> number;  // also of times, in seconds
    std::string text;              // empty: not given
    bool given() const { return on || count || number || !text.empty(); }
  };
  static FlagTarget TargetIn(Slot& slot, const Setting& setting);
  static std::size_t IndexOf(std::string_view flag);

  std::array<Slot, kSettings.size()> slots_;
};

// Error: the bound (SystemSpec::max_decode_step) has no model to predict by, or a request alone takes longer.
Status CheckMaxDecodeStep(const SystemSpec& spec, const PerformanceModel* model);

}  // namespace loramux
