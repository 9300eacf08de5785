// Secret keys that clients show as `Authorization: Bearer KEY`.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"

namespace loramux {

// The key in a file: its content without white space around it. Error: unreadable, shorter than 16 bytes, or with white
// space or control characters inside; `flag` names the option in messages, which never show the key.
Result<std::string> ReadKeyFile(const std::filesystem::path& path, const std::string& flag);

// The key of an Authorization header's value; empty if it is none.
std::string_view BearerToken(std::string_view authorization);

// Takes the same time wherever the two differ; depends on their lengths alone.
bool SameKey(std::string_view a, std::string_view b);

}  // namespace loramux
