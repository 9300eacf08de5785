#include "profile/sweep.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/clock.h"
#include "workload/statistics.h"

namespace loramux {
namespace {

constexpr std::array<LoraVariant, 2> kVariants = {LoraVariant::kMbgmv, LoraVariant::kBgmv};
constexpr std::size_t kBlock = 32;

// A visit has at least three runs and 20 ms; one run is enough for steps so long that disturbances hardly matter.
constexpr int kLeastRuns = 3, kMostRuns = 200;
constexpr double kLeastSeconds = 0.02, kLongSeconds = 0.25;

constexpr double kAgreement = 1.03;
constexpr int kMostPasses = 20;

bool UsesAdapters(const StepPoint& point) { return point.sequences.back().adapter >= 0; }  // adapters come last

struct Measured {
  std::vector<double> seconds;  // times of all runs
  std::vector<double> visits;   // the median of each visit
};

// True if the two fastest visits agree: nothing disturbed them, or the same disturbance did.
bool IsSettled(const Measured& measured) {
  std::vector<double> visits = measured.visits;
  if (visits.size() < 2) return false;
  std::nth_element(visits.begin(), visits.begin() + 1, visits.end());
  return visits[1] <= *std::min_element(visits.begin(), visits.end()) * kAgreement;
}

class Sweeper {
 public:
  Sweeper(StepBench& bench, const SweepOptions& options, Prng& prng,
          const std::function<void(double, double)>& progress)
      : bench_(bench),
        options_(options),
        prng_(prng),
        progress_(progress),
        points_(DrawPoints(bench.space(), options.points, prng)),
        measured_(points_.size()) {
    for (std::size_t i = 0; i < points_.size(); ++i) held_out_.push_back(prng.NextDouble() < options.held_out_share);
  }

  Result<SweepResult> Run() {
    std::vector<std::size_t> order(points_.size());
    std::iota(order.begin(), order.end(), 0);
    RETURN_IF_ERROR(Rounds(order));
    for (int pass = 0; pass < kMostPasses && Passed() < options_.seconds; ++pass) {
      RETURN_IF_ERROR(SettlePass(order, pass));
    }
    return Collect();
  }

 private:
  double Passed() const { return static_cast<double>(clock_.Now() - begin_) / static_cast<double>(kNsPerSecond); }
  bool Over() const { return measured_points_ >= options_.least_points && Passed() >= options_.seconds; }

  void Shuffle(std::vector<std::size_t>& order, std::size_t begin, std::size_t end) {
    for (std::size_t i = end; i > begin + 1; --i) std::swap(order[i - 1], order[begin + prng_.NextBelow(i - begin)]);
  }

  // Without adapters, and on a device, both variants run the same program, so they share the measurements.
  bool DependsOnVariant(std::size_t index) const { return bench_.variants_differ() && UsesAdapters(points_[index]); }
  std::size_t SlotOf(std::size_t index, std::size_t variant) const { return DependsOnVariant(index) ? variant : 0; }

  Status Rounds(std::vector<std::size_t>& order) {
    for (int round = 0; round < options_.rounds && !Over(); ++round) {
      Shuffle(order, 0, order.size());
      for (std::size_t begin = 0; begin < order.size() && !Over(); begin += kBlock) {
        const std::size_t end = std::min(begin + kBlock, order.size());
        for (std::size_t variant = 0; variant < kVariants.size(); ++variant) {
          RETURN_IF_ERROR(bench_.UseVariant(kVariants[variant]));
          Shuffle(order, begin, end);
          for (std::size_t i = begin; i < end; ++i) {
            if (HasTurn(order[i], variant, round)) RETURN_IF_ERROR(Visit(order[i], variant));
          }
        }
        if (round == 0) measured_points_ += static_cast<int>(end - begin);
        visited_ += static_cast<std::int64_t>(end - begin);
      }
    }
    return Ok{};
  }

