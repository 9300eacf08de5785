#include "worth/reuse_rates.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace loramux {
namespace {

constexpr int kFirstAgeBits = 28;  // log2 of nanoseconds

// Bounds of the remembered time. For Mooncake's conversations 30 to 100 seconds is right at every cache size
// (docs/design/cache.md). It is no longer than that where little is evicted.
constexpr double kMostRemembered = 30, kLeastRemembered = 0.25;  // seconds
constexpr double kRememberedTurnovers = 2;

// The lower bound of an age class in seconds.
constexpr double BeginOf(std::size_t age) {
  return age == 0 ? 0 : static_cast<double>(std::int64_t{1} << (kFirstAgeBits + age - 1)) / kNsPerSecond;
}
constexpr double LengthOf(std::size_t age) { return BeginOf(age + 1) - BeginOf(age); }

}  // namespace

std::size_t ReuseRates::ClassOf(double frequency) {
  const auto doublings = std::bit_width(static_cast<std::uint64_t>(std::clamp(frequency - 0.5, 0.0, 1e9)));
  return std::min(kClasses - 1, static_cast<std::size_t>(doublings));
}

std::size_t ReuseRates::AgeOf(TimeNs idle) {
  const auto doublings = std::bit_width(static_cast<std::uint64_t>(std::max<TimeNs>(0, idle)) >> kFirstAgeBits);
  return std::min(kAges - 1, static_cast<std::size_t>(doublings));
}

void ReuseRates::SawIdle(double frequency, TimeNs idle, double page_seconds) {
  Cell& cell = CellOf(frequency, idle);
  const double weight = (kPriorVisits + frequency) * page_seconds;
  cell.weight += weight;
  cell.idle += weight * Seconds(idle);
}

double ReuseRates::Remembered(std::optional<double> turnover_s) {
  return std::clamp(kRememberedTurnovers * turnover_s.value_or(kMostRemembered), kLeastRemembered, kMostRemembered);
}

void ReuseRates::Learn(TimeNs now, double remembered_s) {
  const double left =
      std::exp2(-static_cast<double>(std::max<TimeNs>(0, now - learned_at_)) / static_cast<double>(kHalfLife));
  learned_at_ = std::max(learned_at_, now);
  std::array<double, kAges> over_prior;  // factors over the prior: of the class below, then of this class
  over_prior.fill(1);
  for (std::size_t visits = 0; visits < kClasses; ++visits) {
    const double frequency = std::exp2(static_cast<double>(visits));
    Learned& learned = learned_[visits];
    learned.stale = true;
    double younger = over_prior[0];
    for (std::size_t age = 0; age < kAges; ++age) {
      Cell& cell = cells_[visits][age];
      cell.visits *= left;
      cell.weight *= left;
      cell.idle *= left;
      // With few observations, the rates of the previous age and of the class with fewer visits apply.
      const double believed = visits == 0 ? younger : (younger + over_prior[age]) / 2;
      // The visits that the prior predicts.
      const double expected = cell.weight > 0 ? cell.weight / (remembered_s + cell.idle / cell.weight) : 0;
      younger = over_prior[age] = (cell.visits + kPriorWeight * believed) / (expected + kPriorWeight);
      learned.prior[age] = Prior(frequency, BeginOf(age) + LengthOf(age) / 2, remembered_s);
      learned.rate[age] = younger * learned.prior[age];
    }
  }
}

// A factor is that of the best mean rate, in visits per time, of a page that is kept until its next visit, but at most
// to the end of some age.
void ReuseRates::ComputeFactors(Learned& learned) {
  std::array<double, kAges> chance;  // that a visit comes during the age, at its begin
  for (std::size_t age = 0; age < kAges; ++age) chance[age] = -std::expm1(-learned.rate[age] * LengthOf(age));
  for (std::size_t from = 0; from < kAges; ++from) {
    double visits = 0, time = 0, unvisited = 1, best = 0;
    for (std::size_t age = from; age < kAges; ++age) {
      const double visited = unvisited * chance[age];
      visits += visited;
      time += visited / learned.rate[age];  // exponential law: mean time to the visit, bounded by the end of the age
      best = std::max(best, visits / time);
      unvisited -= visited;
    }
    learned.factor[from] = best / learned.prior[from];
  }
  learned.stale = false;
}

double ReuseRates::IdleUntil(std::size_t visits, double rate, double idle_s, double remembered_s) const {
  const double frequency = std::exp2(static_cast<double>(visits));
  for (std::size_t age = AgeOf(static_cast<TimeNs>(idle_s * kNsPerSecond)); age < kAges; ++age) {
    // The factor holds for the whole age, and the prior falls.
    const double until = FactorsOf(visits)[age] * (kPriorVisits + frequency) / rate - remembered_s;
    if (until < BeginOf(age + 1) || age + 1 == kAges) return std::max({until, idle_s, BeginOf(age)});
  }
  return idle_s;
}

std::array<double, ReuseRates::kClasses> ReuseRates::Bonuses(double idle_s, double remembered_s, double most_s) const {
  std::array<double, kClasses> bonuses = {};
  const double once = Factor(1, static_cast<TimeNs>(idle_s * kNsPerSecond)) * Prior(1, idle_s, remembered_s);
  if (!(once > 0)) return bonuses;
  for (std::size_t visits = 1; visits < kClasses; ++visits) {
    const double bonus = IdleUntil(visits, once, idle_s, remembered_s) - idle_s;
    bonuses[visits] = std::clamp(bonus, bonuses[visits - 1], std::max(bonuses[visits - 1], most_s * visits));
  }
  return bonuses;
}

}  // namespace loramux
