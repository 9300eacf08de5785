#include "hub/remote_adapters.h"

#include <algorithm>
#include <utility>

namespace loramux {
namespace {

// Bytes of the cache that a download takes beyond what it has: as many as it has, within these bounds.
constexpr std::int64_t kLeastRoomAhead = std::int64_t{64} << 10, kMostRoomAhead = std::int64_t{64} << 20;

Error OfSource(const AdapterSource& source, Error error) {
  if (error.message.find(source.text) == std::string::npos) error.message = source.text + ": " + error.message;
  if (error.param.empty()) error.param = "lora_path";
  return error;
}

// Puts the source in place of a folder that no operator knows.
Error WithoutFolder(Error error, const std::filesystem::path& path, const AdapterSource& source) {
  const std::string folder = path.string();
  for (std::size_t at; (at = error.message.find(folder)) != std::string::npos;) {
    error.message.replace(at, folder.size(), source.text);
  }
  return OfSource(source, std::move(error));
}

}  // namespace

RemoteAdapters::RemoteAdapters(RemoteAdapterOptions options, std::unique_ptr<AdapterCache> cache)
    : options_(std::move(options)), cache_(std::move(cache)) {}

Result<std::unique_ptr<RemoteAdapters>> RemoteAdapters::Open(RemoteAdapterOptions options) {
  ASSIGN_OR_RETURN(auto cache, AdapterCache::Open(options.cache_directory, options.cache_bytes));
  return std::unique_ptr<RemoteAdapters>(new RemoteAdapters(std::move(options), std::move(cache)));
}

Result<std::unique_ptr<ObjectStore>> RemoteAdapters::StoreOf(const AdapterSource& source) {
  if (source.kind == AdapterSource::Kind::kS3) return OpenS3Store(options_.s3, &stop_);
  HubClientOptions hub = options_.hub;
  hub.stop = &stop_;
  hub.limits = options_.s3.limits;
  return OpenHubStore(std::move(hub));
}

Result<RemoteAdapters::Resolved> RemoteAdapters::Resolve(const AdapterSource& source, const std::string& digest,
                                                         AskSource ask, const OpenFolder& open) {
  auto cached = cache_->Find(source, digest);
  const bool asks = ask != AskSource::kNever && !options_.offline;
  if (cached && (!digest.empty() || !asks)) return Resolved{*std::move(cached), {}};
  if (!asks) {
    return Unavailable(source.text + ": not in the cache " + cache_->directory().string() +
                       (options_.offline ? "; leave out --offline to download it" : " yet; it is being downloaded"));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<ObjectStore> store, StoreOf(source));
  const auto with_cached = [&](const Error& error) -> Result<Resolved> {
    if (!cached || ask != AskSource::kOrTake) return OfSource(source, error);
    return Resolved{*std::move(cached), error.message + "; what the cache has of it is used"};
  };
  if (cached && !cached->files.empty()) {
    const auto current = store->IsCurrent(source, cached->files);
    if (!current.ok()) return with_cached(current.error());
    if (*current) return Resolved{*std::move(cached), {}};
  }
  auto fetched = Fetch(*store, source, digest, open);
  if (!fetched.ok()) return with_cached(fetched.error());
  return Resolved{*std::move(fetched), {}};
}

Result<std::string> RemoteAdapters::Use(const AdapterSource& source, const std::string& digest, AskSource ask,
                                        const OpenFolder& open) {
  constexpr int kAttempts = 2;
  for (int attempt = 1;; ++attempt) {
    ASSIGN_OR_RETURN(const Resolved resolved, Resolve(source, digest, ask, open));
    const CachedAdapter& adapter = resolved.adapter;
    const auto found = open(adapter.folder, adapter.lease);
    if (found.ok() && *found == adapter.digest) return resolved.warning;
    if (cache_->IsIntact(adapter)) {  // it fits another base model
      return found.ok() ? Internal(source.text + ": the cache's record has another digest than its files")
                        : WithoutFolder(found.error(), adapter.folder, source);
    }
    cache_->Drop(adapter);
    if (attempt == kAttempts || ask == AskSource::kNever) {
      return Unavailable(source.text + ": its files in " + cache_->directory().string() +
                         " changed on the disk and were removed; load it again");
    }
  }
}

Result<CachedAdapter> RemoteAdapters::Fetch(ObjectStore& store, const AdapterSource& source, const std::string& digest,
                                            const OpenFolder& open) {
  ASSIGN_OR_RETURN(AdapterCache::Download download, cache_->Begin(source, &stop_));
  if (!digest.empty()) {  // another download of the source may have ended meanwhile
    if (auto cached = cache_->Find(source, digest)) return *std::move(cached);
  }
  std::int64_t announced = -1, taken = 0;
  const auto reserve = [&](std::int64_t now_announced, std::int64_t next) -> Status {
    if (now_announced == announced && next <= taken) return Ok{};
    const std::int64_t ahead = next == 0 ? 0 : std::clamp(next, kLeastRoomAhead, kMostRoomAhead);
    taken = std::min(now_announced, next + ahead);
    announced = now_announced;
    return cache_->Reserve(download, announced, taken);
  };
  auto files = store.Fetch(source, download.folder(), reserve);
  if (!files.ok()) {
    const ErrorCode code = files.error().code;  // what another try may use is kept
    if (code != ErrorCode::kUnavailable) download.Discard();
    return files.error();
  }
  const auto found = open(download.folder(), nullptr);
  if (!found.ok()) {
    Error error = WithoutFolder(found.error(), download.folder(), source);
    download.Discard();
    return error;
  }
  if (!digest.empty() && *found != digest) {
    download.Discard();
    return InvalidArgument(source.text + ": expected content with digest " + digest + ", found " + *found +
                               "; load it again without a digest to accept the new content",
                           "lora_path");
  }
  return cache_->Publish(std::move(download), source, *found, *std::move(files));
}

}  // namespace loramux
