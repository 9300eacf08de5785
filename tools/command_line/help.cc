#include "tools/command_line/help.h"

#include <algorithm>
#include <sstream>
#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/core.h>

#include "tools/command_line/flag_text.h"

namespace loramux {
namespace {

constexpr std::size_t kTextColumn = 30;  // where the texts of the short help begin

// Words of `text` in lines of at most `columns`. The first line begins with `lead`, the others with as many blanks as
// `indent`.
std::string Wrapped(const std::string& text, std::string lead, std::size_t indent, std::size_t columns) {
  std::string result, line = std::move(lead);
  line.resize(std::max(line.size(), indent), ' ');
  std::size_t empty = line.size();
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (line.size() > empty && line.size() + 1 + word.size() > columns) {
      result += line + "\n";
      line.assign(indent, ' ');
      empty = indent;
    }
    line += (line.size() > empty ? " " : "") + word;
  }
  return result + line + "\n";
}

std::string Sentence(std::string text) { return text.ends_with('.') ? text : text + "."; }

std::string UsageLine(const std::string& program, const Command& command) {
  std::string usage = "Usage: " + program + command.name;
  for (const Flag& flag : command.line.flags()) {
    if (IsPositional(flag)) usage += " " + AllNames(flag).front() + (IsList(flag) ? "..." : "");
  }
  return usage + " [FLAGS]\n";
}

std::string NamesAndUnit(const Flag& flag) {
  std::string text;
  for (const std::string& name : AllNames(flag)) text += (text.empty() ? "" : ", ") + name;
  if (!IsSwitch(flag) && !IsPositional(flag)) text += " " + flag.unit + (IsList(flag) ? " ..." : "");
  return text;
}

std::string FullFlag(const Flag& flag, std::size_t columns) {
  std::string help = Sentence(flag.help);
  if (const std::string valid = ValidValues(flag); !valid.empty()) help += " Valid: " + valid + ".";
  help += flag.required ? " Required." : " Default: " + DefaultText(flag) + ".";
  return "  " + NamesAndUnit(flag) + "\n" + Wrapped(help, "", 6, columns);
}

// The first name alone, beside the first clause of its text.
std::string ShortFlag(const Flag& flag, std::size_t columns) {
  const bool named = !IsSwitch(flag) && !IsPositional(flag);
  std::string lead = "  " + (IsPositional(flag) ? AllNames(flag).front() : LongName(flag));
  if (named) lead += " " + flag.unit + (IsList(flag) ? "..." : "");
  std::string text;
  if (lead.size() + 2 > kTextColumn) {
    text = lead + "\n";
    lead.clear();
  }
  return text + Wrapped(BriefHelp(flag), std::move(lead), kTextColumn, columns);
}

std::string ConfigurationText(std::size_t columns) {
  return "\nConfiguration:\n  --config FILE\n" +
         Wrapped(
             "Read flags from a TOML file, with their names without dashes as keys: port = 8000. Each flag is also "
             "read from the environment, as in LORAMUX_PORT. The command line wins over the environment, and the "
             "environment over the file.",
             "", 6, columns);
}

std::string Footer(const Command& command) {
  return command.line.footer().empty() ? "" : "\n" + command.line.footer() + "\n";
}

}  // namespace

std::size_t HelpColumns() {
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return std::clamp<std::size_t>(size.ws_col, 60, 120);
}

std::string FullHelp(const std::string& program, const Command& command, std::size_t columns) {
  std::string text = command.summary + ".\n\n" + UsageLine(program, command);
  for (const auto& [group, flags] : GroupsOf(command.line)) {
    text += "\n" + (group.empty() ? "General" : group) + ":\n";
    for (const Flag* flag : flags) text += FullFlag(*flag, columns);
  }
  text += "\nHelp:\n  -h, --help\n      Print the flags that most users need.\n";
  text += "  --help-all\n      Print this text.\n";
  if (command.line.reads_configuration()) text += ConfigurationText(columns);
  return text + Footer(command);
}

std::string ShortHelp(const std::string& program, const Command& command, std::size_t columns) {
  const std::vector<Flag>& flags = command.line.flags();
  const auto common = std::count_if(flags.begin(), flags.end(), [](const Flag& flag) { return flag.common; });
  if (common == 0) return FullHelp(program, command, columns);
  std::string text = command.summary + ".\n" + UsageLine(program, command);
  for (const Flag& flag : flags) {
    if (flag.common) text += ShortFlag(flag, columns);
  }
  if (command.line.reads_configuration()) {
    text += Wrapped("Read flags from a TOML file; LORAMUX_PORT in the environment is --port", "  --config FILE",
                    kTextColumn, columns);
  }
  text += Wrapped(fmt::format("Explain all {} flags", flags.size()), "  --help-all", kTextColumn, columns);
  return text + Footer(command);
}

std::string ProgramHelp(const Program& program, std::size_t columns) {
  std::string text = program.summary + "\n\nUsage: " + program.name + " COMMAND [FLAGS]\n\nCommands:\n";
  for (const Command& command : program.commands) {
    text += Wrapped(command.summary, "  " + command.name, 14, columns);
  }
  return text + "\n  --version   Print the version\n\n" + program.footer + "\n";
}

}  // namespace loramux
