#include "tools/command_line/flag_text.h"

#include <algorithm>
#include <sstream>

namespace loramux {
namespace {

std::string Number(double value) {
  std::ostringstream text;
  text.precision(12);
  text << value;
  return text.str();
}

}  // namespace

std::string ValidValues(const Flag& flag) {
  if (flag.range) return Number(flag.range->first) + " to " + Number(flag.range->second);
  std::string list;
  for (const std::string& choice : flag.choices) list += (list.empty() ? "one of " : ", ") + choice;
  if (flag.path == FlagPath::kExistingFile) return "an existing file";
  if (flag.path == FlagPath::kExistingDirectory) return "an existing directory";
  if (flag.path == FlagPath::kExistingPath) return "an existing file or directory";
  return list;
}

std::vector<std::pair<std::string, std::vector<const Flag*>>> GroupsOf(const CommandLine& line) {
  std::vector<std::pair<std::string, std::vector<const Flag*>>> groups;
  for (const Flag& flag : line.flags()) {
    const auto same = [&](const auto& group) { return group.first == flag.group; };
    auto found = std::find_if(groups.begin(), groups.end(), same);
    if (found == groups.end()) found = groups.insert(groups.end(), {flag.group, {}});
    found->second.push_back(&flag);
  }
  return groups;
}

std::string DefaultText(const Flag& flag) { return flag.required ? "required" : flag.default_text.value_or("none"); }

std::string BriefHelp(const Flag& flag) {
  const std::size_t end = flag.help.find_first_of(".;:(");
  std::string brief = flag.help.substr(0, end);
  while (!brief.empty() && brief.back() == ' ') brief.pop_back();
  return brief;
}

}  // namespace loramux
