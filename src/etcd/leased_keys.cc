#include "etcd/leased_keys.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"

namespace loramux {
namespace {

using namespace std::chrono_literals;
constexpr std::chrono::nanoseconds kFirstRetry = 100ms, kLongestRetry = 2s;

}  // namespace

LeasedKeys::LeasedKeys(EtcdClient& client, const Clock& clock, LeasedKeysOptions options)
    : client_(client),
      clock_(clock),
      options_(std::move(options)),
      thread_([this](std::stop_token stop) { Keep(std::move(stop)); }) {}

LeasedKeys::~LeasedKeys() = default;

void LeasedKeys::Set(const std::string& key, std::optional<std::string> value) {
  const std::lock_guard lock(mutex_);
  wanted_[key] = std::move(value);
  ++changes_;
  woken_.notify_all();
}

Status LeasedKeys::Withdraw() {
  std::int64_t lease = 0;
  {
    const std::lock_guard lock(mutex_);
    withdrawn_ = true;
    lease = std::exchange(lease_, 0);
    woken_.notify_all();
  }
  complete_ = false;
  return lease == 0 ? Status(Ok{}) : client_.Revoke(lease);
}

void LeasedKeys::Keep(std::stop_token stop) {
  std::chrono::nanoseconds pause = kFirstRetry;
  std::string said;
  while (true) {
    std::uint64_t seen = 0;
    {
      const std::lock_guard lock(mutex_);
      if (stop.stop_requested() || withdrawn_) return;
      seen = changes_;
    }
    Status status = Renew();
    if (status.ok()) status = WriteAll();
    complete_ = status.ok();
    if (!status.ok() && status.error().code == ErrorCode::kNotFound) renew_at_ = 0;  // the lease is gone already
    const std::string problem = status.ok() ? std::string() : status.error().message;
    if (problem.empty() && !said.empty()) spdlog::info("etcd: this server is registered again");
    if (!problem.empty() && said.empty()) spdlog::warn("etcd: this server is not registered: {}", problem);
    said = problem;
    pause = status.ok() ? kFirstRetry : std::min(2 * pause, kLongestRetry);
    std::unique_lock lock(mutex_);
    const auto time = status.ok() ? std::chrono::nanoseconds(std::max<TimeNs>(renew_at_ - clock_.Now(), 0)) : pause;
    woken_.wait_for(lock, stop, time, [&] { return withdrawn_ || (status.ok() && changes_ != seen); });
  }
}

// Keeps the lease alive if it is time for that, or takes one.
Status LeasedKeys::Renew() {
  const TimeNs now = clock_.Now();
  std::int64_t lease = 0;
  {
    const std::lock_guard lock(mutex_);
    lease = lease_;
  }
  if (lease != 0 && now < renew_at_) return Ok{};
  if (lease != 0) {
    const auto left = client_.KeepAlive(lease);
    if (left.ok()) {
      renew_at_ = now + options_.ttl_seconds * kNsPerSecond / 3;
      return Ok{};
    }
    if (left.error().code != ErrorCode::kNotFound) return left.error();
    spdlog::warn("etcd: the lease of this server has expired; it registers again");
    const std::lock_guard lock(mutex_);
    if (lease_ == lease) lease_ = 0;
  }
  ASSIGN_OR_RETURN(const EtcdLeaseReply granted, client_.Grant(options_.ttl_seconds));
  written_.clear();
  ++leases_;
  renew_at_ = now + options_.ttl_seconds * kNsPerSecond / 3;
  {
    const std::lock_guard lock(mutex_);
    if (!withdrawn_) lease_ = granted.id;
    if (!withdrawn_) return Ok{};
  }
  return client_.Revoke(granted.id);
}

Status LeasedKeys::WriteAll() {
  std::map<std::string, std::optional<std::string>> wanted;
  {
    const std::lock_guard lock(mutex_);
    wanted = wanted_;
  }
  for (const auto& [key, value] : wanted) {
    if (clock_.Now() >= renew_at_) {  // many keys may take longer than the lease
      const std::int64_t before = leases_;
      RETURN_IF_ERROR(Renew());
      if (leases_ != before) return WriteAll();
    }
    const auto written = written_.find(key);
    if (value && written != written_.end() && written->second == *value) continue;
    RETURN_IF_ERROR(WriteOne(key, value));
  }
  return Ok{};
}

Status LeasedKeys::WriteOne(const std::string& key, const std::optional<std::string>& value) {
  std::int64_t lease = 0;
  {
    const std::lock_guard lock(mutex_);
    lease = lease_;
  }
  if (lease == 0) return Unavailable("etcd: the lease was given back");
  if (!value) {
    RETURN_IF_ERROR(client_.Delete(key));
    written_.erase(key);
    const std::lock_guard lock(mutex_);
    const auto wanted = wanted_.find(key);
    if (wanted != wanted_.end() && !wanted->second) wanted_.erase(wanted);
    return Ok{};
  }
  RETURN_IF_ERROR(key == options_.guarded_key ? WriteGuarded(*value, lease) : client_.Put(key, *value, lease));
  written_[key] = *value;
  return Ok{};
}

Status LeasedKeys::WriteGuarded(const std::string& value, std::int64_t lease) {
  const std::string& key = options_.guarded_key;
  ASSIGN_OR_RETURN(const EtcdRangeReply now, client_.Range({.key = key}));
  EtcdSwapRequest swap{.key = key, .value = value, .lease = lease};
  if (!now.key_values.empty()) {
    const EtcdKeyValue& present = now.key_values.front();
    if (present.lease != lease && !options_.may_take(present.value)) {
      return Unavailable(fmt::format("etcd: {} is taken by another server: {}", key, present.value.substr(0, 200)));
    }
    swap.mod_revision = present.mod_revision;
  }
  ASSIGN_OR_RETURN(const EtcdSwapReply reply, client_.CompareAndSwap(swap));
  if (!reply.swapped) return Unavailable(fmt::format("etcd: {} is written by another server too", key));
  return Ok{};
}

}  // namespace loramux
