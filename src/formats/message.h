// How names, numbers and paths from untrusted files appear in error messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace loramux {

// 'name' in single quotes: at most about 200 bytes (the middle of a longer one is left out), and every byte that is
// not printable ASCII as \xNN, so that a hostile file can neither flood nor break a log or a JSON reply.
std::string Quote(std::string_view text);

// The same without quotes.
std::string Printable(std::string_view text);

// What a JSON library's exception says, without its "[json.exception...]" tag.
std::string WithoutTag(std::string_view what);

// 161480704 -> "161,480,704".
std::string WithSeparators(std::uint64_t number);

}  // namespace loramux
