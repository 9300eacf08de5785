#include "base/message.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxShown = 200;
constexpr std::size_t kShownOfEachEnd = 90;

void AppendEscaped(std::string_view text, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out.push_back(c);
    } else {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string out;
  if (text.size() <= kMaxShown) {
    AppendEscaped(text, out);
    return out;
  }
  AppendEscaped(text.substr(0, kShownOfEachEnd), out);
  out += "[... " + WithSeparators(text.size() - 2 * kShownOfEachEnd) + " bytes ...]";
  AppendEscaped(text.substr(text.size() - kShownOfEachEnd), out);
  return out;
}

std::string Quote(std::string_view text) {
  std::string out(1, '\'');
  return out.append(Printable(text)).append(1, '\'');
}

std::string WithoutTag(std::string_view what) {
  const std::size_t end = what.starts_with('[') ? what.find("] ") : std::string_view::npos;
  return Printable(end == std::string_view::npos ? what : what.substr(end + 2));
}

std::string WithSeparators(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (std::ptrdiff_t at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  }
  return digits;
}

}  // namespace loramux
