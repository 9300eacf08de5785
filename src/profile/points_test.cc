#include "profile/points.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

namespace loramux::points_test {
namespace {

PointSpace Space() {
  PointSpace space{
      .max_batch_tokens = 256, .max_running = 64, .max_positions = 1000, .kv_pages = 64 * 63, .page_tokens = 16};
  for (std::int64_t i = 0; i < 24; ++i) space.ranks.push_back(8 << (i / 6));
  return space;
}

void ExpectFits(const StepPoint& point, const PointSpace& space) {
  std::int64_t tokens = 0;
  int previous = -1;
  ASSERT_FALSE(point.sequences.empty());
  for (const PointSequence& sequence : point.sequences) {
    EXPECT_GE(sequence.tokens, 1);
    EXPECT_GE(sequence.position, 0);
    EXPECT_LE(sequence.position + sequence.tokens, space.max_positions);
    EXPECT_GE(sequence.adapter, previous);  // those of one adapter are adjacent, the base model first
    EXPECT_LT(sequence.adapter, static_cast<int>(space.ranks.size()));
    previous = sequence.adapter;
    tokens += sequence.tokens;
  }
  EXPECT_LE(tokens, space.max_batch_tokens);
  EXPECT_LE(static_cast<std::int64_t>(point.sequences.size()), space.max_running);
  EXPECT_LE(PagesOf(point, space.page_tokens), space.kv_pages);
}

TEST(PointsTest, EveryStepIsOneThatTheServerCouldTake) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Prng prng(seed);
    PointSpace space = Space();
    if (seed % 2 == 0) space.kv_pages = 63;  // hardly more than one sequence
    if (seed % 3 == 0) space.max_batch_tokens = 4;
    if (seed % 5 == 0) space.ranks.clear();
    for (const StepPoint& point : DrawPoints(space, 200, prng)) ExpectFits(point, space);
  }
}

TEST(PointsTest, TheSameSeedDrawsTheSame) {
  Prng first(7), second(7);
  const auto a = DrawPoints(Space(), 50, first), b = DrawPoints(Space(), 50, second);
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].sequences.size(), b[i].sequences.size());
    for (std::size_t j = 0; j < a[i].sequences.size(); ++j) {
      EXPECT_EQ(a[i].sequences[j].position, b[i].sequences[j].position);
      EXPECT_EQ(a[i].sequences[j].adapter, b[i].sequences[j].adapter);
    }
  }
}

TEST(PointsTest, TheSpaceIsCovered) {
  Prng prng(8);
  int alone = 0, large = 0, long_context = 0, without = 0, many = 0, chunked = 0;
  const auto points = DrawPoints(Space(), 400, prng);
  for (const StepPoint& point : points) {
    std::set<int> adapters;
    std::int64_t tokens = 0;
    bool later_chunk = false;
    for (const PointSequence& sequence : point.sequences) {
      if (sequence.adapter >= 0) adapters.insert(sequence.adapter);
      tokens += sequence.tokens;
      later_chunk = later_chunk || (sequence.tokens > 1 && sequence.position > 0);
    }
    alone += point.sequences.size() == 1;
    large += tokens > 128;
    long_context += point.sequences[0].position > 500;
    without += adapters.empty();
    many += adapters.size() > 12;
    chunked += later_chunk;
  }
  for (const int seen : {alone, large, long_context, without, many, chunked}) EXPECT_GT(seen, 10);
}

}  // namespace
}  // namespace loramux::points_test
