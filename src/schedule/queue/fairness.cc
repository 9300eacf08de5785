#include "schedule/queue/fairness.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/check.h"

namespace loramux {

Result<FairnessPolicy> ParseFairnessPolicy(const std::string& name) {
  if (name == "none") return FairnessPolicy::kNone;
  if (name == "vtc") return FairnessPolicy::kVtc;
  return InvalidArgument("fairness: expected none or vtc, found '" + name + "'", "--fairness");
}

Result<std::pair<std::string, double>> ParseTenantWeight(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  const std::string number = equals == std::string::npos ? "" : text.substr(equals + 1);
  char* end = nullptr;
  const double weight = std::strtod(number.c_str(), &end);
  const bool valid = !number.empty() && *end == '\0' && weight >= 0.001 && weight <= 1000;
  if (equals == 0 || !valid) {
    return InvalidArgument("tenant weight: expected NAME=WEIGHT with a weight from 0.001 to 1000, found '" + text + "'",
                           "--tenant-weight");
  }
  return std::pair(text.substr(0, equals), weight);
}

// ---------------------------------------------------------------- Requests come and go

TenantCounters::TenantCounters(FairnessOptions options, std::int32_t lanes)
    : options_(std::move(options)), lanes_(static_cast<std::size_t>(lanes)) {
  CHECK_GT(lanes, 0);
  for (const auto& [name, weight] : options_.weights) {
    CHECK(weight > 0);
    weights_[name] = weight;
  }
}

void TenantCounters::Add(Request* request, TimeNs now) {
  bool is_new = false;
  request->tenant = Intern(options_.policy == FairnessPolicy::kNone ? std::string() : request->tenant_name, is_new);
  Tenant& tenant = tenants_[request->tenant];
  if (idle_.Contains(request->tenant)) idle_.Remove(request->tenant);
  if (tenant.waiting + tenant.running == 0) {
    ++active_;
    active_weight_ += tenant.weight;
    tenant.progressed = now;
  }
  floor_ = Floor();
  BeginToWait(request, is_new ? std::max(floor_, virtual_time_) : floor_ - options_.burst, now);
}

void TenantCounters::Admit(Request* request, TimeNs now) {
  const TenantId id = request->tenant;
  TakeOut(*request);
  --tenants_[id].waiting;
  if (tenants_[id].running++ == 0) running_.Push(id, tenants_[id].service);
  Lane& lane = LaneOf(*request);
  if (lane.queues[id].list.empty()) return;
  lane.turns.Remove(id);  // the tenant had its turn and waits for the next
  lane.queues[id].since = now;
  lane.turns.Append(id);
}

void TenantCounters::Return(Request* request, TimeNs now) {
  Tenant& tenant = tenants_[request->tenant];
  if (--tenant.running == 0) running_.Remove(request->tenant);
  floor_ = Floor();
  BeginToWait(request, floor_ - options_.burst, std::min(now, tenant.progressed));
}

void TenantCounters::Remove(Request* request) {
  const TenantId id = request->tenant;
  if (request->state == RequestState::kWaiting) {
    TakeOut(*request);
    --tenants_[id].waiting;
  } else if (--tenants_[id].running == 0) {
    running_.Remove(id);
  }
  LeaveIfIdle(id);
}

void TenantCounters::BeginToWait(Request* request, double least, TimeNs since) {
  const TenantId id = request->tenant;
  Tenant& tenant = tenants_[id];
  if (tenant.waiting++ == 0) {
    if (options_.policy != FairnessPolicy::kNone) tenant.service = std::max(tenant.service, least);
    running_.Raise(id, tenant.service);
  }
  Lane& lane = LaneOf(*request);
  if (lane.queues.size() <= id) lane.queues.resize(id + std::size_t{1});
  Queue& queue = lane.queues[id];
  if (queue.list.empty()) {
    queue.since = since;
  } else if (since < queue.since) {  // the last turn brought no progress
    lane.turns.Remove(id);
    queue.since = since;
    PutInTurns(lane, id);
  }
  PutIn(*request);
}

// Few tenants wait longer than the one that is inserted last, except after a preemption.
void TenantCounters::PutInTurns(Lane& lane, TenantId id) {
  std::uint32_t before = lane.turns.last();
  while (before != IndexChain::kNone && lane.queues[before].since > lane.queues[id].since)
    before = lane.turns.previous(before);
  lane.turns.InsertAfter(before, id);
}

void TenantCounters::TakeOut(Request& request) {
  Lane& lane = LaneOf(request);
  const WaitingList& list = lane.queues[request.tenant].list;
  lane.queues[request.tenant].list.Erase(&request);
  if (!list.empty()) return lane.waiting.SetFirst(request.tenant, list.entries().front().urgency);
  lane.waiting.Remove(request.tenant);
  lane.turns.Remove(request.tenant);
}

void TenantCounters::TakeOutAll() {
  for (Lane& lane : lanes_) {
    for (const ServiceHeap::Entry& entry : lane.waiting.entries()) {
      lane.queues[entry.tenant].list.Clear();
      lane.turns.Remove(entry.tenant);
    }
    lane.waiting.Clear();
  }
}

void TenantCounters::PutIn(Request& request) {
  Lane& lane = LaneOf(request);
  if (lane.queues.size() <= request.tenant) lane.queues.resize(request.tenant + std::size_t{1});
  WaitingList& list = lane.queues[request.tenant].list;
  const bool first = list.empty();
  list.Insert({UrgencyOf(request), &request, CostOfWaiting(request)});
  const Urgency urgency = list.entries().front().urgency;
  if (!first) return lane.waiting.SetFirst(request.tenant, urgency);
  lane.waiting.Push(request.tenant, tenants_[request.tenant].service, urgency);
  PutInTurns(lane, request.tenant);
}

double TenantCounters::Cost(const Request& request, std::int64_t from, std::int64_t to) const {
  const std::int64_t prompt = request.prompt_tokens;
  const auto of_prompt = static_cast<double>(std::min(to, prompt) - std::min(from, prompt));
  const auto of_output = static_cast<double>(std::max(to, prompt) - std::max(from, prompt));
  return (of_prompt * options_.prompt_token_cost + of_output * options_.output_token_cost) /
         tenants_[request.tenant].weight;
}

void TenantCounters::Charge(Request* request, TimeNs now) {
  if (options_.policy == FairnessPolicy::kNone || request->computed <= request->charged) return;
  Tenant& tenant = tenants_[request->tenant];
  const double cost = Cost(*request, request->charged, request->computed);
  tenant.service += cost;
  tenant.progressed = now;
  virtual_time_ += cost * tenant.weight / active_weight_;
  request->charged = request->computed;
  running_.Raise(request->tenant, tenant.service);
  for (Lane& lane : lanes_) lane.waiting.Raise(request->tenant, tenant.service);
}

double TenantCounters::LeastWaiting() const {
  double least = std::numeric_limits<double>::infinity();
  for (const Lane& lane : lanes_) {
    if (!lane.waiting.empty()) least = std::min(least, lane.waiting.least());
  }
  return least;
}

// Without the maximum it would fall with each tenant that begins to wait with credit, and the next would fall further.
double TenantCounters::Floor() const {
  const double waiting = LeastWaiting();
  if (waiting < std::numeric_limits<double>::infinity()) return std::max(floor_, waiting);
  return running_.empty() ? floor_ : std::max(floor_, running_.least());
}

TimeNs TenantCounters::LongestWaitSince() const {
  TimeNs since = std::numeric_limits<TimeNs>::max();
  for (const Lane& lane : lanes_) {
    if (!lane.turns.empty()) since = std::min(since, lane.queues[lane.turns.first()].since);
  }
  return since;
}

double TenantCounters::LeastActive() const {
  return std::min(LeastWaiting(), running_.empty() ? std::numeric_limits<double>::infinity() : running_.least());
}

// ---------------------------------------------------------------- Order of service

void TenantCounters::AppendOrder(TimeNs now, std::int32_t lane_index, std::size_t limit, ServiceOrder& order) const {
  const Lane& lane = lanes_[static_cast<std::size_t>(lane_index)];
  if (lane.waiting.empty() || limit == 0) return;
  const auto& tenants = lane.waiting.entries();
  if (tenants.size() > 1) return AppendMerged(now, lane, order.turns.size() + limit, order);
  double service = tenants[0].service;
  const std::span<const WaitingList::Entry> entries = lane.queues[tenants[0].tenant].list.entries();
  for (const WaitingList::Entry& entry : entries.first(std::min(limit, entries.size()))) {
    __builtin_prefetch(entry.request);  // the caller reads the request next
    order.turns.push_back({entry.request, {.service = service}});
    service += entry.cost;
  }
}

// Merges the lists of several tenants, up to `end` turns. Walks the heap of tenants without changing it: the children
// of a node in the heap are visited after the node.
void TenantCounters::AppendMerged(TimeNs now, const Lane& lane, std::size_t end, ServiceOrder& order) const {
  const auto& tenants = lane.waiting.entries();
  const Request* overdue = nullptr;
  if (const Queue& longest = lane.queues[lane.turns.first()]; now - longest.since > options_.max_wait) {
    overdue = longest.list[0];
    order.turns.push_back({longest.list[0], {.overdue = true}});
  }
  order.nodes.Clear();
  bool first_left = false;  // nodes.first() was taken and is to be replaced
  const auto push = [&](const ServiceOrder::Node& node) {
    __builtin_prefetch(node.entry->request);  // the caller reads the request next; this function does not
    first_left ? order.nodes.ReplaceFirst(node) : order.nodes.Push(node);
    first_left = false;
  };
  const auto push_tenant = [&](std::size_t index) {
    if (index >= tenants.size()) return;
    const ServiceHeap::Entry& tenant = tenants[index];
    if (2 * index + 2 < tenants.size()) {  // candidates for the next push, if this tenant has its turn
      __builtin_prefetch(&lane.queues[tenants[2 * index + 1].tenant]);
      __builtin_prefetch(&lane.queues[tenants[2 * index + 2].tenant]);
    }
    push({tenant.service, lane.queues[tenant.tenant].list.entries().data(), tenant.tenant,
          static_cast<std::uint32_t>(index)});
  };
  push_tenant(0);
  while (order.turns.size() < end && !order.nodes.empty()) {
    const ServiceOrder::Node node = order.nodes.first();
    first_left = true;
    if (node.entry->request != overdue) order.turns.push_back({node.entry->request, {.service = node.service}});
    if (node.index != ServiceOrder::kNotFirst) {  // its children in the heap follow
      push_tenant(2 * std::size_t{node.index} + 1);
      push_tenant(2 * std::size_t{node.index} + 2);
    }
    const std::span<const WaitingList::Entry> entries = lane.queues[node.tenant].list.entries();
    const WaitingList::Entry* const next = node.entry + 1;
    if (next != entries.data() + entries.size())
      push({node.service + node.entry->cost, next, node.tenant, ServiceOrder::kNotFirst});
    if (first_left) order.nodes.PopFirst();
  }
}

// Does not change while the request waits.
double TenantCounters::CostOfWaiting(const Request& request) const {
  if (options_.policy == FairnessPolicy::kNone) return 0;
  const auto tokens = static_cast<std::int64_t>(request.tokens.size());
  return Cost(request, std::min(request.charged, tokens), tokens);
}

// ---------------------------------------------------------------- Tenants come and go

TenantId TenantCounters::Intern(const std::string& name, bool& added) {
  const auto [found, inserted] = by_name_.try_emplace(name, IndexChain::kNone);
  added = inserted;
  if (!added) return found->second;
  if (free_.empty()) {
    free_.push_back(static_cast<TenantId>(tenants_.size()));
    tenants_.emplace_back();
    names_.emplace_back();
  }
  const TenantId id = free_.back();
  free_.pop_back();
  found->second = id;
  Tenant& tenant = tenants_[id];
  tenant = Tenant{};
  names_[id] = name;
  tenant.known = true;
  const auto weight = weights_.find(name);
  if (weight != weights_.end()) tenant.weight = weight->second;
  return id;
}

void TenantCounters::LeaveIfIdle(TenantId id) {
  const Tenant& tenant = tenants_[id];
  if (tenant.waiting + tenant.running > 0) return;
  --active_;
  active_weight_ -= tenant.weight;
  if (active_ == 0) {  // no tenant is left to be fair to
    while (!idle_.empty()) Forget(idle_.first());
    Forget(id);
    active_weight_ = floor_ = virtual_time_ = 0;  // also drops the rounding errors of the sums
    return;
  }
  idle_.Append(id);
  BoundIdle();
}

// Looks at up to four idle tenants, the oldest first, for one that would be lifted: it loses its credit at most. The
// others would lose a debt.
void TenantCounters::BoundIdle() {
  constexpr int kLooks = 4;
  for (int looks = 1; idle_.size() > options_.max_idle_tenants; ++looks) {
    const TenantId id = idle_.first();
    if (looks > kLooks || tenants_[id].service <= LeastActive()) {
      Forget(id);
    } else {
      idle_.Remove(id);
      idle_.Append(id);
    }
  }
}

void TenantCounters::Forget(TenantId id) {
  if (idle_.Contains(id)) idle_.Remove(id);
  by_name_.erase(names_[id]);
  tenants_[id] = Tenant{};
  free_.push_back(id);
}

void TenantCounters::CheckIntegrity() const {
  running_.CheckIntegrity();
  std::size_t active = 0, idle = 0, known = 0;
  double weight = 0;
  std::vector<std::int32_t> waiting(tenants_.size(), 0);
  for (std::size_t index = 0; index < lanes_.size(); ++index) {
    const Lane& lane = lanes_[index];
    lane.waiting.CheckIntegrity();
    std::size_t waiting_tenants = 0;
    for (TenantId id = 0; id < lane.queues.size(); ++id) {
      const WaitingList& list = lane.queues[id].list;
      for (std::size_t i = 0; i < list.size(); ++i) {
        CHECK_EQ(list[i]->tenant, id);
        CHECK_EQ(list[i]->lane, static_cast<std::int32_t>(index));
        CHECK(list[i]->state == RequestState::kWaiting);
        CHECK(list.entries()[i].cost == CostOfWaiting(*list[i]));
        if (i > 0) CHECK(UrgencyOf(*list[i - 1]) < UrgencyOf(*list[i]));
      }
      waiting[id] += static_cast<std::int32_t>(list.size());
      waiting_tenants += !list.empty();
      CHECK_EQ(lane.waiting.Contains(id), !list.empty());
      if (!list.empty())
        CHECK(lane.waiting.entries()[lane.waiting.PositionOf(id)].first == list.entries().front().urgency);
      CHECK_EQ(lane.turns.Contains(id), !list.empty());
    }
    CHECK_EQ(waiting_tenants, lane.turns.size());
    for (std::uint32_t at = lane.turns.first(); at != IndexChain::kNone; at = lane.turns.next(at)) {
      const std::uint32_t before = lane.turns.previous(at);
      if (before != IndexChain::kNone) CHECK_LE(lane.queues[before].since, lane.queues[at].since);
    }
    CHECK_EQ(waiting_tenants, lane.waiting.entries().size());
  }
  for (TenantId id = 0; id < tenants_.size(); ++id) {
    const Tenant& tenant = tenants_[id];
    CHECK_EQ(waiting[id], tenant.waiting);
    CHECK_EQ(running_.Contains(id), tenant.running > 0);
    CHECK_EQ(idle_.Contains(id), tenant.known && tenant.waiting + tenant.running == 0);
    CHECK(tenant.known || tenant.waiting + tenant.running == 0);
    active += tenant.waiting + tenant.running > 0;
    if (tenant.waiting + tenant.running > 0) weight += tenant.weight;
    idle += idle_.Contains(id);
    known += tenant.known;
    if (tenant.known) CHECK_EQ(by_name_.at(names_[id]), id);
  }
  CHECK_EQ(active, active_);
  CHECK(std::abs(weight - active_weight_) <= 1e-6 * (1 + weight));
  CHECK_EQ(idle, idle_.size());
  CHECK_EQ(known, known_tenants());
  CHECK_EQ(known, by_name_.size());
  CHECK_LE(idle, options_.max_idle_tenants);
  const auto check_services = [this](const ServiceHeap& heap) {
    for (const ServiceHeap::Entry& entry : heap.entries()) CHECK(entry.service == tenants_[entry.tenant].service);
  };
  check_services(running_);
  for (const Lane& lane : lanes_) check_services(lane.waiting);
}

}  // namespace loramux
