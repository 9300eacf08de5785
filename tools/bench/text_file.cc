#include "tools/bench/text_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

namespace loramux::load {

Result<std::string> ReadTextFile(const std::string& path) {
  constexpr std::streamoff kMaxBytes = std::streamoff{1} << 30;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return IoError(fmt::format("cannot read {}: {}", path, std::strerror(errno)), path);
  const std::streamoff size = file.tellg();
  if (size < 0 || size > kMaxBytes)
    return IoError(fmt::format("cannot read {}: not a text file of at most 1 GiB", path), path);
  std::string text(static_cast<std::size_t>(size), '\0');
  file.seekg(0);
  if (!file.read(text.data(), size))
    return IoError(fmt::format("cannot read {}: {}", path, std::strerror(errno)), path);
  return text;
}

Status WriteTextFile(const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file) return IoError(fmt::format("cannot write {}: {}", path, std::strerror(errno)), path);
  return Ok{};
}

}  // namespace loramux::load
