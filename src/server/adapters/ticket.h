// A bound on operations of one kind at a time.
#pragma once

#include <atomic>

namespace loramux {

// Counts an operation for as long as it lives, from its arrival to its reply. Not ok if `limit` operations are counted
// already.
class Ticket {
 public:
  Ticket(std::atomic<int>& in, int limit) : in_(in), ok_(in.fetch_add(1) < limit) {}
  ~Ticket() { in_.fetch_sub(1); }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  bool ok() const { return ok_; }

 private:
  std::atomic<int>& in_;
  const bool ok_;
};

}  // namespace loramux
