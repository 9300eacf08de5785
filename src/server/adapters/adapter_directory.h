// The directory of adapters (--adapter-dir): one sub-directory per adapter, read while the server runs.
#pragma once

#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "server/adapters/adapter_finder.h"

namespace loramux {

// Thread-safe. Methods may block on the disk.
class AdapterDirectory {
 public:
  // Opens `directory`. Error: it cannot be listed; the message names the flag. `clock` must outlive the result.
  static Result<std::unique_ptr<AdapterDirectory>> Open(std::filesystem::path directory, const Clock* clock);

  // True if `name` can be one entry of a directory: not empty, no leading dot, no slash, no NUL, at most 255 bytes.
  static bool IsPlainName(std::string_view name);
  // Returns the path of the sub-directory `name` if it holds an adapter_config.json, or what people mistake for an
  // adapter (WhatAdapterFolderHolds) and no model, and an empty path otherwise. REQUIRES: IsPlainName(name).
  std::filesystem::path PathOf(std::string_view name) const;
  // Returns every sub-directory that holds one of these, sorted by name. The list is cached: List looks at
  // the directory at most once a second, and reads it again if it has changed or if the list is ten seconds old.
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
