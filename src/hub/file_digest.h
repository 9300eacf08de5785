// SHA-256 of texts and files, as hexadecimal digits.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"

namespace loramux {

// 64 hexadecimal digits.
std::string Sha256Hex(std::string_view text);
// Reads the whole file. Error: kIoError.
Result<std::string> Sha256HexOfFile(const std::filesystem::path& path);
// The hexadecimal digits of 32 bytes in base64; an empty string if it is not that.
std::string HexOfBase64Sha256(std::string_view base64);

}  // namespace loramux
