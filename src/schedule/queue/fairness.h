// Fairness among tenants: virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI
// 2024).
//
// Each tenant has a counter of the service that it got: tokens computed for it, divided by its weight. An output token
// counts more than a prompt token. The tenant with the least service is served next. Among tenants with equal service,
// and within a tenant, the most urgent request comes first (Urgency). Requests may wait in several lanes; the counters
// are shared, and each lane has its own order of service.
//
// A known tenant that begins to wait is lifted to the floor, less `burst`. The floor is the least counter of the
// waiting tenants (or, if none waits, of the running ones), and never falls. So idle time earns no more credit than
// `burst`. Tokens that are computed again after a preemption are not charged again.
//
// An unknown tenant begins at the virtual time, if that is above the floor, and without credit. The virtual time is the
// service that a tenant would have got if all tenants with requests had shared all service by their weights. So a
// stream of invented tenants advances it, and takes from the others no more than the share of those that are present.
//
// Time without progress counts as waiting, also if the requests of a tenant run and have no seat, or were preempted.
//
// Bounded memory: at most `max_idle_tenants` tenants without requests are remembered; of the oldest, those go first
// that have no debt. When no tenant has requests, all are forgotten.
//
// Deterministic: no order depends on hashes or addresses. Not thread-safe. Reads no clock.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "schedule/heap.h"
#include "schedule/queue/index_chain.h"
#include "schedule/queue/service_heap.h"
#include "schedule/queue/waiting_list.h"
#include "schedule/request.h"

namespace loramux {

// How service is divided among tenants.
enum class FairnessPolicy : std::uint8_t {
  kNone,  // one queue: all requests belong to one tenant
  kVtc,   // virtual token counters
};
// Parses "none" or "vtc". Error: another name; the message lists the valid ones.
Result<FairnessPolicy> ParseFairnessPolicy(const std::string& name);
// Parses a name and a weight, such as "name=2.5". Error: no name, or a weight that is not between 0.001 and 1000.
Result<std::pair<std::string, double>> ParseTenantWeight(const std::string& text);

// Options of TenantCounters. Costs and `burst` are in units of a prompt token.
struct FairnessOptions {
  FairnessPolicy policy = FairnessPolicy::kVtc;
  std::vector<std::pair<std::string, double>> weights;  // by tenant name; other tenants have 1
  double prompt_token_cost = 1, output_token_cost = 2;  // as in the paper
  // How far below the floor a known tenant may begin to wait; 0: Scheduler takes the tokens of two steps.
  double burst = 0;
  TimeNs max_wait = 30 * kNsPerSecond;  // a tenant that waited longer for a turn, or for progress, is served first
  std::size_t max_idle_tenants = 4096;  // tenants without requests that are remembered
};

// How soon a tenant is served: one that has waited too long goes before all others, then the one with the least
// service.
struct Standing {
  double service = 0;
  bool overdue = false;  // it has waited longer than FairnessOptions::max_wait; `service` then does not count
  // Whether this one is served strictly before `other`.
  bool Before(const Standing& other) const {
    if (overdue || other.overdue) return overdue && !other.overdue;
    return service < other.service;
  }
};

// A waiting request in the order of service, with the standing of its tenant at that point, as if all requests before
// it had been served.
struct Turn {
  Request* request = nullptr;
  Standing standing;
};

// The result of TenantCounters::Order, and scratch memory for it. Keeps its memory between uses.
struct ServiceOrder {
  // A candidate for the next turn.
  struct Node {
    double service = 0;
    const WaitingList::Entry* entry = nullptr;  // in the tenant's list
    TenantId tenant = 0;
    // Index of the tenant in the heap of tenants, if the entry is the first of its list; else kNotFirst.
    std::uint32_t index = 0;
  };
  static constexpr std::uint32_t kNotFirst = std::numeric_limits<std::uint32_t>::max();
  struct Before {
    // The outcome is unpredictable, so there is no branch on it.
    bool operator()(const Node& a, const Node& b) const {
      if (a.service != b.service) return a.service < b.service;
      return a.entry->urgency < b.entry->urgency;
    }
  };
  std::vector<Turn> turns;
  Heap<Node, Before> nodes;
};

// The counters of all tenants, and the queues of their waiting requests. Keeps pointers to requests from Add to Remove;
// does not own them.
class TenantCounters {
 public:
  // REQUIRES: lanes > 0; weights are positive.
  explicit TenantCounters(FairnessOptions options, std::int32_t lanes = 1);

