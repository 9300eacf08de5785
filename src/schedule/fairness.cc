#include "schedule/fairness.h"

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

// ---------------------------------------------------------------- ServiceHeap

void ServiceHeap::Push(TenantId tenant, double service) {
  if (tenant >= position_.size()) position_.resize(tenant + std::size_t{1}, -1);
  CHECK(!Contains(tenant));
  entries_.push_back({service, tenant});
  position_[tenant] = static_cast<std::int32_t>(entries_.size() - 1);
  Up(entries_.size() - 1);
}

void ServiceHeap::Remove(TenantId tenant) {
  CHECK(Contains(tenant));
  const auto at = static_cast<std::size_t>(position_[tenant]);
  const Entry moved = entries_.back();
  entries_.pop_back();
  position_[tenant] = -1;
  if (at == entries_.size()) return;
  Place(at, moved);
  Up(at);
  Down(static_cast<std::size_t>(position_[moved.tenant]));
}

void ServiceHeap::Raise(TenantId tenant, double service) {
  if (!Contains(tenant)) return;
  const auto at = static_cast<std::size_t>(position_[tenant]);
  entries_[at].service = service;
  Down(at);
}

void ServiceHeap::Place(std::size_t at, Entry entry) {
  entries_[at] = entry;
  position_[entry.tenant] = static_cast<std::int32_t>(at);
}

void ServiceHeap::Up(std::size_t at) {
  const Entry entry = entries_[at];
  for (; at > 0 && entry.service < entries_[(at - 1) / 2].service; at = (at - 1) / 2) Place(at, entries_[(at - 1) / 2]);
  Place(at, entry);
}

void ServiceHeap::Down(std::size_t at) {
  const Entry entry = entries_[at];
  for (std::size_t child = 2 * at + 1; child < entries_.size(); child = 2 * at + 1) {
    if (child + 1 < entries_.size() && entries_[child + 1].service < entries_[child].service) ++child;
    if (!(entries_[child].service < entry.service)) break;
    Place(at, entries_[child]);
    at = child;
  }
  Place(at, entry);
}

void ServiceHeap::CheckIntegrity() const {
  std::size_t placed = 0;
  for (const std::int32_t position : position_) placed += position >= 0;
  CHECK_EQ(placed, entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    CHECK_EQ(position_[entries_[i].tenant], static_cast<std::int32_t>(i));
    if (i > 0) CHECK(!(entries_[i].service < entries_[(i - 1) / 2].service));
  }
}

// ---------------------------------------------------------------- Requests come and go

TenantCounters::TenantCounters(FairnessOptions options) : options_(std::move(options)) {
  for (const auto& [name, weight] : options_.weights) {
    CHECK(weight > 0);
    weights_[name] = weight;
  }
}

void TenantCounters::Add(Request* request, TimeNs now) {
  request->tenant = Intern(options_.policy == FairnessPolicy::kNone ? std::string() : request->tenant_name);
  Tenant& tenant = tenants_[request->tenant];
  if (tenant.list == List::kIdle) Detach(request->tenant);
  if (tenant.waiting + tenant.running == 0) ++active_;
  if (tenant.waiting == 0) BeginToWait(request->tenant, now);
  ++tenant.waiting;
  request->previous_waiting = tenant.last;
  request->next_waiting = nullptr;
  (tenant.last == nullptr ? tenant.first : tenant.last->next_waiting) = request;
  tenant.last = request;
}

void TenantCounters::Admit(Request* request, TimeNs now) {
  const TenantId id = request->tenant;
  Tenant& tenant = tenants_[id];
  Unlink(request);
  if (tenant.running++ == 0) running_.Push(id, tenant.service);
  if (tenant.waiting == 0) return;
  Detach(id);                    // it had its turn, and waits for the next
  tenant.since = now;
  Append(turns_, List::kTurns, id);
}

void TenantCounters::Return(Request* request, TimeNs now) {
  const TenantId id = request->tenant;
  Tenant& tenant = tenants_[id];
  if (--tenant.running == 0) running_.Remove(id);
  if (tenant.waiting++ == 0) BeginToWait(id, now);
  // Older than everyone who never ran, but maybe not than others that were preempted before.
  Request* behind = tenant.first;
  Request* ahead = nullptr;
  for (; behind != nullptr && behind->id < request->id; behind = behind->next_waiting) ahead = behind;
  request->previous_waiting = ahead;
  request->next_waiting = behind;
  (ahead == nullptr ? tenant.first : ahead->next_waiting) = request;
  (behind == nullptr ? tenant.last : behind->previous_waiting) = request;
}

