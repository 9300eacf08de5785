#include "server/adapters/catalogue_follower.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "etcd/membership.h"

namespace loramux {
namespace {

using namespace std::chrono_literals;
constexpr int kLoadThreads = 4;  // loads at a time; some may wait for the network
constexpr TimeNs kPatienceWithOthers = 3 * kNsPerSecond;
constexpr TimeNs kLongestSleep = 60 * kNsPerSecond;  // so that no clock of a test is waited for

}  // namespace

// Holds a name: waits until no other thread works on it.
class CatalogueFollower::NameGuard {
 public:
  NameGuard(CatalogueFollower& follower, std::string name) : follower_(follower), name_(std::move(name)) {
    std::unique_lock lock(follower_.mutex_);
    follower_.changed_.wait(lock, [this] { return !follower_.busy_.contains(name_); });
    follower_.busy_.insert(name_);
  }
  ~NameGuard() {
    const std::lock_guard lock(follower_.mutex_);
    follower_.busy_.erase(name_);
    follower_.changed_.notify_all();
  }
  NameGuard(const NameGuard&) = delete;
  NameGuard& operator=(const NameGuard&) = delete;

 private:
  CatalogueFollower& follower_;
  const std::string name_;
};

CatalogueFollower::CatalogueFollower(AdapterAdmin& admin, EtcdClient& client, LeasedKeys& keys, const Clock& clock,
                                     std::string server_id)
    : admin_(admin), client_(client), keys_(keys), clock_(clock), server_id_(std::move(server_id)) {
  for (int i = 0; i < kLoadThreads; ++i) {
    threads_.emplace_back([this](std::stop_token stop) { Work(std::move(stop)); });
  }
  mirror_ = FollowCatalogue(client_, [this](FleetCatalogue catalogue) { SetDesired(std::move(catalogue)); });
}

CatalogueFollower::~CatalogueFollower() {
  mirror_.reset();
  for (std::jthread& thread : threads_) thread.request_stop();
  threads_.clear();
}

void CatalogueFollower::SetDesired(FleetCatalogue catalogue) {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, why] : catalogue.broken) {
    if (!desired_ || !desired_->broken.contains(name)) {
      spdlog::error("etcd: the catalogue's entry of adapter '{}' cannot be read, so nothing is changed: {}", name, why);
    }
  }
  if (desired_ && desired_->epoch != catalogue.epoch) {
    for (auto& [name, applied] : applied_) {
      const bool lost = applied.owned && !catalogue.entries.contains(name);
      if (!lost) continue;
      spdlog::warn("etcd lost the catalogue's entry of adapter '{}'; it stays loaded here, as this server's own", name);
      applied.owned = false;
    }
    own_changes_.clear();
  }
  std::erase_if(own_changes_, [&](const auto& change) { return change.second.store_revision <= catalogue.revision; });
  for (const auto& [name, record] : own_changes_) {
    if (record.entry) catalogue.entries[name] = *record.entry;
    if (!record.entry) catalogue.entries.erase(name);
  }
  desired_ = std::move(catalogue);
  changed_.notify_all();
}

// What this server wrote counts at once: the watch brings it a moment later, perhaps after older changes.
void CatalogueFollower::SetOwnChange(const std::string& name, const CatalogueRecord& record) {
  const std::lock_guard lock(mutex_);
  if (!desired_ || desired_->revision >= record.store_revision) return;
  own_changes_[name] = record;
  if (record.entry) desired_->entries[name] = *record.entry;
  if (!record.entry) desired_->entries.erase(name);
}

// A name that no thread works on, and whose state is not the one that the catalogue wants.
std::optional<CatalogueFollower::Action> CatalogueFollower::NextAction(TimeNs now, TimeNs& wake_at) {
  wake_at = std::numeric_limits<TimeNs>::max();
  if (!desired_) return std::nullopt;
  for (const auto& [name, entry] : desired_->entries) {
    if (busy_.contains(name)) continue;
    const auto applied = applied_.find(name);
    const bool tried = applied != applied_.end() && applied->second.entry == entry;
    if (!tried) return Action{name, entry, desired_->epoch};
    if (!applied->second.error) continue;
    if (now >= applied->second.retry.at()) return Action{name, entry, desired_->epoch};
    wake_at = std::min(wake_at, applied->second.retry.at());
  }
  for (const auto& [name, applied] : applied_) {
    if (busy_.contains(name) || desired_->entries.contains(name) || desired_->broken.contains(name)) continue;
    return Action{name, std::nullopt, desired_->epoch};
  }
  return std::nullopt;
}

