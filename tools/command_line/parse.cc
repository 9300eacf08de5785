// The only unit that sees CLI11.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <sstream>
#include <type_traits>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "tools/command_line/command_line.h"
#include "tools/command_line/config_file.h"
#include "tools/command_line/environment.h"
#include "tools/command_line/help.h"
#include "tools/command_line/suggest.h"

namespace loramux {
namespace {

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream{std::string(text)};
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// ---------------------------------------------------------------- Flags

// The flag's names and those that other servers give it.
std::string NamesWithAliases(const CommandLine& line, const Flag& flag) {
  std::string names = flag.names;
  for (const ForeignFlag& foreign : line.foreign()) {
    if (foreign.meaning == ForeignMeaning::kAlias && foreign.text == LongName(flag)) {
      names += "," + std::string(foreign.names);
    }
  }
  return names;
}

// An amount in a form of its own (FlagForm).
template <typename Value>
CLI::Option* AddAmount(CLI::App& app, const std::string& names, const Flag& flag, Value* target) {
  if (flag.form == FlagForm::kSeconds) {
    const auto set = [target](const double& seconds) {
      *target = static_cast<Value>(std::llround(seconds * static_cast<double>(kNsPerSecond)));
    };
    return app.add_option_function<double>(names, set, flag.help);
  }
  const auto set = [target, name = LongName(flag)](const std::string& text) {
    const Result<std::int64_t> bytes = ParseBytes(text, name);
    if (!bytes.ok()) throw CLI::ValidationError(bytes.error().message);
    *target = static_cast<Value>(*bytes);
  };
  return app.add_option_function<std::string>(names, set, flag.help);
}

CLI::Option* AddOption(CLI::App& app, const CommandLine& line, const Flag& flag) {
  const std::string names = NamesWithAliases(line, flag);
  const auto add = [&](auto* target) -> CLI::Option* {
    using Value = std::remove_pointer_t<decltype(target)>;
    if constexpr (std::is_same_v<Value, bool>) {
      return app.add_flag(names, *target, flag.help);
    } else if constexpr (std::is_same_v<Value, std::optional<bool>>) {
      // A function: CLI11 would set an optional to false where neither form is given.
      return app.add_flag_function(
          names, [target](std::int64_t on) { *target = on > 0; }, flag.help);
    } else if constexpr (std::is_same_v<Value, std::chrono::milliseconds>) {
      const auto set = [target](const double& seconds) {
        *target = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
      };
      return app.add_option_function<double>(names, set, flag.help);
    } else {
      if constexpr (std::is_same_v<Value, std::int64_t> || std::is_same_v<Value, std::uint64_t>) {
        if (flag.form != FlagForm::kNumber) return AddAmount(app, names, flag, target);
      }
      return app.add_option(names, *target, flag.help);
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
               std::is_same_v<Value, std::optional<double>> || std::is_same_v<Value, std::vector<double>> ||
               std::is_same_v<Value, std::chrono::milliseconds>;
      },
      flag.target);
  if (real || flag.form == FlagForm::kSeconds) {
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

// The first of the flag's variables that is set, or else the one that is named after it.
std::string VariableOf(const Flag& flag) {
  const std::string own = EnvironmentName(flag);
  if (EnvironmentValue(own)) return own;
  const auto set = std::find_if(flag.environment.begin(), flag.environment.end(),
                                [](const std::string& name) { return EnvironmentValue(name).has_value(); });
  return set == flag.environment.end() ? own : *set;
}

void AddFlags(CLI::App& app, const CommandLine& line) {
  for (const Flag& flag : line.flags()) {
    CLI::Option& option = *AddOption(app, line, flag);
    if (!flag.group.empty()) option.group(flag.group);
    if (!flag.unit.empty()) option.type_name(flag.unit);
    if (flag.default_text && !IsSwitch(flag) && *flag.default_text != "none") option.default_str(*flag.default_text);
    const std::string variable = VariableOf(flag);
    if (line.reads_configuration() || variable != EnvironmentName(flag)) option.envname(variable);
    AddChecks(option, flag);
  }
  for (const Flag& flag : line.flags()) {
    CLI::Option& option = *app.get_option(LongName(flag));
    if (!flag.needs.empty()) option.needs(app.get_option(flag.needs));
    if (!flag.excludes.empty()) option.excludes(app.get_option(flag.excludes));
  }
}

// ---------------------------------------------------------------- Flags of other servers

bool HoldsFor(const ForeignFlag& flag, const std::vector<std::string>& values) {
  const std::vector<std::string> fine = Split(flag.holds_for, '|');
  return !values.empty() && std::all_of(values.begin(), values.end(), [&](const std::string& value) {
    return std::find(fine.begin(), fine.end(), value) != fine.end();
  });
}

// `--disable-radix-cache` as `--enable-prefix-caching=false`, unless that flag is given too.
void SetInstead(CLI::App& app, std::string_view assignment) {
  const std::vector<std::string> parts = Split(assignment, '=');
  CLI::Option& option = *app.get_option(parts.at(0));
  if (!option.empty()) return;
  const bool is_switch = option.get_expected_max() == 0;
  option.add_result(is_switch ? option.get_flag_value(parts[0], parts.at(1)) : parts.at(1));
  option.run_callback();
}

void TakeForeignFlag(CLI::App& app, const CommandLine& line, const ForeignFlag& flag,
                     const std::vector<std::string>& values) {
  const std::string name = Split(flag.names, ',').at(0);
  if (flag.meaning == ForeignMeaning::kAlias) return SetInstead(app, flag.text);
  if (flag.meaning == ForeignMeaning::kHolds || HoldsFor(flag, values)) return;
  const std::string text = fmt::format("{} (a flag of {}): {}", name, flag.server, flag.text);
  if (flag.meaning == ForeignMeaning::kRefused) throw CLI::ValidationError(text);
  line.Warn(text);
}

void AddForeignFlags(CLI::App& app, const CommandLine& line) {
  for (const ForeignFlag& flag : line.foreign()) {
    const std::string names(flag.names);
    if (flag.meaning == ForeignMeaning::kAlias && flag.text.find('=') == std::string_view::npos) {
      CHECK(app.get_option_no_throw(std::string(flag.text)) != nullptr);  // AddOption gave it these names
      continue;
    }
    if (flag.values == ForeignValues::kNone) {
      app.add_flag_function(names, [&](std::int64_t) { TakeForeignFlag(app, line, flag, {}); });
      continue;
    }
    const auto take = [&](const std::vector<std::string>& values) { TakeForeignFlag(app, line, flag, values); };
    CLI::Option* option = app.add_option_function<std::vector<std::string>>(names, take);
    if (flag.values == ForeignValues::kOne) option->expected(1);
  }
}

// ---------------------------------------------------------------- The configuration file

CLI::Option* FindOption(CLI::App& app, const std::string& key) {
  CLI::Option* option = app.get_option_no_throw("--" + key);
  if (option == nullptr) option = app.get_option_no_throw(key);  // the positional argument
  return option != nullptr && option->get_configurable() ? option : nullptr;
}

// Every long name of a flag of the command.
std::vector<std::string> KnownNames(const CLI::App& app, bool dashes) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back((dashes ? "--" : "") + name);
  }
  return names;
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
           " --help-all` without its dashes." + DidYouMean(entry.key, KnownNames(app, /*dashes=*/false)));
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

// ---------------------------------------------------------------- The command line

// "--max_model_len" and "-tp" as CLI11 knows them: with dashes, and two of them before a long name.
std::string WithDashes(const CLI::App& app, const std::string& argument) {
  const std::size_t end = std::min(argument.find('='), argument.size());
  std::string name = argument.substr(0, end);
  if (app.get_option_no_throw(name) != nullptr) return argument;
  std::replace(name.begin(), name.end(), '_', '-');
  if (!name.starts_with("--")) name.insert(0, "-");
  return app.get_option_no_throw(name) == nullptr ? argument : name + argument.substr(end);
}

// The arguments behind the command, in CLI11's form. An unknown flag is an error before any other is looked for,
// because what follows it could be anything.
void Normalise(const CLI::App& app, std::vector<std::string>& arguments) {
  for (std::size_t i = 1; i < arguments.size() && arguments[i] != "--"; ++i) {
    std::string& argument = arguments[i];
    if (argument.size() <= 2 || argument[0] != '-') continue;
    argument = WithDashes(app, argument);
    const std::string name = argument.substr(0, argument.find('='));
    if (!name.starts_with("--") || app.get_option_no_throw(name) != nullptr) continue;
    throw CLI::ExtrasError("unknown flag " + name + "." + DidYouMean(name, KnownNames(app, /*dashes=*/true)),
                           CLI::ExitCodes::ExtrasError);
  }
}

CLI::App& FindCommand(CLI::App& app, const std::string& name) {
  for (CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == name) return *command;
  }
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  throw CLI::ExtrasError("unknown command '" + name + "'." + DidYouMean(name, names), CLI::ExitCodes::ExtrasError);
}

// A variable that is nearly that of a flag is a mistake; others with the prefix belong to the system that starts this
// process (Kubernetes sets LORAMUX_SERVICE_HOST for a service of this name).
void CheckEnvironment(const CommandLine& line) {
  if (!line.reads_configuration()) return;
  std::vector<std::string> known{"LORAMUX_CONFIG"};
  for (const Flag& flag : line.flags()) known.push_back(EnvironmentName(flag));
  for (const std::string& name : EnvironmentNames("LORAMUX_")) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string meant = NearestName(name, known);
    if (!meant.empty() && EditDistance(name, meant) <= 2) {
      line.Warn("the environment variable " + name + " sets no flag. Did you mean " + meant + "?");
    }
  }
}

