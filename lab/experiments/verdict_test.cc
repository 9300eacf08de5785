#include "lab/experiments/verdict.h"

#include <gtest/gtest.h>

#include "lab/experiments/number_text.h"

namespace loramux::verdict_test {
namespace {

TEST(Verdicts, CompareLogarithmsOfFactors) {
  EXPECT_EQ(CompareEffects(-0.30, -0.22), Verdict::kAgrees);    // log 0.78 is 0.70 of log 0.70
  EXPECT_EQ(CompareEffects(-0.30, -0.20), Verdict::kWeaker);    // 0.63
  EXPECT_EQ(CompareEffects(-0.30, -0.37), Verdict::kAgrees);    // 1.30
  EXPECT_EQ(CompareEffects(-0.30, -0.39), Verdict::kStronger);  // 1.39
  // As relative changes these were within a third: a tenth of the time and a fiftieth.
  EXPECT_EQ(CompareEffects(-0.90, -0.98), Verdict::kStronger);
  EXPECT_EQ(CompareFactors(2, 0.5), Verdict::kOpposite);
  EXPECT_EQ(CompareFactors(3, 0), Verdict::kOpposite);
}

TEST(Verdicts, KnowADeadBand) {
  EXPECT_EQ(CompareEffects(0, 0.04), Verdict::kAgrees);
  EXPECT_EQ(CompareEffects(0.03, -0.04), Verdict::kAgrees);
  EXPECT_EQ(CompareEffects(0, -0.06), Verdict::kStronger);
  EXPECT_EQ(CompareEffects(-0.30, 0.01), Verdict::kNoEffect);
  EXPECT_EQ(CompareEffects(-0.30, -0.04), Verdict::kNoEffect);
  EXPECT_EQ(CompareEffects(-0.30, 0.049), Verdict::kNoEffect);
  EXPECT_EQ(CompareEffects(-0.30, 0.051), Verdict::kOpposite);
  EXPECT_EQ(CompareEffects(-0.06, -0.045), Verdict::kAgrees);  // within the band, but as large as the reported one
  EXPECT_EQ(VerdictOfClaim(true), Verdict::kAgrees);
  EXPECT_EQ(VerdictOfClaim(false), Verdict::kOpposite);
}

TEST(Rows, OfNothingAreNotExercised) {
  EXPECT_EQ(ChangeRow("x", "w", 0, 0).verdict, Verdict::kNotExercised);
  EXPECT_EQ(FactorRow("x", "w", 1.5, 1).verdict, Verdict::kNotExercised);
  EXPECT_EQ(ChangeRow("x", "w", 0, 0.001).verdict, Verdict::kAgrees);
  const ComparisonRow none = WithEvents(AtMostRow("x", "w", 5, 0, {" %", 1}), 0, "squashes");
  EXPECT_EQ(none.verdict, Verdict::kNotExercised);
  EXPECT_EQ(none.ours, "0.0 %; 0 squashes");
  EXPECT_EQ(WithEvents(AtMostRow("x", "w", 5, 0.2, {" %", 1}), 7, "squashes").verdict, Verdict::kAgrees);
  EXPECT_EQ(WithEvents(ClaimRow("x", "w", "yes", "yes", true), 0, "squashes").verdict, Verdict::kNotExercised);
}

TEST(Rows, HaveValuesAndLimits) {
  const ComparisonRow value = ValueRow("x", "w", 8.6, 10.47, {" RPS", 1});
  EXPECT_EQ(value.reported, "8.6 RPS");
  EXPECT_EQ(value.ours, "10.5 RPS");
  EXPECT_EQ(value.verdict, Verdict::kAgrees);
  EXPECT_EQ(ValueRow("x", "w", 10, 50, {}).verdict, Verdict::kStronger);
  EXPECT_EQ(ValueRow("x", "w", 10, 6, {}).verdict, Verdict::kWeaker);
  EXPECT_EQ(AtMostRow("x", "w", 150, 151, {" ms"}).verdict, Verdict::kOpposite);
  EXPECT_EQ(AtMostRow("x", "w", 150, 150, {" ms"}).reported, "at most 150 ms");
  EXPECT_EQ(AtLeastRow("x", "w", 1, 1, {"x", 2}).verdict, Verdict::kAgrees);
}

// The only row of the seeds whose changes are given.
ComparisonRow OfSeeds(double reported, const std::vector<double>& changes) {
  std::vector<std::vector<ComparisonRow>> seeds;
  for (const double change : changes) seeds.push_back({ChangeRow("x", "w", reported, change)});
  return CombineSeeds(seeds).front();
}

TEST(Seeds, GiveMedianAndSpread) {
  const ComparisonRow row = OfSeeds(-0.25, {-0.2, -0.3, -0.25, -0.5, -0.21});
  EXPECT_EQ(row.ours, "-25.0 % (-50.0 to -20.0)");
  EXPECT_EQ(row.verdict, Verdict::kAgrees);
  EXPECT_EQ(row.numbers.size(), 5u);
}

TEST(Seeds, DecideOnlyTogether) {
  EXPECT_EQ(OfSeeds(-0.25, {-0.2, -0.3, -0.25, 0.1, -0.21}).verdict, Verdict::kUndecided);
  EXPECT_EQ(OfSeeds(-0.25, {-0.2, -0.3, -0.25, 0.01, -0.21}).verdict, Verdict::kUndecided);  // the order changes
  EXPECT_EQ(OfSeeds(-0.25, {-0.2, -0.3, -0.25, -0.01, -0.21}).verdict, Verdict::kAgrees);
  EXPECT_EQ(OfSeeds(0, {-0.01, 0.02, 0.03, 0, -0.06}).verdict, Verdict::kAgrees);
  EXPECT_EQ(OfSeeds(0, {-0.01, 0.02, 0.07, 0, -0.06}).verdict, Verdict::kUndecided);
  EXPECT_EQ(OfSeeds(-0.1, {0, 0, 0, 0, 0}).verdict, Verdict::kNotExercised);
}

TEST(Seeds, CombineClaimsAndTheirNumbers) {
  const auto seeds = [](std::vector<bool> holds) {
    std::vector<std::vector<ComparisonRow>> rows;
    for (std::size_t i = 0; i < holds.size(); ++i) {
      const std::string ours = std::to_string(140 + 10 * i) + " ms";
      rows.push_back({ClaimRow("x", "w", "under 150 ms", ours, holds[i]), ClaimRow("y", "once", "yes", "yes", true)});
    }
    rows.back().pop_back();
    return CombineSeeds(rows);
  };
  EXPECT_EQ(seeds({true, true, true}).front().verdict, Verdict::kAgrees);
  EXPECT_EQ(seeds({true, true, true}).front().ours, "150 ms (140 to 160)");
  EXPECT_EQ(seeds({false, false}).front().verdict, Verdict::kOpposite);
  const auto mixed = seeds({true, false, true});
  EXPECT_EQ(mixed.front().verdict, Verdict::kUndecided);
  EXPECT_EQ(mixed.front().ours, "150 ms (140 to 160); holds for 2 of 3 seeds");
  EXPECT_EQ(mixed[1].ours, "yes; 2 of 3 seeds have this row");
}

TEST(Seeds, AddTheirEvents) {
  const auto row = [](double share, std::int64_t squashes) {
    return std::vector{WithEvents(AtMostRow("x", "w", 5, share, {" %", 1}), squashes, "squashes")};
  };
  const ComparisonRow some = CombineSeeds(std::vector{row(0, 0), row(0.2, 7), row(0.3, 8)}).front();
  EXPECT_EQ(some.ours, "0.2 % (0.0 to 0.3); 15 squashes");
  EXPECT_EQ(some.verdict, Verdict::kAgrees);
  EXPECT_EQ(CombineSeeds(std::vector{row(0, 0), row(0, 0)}).front().verdict, Verdict::kNotExercised);
}

TEST(NumberTexts, HaveMedians) {
  EXPECT_EQ(MediansOfTexts({"5.5, 5.6 s", "5.7, 5.0 s", "5.6, 5.2 s"}), "5.6, 5.2 s (medians)");
  EXPECT_EQ(MediansOfTexts({"P99 3.0 ms", "P99 1.0 ms", "P99 2.5 ms"}), "P99 2.5 ms (1.0 to 3.0)");
  EXPECT_EQ(MediansOfTexts({"-3.5 %", "+1.5 %"}), "-1.0 % (-3.5 to +1.5)");
  EXPECT_EQ(MediansOfTexts({"best a", "best b"}), "best a (first seed)");
  EXPECT_EQ(MediansOfTexts({"1.694e+04 ms", "2.0e+04 ms", "1.8e+04 ms"}), "1.8e+04 ms (1.694e+04 to 2e+04)");
  const NumberText cut = CutAtNumbers("Llama-7B: at -3.5 to 1.e");
  EXPECT_EQ(cut.numbers, (std::vector<std::string>{"7", "-3.5", "1"}));
}

}  // namespace
}  // namespace loramux::verdict_test
