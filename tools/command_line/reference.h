// What the program says of itself: the flag reference, the manual page and the shell completions, all from the
// definitions that the command line is parsed with.
#pragma once

#include <string>

#include "tools/command_line/command_line.h"

namespace loramux {

// docs/reference/flags.md: a table for each command and group of flags.
std::string MarkdownReference(const Program& program);
// A manual page in man(7) macros.
std::string ManualPage(const Program& program);
std::string BashCompletion(const Program& program);
std::string ZshCompletion(const Program& program);
std::string FishCompletion(const Program& program);

// `loramux reference FORMAT`: prints one of these. `program` must outlive the command; it is read when the command
// runs.
Command ReferenceCommand(const Program& program);

}  // namespace loramux
