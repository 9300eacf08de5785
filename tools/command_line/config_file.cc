#include "tools/command_line/config_file.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
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

Result<std::string> ReadText(const std::string& file) {
  std::ifstream input(file);
  std::ostringstream text;
  if (input) text << input.rdbuf();  // a directory opens, but cannot be read
  if (!input || !text) return NotFound(fmt::format("--config: cannot read '{}'", file));
  return text.str();
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
