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

// A key of rank_pattern or alpha_pattern: `(.*\.)?(KEY)$`, matched from the start of a module's name. Keys of letters,
// digits, dots and escaped dots, as PEFT writes them, are compared without RE2.
class PatternKey {
 public:
  explicit PatternKey(std::string plain);
  explicit PatternKey(std::unique_ptr<const re2::RE2> expression);
  PatternKey(PatternKey&&) noexcept;
  ~PatternKey();
  bool Matches(std::string_view module) const;

 private:
  std::string plain_;                           // kAnyCharacter stands for a dot
  std::unique_ptr<const re2::RE2> expression_;  // null: use plain_
};

// The compiled patterns of one configuration. Immutable; thread-safe.
class AdapterPatterns {
 public:
  // Compiles the patterns; `label` names the source in errors. Error: a pattern is malformed, or the patterns exceed
  // the limits of adapter_patterns.cc on number, bytes and instructions.
  static Result<std::shared_ptr<const AdapterPatterns>> Compile(const AdapterConfig& config, const std::string& label);
  ~AdapterPatterns();

  // Error: matching names of together `name_bytes` bytes may take too many steps. A step is one instruction of RE2 for
  // one byte, the most that it can take. Call it before names of untrusted number are matched.
  Status CheckWork(std::uint64_t name_bytes, const std::string& label) const;

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
  AdapterPatterns() = default;
  static int FirstMatch(const std::vector<PatternKey>& keys, std::string_view module);

  std::vector<PatternKey> rank_keys_;
  std::vector<PatternKey> alpha_keys_;
  std::vector<std::unique_ptr<const re2::RE2>> layer_patterns_;
  std::unique_ptr<const re2::RE2> targets_;  // null: none, or RE2 cannot evaluate it
  std::unique_ptr<const re2::RE2> excluded_;
  std::uint64_t instructions_ = 0;  // size of all compiled expressions in RE2's instructions
};

}  // namespace loramux
