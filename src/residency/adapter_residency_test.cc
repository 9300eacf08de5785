#include "residency/adapter_residency.h"

namespace loramux::adapter_residency_test {
namespace {

std::shared_ptr<const AdapterVersion> MakeVersion(std::uint32_t generation, std::int64_t pages) {
  auto version = std::make_shared<AdapterVersion>();
  version->generation = AdapterGeneration{generation};
  version->name = "adapter-" + std::to_string(generation);
  version->layout.pages = pages;
  return version;
}

struct World {
  VirtualClock clock;
  std::unique_ptr<PagePool> device = std::move(PagePool::Create("device", 10 * 64, 64)).value();
  std::unique_ptr<PagePool> host = std::move(PagePool::Create("host", 6 * 64, 64)).value();
  ModeledTransfer transfer{&clock, {.latency_ns = 100}, {.latency_ns = 10}};
  ResidencyManager residency{*device, *host, transfer};
  std::vector<ResidencyManager::LoadFailure> failures;

  World() {
    for (std::uint32_t g = 1; g <= 4; ++g) residency.Add(MakeVersion(g, 3));
  }
  void Settle() {
    while (transfer.next_end() >= 0) {
      clock.AdvanceTo(std::max(clock.Now(), transfer.next_end()));
      residency.Poll(clock.Now(), failures);
      residency.CheckIntegrity();
    }
  }
};

TEST(Residency, LoadsThroughTheHostTierAndComesBackFromIt) {
  World w;
  const AdapterGeneration g{1};
  w.residency.BeginLoad(g, true, w.clock.Now());
  EXPECT_EQ(w.residency.Get(g).device, TierState::kLoading);
  w.residency.CheckIntegrity();
  w.Settle();
  EXPECT_EQ(w.residency.Get(g).device, TierState::kResident);
  EXPECT_EQ(w.residency.Get(g).host, TierState::kResident);
  EXPECT_EQ(w.residency.Stats().disk_loads, 1);
  const std::uint64_t first = w.residency.Get(g).load_sequence;

  w.residency.Evict(g, Tier::kDevice);
  w.residency.CheckIntegrity();
  EXPECT_EQ(w.device->free_pages(), 10);
  w.residency.BeginLoad(g, true, w.clock.Now());
  w.Settle();
  EXPECT_EQ(w.residency.Stats().disk_loads, 1);  // the second load came from the host tier
  EXPECT_EQ(w.residency.Stats().disk_to_host_bytes, 3 * 64);
  EXPECT_EQ(w.residency.Stats().host_to_device_bytes, 2 * 3 * 64);
  EXPECT_EQ(w.residency.Stats().disk_to_device_bytes, 0);
  EXPECT_NE(w.residency.Get(g).load_sequence, first);
}

TEST(Residency, StartsInTheHostTier) {
  World w;
  const AdapterGeneration g{1};
  EXPECT_TRUE(w.residency.Add(MakeVersion(1, 3), /*in_host=*/true));
  EXPECT_FALSE(w.residency.Add(MakeVersion(1, 3), /*in_host=*/true));  // it is there
  EXPECT_TRUE(w.residency.Add(MakeVersion(9, 2), /*in_host=*/true));   // unknown so far
  EXPECT_FALSE(w.residency.Add(MakeVersion(2, 3), /*in_host=*/true));  // one page is free
  w.residency.CheckIntegrity();
  EXPECT_EQ(w.host->free_pages(), 1);
  w.residency.BeginLoad(g, true, w.clock.Now());
  w.Settle();
  EXPECT_EQ(w.residency.Stats().disk_loads, 0);
  EXPECT_EQ(w.residency.Stats().host_to_device_bytes, 3 * 64);
}

TEST(Residency, LoadsPastTheHostTier) {
  World w;
  w.residency.BeginLoad(AdapterGeneration{2}, false, w.clock.Now());
  w.Settle();
  EXPECT_EQ(w.residency.Get(AdapterGeneration{2}).device, TierState::kResident);
  EXPECT_EQ(w.residency.Get(AdapterGeneration{2}).host, TierState::kAbsent);
  EXPECT_EQ(w.host->free_pages(), 6);
  EXPECT_EQ(w.residency.Stats().disk_to_device_bytes, 3 * 64);
  EXPECT_EQ(w.residency.Stats().disk_to_host_bytes + w.residency.Stats().host_to_device_bytes, 0);
}

TEST(Residency, CountsWhereARequestFindsItsAdapter) {
  World w;
  const AdapterGeneration g{1};
  const auto ask = [&] {
    w.residency.Acquire(g);
    w.residency.Release(g);
  };
  ask();
  w.residency.BeginLoad(g, true, w.clock.Now());
  ask();  // a loading adapter counts as absent: the request waits
  w.Settle();
  ask();
  ask();
  w.residency.Evict(g, Tier::kDevice);
  ask();
  EXPECT_EQ(w.residency.Stats().asked, 5);
  EXPECT_EQ(w.residency.Stats().asked_on_device, 2);
  EXPECT_EQ(w.residency.Stats().asked_in_host, 1);
}

// An order of adapters is kept up to date by these, without a look at all adapters.
TEST(Residency, ListsTheSlotsThatHaveChanged) {
  World w;
  std::vector<std::uint32_t> changes;
  const auto changed = [&](const auto& act) {
    changes.clear();
    w.residency.TakeChanges(changes);
    changes.clear();
    act();
    w.residency.TakeChanges(changes);
    return changes;
  };
  using Slots = std::vector<std::uint32_t>;
  const AdapterGeneration first{1}, second{2};
  const auto one = static_cast<std::uint32_t>(w.residency.SlotOf(first)),
             two = static_cast<std::uint32_t>(w.residency.SlotOf(second));
  EXPECT_EQ(changed([&] { w.residency.Get(first); }), Slots{});
  EXPECT_EQ(changed([&] { w.residency.Acquire(first); }), Slots{one});
  EXPECT_EQ(changed([&] { w.residency.BeginLoad(second, true, 0); }), Slots{two});
  w.residency.BeginLoad(first, true, 0);
  EXPECT_EQ(changed([&] { w.Settle(); }), (Slots{two, one}));  // each once, though it arrived in two tiers
  EXPECT_LT(w.residency.Get(second).host_arrival, w.residency.Get(first).host_arrival);
  EXPECT_EQ(changed([&] { w.residency.Use(first, 5); }), Slots{one});
  EXPECT_EQ(changed([&] { w.residency.EndUse(first, 6); }), Slots{one});
  EXPECT_EQ(changed([&] { w.residency.Evict(second, Tier::kDevice); }), Slots{two});
  EXPECT_EQ(changed([&] { w.residency.Evict(second, Tier::kHost); }), Slots{two});
  EXPECT_EQ(changed([&] { w.residency.Release(first); }), Slots{one});
  EXPECT_EQ(changed([&] { w.residency.Retire(first); }), Slots{one});
}

TEST(Residency, AFailedLoadGivesEverythingBackAndCanBeTriedAgain) {
  World w;
  for (const TransferKind broken : {TransferKind::kDiskToHost, TransferKind::kHostToDevice}) {
    w.transfer.set_fault([&](const TransferJob& job) {
      return job.kind() == broken ? std::optional<Error>(IoError("disk on fire")) : std::nullopt;
    });
    w.residency.BeginLoad(AdapterGeneration{3}, true, w.clock.Now());
    w.Settle();
    ASSERT_EQ(w.failures.size(), 1u);
    EXPECT_EQ(w.failures[0].error.message, "disk on fire");
    EXPECT_EQ(w.residency.Get(AdapterGeneration{3}).device, TierState::kAbsent);
    EXPECT_EQ(w.device->free_pages(), 10);
    w.failures.clear();
  }
  w.transfer.set_fault(nullptr);
  w.residency.BeginLoad(AdapterGeneration{3}, true, w.clock.Now());
  w.Settle();
  EXPECT_EQ(w.residency.Get(AdapterGeneration{3}).device, TierState::kResident);
}

std::shared_ptr<AdapterVersion> MakeLayered(std::uint32_t generation) {
  auto version = std::const_pointer_cast<AdapterVersion>(MakeVersion(generation, 4));
  version->layout.layer_pages = {1, 2, 3, 4};
  return version;
}

// A slow link from the host tier: 4 milliseconds for an adapter of four layers.
struct SlowWorld : World {
  ModeledTransfer slow{&clock, {.latency_ns = 0}, {.latency_ns = 0, .bytes_per_second = 4 * 64 / 4e-3}};
  ResidencyManager arriving{*device, *host, slow};
  AdapterGeneration g{7};

