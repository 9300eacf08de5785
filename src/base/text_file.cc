#include "base/text_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

namespace loramux {

Result<std::string> ReadTextFile(const std::string& path) {
  constexpr std::streamoff kMaxBytes = std::streamoff{1} << 30;
  constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return IoError(fmt::format("cannot read {}: {}", path, std::strerror(errno)), path);
  const std::streamoff size = file.tellg();
  if (size < 0 || size > kMaxBytes)
    return IoError(fmt::format("cannot read {}: not a text file of at most 1 GiB", path), path);
  file.seekg(0);
  std::string text, piece;
  while (text.size() < static_cast<std::size_t>(size)) {
    piece.resize(std::min(kPieceBytes, static_cast<std::size_t>(size) - text.size()));
    if (!file.read(piece.data(), static_cast<std::streamsize>(piece.size())))
      return IoError(fmt::format("cannot read {}: {}", path, std::strerror(errno)), path);
    // Text has none; a sparse file has nothing else, and need not be read to its end.
    if (const std::size_t nul = piece.find('\0'); nul != std::string::npos) {
      return IoError(fmt::format("cannot read {}: expected text, found a NUL byte at byte {}", path, text.size() + nul),
                     path);
    }
    text += piece;
  }
  return text;
}

Status WriteTextFile(const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file) return IoError(fmt::format("cannot write {}: {}", path, std::strerror(errno)), path);
  return Ok{};
}

}  // namespace loramux
