#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "schedule/scheduler_world_for_test.h"

namespace loramux::batch_time_test {
namespace {

using World = SchedulerWorld;

// Adapters of one page, with these ranks, as generations 1, 2, ...
void AddAdapters(World& w, const std::vector<std::int32_t>& ranks) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    auto version = std::make_shared<AdapterVersion>();
    version->generation = AdapterGeneration{static_cast<std::uint32_t>(i + 1)};
    version->layout.pages = 1;
    version->layout.max_rank = ranks[i];
    w.residency.Add(std::move(version));
  }
}

SystemSpec BoundedBy(PerformanceModel model, TimeNs most) {
  SystemSpec options;
  options.max_decode_step = most;
  options.costs = std::make_shared<const PerformanceModel>(std::move(model));
  return options;
}

// The largest batch while a request for each adapter runs to its end.
std::size_t LargestBatch(const SystemSpec& options, const std::vector<std::int32_t>& ranks) {
  World w(400, options);
  AddAdapters(w, ranks);
  for (std::uint32_t g = 1; g <= ranks.size(); ++g) w.Add(2, g, 30);
  std::size_t largest = 0;
  for (int i = 0; i < 2000 && !(w.scheduler.running().empty() && w.scheduler.waiting().empty()); ++i) {
    w.Step();
    largest = std::max(largest, w.scheduler.running().size());
  }
  EXPECT_TRUE(w.scheduler.waiting().empty());
  return largest;
}

// At true ranks a step of 1 ms takes 10 us more for each rank, so 2 ms are 100 ranks: 12 adapters of rank 8, or three
// of rank 32.
TEST(BatchTime, AtTrueRanksItBoundsTheirSum) {
  const SystemSpec options = BoundedBy({.step = 1e-3, .per_rank = 1e-5}, 2 * kNsPerMs);
  EXPECT_EQ(LargestBatch(options, std::vector<std::int32_t>(16, 8)), 12u);
  EXPECT_EQ(LargestBatch(options, std::vector<std::int32_t>(16, 32)), 3u);
  EXPECT_EQ(LargestBatch({}, std::vector<std::int32_t>(16, 32)), 16u);
}

// Padded, each request costs the largest rank of the batch: three of rank 32, whatever the others have.
TEST(BatchTime, PaddedItBoundsTheLargestRankTimesTheRequests) {
  const SystemSpec options =
      BoundedBy({.step = 1e-3, .per_padded_rank = 1e-5, .shape = LoraCostShape::kBgmv}, 2 * kNsPerMs);
  EXPECT_EQ(LargestBatch(options, std::vector<std::int32_t>(16, 8)), 12u);
  EXPECT_EQ(LargestBatch(options, {32, 8, 8, 8, 8}), 3u);
}

// Requests for one adapter share its ranks, and those for the base model have none: only their sequences count.
TEST(BatchTime, AnAdapterCountsOnce) {
  World w(400, BoundedBy({.step = 1e-3, .per_decode_sequence = 1e-6, .per_rank = 1e-5}, 2 * kNsPerMs));
  AddAdapters(w, {90, 90});
  for (int i = 0; i < 20; ++i) w.Add(2, 1, 30);
  for (int i = 0; i < 20; ++i) w.Add(2, 0, 30);
  Request* other = w.Add(2, 2, 30);
  for (int i = 0; i < 10; ++i) w.Step();
  EXPECT_EQ(w.scheduler.running().size(), 40u);
  EXPECT_EQ(other->state, RequestState::kWaiting);
  w.RunToEnd();
}

// A request that alone takes longer than the bound still runs, alone.
TEST(BatchTime, NobodyIsTooLargeForAnEmptyBatch) {
  const SystemSpec options = BoundedBy({.step = 1e-3, .per_rank = 1e-5}, 2 * kNsPerMs);
  EXPECT_EQ(LargestBatch(options, {128, 128, 8}), 1u);
}

// Small ranks may pass a large one where presets let requests pass, but not once it has waited for the age bound.
TEST(BatchTime, SmallRanksPassALargeOneForAWhile) {
  for (const bool skips : {true, false}) {
    SystemSpec options = BoundedBy({.step = 1e-3, .per_rank = 1e-5}, 2 * kNsPerMs);
    options.skip_beyond_distinct = skips;
    options.age_bound = 20 * 1000;  // 40 steps
    World w(400, options);
    AddAdapters(w, {64, 64, 8});
    w.Add(2, 1, 20);
    for (int i = 0; i < 4; ++i) w.Step();
    Request* large = w.Add(2, 2, 4);
    Request* small = w.Add(2, 3, 60);
    for (int i = 0; i < 8; ++i) w.Step();
    EXPECT_EQ(large->state, RequestState::kWaiting);
    EXPECT_EQ(small->state, skips ? RequestState::kRunning : RequestState::kWaiting);
    for (int i = 0; i < 400 && large->state != RequestState::kFinished; ++i) {
      w.Add(2, 1, 20);  // a stream that holds the adapter of rank 64
      w.Step();
    }
    EXPECT_EQ(large->state, RequestState::kFinished);
  }
}

}  // namespace
}  // namespace loramux::batch_time_test
