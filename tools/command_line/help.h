// What `--help` and `--help-all` print.
#pragma once

#include <cstddef>
#include <string>

#include "tools/command_line/command_line.h"

namespace loramux {

// The width of the terminal that standard output goes to, from 60 to 120 columns; 80 if it goes elsewhere.
std::size_t HelpColumns();

// The common flags of a command, a line or two each, with the command's examples. A command without common
// flags shows all.
std::string ShortHelp(const std::string& program, const Command& command, std::size_t columns);
// Every flag with its default, its valid values and its full text.
std::string FullHelp(const std::string& program, const Command& command, std::size_t columns);
// The commands, and examples of the program.
std::string ProgramHelp(const Program& program, std::size_t columns);

}  // namespace loramux
