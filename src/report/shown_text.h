// Makes text of a server fit for a report or a terminal.
#pragma once

#include <string>
#include <string_view>

namespace loramux {

// The text with the replacement character U+FFFD in place of invalid UTF-8.
std::string ValidUtf8(std::string_view text);

// At most the first 300 bytes of the text as valid UTF-8, with a space in place of each control character: it cannot
// steer a terminal.
std::string ShownText(std::string_view text);

}  // namespace loramux
