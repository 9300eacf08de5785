#include "profile/points.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace loramux {
namespace {

// Draws uniformly from [low, high]. REQUIRES: low <= high.
std::int64_t Uniform(std::int64_t low, std::int64_t high, Prng& prng) {
  return low + static_cast<std::int64_t>(prng.NextBelow(static_cast<std::uint64_t>(high - low + 1)));
}

// Draws uniformly over the orders of magnitude of [low, high]. REQUIRES: 1 <= low <= high.
std::int64_t LogUniform(std::int64_t low, std::int64_t high, Prng& prng) {
  const double from = std::log(static_cast<double>(low)), to = std::log(static_cast<double>(high + 1));
  return std::clamp(static_cast<std::int64_t>(std::exp(from + (to - from) * prng.NextDouble())), low, high);
}

template <typename T>
void Shuffle(std::vector<T>& values, Prng& prng) {
  for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[prng.NextBelow(i)]);
}

// Draws `count` different adapters. Half of the time they are neighbours by rank, so that the number of adapters and
// the sum of their ranks vary independently.
std::vector<int> DrawAdapters(const PointSpace& space, std::int64_t count, Prng& prng) {
  std::vector<int> all(space.ranks.size());
  std::iota(all.begin(), all.end(), 0);
  if (prng.NextDouble() < 0.5) {
    std::rotate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(prng.NextBelow(all.size())), all.end());
  } else {
    Shuffle(all, prng);
  }
  all.resize(static_cast<std::size_t>(count));
  return all;
}

void SortByAdapter(StepPoint& point) {
  std::stable_sort(point.sequences.begin(), point.sequences.end(),
                   [](const PointSequence& a, const PointSequence& b) { return a.adapter < b.adapter; });
}

// A quarter of the points has no adapters. In half of the other points every sequence has one.
void AssignAdapters(const PointSpace& space, StepPoint& point, Prng& prng) {
  if (space.ranks.empty() || prng.NextDouble() < 0.25) return;
  const auto sequences = static_cast<std::int64_t>(point.sequences.size());
  const double share = prng.NextDouble() < 0.5 ? 1.0 : prng.NextDouble();
  const std::int64_t users =
      std::clamp<std::int64_t>(std::llround(share * static_cast<double>(sequences)), 1, sequences);
  const std::int64_t distinct =
      LogUniform(1, std::min<std::int64_t>(users, static_cast<std::int64_t>(space.ranks.size())), prng);
  const std::vector<int> adapters = DrawAdapters(space, distinct, prng);
  Shuffle(point.sequences, prng);
  for (std::int64_t i = 0; i < users; ++i) {
    const std::int64_t at = i < distinct ? i : Uniform(0, distinct - 1, prng);
    point.sequences[static_cast<std::size_t>(i)].adapter = adapters[static_cast<std::size_t>(at)];
  }
}

void AddDecodes(const PointSpace& space, std::int64_t count, StepPoint& point, Prng& prng) {
  const std::int64_t longest = LogUniform(1, space.max_positions - 1, prng);
  for (std::int64_t i = 0; i < count; ++i) {
    point.sequences.push_back({.tokens = 1, .position = Uniform(longest / 2, longest, prng)});
  }
}

// Splits `tokens` into a few chunks of at least 2 tokens.
void AddPrefills(const PointSpace& space, std::int64_t tokens, StepPoint& point, Prng& prng) {
  tokens = std::max<std::int64_t>(tokens, 2);
  std::int64_t chunks = LogUniform(1, std::min<std::int64_t>(8, tokens / 2), prng);
  for (; chunks > 0; --chunks) {
    const std::int64_t most = tokens - 2 * (chunks - 1);
    const std::int64_t size = std::min(chunks == 1 ? most : Uniform(2, most, prng), space.max_positions);
    const bool first = prng.NextDouble() < 0.5 || size >= space.max_positions - 1;
    const std::int64_t position = first ? 0 : LogUniform(1, space.max_positions - size - 1, prng);
    point.sequences.push_back({.tokens = size, .position = position, .sample = prng.NextDouble() < 0.5});
    tokens -= size;
  }
}

void AddOwnAdapters(const PointSpace& space, StepPoint& point, Prng& prng) {
  const std::int64_t most = std::min<std::int64_t>(static_cast<std::int64_t>(space.ranks.size()),
                                                   std::min(space.max_running, space.max_batch_tokens));
  const std::int64_t count = Uniform(1, most, prng);
  for (const int adapter : DrawAdapters(space, count, prng)) {
    point.sequences.push_back(
        {.tokens = 1, .position = std::min<std::int64_t>(128, space.max_positions - 1), .adapter = adapter});
  }
}

StepPoint DrawPoint(const PointSpace& space, PointKind kind, Prng& prng) {
  StepPoint point{.kind = kind};
  const std::int64_t most = std::min(space.max_running, space.max_batch_tokens);
  switch (kind) {
    case PointKind::kDecode:
      AddDecodes(space, LogUniform(1, most, prng), point, prng);
      break;
    case PointKind::kPrefill:
      AddPrefills(space, LogUniform(2, space.max_batch_tokens, prng), point, prng);
      break;
    case PointKind::kMixed:
      AddDecodes(space, LogUniform(1, std::max<std::int64_t>(1, most / 2), prng), point, prng);
      AddPrefills(space, LogUniform(2, std::max<std::int64_t>(2, space.max_batch_tokens / 2), prng), point, prng);
      break;
    case PointKind::kOwnAdapters:
      AddOwnAdapters(space, point, prng);
      return point;
  }
  AssignAdapters(space, point, prng);
  return point;
}

// Halves the lengths until the memory holds them.
void Shorten(const PointSpace& space, StepPoint& point) {
  while (PagesOf(point, space.page_tokens) > space.kv_pages) {
    bool shorter = false;
    for (PointSequence& sequence : point.sequences) {
      shorter = shorter || sequence.position > 0;
      sequence.position /= 2;
    }
    if (shorter) continue;
    CHECK_GT(point.sequences.size(), 1u);  // the caller's memory holds the longest sequence
    point.sequences.pop_back();
  }
}

}  // namespace

std::int64_t PagesOf(const StepPoint& point, std::int64_t page_tokens) {
  std::int64_t pages = 0;
  for (const PointSequence& sequence : point.sequences) {
    pages += (sequence.position + sequence.tokens + page_tokens - 1) / page_tokens;
  }
  return pages;
}

std::vector<StepPoint> DrawPoints(const PointSpace& space, int count, Prng& prng) {
  constexpr PointKind kShares[] = {PointKind::kDecode,      PointKind::kPrefill, PointKind::kMixed,  PointKind::kDecode,
                                   PointKind::kOwnAdapters, PointKind::kPrefill, PointKind::kDecode, PointKind::kMixed};
  std::vector<StepPoint> points;
  for (int i = 0; i < count; ++i) {
    PointKind kind = kShares[static_cast<std::size_t>(i) % std::size(kShares)];
    if (space.ranks.empty() && kind == PointKind::kOwnAdapters) kind = PointKind::kDecode;
    StepPoint point = DrawPoint(space, kind, prng);
    Shorten(space, point);
    SortByAdapter(point);
    points.push_back(std::move(point));
  }
  Shuffle(points, prng);
  return points;
}

}  // namespace loramux
