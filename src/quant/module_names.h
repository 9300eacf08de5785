// Names of modules as quantised models list them: exact names, classes, and regular expressions.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/result.h"

namespace re2 {
class RE2;
}

namespace loramux {

// A list of compressed-tensors: "model.layers.0.mlp.up_proj" is that module, "Linear" every linear layer,
// "re:.*lm_head" every module whose name begins with a match. Matching takes linear time, even for hostile patterns.
// Immutable; thread-safe.
class ModuleNames {
 public:
  // Compiles the list; `label` names it in errors. Errors: an entry is too long, the list too large, a pattern
  // malformed or one that RE2 cannot evaluate.
  static Result<std::shared_ptr<const ModuleNames>> Compile(const std::vector<std::string>& names,
                                                            const std::string& label);
  ~ModuleNames();

  // Whether an exact name or a pattern is that of the module.
  bool Names(std::string_view module) const;
  // Whether the list has the class of linear layers.
  bool HasLinear() const { return all_linear_; }

 private:
  ModuleNames() = default;

  std::unordered_set<std::string> exact_;
  bool all_linear_ = false;
  std::vector<std::unique_ptr<const re2::RE2>> patterns_;
};

}  // namespace loramux
