#include "text/c_interface.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace loramux::text_internal {
namespace {

// The largest tokenizer.json in use is about 35 MB.
constexpr std::uintmax_t kMaxFileSize = 256u << 20;

ErrorCode ToErrorCode(loramux_text_status status) {
  switch (status) {
    case LORAMUX_TEXT_INVALID:
      return ErrorCode::kInvalidArgument;
    case LORAMUX_TEXT_EXHAUSTED:
      return ErrorCode::kResourceExhausted;
    case LORAMUX_TEXT_UNSUPPORTED:
      return ErrorCode::kUnsupported;
    default:
      return ErrorCode::kInternal;
  }
}

}  // namespace

Error ToError(loramux_text_status status, const Buffer& message, std::string_view where) {
  std::string text = where.empty() ? "" : std::string(where) + ": ";
  return {ToErrorCode(status), text + message.ToString(), {}};
}

Result<std::string> ReadFile(const std::string& path) {
  std::error_code failure;
  const std::uintmax_t size = std::filesystem::file_size(path, failure);
  if (failure == std::errc::no_such_file_or_directory) return NotFound("no such file: " + path, path);
  if (failure) return IoError("cannot read " + path + ": " + failure.message(), path);
  if (size > kMaxFileSize) {
    return InvalidArgument(
        path + ": expected at most " + std::to_string(kMaxFileSize) + " bytes, found " + std::to_string(size), path);
  }
  std::ifstream in(path, std::ios::binary);
  std::string content(size, '\0');
  if (!in.read(content.data(), static_cast<std::streamsize>(size))) {
    return IoError("cannot read " + path + ": " + std::strerror(errno), path);
  }
  return content;
}

}  // namespace loramux::text_internal
