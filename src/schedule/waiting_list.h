// Waiting requests in the order in which they are due. Grows at the end and shrinks at the front without moving anything,
// as first come, first served does; other orders move what lies between.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "schedule/request.h"

namespace loramux {

// Who comes first among the waiting requests of one list: the least. Must not change while the request waits.
struct Urgency {
  TimeNs due = 0;   // what the order of the queue makes of the request (queue_order.h)
  RequestId id;
  auto operator<=>(const Urgency&) const = default;
};

inline Urgency UrgencyOf(const Request& request) { return {request.due, request.id}; }

class WaitingList {
 public:
  bool empty() const { return head_ == entries_.size(); }
  std::size_t size() const { return entries_.size() - head_; }
  Request* operator[](std::size_t i) const { return entries_[head_ + i].request; }

  void Insert(Request* request) {
    const Entry entry{UrgencyOf(*request), request};
    if (head_ > 0 && (empty() || entry.urgency < entries_[head_].urgency)) {
      entries_[--head_] = entry;
      return;
    }
    entries_.insert(std::upper_bound(begin(), entries_.end(), entry, Before), entry);
  }
  // REQUIRES: in the list, with the urgency that it came with.
  void Erase(const Request* request) {
    const auto found = std::lower_bound(begin(), entries_.end(), Entry{UrgencyOf(*request), nullptr}, Before);
    CHECK(found != entries_.end() && found->request == request);
    std::move_backward(begin(), found, found + 1);   // usually it is the first, and nothing moves
    ++head_;
    if (head_ == entries_.size()) {
      entries_.clear();
      head_ = 0;
    } else if (head_ > 1024 && head_ * 2 > entries_.size()) {
      entries_.erase(entries_.begin(), begin());
      head_ = 0;
    }
  }

 private:
  struct Entry {
    Urgency urgency;
    Request* request = nullptr;
  };
  static bool Before(const Entry& a, const Entry& b) { return a.urgency < b.urgency; }
  std::vector<Entry>::iterator begin() { return entries_.begin() + static_cast<std::ptrdiff_t>(head_); }

  std::vector<Entry> entries_;   // from head_ on
  std::size_t head_ = 0;
};

}  // namespace loramux
