#include "base/json_text.h"

namespace loramux {

std::optional<std::string> JsonNulProblem(std::string_view text) {
  const std::size_t nul = text.find('\0');
  if (nul == std::string_view::npos) return std::nullopt;
  return "a NUL byte at byte " + std::to_string(nul) + " (JSON has none)";
}

std::optional<std::string> JsonTextProblem(std::string_view text, int max_depth) {
  if (auto problem = JsonNulProblem(text)) return problem;
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth <= max_depth) continue;
      return "nesting more than " + std::to_string(max_depth) + " levels deep at byte " + std::to_string(i);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return std::nullopt;
}

}  // namespace loramux
