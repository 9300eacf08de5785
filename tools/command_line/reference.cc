#include "tools/command_line/reference.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string_view>

#include <fmt/core.h>

#include "tools/command_line/flag_text.h"

namespace loramux {
namespace {

constexpr std::string_view kFormats[] = {"markdown", "man", "bash", "zsh", "fish"};

std::string Replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// ---------------------------------------------------------------- Markdown

std::string Cell(const std::string& text) {
  return Replaced(Replaced(Replaced(text, "|", "\\|"), "<", "&lt;"), "*", "\\*");
}

std::string MarkdownFlag(const Flag& flag, bool configuration) {
  std::string names;
  for (const std::string& name : AllNames(flag)) names += (names.empty() ? "`" : ", `") + name + "`";
  std::string help = Cell(flag.help);
  if (const std::string valid = ValidValues(flag); !valid.empty()) help += " (" + Cell(valid) + ")";
  const std::string value = IsSwitch(flag) ? "switch" : Cell(flag.unit) + (IsList(flag) ? " ..." : "");
  std::string row = fmt::format("| {} | {} | {} | {} |", names, value, Cell(DefaultText(flag)), help);
  if (!configuration) return row + "\n";
  row += " `" + EnvironmentName(flag) + "`";
  for (const std::string& name : flag.environment) row += ", `" + name + "`";
  row += fmt::format(" | `{}` |", ConfigurationKey(flag));
  return row + "\n";
}

std::string MarkdownForeign(const ForeignFlag& flag) {
  static constexpr std::string_view kMeanings[] = {"is", "holds anyway", "ignored", "refused"};
  std::string names = "`" + Replaced(std::string(flag.names), ",", "`, `") + "`";
  std::string text = Cell(std::string(flag.text));
  if (flag.meaning == ForeignMeaning::kAlias) text = "`" + text + "`";
  if (!flag.holds_for.empty()) text += "; fine: " + Replaced(std::string(flag.holds_for), "|", ", ");
  return fmt::format("| {} | {} | {} | {} |\n", names, flag.server, kMeanings[static_cast<std::size_t>(flag.meaning)],
                     text);
}

std::string MarkdownForeignFlags(const Command& command) {
  if (command.line.foreign().empty()) return {};
  std::string text = fmt::format(
      "\n### {}: Flags of other servers\n\nA start script for another server works here, or fails with what to write "
      "instead. *is*: another name of a flag.\n*holds anyway*: it asks for what is so without it. *ignored*: accepted, "
      "with a warning in the log. *refused*: the\nserver does not start. They are read from the command line and from "
      "`--config`, not from the environment.\n\n| flag | of | | meaning here |\n|---|---|---|---|\n",
      command.name);
  for (const ForeignFlag& flag : command.line.foreign()) text += MarkdownForeign(flag);
  return text;
}

std::string MarkdownCommand(const Command& command) {
  const bool configuration = command.line.reads_configuration();
  std::string text = fmt::format("## loramux {}\n\n{}.\n", command.name, command.summary);
  if (configuration) {
    text +=
        "\n`--config FILE` (or `LORAMUX_CONFIG`) reads flags from a TOML file. The command line wins over the "
        "environment,\nand the environment over the file. A switch is `true` or `false` in the environment and in the "
        "file. A list in the\nenvironment takes one value, or values with commas where the flag takes commas.\n";
  }
  for (const auto& [group, flags] : GroupsOf(command.line)) {
    text += fmt::format("\n### {}: {}\n\n", command.name, group.empty() ? "general" : Cell(group));
    text += configuration
                ? "| flag | value | default | meaning | environment | key in --config |\n|---|---|---|---|---|---|\n"
                : "| flag | value | default | meaning |\n|---|---|---|---|\n";
    for (const Flag* flag : flags) text += MarkdownFlag(*flag, configuration);
  }
  text += MarkdownForeignFlags(command);
  return text + "\n";
}

// ---------------------------------------------------------------- Manual page

std::string Roff(const std::string& text) {
  std::string safe = Replaced(Replaced(text, "\\", "\\e"), "-", "\\-");
  return Replaced(safe.starts_with('.') || safe.starts_with('\'') ? "\\&" + safe : safe, "\n", "\n\\&");
}

std::string ManFlag(const Flag& flag) {
  std::string names;
  for (const std::string& name : AllNames(flag)) names += (names.empty() ? "" : ", ") + Roff(name);
  std::string text =
      fmt::format(".TP\n\\fB{}\\fR{}\n{}", names,
                  IsSwitch(flag) || flag.unit.empty() ? "" : " \\fI" + Roff(flag.unit) + "\\fR", Roff(flag.help));
  if (const std::string valid = ValidValues(flag); !valid.empty()) text += " (" + Roff(valid) + ")";
  return text + fmt::format(". Default: {}.\n", Roff(DefaultText(flag)));
}

// ---------------------------------------------------------------- Completions

// Every name of every flag of a command that begins with a dash.
std::vector<std::string> DashNames(const Command& command) {
  std::vector<std::string> names{"--help", "--help-all"};
  if (command.line.reads_configuration()) names.push_back("--config");
  for (const Flag& flag : command.line.flags()) {
    for (const std::string& name : AllNames(flag)) {
      if (name.front() == '-') names.push_back(name);
    }
  }
  return names;
}

bool TakesPath(const Flag& flag) {
  return flag.path != FlagPath::kAny || flag.unit == "FILE" || flag.unit == "DIR" || flag.unit == "PATH";
}

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

}  // namespace

std::string MarkdownReference(const Program& program) {
  std::string text =
      "# Every flag\n\n<!-- Written by `loramux reference markdown`; a test fails if it is stale. Do not edit. -->\n\n"
      "Generated from the program's own definitions (`loramux reference markdown`). \"...\" after a value: the flag "
      "takes several.\n\n";
  for (const Command& command : program.commands) text += MarkdownCommand(command);
  while (text.ends_with("\n\n")) text.pop_back();
  return text;
}

std::string ManualPage(const Program& program) {
  std::string text = fmt::format(
      ".TH LORAMUX 1 \"\" \"loramux {}\" \"User Commands\"\n.SH NAME\nloramux \\- serve one "
      "base language model with hundreds of LoRA adapters\n.SH SYNOPSIS\n.B loramux\n"
      "\\fICOMMAND\\fR [\\fIFLAG\\fR ...]\n.SH DESCRIPTION\nloramux serves a base language "
      "model with hundreds of LoRA adapters behind an OpenAI\\-compatible API. Requests of "
      "different adapters share every batch.\n.SH COMMANDS\n",
      Roff(program.version));
  for (const Command& command : program.commands) {
    text += fmt::format(".TP\n.B {}\n{}.\n", Roff(command.name), Roff(command.summary));
  }
  for (const Command& command : program.commands) {
    text += fmt::format(".SH \"FLAGS OF {}\"\n", Roff(command.name));
    if (command.line.reads_configuration()) {
      text +=
          "Each flag is also read from the environment (LORAMUX_ and its name in capitals, as in LORAMUX_PORT) and "
          "from "
          "the TOML file of \\fB\\-\\-config\\fR (its name without dashes). The command line wins over the "
          "environment, and the environment over the file.\n";
    }
    for (const auto& [group, flags] : GroupsOf(command.line)) {
      if (!group.empty()) text += fmt::format(".SS \"{}\"\n", Replaced(Roff(group), "\"", "\\(dq"));
      for (const Flag* flag : flags) text += ManFlag(*flag);
    }
  }
  return text + ".SH SEE ALSO\nThe documentation in /usr/share/doc/loramux.\n";
}

std::string BashCompletion(const Program& program) {
  std::string commands, cases, paths, choices;
  for (const Command& command : program.commands) {
    commands += (commands.empty() ? "" : " ") + command.name;
    cases += fmt::format("    {}) words=\"{}\" ;;\n", command.name, Joined(DashNames(command)));
    for (const Flag& flag : command.line.flags()) {
      for (const std::string& name : AllNames(flag)) {
        if (name.front() != '-') continue;
        if (TakesPath(flag)) paths += "|" + command.name + " " + name;
        if (!flag.choices.empty()) {
          choices += fmt::format("    \"{} {}\") COMPREPLY=($(compgen -W \"{}\" -- \"$current\")); return ;;\n",
                                 command.name, name, Joined(flag.choices));
        }
      }
    }
  }
  return fmt::format(
      R"(# bash completion of loramux: source it, or put it into /usr/share/bash-completion/completions/loramux.
_loramux() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  local command="${{COMP_WORDS[1]}}" words
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{} --help --version" -- "$current")); return
  fi
  case "$command $previous" in
{}  esac
  case "|{}|" in
    *"|$command $previous|"*) COMPREPLY=($(compgen -f -- "$current")); return ;;
  esac
  case "$command" in
{}  esac
  case "$current" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
    *) COMPREPLY=($(compgen -f -- "$current")) ;;
  esac
}}
complete -o filenames -F _loramux loramux
)",
      commands, choices, paths.empty() ? "" : paths.substr(1), cases);
}

