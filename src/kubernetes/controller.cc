#include "kubernetes/controller.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "etcd/catalogue.h"

namespace loramux {
namespace {

// The part of a key behind its prefix.
std::string Behind(const std::string& key, std::string_view prefix) {
  return key.starts_with(prefix) ? key.substr(prefix.size()) : std::string();
}

}  // namespace

KubernetesController::KubernetesController(ControllerOptions options, const KubeClient& kubernetes, EtcdClient& etcd,
                                           const Clock& clock)
    : options_(std::move(options)), kubernetes_(kubernetes), etcd_(etcd), clock_(clock) {}

void KubernetesController::Run(std::stop_token stop) {
  std::jthread follower([this, stop] { Follow(stop); });
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, stop, options_.status_interval, [this] { return new_; });
      if (!listed_) continue;
      new_ = false;
    }
    if (stop.stop_requested()) return;
    const Status status = Sync(stop);
    if (!stop.stop_requested()) Report("the catalogue", status, last_sync_);
  }
}

// An error once, and its end.
void KubernetesController::Report(const char* what, const Status& status, std::string& last) {
  const std::string now = status.ok() ? std::string() : status.error().message;
  if (now == last) return;
  now.empty() ? spdlog::info("{}: in order again", what)
              : spdlog::warn("{}: {}; nothing is changed meanwhile", what, now);
  last = now;
}

void KubernetesController::Sleep(std::stop_token stop, std::chrono::nanoseconds time) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, stop, time, [] { return false; });
}

void KubernetesController::Follow(std::stop_token stop) {
  auto pause = options_.first_pause;
  while (!stop.stop_requested()) {
    const Status status = ListAndWatch(stop);
    if (stop.stop_requested()) return;
    Report("LoraAdapters", status, last_follow_);
    pause = status.ok() ? options_.first_pause : std::min(pause * 2, options_.longest_pause);
    Sleep(stop, pause);
  }
}

// Reads everything, and then follows as long as the server goes on from where each watch ended.
Status KubernetesController::ListAndWatch(std::stop_token stop) {
  const std::string path = LoraAdaptersPath(options_.space);
  ASSIGN_OR_RETURN(const std::string text, kubernetes_.Get(path, stop));
  ASSIGN_OR_RETURN(LoraAdapterList list, ParseLoraAdapterList(text));
  {
    const std::lock_guard lock(mutex_);
    objects_.clear();
    for (LoraAdapterObject& object : list.objects) objects_[object.object] = std::move(object);
    listed_ = new_ = true;
  }
  changed_.notify_all();
  std::string version = list.resource_version;
  while (!stop.stop_requested()) {
    const std::string before = version;
    Status failed = Ok{};
    const Status status = kubernetes_.Watch(
        path + "?watch=1&allowWatchBookmarks=true&resourceVersion=" + version,
        [&](std::string_view line) { return Take(line, version, failed); }, stop);
    if (!failed.ok()) return failed.error().code == ErrorCode::kRateLimited ? Status(Ok{}) : failed;
    if (!status.ok()) return status.error().code == ErrorCode::kRateLimited ? Status(Ok{}) : status;
    if (version == before) Sleep(stop, options_.first_pause);  // a server that ends watches at once is not flooded
  }
  return Ok{};
}

// False ends the watch.
bool KubernetesController::Take(std::string_view line, std::string& version, Status& failed) {
  auto event = ParseLoraAdapterEvent(line);
  using Kind = LoraAdapterEvent::Kind;
  if (!event.ok() || event->kind == Kind::kError) {
    failed = event.ok() ? Status(Unavailable("the watch ended: " + event->error)) : Status(event.error());
    return false;
  }
  if (event->kind == Kind::kGone) {
    failed = Error{ErrorCode::kRateLimited, "the watch is too old", {}};
    return false;
  }
  version = event->resource_version;
  if (event->kind == Kind::kBookmark) return true;
  {
    const std::lock_guard lock(mutex_);
    const std::string name = event->object.object;
    if (event->kind == Kind::kDeleted) objects_.erase(name);
    if (event->kind == Kind::kChanged) objects_[name] = std::move(event->object);
    new_ = true;
  }
  changed_.notify_all();
  return true;
}

