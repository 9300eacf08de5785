// Adapters that are named by a source: from the cache on the disk, or downloaded into it and checked before any other
// part of the program sees them.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "hub/adapter_cache.h"
#include "hub/adapter_source.h"
#include "hub/object_store.h"

namespace loramux {

struct RemoteAdapterOptions {
  std::string cache_directory;                        // --adapter-cache-dir
  std::int64_t cache_bytes = std::int64_t{32} << 30;  // --adapter-cache-bytes
  bool offline = false;                               // take what the cache has, and never ask a source
  S3Options s3;
  HubClientOptions hub;
};

// When the source is asked what it has now. Where a digest is given and the cache has it, it never is.
enum class AskSource {
  kAlways,  // what an operator loads is what the source has at that moment
  kOrTake,  // if the source cannot be asked, what the cache has of it will do
  kNever,   // what the cache has, at once
};

// Thread-safe. Use may take as long as a download; several run side by side, one for each source.
class RemoteAdapters {
 public:
  // Errors: those of AdapterCache::Open.
  static Result<std::unique_ptr<RemoteAdapters>> Open(RemoteAdapterOptions options);

  // Opens and checks the adapter in a folder as one of this machine is, and returns its digest. `lease` keeps the
  // folder; it is null for a download, which is checked and then moved.
  using OpenFolder =
      std::function<Result<std::string>(const std::filesystem::path& folder, const std::shared_ptr<const void>& lease)>;
  // Opens the adapter of `source`, with the digest if one is given. What `open` made in its last call is the adapter,
  // if this is ok; the result is then a warning, or empty. An entry whose files changed on the disk is removed and
  // fetched again. Errors name the source, with what was expected, found, and what to do: those of ObjectStore and
  // AdapterCache::Reserve; `open` refuses it; another digest. kUnavailable, if the cache does not have it and may not
  // be filled (kNever, offline), or after Stop.
  Result<std::string> Use(const AdapterSource& source, const std::string& digest, AskSource ask,
                          const OpenFolder& open);

  // Ends all downloads, now and from now on; what came is kept.
  void Stop() { stop_ = true; }
  bool stopped() const { return stop_; }
  const AdapterCache& cache() const { return *cache_; }

 private:
  RemoteAdapters(RemoteAdapterOptions options, std::unique_ptr<AdapterCache> cache);
  struct Resolved {
    CachedAdapter adapter;
    std::string warning;
  };
  Result<Resolved> Resolve(const AdapterSource& source, const std::string& digest, AskSource ask,
                           const OpenFolder& open);
  Result<std::unique_ptr<ObjectStore>> StoreOf(const AdapterSource& source);
  Result<CachedAdapter> Fetch(ObjectStore& store, const AdapterSource& source, const std::string& digest,
                              const OpenFolder& open);

  const RemoteAdapterOptions options_;
  const std::unique_ptr<AdapterCache> cache_;
  std::atomic<bool> stop_{false};
};

}  // namespace loramux
