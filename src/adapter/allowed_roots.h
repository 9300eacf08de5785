// Directories from which adapters may be loaded at run time. A path is judged by where it really lies, symbolic links
// and ".." resolved; and since links can change between the judgement and the reading, every file is judged again after
// it was opened, by where the open file lies.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"

namespace loramux {

// Immutable, thread-safe.
class AllowedRoots {
 public:
  AllowedRoots() = default;
  // Error: a root that is no directory.
  static Result<AllowedRoots> Create(const std::vector<std::filesystem::path>& roots);

  bool empty() const { return roots_.empty(); }
  // The canonical form of a directory that a client named. Errors: empty, too long, a NUL byte, outside the roots
  // (kInvalidArgument, whether it exists or not), or not there (kNotFound).
  Result<std::filesystem::path> Resolve(const std::string& path) const;
  // Error: a file that was opened does not lie in the roots. `real_path` is RegularFile::RealPath's.
  Status CheckOpened(const std::filesystem::path& real_path) const;

 private:
  bool Contains(const std::filesystem::path& canonical) const;
  std::vector<std::filesystem::path> roots_;  // canonical
};

}  // namespace loramux
