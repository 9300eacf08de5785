#include "schedule/baselines/output_reservation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace loramux::output_reservation_test {
namespace {

std::int64_t PeakOf(std::vector<ReservedTokens> requests) {
  std::ranges::sort(requests, ReservedTokens::LeavesLater);
  return PeakTokens(requests);
}

TEST(OutputReservation, ThePeakIsWhereTheNextRequestEnds) {
  EXPECT_EQ(PeakOf({}), 0);
  EXPECT_EQ(PeakOf({{100, 50}}), 150);
  // Both run for 10 tokens: 120 + 20. Later only the first one runs: 100 + 30.
  EXPECT_EQ(PeakOf({{100, 30}, {20, 10}}), 140);
  EXPECT_EQ(PeakOf({{20, 10}, {100, 30}}), 140);
  // When the short one has ended, its tokens are free again.
  EXPECT_EQ(PeakOf({{100, 300}, {20, 1}}), 400);
  EXPECT_EQ(PeakOf({{10, 0}, {20, 0}}), 30);
}

}  // namespace
}  // namespace loramux::output_reservation_test
