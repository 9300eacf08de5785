#include "schedule/queue/service_heap.h"

#include <utility>

#include "base/check.h"

namespace loramux {

void ServiceHeap::Push(TenantId tenant, double service, Urgency first) {
  if (tenant >= position_.size()) position_.resize(tenant + std::size_t{1}, -1);
  CHECK(!Contains(tenant));
  entries_.push_back({service, tenant, first});
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

void ServiceHeap::Clear() {
  for (const Entry& entry : entries_) position_[entry.tenant] = -1;
  entries_.clear();
}

void ServiceHeap::Raise(TenantId tenant, double service) {
  if (!Contains(tenant)) return;
  const auto at = static_cast<std::size_t>(position_[tenant]);
  entries_[at].service = service;
  Down(at);
}

void ServiceHeap::SetFirst(TenantId tenant, Urgency first) {
  const auto at = static_cast<std::size_t>(position_[tenant]);
  if (entries_[at].first == first) return;
  entries_[at].first = first;
  Up(at);
  Down(static_cast<std::size_t>(position_[tenant]));
}

void ServiceHeap::Place(std::size_t at, Entry entry) {
  entries_[at] = entry;
  position_[entry.tenant] = static_cast<std::int32_t>(at);
}

void ServiceHeap::Up(std::size_t at) {
  const Entry entry = entries_[at];
  for (; at > 0 && entry.Before(entries_[(at - 1) / 2]); at = (at - 1) / 2) Place(at, entries_[(at - 1) / 2]);
  Place(at, entry);
}

void ServiceHeap::Down(std::size_t at) {
  const Entry entry = entries_[at];
  for (std::size_t child = 2 * at + 1; child < entries_.size(); child = 2 * at + 1) {
    if (child + 1 < entries_.size() && entries_[child + 1].Before(entries_[child])) ++child;
    if (!entries_[child].Before(entry)) break;
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
    if (i > 0) CHECK(!entries_[i].Before(entries_[(i - 1) / 2]));
  }
}

}  // namespace loramux
