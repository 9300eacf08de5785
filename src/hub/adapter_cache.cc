#include "hub/adapter_cache.h"

#include <algorithm>
#include <fstream>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/file_system.h"
#include "hub/file_digest.h"
#include "hub/locked_folder.h"
#include "hub/partial_file.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kReservedName = ".reserved";             // in a partial download: the bytes that it will have
constexpr std::int64_t kDiskReserve = std::int64_t{16} << 20;  // bytes of the disk that a download leaves free
constexpr std::chrono::milliseconds kLockPause(50);

bool IsHexDigest(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// The first 4 KiB of a small file; empty if there is none.
std::string SmallText(const fs::path& path) {
  std::ifstream file(path);
  std::string text(4096, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

std::int64_t BytesBelow(const fs::path& folder) {
  std::int64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    if (it->is_regular_file(gone)) bytes += static_cast<std::int64_t>(it->file_size(gone));
  }
  const std::string reserved = SmallText(folder / kReservedName);
  return reserved.empty() ? bytes : std::max<std::int64_t>(bytes, std::strtoll(reserved.c_str(), nullptr, 10));
}

struct Unused {
  fs::path folder;
  fs::file_time_type used;
  std::int64_t bytes;
};

std::vector<Unused> FoldersIn(const fs::path& parent) {
  std::vector<Unused> folders;
  std::error_code error;
  for (fs::directory_iterator it(parent, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    const auto used = fs::last_write_time(it->path(), gone);
    folders.push_back({it->path(), used, BytesBelow(it->path())});
  }
  return folders;
}

// Names and contents of all files of the folder, hidden ones left out, as one digest.
Result<std::string> KeyOf(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().starts_with('.')) continue;
    if (it->is_regular_file(error)) names.push_back(it->path().lexically_relative(folder).string());
  }
  if (error) return IoError("cannot read " + folder.string() + ": " + error.message());
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(const std::string digest, Sha256HexOfFile(folder / name));
    text += digest + " " + name + "\n";
  }
  return Sha256Hex(text);
}

// Removes the files of a finished download that are no part of the adapter.
void KeepOnly(const fs::path& folder, const std::vector<SourceFile>& files) {
  std::vector<fs::path> others;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().lexically_relative(folder).string();
    const bool part = std::any_of(files.begin(), files.end(), [&](const auto& file) { return file.name == name; });
    std::error_code gone;
    if (!part && name != kReservedName && it->is_regular_file(gone)) others.push_back(it->path());
  }
  for (const fs::path& path : others) fs::remove(path, error);
}

std::string RecordOf(const AdapterSource& source, const std::string& key, const std::string& digest,
                     const std::vector<SourceFile>& files) {
  json list = json::array();
  for (const SourceFile& file : files) {
    list.push_back({{"name", file.name}, {"bytes", file.bytes}, {"version", file.version}});
  }
  return json{{"source", source.text}, {"key", key}, {"digest", digest}, {"files", std::move(list)}}.dump(
      1, ' ', false, json::error_handler_t::replace);
}

// In place of a digest for an adapter with a chat template or tokenizer: with the same weights, another source may have
// another template.
std::string OfSourceAlone(const AdapterSource& source, const std::string& digest) {
  return Sha256Hex(source.text + '\n' + digest);
}

struct SourceRecord {
  std::string key, digest;
  std::vector<SourceFile> files;
};