  // Begins a load and waits until `layers` layers have arrived.
  void Begin(std::int32_t layers) {
    arriving.Add(MakeLayered(g.value));
    arriving.Acquire(g);
    arriving.BeginLoad(g, true, clock.Now());
    while (!arriving.Get(g).arriving()) Next();
    while (arriving.Get(g).progress->arrived() < layers) {
      clock.Advance(kNsPerMs);
      arriving.Poll(clock.Now(), failures);
    }
    arriving.CheckIntegrity();
  }
  void Next() {
    clock.AdvanceTo(std::max(clock.Now(), slow.next_end()));
    arriving.Poll(clock.Now(), failures);
    arriving.CheckIntegrity();
  }
  void Settle() {
    while (slow.next_end() >= 0) Next();
  }
};

TEST(Residency, AnArrivingAdapterCanBePinned) {
  SlowWorld w;
  w.Begin(2);
  EXPECT_EQ(w.arriving.Arriving().size(), 1u);
  w.arriving.Use(w.g, w.clock.Now());
  w.arriving.CheckIntegrity();
  const std::uint64_t sequence = w.arriving.Get(w.g).load_sequence;
  w.Settle();
  EXPECT_EQ(w.arriving.Get(w.g).device, TierState::kResident);
  EXPECT_EQ(w.arriving.Get(w.g).load_sequence, sequence);  // pointers to its data stay valid
  EXPECT_TRUE(w.arriving.Arriving().empty());
  w.arriving.EndUse(w.g, w.clock.Now());
  w.arriving.Release(w.g);
  w.arriving.CheckIntegrity();
}

// A step may be reading the pages, so they stay until the users are gone.
TEST(Residency, AFailedLoadKeepsItsPagesWhilePinned) {
  for (const std::int32_t layers : {0, 1, 2, 3}) {
    SlowWorld w;
    w.slow.set_fault([](const TransferJob& job) {
      return job.kind() == TransferKind::kHostToDevice ? std::optional<Error>(IoError("injected")) : std::nullopt;
    });
    w.Begin(layers);
    w.arriving.Use(w.g, w.clock.Now());
    w.Settle();
    ASSERT_EQ(w.failures.size(), 1u);
    EXPECT_TRUE(w.arriving.Get(w.g).failed);
    EXPECT_EQ(w.device->free_pages(), 6);
    w.arriving.EndUse(w.g, w.clock.Now());
    w.arriving.EndFailedLoads();
    w.arriving.CheckIntegrity();
    EXPECT_EQ(w.arriving.Get(w.g).device, TierState::kAbsent);
    EXPECT_EQ(w.arriving.Stats().loading, 0);
    EXPECT_EQ(w.device->free_pages(), 10);
    w.slow.set_fault(nullptr);
    w.arriving.BeginLoad(w.g, true, w.clock.Now());
    w.Settle();
    EXPECT_EQ(w.arriving.Get(w.g).device, TierState::kResident);
  }
}

TEST(Residency, ALoadThatNobodyWantsAnyMoreIsCancelled) {
  SlowWorld w;
  w.Begin(1);
  w.arriving.Retire(w.g);
  w.arriving.Release(w.g);
  EXPECT_EQ(w.device->free_pages(), 6);  // the transfer keeps the pages until it has ended
  w.arriving.Poll(w.clock.Now(), w.failures);
  EXPECT_FALSE(w.arriving.Knows(w.g));
  EXPECT_EQ(w.arriving.Stats().cancelled_loads, 1);
  EXPECT_EQ(w.arriving.Stats().load_failures, 0);
  EXPECT_TRUE(w.failures.empty());
  w.arriving.CheckIntegrity();
  EXPECT_EQ(w.device->free_pages(), 10);
  EXPECT_EQ(w.host->free_pages(), 6);
}

// A request resolved the name before it was removed, so it gets the adapter, by a second load.
TEST(Residency, ACancelledLoadThatIsWantedAgainBeginsAnew) {
  SlowWorld w;
  w.Begin(1);
  w.arriving.Retire(w.g);
  w.arriving.Release(w.g);
  w.arriving.Add(MakeLayered(w.g.value));
  w.arriving.Acquire(w.g);
  w.arriving.Poll(w.clock.Now(), w.failures);
  EXPECT_EQ(w.arriving.Get(w.g).device, TierState::kAbsent);
  EXPECT_EQ(w.arriving.Get(w.g).host, TierState::kResident);
  w.arriving.BeginLoad(w.g, true, w.clock.Now());
  w.Settle();
  EXPECT_EQ(w.arriving.Get(w.g).device, TierState::kResident);
  w.arriving.Release(w.g);
  EXPECT_FALSE(w.arriving.Knows(w.g));
  w.arriving.CheckIntegrity();
}

TEST(ResidencyDeathTest, APinnedAdapterIsNeverEvicted) {
  World w;
  w.residency.BeginLoad(AdapterGeneration{1}, true, 0);
  w.Settle();
  w.residency.Use(AdapterGeneration{1}, w.clock.Now());
  EXPECT_DEATH(w.residency.Evict(AdapterGeneration{1}, Tier::kDevice), "CHECK failed");
  w.residency.EndUse(AdapterGeneration{1}, w.clock.Now());
  w.residency.Evict(AdapterGeneration{1}, Tier::kDevice);
  w.residency.CheckIntegrity();
}

}  // namespace
}  // namespace loramux::adapter_residency_test
