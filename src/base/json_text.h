// What a JSON text must satisfy before it is given to the JSON library, which checks neither. Knows nothing of JSON
// otherwise.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace loramux {

// Deepest nesting of JSON from files and other servers; real texts stay below 10.
inline constexpr int kMaxJsonDepth = 64;

// Why the text is refused for a NUL byte, or nullopt. The library takes it for the end of the text and ignores what
// follows. Example: "a NUL byte at byte 17 (JSON has none)".
std::optional<std::string> JsonNulProblem(std::string_view text);

// Why the text is refused whatever else it holds, or nullopt:
// - a NUL byte, as above;
// - brackets that nest more than `max_depth` deep: the library writes such a document by recursion.
// Reads each byte twice; needs no memory.
std::optional<std::string> JsonTextProblem(std::string_view text, int max_depth = kMaxJsonDepth);

}  // namespace loramux