std::optional<SourceRecord> ReadRecord(const fs::path& path, const AdapterSource& source) {
  const json object = json::parse(SmallText(path), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return std::nullopt;
  try {
    if (object.at("source").get<std::string>() != source.text) return std::nullopt;
    SourceRecord record{.key = object.at("key"), .digest = object.at("digest")};
    for (const json& file : object.at("files")) {
      record.files.push_back({file.at("name"), file.at("bytes"), file.at("version")});
    }
    return IsHexDigest(record.key) ? std::optional(std::move(record)) : std::nullopt;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

Error Full(std::int64_t bytes, const std::string& expected, std::int64_t found) {
  return ResourceExhausted(fmt::format("the adapter has {}: expected room for it in {}, found {}", FormatBytes(bytes),
                                       expected, FormatBytes(std::max<std::int64_t>(0, found))));
}

}  // namespace

AdapterCache::Download::Download(std::unique_ptr<LockedFolder> locked) : locked_(std::move(locked)) {}
AdapterCache::Download::Download(Download&&) noexcept = default;
AdapterCache::Download::~Download() = default;
const fs::path& AdapterCache::Download::folder() const { return locked_->path(); }

void AdapterCache::Download::Discard() {
  std::error_code ignored;
  fs::remove_all(folder(), ignored);
}

Result<std::unique_ptr<AdapterCache>> AdapterCache::Open(fs::path directory, std::int64_t max_bytes) {
  std::unique_ptr<AdapterCache> cache;
  std::error_code error;
  fs::create_directories(directory, error);
  if (!error) directory = fs::canonical(directory, error);
  cache.reset(new AdapterCache(directory, max_bytes));
  for (const char* folder : {"entries", "sources", "digests", "partial", "trash", "lock"}) {
    if (!error) fs::create_directories(directory / folder, error);
  }
  if (error) {
    return IoError("--adapter-cache-dir: cannot make '" + directory.string() + "': " + error.message(),
                   "--adapter-cache-dir");
  }
  const auto whole = LockedFolder::Wait(directory / "lock");
  cache->EmptyTrash();
  return cache;
}

std::optional<CachedAdapter> AdapterCache::Entry(const std::string& key) const {
  if (!IsHexDigest(key)) return std::nullopt;
  std::shared_ptr<LockedFolder> locked = LockedFolder::Try(directory_ / "entries" / key, LockedFolder::Mode::kShared);
  if (locked == nullptr) return std::nullopt;
  locked->Touch();
  return CachedAdapter{.folder = locked->path(), .lease = std::move(locked)};
}

std::optional<CachedAdapter> AdapterCache::Find(const AdapterSource& source, const std::string& digest) const {
  const auto whole = LockedFolder::Wait(directory_ / "lock");  // so a publication is seen as a whole or not at all
  const auto record = ReadRecord(directory_ / "sources" / Sha256Hex(source.text), source);
  if (record && (digest.empty() || record->digest == digest)) {
    auto found = Entry(record->key);
    if (found) {
      found->digest = record->digest;
      found->files = record->files;
      return found;
    }
  }
  if (!IsHexDigest(digest)) return std::nullopt;
  for (const std::string& name : {OfSourceAlone(source, digest), digest}) {
    auto found = Entry(SmallText(directory_ / "digests" / name));
    if (!found) continue;
    found->digest = digest;
    return found;
  }
  return std::nullopt;
}

Result<AdapterCache::Download> AdapterCache::Begin(const AdapterSource& source, const std::atomic<bool>* stop) const {
  const fs::path folder = directory_ / "partial" / Sha256Hex(source.text);
  while (stop == nullptr || !stop->load()) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) return IoError(source.text + ": cannot make " + folder.string() + ": " + error.message());
    auto locked = LockedFolder::Try(folder, LockedFolder::Mode::kExclusive);
    if (locked != nullptr) return Download(std::move(locked));
    std::this_thread::sleep_for(kLockPause);
  }
  return Unavailable(source.text + ": the server is shutting down");
}

Status AdapterCache::Reserve(const Download& download, std::int64_t announced, std::int64_t bytes) const {
  const auto whole = LockedFolder::Wait(directory_ / "lock");
  std::error_code ignored;
  fs::remove(download.folder() / kReservedName, ignored);
  const std::int64_t there = BytesBelow(download.folder());
  RETURN_IF_ERROR(MakeRoom(announced, bytes, download.folder()));
  std::error_code error;
  const fs::space_info space = fs::space(directory_, error);
  const std::int64_t missing = std::max<std::int64_t>(0, announced - there);
  if (!error && space.available < static_cast<std::uintmax_t>(missing + kDiskReserve)) {
    Error full = Full(announced, directory_.string(), static_cast<std::int64_t>(space.available) - kDiskReserve);
    full.message += " on its disk; free some, or choose another --adapter-cache-dir";
    return full;
  }
  std::ofstream(download.folder() / kReservedName) << bytes;
  return Ok{};
}

