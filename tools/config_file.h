// `--config FILE`: the flags of a command from a TOML file.
#pragma once

#include <CLI/CLI.hpp>

namespace loramux {

// Adds --config to a subcommand. A key of the file is a flag's long name without its dashes, or the name of the
// positional argument; a list gives a flag that may be repeated. What stands on the command line wins over the file.
// Tables are refused: the flags have no levels. Every error is thrown as CLI::ConfigError while the command line is
// parsed, and names the file, the line, what was expected and what was found.
// REQUIRES: `command` outlives the parse. Flags may be added before and after.
void AddConfigFlag(CLI::App& command);

}  // namespace loramux
