// Which addresses count as one client, and which connection makes room.
#include "http/connection_limits.h"

#include <gmock/gmock.h>

#include "base/prng.h"
#include "http/activity.h"

namespace loramux::connection_limits_test {
namespace {

constexpr TimeNs kAnswering = OpenConnection::kAnswering;

std::string GroupOf(const char* text) { return AddressGroup(boost::asio::ip::make_address(text)); }

TEST(AddressGroup, OneClientIsOneAddressOrOneNetworkOf64Bits) {
  EXPECT_EQ(GroupOf("192.0.2.1"), "192.0.2.1");
  EXPECT_EQ(GroupOf("::ffff:192.0.2.1"), "192.0.2.1");
  EXPECT_EQ(GroupOf("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
  EXPECT_EQ(GroupOf("2001:db8:1:2:ffff::1"), "2001:db8:1:2::/64");
  EXPECT_NE(GroupOf("2001:db8:1:3::1"), GroupOf("2001:db8:1:2::1"));
  EXPECT_EQ(GroupOf("fe80::1%1"), GroupOf("fe80::2%2"));
  EXPECT_NE(GroupOf("192.0.2.1"), GroupOf("192.0.2.2"));
}

TEST(ConnectionToClose, IsTheLongestWaitingOneOfTheClientWithTheMost) {
  const std::vector<OpenConnection> open = {{"a", 1}, {"b", 5}, {"b", 3}, {"b", kAnswering}, {"a", 2}};
  EXPECT_EQ(ConnectionToClose(open, "c"), 2u);
  EXPECT_EQ(ConnectionToClose(open, "a"), 2u);
  EXPECT_EQ(ConnectionToClose(open, "b"), std::nullopt);  // the newcomer has the most itself
}

TEST(ConnectionToClose, SparesClientsWithNoMoreThanTheNewcomer) {
  const std::vector<OpenConnection> equal = {{"a", 1}, {"b", 2}};
  EXPECT_EQ(ConnectionToClose(equal, "a"), std::nullopt);
  EXPECT_EQ(ConnectionToClose(equal, "c"), 0u);  // among equal ones, the one that has waited longest
  EXPECT_EQ(ConnectionToClose({}, "a"), std::nullopt);
}

TEST(ConnectionToClose, LeavesAnswersAlone) {
  const std::vector<OpenConnection> busy = {
      {"a", kAnswering}, {"a", kAnswering}, {"a", kAnswering}, {"b", 4}, {"b", 6}};
  EXPECT_EQ(ConnectionToClose(busy, "c"), 3u);
  EXPECT_EQ(ConnectionToClose(std::span(busy).first(3), "c"), std::nullopt);
}

// With any mix of clients: a newcomer is refused only if no client with more connections than it has one that waits.
TEST(ConnectionToClose, NeverTakesFromTheSmallerOne) {
  Prng prng(11);
  const std::array<std::string_view, 4> names = {"a", "b", "c", "d"};
  for (int round = 0; round < 2000; ++round) {
    std::vector<OpenConnection> open(prng.NextBelow(12));
    std::map<std::string_view, int> counts;
    for (OpenConnection& connection : open) {
      const auto since = static_cast<TimeNs>(prng.NextBelow(5)) - 1;
      connection = {names[prng.NextBelow(names.size())], since};
      ++counts[connection.address];
    }
    const std::string_view newcomer = names[prng.NextBelow(names.size())];
    const auto chosen = ConnectionToClose(open, newcomer);
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i].waiting_since == kAnswering) continue;
      if (!chosen) {
        EXPECT_LE(counts[open[i].address], counts[newcomer]);
      } else {
        EXPECT_LE(counts[open[i].address], counts[open[*chosen].address]);
      }
    }
    if (!chosen) continue;
    EXPECT_NE(open[*chosen].waiting_since, kAnswering);
    EXPECT_GT(counts[open[*chosen].address], counts[newcomer]);
  }
}

TEST(BodyBytes, OneAddressCannotTakeAll) {
  HttpActivity activity(100, 40);
  {
    BodyLease first(activity, "a"), second(activity, "a"), other(activity, "b"), third(activity, "c");
    EXPECT_TRUE(first.Grow(30));
    EXPECT_FALSE(second.Grow(11));
    EXPECT_TRUE(second.Grow(10));
    EXPECT_FALSE(first.Grow(31));
    EXPECT_TRUE(other.Grow(40));
    EXPECT_FALSE(third.Grow(21));  // the bound of all together
    EXPECT_TRUE(third.Grow(20));
    first.Release();
    EXPECT_TRUE(second.Grow(40));
  }
  BodyLease all(activity, "a");
  EXPECT_TRUE(all.Grow(40));  // everything was returned
  HttpActivity unbounded(100);
  BodyLease whole(unbounded, "a");
  EXPECT_TRUE(whole.Grow(100));
}

}  // namespace
}  // namespace loramux::connection_limits_test
