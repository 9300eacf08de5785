// The flags of adapters that are named by a source (s3://, hf://), and what fetches them.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "adapter/registry.h"
#include "base/result.h"
#include "hub/remote_adapters.h"
#include "tools/command_line/command_line.h"

namespace loramux {

struct RuntimeFlags;

void AddRemoteFlags(CommandLine& line, RemoteAdapterOptions& remote);

// --adapter-cache-dir, or its default.
std::filesystem::path AdapterCacheDirectory(const RemoteAdapterOptions& remote);

// Opens the cache once. The credentials of S3 come from the variables that Amazon's own programs read. Errors name the
// flag or the variable.
Status OpenRemoteAdapters(RuntimeFlags& flags);

// Prepares the adapter that an operator's flag names; logs a warning if it may not be the newest. REQUIRES:
// OpenRemoteAdapters. Errors: RemoteAdapters::Use's.
Result<std::shared_ptr<const AdapterVersion>> PrepareFromSource(const RuntimeFlags& flags, AdapterRegistry& registry,
                                                                const std::string& name, const std::string& source,
                                                                std::int64_t now_unix_seconds);

}  // namespace loramux
