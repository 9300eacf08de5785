#include "collective/collectives.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace loramux {

Collectives::Collectives(std::int64_t rank, std::int64_t ranks, TimeNs wait_limit)
    : rank_(rank), ranks_(ranks), wait_limit_(wait_limit) {
  CHECK(rank >= 0 && rank < ranks);
}

Error Collectives::Lost(std::int64_t rank) const {
  return Unavailable(fmt::format("rank {} of {} is lost: rank {} waited {:.1f} s for it", rank, ranks_, rank_,
                                 static_cast<double>(wait_limit_) / 1e9));
}

std::optional<Error> Collectives::failure() const {
  if (!failed()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return error_;
}

void Collectives::Fail(Error error) {
  const std::lock_guard lock(mutex_);
  if (error_) return;
  error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
}

void Collectives::End() {
  const std::lock_guard lock(mutex_);
  if (error_) return;
  error_ = Unavailable("the group's work is done");
  ended_.store(true, std::memory_order_release);
  failed_.store(true, std::memory_order_release);
}

Status Collectives::Check(Status status) {
  if (!status.ok()) Fail(status.error());
  return status;
}

Status Collectives::Step(std::span<const Sent> sent, std::span<const Received> received) {
  if (auto error = failure()) return *std::move(error);
  const TimeNs begin = clock_.Now();
  Status status = Check(Exchange(sent, received));
  std::int64_t bytes = 0;
  for (const Received& piece : received) bytes += static_cast<std::int64_t>(piece.bytes.size());
  step_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  step_time_.fetch_add(clock_.Now() - begin, std::memory_order_relaxed);
  return status;
}

Status Collectives::AllGather(std::span<const float> mine, std::span<const std::int64_t> sizes, std::span<float> all) {
  CHECK_EQ(static_cast<std::int64_t>(sizes.size()), ranks_);
  CHECK_EQ(static_cast<std::int64_t>(mine.size()), sizes[static_cast<std::size_t>(rank_)]);
  std::vector<Sent> sent;
  std::vector<Received> received;
  std::size_t first = 0;
  for (std::int64_t rank = 0; rank < ranks_; ++rank) {
    const auto size = static_cast<std::size_t>(sizes[static_cast<std::size_t>(rank)]);
    const std::span<float> place = all.subspan(first, size);
    first += size;
    if (rank == rank_) {
      std::ranges::copy(mine, place.begin());
      continue;
    }
    if (!mine.empty()) sent.push_back({rank, std::as_bytes(mine)});
    if (size > 0) received.push_back({rank, std::as_writable_bytes(place)});
  }
  return Step(sent, received);
}

Status Collectives::Gather(std::span<const float> mine, std::span<const std::int64_t> sizes, std::span<float> all) {
  CHECK_EQ(static_cast<std::int64_t>(mine.size()), sizes[static_cast<std::size_t>(rank_)]);
  if (rank_ > 0) {
    const Sent sent{0, std::as_bytes(mine)};
    return Step({&sent, mine.empty() ? std::size_t{0} : 1}, {});
  }
  std::ranges::copy(mine, all.begin());
  std::vector<Received> received;
  std::size_t first = mine.size();
  for (std::int64_t rank = 1; rank < ranks_; ++rank) {
    const auto size = static_cast<std::size_t>(sizes[static_cast<std::size_t>(rank)]);
    if (size > 0) received.push_back({rank, std::as_writable_bytes(all.subspan(first, size))});
    first += size;
  }
  return Step({}, received);
}

Status Collectives::AllReduce(std::span<float> values) {
  const std::vector<std::int64_t> sizes(static_cast<std::size_t>(ranks_), static_cast<std::int64_t>(values.size()));
  gathered_.resize(values.size() * sizes.size());
  RETURN_IF_ERROR(AllGather(values, sizes, gathered_));
  for (std::size_t i = 0; i < values.size(); ++i) {
    float sum = gathered_[i];
    for (std::size_t at = i + values.size(); at < gathered_.size(); at += values.size()) sum += gathered_[at];
    values[i] = sum;
  }
  return Ok{};
}

Status Collectives::Broadcast(std::int64_t root, std::span<std::byte> bytes) {
  std::vector<Sent> sent;
  std::vector<Received> received;
  if (rank_ == root) {
    for (std::int64_t rank = 0; rank < ranks_; ++rank) {
      if (rank != root) sent.push_back({rank, bytes});
    }
  } else {
    received.push_back({root, bytes});
  }
  return Step(sent, received);
}

Status Collectives::Send(GroupChannel channel, std::int64_t to, std::span<const std::byte> message) {
  if (auto error = failure()) return *std::move(error);
  return Check(SendMessage(channel, to, message));
}

Result<std::optional<std::vector<std::byte>>> Collectives::Receive(GroupChannel channel, std::int64_t from,
                                                                   TimeNs limit) {
  if (auto error = failure()) return *std::move(error);
  auto message = ReceiveMessage(channel, from, limit);
  if (!message.ok()) Fail(message.error());
  return message;
}

}  // namespace loramux
