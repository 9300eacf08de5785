#include "worth/reload_costs.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "worth/eviction_policy.h"

namespace loramux::reload_costs_test {
namespace {

constexpr ReloadFrom kHost = ReloadFrom::kHost, kDisk = ReloadFrom::kDisk, kComputation = ReloadFrom::kComputation;

// Loads of 1 to 20 pages on a link with this latency and time per page, with 10 % noise.
void Load(ReloadCostEstimator& costs, ReloadFrom from, double latency_ns, double page_ns, int count,
          std::uint64_t seed = 1) {
  Prng prng(seed);
  for (int i = 0; i < count; ++i) {
    const auto pages = 1 + static_cast<std::int64_t>(prng.NextBelow(20));
    const double noise = 0.9 + 0.2 * static_cast<double>(prng.NextBelow(1000)) / 1000;
    costs.SawLoad(from, pages, static_cast<TimeNs>(noise * (latency_ns + page_ns * static_cast<double>(pages))));
  }
}

TEST(ReloadCosts, BeginAsTheConstants) {
  const ReloadCosts start, none = ReloadCostEstimator().Costs();
  for (const ReloadFrom from : {kHost, kDisk, kComputation}) {
    EXPECT_EQ(none.Page(from), start.Page(from));
    EXPECT_EQ(none.Latency(from), start.Latency(from));
  }
  ReloadCostEstimator few;
  Load(few, kDisk, 0, 5e6, ReloadCostEstimator::kFewestSamples - 1);
  Load(few, kHost, 0, 5e6, ReloadCostEstimator::kFewestSamples - 1);
  EXPECT_EQ(few.Costs().Page(kHost), start.Page(kHost));
}

// A profile's expectation counts until there are enough samples, and no longer.
TEST(ReloadCosts, ExpectationsGiveWayToWhatIsSeen) {
  ReloadCostEstimator costs;
  costs.Expect(kDisk, {.page_ns = 4e6, .latency_ns = 8e6});
  costs.Expect(kHost, {.page_ns = 1e6});
  costs.Expect(kComputation, {});  // no time: not an expectation
  EXPECT_EQ(costs.Of(kDisk).samples, 0);
  EXPECT_DOUBLE_EQ(costs.Costs().Page(kDisk), 1);
  EXPECT_DOUBLE_EQ(costs.Costs().Latency(kDisk), 2);
  EXPECT_DOUBLE_EQ(costs.Costs().Page(kHost), 0.25);
  EXPECT_EQ(costs.Costs().Page(kComputation), ReloadCosts().Page(kComputation));
  Load(costs, kHost, 0, 8e6, 300);
  EXPECT_NEAR(costs.Costs().Page(kHost), 2, 0.2);
  EXPECT_DOUBLE_EQ(costs.Costs().Page(kDisk), 1);
}

TEST(ReloadCosts, FollowALinksLatencyAndBandwidth) {
  ReloadCostEstimator costs;
  Load(costs, kDisk, 6e6, 2e6, 300);
  Load(costs, kHost, 1e5, 5e5, 300);
  for (int i = 0; i < 300; ++i) costs.SawPrefill(12.5, static_cast<TimeNs>(12.5 * 8e6));
  EXPECT_NEAR(costs.Of(kDisk).page_ns, 2e6, 0.3e6);
  EXPECT_NEAR(costs.Of(kDisk).latency_ns, 6e6, 3e6);
  EXPECT_NEAR(costs.Of(kHost).page_ns, 5e5, 1e5);
  EXPECT_NEAR(costs.Of(kComputation).page_ns, 8e6, 1);
  EXPECT_DOUBLE_EQ(costs.Costs().Page(kDisk), 1);
  EXPECT_NEAR(costs.Costs().Page(kHost), 0.25, 0.08);
  EXPECT_NEAR(costs.Costs().Page(kComputation), 4, 0.6);
}

TEST(ReloadCosts, LoadsOfOneSizeShareTheirTimeAsAtTheStart) {
  ReloadCostEstimator costs;
  for (int i = 0; i < 40; ++i) costs.SawLoad(kDisk, 4, 12'000'000);
  EXPECT_NEAR(costs.Of(kDisk).page_ns, 1e6, 1);
  EXPECT_NEAR(costs.Costs().Latency(kDisk), 8, 1e-6);
}

// Costs that were not measured keep their defaults relative to the first measured one.
TEST(ReloadCosts, TheUnitIsThatOfWhatWasMeasured) {
  ReloadCostEstimator costs;
  for (int i = 0; i < 20; ++i) costs.SawPrefill(10, 10'000'000);
  EXPECT_DOUBLE_EQ(costs.Costs().computed_page, 10);
  Load(costs, kHost, 0, 2e6, 100);  // a page takes twice as long as its prefill
  const ReloadCosts both = costs.Costs();
  EXPECT_DOUBLE_EQ(both.host.page, 0.1);
  EXPECT_NEAR(both.computed_page, 0.05, 0.01);
  EXPECT_DOUBLE_EQ(both.disk.page, 1);
}

TEST(ReloadCosts, AnOutlierChangesLittleAndAChangeIsFollowed) {
  ReloadCostEstimator costs;
  Load(costs, kDisk, 6e6, 2e6, 300);
  const double before = costs.Of(kDisk).latency_ns + 10 * costs.Of(kDisk).page_ns;
  costs.SawLoad(kDisk, 10, 3600 * kNsPerSecond);
  const double after = costs.Of(kDisk).latency_ns + 10 * costs.Of(kDisk).page_ns;
  EXPECT_LT(after, before * 1.15);
  costs.SawLoad(kDisk, 10, 0);
  costs.SawLoad(kDisk, 10, -5);
  Load(costs, kDisk, 60e6, 20e6, 300, 2);
  EXPECT_NEAR(costs.Of(kDisk).page_ns, 20e6, 4e6);
  ReloadCostEstimator prefill;
  for (int i = 0; i < 50; ++i) prefill.SawPrefill(4, 4'000'000);
  prefill.SawPrefill(4, 3600 * kNsPerSecond);
  EXPECT_LT(prefill.Of(kComputation).page_ns, 1.1e6);
}

// An adapter in the host tier costs what its request loses by assistance, where that is less than the load.
TEST(ReloadCosts, AssistanceBoundsWhatAnAdapterCosts) {
  ReloadCosts costs = {.host = {.page = 0.5, .latency = 4}, .disk = {.page = 1, .latency = 8}};
  EXPECT_DOUBLE_EQ(costs.OfAdapter(kHost, 10), 9);
  EXPECT_DOUBLE_EQ(costs.OfAdapter(kDisk, 10), 18);
  costs.assisted = ReloadCosts::Load{.page = 0.2, .latency = 1};
  EXPECT_DOUBLE_EQ(costs.OfAdapter(kHost, 10), 3);
  EXPECT_DOUBLE_EQ(costs.OfAdapter(kDisk, 10), 18);
  costs.assisted = ReloadCosts::Load{.page = 2, .latency = 1};  // slower than the load
  EXPECT_DOUBLE_EQ(costs.OfAdapter(kHost, 10), 9);
  costs.assisted = ReloadCosts::Load{.page = 0, .latency = 0};  // free, but the copy takes place
  EXPECT_DOUBLE_EQ(costs.OfAdapter(kHost, 10), 9 * ReloadCosts::kLeastShare);
  const TimeNs now = 100 * kNsPerSecond;
  const EvictionCandidate adapter{
      .pages = 4, .last_use = now, .uses = 1, .reload = kHost, .frequency = 1, .frequency_at = now};
  for (const char* name : {"loramux", "gdsf"}) {
    const auto policy = std::move(MakeEvictionPolicy(name)).value();
    EvictionContext context{.now = now};
    const double loaded = policy->Score(adapter, context);
    context.costs.assisted = ReloadCosts::Load{.page = 0, .latency = 0};
    EXPECT_LT(policy->Score(adapter, context), loaded / 2) << name;
    context.costs.assisted = ReloadCosts::Load{.page = 1e6, .latency = 0};
    EXPECT_DOUBLE_EQ(policy->Score(adapter, context), loaded) << name;
  }
}

// Content with a high measured reload cost stays. Here KV pages are computed faster than an adapter is copied.
TEST(ReloadCosts, PoliciesWeighWhatWasMeasured) {
  const auto loramux = std::move(MakeEvictionPolicy("loramux")).value(),
             gdsf = std::move(MakeEvictionPolicy("gdsf")).value();
  const TimeNs now = 100 * kNsPerSecond;
  const EvictionCandidate adapter{
      .pages = 4, .last_use = now, .uses = 1, .reload = kHost, .frequency = 1, .frequency_at = now};
  EvictionCandidate page = adapter;
  page.pages = 1;
  page.reload = kComputation;
  page.kind = CandidateKind::kKeysAndValues;
  EvictionContext context{.now = now};
  EXPECT_GT(loramux->Score(page, context), loramux->Score(adapter, context));
  EXPECT_GT(gdsf->Score(page, context), gdsf->Score(adapter, context));
  context.costs = {.host = {.page = 0.5, .latency = 4}, .disk = {.page = 1, .latency = 8}, .computed_page = 0.1};
  EXPECT_LT(loramux->Score(page, context), loramux->Score(adapter, context));
  const double ratio = gdsf->Score(page, context) / gdsf->Score(adapter, context);
  EXPECT_NEAR(ratio, (8 + 0.1) / ((8 + 4 * 0.5) / 4), 1e-9);
}

}  // namespace
}  // namespace loramux::reload_costs_test
