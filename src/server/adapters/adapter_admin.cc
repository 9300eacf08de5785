#include "server/adapters/adapter_admin.h"

#include <algorithm>
#include <future>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"

namespace loramux {
namespace {

using VersionPtr = std::shared_ptr<const AdapterVersion>;

// How long a failed load on first use is remembered, and the interval between attempts to restore an adapter.
constexpr TimeNs kRefusalLifetime = 2 * kNsPerSecond;
constexpr std::size_t kMaxRefusals = 1024;
// Threads that fetch what a restart did not find in the cache, or a request names. They wait for the network nearly
// all of the time; one origin gets few, so that seven slow ones hold up no other.
constexpr int kDownloadThreads = 32, kDownloadThreadsPerOrigin = 4;
constexpr std::size_t kMostFetched = 256;             // sources that requests have named, served or being fetched
constexpr std::ptrdiff_t kMostFetchesPerOrigin = 32;  // a request beyond them is told to come again

// Whom the fetch of `path` loads; empty: `path` is no source.
std::string OriginOf(const std::string& path) {
  const auto source = ParseAdapterSource(path);
  return source.ok() ? OriginOf(*source) : std::string();
}

std::set<std::string, std::less<>> NamesOf(const AdapterRegistry& registry) {
  std::set<std::string, std::less<>> names;
  for (const auto& version : registry.List()) names.insert(version->name);
  return names;
}

// True if the same files may be usable later. A digest that differs or a missing file needs the operator.
bool MayPass(const Error& error) {
  return error.code == ErrorCode::kIoError || error.code == ErrorCode::kUnavailable ||
         error.code == ErrorCode::kResourceExhausted;
}

// Refuses content that is not what was loaded. A record of an older version holds a digest of another kind: then that
// kind is compared.
Status CheckContent(const JournaledAdapter& adapter, const AdapterVersion& version) {
  std::string found = version.file.digest;
  if (IsOldAdapterDigest(adapter.digest)) {
    ASSIGN_OR_RETURN(found, OldAdapterDigest(version.file));
  }
  if (found == adapter.digest) return Ok{};
  return InvalidArgument(adapter.path + ": its content has changed since it was loaded (digest " + found +
                         ", expected " + adapter.digest + ")");
}

VersionPtr Current(const AdapterRegistry& registry, const std::string& name) {
  auto version = registry.Resolve(name);
  return version.ok() ? *version : nullptr;
}

Error AlreadyLoaded(const std::string& name) {
  return InvalidArgument("The lora adapter '" + name + "' has already been loaded.", "lora_name");
}

// What rounding did to rows in 8 bits, after a comma, for the log.
std::string RoundingIn(const AdapterVersion& version) {
  return version.rounding ? ", " + Describe(*version.rounding, version.layout.dtype) : std::string();
}

}  // namespace

// Holds a name for one operation: waits until no other operation holds it.
class AdapterAdmin::NameGuard {
 public:
  NameGuard(AdapterAdmin& admin, std::string name) : admin_(admin), name_(std::move(name)) {
    std::unique_lock lock(admin_.mutex_);
    admin_.name_free_.wait(lock, [this] { return !admin_.busy_.contains(name_); });
    admin_.busy_.insert(name_);
  }
  ~NameGuard() {
    {
      const std::lock_guard lock(admin_.mutex_);
      admin_.busy_.erase(name_);
    }
    admin_.name_free_.notify_all();
  }
  NameGuard(const NameGuard&) = delete;
  NameGuard& operator=(const NameGuard&) = delete;

