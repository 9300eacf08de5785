#include "cache/host_victims.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/prng.h"

namespace loramux::host_victims_test {
namespace {

TEST(HostVictims, TheLeastWorthGoesFirstAndOfEqualWorthTheFirstThatCame) {
  HostVictims victims;
  EXPECT_FALSE(victims.Nth(0).has_value());
  victims.Set(5, 30, 1);
  victims.Set(2, 10, 3);
  victims.Set(7, 10, 2);
  EXPECT_EQ(victims.Nth(0)->slot, 7u);
  EXPECT_EQ(victims.Nth(1)->slot, 2u);
  EXPECT_EQ(victims.Nth(2)->slot, 5u);
  EXPECT_FALSE(victims.Nth(3).has_value());
  victims.Set(5, 5, 1);  // worth may fall
  EXPECT_EQ(victims.Nth(0)->slot, 5u);
  victims.Remove(5);
  victims.Remove(5);
  victims.Remove(1000);
  EXPECT_EQ(victims.Nth(0)->slot, 7u);
  EXPECT_EQ(victims.size(), 2u);
  victims.CheckIntegrity();
}

// The search that the order replaces: of the copies that are not skipped, the first with the least worth.
TEST(HostVictims, AgreesWithASearchOfAllCopies) {
  std::size_t found = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    HostVictims victims;
    std::map<std::uint64_t, HostVictims::Copy> copies;  // by arrival
    std::map<std::uint32_t, std::uint64_t> arrival_of;  // by slot
    std::uint64_t arrivals = 0;
    for (int i = 0; i < 3000 && !HasFailure(); ++i) {
      const auto slot = static_cast<std::uint32_t>(prng.NextBelow(60));
      const auto worth = static_cast<TimeNs>(prng.NextBelow(12));  // many are equal
      if (prng.NextBelow(3) > 0) {
        if (!arrival_of.contains(slot)) arrival_of[slot] = ++arrivals;
        copies[arrival_of[slot]] = {worth, arrival_of[slot], slot};
        victims.Set(slot, worth, arrival_of[slot]);
      } else if (arrival_of.contains(slot)) {
        copies.erase(arrival_of[slot]);
        arrival_of.erase(slot);
        victims.Remove(slot);
      }
      if (i % 3 != 0) continue;
      victims.CheckIntegrity();
      std::vector<bool> skipped(60);
      for (std::size_t n = 0, taken = 0; taken < 1 + i % 7; ++n) {  // several victims of one plan
        const HostVictims::Copy* best = nullptr;
        for (const auto& [arrival, copy] : copies) {
          if (!skipped[copy.slot] && (best == nullptr || copy.worth < best->worth)) best = &copy;
        }
        const auto nth = victims.Nth(n);
        ASSERT_EQ(nth.has_value(), best != nullptr);
        if (best == nullptr) break;
        ASSERT_EQ(nth->slot, best->slot);
        skipped[best->slot] = true;
        ++taken;
        ++found;
      }
    }
  }
  EXPECT_GT(found, 50'000u);
}

}  // namespace
}  // namespace loramux::host_victims_test