Result<ControllerView> KubernetesController::Look() {
  ControllerView view{.space = options_.space};
  ASSIGN_OR_RETURN(const EtcdRangeReply owners, etcd_.ReadPrefix(kOwnersPrefix, /*serializable=*/false));
  ASSIGN_OR_RETURN(const EtcdRangeReply entries, etcd_.ReadPrefix(kAdaptersPrefix, /*serializable=*/false));
  ASSIGN_OR_RETURN(const EtcdRangeReply statuses, etcd_.ReadPrefix(kStatusPrefix, /*serializable=*/false));
  for (const EtcdKeyValue& item : owners.key_values) view.owners[Behind(item.key, kOwnersPrefix)] = item.value;
  for (const EtcdKeyValue& item : entries.key_values) {
    if (const auto entry = ParseFleetAdapter(item.value); entry.ok())
      view.catalogue[Behind(item.key, kAdaptersPrefix)] = *entry;
  }
  for (const EtcdKeyValue& item : statuses.key_values) {  // SERVER/NAME
    const std::string key = Behind(item.key, kStatusPrefix);
    const std::size_t slash = key.find('/');
    const auto status = ParseAdapterStatus(item.value);
    if (slash != std::string::npos && status.ok()) view.servers.emplace_back(key.substr(slash + 1), *status);
  }
  const std::lock_guard lock(mutex_);
  view.objects = objects_;
  return view;
}

Status KubernetesController::Sync(std::stop_token stop) {
  ASSIGN_OR_RETURN(const ControllerView view, Look());
  const ControllerPlan plan = PlanController(view);
  RETURN_IF_ERROR(Apply(plan, stop));
  const std::string now = Rfc3339(clock_.UnixSeconds());
  for (const auto& [object, status] : plan.status_changes) {
    const std::string path = LoraAdaptersPath(options_.space) + "/" + object + "/status";
    const Status patched = kubernetes_.Patch(path, StatusPatch(view.objects.at(object), status, now), stop);
    if (patched.ok() || patched.error().code == ErrorCode::kNotFound) continue;  // it was deleted meanwhile
    return patched;
  }
  return Ok{};
}

// The owner is written first and removed last, so that an entry of this controller never lacks one.
Status KubernetesController::Apply(const ControllerPlan& plan, std::stop_token stop) {
  for (const auto& [name, write] : plan.writes) {
    if (stop.stop_requested()) return Ok{};
    RETURN_IF_ERROR(etcd_.Put(kOwnersPrefix + name, write.owner));
    ASSIGN_OR_RETURN(const CatalogueRecord seen, ReadCatalogue(etcd_, name));
    FleetAdapter present = seen.entry.value_or(FleetAdapter{});
    present.generation = write.entry.generation;
    if (seen.entry && present == write.entry) continue;
    RETURN_IF_ERROR(WriteCatalogue(etcd_, name, write.entry, seen));
    spdlog::info("'{}' in the catalogue: {} (LoraAdapter {})", name, write.entry.source, write.owner);
  }
  for (const std::string& name : plan.removals) {
    if (stop.stop_requested()) return Ok{};
    ASSIGN_OR_RETURN(const CatalogueRecord seen, ReadCatalogue(etcd_, name));
    if (seen.mod_revision != 0) RETURN_IF_ERROR(RemoveFromCatalogue(etcd_, name, seen));
    RETURN_IF_ERROR(etcd_.Delete(kOwnersPrefix + name));
    spdlog::info("'{}' removed from the catalogue: its LoraAdapter is gone", name);
  }
  const bool changed = !plan.writes.empty() || !plan.removals.empty();
  if (changed) {  // the status follows from what etcd holds now
    const std::lock_guard lock(mutex_);
    new_ = true;
  }
  return Ok{};
}

}  // namespace loramux
