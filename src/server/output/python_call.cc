#include "server/output/python_call.h"

#include <cctype>

#include "server/output/json_scanner.h"

namespace loramux {
namespace {

constexpr int kMaxPythonDepth = 64;

bool IsPythonName(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Reads literals from the front of a text and writes them as JSON.
class PythonReader {
 public:
  explicit PythonReader(std::string_view text) : left_(text) {}

  bool Take(std::string_view word) {
    SkipSpace();
    if (!left_.starts_with(word)) return false;
    left_.remove_prefix(word.size());
    return true;
  }

  std::string_view Name() {
    SkipSpace();
    std::size_t size = 0;
    while (size < left_.size() && IsPythonName(left_[size])) ++size;
    const std::string_view name = left_.substr(0, size);
    left_.remove_prefix(size);
    return name;
  }

  bool AtEnd() {
    SkipSpace();
    return left_.empty();
  }

  bool Value(std::string& json, int depth) {
    SkipSpace();
    if (left_.empty() || depth > kMaxPythonDepth) return false;
    const char first = left_.front();
    if (first == '"' || first == '\'') return String(json);
    if (first == '[') return List(json, depth);
    if (first == '{') return Dictionary(json, depth);
    if (first == '-' || std::isdigit(static_cast<unsigned char>(first)) != 0) return Number(json);
    return Constant(json);
  }

  bool String(std::string& json) {
    const char quote = left_.front();
    std::string text;
    for (std::size_t i = 1; i < left_.size(); ++i) {
      if (left_[i] == quote) {
        left_.remove_prefix(i + 1);
        AppendEscaped(json += '"', text);
        json += '"';
        return true;
      }
      if (left_[i] != '\\') {
        text += left_[i];
      } else if (++i == left_.size() || !Escape(left_[i], text)) {
        return false;
      }
    }
    return false;
  }

 private:
  void SkipSpace() {
    while (!left_.empty() && IsJsonSpace(left_.front())) left_.remove_prefix(1);
  }

  static bool Escape(char c, std::string& text) {
    constexpr std::string_view kNames = "ntr\\'\"/", kMeanings = "\n\t\r\\'\"/";
    const auto at = kNames.find(c);
    if (at == std::string_view::npos) return false;
    text += kMeanings[at];
    return true;
  }

  bool Number(std::string& json) {
    JsonScanner scanner;
    std::size_t size = 0;
    while (size < left_.size() && scanner.Step(left_[size]) == JsonScanner::Result::kMore && scanner.in_number())
      ++size;
    if (size == 0) return false;
    const char last = left_[size - 1];
    json += left_.substr(0, size);
    left_.remove_prefix(size);
    return std::isdigit(static_cast<unsigned char>(last)) != 0;
  }

  bool Constant(std::string& json) {
    const std::string_view name = Name();
    const std::string_view value = name == "True" || name == "true"     ? "true"
                                   : name == "False" || name == "false" ? "false"
                                   : name == "None" || name == "null"   ? "null"
                                                                        : "";
    json += value;
    return !value.empty();
  }

  bool List(std::string& json, int depth) {
    left_.remove_prefix(1);
    json += '[';
    for (bool first = true; !Take("]"); first = false) {
      if (!first && !Take(",")) return false;
      if (!first) json += ", ";
      if (!Value(json, depth + 1)) return false;
    }
    json += ']';
    return true;
  }

  bool Dictionary(std::string& json, int depth) {
    left_.remove_prefix(1);
    json += '{';
    for (bool first = true; !Take("}"); first = false) {
      if (!first && !Take(",")) return false;
      if (!first) json += ", ";
      SkipSpace();
      if (left_.empty() || (left_.front() != '"' && left_.front() != '\'') || !String(json) || !Take(":")) return false;
      json += ": ";
      if (!Value(json, depth + 1)) return false;
    }
    json += '}';
    return true;
  }

  std::string_view left_;
};

}  // namespace

std::optional<PythonCall> ParsePythonCall(std::string_view text) {
  PythonReader reader(text);
  PythonCall call{std::string(reader.Name()), "{"};
  if (call.function.empty() || !reader.Take(".call") || !reader.Take("(")) return std::nullopt;
  for (bool first = true; !reader.Take(")"); first = false) {
    if (!first && !reader.Take(",")) return std::nullopt;
    const std::string_view key = reader.Name();
    if (key.empty() || !reader.Take("=")) return std::nullopt;
    call.arguments += first ? "\"" : ", \"";
    AppendEscaped(call.arguments, key);
    call.arguments += "\": ";
    if (!reader.Value(call.arguments, 1)) return std::nullopt;
  }
  call.arguments += '}';
  return reader.AtEnd() ? std::optional(std::move(call)) : std::nullopt;
}

std::optional<std::string> ParsePythonValue(std::string_view text) {
  if (text.empty() || text.front() == '"' || text.front() == '\'') return std::nullopt;
  PythonReader reader(text);
  std::string json;
  return reader.Value(json, 0) && reader.AtEnd() ? std::optional(std::move(json)) : std::nullopt;
}

}  // namespace loramux
