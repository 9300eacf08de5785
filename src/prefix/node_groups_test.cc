#include "prefix/node_groups.h"

#include <deque>
#include <map>

#include "base/prng.h"

namespace loramux::node_groups_test {
namespace {

std::vector<std::uint32_t> Group(const NodeGroups& groups, std::uint32_t key) {
  std::vector<std::uint32_t> nodes;
  for (std::uint32_t at = groups.First(key); at != NodeGroups::kNone; at = groups.Next(at)) nodes.push_back(at);
  return nodes;
}

TEST(NodeGroups, TheYoungestComesFirst) {
  NodeGroups groups;
  for (const std::uint32_t node : {7, 3, 5}) groups.Add(node, 99);
  groups.Add(4, 100);
  EXPECT_EQ(Group(groups, 99), (std::vector<std::uint32_t>{5, 3, 7}));
  groups.Remove(3);
  groups.Remove(5);
  EXPECT_EQ(Group(groups, 99), (std::vector<std::uint32_t>{7}));
  EXPECT_EQ(groups.KeyOf(7), 99u);
  groups.Remove(7);
  EXPECT_EQ(groups.First(99), NodeGroups::kNone);
  EXPECT_EQ(Group(groups, 100), (std::vector<std::uint32_t>{4}));
}

// Few keys with the same home slot and many groups, so that the test covers searches, holes and growth.
TEST(NodeGroups, AgreesWithATrivialModelUnderRandomUse) {
  for (std::uint64_t seed = 1; seed <= 40 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    NodeGroups groups;
    std::map<std::uint32_t, std::deque<std::uint32_t>> model;
    std::map<std::uint32_t, std::uint32_t> key_of;
    const std::uint64_t keys = 1 + prng.NextBelow(300), nodes = 1 + prng.NextBelow(400);
    for (int i = 0; i < 4000; ++i) {
      const auto node = static_cast<std::uint32_t>(prng.NextBelow(nodes));
      if (const auto found = key_of.find(node); found != key_of.end()) {
        groups.Remove(node);
        std::erase(model[found->second], node);
        key_of.erase(found);
      } else {
        const auto key = static_cast<std::uint32_t>(prng.NextBelow(keys)) * (prng.NextBelow(2) == 0 ? 1u : 1u << 20);
        groups.Add(node, key);
        model[key].push_front(node);
        key_of[node] = key;
      }
      if (i % 64 != 0) continue;
      groups.CheckIntegrity();
      ASSERT_EQ(groups.size(), static_cast<std::int64_t>(key_of.size()));
      for (const auto& [key, expected] : model) {
        ASSERT_EQ(Group(groups, key), std::vector<std::uint32_t>(expected.begin(), expected.end()));
      }
    }
  }
}

}  // namespace
}  // namespace loramux::node_groups_test
