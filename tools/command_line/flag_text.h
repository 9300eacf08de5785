// Texts about a flag that the help and the reference share.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/command_line/command_line.h"

namespace loramux {

// "1 to 256", "one of text, json", or nothing.
std::string ValidValues(const Flag& flag);
// The default as text: "required" where there is none, "none" for an empty one.
std::string DefaultText(const Flag& flag);
// The first clause of the help.
std::string BriefHelp(const Flag& flag);
// The flags of each group, in the order of the definitions; groups in the order of their first flag.
std::vector<std::pair<std::string, std::vector<const Flag*>>> GroupsOf(const CommandLine& line);

}  // namespace loramux
