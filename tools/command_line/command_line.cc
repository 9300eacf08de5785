#include "tools/command_line/command_line.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <sstream>
#include <type_traits>

#include <fmt/core.h>

#include "base/bytes.h"
#include "base/clock.h"

namespace loramux {
namespace {

template <typename T>
std::string Text(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return value;
  } else if constexpr (std::is_same_v<T, std::chrono::milliseconds>) {
    return Text(static_cast<double>(value.count()) / 1000.0);
  } else if constexpr (std::is_arithmetic_v<T>) {
    std::ostringstream text;
    text << value;
    return text.str();
  } else if constexpr (requires { value.has_value(); }) {
    return value.has_value() ? Text(*value) : std::string();
  } else {
    std::string text;
    for (const auto& element : value) text += (text.empty() ? "" : ",") + Text(element);
    return text;
  }
}

// As an operator would write it: "16MiB", "0.5".
std::string AmountText(FlagForm form, std::int64_t amount) {
  if (form == FlagForm::kSeconds) return Text(static_cast<double>(amount) / kNsPerSecond);
  std::string text = amount == 0 ? "0" : FormatBytes(amount);
  std::erase(text, ' ');
  return text;
}

std::string DefaultOf(const Flag& flag) {
  const auto text = [&](auto* target) {
    using Value = std::remove_pointer_t<decltype(target)>;
    if constexpr (std::is_same_v<Value, std::int64_t> || std::is_same_v<Value, std::uint64_t>) {
      if (flag.form != FlagForm::kNumber) return AmountText(flag.form, static_cast<std::int64_t>(*target));
    }
    return Text(*target);
  };
  return std::visit(text, flag.target);
}

}  // namespace

void CommandLine::Add(Flag flag) {
  if (!flag.default_text && !flag.required) {
    std::string text = DefaultOf(flag);
    flag.default_text = text.empty() ? "none" : IsSwitch(flag) && text == "false" ? "off" : std::move(text);
  }
  flags_.push_back(std::move(flag));
}

int FailCommand(const std::string& command, const Error& error) {
  fmt::print(stderr, "{} {}: {}\n", program_invocation_short_name, command, error.message);
  const bool of_flag = error.param.starts_with("--") &&
                       (error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kUnsupported);
  return of_flag ? kExitUsage : kExitFailure;
}

std::vector<std::string> AllNames(const Flag& flag) {
  std::vector<std::string> names;
  std::istringstream list(flag.names);
  for (std::string name; std::getline(list, name, ',');) names.push_back(name.front() == '!' ? name.substr(1) : name);
  return names;
}

std::string LongName(const Flag& flag) {
  const std::vector<std::string> names = AllNames(flag);
  const auto found = std::find_if(names.begin(), names.end(), [](const auto& name) { return name.starts_with("--"); });
  return found != names.end() ? *found : names.front();
}

bool IsPositional(const Flag& flag) { return flag.names.front() != '-'; }

bool IsSwitch(const Flag& flag) {
  return std::holds_alternative<bool*>(flag.target) || std::holds_alternative<std::optional<bool>*>(flag.target);
}

bool IsList(const Flag& flag) {
  return std::holds_alternative<std::vector<int>*>(flag.target) ||
         std::holds_alternative<std::vector<std::int64_t>*>(flag.target) ||
         std::holds_alternative<std::vector<double>*>(flag.target) ||
         std::holds_alternative<std::vector<std::string>*>(flag.target);
}

std::string ConfigurationKey(const Flag& flag) {
  const std::string name = LongName(flag);
  return name.starts_with("--") ? name.substr(2) : name;
}

std::string EnvironmentName(const Flag& flag) {
  std::string name = "LORAMUX_" + ConfigurationKey(flag);
  for (char& c : name) c = c == '-' ? '_' : c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return name;
}

}  // namespace loramux
