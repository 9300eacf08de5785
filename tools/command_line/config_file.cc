#include "tools/command_line/config_file.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>
#include <toml++/toml.h>

namespace loramux {
namespace {

// The text that the command line would carry for a single value.
Result<std::string> ScalarText(const toml::node& node, const std::string& key, const std::string& place) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto number = node.value_exact<std::int64_t>()) return std::to_string(*number);
  if (const auto number = node.value_exact<double>()) return fmt::format("{}", *number);
  if (const auto flag = node.value_exact<bool>()) return std::string(*flag ? "true" : "false");
  return InvalidArgument(
      fmt::format("{}: {}: expected a string, a number, true, false or a list of these", place, key));
}

Result<std::vector<std::string>> Texts(const toml::node& node, const std::string& key, const std::string& place) {
  if (node.is_table() || node.is_array_of_tables()) {
    return InvalidArgument(fmt::format("{}: [{}]: expected keys without tables, as in: port = 8000", place, key));
  }
  std::vector<std::string> texts;
  if (const toml::array* list = node.as_array()) {
    for (const toml::node& element : *list) {
      ASSIGN_OR_RETURN(texts.emplace_back(), ScalarText(element, key, place));
    }
  } else {
    ASSIGN_OR_RETURN(texts.emplace_back(), ScalarText(node, key, place));
  }
  return texts;
}

// Settings fill a few kilobytes. The parser of TOML is recursive, and so is what frees its tables.
constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
constexpr int kMaxDepth = 32;  // depth of brackets, and of dots between the parts of one name

Result<std::string> ReadText(const std::string& file) {
  std::ifstream input(file);
  std::string text(kMaxBytes + 1, '\0');
  if (input) input.read(text.data(), static_cast<std::streamsize>(text.size()));  // a directory opens all the same
  if (input.bad() || (!input && !input.eof())) return NotFound(fmt::format("--config: cannot read '{}'", file));
  text.resize(static_cast<std::size_t>(input.gcount()));
  if (text.size() <= kMaxBytes) return text;
  return InvalidArgument(fmt::format("{}: expected a file of at most {} bytes, found a larger one", file, kMaxBytes));
}

// Where the string that begins at `at` ends: behind its last quote, or at the end of the text.
std::size_t EndOfString(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const std::string three(3, quote);
  const bool lines = text.compare(at, 3, three) == 0;
  for (std::size_t i = at + (lines ? 3 : 1); i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (lines ? text.compare(i, 3, three) == 0 : text[i] == quote || text[i] == '\n') {
      return i + (lines ? 3 : 1);
    }
  }
  return text.size();
}

// Error: brackets or the parts of a name are nested deeper than the parser may be given.
Status CheckDepth(std::string_view text, const std::string& file) {
  int brackets = 0, dots = 0;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      at = EndOfString(text, at);
      continue;
    }
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    if (c == '.') ++dots;
    if (std::string_view("=,[]{}\n").find(c) != std::string_view::npos) dots = 0;
    brackets += (c == '[' || c == '{') - (c == ']' || c == '}');
    ++at;
    if (std::max(dots, brackets) <= kMaxDepth) continue;
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    return InvalidArgument(
        fmt::format("{}:{}: expected keys without tables, as in: port = 8000; found some that are "
                    "nested more than {} deep",
                    file, line, kMaxDepth));
  }
  return Ok{};
}

Result<toml::table> Parse(const std::string& text, const std::string& file) {
  try {
    return toml::parse(text, file);
  } catch (const toml::parse_error& error) {
    return InvalidArgument(fmt::format("{}:{}: not TOML: {}", file, error.source().begin.line, error.description()));
  }
}

}  // namespace

Result<std::vector<ConfigEntry>> ReadConfigFile(const std::string& file) {
  ASSIGN_OR_RETURN(const std::string text, ReadText(file));
  RETURN_IF_ERROR(CheckDepth(text, file));
  ASSIGN_OR_RETURN(const toml::table table, Parse(text, file));
  std::vector<std::pair<toml::source_index, ConfigEntry>> entries;
  for (const auto& [key, node] : table) {
    ConfigEntry entry{.key = std::string(key.str())};
    entry.place = fmt::format("{}:{}", file, key.source().begin.line);
    ASSIGN_OR_RETURN(entry.values, Texts(node, entry.key, entry.place));
    entries.emplace_back(key.source().begin.line, std::move(entry));
  }
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<ConfigEntry> result;
  for (auto& [line, entry] : entries) result.push_back(std::move(entry));
  return result;
}

}  // namespace loramux
