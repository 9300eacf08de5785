#include "server/fleet/snapshot_service.h"

#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/fleet/prefix_memory.h"

namespace loramux::snapshot_service_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(SnapshotQuery, IsParsed) {
  const auto none = ParseSnapshotQuery("");
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->after);
  EXPECT_EQ(none->instance, "");
  EXPECT_EQ(none->wait_ms, kDefaultSnapshotWaitMs);
  const auto all = ParseSnapshotQuery("wait_ms=30000&after=9223372036854775807&new&more=1&instance=a%2Db");
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->after, static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  EXPECT_EQ(all->instance, "a-b");
  EXPECT_EQ(all->wait_ms, 30000);
  EXPECT_EQ(ParseSnapshotQuery("after=0&wait_ms=0")->after, 0u);
}

TEST(SnapshotQuery, ErrorsNameTheParameter) {
  for (const char* wrong : {"after=", "after", "after=-1", "after=x", "after=1.5", "after=9223372036854775808",
                            "after=1%20", "wait_ms=30001", "wait_ms=-1", "wait_ms=1s"}) {
    const auto parsed = ParseSnapshotQuery(wrong);
    ASSERT_FALSE(parsed.ok()) << wrong;
    const std::string name = std::string(wrong).substr(0, std::string(wrong).find('='));
    EXPECT_EQ(parsed.error().param, name);
    EXPECT_THAT(parsed.error().message, HasSubstr("`" + name + "`: expected a whole number from 0 to ")) << wrong;
  }
}

TEST(PrefixMemory, PromptsAreWantedAfterARouterAsked) {
  PrefixMemory memory;
  EXPECT_FALSE(memory.wanted(0));
  memory.Want(5 * kNsPerSecond);
  EXPECT_TRUE(memory.wanted(5 * kNsPerSecond));
  EXPECT_TRUE(memory.wanted(5 * kNsPerSecond + PrefixMemory::kWantedFor - 1));
  EXPECT_FALSE(memory.wanted(5 * kNsPerSecond + PrefixMemory::kWantedFor));
}

TEST(PrefixMemory, KeepsNoMoreThanTheServerHasCached) {
  PrefixMemory memory;
  EXPECT_THAT(*memory.All(1000), IsEmpty());
  memory.Use({7, 8}, 100);
  memory.Use({}, 150);
  memory.Use({3}, 200);
  const auto all = memory.All(1000);
  EXPECT_THAT(*all, ElementsAre(3u, 7u, 8u));
  EXPECT_EQ(memory.All(1000), all);  // unchanged: nothing is copied
  EXPECT_THAT(*memory.All(2 * 64), ElementsAre(3u, 7u));
  EXPECT_THAT(*memory.All(0), IsEmpty());
  memory.Use({9}, 300);
  EXPECT_THAT(*memory.All(1000), ElementsAre(9u));
}

}  // namespace
}  // namespace loramux::snapshot_service_test
