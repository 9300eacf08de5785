#include <memory>
#include <set>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/prng.h"
#include "base/result.h"

namespace loramux::base_test {
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

TEST(ParseBytes, AcceptsWhatPeopleWrite) {
  EXPECT_EQ(*ParseBytes("4096", "x"), 4096);
  EXPECT_EQ(*ParseBytes("2GiB", "x"), std::int64_t{2} << 30);
  EXPECT_EQ(*ParseBytes("512 mib", "x"), 512 << 20);
  EXPECT_EQ(*ParseBytes("1.5G", "x"), std::int64_t{3} << 29);
  EXPECT_EQ(*ParseBytes("64KB", "x"), 64000);
  for (const char* bad : {"", "GiB", "-1", "1e400", "5 apples", "nan", "inf", "9999999T", "1GiBx"}) {
    const auto parsed = ParseBytes(bad, "--device-memory");
    EXPECT_FALSE(parsed.ok()) << bad;
  }
  EXPECT_NE(ParseBytes("x", "--device-memory").error().message.find("--device-memory"), std::string::npos);
}

TEST(FormatBytes, PicksTheUnit) {
  EXPECT_EQ(FormatBytes(500), "500 B");
  EXPECT_EQ(FormatBytes(12 << 10), "12 KiB");
  EXPECT_EQ(FormatBytes(std::int64_t{3} << 29), "1.50 GiB");
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
}  // namespace loramux::base_test
