#include "server/fleet/snapshot_maker.h"

#include <memory>
#include <string>

#include <gtest/gtest.h>

namespace loramux::snapshot_maker_test {
namespace {

ModelConfig Model() {
  ModelConfig model;
  model.vocab_size = 10;
  return model;
}

// A registry, and an engine's snapshot of adapters in it.
struct World {
  std::shared_ptr<const AdapterVersion> Publish(const std::string& name, const std::string& digest, int rank,
                                                std::int64_t pages) {
    auto version = std::make_shared<AdapterVersion>();
    version->name = name;
    version->file.digest = digest;
    version->layout.pages = pages;
    version->layout.max_rank = rank;
    return *registry.Commit(std::move(version), /*replace=*/true);
  }
  AdapterSnapshot& Add(const AdapterVersion& version, TierState device, TierState host) {
    AdapterSnapshot& adapter = engine.adapters.emplace_back();
    adapter.version = VersionSummary(version);
    adapter.device = device;
    adapter.host = host;
    return adapter;
  }
  ServerSnapshot Make() const { return MakeServerSnapshot(engine, registry); }

  AdapterRegistry registry{Model(), {"base", "alias"}, {}};
  EngineSnapshot engine;
};

TEST(SnapshotMaker, CountsAreTheEngines) {
  World world;
  EngineSnapshot& engine = world.engine;
  engine.stats.running = 3;
  engine.stats.waiting = 4;
  engine.stats.max_running = 64;
  engine.stats.history_pages = 20;
  engine.stats.idle_adapter_pages = 7;
  engine.stats.device.capacity_pages = 100;
  engine.stats.device.free_pages = 11;
  engine.stats.device.page_bytes = 4096;
  engine.stats.device.used_pages[static_cast<std::size_t>(PageCategory::kKv)] = 50;
  engine.stats.host.used_pages[static_cast<std::size_t>(PageCategory::kKv)] = 5;
  engine.page_tokens = 16;
  engine.max_batch_tokens = 512;
  engine.waiting_tokens = 900;
  engine.running_prompt_tokens = 80;
  engine.running_context = 700;
  engine.lane_waiting = {1, 3};
  ServerSnapshot expected;
  expected.base_model = "base";
  expected.running = 3;
  expected.waiting = 4;
  expected.max_running = 64;
  expected.history_pages = 20;
  expected.idle_adapter_pages = 7;
  expected.device_pages = 100;
  expected.free_pages = 11;
  expected.page_bytes = 4096;
  expected.page_tokens = 16;
  expected.max_batch_tokens = 512;
  expected.waiting_prompt_tokens = 900;
  expected.running_prompt_tokens = 80;
  expected.running_context = 700;
  expected.lane_waiting = {1, 3};
  EXPECT_EQ(world.Make(), expected);
  EXPECT_EQ(CachedTokens(engine), 55 * 16);
}

TEST(SnapshotMaker, AdaptersAreListedByTheirBestPlace) {
  World world;
  world.engine.stats.device.page_bytes = 1000;
  const auto none = TierState::kAbsent, here = TierState::kResident, loading = TierState::kLoading;
  const auto device = world.Publish("z-device", "d1", 8, 3), arriving = world.Publish("arriving", "d2", 16, 4);
  const auto host = world.Publish("host", "d3", 32, 5), wanted = world.Publish("wanted", "d4", 64, 6);
  const auto idle = world.Publish("idle on disk", "d5", 64, 6);
  world.Add(*device, here, here).running = 2;
  world.Add(*arriving, loading, here).waiting = 1;
  world.Add(*host, none, here);
  world.Add(*wanted, none, none).waiting = 9;
  world.Add(*idle, none, none);
  const std::vector<SnapshotAdapter> expected = {
      {"arriving", "d2", AdapterPlace::kArriving, 16, 4000, 0, 1},
      {"host", "d3", AdapterPlace::kHost, 32, 5000, 0, 0},
      {"wanted", "d4", AdapterPlace::kDisk, 64, 6000, 0, 9},
      {"z-device", "d1", AdapterPlace::kDevice, 8, 3000, 2, 0},
  };
  EXPECT_EQ(world.Make().adapters, expected);
}

// A reloaded adapter has two versions for a while: what new requests get counts, wherever the old one still is.
TEST(SnapshotMaker, TheVersionThatTheNameStandsForCounts) {
  for (const bool new_first : {false, true}) {
    World world;
    const auto before = world.Publish("sql", "old", 8, 3);
    const auto after = world.Publish("sql", "new", 16, 4);
    const auto add_new = [&] { world.Add(*after, TierState::kAbsent, TierState::kResident).waiting = 1; };
    if (new_first) add_new();
    AdapterSnapshot& old = world.Add(*before, TierState::kResident, TierState::kResident);
    old.running = 2;
    old.waiting = 3;
    if (!new_first) add_new();
    const ServerSnapshot snapshot = world.Make();
    ASSERT_EQ(snapshot.adapters.size(), 1u);
    EXPECT_EQ(snapshot.adapters[0], (SnapshotAdapter{"sql", "new", AdapterPlace::kHost, 16, 0, 2, 4}));
  }
}

}  // namespace
}  // namespace loramux::snapshot_maker_test
