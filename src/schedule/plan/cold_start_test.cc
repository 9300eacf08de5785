#include "schedule/plan/cold_start.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "schedule/plan/planning_world_for_test.h"

namespace loramux::cold_start_test {
namespace {

constexpr auto kAuto = ColdStartPolicy::kAuto;

PerformanceModel SomeModel() {
  PerformanceModel model;
  model.step = 0.01;
  model.per_prefill_token = 1e-4;
  model.assist = {.layers = 10, .cores = 1};
  model.assist.groups[0] = {.per_token_rank = 1e-4, .base_share = 1};
  return model;
}

TEST(ColdStart, ThePolicyDecides) {
  const ColdStartCosts sooner = {.load = 2, .assisted = 2.9, .on_device = 1},
                       later = {.load = 2, .assisted = 3.1, .on_device = 1};
  EXPECT_FALSE(BeginsFromHost(ColdStartPolicy::kWait, sooner));
  EXPECT_TRUE(BeginsFromHost(ColdStartPolicy::kAssist, later));
  EXPECT_TRUE(BeginsFromHost(kAuto, sooner));
  EXPECT_FALSE(BeginsFromHost(kAuto, later));
}

// The longer the load, the more assistance may cost; the longer the prompt and the larger the rank, the more it does.
TEST(ColdStart, WhetherToBeginDependsOnLoadPromptAndRank) {
  const PerformanceModel model = SomeModel();
  const auto begins = [&](double load, std::int64_t tokens, std::int64_t rank) {
    return BeginsFromHost(kAuto, CostsOfColdStart(model, tokens, 0, rank, {load, load}, 0));
  };
  // 100 tokens: 2 ms a layer on the device; with rank 8, a core takes 8 ms a layer beside products of 1.
  EXPECT_TRUE(begins(0.015, 100, 8));  // two layers in 18 ms, and then the device
  EXPECT_FALSE(begins(0.001, 100, 8));
  EXPECT_FALSE(begins(0.015, 400, 8));
  EXPECT_FALSE(begins(0.015, 100, 32));
  EXPECT_TRUE(begins(10, 400, 32));
  const ColdStartCosts costs = CostsOfColdStart(model, 100, 0, 8, {1, 1}, 0);
  EXPECT_NEAR(costs.on_device, 0.02, 1e-12);
  EXPECT_NEAR(costs.assisted, 0.09, 1e-12);
  EXPECT_NEAR(costs.load, 1, 1e-12);
  // Others run: who waits joins after their step at the earliest.
  EXPECT_NEAR(CostsOfColdStart(model, 100, 0, 8, {0, 1e-3}, 30 * kNsPerMs).load, 0.03, 1e-12);
}

TEST(ColdStart, WithoutMeasuredAssistanceItBegins) {
  PerformanceModel model = SomeModel();
  model.assist = {};
  EXPECT_TRUE(BeginsFromHost(kAuto, CostsOfColdStart(model, 1000, 0, 64, {0, 0}, 0)));
}

// A transfer that never ends by itself, and of which the test publishes the layers.
class HeldTransfer final : public PageTransfer {
 public:
  void Submit(TransferJob job) override {
    if (job.kind() == TransferKind::kDiskToHost) done_.push_back(job.id);
    if (job.kind() == TransferKind::kHostToDevice) to_device.push_back(std::move(job));
  }
  std::optional<TransferCompletion> Poll() override {
    if (done_.empty()) return std::nullopt;
    const TransferCompletion done{done_.back(), std::nullopt};
    done_.pop_back();
    return done;
  }
  std::vector<TransferJob> to_device;

 private:
  std::vector<std::uint64_t> done_;
};

class Loads : public testing::Test {
 protected:
  // Begins the load of an adapter of ten pages and four layers; its copy is in the host tier at once.
  AdapterGeneration Load(std::uint32_t number, TimeNs now) {
    auto version = std::make_shared<AdapterVersion>();
    version->generation = AdapterGeneration{number};
    version->layout.pages = 10;
    version->layout.layer_pages = {2, 5, 7, 10};
    residency_.Add(std::move(version));
    residency_.BeginLoad(AdapterGeneration{number}, /*via_host=*/true, now);
    Poll(now);
    return AdapterGeneration{number};
  }
  void Poll(TimeNs now) {
    std::vector<ResidencyManager::LoadFailure> failures;
    residency_.Poll(now, failures);
  }

  std::unique_ptr<PagePool> device_ = std::move(PagePool::Create("device", 64 * 64, 64)).value(),
                            host_ = std::move(PagePool::Create("host", 64 * 64, 64)).value();
  HeldTransfer transfer_;
  ResidencyManager residency_{*device_, *host_, transfer_};
  ReloadCostEstimator reloads_;
};

TEST_F(Loads, ComeOneAfterTheOther) {
  reloads_.Expect(ReloadFrom::kHost, {.page_ns = 1e6, .latency_ns = 2e6});  // 12 ms each
  const TimeNs begun = kNsPerSecond;
  const AdapterGeneration first = Load(1, begun), second = Load(2, begun);
  const TimeNs now = begun + 4 * kNsPerMs;
  EXPECT_NEAR(ExpectArrival(residency_, reloads_, first, now).ends, 0.008, 1e-12);
  EXPECT_NEAR(ExpectArrival(residency_, reloads_, second, now).begins, 0.008, 1e-12);
  EXPECT_NEAR(ExpectArrival(residency_, reloads_, second, now).ends, 0.020, 1e-12);
  // One that begins now comes after both.
  auto version = std::make_shared<AdapterVersion>();
  version->generation = AdapterGeneration{3};
  version->layout.pages = 5;
  residency_.Add(std::move(version));
  EXPECT_NEAR(ExpectArrival(residency_, reloads_, AdapterGeneration{3}, now).begins, 0.020, 1e-12);
  EXPECT_NEAR(ExpectArrival(residency_, reloads_, AdapterGeneration{3}, now).ends, 0.027, 1e-12);
  EXPECT_EQ(ExpectArrival(residency_, reloads_, first, begun + kNsPerSecond).ends, 0);  // overdue
}

TEST_F(Loads, LayersThatHaveArrivedGiveThePace) {
  reloads_.Expect(ReloadFrom::kHost, {.page_ns = 1e6, .latency_ns = 2e6});
  const AdapterGeneration first = Load(1, 0), second = Load(2, 0);
  transfer_.to_device[0].progress->Publish(1);
  const TimeNs now = 8 * kNsPerMs;
  Poll(now);
  EXPECT_NEAR(ExpectArrival(residency_, reloads_, first, now).ends, 0.024, 1e-12);  // three layers at 8 ms
  EXPECT_NEAR(ExpectArrival(residency_, reloads_, first, now).begins, -0.008, 1e-12);
  EXPECT_NEAR(ExpectArrival(residency_, reloads_, second, now).ends, 0.036, 1e-12);
}

TEST_F(Loads, OfAnUnknownLinkAreExpectedAtOnce) {
  const AdapterGeneration adapter = Load(1, 0);
  EXPECT_EQ(ExpectArrival(residency_, reloads_, adapter, 0).ends, 0);
}

}  // namespace
}  // namespace loramux::cold_start_test
