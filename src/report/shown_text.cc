#include "report/shown_text.h"

#include <nlohmann/json.hpp>

namespace loramux {

std::string ValidUtf8(std::string_view text) {
  const nlohmann::json json(text);
  const std::string quoted = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return nlohmann::json::parse(quoted).get<std::string>();
}

std::string ShownText(std::string_view text) {
  constexpr std::size_t kMaxShown = 300;
  std::string shown;
  char before = 0;
  for (const char c : ValidUtf8(text.substr(0, kMaxShown))) {
    const auto byte = static_cast<unsigned char>(c);
    const bool second = before == '\xC2' && byte < 0xA0;  // U+0080 to U+009F, control characters of two bytes
    if (second) shown.pop_back();
    shown += second || byte < 0x20 || byte == 0x7F ? ' ' : c;
    before = c;
  }
  return shown;
}

}  // namespace loramux
