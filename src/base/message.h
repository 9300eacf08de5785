// Formats names, numbers and paths from untrusted files for error messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace loramux {

// The text in single quotes: at most about 200 bytes (the middle of a longer text is left out), with every byte that is
// not printable ASCII as \xNN. So a hostile file can neither flood nor break a log or a JSON reply.
std::string Quote(std::string_view text);

// The same without quotes.
std::string Printable(std::string_view text);

// The message of a JSON library's exception, without its "[json.exception...]" tag.
std::string WithoutTag(std::string_view what);

// 161480704 -> "161,480,704".
std::string WithSeparators(std::uint64_t number);

}  // namespace loramux
