#include "auth/admission.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace loramux {
namespace {

constexpr std::int32_t kRetrySoon = 1;
constexpr double kMaxRetrySeconds = 86'400;

Error TooMuch(std::string message, double seconds) {
  const auto retry = static_cast<std::int32_t>(std::clamp(std::ceil(seconds), 1.0, kMaxRetrySeconds));
  Error error{ErrorCode::kRateLimited, std::move(message), {}, retry};
  error.message += fmt::format(" Try again in {} s.", retry);
  return error;
}

Status CheckCount(const std::string& what, const char* kind, std::int64_t limit, std::int64_t now, std::int64_t more) {
  if (limit == 0 || now + more <= limit) return Ok{};
  if (more > limit) {
    return InvalidArgument(
        fmt::format("`n`: expected at most {} sequences in a request (the limit of {} for {}), found {}", limit, what,
                    kind, more),
        "n");
  }
  return TooMuch(fmt::format("Too many requests for {}: expected at most {} {}, found {} and {} more.", what, limit,
                             kind, now, more),
                 kRetrySoon);
}

}  // namespace

struct AdmissionTicket::State {
  Admission* admission;
  Admission::Accounts::iterator adapter;
  Admission::Accounts::iterator key;
  bool has_key;
  std::int64_t sequences;
  std::int64_t waiting;
};

AdmissionTicket::AdmissionTicket() = default;
AdmissionTicket::AdmissionTicket(std::unique_ptr<State> state) : state_(std::move(state)) {}
AdmissionTicket::AdmissionTicket(AdmissionTicket&& other) noexcept = default;
AdmissionTicket& AdmissionTicket::operator=(AdmissionTicket&& other) noexcept {
  std::swap(state_, other.state_);  // `other` returns the old place when it is destroyed
  return *this;
}

AdmissionTicket::~AdmissionTicket() {
  if (state_ == nullptr) return;
  Admission& admission = *state_->admission;
  const std::lock_guard lock(admission.mutex_);
  admission.Return(state_->adapter, state_->sequences, state_->waiting);
  if (state_->has_key) admission.Return(state_->key, state_->sequences, state_->waiting);
  admission.load_.serving -= state_->sequences;
  admission.load_.queued -= state_->waiting;
  admission.Trim();
}

void AdmissionTicket::Progress(std::int64_t started, std::int64_t tokens) {
  if (state_ == nullptr || (started == 0 && tokens == 0)) return;
  CHECK_LE(started, state_->waiting);
  Admission& admission = *state_->admission;
  const std::lock_guard lock(admission.mutex_);
  const auto apply = [&](Admission::Account& account) {
    account.queued -= started;
    account.tokens.level -= static_cast<double>(tokens);
  };
  apply(state_->adapter->second);
  if (state_->has_key) apply(state_->key->second);
  state_->waiting -= started;
  admission.load_.queued -= started;
}

void Admission::Bucket::Fill(double rate, double capacity, TimeNs now) {
  const double gained = rate * static_cast<double>(now - filled_at) / static_cast<double>(kNsPerSecond);
  level = used ? std::min(capacity, level + std::max(0.0, gained)) : capacity;
  filled_at = now;
  used = true;
}

Admission::Admission(QuotaTable quotas, std::int64_t max_queued, std::size_t max_idle_names)
    : max_queued_(max_queued), max_idle_names_(max_idle_names), quotas_(std::move(quotas)) {}
Admission::~Admission() { CHECK_EQ(load_.serving, 0); }

void Admission::SetQuotas(QuotaTable quotas) {
  const std::lock_guard lock(mutex_);
  quotas_ = std::move(quotas);
}

AdmissionLoad Admission::Load() const {
  const std::lock_guard lock(mutex_);
  AdmissionLoad load = load_;
  load.names = accounts_.size();
  return load;
}

Admission::Accounts::iterator Admission::Open(const std::string& name) {
  const auto [account, is_new] = accounts_.try_emplace(name);
  if (is_new) account->second.idle = idle_.insert(idle_.end(), account);
  return account;
}

void Admission::Retain(Accounts::iterator account, std::int64_t sequences) {
  Account& state = account->second;
  if (state.serving == 0) idle_.erase(state.idle);
  state.serving += sequences;
  state.queued += sequences;
}

