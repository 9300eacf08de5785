// The adapters that were loaded at run time, on disk: what was acknowledged is there after a crash at any moment.
//
// One file, STATE_DIR/adapters.journal: a header of 16 bytes ("LORAMUXJ", version 1 and zero as u32), then records:
//   u32 length of the payload, u32 check of the length and the record's offset, u64 XXH3 of the payload, payload
// all little-endian; a payload is one JSON object: {"op":"load","name","path","digest","pinned","created"} (also for a
// reload: the last one of a name counts) or {"op":"unload","name","hide"} ("hide": flags or a directory would offer the
// name again, and must not). A record is synced to disk before it is acknowledged. When the file has grown to a
// multiple of what it holds, it is rewritten: a new file, synced, renamed over the old one.
//
// Reading it back: a last record that is incomplete, or that ends in the zeros of blocks that were never written, was
// never acknowledged; it is dropped. Any other damage is an error that names the byte: nothing is guessed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "base/file_system.h"
#include "base/result.h"

namespace loramux {

struct JournaledAdapter {
  std::string name, path, digest;
  bool pinned = false;
  std::int64_t created_unix_seconds = 0;
  friend bool operator==(const JournaledAdapter&, const JournaledAdapter&) = default;
};
using JournaledAdapters = std::map<std::string, JournaledAdapter, std::less<>>;

// Thread-safe. Holds the directory's lock for its life.
class AdapterJournal {
 public:
  // Reads or creates the journal in `directory` (created if missing). `files` must outlive it. Errors: another process
  // uses the directory (kUnavailable), the file is damaged (kInvalidArgument), or whatever the disk says.
  static Result<std::unique_ptr<AdapterJournal>> Open(FileSystem* files, const std::filesystem::path& directory);

  // The adapters that are loaded as far as the journal knows.
  JournaledAdapters Adapters() const;
  // Names that were unloaded although flags or the adapter directory offer them.
  std::set<std::string, std::less<>> Hidden() const;

  // On the disk when they return Ok. On an error nothing has changed, neither here nor, as far as the disk obeys,
  // there; the next operation begins with a rewritten file if need be. Load ends a name's being hidden.
  Status Load(const JournaledAdapter& adapter);
  Status Unload(const std::string& name, bool hide);

  // Bytes of a half-written last record that Open dropped.
  std::uint64_t dropped_bytes() const { return dropped_bytes_; }
  std::uint64_t file_bytes() const;

 private:
  AdapterJournal(FileSystem* files, std::filesystem::path directory);
  std::filesystem::path Path() const { return directory_ / "adapters.journal"; }
  Status Replay(const std::string& content);
  Status ApplyPayload(std::string_view payload, std::uint64_t offset);
  Error Damaged(std::uint64_t offset, const std::string& what) const;
  // REQUIRE mutex_:
  Status AppendRecord(const std::string& payload);
  Result<std::string> RewrittenContent() const;
  Status Rewrite();
  Status RewriteIfGrown();

  FileSystem* files_;
  const std::filesystem::path directory_;
  mutable std::mutex mutex_;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<WritableFile> file_;
  JournaledAdapters adapters_;
  std::set<std::string, std::less<>> hidden_;
  std::uint64_t size_ = 0;  // of the valid content
  std::uint64_t size_after_rewrite_ = 0;
  bool rewrite_first_ = false;  // the file may hold more than size_ bytes
  std::uint64_t dropped_bytes_ = 0;
};

}  // namespace loramux
