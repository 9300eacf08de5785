// The only unit that sees CLI11.
#include <memory>
#include <type_traits>

#include <CLI/CLI.hpp>

#include "tools/command_line/command_line.h"
#include "tools/command_line/config_file.h"
#include "tools/command_line/reference.h"

namespace loramux {
namespace {

CLI::Option* AddOption(CLI::App& app, const Flag& flag) {
  const auto add = [&](auto* target) -> CLI::Option* {
    using Value = std::remove_pointer_t<decltype(target)>;
    if constexpr (std::is_same_v<Value, bool>) {
      return app.add_flag(flag.names, *target, flag.help);
    } else if constexpr (std::is_same_v<Value, std::optional<bool>>) {
      // A function: CLI11 would set an optional to false where neither form is given.
      return app.add_flag_function(
          flag.names, [target](std::int64_t on) { *target = on > 0; }, flag.help);
    } else if constexpr (std::is_same_v<Value, std::chrono::milliseconds>) {
      const auto set = [target](const double& seconds) {
        *target = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
      };
      return app.add_option_function<double>(flag.names, set, flag.help);
    } else {
      return app.add_option(flag.names, *target, flag.help);
    }
  };
  return std::visit(add, flag.target);
}

void AddRange(CLI::Option& option, const Flag& flag) {
  const auto [low, high] = *flag.range;
  const bool real = std::visit(
      [](auto* target) {
        using Value = std::remove_pointer_t<decltype(target)>;
        return std::is_same_v<Value, double> || std::is_same_v<Value, float> ||
               std::is_same_v<Value, std::vector<double>> || std::is_same_v<Value, std::chrono::milliseconds>;
      },
      flag.target);
  if (real) {
    option.check(CLI::Range(low, high));
  } else {
    option.check(CLI::Range(static_cast<std::int64_t>(low), static_cast<std::int64_t>(high)));
  }
}

void AddChecks(CLI::Option& option, const Flag& flag) {
  if (flag.range) AddRange(option, flag);
  if (!flag.choices.empty()) option.check(CLI::IsMember(flag.choices));
  if (flag.path == FlagPath::kExistingFile) option.check(CLI::ExistingFile);
  if (flag.path == FlagPath::kExistingDirectory) option.check(CLI::ExistingDirectory);
  if (flag.path == FlagPath::kExistingPath) option.check(CLI::ExistingPath);
  option.required(flag.required);
  if (flag.comma_list) option.delimiter(',');
  if (flag.one_value_each) option.allow_extra_args(false);
  if (flag.exact_values > 0) option.expected(flag.exact_values);
}

void AddFlags(CLI::App& app, const CommandLine& line) {
  for (const Flag& flag : line.flags()) {
    CLI::Option& option = *AddOption(app, flag);
    if (!flag.group.empty()) option.group(flag.group);
    if (!flag.unit.empty()) option.type_name(flag.unit);
    if (flag.default_text && !IsSwitch(flag) && *flag.default_text != "none") option.default_str(*flag.default_text);
    if (line.reads_configuration()) option.envname(EnvironmentName(flag));
    AddChecks(option, flag);
  }
  for (const Flag& flag : line.flags()) {
    CLI::Option& option = *app.get_option(LongName(flag));
    if (!flag.needs.empty()) option.needs(app.get_option(flag.needs));
    if (!flag.excludes.empty()) option.excludes(app.get_option(flag.excludes));
  }
}

CLI::Option* FindOption(CLI::App& app, const std::string& key) {
  CLI::Option* option = app.get_option_no_throw("--" + key);
  if (option == nullptr) option = app.get_option_no_throw(key);  // the positional argument
  return option != nullptr && option->get_configurable() ? option : nullptr;
}

void SetOption(CLI::Option& option, const ConfigEntry& entry) {
  if (entry.values.empty()) return;  // an empty list: as if the flag were not given
  const bool takes_no_value = option.get_expected_max() == 0;
  if (!takes_no_value) {
    option.add_result(entry.values);
  } else if (entry.values.size() == 1 && (entry.values[0] == "true" || entry.values[0] == "false")) {
    option.add_result(option.get_flag_value("--" + entry.key, entry.values[0]));
  } else {
    throw CLI::ValidationError("--" + entry.key,
                               "expected true or false, found " + CLI::detail::join(entry.values, ", "));
  }
  option.run_callback();
}

void ApplyEntry(CLI::App& app, const ConfigEntry& entry) {
  const auto refuse = [&](const std::string& what) { throw CLI::ConfigError(entry.place + ": " + what); };
  CLI::Option* option = FindOption(app, entry.key);
  if (option == nullptr) {
    refuse("unknown key '" + entry.key + "': expected a flag of `loramux " + app.get_name() +
           " --help` without its dashes");
  }
  if (!option->empty()) return;  // the command line or the environment has it
  if (entry.values.size() > 1 && option->get_items_expected_max() == 1) {
    refuse(entry.key + ": expected one value, found a list of " + std::to_string(entry.values.size()));
  }
  try {
    SetOption(*option, entry);
  } catch (const CLI::ParseError& error) {
    refuse(error.what());
  }
}

// Runs after the command line and the environment are read, so both win over the file. Flags may be added afterwards.
void AddConfigOption(CLI::App& app) {
  const auto apply = [&app](const std::string& file) {
    const Result<std::vector<ConfigEntry>> entries = ReadConfigFile(file);
    if (!entries.ok()) throw CLI::ConfigError(entries.error().message);
    for (const ConfigEntry& entry : *entries) ApplyEntry(app, entry);
  };
  app.add_option_function<std::string>(
         "--config", apply,
         "TOML file with flags as keys, without dashes: port = 8000. The command line and "
         "the environment win over it")
      ->configurable(false)
      ->type_name("FILE")
      ->envname("LORAMUX_CONFIG");
}

}  // namespace

int RunProgram(Program& program, int argc, char** argv) {
  CLI::App app{program.summary, program.name};
  app.require_subcommand(1);
  app.set_version_flag("--version", program.version);
  app.footer(program.footer);
  int status = 0;
  for (Command& command : program.commands) {
    CLI::App* sub = app.add_subcommand(command.name, command.summary);
    if (command.line.reads_configuration()) AddConfigOption(*sub);
    AddFlags(*sub, command.line);
    sub->formatter_fn([&command](const CLI::App*, std::string, CLI::AppFormatMode) { return HelpText(command); });
    sub->callback([&status, &command] { status = command.run(); });
  }
  for (const auto& [name, advice] : program.absent) {
    CLI::App* sub = app.add_subcommand(name, "")->group("");  // not listed
    sub->allow_extras()->set_help_flag();
    sub->parse_complete_callback(
        [name = name, advice = advice] { throw CLI::ValidationError("loramux " + name, advice); });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  return status;
}

}  // namespace loramux
