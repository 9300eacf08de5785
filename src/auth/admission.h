// Admission of HTTP requests: limits on rates, concurrency and queue length, for each adapter and each API key.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "auth/quota.h"
#include "base/clock.h"
#include "base/result.h"

namespace loramux {

// The most waiting sequences, if an operator sets no other number.
inline constexpr std::int64_t kMostQueued = 4096;

// A request to admit.
struct AdmissionRequest {
  std::string adapter;  // the adapter's or the base model's name
  std::string key;      // name of the API key; empty: none
  QuotaLimits key_limits;
  // The sequences that the request starts: prompts times `n`.
  std::int64_t sequences = 1;
};

// Counters, as of one moment.
struct AdmissionLoad {
  std::int64_t serving = 0;  // sequences that were admitted and have not ended
  std::int64_t queued = 0;   // sequences among `serving` without a first token
  std::int64_t refused = 0;  // requests refused since the start
  std::size_t names = 0;     // adapters and keys that have an account
};

class Admission;

// An admitted request. Its destructor returns the request's place. Movable; not thread-safe.
class AdmissionTicket {
 public:
  AdmissionTicket();  // empty: admits nothing and does nothing
  AdmissionTicket(AdmissionTicket&& other) noexcept;
  AdmissionTicket& operator=(AdmissionTicket&& other) noexcept;
  ~AdmissionTicket();

  // Reports that `started` further sequences have received their first token, and that the server computed `tokens`
  // further tokens (prompt tokens included). REQUIRES: `started` in all is at most the sequences of the request.
  void Progress(std::int64_t started, std::int64_t tokens);

 private:
  friend class Admission;
  struct State;
  explicit AdmissionTicket(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Thread-safe. Keeps an account for every name with requests and for a bounded number of idle names. Must outlive its
// tickets.
class Admission {
 public:
  // `max_queued`: waiting sequences (no first token yet) of all adapters; 0: no limit. `max_idle_names`: adapters and
  // keys without requests that keep their buckets.
  explicit Admission(QuotaTable quotas, std::int64_t max_queued = kMostQueued, std::size_t max_idle_names = 65'536);
  ~Admission();

  // Admits the whole request or nothing. Errors: kRateLimited, with the limit that is exceeded and when to retry;
  // kInvalidArgument for a request with more sequences than a limit can ever allow. `now` must not decrease.
  Result<AdmissionTicket> Admit(const AdmissionRequest& request, TimeNs now);

  // Replaces the limits, for requests from now on.
  void SetQuotas(QuotaTable quotas);
  // Returns the current counters.
  AdmissionLoad Load() const;
  // CHECKs the invariants. For tests.
  void CheckIntegrity() const;

 private:
  friend class AdmissionTicket;
  // A token bucket. A level below zero is debt.
  struct Bucket {
    double level = 0;
    TimeNs filled_at = 0;
    bool used = false;  // false: the bucket is new, and its first Fill fills it up
    void Fill(double rate, double capacity, TimeNs now);
  };
  struct Account;
  using Accounts = std::map<std::string, Account, std::less<>>;
  // The state of one adapter or API key.
  struct Account {
    Bucket requests, tokens;
    std::int64_t serving = 0;
    std::int64_t queued = 0;
    std::list<Accounts::iterator>::iterator idle;  // position in idle_, while `serving` is 0
  };

  Accounts::iterator Open(const std::string& name);
  void Retain(Accounts::iterator account, std::int64_t sequences);
  void Return(Accounts::iterator account, std::int64_t sequences, std::int64_t waiting);
  void Trim();
  static Status Check(const std::string& what, const QuotaLimits& limits, Account& account, std::int64_t sequences,
                      TimeNs now);
  Status CheckAll(const AdmissionRequest& request, Account& adapter, Account* key, const QuotaLimits& limits,
                  TimeNs now);

  const std::int64_t max_queued_;
  const std::size_t max_idle_names_;
  mutable std::mutex mutex_;
  QuotaTable quotas_;
  Accounts accounts_;                   // keys: "a:" + adapter or "k:" + API key
  std::list<Accounts::iterator> idle_;  // accounts without requests; the most recently used is last
  AdmissionLoad load_;
};

}  // namespace loramux
