// The regular expressions of an adapter's configuration, compiled with RE2: linear time whatever an untrusted pattern
// looks like. Internal to formats.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "formats/adapter_config.h"

namespace re2 {
class RE2;
}

namespace loramux {

// Immutable; thread-safe.
class AdapterPatterns {
 public:
  // `label` is the source's name, for errors.
  static Result<std::shared_ptr<const AdapterPatterns>> Compile(const AdapterConfig& config, const std::string& label);
  ~AdapterPatterns();

  // Index of the first key that matches, or -1.
  int FirstRankKey(std::string_view module) const { return FirstMatch(rank_keys_, module); }
  int FirstAlphaKey(std::string_view module) const { return FirstMatch(alpha_keys_, module); }
  // Whether the expression matches the whole name. Without one that can be evaluated: everything is a target, nothing
  // is excluded.
  bool MatchesTargets(std::string_view module) const;
  bool MatchesExcluded(std::string_view module) const;
  // The layer number that layers_pattern (by default: the first number between two dots) finds; -1 if none.
  std::int64_t LayerOf(std::string_view module) const;

 private:
  using Keys = std::vector<std::unique_ptr<const re2::RE2>>;
  AdapterPatterns() = default;
  static int FirstMatch(const Keys& keys, std::string_view module);

  Keys rank_keys_;
  Keys alpha_keys_;
  Keys layer_patterns_;
  std::unique_ptr<const re2::RE2> targets_;  // null: none, or cannot be evaluated
  std::unique_ptr<const re2::RE2> excluded_;
};

}  // namespace loramux