void TenantCounters::Remove(Request* request) {
  const TenantId id = request->tenant;
  Tenant& tenant = tenants_[id];
  if (request->state == RequestState::kWaiting) {
    Unlink(request);
  } else if (--tenant.running == 0) {
    running_.Remove(id);
  }
  LeaveIfIdle(id);
}

void TenantCounters::BeginToWait(TenantId id, TimeNs now) {
  Tenant& tenant = tenants_[id];
  if (options_.policy != FairnessPolicy::kNone) tenant.service = std::max(tenant.service, Floor() - options_.burst);
  running_.Raise(id, tenant.service);
  waiting_.Push(id, tenant.service);
  tenant.since = now;
  Append(turns_, List::kTurns, id);
}

void TenantCounters::Unlink(Request* request) {
  Tenant& tenant = tenants_[request->tenant];
  (request->previous_waiting == nullptr ? tenant.first : request->previous_waiting->next_waiting) = request->next_waiting;
  (request->next_waiting == nullptr ? tenant.last : request->next_waiting->previous_waiting) = request->previous_waiting;
  request->next_waiting = request->previous_waiting = nullptr;
  if (--tenant.waiting > 0) return;
  waiting_.Remove(request->tenant);
  Detach(request->tenant);
}

double TenantCounters::Cost(const Request& request, std::int64_t from, std::int64_t to) const {
  const std::int64_t prompt = request.prompt_tokens;
  const auto of_prompt = static_cast<double>(std::min(to, prompt) - std::min(from, prompt));
  const auto of_output = static_cast<double>(std::max(to, prompt) - std::max(from, prompt));
  return (of_prompt * options_.prompt_token_cost + of_output * options_.output_token_cost) / tenants_[request.tenant].weight;
}

void TenantCounters::Charge(Request* request) {
  if (options_.policy == FairnessPolicy::kNone || request->computed <= request->charged) return;
  Tenant& tenant = tenants_[request->tenant];
  tenant.service += Cost(*request, request->charged, request->computed);
  request->charged = request->computed;
  running_.Raise(request->tenant, tenant.service);
  waiting_.Raise(request->tenant, tenant.service);
}

double TenantCounters::Floor() const {
  if (!waiting_.empty()) return waiting_.least();
  return running_.empty() ? 0 : running_.least();
}

// Never falls while anybody is active, so no floor will ever be lower.
double TenantCounters::LeastActive() const {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  return std::min(waiting_.empty() ? kNone : waiting_.least(), running_.empty() ? kNone : running_.least());
}

// ---------------------------------------------------------------- Order of service

// The least of a heap is found without changing it: a node's children in the heap of tenants are seen after it.
void TenantCounters::Order(TimeNs now, std::size_t limit, ServiceOrder& order) const {
  order.turns.clear();
  order.nodes.Clear();
  if (waiting_.empty() || limit == 0) return;
  const Request* overdue = nullptr;
  if (waiting_.entries().size() > 1 && now - tenants_[turns_.first].since > options_.max_wait) {
    overdue = tenants_[turns_.first].first;
    order.turns.push_back({tenants_[turns_.first].first, -std::numeric_limits<double>::infinity()});
  }
  const auto& tenants = waiting_.entries();
  bool first_left = false;   // nodes' first was taken and is to be replaced
  const auto push = [&order, &first_left](double service, Request* request, std::ptrdiff_t heap_index) {
    const ServiceOrder::Node node{service, request->id, request, heap_index};
    first_left ? order.nodes.ReplaceFirst(node) : order.nodes.Push(node);
    first_left = false;
  };
  const auto push_tenant = [&](std::size_t index) {
    if (index < tenants.size()) push(tenants[index].service, tenants_[tenants[index].tenant].first, static_cast<std::ptrdiff_t>(index));
  };
  push_tenant(0);
  while (order.turns.size() < limit && !order.nodes.empty()) {
    const ServiceOrder::Node node = order.nodes.first();
    first_left = true;
    if (node.request != overdue) order.turns.push_back({node.request, node.service});
    if (node.heap_index >= 0) {
      push_tenant(2 * static_cast<std::size_t>(node.heap_index) + 1);
      push_tenant(2 * static_cast<std::size_t>(node.heap_index) + 2);
    }
    if (node.request->next_waiting != nullptr) push(ServiceAfter(node), node.request->next_waiting, -1);
    if (first_left) order.nodes.PopFirst();
  }
}

