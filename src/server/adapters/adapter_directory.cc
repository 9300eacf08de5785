#include "server/adapters/adapter_directory.h"

#include <algorithm>
#include <sys/stat.h>

#include "formats/adapter_folder.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

constexpr TimeNs kLookInterval = kNsPerSecond;
// necessary because a new file in a sub-directory does not change the directory's own time
constexpr TimeNs kScanInterval = 10 * kNsPerSecond;

std::int64_t ModifiedUnixSeconds(const fs::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? static_cast<std::int64_t>(status.st_mtime) : 0;
}

}  // namespace

Result<std::unique_ptr<AdapterDirectory>> AdapterDirectory::Open(fs::path directory, const Clock* clock) {
  std::error_code error;
  fs::directory_iterator readable(directory, error);
  if (error) {
    return NotFound("--adapter-dir: cannot list '" + directory.string() + "': " + error.message(), "--adapter-dir");
  }
  return std::unique_ptr<AdapterDirectory>(new AdapterDirectory(std::move(directory), clock));
}

bool AdapterDirectory::IsPlainName(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name.front() != '.' && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

fs::path AdapterDirectory::PathOf(std::string_view name) const {
  const fs::path path = directory_ / name;
  return HoldsAdapter(path) ? path : fs::path();
}

std::vector<OfferedAdapter> AdapterDirectory::List() {
  const std::lock_guard lock(mutex_);
  const TimeNs now = clock_->Now();
  if (looked_at_ < 0 || now - looked_at_ >= kLookInterval) {
    looked_at_ = now;
    std::error_code error;
    const auto changed = fs::last_write_time(directory_, error);
    if (scanned_at_ < 0 || now - scanned_at_ >= kScanInterval || changed != changed_) {
      changed_ = changed;
      scanned_at_ = now;
      Scan();
    }
  }
  return listed_;
}

void AdapterDirectory::Scan() {
  listed_.clear();
  std::error_code error;
  for (fs::directory_iterator it(directory_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!IsPlainName(name) || !HoldsAdapter(it->path())) continue;
    listed_.push_back({name, it->path().string(), ModifiedUnixSeconds(it->path())});
  }
  std::sort(listed_.begin(), listed_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
}

}  // namespace loramux
