#include "server/batch/batch_output.h"

#include <cerrno>
#include <cstring>
#include <utility>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "server/batch/batch_format.h"

namespace loramux {

Result<std::unique_ptr<BatchOutput>> BatchOutput::Open(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  std::FILE* file = descriptor < 0 ? nullptr : fdopen(descriptor, "r+");
  if (file == nullptr) return Error{ErrorCode::kIoError, fmt::format("{}: {}", path, std::strerror(errno)), path};
  std::unique_ptr<BatchOutput> output(new BatchOutput(file, path));
  RETURN_IF_ERROR(output->ReadLines());
  return output;
}

BatchOutput::~BatchOutput() {
  if (file_ != nullptr) std::fclose(file_);
}

Status BatchOutput::Failed(std::string_view what) const {
  return Error{ErrorCode::kIoError, fmt::format("{}: {}: {}", path_, what, std::strerror(errno)), path_};
}

Status BatchOutput::ReadLines() {
  struct stat what {};
  if (fstat(fileno(file_), &what) != 0) return Failed("cannot be read");
  if (!S_ISREG(what.st_mode)) return Ok{};  // /dev/full has no end
  LineReader reader(file_);
  std::string line;
  std::int64_t end = 0;  // where the last whole line ends
  while (reader.Next(line) && !reader.torn()) {
    auto result = ParseBatchResult(line);
    if (!result.ok()) {
      return InvalidArgument(fmt::format("{}: line {} is no output of a batch, so this file is not continued ({})",
                                         path_, lines_before_ + 1, result.error().message),
                             path_);
    }
    ++lines_before_;
    failed_before_ += result->failed ? 1 : 0;
    keys_.insert(std::move(result->key));
    end = reader.offset();
  }
  if (reader.failed()) return Failed("cannot be read");
  if (lines_before_ == 0 && reader.torn() &&
      line.substr(0, kBatchOutputStart.size()) != kBatchOutputStart.substr(0, line.size())) {
    return InvalidArgument(fmt::format("{}: expected an empty file or the output of a batch, found other text; name "
                                       "another file, or remove this one",
                                       path_),
                           path_);
  }
  if (ftruncate(fileno(file_), end) != 0) return Failed("cannot be cut");
  return std::fseek(file_, end, SEEK_SET) == 0 ? Status(Ok{}) : Failed("cannot be continued");
}

Status BatchOutput::Write(const std::string& key, std::string_view line) {
  keys_.insert(key);
  const bool written = std::fwrite(line.data(), 1, line.size(), file_) == line.size() && std::fflush(file_) == 0;
  return written ? Status(Ok{}) : Failed("cannot be written");
}

Status BatchOutput::Close() {
  const bool synced = fsync(fileno(file_)) == 0 || errno == EINVAL;  // a pipe or a device has no disk
  const Status status = synced ? Status(Ok{}) : Failed("cannot be written");
  const bool closed = std::fclose(std::exchange(file_, nullptr)) == 0;
  return !status.ok() || closed ? status : Failed("cannot be closed");
}

}  // namespace loramux
