#include "etcd/etcd_mirror.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "http/random_source.h"

namespace loramux {
namespace {

using namespace std::chrono_literals;
constexpr std::chrono::nanoseconds kFirstPause = 100ms, kLongestPause = 2s;

}  // namespace

EtcdMirror::EtcdMirror(EtcdClient& client, std::string prefix, std::string name, OnChange on_change)
    : client_(client),
      prefix_(std::move(prefix)),
      name_(std::move(name)),
      on_change_(std::move(on_change)),
      thread_([this](std::stop_token stop) { Follow(std::move(stop)); }) {}

EtcdMirror::~EtcdMirror() = default;

bool EtcdMirror::WaitUntilRead(std::chrono::nanoseconds time) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [this] { return read_; });
}

void EtcdMirror::Sleep(std::stop_token stop, std::chrono::nanoseconds time) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::move(stop), time, [] { return false; });
}

// Says once that etcd is out of reach, and once that it is back.
void EtcdMirror::Report(bool in_touch, const std::string& why) {
  if (in_touch_.exchange(in_touch) == in_touch && (in_touch || state_.epoch != 0)) return;
  if (in_touch) return spdlog::info("etcd ({}): {} is up to date", client_.names(), name_);
  spdlog::warn("etcd ({}): {} cannot be followed, so it stays as it was: {}", client_.names(), name_, why);
}

void EtcdMirror::Follow(std::stop_token stop) {
  using Kind = EtcdWatchEnd::Kind;
  std::chrono::nanoseconds pause = kFirstPause;
  bool must_read = true;
  while (!stop.stop_requested()) {
    if (must_read) must_read = !Read();
    EtcdWatchEnd end{Kind::kBroken, {}};
    if (!must_read) end = WatchOnce(stop);
    if (heard_.exchange(false)) pause = kFirstPause;
    if (end.kind == Kind::kStopped) return;
    if (end.kind == Kind::kTimeUp) {  // perhaps because the store went away without a word
      const auto history = History();
      must_read = history.ok() && *history != history_;
      continue;
    }
    must_read |= end.kind != Kind::kBroken;
    if (end.kind == Kind::kCompacted) {
      spdlog::info("etcd: {} is read anew: the changes since revision {} were compacted", name_, state_.revision);
      continue;
    }
    Sleep(stop, pause);
    pause = std::min(2 * pause, kLongestPause);
    if (must_read) continue;
    const auto history = History();  // the server at this address may have another history now
    must_read = history.ok() && *history != history_;
  }
}

EtcdWatchEnd EtcdMirror::WatchOnce(std::stop_token stop) {
  const auto on_events = [this](std::vector<EtcdEvent> events, std::int64_t) {
    heard_ = true;
    Apply(std::move(events));
  };
  EtcdWatchEnd end = client_.Watch(prefix_, state_.revision + 1, on_events, std::move(stop));
  if (end.kind == EtcdWatchEnd::Kind::kBroken) Report(false, end.error.message);
  return end;
}

// Reads the name of the store's history; gives it one if it has none.
Result<std::string> EtcdMirror::History() {
  ASSIGN_OR_RETURN(const EtcdRangeReply known, client_.Range({.key = kHistoryKey, .serializable = true}));
  if (!known.key_values.empty()) return known.key_values.front().value;
  const std::string name = fmt::format("{:016x}", RandomIdBits());
  ASSIGN_OR_RETURN(const EtcdSwapReply reply, client_.CompareAndSwap({.key = kHistoryKey, .value = name}));
  return reply.current ? reply.current->value : name;
}

// A read of one member may be old, and needs no quorum. If it is older than the copy, a read of the whole cluster tells
// whether the member lags or the store lost its history.
bool EtcdMirror::Read() {
  for (const bool certain : {false, true}) {
    const auto history = History();
    auto read = history.ok() ? client_.ReadPrefix(prefix_, /*serializable=*/!certain) : history.error();
    if (!read.ok()) {
      Report(false, read.error().message);
      return false;
    }
    if (Accept(*std::move(read), *history, certain)) return true;
  }
  return false;
}

bool EtcdMirror::Accept(EtcdRangeReply read, const std::string& history, bool certain) {
  const bool first = state_.epoch == 0;
  const bool continues = history == history_ && read.header.revision >= state_.revision;
  if (!first && !continues && !certain) return false;
  if (!first && !continues) {
    spdlog::error(
        "etcd ({}): {} is of another history than before (another cluster, or its data was lost or restored): "
        "what is missing from it stays in use here",
        client_.names(), name_);
  }
  if (first || !continues) ++state_.epoch;
  history_ = history;
  state_.revision = read.header.revision;
  state_.values.clear();
  for (EtcdKeyValue& item : read.key_values) {
    if (item.key.starts_with(prefix_)) state_.values[item.key.substr(prefix_.size())] = std::move(item);
  }
  ++reads_;
  Report(true, {});
  on_change_(state_);
  const std::lock_guard lock(mutex_);
  read_ = true;
  changed_.notify_all();
  return true;
}

// A message may hold only some of the changes up to the revision in its header, so that of the last change counts.
void EtcdMirror::Apply(std::vector<EtcdEvent> events) {
  Report(true, {});
  bool changed = false;
  std::int64_t revision = state_.revision;
  for (EtcdEvent& event : events) {
    if (event.key_value.mod_revision <= state_.revision || !event.key_value.key.starts_with(prefix_)) continue;
    std::string name = event.key_value.key.substr(prefix_.size());
    changed = true;
    revision = std::max(revision, event.key_value.mod_revision);
    if (event.deleted) {
      state_.values.erase(name);
    } else {
      state_.values[std::move(name)] = std::move(event.key_value);
    }
  }
  state_.revision = revision;
  if (changed) on_change_(state_);
}

}  // namespace loramux