// Of the tenant, when the node's request will be served.
double TenantCounters::ServiceAfter(const ServiceOrder::Node& node) const {
  if (options_.policy == FairnessPolicy::kNone) return node.service;
  const auto tokens = static_cast<std::int64_t>(node.request->tokens.size());
  return node.service + Cost(*node.request, std::min(node.request->charged, tokens), tokens);
}

// ---------------------------------------------------------------- Tenants come and go

TenantId TenantCounters::Intern(const std::string& name) {
  const auto [found, added] = by_name_.try_emplace(name, kNobody);
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
  Tenant& tenant = tenants_[id];
  if (tenant.waiting + tenant.running > 0) return;
  --active_;
  if (active_ == 0) {   // nobody to be fair to
    while (idle_.first != kNobody) Forget(idle_.first);
    Forget(id);
    return;
  }
  Append(idle_, List::kIdle, id);
  ForgetTheLevel();
}

// A few at a time, oldest first: each call adds one, so that all are seen again and again.
void TenantCounters::ForgetTheLevel() {
  for (int looks = 0; looks < 4 && idle_.first != kNobody; ++looks) {
    const TenantId id = idle_.first;
    if (tenants_[id].service <= LeastActive() - options_.burst || idle_.size > options_.max_idle_tenants) {
      Forget(id);
    } else {
      Detach(id);
      Append(idle_, List::kIdle, id);
    }
  }
}

void TenantCounters::Forget(TenantId id) {
  if (tenants_[id].list != List::kNone) Detach(id);
  by_name_.erase(names_[id]);
  tenants_[id] = Tenant{};
  free_.push_back(id);
}

void TenantCounters::Append(Chain& chain, List list, TenantId id) {
  Tenant& tenant = tenants_[id];
  tenant.list = list;
  tenant.previous = chain.last;
  tenant.next = kNobody;
  (chain.last == kNobody ? chain.first : tenants_[chain.last].next) = id;
  chain.last = id;
  ++chain.size;
}

void TenantCounters::Detach(TenantId id) {
  Tenant& tenant = tenants_[id];
  Chain& chain = tenant.list == List::kTurns ? turns_ : idle_;
  (tenant.previous == kNobody ? chain.first : tenants_[tenant.previous].next) = tenant.next;
  (tenant.next == kNobody ? chain.last : tenants_[tenant.next].previous) = tenant.previous;
  tenant.next = tenant.previous = kNobody;
  tenant.list = List::kNone;
  --chain.size;
}

void TenantCounters::CheckIntegrity() const {
  waiting_.CheckIntegrity();
  running_.CheckIntegrity();
  std::size_t active = 0, waiting = 0, idle = 0, known = 0;
  for (TenantId id = 0; id < tenants_.size(); ++id) {
    const Tenant& tenant = tenants_[id];
    std::int32_t queued = 0;
    for (const Request* request = tenant.first; request != nullptr; request = request->next_waiting) {
      ++queued;
      CHECK_EQ(request->tenant, id);
      CHECK(request->state == RequestState::kWaiting);
      CHECK((request->next_waiting == nullptr ? tenant.last : request->next_waiting->previous_waiting) == request);
      if (request->next_waiting != nullptr) CHECK(request->id < request->next_waiting->id);
    }
    CHECK_EQ(queued, tenant.waiting);
    CHECK_EQ(waiting_.Contains(id), tenant.waiting > 0);
    CHECK_EQ(running_.Contains(id), tenant.running > 0);
    CHECK((tenant.list == List::kTurns) == (tenant.waiting > 0));
    CHECK((tenant.list == List::kIdle) == (tenant.known && tenant.waiting + tenant.running == 0));
    CHECK(tenant.known || tenant.waiting + tenant.running == 0);
    active += tenant.waiting + tenant.running > 0;
    waiting += tenant.waiting > 0;
    idle += tenant.list == List::kIdle;
    known += tenant.known;
    if (tenant.known) CHECK_EQ(by_name_.at(names_[id]), id);
  }
  CHECK_EQ(active, active_);
  CHECK_EQ(waiting, turns_.size);
  CHECK_EQ(idle, idle_.size);
  CHECK_EQ(known, known_tenants());
  CHECK_EQ(known, by_name_.size());
  CHECK_LE(idle, options_.max_idle_tenants);
  for (const ServiceHeap* heap : {&waiting_, &running_}) {
    for (const ServiceHeap::Entry& entry : heap->entries()) CHECK(entry.service == tenants_[entry.tenant].service);
  }
}

}  // namespace loramux
