// `--config FILE`: the flags of a command from a TOML file.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace loramux {

struct ConfigEntry {
  std::string key;                  // a flag's long name without its dashes, or the positional argument's name
  std::vector<std::string> values;  // as the command line would carry them; a list in the file has several
  std::string place;                // "FILE:LINE", for messages
};

// The keys of a TOML file, in the file's order. Tables are refused, since flags have no levels. Errors name the file,
// the line, what was expected and what was found.
Result<std::vector<ConfigEntry>> ReadConfigFile(const std::string& file);

}  // namespace loramux