void Admission::Return(Accounts::iterator account, std::int64_t sequences, std::int64_t waiting) {
  Account& state = account->second;
  state.serving -= sequences;
  state.queued -= waiting;
  CHECK_GE(state.serving, 0);
  CHECK_GE(state.queued, 0);
  if (state.serving == 0) state.idle = idle_.insert(idle_.end(), account);
}

// Forgets the accounts that have been idle longest. Their buckets are full when they return; this bounds the memory.
void Admission::Trim() {
  while (idle_.size() > max_idle_names_) {
    accounts_.erase(idle_.front());
    idle_.pop_front();
  }
}

Status Admission::Check(const std::string& what, const QuotaLimits& limits, Account& account, std::int64_t sequences,
                        TimeNs now) {
  account.requests.Fill(limits.requests_per_second, limits.Burst(), now);
  account.tokens.Fill(limits.tokens_per_second, limits.tokens_per_second, now);
  RETURN_IF_ERROR(CheckCount(what, "sequences at a time", limits.concurrency, account.serving, sequences));
  RETURN_IF_ERROR(CheckCount(what, "waiting sequences", limits.queued, account.queued, sequences));
  if (limits.requests_per_second > 0 && account.requests.level < 1) {
    return TooMuch(fmt::format("Too many requests for {}: expected at most {} per second (and {} at once), found more.",
                               what, limits.requests_per_second, limits.Burst()),
                   (1 - account.requests.level) / limits.requests_per_second);
  }
  if (limits.tokens_per_second > 0 && account.tokens.level < 0) {
    return TooMuch(fmt::format("Too many tokens for {}: expected at most {} per second, found {:.0f} more.", what,
                               limits.tokens_per_second, -account.tokens.level),
                   -account.tokens.level / limits.tokens_per_second);
  }
  return Ok{};
}

Status Admission::CheckAll(const AdmissionRequest& request, Account& adapter, Account* key, const QuotaLimits& limits,
                           TimeNs now) {
  RETURN_IF_ERROR(CheckCount("this server", "waiting sequences", max_queued_, load_.queued, request.sequences));
  RETURN_IF_ERROR(Check("the model `" + request.adapter + "`", limits, adapter, request.sequences, now));
  if (key == nullptr) return Ok{};
  return Check("the API key `" + request.key + "`", request.key_limits, *key, request.sequences, now);
}

Result<AdmissionTicket> Admission::Admit(const AdmissionRequest& request, TimeNs now) {
  CHECK_GT(request.sequences, 0);
  const std::lock_guard lock(mutex_);
  const bool has_key = !request.key.empty();
  const auto adapter = Open("a:" + request.adapter);
  const auto key = has_key ? Open("k:" + request.key) : adapter;
  const QuotaLimits& limits = quotas_.For(request.adapter);
  const Status allowed = CheckAll(request, adapter->second, has_key ? &key->second : nullptr, limits, now);
  if (!allowed.ok()) {
    ++load_.refused;
    Trim();
    return allowed.error();
  }
  for (std::size_t i = 0; i < (has_key ? 2u : 1u); ++i) {
    const auto account = i == 0 ? adapter : key;
    account->second.requests.level -= 1;
    Retain(account, request.sequences);
  }
  load_.serving += request.sequences;
  load_.queued += request.sequences;
  return AdmissionTicket(std::make_unique<AdmissionTicket::State>(
      AdmissionTicket::State{this, adapter, key, has_key, request.sequences, request.sequences}));
}

void Admission::CheckIntegrity() const {
  const std::lock_guard lock(mutex_);
  std::size_t idle = 0;
  std::int64_t serving = 0, queued = 0;
  for (const auto& [name, account] : accounts_) {
    CHECK(account.queued >= 0 && account.queued <= account.serving);
    idle += account.serving == 0 ? 1 : 0;
    if (!name.starts_with("a:")) continue;
    serving += account.serving;
    queued += account.queued;
  }
  CHECK_EQ(idle, idle_.size());
  CHECK_LE(idle, max_idle_names_);
  CHECK_EQ(serving, load_.serving);
  CHECK_EQ(queued, load_.queued);
}

}  // namespace loramux
