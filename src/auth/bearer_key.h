// Secret keys that clients send as `Authorization: Bearer KEY`.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"

namespace loramux {

inline constexpr std::size_t kMinKeyBytes = 16;  // least bytes of a key that is stored as it is

// Reads the key from a file: its content without surrounding white space. Error: the file cannot be read, or the key is
// shorter than kMinKeyBytes or contains white space or control characters. `flag` names the command-line option in
// messages; messages never show the key.
Result<std::string> ReadKeyFile(const std::filesystem::path& path, const std::string& flag);

// Returns the key in the value of an Authorization header; empty if the value holds none.
std::string_view BearerToken(std::string_view authorization);

// Compares two keys in constant time: the time depends on the lengths alone.
bool SameKey(std::string_view a, std::string_view b);

}  // namespace loramux
