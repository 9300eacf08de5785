#include "collective/collectives.h"

#include <cstring>
#include <functional>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collective/thread_group.h"

namespace loramux::collectives_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr TimeNs kLong = 60 * kNsPerSecond;

// Runs `rank` once for each end, on a thread of its own.
void OnAll(std::vector<std::unique_ptr<Collectives>>& ends, const std::function<void(Collectives&)>& rank) {
  std::vector<std::thread> threads;
  for (auto& end : ends) threads.emplace_back([&rank, &end] { rank(*end); });
  for (std::thread& thread : threads) thread.join();
}

TEST(Collectives, GatherPiecesOfDifferentSizesInTheOrderOfRanks) {
  auto ends = MakeThreadGroup(3, kLong);
  const std::vector<std::int64_t> sizes = {2, 0, 1};
  OnAll(ends, [&](Collectives& end) {
    const std::vector<std::vector<float>> pieces = {{1, 2}, {}, {3}};
    const std::vector<float>& mine = pieces[static_cast<std::size_t>(end.rank())];
    std::vector<float> all(3), at_root(end.rank() == 0 ? 3 : 0);
    ASSERT_TRUE(end.AllGather(mine, sizes, all).ok());
    EXPECT_THAT(all, ElementsAre(1, 2, 3));
    ASSERT_TRUE(end.Gather(mine, sizes, at_root).ok());
    if (end.rank() == 0) EXPECT_THAT(at_root, ElementsAre(1, 2, 3));
  });
  EXPECT_EQ(ends[1]->step_bytes(), 3 * 4);
  EXPECT_EQ(ends[0]->step_bytes(), 2 * 1 * 4);
}

// Sums that round: only the order of ranks gives this one.
TEST(Collectives, AllReduceAddsInTheOrderOfRanks) {
  auto ends = MakeThreadGroup(4, kLong);
  const float values[] = {1e8f, 3.0f, -1e8f, 1.0f};
  float expected = values[0];
  for (int i = 1; i < 4; ++i) expected += values[i];
  for (int round = 0; round < 20; ++round) {
    OnAll(ends, [&](Collectives& end) {
      std::vector<float> sum = {values[end.rank()], static_cast<float>(end.rank())};
      ASSERT_TRUE(end.AllReduce(sum).ok());
      EXPECT_EQ(std::memcmp(sum.data(), &expected, sizeof(float)), 0);
      EXPECT_EQ(sum[1], 6);
    });
  }
}

TEST(Collectives, BroadcastAndMessagesKeepTheirOrder) {
  auto ends = MakeThreadGroup(2, kLong);
  OnAll(ends, [&](Collectives& end) {
    std::vector<std::byte> bytes(3, std::byte{static_cast<unsigned char>(end.rank() == 1 ? 7 : 0)});
    ASSERT_TRUE(end.Broadcast(1, bytes).ok());
    EXPECT_EQ(bytes[2], std::byte{7});
    for (unsigned char i = 0; i < 10; ++i) {
      if (end.rank() == 0) {
        ASSERT_TRUE(end.Send(GroupChannel::kOrders, 1, std::vector<std::byte>(i, std::byte{i})).ok());
      } else {
        const auto message = end.Receive(GroupChannel::kOrders, 0, kLong);
        ASSERT_TRUE(message.ok() && *message);
        EXPECT_EQ((*message)->size(), i);
      }
    }
  });
}

TEST(Collectives, AWaitIsBoundedAndNamesTheRank) {
  auto ends = MakeThreadGroup(3, kNsPerSecond);
  const std::vector<std::int64_t> sizes = {1, 1, 1};
  ends[2].reset();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    std::vector<float> all(3);
    std::thread other([&] {
      std::vector<float> of_other(3);
      EXPECT_FALSE(ends[1 - rank]->AllGather(std::vector<float>{1}, sizes, of_other).ok());
    });
    const Status status = ends[rank]->AllGather(std::vector<float>{1}, sizes, all);
    other.join();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(status.error().message, HasSubstr("rank 2 of 3 is lost"));
  }
  // Later calls end at once, with the same error.
  EXPECT_THAT(ends[0]->Send(GroupChannel::kOrders, 1, {}).error().message, HasSubstr("rank 2 of 3 is lost"));
  EXPECT_TRUE(ends[0]->failure().has_value());
}

TEST(Collectives, AFailureEndsAWait) {
  auto ends = MakeThreadGroup(2, kLong);
  std::thread fails([&] { ends[0]->Fail(Unavailable("rank 1 said that it ends")); });
  const auto message = ends[0]->Receive(GroupChannel::kReports, 1, kLong);
  fails.join();
  ASSERT_FALSE(message.ok());
  EXPECT_EQ(message.error().message, "rank 1 said that it ends");
  const auto none = ends[1]->Receive(GroupChannel::kOrders, 0, kNsPerMs);
  EXPECT_TRUE(none.ok() && !none->has_value());
}

}  // namespace
}  // namespace loramux::collectives_test