Status AdapterCache::MakeRoom(std::int64_t announced, std::int64_t bytes, const fs::path& except) const {
  if (announced > max_bytes_) {
    Error full = Full(announced, "--adapter-cache-bytes", max_bytes_);
    full.message += "; raise the flag";
    return full;
  }
  std::vector<Unused> folders = FoldersIn(directory_ / "entries");
  const std::vector<Unused> partial = FoldersIn(directory_ / "partial");
  folders.insert(folders.end(), partial.begin(), partial.end());
  std::erase_if(folders, [&](const Unused& folder) { return folder.folder == except; });
  std::sort(folders.begin(), folders.end(), [](const auto& a, const auto& b) { return a.used < b.used; });
  std::int64_t used = 0, busy = 0;
  for (const Unused& folder : folders) {
    used += folder.bytes;
    if (LockedFolder::Try(folder.folder, LockedFolder::Mode::kExclusive) == nullptr) busy += folder.bytes;
  }
  if (busy + announced > max_bytes_) {
    Error full = Full(announced, "--adapter-cache-bytes beside the adapters that are in use", max_bytes_ - busy);
    full.message += "; raise the flag, or unload adapters";
    return full;
  }
  for (const Unused& folder : folders) {
    if (used + bytes <= max_bytes_) break;
    if (Evict(folder.folder)) used -= folder.bytes;
  }
  EmptyTrash();
  return Ok{};
}

// False: it is in use.
bool AdapterCache::Evict(const fs::path& folder) const {
  const auto locked = LockedFolder::Try(folder, LockedFolder::Mode::kExclusive);
  if (locked == nullptr) return false;
  Trash(folder);
  return true;
}

void AdapterCache::Trash(const fs::path& folder) const {
  std::error_code error;
  for (int number = 0; number < 1000; ++number) {
    const fs::path target = directory_ / "trash" / fmt::format("{}.{}", folder.filename().string(), number);
    if (fs::exists(target, error)) continue;
    fs::rename(folder, target, error);
    return;
  }
}

void AdapterCache::EmptyTrash() const {
  std::error_code error;
  for (fs::directory_iterator it(directory_ / "trash", error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    fs::remove_all(it->path(), ignored);
  }
}

Result<CachedAdapter> AdapterCache::Publish(Download download, const AdapterSource& source, const std::string& digest,
                                            std::vector<SourceFile> files) const {
  KeepOnly(download.folder(), files);
  ASSIGN_OR_RETURN(const std::string key, KeyOf(download.folder()));
  const auto whole = LockedFolder::Wait(directory_ / "lock");
  std::error_code error;
  fs::remove(download.folder() / kReservedName, error);
  std::optional<CachedAdapter> entry = Entry(key);
  if (entry) {
    download.Discard();  // another source, or another process, brought the same files
  } else {
    RETURN_IF_ERROR(SyncFolder(download.folder()));
    const fs::path place = directory_ / "entries" / key;
    fs::rename(download.folder(), place, error);
    if (error) return IoError("cannot rename " + download.folder().string() + ": " + error.message());
    RETURN_IF_ERROR(SyncFolder(directory_ / "entries"));
    std::shared_ptr<LockedFolder> locked = std::move(download.locked_);
    locked->Moved(place);
    locked->Share();
    locked->Touch();
    entry = CachedAdapter{.folder = place, .lease = std::move(locked)};
  }
  entry->digest = digest;
  entry->files = std::move(files);
  const std::string record = RecordOf(source, key, digest, entry->files);
  RETURN_IF_ERROR(ReplaceFile(OsFileSystem(), directory_ / "sources" / Sha256Hex(source.text), record));
  const bool text =
      std::any_of(entry->files.begin(), entry->files.end(), [](const auto& f) { return IsAdapterText(f.name); });
  const std::string name = text ? OfSourceAlone(source, digest) : digest;
  RETURN_IF_ERROR(ReplaceFile(OsFileSystem(), directory_ / "digests" / name, key));
  return *std::move(entry);
}

bool AdapterCache::IsIntact(const CachedAdapter& adapter) const {
  const auto key = KeyOf(adapter.folder);
  return key.ok() && *key == adapter.folder.filename().string();
}

void AdapterCache::Drop(const CachedAdapter& adapter) const {
  const auto whole = LockedFolder::Wait(directory_ / "lock");
  Trash(adapter.folder);
  EmptyTrash();
}

std::int64_t AdapterCache::Bytes() const {
  std::int64_t bytes = 0;
  for (const char* parent : {"entries", "partial"}) {
    for (const Unused& folder : FoldersIn(directory_ / parent)) bytes += folder.bytes;
  }
  return bytes;
}

}  // namespace loramux
