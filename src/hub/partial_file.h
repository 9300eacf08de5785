// A file that is being downloaded: NAME.part holds its first bytes, and NAME.version says of which content. A complete
// file is NAME; it keeps its NAME.version until the whole adapter is there.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

#include "base/result.h"

namespace loramux {

// Not thread-safe. Errors are kIoError and name the file.
class PartialFile {
 public:
  // Takes over what an earlier process left in `folder`, if it is of one version.
  PartialFile(std::filesystem::path folder, std::string name);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  // Bytes that are there, and the version that they are of; 0 and empty if there are none.
  std::int64_t bytes() const { return bytes_; }
  const std::string& version() const { return version_; }
  // Throws away what is there; what comes now is of `version`.
  Status Restart(const std::string& version);
  Status Append(const char* data, std::size_t size);
  // Syncs the content and gives the file its name.
  Status Finish();
  void Remove();

  // Where the content is until Finish.
  std::filesystem::path path() const;

 private:
  std::filesystem::path VersionPath() const;
  Status Failed(const std::string& what) const;
  void Close();

  const std::filesystem::path folder_;
  const std::string name_;
  std::int64_t bytes_ = 0;
  std::string version_;
  std::FILE* file_ = nullptr;  // owned; open while content comes
};

// Ok means that the names in the folder survive a crash.
Status SyncFolder(const std::filesystem::path& folder);

}  // namespace loramux
