// A lock on a folder, held by this process until the object is destroyed or the process ends.
#pragma once

#include <filesystem>
#include <memory>

namespace loramux {

// Thread-safe to destroy anywhere. Two objects of one process exclude each other as those of two processes do.
class LockedFolder {
 public:
  enum class Mode { kShared, kExclusive };
  // Locks the folder that has this path now. Null: there is none, or another one holds it (kExclusive: in any mode).
  // Never waits.
  static std::unique_ptr<LockedFolder> Try(const std::filesystem::path& path, Mode mode);
  // Locks a folder exclusively; makes it if there is none, and waits for others. Null: it cannot be made or opened.
  static std::unique_ptr<LockedFolder> Wait(const std::filesystem::path& path);
  ~LockedFolder();
  LockedFolder(const LockedFolder&) = delete;
  LockedFolder& operator=(const LockedFolder&) = delete;

  // Where the folder was when it was locked, or where Moved says.
  const std::filesystem::path& path() const { return path_; }
  void Moved(std::filesystem::path path) { path_ = std::move(path); }
  // From exclusive to shared. REQUIRES: no other process can take the lock meanwhile.
  void Share();
  // Sets the folder's time to now.
  void Touch() const;

 private:
  LockedFolder(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  bool HasItsPath() const;

  std::filesystem::path path_;
  const int descriptor_;
};

}  // namespace loramux