  // Repeats the visits of points that are not settled.
  Status SettlePass(std::vector<std::size_t>& order, int pass) {
    for (std::size_t variant = 0; variant < kVariants.size(); ++variant) {
      RETURN_IF_ERROR(bench_.UseVariant(kVariants[variant]));
      Shuffle(order, 0, order.size());
      for (const std::size_t index : order) {
        const Measured& measured = measured_[index][SlotOf(index, variant)];
        if (Passed() >= options_.seconds) return Ok{};
        if (measured.visits.empty() || IsSettled(measured) || !HasTurn(index, variant, pass)) continue;
        RETURN_IF_ERROR(Visit(index, variant));
      }
    }
    return Ok{};
  }

  // True if the point is measured in this round. Points that do not depend on the variant are measured with one of them
  // per round.
  bool HasTurn(std::size_t index, std::size_t variant, int round) const {
    return DependsOnVariant(index) || variant == static_cast<std::size_t>(round % 2);
  }

  Status Visit(std::size_t index, std::size_t variant) {
    const StepPoint& point = points_[index];
    RETURN_IF_ERROR(bench_.Run(point));  // warm up: the adapters' weights, the pages, the workspace
    std::vector<double> times;
    double total = 0;
    for (int run = 0; run < kMostRuns && !(total > kLongSeconds || (run >= kLeastRuns && total > kLeastSeconds));
         ++run) {
      ASSIGN_OR_RETURN(const double seconds, bench_.Run(point));
      times.push_back(seconds);
      total += times.back();
      ++runs_;
    }
    Measured& measured = measured_[index][SlotOf(index, variant)];
    measured.seconds.insert(measured.seconds.end(), times.begin(), times.end());
    measured.visits.push_back(UpperMedian(std::move(times)));
    ReportProgress();
    return Ok{};
  }

  void ReportProgress() {
    const double passed = Passed();
    const double share = static_cast<double>(std::max<std::int64_t>(visited_, 1)) / static_cast<double>(points_.size());
    // The estimate for the points that must be measured.
    const double least = measured_points_ < options_.least_points ? passed / share : 0;
    progress_(passed, std::max({passed, least, options_.seconds}));
  }

  // See SweepResult::repeat_error.
  double RepeatError() const {
    double sum = 0;
    std::int64_t count = 0;
    for (const auto& of_variants : measured_) {
      for (const Measured& measured : of_variants) {
        if (measured.visits.size() < 2) continue;
        const double middle = UpperMedian(measured.seconds);
        for (const double visit : measured.visits) sum += std::abs(visit - middle) / middle;
        count += static_cast<std::int64_t>(measured.visits.size());
      }
    }
    return count == 0 ? 0 : sum / static_cast<double>(count);
  }

  SweepResult Collect() {
    SweepResult result;
    result.runs = runs_;
    result.repeat_error = RepeatError();
    for (std::size_t i = 0; i < points_.size(); ++i) {
      const Measured& mbgmv = measured_[i][SlotOf(i, 0)];
      const Measured& bgmv = measured_[i][SlotOf(i, 1)];
      if (mbgmv.seconds.empty() || bgmv.seconds.empty()) continue;
      const StepLoad load = bench_.Load(points_[i]);
      result.points.push_back(points_[i]);
      result.mbgmv.push_back({load, *std::min_element(mbgmv.visits.begin(), mbgmv.visits.end()), held_out_[i]});
      result.bgmv.push_back({load, *std::min_element(bgmv.visits.begin(), bgmv.visits.end()), held_out_[i]});
    }
    return result;
  }

  StepBench& bench_;
  const SweepOptions& options_;
  Prng& prng_;
  const std::function<void(double, double)>& progress_;
  const std::vector<StepPoint> points_;
  std::vector<std::array<Measured, kVariants.size()>> measured_;  // by point and slot
  std::vector<bool> held_out_;  // drawn before anything is measured, so that it depends on the seed only
  OsClock clock_;
  const TimeNs begin_ = clock_.Now();
  int measured_points_ = 0;
  std::int64_t visited_ = 0, runs_ = 0;
};

}  // namespace

Result<SweepResult> Sweep(StepBench& bench, const SweepOptions& options, Prng& prng,
                          const std::function<void(double passed, double expected)>& progress) {
  return Sweeper(bench, options, prng, progress).Run();
}

}  // namespace loramux
