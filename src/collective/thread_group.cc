#include "collective/thread_group.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace loramux {
namespace {

// The messages of all ranks that were not received yet.
struct MessageBoard {
  using Key = std::tuple<GroupChannel, std::int64_t, std::int64_t>;  // from, to
  std::mutex mutex;
  std::condition_variable arrived;
  std::map<Key, std::deque<std::vector<std::byte>>> messages;
};

class ThreadRank final : public Collectives {
 public:
  ThreadRank(std::int64_t rank, std::int64_t ranks, TimeNs wait_limit, std::shared_ptr<MessageBoard> board)
      : Collectives(rank, ranks, wait_limit), board_(std::move(board)) {}

 private:
  Status Exchange(std::span<const Sent> sent, std::span<const Received> received) override {
    for (const Sent& piece : sent) Post(GroupChannel::kStep, piece.to, piece.bytes);
    for (const Received& piece : received) {
      ASSIGN_OR_RETURN(const auto message, ReceiveMessage(GroupChannel::kStep, piece.from, wait_limit()));
      if (!message) return Lost(piece.from);
      CHECK_EQ(message->size(), piece.bytes.size());
      std::memcpy(piece.bytes.data(), message->data(), message->size());
    }
    return Ok{};
  }

  Status SendMessage(GroupChannel channel, std::int64_t to, std::span<const std::byte> message) override {
    Post(channel, to, message);
    return Ok{};
  }

  // A failure of this rank ends the wait too, soon after.
  Result<std::optional<std::vector<std::byte>>> ReceiveMessage(GroupChannel channel, std::int64_t from,
                                                               TimeNs limit) override {
    constexpr TimeNs kLook = 20 * kNsPerMs;
    std::unique_lock lock(board_->mutex);
    auto& queue = board_->messages[{channel, from, rank()}];
    for (TimeNs waited = 0; queue.empty(); waited += kLook) {
      if (auto error = failure()) return *std::move(error);
      if (waited >= limit) return std::optional<std::vector<std::byte>>();
      board_->arrived.wait_for(lock, std::chrono::nanoseconds(std::min(kLook, limit - waited)),
                               [&] { return !queue.empty(); });
    }
    std::optional<std::vector<std::byte>> message = std::move(queue.front());
    queue.pop_front();
    return message;
  }

  void Post(GroupChannel channel, std::int64_t to, std::span<const std::byte> bytes) {
    {
      const std::lock_guard lock(board_->mutex);
      board_->messages[{channel, rank(), to}].emplace_back(bytes.begin(), bytes.end());
    }
    board_->arrived.notify_all();
  }

  const std::shared_ptr<MessageBoard> board_;
};

}  // namespace

std::vector<std::unique_ptr<Collectives>> MakeThreadGroup(std::int64_t ranks, TimeNs wait_limit) {
  auto board = std::make_shared<MessageBoard>();
  std::vector<std::unique_ptr<Collectives>> ends;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    ends.push_back(std::make_unique<ThreadRank>(rank, ranks, wait_limit, board));
  }
  return ends;
}

}  // namespace loramux
