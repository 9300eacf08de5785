// Whether a request may come in now: rates, concurrency and queues, for each adapter and each API key.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "server/quota.h"

namespace loramux {

struct AdmissionOptions {
  std::int64_t max_queued = 4096;       // sequences of all adapters that wait for their first token; 0: no limit
  std::size_t max_idle_names = 65'536;  // adapters and keys without requests whose buckets are remembered
};

struct AdmissionRequest {
  std::string adapter;  // or the base model's name
  std::string key;      // the API key's name; empty: none
  QuotaLimits key_limits;
  std::int64_t sequences = 1;
};

struct AdmissionLoad {
  std::int64_t serving = 0;  // sequences that were let in and have not ended
  std::int64_t queued = 0;   // of these, still without a first token
  std::int64_t refused = 0;  // requests, since the start
  std::size_t names = 0;     // adapters and keys that are remembered
};

class Admission;

// A request that was let in. Gives its place back when it is destroyed. Movable; not thread-safe by itself.
class AdmissionTicket {
 public:
  AdmissionTicket();  // of nobody: does nothing
  AdmissionTicket(AdmissionTicket&& other) noexcept;
  AdmissionTicket& operator=(AdmissionTicket&& other) noexcept;
  ~AdmissionTicket();

  // `started` more sequences have their first token, and `tokens` more tokens (prompts included) were served.
  void Progress(std::int64_t started, std::int64_t tokens);

 private:
  friend class Admission;
  struct State;
  explicit AdmissionTicket(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Thread-safe. Holds memory for names with requests, and for a bounded number of others. Must outlive its tickets.
class Admission {
 public:
  Admission(AdmissionOptions options, QuotaTable quotas);
  ~Admission();

  // All or nothing. Errors: kRateLimited, which says what is exceeded and when to try again; kInvalidArgument for a
  // request with more sequences than could ever come in. `now` does not decrease.
  Result<AdmissionTicket> Admit(const AdmissionRequest& request, TimeNs now);

  // For requests from now on.
  void SetQuotas(QuotaTable quotas);
  AdmissionLoad Load() const;
  void CheckIntegrity() const;

 private:
  friend class AdmissionTicket;
  // Fills with time. A level below zero is debt.
  struct Bucket {
    double level = 0;
    TimeNs filled_at = 0;
    bool used = false;  // an unused one is full
    void Fill(double rate, double capacity, TimeNs now);
  };
  struct Account;
  using Accounts = std::map<std::string, Account, std::less<>>;
  struct Account {
    Bucket requests, tokens;
    std::int64_t serving = 0;
    std::int64_t queued = 0;
    std::list<Accounts::iterator>::iterator idle;  // its place in idle_, if nothing is being served
  };

  Accounts::iterator Open(const std::string& name);
  void Retain(Accounts::iterator account, std::int64_t sequences);
  void Return(Accounts::iterator account, std::int64_t sequences, std::int64_t waiting);
  void Trim();
  static Status Check(const std::string& what, const QuotaLimits& limits, Account& account, std::int64_t sequences,
                      TimeNs now);
  Status CheckAll(const AdmissionRequest& request, Account& adapter, Account* key, const QuotaLimits& limits,
                  TimeNs now);

  const AdmissionOptions options_;
  mutable std::mutex mutex_;
  QuotaTable quotas_;
  Accounts accounts_;                   // "a:" adapters, "k:" keys
  std::list<Accounts::iterator> idle_;  // without requests, the one used last at the end
  AdmissionLoad load_;
};

}  // namespace loramux