 private:
  AdapterAdmin& admin_;
  const std::string name_;
};

AdapterAdmin::AdapterAdmin(AdapterAdminParts parts)
    : parts_(std::move(parts)),
      from_flags_(NamesOf(*parts_.registry)),
      checks_([this](const std::string& name, const std::filesystem::path& path) { return CheckFiles(name, path); }) {
  if (parts_.remote == nullptr) return;
  downloads_.emplace(*parts_.clock, FairWorkOptions{.threads = kDownloadThreads,
                                                    .spare_threads = 0,
                                                    .threads_per_tenant = kDownloadThreadsPerOrigin});
}

AdapterAdmin::~AdapterAdmin() {
  ending_ = true;
  if (parts_.remote != nullptr) parts_.remote->Stop();
}

Result<VersionPtr> AdapterAdmin::Open(const std::string& name, const std::string& path) {
  ASSIGN_OR_RETURN(const std::filesystem::path canonical, parts_.roots.Resolve(std::string(LocalPathOf(path))));
  AdapterOrigin origin;
  if (parts_.uploads != nullptr) origin.held = parts_.uploads->Hold(canonical);
  auto version = parts_.registry->Prepare(
      name, canonical, parts_.clock->UnixSeconds(),
      [this](const std::filesystem::path& real) { return parts_.roots.CheckOpened(real); }, std::move(origin));
  if (version.ok() && !(*version)->warning.empty()) spdlog::warn("adapter '{}': {}", name, (*version)->warning);
  return version;
}

Result<VersionPtr> AdapterAdmin::OpenRemote(const std::string& name, const std::string& path, const std::string& digest,
                                            AskSource ask) {
  ASSIGN_OR_RETURN(const AdapterSource source, ParseAdapterSource(path));
  RETURN_IF_ERROR(parts_.sources.Check(source));
  if (parts_.remote == nullptr) {
    return Unsupported(path + ": expected --adapter-cache-dir DIR, where downloads are kept, found none", "lora_path");
  }
  VersionPtr version;
  const auto discard = [&] {
    if (version != nullptr) parts_.registry->Discard(*version);
    version = nullptr;
  };
  const auto open = [&](const std::filesystem::path& folder,
                        const std::shared_ptr<const void>& lease) -> Result<std::string> {
    discard();
    const auto inside = [&](const std::filesystem::path& real) -> Status {
      if (real.lexically_relative(folder).native().starts_with("..")) {
        return InvalidArgument(real.string() + ": expected a file in the cache of adapters", "lora_path");
      }
      return Ok{};
    };
    ASSIGN_OR_RETURN(version, parts_.registry->Prepare(name, folder, parts_.clock->UnixSeconds(), inside,
                                                       {.source = source.text, .held = lease}));
    return version->file.digest;
  };
  const auto warning = parts_.remote->Use(source, digest, ask, open);
  if (!warning.ok()) {
    discard();
    return warning.error();
  }
  for (const std::string& text : {*warning, version->warning}) {
    if (!text.empty()) spdlog::warn("adapter '{}': {}", name, text);
  }
  return version;
}

// REQUIRES: for a path of this machine, the caller holds the name's guard.
Result<VersionPtr> AdapterAdmin::OpenForLoad(const LoadRequest& request) {
  if (IsRemoteSource(request.path)) {
    return OpenRemote(request.name, request.path, request.digest, AskSource::kAlways);
  }
  ASSIGN_OR_RETURN(VersionPtr version, Open(request.name, request.path));
  if (request.digest.empty() || version->file.digest == request.digest) return version;
  parts_.registry->Discard(*version);
  return InvalidArgument(request.path + ": expected content with digest " + request.digest + ", found " +
                             version->file.digest + "; load it again without a digest to accept the new content",
                         "lora_path");
}

Result<std::int64_t> AdapterAdmin::CheckFiles(const std::string& name, const std::filesystem::path& path) const {
  ASSIGN_OR_RETURN(const std::filesystem::path canonical, parts_.roots.Resolve(path.string()));
  return parts_.registry->Check(name, canonical,
                                [this](const std::filesystem::path& real) { return parts_.roots.CheckOpened(real); });
}

// The same content that is uploaded once more lies in another folder.
bool AdapterAdmin::IsSame(const AdapterVersion& old, const AdapterVersion& version) const {
  const auto uploaded = [this](const AdapterVersion& one) {
    return parts_.uploads != nullptr && one.path.parent_path() == parts_.uploads->directory();
  };
  const bool same_path = old.path == version.path || (uploaded(old) && uploaded(version));
  return same_path && old.file.digest == version.file.digest && old.text_digest == version.text_digest;
}

Result<AdapterAdmin::LoadResult> AdapterAdmin::Load(const LoadRequest& request) {
  RETURN_IF_ERROR(parts_.registry->CheckName(request.name));
  if (const auto source = ParseAdapterSource(request.name); source.ok() && source->text != request.name) {
    return InvalidArgument("'" + request.name + "': expected a name without a slash at its end", "lora_name");
  }
  VersionPtr version;
  if (IsRemoteSource(request.path)) {  // before the name is held, so that a download holds up nothing
    if (!request.replace && Current(*parts_.registry, request.name) != nullptr) return AlreadyLoaded(request.name);
    ASSIGN_OR_RETURN(version, OpenForLoad(request));
  }
  const NameGuard guard(*this, request.name);
  const VersionPtr old = Current(*parts_.registry, request.name);
  if (old != nullptr && !request.replace) {
    if (version != nullptr) parts_.registry->Discard(*version);
    return AlreadyLoaded(request.name);
  }
  if (version == nullptr) {
    ASSIGN_OR_RETURN(version, OpenForLoad(request));
  }
  if (old != nullptr && IsSame(*old, *version)) {
    parts_.registry->Discard(*version);
    return ChangePin(old, request);
  }
  Status prepared = PinAndJournal(version, request);
  if (!prepared.ok()) {
    parts_.registry->Discard(*version);  // ends the pin too
    return std::move(prepared).error();
  }
  Publish(version);
  Forget(request.name);
  const std::lock_guard lock(mutex_);
  if (request.pinned) pinned_.insert(request.name);
  spdlog::info("adapter '{}' {}: {} (rank {}, digest {}{}{})", request.name, old == nullptr ? "loaded" : "reloaded",
               version->path.string(), version->file.max_rank, version->file.digest, RoundingIn(*version),
               request.pinned ? ", pinned" : "");
  return LoadResult{old == nullptr ? LoadOutcome::kLoaded : LoadOutcome::kReloaded, version};
}

Status AdapterAdmin::PinAndJournal(const VersionPtr& version, const LoadRequest& request) {
  if (request.pinned) RETURN_IF_ERROR(Pin(version, true));
  return request.journal ? Journal(*version, request.pinned) : Ok{};
}

// REQUIRES: the caller holds the name's guard, or nothing is served yet.
void AdapterAdmin::Publish(const VersionPtr& version) {
  const VersionPtr old = Current(*parts_.registry, version->name);
  CHECK(parts_.registry->Publish(version, /*replace=*/true).ok());
  if (parts_.uploads != nullptr) parts_.uploads->Own(version->path);
  if (old != nullptr && parts_.retarget) parts_.retarget(*old, version);
}

// Changes only the pin: the weights are the same, so nothing is loaded.
Result<AdapterAdmin::LoadResult> AdapterAdmin::ChangePin(const VersionPtr& version, const LoadRequest& request) {
  const bool pinned = request.pinned;
  bool was_pinned = false;
  {
    const std::lock_guard lock(mutex_);
    was_pinned = pinned_.contains(version->name);
  }
  if (pinned && !was_pinned) RETURN_IF_ERROR(Pin(version, true));
  Status journalled = request.journal ? Journal(*version, pinned) : Ok{};
  if (!journalled.ok()) {
    if (pinned && !was_pinned) static_cast<void>(Pin(version, false));
    return std::move(journalled).error();
  }
  if (!pinned && was_pinned) RETURN_IF_ERROR(Pin(version, false));
  const std::lock_guard lock(mutex_);
  if (pinned) pinned_.insert(version->name);
  if (!pinned) pinned_.erase(version->name);
  return LoadResult{LoadOutcome::kUnchanged, version};
}

Status AdapterAdmin::Pin(VersionPtr version, bool pinned) {
  const auto promise = std::make_shared<std::promise<Status>>();
  std::future<Status> done = promise->get_future();
  parts_.set_pinned(std::move(version), pinned, [promise](Status status) { promise->set_value(std::move(status)); });
  return done.get();
}

Status AdapterAdmin::Journal(const AdapterVersion& version, bool pinned) {
  if (parts_.journal == nullptr) return Ok{};
  return parts_.journal->Load(
      {version.name, version.path.string(), version.file.digest, pinned, version.created_unix_seconds});
}

void AdapterAdmin::Forget(const std::string& name) {
  const std::lock_guard lock(mutex_);
  pinned_.erase(name);
  hidden_.erase(name);
  failed_.erase(name);
  refusals_.erase(name);
  fetched_.erase(name);
}

bool AdapterAdmin::IsOffered(const std::string& name) const {
  if (from_flags_.contains(name)) return true;
  if (parts_.sources_on_request && CheckSource(name).ok()) return true;
  return parts_.directory != nullptr && AdapterDirectory::IsPlainName(name) && !parts_.directory->PathOf(name).empty();
}

Status AdapterAdmin::Unload(const std::string& name) {
  const NameGuard guard(*this, name);
  const bool offered = IsOffered(name);
  bool known = Current(*parts_.registry, name) != nullptr;
  {
    const std::lock_guard lock(mutex_);
    known |= failed_.contains(name) || (offered && !hidden_.contains(name));
  }
  if (!known) return NotFound("The lora adapter '" + name + "' cannot be found.", "lora_name");
  if (parts_.journal != nullptr) RETURN_IF_ERROR(parts_.journal->Unload(name, offered));
  const bool loaded = parts_.registry->Remove(name).ok();  // an adapter that could not be restored is not registered
  Forget(name);
  const std::lock_guard lock(mutex_);
  if (offered) hidden_.insert(name);
  spdlog::info("adapter '{}' unloaded{}", name, loaded ? "" : " (it was not registered yet)");
  return Ok{};
}

// ---- Load on first use ----

Result<VersionPtr> AdapterAdmin::Find(std::string_view name_view) {
  auto known = parts_.registry->Resolve(name_view);
  if (known.ok()) return known;
  const std::string name(name_view);
  if (auto refusal = RememberedRefusal(name)) return *std::move(refusal);
  if (IsRemoteSource(name) && !HasFailed(name)) return FindSource(name);
  const bool in_directory = parts_.directory != nullptr && AdapterDirectory::IsPlainName(name);
  if (!in_directory && !HasFailed(name)) return UnknownModel(name);
  const NameGuard guard(*this, name);
  known = parts_.registry->Resolve(name);  // another request may have registered it meanwhile
  if (known.ok()) return known;
  if (auto refusal = RememberedRefusal(name)) return *std::move(refusal);
  if (HasFailed(name)) return RestoreAgain(name);
  if (!in_directory) return UnknownModel(name);
  auto found = Discover(name);
  if (!found.ok()) RememberRefusal(name, found.error());
  return found;
}

// Whether requests may name this source. A name is what keys permit and unloads hide, so it has one form.
Status AdapterAdmin::CheckSource(const std::string& name) const {
  ASSIGN_OR_RETURN(const AdapterSource source, ParseAdapterSource(name));
  if (source.text != name) {
    return InvalidArgument("'" + name + "': expected the source without a slash at its end", "lora_path");
  }
  RETURN_IF_ERROR(parts_.sources.Check(source));
  return parts_.registry->CheckName(name);
}

// A source in the place of a name. Nothing that a client sends makes others wait: the network is left to downloads_.
Result<VersionPtr> AdapterAdmin::FindSource(const std::string& name) {
  if (!parts_.sources_on_request || parts_.remote == nullptr) return UnknownModel(name);
  if (Status permitted = CheckSource(name); !permitted.ok()) {
    Error error = std::move(permitted).error();
    error.param = "model";
    return error;
  }
  bool crowded = false;
  {
    const std::lock_guard lock(mutex_);
    if (hidden_.contains(name)) return UnknownModel(name);
    if (fetched_.size() >= kMostFetched) {
      return ResourceExhausted("The adapter `" + name + "` is not fetched: requests have named " +
                                   std::to_string(kMostFetched) + " sources by now; unload some of them",
                               "model");
    }
    const auto of_origin =
        std::ranges::count(fetching_, OriginOf(name), [](const auto& fetch) { return fetch.second; });
    crowded = fetched_.size() + fetching_.size() >= kMostFetched || of_origin >= kMostFetchesPerOrigin;
  }
  // Not kUnavailable: a router would have other servers fetch it too, and take this one for ill.
  Error wait{ErrorCode::kRateLimited,
             "The adapter `" + name + "` " + (crowded ? "waits for others that are" : "is") +
                 " being fetched: send the request again in a moment",
             "model"};
  wait.retry_after_seconds = 1;
  if (!crowded) FetchBeside(name, name, [this, name] { FetchAndPublish(name); });
  return wait;
}

// Nothing happens if a fetch for the name waits or runs.
void AdapterAdmin::FetchBeside(const std::string& name, const std::string& path, std::function<void()> fetch) {
  const std::string origin = OriginOf(path);
  {
    const std::lock_guard lock(mutex_);
    if (!fetching_.try_emplace(name, origin).second) return;
  }
  downloads_->Post(origin, [this, name, fetch = std::move(fetch)] {
    if (!ending_) fetch();
    const std::lock_guard lock(mutex_);
    fetching_.erase(name);
  });
}

// On a thread of downloads_. The adapter may have been loaded or unloaded meanwhile.
void AdapterAdmin::FetchAndPublish(const std::string& name) {
  const auto version = OpenRemote(name, name, {}, AskSource::kAlways);
  if (!version.ok()) {
    spdlog::warn("adapter '{}' cannot be served: {}", name, version.error().message);
    RememberRefusal(name, Error{version.error().code,
                                "The adapter `" + name + "` cannot be served: " + version.error().message, "model"});
    return;
  }
  const NameGuard guard(*this, name);
  bool hidden = false;
  {
    const std::lock_guard lock(mutex_);
    hidden = hidden_.contains(name);
  }
  if (hidden || Current(*parts_.registry, name) != nullptr) return parts_.registry->Discard(**version);
  Publish(*version);
  {
    const std::lock_guard lock(mutex_);
    fetched_.insert(name);
  }
  spdlog::info("adapter '{}' fetched (rank {}, digest {}{})", name, (*version)->file.max_rank, (*version)->file.digest,
               RoundingIn(**version));
}

Result<VersionPtr> AdapterAdmin::Discover(const std::string& name) {
  {
    const std::lock_guard lock(mutex_);
    if (hidden_.contains(name)) return UnknownModel(name);
  }
  const std::filesystem::path path = parts_.directory->PathOf(name);
  if (path.empty()) return UnknownModel(name);
  RETURN_IF_ERROR(parts_.registry->CheckName(name));
  auto version = Open(name, path.string());
  if (!version.ok()) {
    spdlog::warn("adapter '{}' in --adapter-dir cannot be served: {}", name, version.error().message);
    return Error{
        version.error().code,
        "The adapter `" + name + "` cannot be served: " + WithoutPath(version.error().message, path.string(), name),
        "model"};
  }
  spdlog::info("adapter '{}' found: {} (rank {}, digest {}{})", name, (*version)->path.string(),
               (*version)->file.max_rank, (*version)->file.digest, RoundingIn(**version));
  return parts_.registry->Publish(*version, /*replace=*/false);
}

std::optional<Error> AdapterAdmin::RememberedRefusal(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (const auto failed = failed_.find(name); failed != failed_.end()) {
    const auto& [adapter, error, tried_at] = failed->second;
    if (MayPass(error) && parts_.clock->Now() >= tried_at + kRefusalLifetime) return std::nullopt;
    return error;
  }
  const auto refusal = refusals_.find(name);
  if (refusal == refusals_.end()) return std::nullopt;
  if (parts_.clock->Now() < refusal->second.until) return refusal->second.error;
  refusals_.erase(refusal);
  return std::nullopt;
}

void AdapterAdmin::RememberRefusal(const std::string& name, const Error& error) {
  const std::lock_guard lock(mutex_);
  if (refusals_.size() >= kMaxRefusals) refusals_.clear();
  refusals_[name] = {error, parts_.clock->Now() + kRefusalLifetime};
}

std::vector<OfferedAdapter> AdapterAdmin::Offered() {
  std::vector<OfferedAdapter> offered = InDirectory();
  std::erase_if(offered, [this](OfferedAdapter& adapter) {
    const auto classes = checks_.ClassesOf(adapter.name, adapter.path);
    if (classes.ok()) adapter.classes = *classes;
    return !classes.ok();
  });
  return offered;
}

std::vector<BrokenAdapter> AdapterAdmin::Broken() {
  std::vector<BrokenAdapter> broken;
  for (const OfferedAdapter& adapter : InDirectory()) {
    auto reason = checks_.WhyBroken(adapter.name, adapter.path);
    if (!reason) continue;
    broken.push_back({adapter.name, adapter.path, WithoutPath(*std::move(reason), adapter.path, adapter.name)});
  }
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, failure] : failed_) {
      broken.push_back({name, failure.adapter.path, failure.error.message});
    }
  }
  std::sort(broken.begin(), broken.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return broken;
}

