#include "adapter/residency.h"

namespace loramux {
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
  ResidencyManager residency{device.get(), host.get(), &transfer};
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

  w.residency.EvictFromDevice(g);
  w.residency.CheckIntegrity();
  EXPECT_EQ(w.device->free_pages(), 10);
  w.residency.BeginLoad(g, true, w.clock.Now());
  w.Settle();
  EXPECT_EQ(w.residency.Stats().disk_loads, 1);   // from the host tier this time
  EXPECT_EQ(w.residency.Stats().disk_to_host_bytes, 3 * 64);
  EXPECT_EQ(w.residency.Stats().host_to_device_bytes, 2 * 3 * 64);
  EXPECT_EQ(w.residency.Stats().disk_to_device_bytes, 0);
  EXPECT_NE(w.residency.Get(g).load_sequence, first);
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
  ask();   // on its way counts as absent: the request waits
  w.Settle();
  ask();
  ask();
  w.residency.EvictFromDevice(g);
  ask();
  EXPECT_EQ(w.residency.Stats().asked, 5);
  EXPECT_EQ(w.residency.Stats().asked_on_device, 2);
  EXPECT_EQ(w.residency.Stats().asked_in_host, 1);
}

TEST(Residency, AFailedLoadGivesEverythingBackAndCanBeTriedAgain) {
  World w;
  for (const TransferKind broken : {TransferKind::kDiskToHost, TransferKind::kHostToDevice}) {
    w.transfer.set_fault([&](const TransferJob& job) {
      return job.kind == broken ? std::optional<Error>(IoError("disk on fire")) : std::nullopt;
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

TEST(ResidencyDeathTest, APinnedAdapterIsNeverEvicted) {
  World w;
  w.residency.BeginLoad(AdapterGeneration{1}, true, 0);
  w.Settle();
  w.residency.Pin(AdapterGeneration{1}, w.clock.Now());
  EXPECT_DEATH(w.residency.EvictFromDevice(AdapterGeneration{1}), "CHECK failed");
  w.residency.Unpin(AdapterGeneration{1}, w.clock.Now());
  w.residency.EvictFromDevice(AdapterGeneration{1});
  w.residency.CheckIntegrity();
}

}  // namespace
}  // namespace loramux
