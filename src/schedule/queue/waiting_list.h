// Waiting requests by due time. Insertion at the end and removal at the front move nothing, as first come, first served
// needs it; other orders move the entries in between.
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

// The sort key of a waiting request; the least comes first. Must not change while the request is in a list.
struct Urgency {
  TimeNs due = 0;  // Request::due
  RequestId id;
  auto operator<=>(const Urgency&) const = default;
};

// The key of `request` as it is placed at the time of the call.
inline Urgency UrgencyOf(const Request& request) { return {request.due, request.id}; }

// Requests in ascending order of urgency. `EntryType` has a member `Urgency urgency`, a member `Request* request`, and
// copies of whatever its user needs without reading the request. Does not own the requests.
template <typename EntryType>
class UrgencyList {
 public:
  using Entry = EntryType;

  bool empty() const { return head_ == entries_.size(); }
  std::size_t size() const { return entries_.size() - head_; }
  // The i-th request by urgency. REQUIRES: i < size().
  Request* operator[](std::size_t i) const { return entries_[head_ + i].request; }
  // The entries by urgency. Valid until the list changes.
  std::span<const Entry> entries() const { return std::span(entries_).subspan(head_); }
  // The same, to change other fields. REQUIRES: `urgency` stays as it is.
  std::span<Entry> entries() { return std::span(entries_).subspan(head_); }

  // Inserts the entry; behind entries of equal urgency.
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
  // Removes `request`. REQUIRES: it is in the list, with the urgency that it was inserted with.
  void Erase(const Request* request) {
    const auto found = std::lower_bound(begin(), entries_.end(), Entry{.urgency = UrgencyOf(*request)}, Before);
    CHECK(found != entries_.end() && found->request == request);
    std::move_backward(begin(), found, found + 1);  // usually it is the first entry, and nothing moves
    ++head_;
    if (head_ == entries_.size()) {
      Clear();
    } else if (head_ > 1024 && head_ * 2 > entries_.size()) {
      entries_.erase(entries_.begin(), begin());
      head_ = 0;
    }
  }
  // Removes all entries for which `gone(entry)` is true.
  template <typename Gone>
  void EraseIf(Gone gone) {
    entries_.erase(std::remove_if(begin(), entries_.end(), gone), entries_.end());
  }

 private:
  static bool Before(const Entry& a, const Entry& b) { return a.urgency < b.urgency; }
  typename std::vector<Entry>::iterator begin() { return entries_.begin() + static_cast<std::ptrdiff_t>(head_); }

  std::vector<Entry> entries_;  // the list is [head_, end)
  std::size_t head_ = 0;
};

// An entry of a tenant's queue (fairness.h).
struct WaitingEntry {
  Urgency urgency;
  Request* request = nullptr;
  double cost = 0;  // charge to its tenant for the prompt, as of its insertion
};
using WaitingList = UrgencyList<WaitingEntry>;

}  // namespace loramux