// The adapters of the directory that the registry does not hold, broken ones included.
std::vector<OfferedAdapter> AdapterAdmin::InDirectory() {
  if (parts_.directory == nullptr) return {};
  std::vector<OfferedAdapter> offered = parts_.directory->List();
  std::vector<std::string> names;
  for (const OfferedAdapter& adapter : offered) names.push_back(adapter.name);
  checks_.KeepOnly(names);  // the list is sorted
  const std::lock_guard lock(mutex_);
  std::erase_if(offered, [&](const OfferedAdapter& adapter) {
    if (hidden_.contains(adapter.name) || failed_.contains(adapter.name)) return true;
    const auto known = parts_.registry->Resolve(adapter.name);
    return known.ok() && *known != nullptr;  // a name of the base model is one that no adapter can have
  });
  return offered;
}

Result<VersionPtr> AdapterAdmin::Compose(const std::vector<WeightedAdapter>& parts) {
  auto composite = parts_.registry->Compose(parts, parts_.clock->UnixSeconds());
  if (composite.ok()) return composite;
  Error error = std::move(composite).error();
  for (const WeightedAdapter& part : parts)
    error.message = WithoutPath(std::move(error.message), part.version->path.string(), part.version->name);
  return error;
}

// ---- Restart ----

void AdapterAdmin::Restore() {
  if (parts_.journal == nullptr) return;
  if (parts_.journal->dropped_bytes() > 0) {
    spdlog::warn("--state-dir: dropped a half-written last record of {} bytes; it was never acknowledged",
                 parts_.journal->dropped_bytes());
  }
  for (const std::string& name : parts_.journal->Hidden()) {
    static_cast<void>(parts_.registry->Remove(name));
    const std::lock_guard lock(mutex_);
    hidden_.insert(name);
  }
  std::size_t restored = 0;
  for (const auto& [name, adapter] : parts_.journal->Adapters()) {
    const Status status = RestoreOne(adapter);
    restored += status.ok();
    if (status.ok()) continue;
    static_cast<void>(parts_.registry->Remove(name));  // flags may have loaded a different adapter under this name
    RememberFailure(adapter, status.error());
    if (IsRemoteSource(adapter.path) && MayPass(status.error())) {
      FetchLater(adapter);
      continue;
    }
    spdlog::error("adapter '{}' could not be restored: {}. {}", name, status.error().message,
                  MayPass(status.error()) ? "The server tries again at the next request for it"
                                          : "Its name is not served until the adapter is loaded again");
  }
  if (restored > 0) spdlog::info("{} adapters restored from --state-dir", restored);
}

