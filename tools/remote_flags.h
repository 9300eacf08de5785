// The flags of adapters that are named by a source (s3://, hf://), and what fetches them.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "adapter/registry.h"
#include "base/result.h"
#include "hub/remote_adapters.h"
#include "tools/command_line/command_line.h"
#include "tools/model_flags.h"

namespace loramux {

struct RemoteFlags {
  std::string cache_directory;  // empty: the user's cache
  std::string cache_bytes = "32GiB";
  std::shared_ptr<RemoteAdapters> opened;  // after OpenRemoteAdapters; null: no source was named
};

void AddRemoteFlags(CommandLine& line, RemoteFlags& flags);

// --adapter-cache-dir, or its default.
std::filesystem::path AdapterCacheDirectory(const RemoteFlags& flags);

// Opens the cache once. The credentials of S3 come from the variables that Amazon's own programs read. Errors name the
// flag or the variable.
Status OpenRemoteAdapters(RemoteFlags& flags, const HubFlags& hub);

// Prepares the adapter that an operator's flag names; logs a warning if it may not be the newest. REQUIRES:
// OpenRemoteAdapters. Errors: RemoteAdapters::Use's.
Result<std::shared_ptr<const AdapterVersion>> PrepareFromSource(const RemoteFlags& flags, AdapterRegistry& registry,
                                                                const std::string& name, const std::string& source,
                                                                std::int64_t now_unix_seconds);

}  // namespace loramux
