// The environment of the process, for flags alone: only environment.cc reads it (tests/tidy.py).
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace loramux {

// The value of a variable. nullopt: it is not set, or empty.
std::optional<std::string> EnvironmentValue(const std::string& name);

// The names of all variables that begin with `prefix`, sorted.
std::vector<std::string> EnvironmentNames(const std::string& prefix);

}  // namespace loramux
