#include "formats/adapter_patterns.h"

#include <optional>
#include <utility>

#include <re2/re2.h>

#include "base/message.h"

namespace loramux {
namespace {

// The limits of one configuration. A 100-layer model adapted module by module has 700 keys, all plain.
constexpr std::size_t kMaxKeys = 4096;
constexpr std::size_t kMaxKeyBytes = 1024;
// Expressions for RE2: their number, their bytes, the instructions of their programs, and the steps of matching the
// modules' names (CheckWork; up to 5 nanoseconds each).
constexpr std::size_t kMaxExpressions = 512;
constexpr std::size_t kMaxExpressionBytes = std::size_t{32} << 10;
constexpr std::uint64_t kMaxInstructions = 32768;
constexpr std::uint64_t kMaxSteps = 100'000'000;
// RE2's memory for one expression, program and automaton. A key's program has at most 1,365 instructions. That of
// target_modules, which may list every module, has at most 4,096; a larger one is not evaluated.
constexpr std::int64_t kKeyMemory = std::int64_t{64} << 10;
constexpr std::int64_t kCheckMemory = std::int64_t{192} << 10;
constexpr char kAnyCharacter = '\x01';

using Expression = std::unique_ptr<const RE2>;

RE2::Options ExpressionOptions(std::int64_t memory) {
  RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(memory);
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

// The key as PatternKey compares it; nullopt if it needs RE2.
std::optional<std::string> AsPlain(std::string_view key) {
  std::string plain;
  for (std::size_t i = 0; i < key.size(); ++i) {
    const char c = key[i];
    const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (word) {
      plain.push_back(c);
    } else if (c == '.') {
      plain.push_back(kAnyCharacter);
    } else if (c == '\\' && i + 1 < key.size() && key[i + 1] == '.') {
      plain.push_back(key[++i]);
    } else {
      return std::nullopt;
    }
  }
  return plain;
}

// Whether the pattern names a Unicode class (\pL), which Python's re does not know. RE2 does, and takes 100
// microseconds for each.
bool HasUnicodeClass(std::string_view pattern) {
  for (std::size_t i = 0; i + 1 < pattern.size(); ++i) {
    if (pattern[i] != '\\') continue;
    ++i;
    if (pattern[i] == 'p' || pattern[i] == 'P') return true;
  }
  return false;
}

// Compiles the expressions of one configuration within its limits.
class Compiler {
 public:
  explicit Compiler(const std::string& label) : label_(label) {}

  // The keys of rank_pattern or alpha_pattern.
  Result<std::vector<PatternKey>> Keys(const std::vector<std::string>& patterns, const std::string& field) {
    RETURN_IF_ERROR(CheckNumber(patterns.size(), field));
    std::vector<PatternKey> keys;
    for (const std::string& pattern : patterns) {
      RETURN_IF_ERROR(CheckKey(pattern, field));
      if (auto plain = AsPlain(pattern)) {
        keys.emplace_back(std::move(*plain));
        continue;
      }
      // PEFT: re.match(rf"(.*\.)?({key})$", name)
      ASSIGN_OR_RETURN(Expression expression, Compile("(.*\\.)?(" + pattern + ")$", pattern, field));
      keys.emplace_back(std::move(expression));
    }
    return keys;
  }

  // layers_pattern. PEFT: re.match(rf"(?:^|.*?\.){pattern}\.(?P<idx>\d+)\.", name), or any name of a module list
  // without a pattern.
  Result<std::vector<Expression>> Layers(const AdapterConfig& config) {
    const std::vector<std::string>& patterns = config.layers_pattern;
    const std::string field = "layers_pattern";
    const std::string after = "\\.(?P<idx>[0-9]+)\\.";
    std::vector<Expression> compiled;
    RETURN_IF_ERROR(CheckNumber(patterns.size(), field));
    for (const std::string& pattern : patterns) {
      RETURN_IF_ERROR(CheckKey(pattern, field));
      ASSIGN_OR_RETURN(compiled.emplace_back(), Compile("^(?:|.*?\\.)" + pattern + after, pattern, field));
    }
    if (!patterns.empty() || config.layers_to_transform.empty()) return compiled;
    ASSIGN_OR_RETURN(compiled.emplace_back(), Compile("^.*?\\.[^.]*" + after, "", field));
    return compiled;
  }

  // An expression that is only a cross-check; null if there is none or RE2 cannot evaluate it.
  Result<Expression> Check(const std::optional<std::string>& pattern, const std::string& field) {
    if (!pattern) return Expression();
    RETURN_IF_ERROR(Count(*pattern, field));
    auto compiled = std::make_unique<const RE2>(*pattern, ExpressionOptions(kCheckMemory));
    if (compiled->ok()) {
      RETURN_IF_ERROR(CountInstructions(*compiled, field));
      return Expression(std::move(compiled));
    }
    if (IsBeyondRe2(*compiled)) return Expression();
    return BadPattern(label_, field, *pattern, *compiled);
  }

  std::uint64_t instructions() const { return instructions_; }

 private:
  Result<Expression> Compile(const std::string& text, const std::string& pattern, const std::string& field) {
    RETURN_IF_ERROR(Count(pattern, field));
    auto compiled = std::make_unique<const RE2>(text, ExpressionOptions(kKeyMemory));
    if (!compiled->ok()) return BadPattern(label_, field, pattern, *compiled);
    RETURN_IF_ERROR(CountInstructions(*compiled, field));
    return Expression(std::move(compiled));
  }

  Error TooMuch(const std::string& field, std::uint64_t limit, const std::string& what) const {
    return InvalidArgument(label_ + ": " + field + ": expected at most " + WithSeparators(limit) + " " + what +
                           "; use fewer patterns, or plain names of modules");
  }

  Status CheckNumber(std::size_t number, const std::string& field) const {
    if (number <= kMaxKeys) return Ok{};
    return TooMuch(field, kMaxKeys, "patterns, found " + WithSeparators(number));
  }

  Status CheckKey(const std::string& pattern, const std::string& field) const {
    if (pattern.size() <= kMaxKeyBytes) return Ok{};
    return TooMuch(field, kMaxKeyBytes, "bytes in a pattern, found " + WithSeparators(pattern.size()));
  }

  // Counts an expression before it is compiled.
  Status Count(const std::string& pattern, const std::string& field) {
    if (HasUnicodeClass(pattern)) {
      return InvalidArgument(label_ + ": " + field + ": the pattern " + Quote(pattern) +
                             " is not a regular expression: \\p and \\P are none of Python's escapes");
    }
    bytes_ += pattern.size();
    if (++expressions_ > kMaxExpressions) return TooMuch(field, kMaxExpressions, "regular expressions, found more");
    if (bytes_ <= kMaxExpressionBytes) return Ok{};
    return TooMuch(field, kMaxExpressionBytes, "bytes of regular expressions, found more");
  }

  Status CountInstructions(const RE2& expression, const std::string& field) {
    instructions_ += static_cast<std::uint64_t>(expression.ProgramSize());
    if (instructions_ <= kMaxInstructions) return Ok{};
    return TooMuch(field, kMaxInstructions, "instructions of compiled expressions, found more");
  }

  const std::string& label_;
  std::size_t expressions_ = 0;
  std::size_t bytes_ = 0;
  std::uint64_t instructions_ = 0;
};

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

PatternKey::PatternKey(std::string plain) : plain_(std::move(plain)) {}
PatternKey::PatternKey(std::unique_ptr<const RE2> expression) : expression_(std::move(expression)) {}
PatternKey::PatternKey(PatternKey&&) noexcept = default;
PatternKey::~PatternKey() = default;

bool PatternKey::Matches(std::string_view module) const {
  if (expression_ != nullptr) return MatchesFromStart(*expression_, module);
  if (module.size() < plain_.size()) return false;
  const std::size_t first = module.size() - plain_.size();
  if (first > 0 && module[first - 1] != '.') return false;
  for (std::size_t i = plain_.size(); i-- > 0;) {
    if (plain_[i] != module[first + i] && plain_[i] != kAnyCharacter) return false;
  }
  return true;
}

Result<std::shared_ptr<const AdapterPatterns>> AdapterPatterns::Compile(const AdapterConfig& config,
                                                                        const std::string& label) {
  auto patterns = std::shared_ptr<AdapterPatterns>(new AdapterPatterns);
  Compiler compiler(label);
  ASSIGN_OR_RETURN(patterns->rank_keys_, compiler.Keys(KeysOf(config.rank_pattern), "rank_pattern"));
  ASSIGN_OR_RETURN(patterns->alpha_keys_, compiler.Keys(KeysOf(config.alpha_pattern), "alpha_pattern"));
  ASSIGN_OR_RETURN(patterns->layer_patterns_, compiler.Layers(config));
  ASSIGN_OR_RETURN(patterns->targets_, compiler.Check(config.target_modules_regex, "target_modules"));
  ASSIGN_OR_RETURN(patterns->excluded_, compiler.Check(config.exclude_modules_regex, "exclude_modules"));
  patterns->instructions_ = compiler.instructions();
  return std::shared_ptr<const AdapterPatterns>(std::move(patterns));
}

AdapterPatterns::~AdapterPatterns() = default;

Status AdapterPatterns::CheckWork(std::uint64_t name_bytes, const std::string& label) const {
  if (instructions_ * name_bytes <= kMaxSteps) return Ok{};
  return InvalidArgument(label + ": expected patterns that the adapter's modules match in at most " +
                         WithSeparators(kMaxSteps) + " steps, found " + WithSeparators(instructions_) +
                         " instructions for " + WithSeparators(name_bytes) +
                         " bytes of names; use fewer patterns, or plain names of modules");
}

int AdapterPatterns::FirstMatch(const std::vector<PatternKey>& keys, std::string_view module) {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].Matches(module)) return static_cast<int>(i);
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
