#include "formats/adapter_patterns.h"

#include <utility>

#include <re2/re2.h>

#include "formats/message.h"

namespace loramux {
namespace {

// A 100-layer model adapted module by module has about 1,000 keys.
constexpr std::size_t kMaxKeys = 8192;
constexpr std::size_t kMaxPatternBytes = std::size_t{64} << 10;
constexpr std::size_t kMaxTotalPatternBytes = std::size_t{1} << 20;
// RE2's memory for one expression. An automaton that exceeds it is evaluated state by state, which is slower.
constexpr std::int64_t kMaxAutomatonBytes = std::int64_t{1} << 20;

using Expression = std::unique_ptr<const RE2>;

RE2::Options ExpressionOptions() {
  RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(kMaxAutomatonBytes);
  return options;
}

// Whether the expression is valid in Python but cannot be evaluated by RE2: look-around, back-references, some escapes
// and large repetitions.
bool IsBeyondRe2(const RE2& expression) {
  switch (expression.error_code()) {
    case RE2::ErrorBadPerlOp:
    case RE2::ErrorBadEscape:
    case RE2::ErrorBadNamedCapture:
    case RE2::ErrorRepeatSize:
    case RE2::ErrorPatternTooLarge:
      return true;
    default:
      return false;
  }
}

Error BadPattern(const std::string& label, const std::string& field, std::string_view pattern, const RE2& expression) {
  const std::string what = label + ": " + field + ": the pattern " + Quote(pattern);
  if (IsBeyondRe2(expression)) {
    return Unsupported(what +
                       " uses something that cannot be matched in bounded time (look-around, a back-reference "
                       "or the like: " +
                       Printable(expression.error()) + "); rewrite the pattern without it");
  }
  return InvalidArgument(what + " is not a regular expression: " + Printable(expression.error()));
}

Status CheckSize(std::string_view pattern, std::size_t& total, const std::string& label, const std::string& field) {
  total += pattern.size();
  if (pattern.size() <= kMaxPatternBytes && total <= kMaxTotalPatternBytes) return Ok{};
  return InvalidArgument(label + ": " + field + ": the patterns are too long (at most " +
                         WithSeparators(kMaxPatternBytes) + " bytes each, " + WithSeparators(kMaxTotalPatternBytes) +
                         " together)");
}

// Compiles `before + pattern + after` for every pattern.
Result<std::vector<Expression>> CompileAll(const std::vector<std::string>& patterns, const char* before,
                                           const char* after, const std::string& label, const std::string& field) {
  if (patterns.size() > kMaxKeys) {
    return InvalidArgument(label + ": " + field + ": expected at most " + WithSeparators(kMaxKeys) +
                           " patterns, found " + WithSeparators(patterns.size()));
  }
  std::vector<Expression> compiled;
  std::size_t total = 0;
  for (const std::string& pattern : patterns) {
    RETURN_IF_ERROR(CheckSize(pattern, total, label, field));
    compiled.push_back(std::make_unique<const RE2>(before + pattern + after, ExpressionOptions()));
    if (!compiled.back()->ok()) return BadPattern(label, field, pattern, *compiled.back());
  }
  return compiled;
}

// Compiles an expression that is only a cross-check; null if there is none or RE2 cannot evaluate it.
Result<Expression> CompileCheck(const std::optional<std::string>& pattern, const std::string& label,
                                const std::string& field) {
  if (!pattern) return Expression();
  std::size_t total = 0;
  RETURN_IF_ERROR(CheckSize(*pattern, total, label, field));
  auto compiled = std::make_unique<const RE2>(*pattern, ExpressionOptions());
  if (compiled->ok()) return Expression(std::move(compiled));
  if (IsBeyondRe2(*compiled)) return Expression();
  return BadPattern(label, field, *pattern, *compiled);
}

template <typename Value>
std::vector<std::string> KeysOf(const std::vector<std::pair<std::string, Value>>& pattern) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : pattern) keys.push_back(key);
  return keys;
}

bool MatchesFromStart(const RE2& expression, std::string_view text) {
  return expression.Match(re2::StringPiece(text.data(), text.size()), 0, text.size(), RE2::ANCHOR_START, nullptr, 0);
}

bool MatchesWhole(const RE2& expression, std::string_view text) {
  return expression.Match(re2::StringPiece(text.data(), text.size()), 0, text.size(), RE2::ANCHOR_BOTH, nullptr, 0);
}

}  // namespace

Result<std::shared_ptr<const AdapterPatterns>> AdapterPatterns::Compile(const AdapterConfig& config,
                                                                        const std::string& label) {
  auto patterns = std::shared_ptr<AdapterPatterns>(new AdapterPatterns);
  // PEFT: re.match(rf"(.*\.)?({key})$", name)
  ASSIGN_OR_RETURN(patterns->rank_keys_,
                   CompileAll(KeysOf(config.rank_pattern), "(.*\\.)?(", ")$", label, "rank_pattern"));
  ASSIGN_OR_RETURN(patterns->alpha_keys_,
                   CompileAll(KeysOf(config.alpha_pattern), "(.*\\.)?(", ")$", label, "alpha_pattern"));
  // PEFT: re.match(rf"(?:^|.*?\.){pattern}\.(?P<idx>\d+)\.", name), or any name of a module list without a pattern
  ASSIGN_OR_RETURN(patterns->layer_patterns_,
                   CompileAll(config.layers_pattern.empty() ? std::vector<std::string>{"[^.]*"} : config.layers_pattern,
                              config.layers_pattern.empty() ? "^.*?\\." : "^(?:|.*?\\.)", "\\.(?P<idx>[0-9]+)\\.",
                              label, "layers_pattern"));
  ASSIGN_OR_RETURN(patterns->targets_, CompileCheck(config.target_modules_regex, label, "target_modules"));
  ASSIGN_OR_RETURN(patterns->excluded_, CompileCheck(config.exclude_modules_regex, label, "exclude_modules"));
  return std::shared_ptr<const AdapterPatterns>(std::move(patterns));
}

AdapterPatterns::~AdapterPatterns() = default;

int AdapterPatterns::FirstMatch(const Keys& keys, std::string_view module) {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (MatchesFromStart(*keys[i], module)) return static_cast<int>(i);
  }
  return -1;
}

bool AdapterPatterns::MatchesTargets(std::string_view module) const {
  return targets_ == nullptr || MatchesWhole(*targets_, module);
}

bool AdapterPatterns::MatchesExcluded(std::string_view module) const {
  return excluded_ != nullptr && MatchesWhole(*excluded_, module);
}

std::int64_t AdapterPatterns::LayerOf(std::string_view module) const {
  for (const auto& expression : layer_patterns_) {
    const auto index = expression->NamedCapturingGroups().find("idx");
    if (index == expression->NamedCapturingGroups().end()) continue;
    std::vector<re2::StringPiece> groups(static_cast<std::size_t>(index->second) + 1);
    if (!expression->Match(re2::StringPiece(module.data(), module.size()), 0, module.size(), RE2::ANCHOR_START,
                           groups.data(), static_cast<int>(groups.size()))) {
      continue;
    }
    std::int64_t layer = -1;
    if (!RE2::FullMatch(groups.back(), "([0-9]{1,9})", &layer)) return -1;
    return layer;
  }
  return -1;
}

}  // namespace loramux
