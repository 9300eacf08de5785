#include "hub/locked_folder.h"

#include <sys/file.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

namespace loramux {
namespace {

int OpenFolder(const std::filesystem::path& path) {
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

}  // namespace

// False: the folder was renamed or removed since it was opened.
bool LockedFolder::HasItsPath() const {
  struct stat opened {
  }, named{};
  return ::fstat(descriptor_, &opened) == 0 && ::lstat(path_.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

std::unique_ptr<LockedFolder> LockedFolder::Try(const std::filesystem::path& path, Mode mode) {
  const int descriptor = OpenFolder(path);
  if (descriptor < 0) return nullptr;
  std::unique_ptr<LockedFolder> locked(new LockedFolder(path, descriptor));
  if (::flock(descriptor, (mode == Mode::kShared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) return nullptr;
  return locked->HasItsPath() ? std::move(locked) : nullptr;
}

std::unique_ptr<LockedFolder> LockedFolder::Wait(const std::filesystem::path& path) {
  while (true) {
    std::error_code ignored;
    std::filesystem::create_directories(path, ignored);
    const int descriptor = OpenFolder(path);
    if (descriptor < 0) return nullptr;
    std::unique_ptr<LockedFolder> locked(new LockedFolder(path, descriptor));
    while (::flock(descriptor, LOCK_EX) != 0) {
      if (errno != EINTR) return nullptr;
    }
    if (locked->HasItsPath()) return locked;
  }
}

LockedFolder::~LockedFolder() { ::close(descriptor_); }

void LockedFolder::Share() { ::flock(descriptor_, LOCK_SH); }

void LockedFolder::Touch() const { ::futimens(descriptor_, nullptr); }

}  // namespace loramux
