#include "adapter/journal.h"

#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>
#include <xxhash.h>

namespace loramux {
namespace {

constexpr std::string_view kMagic = "LORAMUXJ";
constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kFileHeaderBytes = 16;
constexpr std::uint64_t kRecordHeaderBytes = 16;
constexpr std::uint32_t kMaxPayloadBytes = 1 << 16;   // names and paths are far shorter
constexpr std::uint64_t kRewriteFromBytes = 1 << 16;  // a smaller file is never rewritten
constexpr std::uint64_t kRewriteGrowth = 4;

template <typename T>
void Put(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

template <typename T>
T Get(std::string_view content, std::uint64_t offset) {
  T value;
  std::memcpy(&value, content.data() + offset, sizeof(T));
  return value;
}

std::string FileHeader() {
  std::string header(kMagic);
  Put(header, kVersion);
  Put(header, std::uint32_t{0});
  return header;
}

// The check covers the offset, so bytes from elsewhere never pass for a record.
std::uint32_t LengthCheck(std::uint32_t length, std::uint64_t offset) {
  std::string text;
  Put(text, length);
  Put(text, offset);
  return static_cast<std::uint32_t>(XXH3_64bits(text.data(), text.size()));
}

std::string Record(const std::string& payload, std::uint64_t offset) {
  std::string record;
  const auto length = static_cast<std::uint32_t>(payload.size());
  Put(record, length);
  Put(record, LengthCheck(length, offset));
  Put(record, static_cast<std::uint64_t>(XXH3_64bits(payload.data(), payload.size())));
  return record + payload;
}

// The payload of a complete and valid record at `offset`; an empty view if there is none.
std::string_view PayloadAt(std::string_view content, std::uint64_t offset) {
  const std::uint64_t left = content.size() - offset;
  if (left < kRecordHeaderBytes) return {};
  const auto length = Get<std::uint32_t>(content, offset);
  if (Get<std::uint32_t>(content, offset + 4) != LengthCheck(length, offset)) return {};
  if (length > left - kRecordHeaderBytes) return {};
  const std::string_view payload = content.substr(offset + kRecordHeaderBytes, length);
  return Get<std::uint64_t>(content, offset + 8) == XXH3_64bits(payload.data(), payload.size()) ? payload
                                                                                                : std::string_view();
}

// Whether the bytes at `offset` can only be a record whose writing was cut off. They are at most one record and no
// valid record follows. The record is incomplete, or its end was never written (payloads end in a brace, unwritten
// blocks in zeros).
bool IsTornTail(std::string_view content, std::uint64_t offset) {
  const std::uint64_t left = content.size() - offset;
  if (left > kRecordHeaderBytes + kMaxPayloadBytes) return false;
  for (std::uint64_t i = offset + 1; i < content.size(); ++i) {
    if (!PayloadAt(content, i).empty()) return false;
  }
  if (left < kRecordHeaderBytes || content.back() == '\0') return true;
  const auto length = Get<std::uint32_t>(content, offset);
  return Get<std::uint32_t>(content, offset + 4) == LengthCheck(length, offset) && length > left - kRecordHeaderBytes;
}

Result<std::string> Serialise(const nlohmann::json& json) {
  try {
    std::string payload = json.dump();
    if (payload.size() <= kMaxPayloadBytes) return payload;
    return InvalidArgument("name and path of the adapter are too long for the journal");
  } catch (const nlohmann::json::exception&) {
    return InvalidArgument("name or path of the adapter is not UTF-8, so the journal cannot hold it");
  }
}

Result<std::string> LoadPayload(const JournaledAdapter& adapter) {
  return Serialise({{"op", "load"},
                    {"name", adapter.name},
                    {"path", adapter.path},
                    {"digest", adapter.digest},
                    {"pinned", adapter.pinned},
                    {"created", adapter.created_unix_seconds}});
}

Result<std::string> UnloadPayload(const std::string& name, bool hide) {
  return Serialise({{"op", "unload"}, {"name", name}, {"hide", hide}});
}

Status AppendAll(WritableFile& file, std::string_view data) {
  while (!data.empty()) {
    ASSIGN_OR_RETURN(const std::size_t written, file.Append(data));
    data.remove_prefix(written);
  }
  return Ok{};
}

}  // namespace

AdapterJournal::AdapterJournal(FileSystem* files, std::filesystem::path directory)
    : files_(files), directory_(std::move(directory)) {}

Result<std::unique_ptr<AdapterJournal>> AdapterJournal::Open(FileSystem* files,
                                                             const std::filesystem::path& directory) {
  std::unique_ptr<AdapterJournal> journal(new AdapterJournal(files, directory));
  AdapterJournal& j = *journal;
  RETURN_IF_ERROR(files->CreateDirectories(directory));
  auto lock = files->Lock(directory / "lock");
  if (!lock.ok()) {
    const bool taken = lock.error().code == ErrorCode::kUnavailable;
    return Error{
        lock.error().code,
        "--state-dir: " + lock.error().message + (taken ? ": is a server running on this directory already?" : ""),
        "--state-dir"};
  }
  j.lock_ = std::move(lock).value();
  auto content = files->Read(j.Path());
  if (!content.ok() && content.error().code != ErrorCode::kNotFound) return std::move(content).error();
  const std::lock_guard guard(j.mutex_);
  if (!content.ok()) {
    RETURN_IF_ERROR(j.Rewrite());
    return journal;
  }
  RETURN_IF_ERROR(j.Replay(*content));
  ASSIGN_OR_RETURN(const std::string rewritten, j.RewrittenContent());
  j.size_after_rewrite_ = rewritten.size();  // not size_: otherwise the file could grow further with each restart
  ASSIGN_OR_RETURN(j.file_, files->OpenForAppend(j.Path()));
  if (j.dropped_bytes_ > 0) {
    RETURN_IF_ERROR(j.file_->Truncate(j.size_));
    RETURN_IF_ERROR(j.file_->Sync());
  }
  return journal;
}

Error AdapterJournal::Damaged(std::uint64_t offset, const std::string& what) const {
  return InvalidArgument(
      "--state-dir: " + Path().string() + ": damaged at byte " + std::to_string(offset) + ": " + what +
          ". Nothing is loaded from it. Restore the file from a backup, or move it away and load the "
          "adapters again",
      "--state-dir");
}

Status AdapterJournal::Replay(const std::string& content) {
  const std::string header = FileHeader();
  if (content.substr(0, kMagic.size()) != kMagic || content.size() < kFileHeaderBytes) {
    return Damaged(0, "expected a loramux journal, found another file");
  }
  if (content.substr(0, header.size()) != header) {
    return Damaged(kMagic.size(), "expected version " + std::to_string(kVersion) + ", found " +
                                      std::to_string(Get<std::uint32_t>(content, kMagic.size())));
  }
  size_ = kFileHeaderBytes;
  while (size_ < content.size()) {
    const std::string_view payload = PayloadAt(content, size_);
    if (payload.empty()) {
      if (!IsTornTail(content, size_)) return Damaged(size_, "the record's checksum does not match");
      dropped_bytes_ = content.size() - size_;
      return Ok{};
    }
    RETURN_IF_ERROR(ApplyPayload(payload, size_));
    size_ += kRecordHeaderBytes + payload.size();
  }
  return Ok{};
}

Status AdapterJournal::ApplyPayload(std::string_view payload, std::uint64_t offset) {
  const auto json = nlohmann::json::parse(payload, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Damaged(offset, "the record is not a JSON object");
  try {
    const std::string name = json.at("name");
    if (json.at("op") == "unload") {
      adapters_.erase(name);
      if (json.at("hide").get<bool>()) hidden_.insert(name);
    } else if (json.at("op") == "load") {
      hidden_.erase(name);
      adapters_[name] = {name, json.at("path"), json.at("digest"), json.at("pinned"), json.at("created")};
    } else {
      return Damaged(offset, "the record holds an unknown operation; a newer version of loramux wrote it");
    }
  } catch (const nlohmann::json::exception& error) {
    return Damaged(offset, error.what());
  }
  return Ok{};
}

JournaledAdapters AdapterJournal::Adapters() const {
  const std::lock_guard guard(mutex_);
  return adapters_;
}

std::set<std::string, std::less<>> AdapterJournal::Hidden() const {
  const std::lock_guard guard(mutex_);
  return hidden_;
}

std::uint64_t AdapterJournal::file_bytes() const {
  const std::lock_guard guard(mutex_);
  return size_;
}

Status AdapterJournal::Load(const JournaledAdapter& adapter) {
  const std::lock_guard guard(mutex_);
  ASSIGN_OR_RETURN(const std::string payload, LoadPayload(adapter));
  RETURN_IF_ERROR(AppendRecord(payload));
  adapters_[adapter.name] = adapter;
  hidden_.erase(adapter.name);
  return RewriteIfGrown();
}

Status AdapterJournal::Unload(const std::string& name, bool hide) {
  const std::lock_guard guard(mutex_);
  if (!adapters_.contains(name) && (!hide || hidden_.contains(name))) return Ok{};
  ASSIGN_OR_RETURN(const std::string payload, UnloadPayload(name, hide));
  RETURN_IF_ERROR(AppendRecord(payload));
  adapters_.erase(name);
  if (hide) hidden_.insert(name);
  return RewriteIfGrown();
}

Status AdapterJournal::AppendRecord(const std::string& payload) {
  if (rewrite_first_) RETURN_IF_ERROR(Rewrite());
  const std::string record = Record(payload, size_);
  Status status = AppendAll(*file_, record);
  const bool appended = status.ok();
  if (appended) status = file_->Sync();
  if (status.ok()) {
    size_ += record.size();
    return Ok{};
  }
  // Undo what may have been written. If even that fails, the content on disk is unknown, so the next operation rewrites
  // the file. It does so after a failed sync too: the system may consider lost data written, and a later sync would not
  // report it.
  const bool taken_back = file_->Truncate(size_).ok() && file_->Sync().ok();
  rewrite_first_ = appended || !taken_back;
  return status;
}

// A written operation is acknowledged even if the file cannot be rewritten now.
Status AdapterJournal::RewriteIfGrown() {
  if (size_ < kRewriteFromBytes || size_ < kRewriteGrowth * size_after_rewrite_) return Ok{};
  if (!Rewrite().ok()) size_after_rewrite_ = size_ / 2;  // do not retry at once
  return Ok{};
}

// The current state as a file with one record for each entry.
Result<std::string> AdapterJournal::RewrittenContent() const {
  std::string content = FileHeader();
  for (const auto& [name, adapter] : adapters_) {
    ASSIGN_OR_RETURN(const std::string payload, LoadPayload(adapter));
    content += Record(payload, content.size());
  }
  for (const std::string& name : hidden_) {
    ASSIGN_OR_RETURN(const std::string payload, UnloadPayload(name, true));
    content += Record(payload, content.size());
  }
  return content;
}

Status AdapterJournal::Rewrite() {
  ASSIGN_OR_RETURN(const std::string content, RewrittenContent());
  const std::filesystem::path temporary = directory_ / "adapters.journal.new";
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files_->Create(temporary));
  RETURN_IF_ERROR(AppendAll(*file, content));
  RETURN_IF_ERROR(file->Sync());
  RETURN_IF_ERROR(files_->Rename(temporary, Path()));
  // From here on the new file is the journal, even if the rename is not on disk yet; the next operation syncs it before
  // its acknowledgement.
  file_ = std::move(file);
  size_ = size_after_rewrite_ = content.size();
  rewrite_first_ = true;
  RETURN_IF_ERROR(files_->SyncDirectory(directory_));
  rewrite_first_ = false;
  return Ok{};
}

}  // namespace loramux
