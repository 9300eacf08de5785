#include <memory>
#include <set>

#include "base/clock.h"
#include "base/ids.h"
#include "base/prng.h"
#include "base/result.h"

namespace loramux {
namespace {

Result<int> Half(int x) {
  if (x % 2 != 0) return InvalidArgument("expected an even number, found " + std::to_string(x), "x");
  return x / 2;
}

Result<int> Quarter(int x) {
  ASSIGN_OR_RETURN(const int half, Half(x));
  ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

TEST(Result, CarriesValueOrError) {
  EXPECT_EQ(*Quarter(8), 2);
  const Result<int> failed = Quarter(6);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().message, "expected an even number, found 3");
  EXPECT_EQ(failed.error().param, "x");
}

TEST(Result, HoldsMoveOnlyTypes) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(7);
  std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 7);
}

TEST(ResultDeathTest, ValueOfAnErrorIsOurBug) {
  const Result<int> failed = Half(1);
  EXPECT_DEATH((void)failed.value(), "found 1");
}

TEST(CheckDeathTest, PrintsBothValues) { EXPECT_DEATH(CHECK_EQ(1 + 1, 3), "2 vs 3"); }

TEST(Prng, SameSeedSameSequenceAndUniformEnough) {
  Prng a(1), b(1), c(2);
  EXPECT_EQ(a.Next(), b.Next());
  EXPECT_NE(a.Next(), c.Next());
  double sum = 0;
  for (int i = 0; i < 10000; ++i) sum += a.NextDouble();
  EXPECT_NEAR(sum / 10000, 0.5, 0.02);
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(a.NextBelow(10));
  EXPECT_EQ(seen.size(), 10u);
}

TEST(VirtualClock, MovesOnlyWhenTold) {
  VirtualClock clock(5);
  EXPECT_EQ(clock.Now(), 5);
  clock.Advance(kNsPerMs);
  EXPECT_EQ(clock.Now(), 5 + kNsPerMs);
  EXPECT_DEATH(clock.AdvanceTo(0), "CHECK failed");
}

TEST(OsClock, DoesNotGoBack) {
  const OsClock clock;
  const TimeNs before = clock.Now();
  EXPECT_LE(before, clock.Now());
  EXPECT_GT(clock.UnixSeconds(), 1'600'000'000);
}

}  // namespace
}  // namespace loramux
