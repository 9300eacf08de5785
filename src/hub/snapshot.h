// A repository's files on this machine: from the cache, or downloaded into it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "base/result.h"
#include "hub/hub_cache.h"
#include "hub/hub_client.h"

namespace loramux {

struct SnapshotOptions {
  std::string cache;  // the folder
  HubClientOptions hub;
  bool offline = false;  // take what the cache has, and never ask the hub
};

// Called with the bytes that are there of all files.
using SnapshotProgress = std::function<void(std::int64_t bytes, std::int64_t total)>;

// Returns the folder with the files. A complete snapshot in the cache is taken without asking the hub. What a download
// left behind is resumed. Errors: offline and not in the cache; those of HubClient; too little room on the disk;
// another process downloads the same file.
Result<std::filesystem::path> FetchSnapshot(const RepoName& repo, const SnapshotOptions& options,
                                            const SnapshotProgress& progress);

}  // namespace loramux
