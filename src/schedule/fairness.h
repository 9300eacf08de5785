// Fairness among tenants: virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI
// 2024).
//
// Each tenant has a counter of the service that it got: tokens computed for it, an output token weighing more than one
// of the prompt, divided by the tenant's weight. Who has got the least is served next; within a tenant, who is due
// first (Urgency; without another order, first come first served), and so among tenants that got the same. Requests may
// wait in several lanes, which have nothing in common but the counters: who is next is asked of each lane. A tenant
// that begins to wait is lifted to the least counter among those that wait (or else run), less a small `burst`: idle
// time earns no more credit than that. What is computed a second time, after a preemption, is not charged again.
//
// Bounded memory: a tenant without requests is forgotten as soon as its counter is no higher than that of any tenant
// with requests (nothing is lost by that: it would be lifted), all are when nobody has requests, and at most
// `max_idle_tenants` are remembered.
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
#include "schedule/index_chain.h"
#include "schedule/request.h"
#include "schedule/waiting_list.h"

namespace loramux {

enum class FairnessPolicy : std::uint8_t {
  kNone,  // one queue: everybody is the same tenant
  kVtc,   // virtual token counters
};
// "none" or "vtc". Error: another name; the message lists the valid ones.
Result<FairnessPolicy> ParseFairnessPolicy(const std::string& name);
// "name=2.5". Error: no name, or a weight that is not between 0.001 and 1000.
Result<std::pair<std::string, double>> ParseTenantWeight(const std::string& text);

struct FairnessOptions {
  FairnessPolicy policy = FairnessPolicy::kVtc;
  std::vector<std::pair<std::string, double>> weights;  // of tenants by name; 1 for all others
  double prompt_token_cost = 1, output_token_cost = 2;  // the paper's
  double burst = 0;                                     // how far below the others a tenant may begin to wait
  TimeNs max_wait = 30 * kNsPerSecond;                  // a tenant that waited longer for its turn is served first
  std::size_t max_idle_tenants = 4096;
};

// A waiting request in the order in which it would be served, and its tenant's counter then (as if all before it were).
struct Turn {
  Request* request = nullptr;
  double service = 0;  // -infinity: its tenant waited for longer than max_wait
};

// The next turns. Keeps its memory between uses.
struct ServiceOrder {
  struct Node {
    double service = 0;
    const WaitingList::Entry* entry = nullptr;  // of the tenant's list
    TenantId tenant = 0;
    // of the tenant in the heap of tenants, if it is the list's first; else kNotFirst
    std::uint32_t index = 0;
  };
  static constexpr std::uint32_t kNotFirst = std::numeric_limits<std::uint32_t>::max();
  struct Before {
    // which of two is less cannot be foreseen: no branch on that
    bool operator()(const Node& a, const Node& b) const {
      if (a.service != b.service) return a.service < b.service;
      return a.entry->urgency < b.entry->urgency;
    }
  };
  std::vector<Turn> turns;
  Heap<Node, Before> nodes;
};

// A binary heap of tenants in which any tenant can be found. Least service on top; of equal service, as tenants have
// that were lifted to the same floor, the one whose first request is due first.
class ServiceHeap {
 public:
  struct Entry {
    double service;
    TenantId tenant;
    Urgency first;  // of its requests in the lane
    bool Before(const Entry& other) const {
      return service != other.service ? service < other.service : first < other.first;
    }
  };
  bool Contains(TenantId tenant) const { return tenant < position_.size() && position_[tenant] >= 0; }
  // REQUIRES: not in the heap.
  void Push(TenantId tenant, double service, Urgency first = {});
  // REQUIRES: in the heap.
  void Remove(TenantId tenant);
  void Clear();
  // The tenant's service is higher now. Does nothing if it is not in the heap.
  void Raise(TenantId tenant, double service);
  // Another request is its first now. REQUIRES: in the heap.
  void SetFirst(TenantId tenant, Urgency first);
  const std::vector<Entry>& entries() const { return entries_; }
  // In entries(). REQUIRES: in the heap.
  std::size_t PositionOf(TenantId tenant) const { return static_cast<std::size_t>(position_[tenant]); }
  bool empty() const { return entries_.empty(); }
  double least() const { return entries_.front().service; }
  void CheckIntegrity() const;