// Never waits for the network.
Status AdapterAdmin::RestoreOne(const JournaledAdapter& adapter) {
  auto version = IsRemoteSource(adapter.path)
                     ? OpenRemote(adapter.name, adapter.path, adapter.digest, AskSource::kNever)
                     : Open(adapter.name, adapter.path);
  if (!version.ok()) return version.error();
  return PublishRestored(adapter, *version);
}

void AdapterAdmin::FetchLater(const JournaledAdapter& adapter) {
  spdlog::info("adapter '{}': downloading {}", adapter.name, adapter.path);
  FetchBeside(adapter.name, adapter.path, [this, adapter] { FetchAndRestore(adapter); });
}

// On a thread of downloads_. An adapter that was loaded or unloaded meanwhile stays so.
void AdapterAdmin::FetchAndRestore(const JournaledAdapter& adapter) {
  const auto version = OpenRemote(adapter.name, adapter.path, adapter.digest, AskSource::kAlways);
  const NameGuard guard(*this, adapter.name);
  {
    const std::lock_guard lock(mutex_);
    const auto failed = failed_.find(adapter.name);
    if (failed == failed_.end() || failed->second.adapter != adapter) {
      if (version.ok()) parts_.registry->Discard(**version);
      return;
    }
  }
  const Status status = version.ok() ? PublishRestored(adapter, *version) : Status(version.error());
  if (!status.ok()) {
    spdlog::error("adapter '{}' could not be restored: {}", adapter.name, status.error().message);
    RememberFailure(adapter, status.error());
    return;
  }
  spdlog::info("adapter '{}' restored: {}", adapter.name, adapter.path);
  const std::lock_guard lock(mutex_);
  failed_.erase(adapter.name);
}

