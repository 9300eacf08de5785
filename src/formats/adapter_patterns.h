// The regular expressions of an adapter's configuration, compiled with RE2. Matching takes linear time, even for
// hostile patterns. Internal to formats.
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

// The compiled patterns of one configuration. Immutable; thread-safe.
class AdapterPatterns {
 public:
  // Compiles the patterns; `label` names the source in errors.
  static Result<std::shared_ptr<const AdapterPatterns>> Compile(const AdapterConfig& config, const std::string& label);
  ~AdapterPatterns();

  // Index of the first key that matches, or -1.
  int FirstRankKey(std::string_view module) const { return FirstMatch(rank_keys_, module); }
  int FirstAlphaKey(std::string_view module) const { return FirstMatch(alpha_keys_, module); }
  // Whether the expression matches the whole name. If there is none or RE2 cannot evaluate it, everything is a target
  // and nothing is excluded.
  bool MatchesTargets(std::string_view module) const;
  bool MatchesExcluded(std::string_view module) const;
  // The layer number that layers_pattern finds (default pattern: the first number between two dots); -1 if there is
  // none.
  std::int64_t LayerOf(std::string_view module) const;

 private:
  using Keys = std::vector<std::unique_ptr<const re2::RE2>>;
  AdapterPatterns() = default;
  static int FirstMatch(const Keys& keys, std::string_view module);

  Keys rank_keys_;
  Keys alpha_keys_;
  Keys layer_patterns_;
  std::unique_ptr<const re2::RE2> targets_;  // null: none, or RE2 cannot evaluate it
  std::unique_ptr<const re2::RE2> excluded_;
};

}  // namespace loramux