std::string ZshCompletion(const Program& program) {
  const auto quoted = [](const std::string& text) {
    return Replaced(Replaced(Replaced(Replaced(text, "'", "'\\''"), "[", "\\["), "]", "\\]"), ":", "\\:");
  };
  std::string commands, cases;
  for (const Command& command : program.commands) {
    commands += fmt::format("    '{}:{}'\n", command.name, quoted(command.summary));
    cases += fmt::format("    {}) _arguments '--help[Print the flags]'", command.name);
    for (const Flag& flag : command.line.flags()) {
      for (const std::string& name : AllNames(flag)) {
        if (name.front() != '-') continue;
        cases += fmt::format(" \\\n      '{}[{}]", name, quoted(BriefHelp(flag)));
        if (!IsSwitch(flag)) {
          const std::string action = TakesPath(flag)        ? "_files"
                                     : flag.choices.empty() ? " "
                                                            : "(" + Joined(flag.choices) + ")";
          cases += fmt::format(":{}:{}", quoted(flag.unit), action);
        }
        cases += "'";
      }
    }
    cases += " \\\n      '*:file:_files' ;;\n";
  }
  return fmt::format(R"(#compdef loramux
# zsh completion of loramux: put it as _loramux into a directory of $fpath.
_loramux() {{
  local -a commands=(
{}  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{}  esac
}}
_loramux "$@"
)",
                     commands, cases);
}