Status AdapterAdmin::PublishRestored(const JournaledAdapter& adapter, const VersionPtr& version) {
  Status status = CheckContent(adapter, *version);
  if (status.ok() && adapter.pinned) status = Pin(version, true);
  if (!status.ok()) {
    parts_.registry->Discard(*version);
    return status;
  }
  Publish(version);
  RenewDigest(adapter, *version);
  const std::lock_guard lock(mutex_);
  if (adapter.pinned) pinned_.insert(adapter.name);
  return Ok{};
}

// Records the digest of today in place of an older one. If that fails, the next restart tries again.
void AdapterAdmin::RenewDigest(const JournaledAdapter& adapter, const AdapterVersion& version) {
  if (adapter.digest == version.file.digest) return;
  JournaledAdapter renewed = adapter;
  renewed.digest = version.file.digest;
  const Status status = parts_.journal->Load(renewed);
  if (!status.ok())
    spdlog::warn("adapter '{}': its new digest is not recorded: {}", adapter.name, status.error().message);
}

// REQUIRES: the caller holds the name's guard, and HasFailed(name).
Result<VersionPtr> AdapterAdmin::RestoreAgain(const std::string& name) {
  JournaledAdapter adapter;
  {
    const std::lock_guard lock(mutex_);
    adapter = failed_.at(name).adapter;
    failed_.at(name).tried_at = parts_.clock->Now();
  }
  const Status status = RestoreOne(adapter);
  if (!status.ok() && IsRemoteSource(adapter.path) && MayPass(status.error())) {
    FetchLater(adapter);
    const std::lock_guard lock(mutex_);
    return failed_.at(name).error;
  }
  if (!status.ok()) {
    spdlog::error("adapter '{}' could not be restored: {}", name, status.error().message);
    RememberFailure(adapter, status.error());
    const std::lock_guard lock(mutex_);
    return failed_.at(name).error;
  }
  spdlog::info("adapter '{}' restored after an earlier failure: {}", name, adapter.path);
  const std::lock_guard lock(mutex_);
  failed_.erase(name);
  return parts_.registry->Resolve(name);
}

// Decides the error that clients get: kUnavailable if the cause may be temporary, kNotFound otherwise.
void AdapterAdmin::RememberFailure(const JournaledAdapter& adapter, const Error& error) {
  const ErrorCode code = MayPass(error) ? ErrorCode::kUnavailable : ErrorCode::kNotFound;
  const std::lock_guard lock(mutex_);
  failed_[adapter.name] = {adapter,
                           Error{code,
                                 "The adapter `" + adapter.name + "` could not be restored after a restart: " +
                                     WithoutPath(error.message, adapter.path, adapter.name),
                                 "model"},
                           parts_.clock->Now()};
}

bool AdapterAdmin::HasFailed(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return failed_.contains(name);
}

std::map<std::string, std::string> AdapterAdmin::Loaded() const {
  std::map<std::string, std::string> loaded;
  for (const auto& version : parts_.registry->List()) loaded.emplace(version->name, version->path.string());
  return loaded;
}

std::map<std::string, std::string> AdapterAdmin::Failed() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::string> failed;
  for (const auto& [name, failure] : failed_) failed.emplace(name, failure.error.message);
  return failed;
}

}  // namespace loramux
