// The command line as data: every flag of every command with its text, unit, default, environment variable and checks.
// parse.cc hands the data to CLI11 (the only unit that sees it); help.cc writes the help, and reference.cc the flag
// reference, the manual page and the shell completions from the same data.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "tools/command_line/foreign_flag.h"

namespace loramux {

// Where the value of a flag goes. A bool is a switch: the flag takes no value. Vectors take several values.
// std::chrono::milliseconds are given in seconds.
using FlagTarget =
    std::variant<bool*, std::optional<bool>*, int*, std::int64_t*, std::uint64_t*, std::uint16_t*, float*, double*,
                 std::optional<std::int64_t>*, std::optional<double>*, std::chrono::milliseconds*, std::string*,
                 std::vector<int>*, std::vector<std::int64_t>*, std::vector<double>*, std::vector<std::string>*>;

// How an amount is written. kBytes: as in 16MiB. kSeconds: in seconds, while the target has nanoseconds.
enum class FlagForm { kNumber, kBytes, kSeconds };

// A path that must exist when the command line is parsed.
enum class FlagPath { kAny, kExistingFile, kExistingDirectory, kExistingPath };

struct Flag {
  // "--port", "-o,--output", "--on,!--no-on" for a switch with a negation; without dashes: a positional argument.
  std::string names;
  FlagTarget target;                  // must outlive the parse
  FlagForm form = FlagForm::kNumber;  // another one needs a target of std::int64_t or std::uint64_t
  // Stands for the value in the help text, and names the unit: "SECONDS", "TOKENS", "BYTES", "FILE". Empty for
  // switches.
  std::string unit;
  std::string group;
  std::string help;
  // Shown as the default. Without it, the target's value when the flag is added.
  std::optional<std::string> default_text;
  std::optional<std::pair<double, double>> range;  // both ends are valid
  std::vector<std::string> choices;                // the only valid values
  FlagPath path = FlagPath::kAny;
  bool required = false;
  bool comma_list = false;      // a list: its values may be separated by commas
  bool one_value_each = false;  // a list: the flag is repeated for each value, and takes one
  int exact_values = 0;         // a list of exactly so many values; 0: any number
  std::string needs, excludes;  // another flag, by one of its names
  bool common = false;          // `--help` shows it; `--help-all` shows every flag
  bool secret = false;          // its values are removed from the process's arguments and never shown
  // Variables of other programs that every command reads, after LORAMUX_..., as HF_TOKEN.
  std::vector<std::string> environment;
};

// The flags of one command, in the order in which the help shows them.
class CommandLine {
 public:
  // Reads the flag's default from its target. REQUIRES: a name that no other flag has.
  void Add(Flag flag);
  void set_footer(std::string footer) { footer_ = std::move(footer); }
  // Adds `--config FILE` (a TOML file whose keys are flags), and reads each flag that the command line does not set
  // from the environment: LORAMUX_ and the flag's name in capitals, as in LORAMUX_PORT. The command line wins over the
  // environment, and the environment over the file. `warnings`, if not null, receives what the user should know of it,
  // and must outlive the parse.
  void ReadConfiguration(std::vector<std::string>* warnings = nullptr) {
    reads_configuration_ = true;
    warnings_ = warnings;
  }
  // `given`, which must outlive the parse, receives the long name of each flag that the user set, in any way but by the
  // variable of another program.
  void TellGiven(std::vector<std::string>* given) { given_ = given; }
  // Takes flags of other servers too, on the command line and in the file. The table must outlive the program.
  void TakeForeign(std::span<const ForeignFlag> flags) { foreign_ = flags; }

  const std::vector<Flag>& flags() const { return flags_; }
  std::span<const ForeignFlag> foreign() const { return foreign_; }
  const std::string& footer() const { return footer_; }
  bool reads_configuration() const { return reads_configuration_; }
  void Warn(std::string text) const {
    if (warnings_ != nullptr) warnings_->push_back(std::move(text));
  }
  void WasGiven(std::string name) const {
    if (given_ != nullptr) given_->push_back(std::move(name));
  }

 private:
  std::vector<Flag> flags_;
  std::span<const ForeignFlag> foreign_;
  std::string footer_;
  bool reads_configuration_ = false;
  std::vector<std::string>* warnings_ = nullptr;
  std::vector<std::string>* given_ = nullptr;
};

// One command of the program.
struct Command {
  std::string name;
  std::string summary;  // one line, without a full stop
  CommandLine line;
  std::function<int()> run;  // returns the exit status of the process
  // How to start: lines that take the place of the error where the command stands alone and needs a flag. Empty: the
  // error it is.
  std::string first_steps = {};
};

struct Program {
  std::string name, summary, version, footer;
  std::vector<Command> commands;
  // Commands that this build leaves out, with what to do about it.
  std::vector<std::pair<std::string, std::string>> absent;
};

// The exit statuses of every command; a command may have further ones.
inline constexpr int kExitFailure = 1, kExitUsage = 2;

// Parses the arguments, runs the command that they name, and returns the exit status of the process. Errors of the
// command line, the environment and the configuration file go to stderr, with kExitUsage. Overwrites secrets in `argv`.
int RunProgram(Program& program, int argc, char** argv);
// The same for a program that is one command.
int RunCommand(Command& command, int argc, char** argv);

// Says on stderr why the command failed, and returns its exit status: kExitUsage if the error is the value of a flag,
// otherwise kExitFailure.
int FailCommand(const std::string& command, const Error& error);

// "--port" of "-p,--port"; the name itself for an argument that is only positional.
std::string LongName(const Flag& flag);
// Every name, without the marks of negations.
std::vector<std::string> AllNames(const Flag& flag);
// Whether the flag is (also) given without a name.
bool IsPositional(const Flag& flag);
bool IsSwitch(const Flag& flag);
bool IsList(const Flag& flag);
// "LORAMUX_PORT" of "--port".
std::string EnvironmentName(const Flag& flag);
// "port" of "--port".
std::string ConfigurationKey(const Flag& flag);

}  // namespace loramux