bool CatalogueFollower::Settled() const {
  if (!desired_ || !busy_.empty()) return false;
  return std::all_of(desired_->entries.begin(), desired_->entries.end(), [this](const auto& wanted) {
    const auto applied = applied_.find(wanted.first);
    return applied != applied_.end() && applied->second.entry == wanted.second;
  });
}

bool CatalogueFollower::WaitUntilFirstPass(std::chrono::nanoseconds read_time, std::chrono::nanoseconds load_time) {
  if (!mirror_->WaitUntilRead(read_time)) return false;
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, load_time, [this] { return Settled(); });
}

void CatalogueFollower::Work(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    TimeNs wake_at = 0;
    const TimeNs now = clock_.Now();
    const auto action = NextAction(now, wake_at);
    if (!action) {
      changed_.wait_for(lock, stop, std::chrono::nanoseconds(std::min(wake_at - now, kLongestSleep)),
                        [&] { return NextAction(clock_.Now(), wake_at).has_value(); });
      continue;
    }
    busy_.insert(action->name);
    lock.unlock();
    Carry(*action);
    lock.lock();
    busy_.erase(action->name);
    changed_.notify_all();
  }
}

void CatalogueFollower::Carry(const Action& action) {
  if (action.load) {
    CarryLoad(action.name, *action.load, action.epoch);
  } else {
    CarryUnload(action.name);
  }
}

void CatalogueFollower::CarryLoad(const std::string& name, const FleetAdapter& entry, std::uint64_t epoch) {
  const auto outcome = admin_.Load({.name = name,
                                    .path = entry.source,
                                    .replace = true,
                                    .pinned = entry.pinned,
                                    .digest = entry.digest,
                                    .journal = false});
  if (outcome.ok()) return Record(name, entry, std::nullopt, epoch);
  spdlog::warn("etcd: the catalogue's adapter '{}' (generation {}) cannot be loaded: {}", name, entry.generation,
               outcome.error().message);
  Record(name, entry, outcome.error(), epoch);
}

void CatalogueFollower::CarryUnload(const std::string& name) {
  if (Owned(name)) {
    spdlog::info("etcd: the catalogue no longer names the adapter '{}'", name);
    const Status status = admin_.Unload(name);
    if (!status.ok()) spdlog::warn("etcd: the adapter '{}' could not be unloaded: {}", name, status.error().message);
  }
  keys_.Set(StatusKey(server_id_, name), std::nullopt);
  const std::lock_guard lock(mutex_);
  applied_.erase(name);
}

std::uint64_t CatalogueFollower::Epoch() const {
  const std::lock_guard lock(mutex_);
  return desired_ ? desired_->epoch : 0;
}

// Also publishes it. `epoch`: of the catalogue when the load began.
void CatalogueFollower::Record(const std::string& name, const FleetAdapter& entry, const std::optional<Error>& error,
                               std::uint64_t epoch) {
  AdapterStatus status{.loaded = !error, .generation = entry.generation};
  if (error) status.error = error->message.substr(0, 1000);
  if (!error) status.digest = DigestOf(name);
  keys_.Set(StatusKey(server_id_, name), AdapterStatusAsJson(status));
  const std::lock_guard lock(mutex_);
  Applied& applied = applied_[name];
  applied.error = error;
  if (error) {
    applied.retry.Failed(entry, *error, clock_.Now());
  } else {
    applied.retry = {};
  }
  applied.entry = entry;
  if (!error) {
    // If the store was lost meanwhile, it stays as this server's own.
    applied.owned = !desired_ || desired_->epoch == epoch || desired_->entries.contains(name);
    applied.loaded = entry;
  }
}

std::string CatalogueFollower::DigestOf(const std::string& name) {
  const auto version = admin_.Find(name);
  return version.ok() && *version != nullptr ? (*version)->file.digest : std::string();
}

std::optional<FleetAdapter> CatalogueFollower::Owned(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto applied = applied_.find(name);
  if (applied == applied_.end() || !applied->second.owned) return std::nullopt;
  return applied->second.loaded;
}

Result<CatalogueRecord> CatalogueFollower::ReadForChange(const std::string& name) {
  auto record = ReadCatalogue(client_, name);
  if (record.ok()) return record;
  return Unavailable("The catalogue of adapters cannot be changed now, so nothing was changed: " +
                     record.error().message);
}

void CatalogueFollower::RollBack(const std::string& name, const std::optional<FleetAdapter>& owned,
                                 const std::string& path, std::uint64_t epoch) {
  Status status = Ok{};
  if (owned) {
    CarryLoad(name, *owned, epoch);
  } else if (path.empty()) {
    status = admin_.Unload(name);
  } else {
    const auto outcome = admin_.Load({.name = name, .path = path, .replace = true, .journal = false});
    if (!outcome.ok()) status = outcome.error();
  }
  if (!status.ok())
    spdlog::error("adapter '{}': the state before could not be restored: {}", name, status.error().message);
}

