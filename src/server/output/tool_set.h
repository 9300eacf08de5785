// The tools that a request offers to the model.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "http/json_reader.h"

namespace loramux {

// Functions by name, each with the JSON schema of its parameters (null: it has none). Immutable once shared.
class ToolSet {
 public:
  // Adds a function. A second one of the same name is ignored.
  void Add(std::string name, Json parameters) { functions_.emplace(std::move(name), std::move(parameters)); }

  bool empty() const { return functions_.empty(); }
  bool Has(std::string_view name) const { return functions_.contains(name); }
  const std::map<std::string, Json, std::less<>>& functions() const { return functions_; }
  // True if the schema of the function names parameters.
  bool HasParameters(std::string_view function) const { return Properties(function) != nullptr; }
  // Returns the schema of one parameter; null if it is not known.
  const Json* Parameter(std::string_view function, std::string_view parameter) const;

 private:
  const Json* Properties(std::string_view function) const;

  std::map<std::string, Json, std::less<>> functions_;
};

}  // namespace loramux
