// The tenants of a lane, or of the running requests, by the service that they got (fairness.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedule/queue/waiting_list.h"
#include "schedule/request.h"

namespace loramux {

// A binary heap of tenants with a position index. The tenant with the least service is on top; of equal service, which
// tenants have that were lifted to the same floor, the one with the most urgent request.
class ServiceHeap {
 public:
  // A tenant in the heap.
  struct Entry {
    double service;
    TenantId tenant;
    Urgency first;  // its most urgent request in the lane
    bool Before(const Entry& other) const {
      return service != other.service ? service < other.service : first < other.first;
    }
  };
  // True if the tenant is in the heap.
  bool Contains(TenantId tenant) const { return tenant < position_.size() && position_[tenant] >= 0; }
  // Adds the tenant. REQUIRES: it is not in the heap.
  void Push(TenantId tenant, double service, Urgency first = {});
  // Removes the tenant. REQUIRES: it is in the heap.
  void Remove(TenantId tenant);
  // Removes all tenants.
  void Clear();
  // Sets a higher service. Does nothing if the tenant is not in the heap.
  void Raise(TenantId tenant, double service);
  // Sets the most urgent request. REQUIRES: the tenant is in the heap.
  void SetFirst(TenantId tenant, Urgency first);
  // The heap as an array: the children of entry i are 2i + 1 and 2i + 2.
  const std::vector<Entry>& entries() const { return entries_; }
  // Index of the tenant in entries(). REQUIRES: it is in the heap.
  std::size_t PositionOf(TenantId tenant) const { return static_cast<std::size_t>(position_[tenant]); }
  bool empty() const { return entries_.empty(); }
  // The least service. REQUIRES: not empty.
  double least() const { return entries_.front().service; }
  // Aborts if heap and index disagree.
  void CheckIntegrity() const;

 private:
  // Stores the entry at index `at`.
  void Place(std::size_t at, Entry entry);
  // Restore the heap order from `at` towards the root, or towards the leaves.
  void Up(std::size_t at);
  void Down(std::size_t at);
  std::vector<Entry> entries_;
  std::vector<std::int32_t> position_;  // by tenant; -1: not in the heap
};

}  // namespace loramux
