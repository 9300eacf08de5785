// Waiting requests in the order in which they are due. Grows at the end and shrinks at the front without moving
// anything, as first come, first served does; other orders move what lies between.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "schedule/request.h"

namespace loramux {

// Who comes first among the waiting requests of one list: the least. Must not change while the request waits.
struct Urgency {
  TimeNs due = 0;  // what the order of the queue makes of the request (queue_order.h)
  RequestId id;
  auto operator<=>(const Urgency&) const = default;
};

inline Urgency UrgencyOf(const Request& request) { return {request.due, request.id}; }

// In ascending order of urgency. `Entry` has an Urgency `urgency`, a Request* `request`, and what else its user needs
// to know of the request without looking at it.
template <typename EntryType>
class UrgencyList {
 public:
  using Entry = EntryType;

  bool empty() const { return head_ == entries_.size(); }
  std::size_t size() const { return entries_.size() - head_; }
  Request* operator[](std::size_t i) const { return entries_[head_ + i].request; }
  std::span<const Entry> entries() const { return std::span(entries_).subspan(head_); }
  std::span<Entry> entries() { return std::span(entries_).subspan(head_); }  // their urgency must not change

  void Insert(const Entry& entry) {
    if (head_ > 0 && (empty() || Before(entry, entries_[head_]))) {
      entries_[--head_] = entry;
      return;
    }
    entries_.insert(std::upper_bound(begin(), entries_.end(), entry, Before), entry);
  }
  void Clear() {
    entries_.clear();
    head_ = 0;
  }
  // REQUIRES: in the list, with the urgency that it came with.
  void Erase(const Request* request) {
    const auto found = std::lower_bound(begin(), entries_.end(), Entry{.urgency = UrgencyOf(*request)}, Before);
    CHECK(found != entries_.end() && found->request == request);
    std::move_backward(begin(), found, found + 1);  // usually it is the first, and nothing moves
    ++head_;
    if (head_ == entries_.size()) {
      Clear();
    } else if (head_ > 1024 && head_ * 2 > entries_.size()) {
      entries_.erase(entries_.begin(), begin());
      head_ = 0;
    }
  }
  template <typename Gone>
  void EraseIf(Gone gone) {
    entries_.erase(std::remove_if(begin(), entries_.end(), gone), entries_.end());
  }

 private:
  static bool Before(const Entry& a, const Entry& b) { return a.urgency < b.urgency; }
  typename std::vector<Entry>::iterator begin() { return entries_.begin() + static_cast<std::ptrdiff_t>(head_); }

  std::vector<Entry> entries_;  // from head_ on
  std::size_t head_ = 0;
};

struct WaitingEntry {
  Urgency urgency;
  Request* request = nullptr;
  double cost = 0;  // what its service will cost its tenant, as it was inserted
};
using WaitingList = UrgencyList<WaitingEntry>;

}  // namespace loramux
