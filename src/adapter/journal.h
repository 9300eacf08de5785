// The on-disk journal of adapters loaded at run time. An acknowledged operation survives a crash at any moment.
//
// The journal is one file, STATE_DIR/adapters.journal. It has a header of 16 bytes ("LORAMUXJ", version 1 and zero as
// u32), then records, all little-endian:
//   u32 length of the payload, u32 check of the length and the record's offset, u64 XXH3 of the payload, payload
// A payload is one JSON object:
// - {"op":"load","name","path","digest","pinned","created"}, also for a reload. The last one of a name counts.
// - {"op":"unload","name","hide"}. "hide" means that flags or a directory would offer the name again, but must not.
//
// A record is synced to disk before it is acknowledged. When the file has grown to a multiple of its content, it is
// rewritten: a new file is written, synced and renamed over the old one.
//
// On reading, an incomplete last record is dropped, because it was never acknowledged. The same holds for a last record
// that ends in the zeros of blocks that were never written. Any other damage is an error that names the byte; nothing
// is guessed.
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

// An adapter as the journal records it.
struct JournaledAdapter {
  std::string name, path, digest;
  bool pinned = false;
  std::int64_t created_unix_seconds = 0;
  friend bool operator==(const JournaledAdapter&, const JournaledAdapter&) = default;
};
// Loaded adapters by name.
using JournaledAdapters = std::map<std::string, JournaledAdapter, std::less<>>;

// Reads and writes the journal of one state directory. Thread-safe. Holds the directory's lock as long as it lives.
class AdapterJournal {
 public:
  // Opens the journal in `directory`; creates both if missing. `files` must outlive the result. Errors: another process
  // uses the directory (kUnavailable), the file is damaged (kInvalidArgument), or an error of the file system.
  static Result<std::unique_ptr<AdapterJournal>> Open(FileSystem* files, const std::filesystem::path& directory);

  // The loaded adapters.
  JournaledAdapters Adapters() const;
  // Names that were unloaded but that flags or the adapter directory offer.
  std::set<std::string, std::less<>> Hidden() const;

  // Record one operation; Ok means that it is on disk. After an error the state in memory is unchanged. The file is
  // restored as far as the disk permits; if that is uncertain, the next operation first rewrites it. Load also unhides
  // the name.
  Status Load(const JournaledAdapter& adapter);
  Status Unload(const std::string& name, bool hide);

  // Bytes of an incomplete last record that Open dropped.
  std::uint64_t dropped_bytes() const { return dropped_bytes_; }
  // Bytes of the valid content of the file.
  std::uint64_t file_bytes() const;

 private:
  // For Open, which reads the file afterwards.
  AdapterJournal(FileSystem* files, std::filesystem::path directory);
  std::filesystem::path Path() const { return directory_ / "adapters.journal"; }
  // Applies the records of a file's content; fails if it is damaged.
  Status Replay(const std::string& content);
  Status ApplyPayload(std::string_view payload, std::uint64_t offset);
  // The error for damage at byte `offset`.
  Error Damaged(std::uint64_t offset, const std::string& what) const;
  // The following REQUIRE mutex_.
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
  std::uint64_t size_ = 0;  // bytes of the valid content
  std::uint64_t size_after_rewrite_ = 0;
  bool rewrite_first_ = false;  // the file may hold more than size_ bytes
  std::uint64_t dropped_bytes_ = 0;
};

}  // namespace loramux
