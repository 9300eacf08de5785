#include "residency/adapter_branches.h"

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "residency/transfer.h"

namespace loramux::adapter_branches_test {
namespace {

using Slots = std::vector<std::uint32_t>;

struct World {
  VirtualClock clock;
  std::unique_ptr<PagePool> device = std::move(PagePool::Create("device", 32 * 64, 64)).value();
  ModeledTransfer transfer{&clock, {.latency_ns = 10}, {.latency_ns = 10}};
  std::unique_ptr<PagePool> host = PagePool::WithoutPages(64);
  ResidencyManager residency{*device, *host, transfer};
  DependencyTree tree{1, device.get()};
  AdapterBranches branches{tree, residency};

  const AdapterResidency& Add(std::uint32_t generation, const std::string& digest) {
    auto version = std::make_shared<AdapterVersion>();
    version->generation = AdapterGeneration{generation};
    version->layout.pages = 1;
    version->file.digest = digest;
    residency.Add(std::move(version));
    branches.Know(AdapterGeneration{generation});
    return residency.Get(AdapterGeneration{generation});
  }
  void Load(std::uint32_t generation) {
    residency.BeginLoad(AdapterGeneration{generation}, /*via_host=*/false, clock.Now());
    std::vector<ResidencyManager::LoadFailure> failures;
    clock.Advance(1000);
    residency.Poll(clock.Now(), failures);
    CHECK(residency.Get(AdapterGeneration{generation}).device == TierState::kResident);
  }
  // One page of history.
  void Remember(BranchId branch, TokenId token) {
    PageHandle page;
    CHECK(device->Allocate(PageCategory::kKv, std::span(&page, 1)));
    tree.EndUse(tree.Insert(tree.branches().Top(branch), std::span(&token, 1), page, 0).node, 0);
  }
  Slots SlotsOf(BranchId branch) const {
    const auto slots = branches.SlotsOf(branch);
    return {slots.begin(), slots.end()};
  }
};

TEST(AdapterBranches, EqualContentIsOneBranch) {
  World w;
  const AdapterResidency &a = w.Add(1, "x"), &b = w.Add(2, "y"), &c = w.Add(3, "x");
  EXPECT_EQ(w.branches.Of(a.slot), w.branches.Of(c.slot));
  EXPECT_NE(w.branches.Of(a.slot), w.branches.Of(b.slot));
  EXPECT_TRUE(w.branches.IsShared(a.slot));
  EXPECT_FALSE(w.branches.IsShared(b.slot));
  EXPECT_EQ(w.SlotsOf(w.branches.Of(a.slot)), (Slots{a.slot, c.slot}));
  EXPECT_EQ(w.branches.Know(kBaseModel), w.branches.base());
  EXPECT_TRUE(w.SlotsOf(w.branches.base()).empty());
  w.branches.CheckIntegrity(/*depends=*/true);
}

TEST(AdapterBranches, AdaptersWithoutDigestShareNothing) {
  World w;
  const AdapterResidency &a = w.Add(1, ""), &b = w.Add(2, "");
  EXPECT_NE(w.branches.Of(a.slot), w.branches.Of(b.slot));
  EXPECT_NE(w.branches.Of(a.slot), w.branches.base());
}

// The history stays while another adapter of the content is on the device, or if it does not depend on adapters.
TEST(AdapterBranches, ForgettingTheLastUsableAdapterFreesItsHistory) {
  for (const bool depends : {true, false}) {
    for (const bool other_is_there : {true, false}) {
      World w;
      const AdapterResidency &a = w.Add(1, "x"), &b = w.Add(2, "x");
      if (other_is_there) w.Load(2);
      const BranchId branch = w.branches.Of(a.slot);
      w.Remember(branch, 7);
      w.branches.Forget(a, depends);
      EXPECT_FALSE(w.branches.Has(a.slot));
      EXPECT_EQ(w.SlotsOf(branch), Slots{b.slot});
      EXPECT_EQ(w.tree.tiers().pages(branch), other_is_there || !depends ? 1 : 0);
      w.branches.Forget(a, depends);  // already forgotten
      w.branches.Forget(b, depends);
      EXPECT_EQ(w.tree.tiers().pages(), 0);  // the branch is gone
      w.branches.CheckIntegrity(depends);
    }
  }
}

TEST(AdapterBranches, HistoryIsUsableWithAnAdapterOnTheDevice) {
  World w;
  const AdapterResidency &a = w.Add(1, "x"), &b = w.Add(2, "y");
  w.Remember(w.branches.Of(a.slot), 1);
  w.Remember(w.branches.Of(b.slot), 2);
  w.Remember(w.branches.Of(b.slot), 3);
  w.Remember(w.branches.base(), 4);
  EXPECT_EQ(w.branches.UnusablePages(), 3);
  EXPECT_DEATH(w.branches.CheckIntegrity(/*depends=*/true), "IsUsable");
  w.branches.CheckIntegrity(/*depends=*/false);
  w.Load(2);
  EXPECT_EQ(w.branches.UnusablePages(), 1);
  std::vector<bool> usable;
  w.branches.MarkUsable(/*depends=*/true, usable);
  EXPECT_TRUE(usable[w.branches.base().value] && usable[w.branches.Of(b.slot).value]);
  EXPECT_FALSE(usable[w.branches.Of(a.slot).value]);
  w.branches.MarkUsable(/*depends=*/false, usable);
  EXPECT_TRUE(usable[w.branches.Of(a.slot).value]);
}

// No history depends on them, whatever content they share.
TEST(AdapterBranches, InATreeThatKeepsNothingNoAdapterHasABranch) {
  World w;
  const AdapterResidency &a = w.Add(1, "x"), &b = w.Add(2, "x");
  DependencyTree nothing(1);
  AdapterBranches none(nothing, w.residency);
  for (const AdapterResidency* adapter : {&a, &b}) {
    EXPECT_EQ(none.Know(adapter->version->generation), none.base());
    EXPECT_FALSE(none.Has(adapter->slot));
    EXPECT_FALSE(none.HasMoves(adapter->slot) || none.IsShared(adapter->slot));
  }
  EXPECT_TRUE(none.SlotsOf(none.base()).empty());
  EXPECT_EQ(none.UnusablePages(), 0);
  none.Forget(a, /*depends=*/true);
  none.CheckIntegrity(true);
}

}  // namespace
}  // namespace loramux::adapter_branches_test
