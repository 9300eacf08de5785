// The directories from which adapters may be loaded at run time. A path is judged by its real location, after symbolic
// links and ".." are resolved. Links can change between this check and the reading, so every opened file is checked
// again by the location of the open file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"

namespace loramux {

// The set of allowed root directories. Immutable, thread-safe.
class AllowedRoots {
 public:
  // No roots: every path is outside.
  AllowedRoots() = default;
  // Takes the canonical forms of `roots`. Error: a root is not a directory.
  static Result<AllowedRoots> Create(const std::vector<std::filesystem::path>& roots);

  bool empty() const { return roots_.empty(); }
  // Returns the canonical form of a directory named by a client. Errors: the path is empty, too long, contains a NUL
  // byte or lies outside the roots (kInvalidArgument, whether it exists or not); it does not exist (kNotFound).
  Result<std::filesystem::path> Resolve(const std::string& path) const;
  // Checks an opened file; `real_path` comes from RegularFile::RealPath. Error: the file does not lie in the roots.
  Status CheckOpened(const std::filesystem::path& real_path) const;

 private:
  // Whether the canonical path is a root or lies below one.
  bool Contains(const std::filesystem::path& canonical) const;
  std::vector<std::filesystem::path> roots_;  // canonical
};

}  // namespace loramux