std::string FishCompletion(const Program& program) {
  const auto quoted = [](const std::string& text) {
    return "'" + Replaced(Replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
  };
  std::string text = "# fish completion of loramux: put it into ~/.config/fish/completions/loramux.fish.\n";
  for (const Command& command : program.commands) {
    text += fmt::format("complete -c loramux -n __fish_use_subcommand -f -a {} -d {}\n", command.name,
                        quoted(command.summary));
    for (const Flag& flag : command.line.flags()) {
      for (const std::string& name : AllNames(flag)) {
        if (name.front() != '-') continue;
        text += fmt::format("complete -c loramux -n '__fish_seen_subcommand_from {}' {} {} -d {}", command.name,
                            name.starts_with("--") ? "-l" : "-s", name.substr(name.starts_with("--") ? 2 : 1),
                            quoted(BriefHelp(flag)));
        if (!flag.choices.empty()) {
          text += " -x -a " + quoted(Joined(flag.choices));
        } else if (!IsSwitch(flag)) {
          text += TakesPath(flag) ? " -r" : " -x";
        }
        text += "\n";
      }
    }
  }
  return text;
}

Command ReferenceCommand(const Program& program) {
  const auto format = std::make_shared<std::string>("markdown");
  Command command{.name = "reference", .summary = "Print the flag reference, the manual page or a shell completion"};
  command.line.Add({.names = "format",
                    .target = format.get(),
                    .unit = "FORMAT",
                    .help = "What to print",
                    .choices = {std::begin(kFormats), std::end(kFormats)}});
  command.line.set_footer("Example: loramux reference bash > /usr/share/bash-completion/completions/loramux");
  command.run = [format, &program] {
    const std::string& name = *format;
    const std::string text = name == "man"    ? ManualPage(program)
                             : name == "bash" ? BashCompletion(program)
                             : name == "zsh"  ? ZshCompletion(program)
                             : name == "fish" ? FishCompletion(program)
                                              : MarkdownReference(program);
    std::fputs(text.c_str(), stdout);
    return 0;
  };
  return command;
}

}  // namespace loramux
