// A directory with one sub-directory for each adapter (--adapter-dir), looked at while the server runs.
#pragma once

#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "server/adapter_finder.h"

namespace loramux {

// Thread-safe; may block on the disk.
class AdapterDirectory {
 public:
  // Error: no directory, naming the flag. `clock` must outlive it.
  static Result<std::unique_ptr<AdapterDirectory>> Open(std::filesystem::path directory, const Clock* clock);

  // True for a name that can be an entry of a directory and nothing else: not empty, not beginning with a dot, no
  // slash, no NUL, at most 255 bytes.
  static bool IsPlainName(std::string_view name);
  // The sub-directory of that name, if it holds an adapter_config.json; empty otherwise. REQUIRES: IsPlainName.
  std::filesystem::path PathOf(std::string_view name) const;
  // Every sub-directory that holds an adapter_config.json, in order of name. Listed again when the directory has
  // changed, at most once a second, and at least every ten seconds.
  std::vector<OfferedAdapter> List();

  const std::filesystem::path& path() const { return directory_; }

 private:
  AdapterDirectory(std::filesystem::path directory, const Clock* clock)
      : directory_(std::move(directory)), clock_(clock) {}
  void Scan();

  const std::filesystem::path directory_;
  const Clock* clock_;
  std::mutex mutex_;
  std::vector<OfferedAdapter> listed_;
  std::filesystem::file_time_type changed_{};
  TimeNs looked_at_ = -1, scanned_at_ = -1;
};

}  // namespace loramux