 private:
  void Place(std::size_t at, Entry entry);
  void Up(std::size_t at);
  void Down(std::size_t at);
  std::vector<Entry> entries_;
  std::vector<std::int32_t> position_;  // by tenant; -1: not in the heap
};

class TenantCounters {
 public:
  // REQUIRES: lanes > 0.
  explicit TenantCounters(FairnessOptions options, std::int32_t lanes = 1);

  // A new request begins to wait, in Request::lane: Request::tenant is set from Request::tenant_name.
  void Add(Request* request, TimeNs now);
  // A waiting request begins to run.
  void Admit(Request* request, TimeNs now);
  // A running request waits again.
  void Return(Request* request, TimeNs now);
  // Ends a waiting or running request (Request::state says which).
  void Remove(Request* request);
  // Waiting requests get other lanes or are due at other times. `place` sets both in each of them. REQUIRES: all that
  // wait, in the order of arrival.
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
  // The same of one waiting request, which stays in its lane.
  template <typename Place>
  void PlaceAnew(Request* request, Place place) {
    Lane& lane = LaneOf(*request);
    WaitingList& list = lane.queues[request->tenant].list;
    list.Erase(request);
    place(*request);
    list.Insert({UrgencyOf(*request), request, CostOfWaiting(*request)});
    lane.waiting.SetFirst(request->tenant, list.entries().front().urgency);
  }
  // Charges what was computed of the request and was never charged before.
  void Charge(Request* request);

  // The first `limit` requests that wait in the lane, in the order of service. Changes nothing but `order`; Append:
  // after the turns that it has.
  void Order(TimeNs now, std::int32_t lane, std::size_t limit, ServiceOrder& order) const {
    order.turns.clear();
    AppendOrder(now, lane, limit, order);
  }
  void AppendOrder(TimeNs now, std::int32_t lane, std::size_t limit, ServiceOrder& order) const;
  double Service(const Request& request) const { return tenants_[request.tenant].service; }
  // Where a tenant that begins to wait is lifted to.
  double Floor() const;
  bool AnyWaits(std::int32_t lane) const { return !lanes_[static_cast<std::size_t>(lane)].waiting.empty(); }

  std::size_t known_tenants() const { return tenants_.size() - free_.size(); }
  // Tenants with requests.
  std::size_t active_tenants() const { return active_; }

  // Aborts if queues, heaps and lists disagree. O(requests + tenants).
  void CheckIntegrity() const;

 private:
  // A cache line: planning reads the tenant of each running request.
  struct alignas(64) Tenant {
    double service = 0;
    double weight = 1;
    std::int32_t waiting = 0, running = 0;  // in all lanes
    bool known = false;
  };
  // Of one tenant in one lane.
  struct Queue {
    WaitingList list;
    TimeNs since = 0;  // when the tenant began to wait for its turn here
  };
  struct Lane {
    ServiceHeap waiting;        // tenants
    IndexChain turns;           // the same, who waits longest for a turn first
    std::vector<Queue> queues;  // by tenant
  };

  Lane& LaneOf(const Request& request) { return lanes_[static_cast<std::size_t>(request.lane)]; }
  TenantId Intern(const std::string& name);
  void BeginToWait(Request* request, TimeNs now);
  void TakeOut(Request& request);
  void TakeOutAll();
  void PutIn(Request& request);
  void LeaveIfIdle(TenantId id);
  double LeastWaiting() const;
  double LeastActive() const;
  void ForgetTheLevel();
  void Forget(TenantId id);
  void AppendMerged(TimeNs now, const Lane& lane, std::size_t end, ServiceOrder& order) const;
  double CostOfWaiting(const Request& request) const;
  double Cost(const Request& request, std::int64_t from, std::int64_t to) const;

  const FairnessOptions options_;
  std::unordered_map<std::string, double> weights_;
  std::unordered_map<std::string, TenantId> by_name_;  // looked up, never iterated
  std::vector<Tenant> tenants_;
  std::vector<std::string> names_;  // of tenants_
  std::vector<TenantId> free_;
  std::vector<Lane> lanes_;
  ServiceHeap running_;
  IndexChain idle_;  // tenants without requests whose counters are still above the floor
  std::size_t active_ = 0;
};

}  // namespace loramux
