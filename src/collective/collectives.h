// What the ranks of a group exchange: a group computes one model together, each rank a part of it. Every wait is
// bounded, and an error names the rank that was waited for.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace loramux {

// Streams of messages between two ranks that do not wait for each other. Within one, messages arrive in order, and one
// thread of each rank at a time sends or receives.
enum class GroupChannel : std::uint8_t {
  kStep,     // what the parts of a step exchange
  kOrders,   // from rank 0 to the others: what they are to do
  kReports,  // from the others to rank 0: what they have done
};

// One rank's end of the group. Thread-safe, but for the rule of GroupChannel. The first error of a wait is the group's
// end: whatever is called later returns it at once, so that a step ends soon.
class Collectives {
 public:
  virtual ~Collectives() = default;
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  std::int64_t rank() const { return rank_; }
  std::int64_t ranks() const { return ranks_; }
  // The longest time that an exchange waits for another rank.
  TimeNs wait_limit() const { return wait_limit_; }

  // Each rank gives `mine`, sizes[rank] elements, and gets those of all, rank after rank. All ranks call it alike.
  Status AllGather(std::span<const float> mine, std::span<const std::int64_t> sizes, std::span<float> all);
  // The same for rank 0 alone; `all` is empty elsewhere.
  Status Gather(std::span<const float> mine, std::span<const std::int64_t> sizes, std::span<float> all);
  // The sum over the ranks, added in their order whatever arrives first, so that all get the same bits each time.
  Status AllReduce(std::span<float> values);
  // Rank `root` gives the bytes, the others get them.
  Status Broadcast(std::int64_t root, std::span<std::byte> bytes);

  // Sends a message of any size. Does not wait for the receiver to ask for it.
  Status Send(GroupChannel channel, std::int64_t to, std::span<const std::byte> message);
  // Waits up to `limit` for the next message of a rank, of any size; nullopt: none came. Error also: the group ended.
  Result<std::optional<std::vector<std::byte>>> Receive(GroupChannel channel, std::int64_t from, TimeNs limit);

  // Why the group has ended; nullopt: it has not.
  std::optional<Error> failure() const;
  // Ends the group: every wait of this rank, now or later, returns the error. Only the first one counts.
  void Fail(Error error);
  // Ends the group because its work is done: as Fail, unless it has failed.
  void End();

  // Ends all processes of the group at once, this one too, with this exit status; lost and stopped ones as well.
  // Returns where ranks are no processes.
  virtual void Abort(int /*exit_status*/) {}

  // Bytes that this rank has received in exchanges of steps, and the time that these took.
  std::int64_t step_bytes() const { return step_bytes_.load(std::memory_order_relaxed); }
  TimeNs step_time() const { return step_time_.load(std::memory_order_relaxed); }

 protected:
  // REQUIRES: 0 <= rank < ranks.
  Collectives(std::int64_t rank, std::int64_t ranks, TimeNs wait_limit);

  // Bytes for, or from, one other rank.
  struct Sent {
    std::int64_t to = 0;
    std::span<const std::byte> bytes;
  };
  struct Received {
    std::int64_t from = 0;
    std::span<std::byte> bytes;
  };
  // Sends and receives pieces whose sizes both sides know, on kStep. Returns when all are through, a wait lasted
  // `wait_limit`, or the group failed. Error: names the rank that was waited for.
  virtual Status Exchange(std::span<const Sent> sent, std::span<const Received> received) = 0;
  virtual Status SendMessage(GroupChannel channel, std::int64_t to, std::span<const std::byte> message) = 0;
  virtual Result<std::optional<std::vector<std::byte>>> ReceiveMessage(GroupChannel channel, std::int64_t from,
                                                                       TimeNs limit) = 0;
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  bool ended() const { return ended_.load(std::memory_order_acquire); }  // by End
  // The error of a rank that was waited for in vain.
  Error Lost(std::int64_t rank) const;

 private:
  Status Step(std::span<const Sent> sent, std::span<const Received> received);
  Status Check(Status status);

  const std::int64_t rank_, ranks_;
  const TimeNs wait_limit_;
  OsClock clock_;
  std::atomic<bool> failed_{false}, ended_{false};
  mutable std::mutex mutex_;  // guards error_
  std::optional<Error> error_;
  std::atomic<std::int64_t> step_bytes_{0};
  std::atomic<TimeNs> step_time_{0};
  std::vector<float> gathered_;  // values of all ranks in AllReduce
};

}  // namespace loramux