// Overwrites the values of secret flags, which others can see in the list of processes.
void HideSecrets(const CommandLine& line, int argc, char** argv) {
  std::vector<std::string> secret;
  for (const Flag& flag : line.flags()) {
    if (flag.secret) secret.push_back(LongName(flag));
  }
  bool hide = false;
  for (int i = 2; i < argc; ++i) {
    std::string name = argv[i];
    const std::size_t equals = std::min(name.find('='), name.size());
    std::size_t from = hide && name[0] != '-' ? 0 : name.size();
    if (name[0] == '-') {
      std::string plain = name.substr(0, equals);
      std::replace(plain.begin(), plain.end(), '_', '-');
      hide = std::find(secret.begin(), secret.end(), plain) != secret.end();
      if (hide) from = std::min(equals + 1, name.size());
    }
    std::memset(argv[i] + from, '*', name.size() - from);
  }
}

void TellGiven(const CLI::App& app, const CommandLine& line) {
  for (const Flag& flag : line.flags()) {
    const bool by_another_program = VariableOf(flag) != EnvironmentName(flag);
    if (!by_another_program && !app.get_option(LongName(flag))->empty()) line.WasGiven(LongName(flag));
  }
}

// `program`: how the user calls it, with a blank behind it. Empty: the command is a program.
void FillCommand(CLI::App& app, const std::string& program, Command& command, int& status) {
  app.set_help_all_flag("--help-all");
  AddFlags(app, command.line);
  AddForeignFlags(app, command.line);
  if (command.line.reads_configuration()) AddConfigOption(app);  // last: the command line is known then
  app.formatter_fn([&command, program](const CLI::App*, std::string, CLI::AppFormatMode mode) {
    const auto help = mode == CLI::AppFormatMode::All ? FullHelp : ShortHelp;
    return help(program, command, HelpColumns());
  });
  app.callback([&status, &command, &app] {
    CheckEnvironment(command.line);
    TellGiven(app, command.line);
    status = command.run();
  });
}

