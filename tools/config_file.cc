#include "tools/config_file.h"

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <toml++/toml.h>

namespace loramux {
namespace {

// Where a value stands, for messages.
struct Place {
  std::string file;
  toml::source_index line = 0;
};

[[noreturn]] void Refuse(const Place& place, const std::string& what) {
  throw CLI::ConfigError(fmt::format("{}:{}: {}", place.file, place.line, what));
}

// The text that the command line would have carried for a single value.
std::string ScalarText(const toml::node& node, const std::string& key, const Place& place) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto number = node.value_exact<std::int64_t>()) return std::to_string(*number);
  if (const auto number = node.value_exact<double>()) return fmt::format("{}", *number);
  if (const auto flag = node.value_exact<bool>()) return *flag ? "true" : "false";
  Refuse(place, fmt::format("{}: expected a string, a number, true, false or a list of these", key));
}

std::vector<std::string> Texts(const toml::node& node, const std::string& key, const Place& place) {
  if (node.is_table() || node.is_array_of_tables()) {
    Refuse(place, fmt::format("[{}]: expected keys without tables, as in: port = 8000", key));
  }
  std::vector<std::string> texts;
  if (const toml::array* list = node.as_array()) {
    for (const toml::node& element : *list) texts.push_back(ScalarText(element, key, place));
  } else {
    texts.push_back(ScalarText(node, key, place));
  }
  return texts;
}

CLI::Option* FindOption(CLI::App& command, const std::string& key) {
  CLI::Option* option = command.get_option_no_throw("--" + key);
  if (option == nullptr) option = command.get_option_no_throw(key);  // the positional argument
  return option != nullptr && option->get_configurable() ? option : nullptr;
}

// True if the option takes no value on the command line.
bool IsSwitch(const CLI::Option& option) { return option.get_expected_max() == 0; }

void SetOption(CLI::Option& option, const std::string& key, const std::vector<std::string>& texts) {
  if (texts.empty()) return;  // an empty list: as if the flag were not given
  if (!IsSwitch(option)) {
    option.add_result(texts);
  } else if (texts.size() == 1 && (texts[0] == "true" || texts[0] == "false")) {
    option.add_result(option.get_flag_value("--" + key, texts[0]));
  } else {
    throw CLI::ValidationError("--" + key, "expected true or false, found " + CLI::detail::join(texts, ", "));
  }
  option.run_callback();
}

void ApplyEntry(CLI::App& command, const std::string& key, const toml::node& node, const Place& place) {
  CLI::Option* option = FindOption(command, key);
  const std::vector<std::string> texts = Texts(node, key, place);
  if (option == nullptr) {
    Refuse(place, fmt::format("unknown key '{}': expected a flag of `loramux {} --help` without its dashes", key,
                              command.get_name()));
  }
  if (!option->empty()) return;  // the command line has it
  if (texts.size() > 1 && option->get_items_expected_max() == 1) {
    Refuse(place, fmt::format("{}: expected one value, found a list of {}", key, texts.size()));
  }
  try {
    SetOption(*option, key, texts);
  } catch (const CLI::ParseError& error) {
    Refuse(place, error.what());
  }
}

std::string ReadText(const std::string& file) {
  std::ifstream input(file);
  std::ostringstream text;
  if (input) text << input.rdbuf();  // a directory opens, but cannot be read
  if (!input || !text) throw CLI::ConfigError(fmt::format("--config: cannot read '{}'", file));
  return text.str();
}

toml::table ParseFile(const std::string& file) {
  try {
    return toml::parse(ReadText(file), file);
  } catch (const toml::parse_error& error) {
    Refuse({file, error.source().begin.line}, fmt::format("not TOML: {}", error.description()));
  }
}

void ApplyFile(CLI::App& command, const std::string& file) {
  const toml::table table = ParseFile(file);
  for (const auto& [key, node] : table) {
    ApplyEntry(command, std::string(key.str()), node, {file, key.source().begin.line});
  }
}

}  // namespace

void AddConfigFlag(CLI::App& command) {
  const auto apply = [&command](const std::string& file) { ApplyFile(command, file); };
  command
      .add_option_function<std::string>(
          "--config", apply, "TOML file with flags: names without dashes, e.g. port = 8000; the command line wins")
      ->configurable(false);
}

}  // namespace loramux