// The registered servers that have not tried this generation yet.
Result<std::vector<std::string>> CatalogueFollower::OthersBehind(const std::string& name, std::int64_t generation) {
  ASSIGN_OR_RETURN(const EtcdRangeReply servers, client_.ReadPrefix(kServersPrefix, /*serializable=*/true));
  std::vector<std::string> behind;
  for (const EtcdKeyValue& server : servers.key_values) {
    const std::string id = server.key.substr(std::string_view(kServersPrefix).size());
    if (id == server_id_) continue;
    ASSIGN_OR_RETURN(const EtcdRangeReply found, client_.Range({.key = StatusKey(id, name), .serializable = true}));
    const auto status = found.key_values.empty() ? Result<AdapterStatus>(AdapterStatus{.generation = -1})
                                                 : ParseAdapterStatus(found.key_values.front().value);
    if (status.ok() && status->generation < generation) behind.push_back(id);
  }
  return behind;
}

// So that the next request may go to any server.
void CatalogueFollower::WaitForOthers(const std::string& name, std::int64_t generation) {
  const TimeNs until = clock_.Now() + kPatienceWithOthers;
  while (true) {
    const auto behind = OthersBehind(name, generation);
    if (!behind.ok() || behind->empty()) return;
    if (clock_.Now() >= until) {
      return spdlog::info("adapter '{}': servers that have not followed the catalogue yet: {}", name,
                          fmt::join(*behind, ", "));
    }
    std::this_thread::sleep_for(50ms);
  }
}

Result<AdapterAdmin::LoadResult> CatalogueFollower::Load(const AdapterAdmin::LoadRequest& request) {
  std::int64_t generation = 0;
  auto outcome = LoadAndWrite(request, generation);
  if (outcome.ok()) WaitForOthers(request.name, generation);
  return outcome;
}

Result<AdapterAdmin::LoadResult> CatalogueFollower::LoadAndWrite(const AdapterAdmin::LoadRequest& request,
                                                                 std::int64_t& generation) {
  const NameGuard guard(*this, request.name);
  const std::uint64_t epoch = Epoch();
  ASSIGN_OR_RETURN(const CatalogueRecord seen, ReadForChange(request.name));
  if (seen.entry && !request.replace) {
    return InvalidArgument("The lora adapter '" + request.name + "' has already been loaded.", "lora_name");
  }
  const std::optional<FleetAdapter> owned = Owned(request.name);
  const auto before = admin_.Loaded();
  const auto local = before.find(request.name);
  AdapterAdmin::LoadRequest here = request;
  here.journal = false;
  ASSIGN_OR_RETURN(AdapterAdmin::LoadResult outcome, admin_.Load(here));
  FleetAdapter entry = seen.entry.value_or(FleetAdapter{});
  entry.source = request.path;
  entry.digest = DigestOf(request.name);
  entry.pinned = request.pinned;
  auto written = WriteCatalogue(client_, request.name, entry, seen);
  if (!written.ok()) {
    RollBack(request.name, owned, local == before.end() ? std::string() : local->second, epoch);
    return Error{written.error().code, "The catalogue of adapters was not changed, so neither were this server's: " +
                                           written.error().message};
  }
  SetOwnChange(request.name, *written);
  Record(request.name, *written->entry, std::nullopt, epoch);
  generation = written->entry->generation;
  return outcome;
}

Status CatalogueFollower::Unload(const std::string& name) {
  const NameGuard guard(*this, name);
  ASSIGN_OR_RETURN(const CatalogueRecord seen, ReadForChange(name));
  if (seen.mod_revision == 0) return admin_.Unload(name);
  ASSIGN_OR_RETURN(const CatalogueRecord removed, RemoveFromCatalogue(client_, name, seen));
  SetOwnChange(name, removed);
  if (!admin_.Loaded().contains(name)) return Ok{};  // it is another server's
  const Status status = admin_.Unload(name);
  keys_.Set(StatusKey(server_id_, name), std::nullopt);
  const std::lock_guard lock(mutex_);
  applied_.erase(name);
  return status;
}

std::int64_t CatalogueFollower::loaded() const {
  const std::lock_guard lock(mutex_);
  return std::count_if(applied_.begin(), applied_.end(), [](const auto& item) { return item.second.owned; });
}

std::int64_t CatalogueFollower::failed() const {
  const std::lock_guard lock(mutex_);
  return std::count_if(applied_.begin(), applied_.end(),
                       [](const auto& item) { return item.second.error.has_value(); });
}

}  // namespace loramux