  // Notes that a new request begins to wait in Request::lane. Sets Request::tenant from Request::tenant_name.
  void Add(Request* request, TimeNs now);
  // Notes that a waiting request starts running.
  void Admit(Request* request, TimeNs now);
  // Notes that a running request waits again.
  void Return(Request* request, TimeNs now);
  // Removes a waiting or running request (Request::state says which).
  void Remove(Request* request);
  // Moves waiting requests to other lanes or due times: calls `place`, which sets both, for each of them.
  // REQUIRES: `waiting` has all waiting requests in the order of arrival.
  template <typename Place>
  void Replace(std::span<Request* const> waiting, Place place) {
    TakeOutAll();
    for (Request* request : waiting) {
      place(*request);
      Lane& lane = LaneOf(*request);
      if (lane.queues.size() <= request->tenant) lane.queues.resize(request->tenant + std::size_t{1});
      Queue& queue = lane.queues[request->tenant];
      if (queue.list.empty()) queue.since = request->arrival;  // `waiting` is in the order of arrival
      PutIn(*request);
    }
  }
  // The same for one waiting request. REQUIRES: `place` keeps its lane.
  template <typename Place>
  void PlaceAnew(Request* request, Place place) {
    Lane& lane = LaneOf(*request);
    WaitingList& list = lane.queues[request->tenant].list;
    list.Erase(request);
    place(*request);
    list.Insert({UrgencyOf(*request), request, CostOfWaiting(*request)});
    lane.waiting.SetFirst(request->tenant, list.entries().front().urgency);
  }
  // Charges the tenant for the positions of the request that were computed and not charged before. If there are any,
  // the tenant has made progress.
  void Charge(Request* request, TimeNs now);

  // Sets `order` to the first `limit` waiting requests of the lane, in the order of service.
  void Order(TimeNs now, std::int32_t lane, std::size_t limit, ServiceOrder& order) const {
    order.turns.clear();
    AppendOrder(now, lane, limit, order);
  }
  // The same, appended to the turns in `order`.
  void AppendOrder(TimeNs now, std::int32_t lane, std::size_t limit, ServiceOrder& order) const;
  // The counter of the request's tenant.
  double Service(const Request& request) const { return tenants_[request.tenant].service; }
  // The counter to which a known tenant that begins to wait is lifted, before `burst` is subtracted.
  double Floor() const;
  // When the tenant of the request last made progress, or began to have requests.
  TimeNs ProgressedAt(const Request& request) const { return tenants_[request.tenant].progressed; }
  // Since when the tenant waits that waits longest for a turn; the largest TimeNs if none waits.
  TimeNs LongestWaitSince() const;

  // Tenants with a counter.
  std::size_t known_tenants() const { return tenants_.size() - free_.size(); }
  // Tenants with requests.
  std::size_t active_tenants() const { return active_; }

  // Aborts if queues, heaps and lists disagree. O(requests + tenants).
  void CheckIntegrity() const;

 private:
  // One cache line: planning reads the tenant of each running request.
  struct alignas(64) Tenant {
    double service = 0;
    double weight = 1;
    std::int32_t waiting = 0, running = 0;  // requests, in all lanes
    TimeNs progressed = 0;                  // ProgressedAt
    bool known = false;                     // false: the slot is free
  };
  // The waiting requests of one tenant in one lane.
  struct Queue {
    WaitingList list;
    TimeNs since = 0;  // when the tenant began to wait for its turn in this lane
  };
  // One lane.
  struct Lane {
    ServiceHeap waiting;        // tenants with waiting requests
    IndexChain turns;           // the same tenants, the one that waits longest for a turn first
    std::vector<Queue> queues;  // by tenant
  };

  Lane& LaneOf(const Request& request) { return lanes_[static_cast<std::size_t>(request.lane)]; }
  // Returns the slot of the tenant; takes a free one if the name is unknown (`added`).
  TenantId Intern(const std::string& name, bool& added);
  // Lifts the counter to `least` if the tenant did not wait before, and inserts the request, which waits since `since`.
  void BeginToWait(Request* request, double least, TimeNs since);
  // Removes a waiting request from its queue.
  void TakeOut(Request& request);
  // Empties the queues of all lanes.
  void TakeOutAll();
  // Inserts a waiting request into its queue.
  void PutIn(Request& request);
  // Inserts the tenant into lane.turns by the time since which it waits.
  void PutInTurns(Lane& lane, TenantId id);
  // Makes the tenant idle, or forgets it, if it has no requests.
  void LeaveIfIdle(TenantId id);
  // Least counter of waiting tenants; infinity if none waits.
  double LeastWaiting() const;
  // Least counter of tenants with requests; infinity if there are none.
  double LeastActive() const;
  // Forgets idle tenants beyond the bound.
  void BoundIdle();
  // Frees the slot of an idle tenant.
  void Forget(TenantId id);
  // AppendOrder for several tenants; up to `end` turns in `order`.
  void AppendMerged(TimeNs now, const Lane& lane, std::size_t end, ServiceOrder& order) const;
  // The charge for the tokens that the request has and its tenant was not charged for.
  double CostOfWaiting(const Request& request) const;
  // The charge for positions [from, to), divided by the weight of the tenant.
  double Cost(const Request& request, std::int64_t from, std::int64_t to) const;

  const FairnessOptions options_;
  std::unordered_map<std::string, double> weights_;
  std::unordered_map<std::string, TenantId> by_name_;  // looked up, never iterated
  std::vector<Tenant> tenants_;                        // by slot
  std::vector<std::string> names_;                     // by slot
  std::vector<TenantId> free_;                         // free slots
  std::vector<Lane> lanes_;
  ServiceHeap running_;       // tenants with running requests
  IndexChain idle_;           // tenants without requests that are still remembered
  std::size_t active_ = 0;    // tenants with requests
  double active_weight_ = 0;  // the sum of their weights
  double floor_ = 0;          // the highest that Floor() was when a tenant began to wait
  double virtual_time_ = 0;
};

}  // namespace loramux
