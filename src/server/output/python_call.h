// A call as Llama 3.1 writes it for the tools that it was trained with: name.call(key="value", ...).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace loramux {

// A call with its arguments as a JSON object.
struct PythonCall {
  std::string function;
  std::string arguments;
};

// Reads `text`, which must be one call with keyword arguments whose values are literals of Python or JSON: strings,
// numbers, True, False, None, lists and dictionaries, nested 64 deep at most. nullopt: it is none.
std::optional<PythonCall> ParsePythonCall(std::string_view text);

// Reads `text`, which must be one dictionary, list or constant of Python, as JSON. nullopt: it is none.
std::optional<std::string> ParsePythonValue(std::string_view text);

}  // namespace loramux