void AddAbsentCommand(CLI::App& app, const std::string& name, const std::string& advice) {
  CLI::App* sub = app.add_subcommand(name, "")->group("");  // not listed
  sub->allow_extras()->set_help_flag();
  sub->parse_complete_callback([advice] { throw CLI::ValidationError(advice); });
}

int Report(CLI::App& app, const CLI::ParseError& error, const std::string& command) {
  if (error.get_exit_code() == 0) return app.exit(error);  // help or version
  const std::string name = app.get_name() + (command.empty() ? "" : " " + command);
  fmt::print(stderr, "{}: {}\nRun `{} --help` for the flags.\n", name, error.what(), name);
  return kExitUsage;
}

}  // namespace

int RunProgram(Program& program, int argc, char** argv) {
  CLI::App app{program.summary, program.name};
  app.require_subcommand(1);
  app.set_version_flag("--version", program.version);
  app.formatter_fn(
      [&program](const CLI::App*, std::string, CLI::AppFormatMode) { return ProgramHelp(program, HelpColumns()); });
  int status = 0;
  for (Command& command : program.commands)
    FillCommand(*app.add_subcommand(command.name, command.summary), program.name + " ", command, status);
  for (const auto& [name, advice] : program.absent) AddAbsentCommand(app, name, advice);
  std::vector<std::string> arguments(argv + 1, argv + argc);
  std::string name;
  try {
    if (!arguments.empty() && !arguments[0].starts_with('-')) {
      CLI::App& command = FindCommand(app, arguments[0]);
      name = command.get_name();
      if (!command.get_allow_extras()) Normalise(command, arguments);
    }
    for (const Command& command : program.commands) {
      if (command.name == name) HideSecrets(command.line, argc, argv);
    }
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    app.parse(std::move(arguments));
  } catch (const CLI::RequiredError& error) {
    const auto command = std::find_if(program.commands.begin(), program.commands.end(),
                                      [&](const Command& candidate) { return candidate.name == name; });
    if (argc > 2 || command == program.commands.end() || command->first_steps.empty()) return Report(app, error, name);
    fmt::print(stderr, "{}", command->first_steps);
    return kExitUsage;
  } catch (const CLI::ParseError& error) {
    return Report(app, error, name);
  }
  return status;
}

int RunCommand(Command& command, int argc, char** argv) {
  CLI::App app{command.summary, command.name};
  int status = 0;
  FillCommand(app, "", command, status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return Report(app, error, "");
  }
  return status;
}

}  // namespace loramux
