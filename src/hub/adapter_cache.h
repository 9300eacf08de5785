// Adapters from afar on this machine's disk, by their content, so that several servers on one machine share them:
//   entries/KEY/FILE      one adapter's files; KEY is a SHA-256 of all of them. Never changed once it has this name
//   sources/HASH          JSON: the source, what it had, and the KEY of that; HASH is the SHA-256 of the source's name
//   digests/DIGEST        the KEY of an adapter with this digest (AdapterFile::digest), and with nothing but weights;
//   with
//                         a chat template or tokenizer too: a SHA-256 of the source and the digest in place of DIGEST
//   partial/HASH/FILE     a download of this source that has not ended
//   trash/                what is being removed
// A process that uses an entry or a partial download holds a lock on its folder (flock), which the system ends with the
// process. An entry appears by a rename, after its files are on the disk. So a crash leaves nothing that is half there.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "hub/object_store.h"

namespace loramux {

class LockedFolder;

// An adapter in the cache. Its folder stays as long as `lease` or a copy of it lives.
struct CachedAdapter {
  std::string digest;  // digest of the adapter (AdapterFile::digest)
  std::filesystem::path folder;
  std::vector<SourceFile> files;  // as the source had them; empty: another source brought the same content
  std::shared_ptr<const void> lease;
};

// Thread-safe, also among processes. May block on the disk.
class AdapterCache {
 public:
  // Makes the folders, and removes what was being removed. Error: a folder cannot be made; the message names the flag.
  static Result<std::unique_ptr<AdapterCache>> Open(std::filesystem::path directory, std::int64_t max_bytes);

  // What the source had when it was last asked; with a digest, an adapter of this digest wherever it came from.
  // nullopt: it is not there. Marks it as used.
  std::optional<CachedAdapter> Find(const AdapterSource& source, const std::string& digest) const;

  // A download of a source. Its folder stays when it is destroyed, so that a later one goes on, until Discard.
  class Download {
   public:
    Download(Download&&) noexcept;
    ~Download();
    const std::filesystem::path& folder() const;
    void Discard();

   private:
    friend class AdapterCache;
    explicit Download(std::unique_ptr<LockedFolder> locked);
    std::unique_ptr<LockedFolder> locked_;
  };
  // Waits until no other download of the source runs. Error (kUnavailable): *stop became true.
  Result<Download> Begin(const AdapterSource& source, const std::atomic<bool>* stop) const;
  // Makes room for the first `bytes` of a download whose source announced `announced` in all: removes what is unused,
  // the longest unused first. Nothing is removed for what was only announced. Errors (kResourceExhausted): it is larger
  // than the cache, the used adapters leave too little, or the disk is too full.
  Status Reserve(const Download& download, std::int64_t announced, std::int64_t bytes) const;
  // Gives the download's files their place. `digest`: of the adapter. Ends the download.
  Result<CachedAdapter> Publish(Download download, const AdapterSource& source, const std::string& digest,
                                std::vector<SourceFile> files) const;
  // Whether the files of an entry are what they were when it was published. Reads all of them.
  bool IsIntact(const CachedAdapter& adapter) const;
  // Removes an entry whose files are no longer what they were; processes that hold it open keep its files.
  void Drop(const CachedAdapter& adapter) const;

  // Bytes of all files, partial downloads with what they reserved.
  std::int64_t Bytes() const;
  const std::filesystem::path& directory() const { return directory_; }

 private:
  AdapterCache(std::filesystem::path directory, std::int64_t max_bytes)
      : directory_(std::move(directory)), max_bytes_(max_bytes) {}
  std::optional<CachedAdapter> Entry(const std::string& key) const;
  // The following REQUIRE the lock of the whole cache.
  Status MakeRoom(std::int64_t announced, std::int64_t bytes, const std::filesystem::path& except) const;
  bool Evict(const std::filesystem::path& folder) const;
  void Trash(const std::filesystem::path& folder) const;
  void EmptyTrash() const;

  const std::filesystem::path directory_;
  const std::int64_t max_bytes_;
};

}  // namespace loramux
