#include "hub/partial_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <fcntl.h>
#include <unistd.h>

#include "base/text_file.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxVersionBytes = 300;

// The text of a small file; empty if there is none.
std::string VersionIn(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string text(kMaxVersionBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text.size() < kMaxVersionBytes ? text : std::string();
}

}  // namespace

PartialFile::PartialFile(std::filesystem::path folder, std::string name)
    : folder_(std::move(folder)), name_(std::move(name)), version_(VersionIn(VersionPath())) {
  std::error_code error;
  // An adapter of which this file is complete and another one is not.
  if (!version_.empty()) std::filesystem::rename(folder_ / name_, path(), error);
  const std::uintmax_t size = std::filesystem::file_size(path(), error);
  bytes_ = error || version_.empty() ? 0 : static_cast<std::int64_t>(size);
  if (bytes_ == 0) version_.clear();
}

PartialFile::~PartialFile() { Close(); }

std::filesystem::path PartialFile::path() const { return folder_ / (name_ + ".part"); }
std::filesystem::path PartialFile::VersionPath() const { return folder_ / (name_ + ".version"); }

Status PartialFile::Failed(const std::string& what) const {
  const std::string reason = std::strerror(errno);
  return IoError("cannot " + what + " " + path().string() + ": " + reason);
}

void PartialFile::Close() {
  if (file_ != nullptr) std::fclose(file_);
  file_ = nullptr;
}

Status PartialFile::Restart(const std::string& version) {
  Close();
  bytes_ = 0;
  version_.clear();
  std::error_code error;
  std::filesystem::create_directories(path().parent_path(), error);
  std::filesystem::remove(VersionPath(), error);  // before the content changes
  file_ = std::fopen(path().c_str(), "wb");
  if (file_ == nullptr) return Failed("write");
  RETURN_IF_ERROR(WriteTextFile(VersionPath().string(), version));
  version_ = version;
  return Ok{};
}

Status PartialFile::Append(const char* data, std::size_t size) {
  if (file_ == nullptr) file_ = std::fopen(path().c_str(), "ab");
  if (file_ == nullptr || std::fwrite(data, 1, size, file_) != size) return Failed("write");
  bytes_ += static_cast<std::int64_t>(size);
  return Ok{};
}

Status PartialFile::Finish() {
  if (file_ == nullptr) file_ = std::fopen(path().c_str(), "ab");
  if (file_ == nullptr || std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) return Failed("write");
  Close();
  std::error_code error;
  std::filesystem::rename(path(), folder_ / name_, error);
  if (error) return IoError("cannot rename " + path().string() + ": " + error.message());
  return Ok{};
}

void PartialFile::Remove() {
  Close();
  bytes_ = 0;
  version_.clear();
  std::error_code ignored;
  std::filesystem::remove(path(), ignored);
  std::filesystem::remove(VersionPath(), ignored);
}

Status SyncFolder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = descriptor >= 0 && ::fsync(descriptor) == 0;
  const std::string reason = std::strerror(errno);
  if (descriptor >= 0) ::close(descriptor);
  if (!synced) return IoError("cannot sync " + folder.string() + ": " + reason);
  return Ok{};
}

}  // namespace loramux
