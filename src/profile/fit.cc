#include "profile/fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include <Eigen/Dense>

#include "base/check.h"

namespace loramux {
namespace {

// Returns the unconstrained solution over the columns in `passive`, and zero elsewhere. The decomposition reveals the
// rank, so linearly dependent columns are harmless.
Eigen::VectorXd SolvePassive(const Eigen::MatrixXd& a, const Eigen::VectorXd& b,
                             const std::vector<Eigen::Index>& passive) {
  Eigen::VectorXd solution = Eigen::VectorXd::Zero(a.cols());
  if (passive.empty()) return solution;
  const Eigen::MatrixXd columns = a(Eigen::all, passive);
  const Eigen::VectorXd values = columns.completeOrthogonalDecomposition().solve(b);
  solution(passive) = values;
  return solution;
}

// Moves x towards `wanted` until the first passive coefficient reaches zero, and removes the coefficients at zero from
// the passive set.
void StepToBoundary(const Eigen::VectorXd& wanted, std::vector<Eigen::Index>& passive, Eigen::VectorXd& x) {
  double alpha = 1;
  for (const Eigen::Index j : passive) {
    if (wanted(j) <= 0) alpha = std::min(alpha, x(j) / (x(j) - wanted(j)));
  }
  x += alpha * (wanted - x);
  std::erase_if(passive, [&](Eigen::Index j) {
    if (x(j) > 1e-12) return false;
    x(j) = 0;
    return true;
  });
}

Eigen::VectorXd LawsonHanson(const Eigen::MatrixXd& a, const Eigen::VectorXd& b) {
  Eigen::VectorXd x = Eigen::VectorXd::Zero(a.cols());
  std::vector<Eigen::Index> passive;
  const double tolerance = 1e-10 * (a.transpose() * b).cwiseAbs().maxCoeff();
  // Each round lowers the residual, so no set occurs twice; the bound is a guard against rounding errors.
  for (Eigen::Index round = 0; round < 30 * a.cols(); ++round) {
    const Eigen::VectorXd gradient = a.transpose() * (b - a * x);
    Eigen::Index best = -1;
    for (Eigen::Index j = 0; j < a.cols(); ++j) {
      if (std::find(passive.begin(), passive.end(), j) != passive.end() || gradient(j) <= tolerance) continue;
      if (best < 0 || gradient(j) > gradient(best)) best = j;
    }
    if (best < 0) return x;
    passive.push_back(best);
    Eigen::VectorXd wanted = SolvePassive(a, b, passive);
    if (wanted(best) <= 0) return x;  // only rounding errors are left to gain
    while (!passive.empty() && wanted(passive).minCoeff() <= 0) {
      StepToBoundary(wanted, passive, x);
      wanted = SolvePassive(a, b, passive);
    }
    x = wanted;
  }
  return x;
}

// Minimises relative errors: divides every row by its measured time, so that each target is 1.
std::vector<double> FitRelative(std::vector<std::vector<double>> rows, std::span<const double> seconds) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (double& value : rows[i]) value /= seconds[i];
  }
  return NonNegativeLeastSquares(rows, std::vector<double>(rows.size(), 1.0));
}

// Row or column counts of the tiles in matrix kernels of CPUs and GPUs. 0 is first, so that the result is no tile
// unless a tile is better.
constexpr std::int64_t kTokenTiles[] = {0, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128};

PerformanceModel FitWithTile(std::span<const StepMeasurement> points, LoraCostShape shape,
                             const PerformanceModel::Experts& experts, std::int64_t tile) {
  PerformanceModel model;
  model.experts = experts;
  model.shape = shape;
  model.token_tile = tile;
  const auto terms = PerformanceTerms(shape);
  std::vector<std::vector<double>> rows;
  std::vector<double> seconds;
  for (const StepMeasurement& point : points) {
    if (point.held_out) continue;
    std::vector<double>& row = rows.emplace_back();
    for (const PerformanceTerm& term : terms) row.push_back(term.count(model, point.load));
    seconds.push_back(point.seconds);
  }
  const std::vector<double> coefficients = FitRelative(std::move(rows), seconds);
  for (std::size_t i = 0; i < terms.size(); ++i) model.*terms[i].coefficient = coefficients[i];
  return model;
}

// The sum of the squared relative errors on the points that are not held out.
double RelativeSquares(const PerformanceModel& model, std::span<const StepMeasurement> points) {
  double squares = 0;
  for (const StepMeasurement& point : points) {
    const double error = model.SecondsOf(point.load) / point.seconds - 1;
    if (!point.held_out) squares += error * error;
  }
  return squares;
}

double TokensOf(const StepLoad& load) { return static_cast<double>(load.prefill_tokens + load.decode_sequences); }

bool IsCold(const StepLoad& load) {
  return load.prefill_tokens == 0 && load.after_prefill > 0 && load.after_prefill <= kColdSteps;
}

// factor over the usual time of similar steps, above which a step counts as disturbed
constexpr double kDisturbed = 1.5;
// Steps that a place needs for half of its own weight. If one step in a hundred takes five times as long, this many
// steps give an error of 2 %.
constexpr double kEnough = 1000;

// Steps with about the same number of tokens. Times are in seconds.
struct FactorPlace {
  double tokens = 0;  // geometric mean
  double steps = 0, measured = 0, linear = 0;
  double usual = 1;  // measured over linear, without the disturbed steps
};

FactorPlace PlaceOf(std::span<const StepMeasurement* const> points, const PerformanceModel& model) {
  FactorPlace place{.steps = static_cast<double>(points.size())};
  std::vector<double> ratios;
  double log_tokens = 0;
  for (const StepMeasurement* point : points) {
    const double linear = model.LinearSecondsOf(point->load);
    ratios.push_back(point->seconds / linear);
    place.measured += point->seconds;
    place.linear += linear;
    log_tokens += std::log(TokensOf(point->load));
  }
  place.tokens = std::exp(log_tokens / place.steps);
  std::vector<double> sorted = ratios;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2), sorted.end());
  const double middle = sorted[sorted.size() / 2];
  double measured = 0, linear = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (ratios[i] > kDisturbed * middle) continue;
    measured += points[i]->seconds;
    linear += points[i]->seconds / ratios[i];
  }
  place.usual = measured / linear;
  return place;
}

// Groups the steps into places. A place ends once it has enough points and the next step has at least a quarter more
// tokens than its first.
std::vector<FactorPlace> PlacesOf(std::span<const StepMeasurement> points, std::size_t least,
                                  const PerformanceModel& model, FactorTable table) {
  std::vector<const StepMeasurement*> chosen, cold;
  for (const StepMeasurement& point : points) {
    if (!point.held_out && FactorTableOf(point.load) == table) (IsCold(point.load) ? cold : chosen).push_back(&point);
  }
  // decode steps follow prompts nearly all the time
  if (chosen.size() < least) chosen.insert(chosen.end(), cold.begin(), cold.end());
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const auto* a, const auto* b) { return TokensOf(a->load) < TokensOf(b->load); });
  std::vector<FactorPlace> places;
  for (std::size_t begin = 0, end = 0; begin < chosen.size(); begin = end) {
    for (; end < chosen.size(); ++end) {
      const double tokens = TokensOf(chosen[end]->load);
      const bool closed =
          tokens > TokensOf(chosen[begin]->load) * 1.25 && tokens > TokensOf(chosen[end - (end > begin)]->load);
      if (closed && end - begin >= least && chosen.size() - end >= least) break;
    }
    places.push_back(PlaceOf(std::span(chosen).subspan(begin, end - begin), model));
  }
  return places;
}

// Adds the time of disturbed steps to the factors. A delay of a millisecond is little for a prefill and a multiple of a
// small step, so each table has a share of its own; within a table a place has its own share, weighted by its number of
// steps.
std::vector<StepFactor> FactorsOf(std::span<const StepMeasurement> points, std::size_t least,
                                  const PerformanceModel& model, FactorTable table) {
  const std::vector<FactorPlace> places = PlacesOf(points, least, model, table);
  double measured = 0, usual = 0;
  for (const FactorPlace& place : places) {
    measured += place.measured;
    usual += place.linear * place.usual;
  }
  std::vector<StepFactor> factors;
  for (const FactorPlace& place : places) {
    const double of_table = measured / usual, of_place = place.measured / (place.linear * place.usual);
    const double weight = place.steps / (place.steps + kEnough);
    factors.push_back({place.tokens, place.usual * (weight * of_place + (1 - weight) * of_table)});
  }
  return factors;
}

double TrimmedMean(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  values.resize(values.size() - values.size() / 20);
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// A decode step shortly after a prefill, with its measured time and the model's prediction for a warm step.
struct ColdStep {
  std::size_t ago = 0;  // number of decode steps since the prefill; 0: the first
  double sequences = 0, seconds = 0, warm = 0;
  double Excess() const { return seconds - warm; }
};

std::vector<ColdStep> ColdStepsOf(std::span<const StepMeasurement> points, const PerformanceModel& warm) {
  std::vector<ColdStep> steps;
  for (const StepMeasurement& point : points) {
    if (point.held_out || !IsCold(point.load)) continue;
    steps.push_back({.ago = static_cast<std::size_t>(point.load.after_prefill - 1),
                     .sequences = static_cast<double>(point.load.decode_sequences),
                     .seconds = point.seconds,
                     .warm = warm.SecondsOf(point.load)});
  }
  return steps;
}

// Returns the extra time per sequence, by least squares over undisturbed steps at equal distance from a prefill. 0: all
// have the same number of sequences.
double PerSequenceAfterPrefill(std::span<const ColdStep> steps) {
  std::array<std::vector<double>, kColdSteps> excess;
  for (const ColdStep& step : steps) excess[step.ago].push_back(step.Excess());
  struct Place {
    double usual = 0, steps = 0, sequences = 0, excess = 0;
  };
  std::array<Place, kColdSteps> places;
  for (std::size_t ago = 0; ago < places.size(); ++ago)
    places[ago].usual = excess[ago].empty() ? 0 : TrimmedMean(std::move(excess[ago]));
  const auto disturbed = [&](const ColdStep& step) {
    return step.seconds > kDisturbed * (step.warm + places[step.ago].usual);
  };
  for (const ColdStep& step : steps) {
    if (disturbed(step)) continue;
    Place& place = places[step.ago];
    ++place.steps;
    place.sequences += step.sequences;
    place.excess += step.Excess();
  }
  double product = 0, squares = 0;
  for (const ColdStep& step : steps) {
    if (disturbed(step)) continue;
    const Place& place = places[step.ago];
    const double more = step.sequences - place.sequences / place.steps;
    product += more * (step.Excess() - place.excess / place.steps);
    squares += more * more;
  }
  return squares > 0 ? std::max(0.0, product / squares) : 0;
}

// Fits the extra time of decode steps after a prefill: a part per sequence, and a geometric series in the number of
// steps since the prefill, from the means without the disturbed steps. The time of the disturbed steps is added with a
// weight that grows with the number of steps. Sets nothing if there are too few first steps.
void FitAfterPrefill(std::span<const StepMeasurement> points, std::size_t least, PerformanceModel& model) {
  const std::vector<ColdStep> steps = ColdStepsOf(points, model);
  const double per_sequence = PerSequenceAfterPrefill(steps);
  std::array<std::vector<double>, kColdSteps> excess;
  double total = 0;
  for (const ColdStep& step : steps) {
    const double seconds = step.Excess() - per_sequence * step.sequences;
    excess[step.ago].push_back(seconds);
    total += seconds;
  }
  std::vector<double> means;
  for (std::vector<double>& of_step : excess) {
    if (of_step.size() < std::max<std::size_t>(1, least)) break;
    means.push_back(std::max(0.0, TrimmedMean(std::move(of_step))));
  }
  if (means.empty() || means.front() == 0) return;
  model.after_prefill_per_sequence = per_sequence;
  const double sum = std::accumulate(means.begin(), means.end(), 0.0);
  // This ratio is exactly the decay of a geometric series.
  const double decay = means.size() < 2 ? 0 : (sum - means.front()) / (sum - means.back());
  double series = 0, term = 1;
  for (std::size_t i = 0; i < means.size(); ++i, term *= std::min(decay, kMaxDecay)) series += term;
  model.after_prefill = sum / series;
  model.after_prefill_decay = std::min(decay, kMaxDecay);
  double predicted = 0;
  for (const ColdStep& step : steps) predicted += model.after_prefill * std::pow(model.after_prefill_decay, step.ago);
  const auto count = static_cast<double>(steps.size());
  const double weight = count / (count + kEnough);
  model.after_prefill *= 1 + weight * (std::clamp(total / predicted, 0.5, 2.0) - 1);
}

// Scales the model so that its total time for all steps, disturbed ones included, is the measured total.
void ScaleToTotal(std::span<const StepMeasurement> points, PerformanceModel& model) {
  double measured = 0, predicted = 0;
  for (const StepMeasurement& point : points) {
    if (point.held_out) continue;
    measured += point.seconds;
    predicted += model.SecondsOf(point.load);
  }
  if (predicted <= 0) return;
  model.after_prefill *= measured / predicted;
  model.after_prefill_per_sequence *= measured / predicted;
  for (const FactorTable table : kFactorTables) {
    for (StepFactor& at : model.*table) at.factor *= measured / predicted;
  }
}

double CaraServeWork(const StepLoad& load, LoraCostShape shape) {
  return static_cast<double>(shape == LoraCostShape::kBgmv ? load.decode_sequences * load.max_rank : load.token_ranks);
}

}  // namespace

std::vector<double> NonNegativeLeastSquares(std::span<const std::vector<double>> rows,
                                            std::span<const double> targets) {
  CHECK(!rows.empty());
  CHECK_EQ(rows.size(), targets.size());
  Eigen::MatrixXd a(static_cast<Eigen::Index>(rows.size()), static_cast<Eigen::Index>(rows[0].size()));
  for (Eigen::Index i = 0; i < a.rows(); ++i) {
    for (Eigen::Index j = 0; j < a.cols(); ++j)
      a(i, j) = rows[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)];
  }
  // Normalise the columns, because the coefficients differ by many orders of magnitude.
  Eigen::VectorXd scale = a.colwise().norm();
  for (double& value : scale) value = value > 0 ? value : 1;
  const Eigen::Map<const Eigen::VectorXd> b(targets.data(), static_cast<Eigen::Index>(targets.size()));
  const Eigen::VectorXd x = LawsonHanson(a * scale.cwiseInverse().asDiagonal(), b).cwiseQuotient(scale);
  return {x.begin(), x.end()};
}

PerformanceModel FitSteps(std::span<const StepMeasurement> points, LoraCostShape shape,
                          const PerformanceModel::Experts& experts) {
  PerformanceModel best;
  double best_squares = std::numeric_limits<double>::infinity();
  for (const std::int64_t tile : kTokenTiles) {
    const PerformanceModel model = FitWithTile(points, shape, experts, tile);
    const double squares = RelativeSquares(model, points);
    if (squares >= best_squares) continue;
    best = model;
    best_squares = squares;
  }
  return best;
}

void FitFactors(std::span<const StepMeasurement> points, std::size_t least, PerformanceModel& model) {
  model.after_prefill = model.after_prefill_decay = model.after_prefill_per_sequence = 0;
  for (const FactorTable table : kFactorTables) model.*table = FactorsOf(points, least, model, table);
  FitAfterPrefill(points, least, model);
  ScaleToTotal(points, model);
}

FitQuality QualityOf(std::span<const double> predicted, std::span<const double> measured) {
  CHECK_EQ(predicted.size(), measured.size());
  FitQuality quality;
  quality.points = static_cast<std::int64_t>(measured.size());
  if (measured.empty()) return quality;
  const auto count = static_cast<double>(measured.size());
  double mean = 0;
  for (const double value : measured) mean += value / count;
  double residual = 0, total = 0;
  std::vector<double> errors;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    residual += (predicted[i] - measured[i]) * (predicted[i] - measured[i]);
    total += (measured[i] - mean) * (measured[i] - mean);
    errors.push_back(std::abs(predicted[i] - measured[i]) / measured[i]);
    quality.mean_error += errors.back() / count;
  }
  quality.r2 = total > 0 ? 1 - residual / total : 0;
  std::sort(errors.begin(), errors.end());
  quality.p90_error = errors[static_cast<std::size_t>(std::ceil(0.9 * count)) - 1];  // nearest rank
  return quality;
}

PerformanceModel::Link FitLink(std::span<const double> bytes, std::span<const double> seconds) {
  std::vector<std::vector<double>> rows;
  for (const double size : bytes) rows.push_back({1, size});
  const std::vector<double> line = FitRelative(std::move(rows), seconds);
  const auto rate = [](double value) { return std::clamp(value, kMinBytesPerSecond, kMaxBytesPerSecond); };
  if (line[1] > 0) return {line[0], rate(1 / line[1])};
  double all_bytes = 0, all_seconds = 0;  // time does not grow with bytes: only a mean rate can be given
  for (const double size : bytes) all_bytes += size;
  for (const double time : seconds) all_seconds += time;
  return {0, rate(all_bytes / all_seconds)};
}

FitQuality CaraServeForm(std::span<const StepMeasurement> decode_points, LoraCostShape shape) {
  std::vector<std::vector<double>> rows;
  std::vector<double> seconds;
  for (const StepMeasurement& point : decode_points) {
    rows.push_back({1, static_cast<double>(point.load.decode_sequences), CaraServeWork(point.load, shape)});
    seconds.push_back(point.seconds);
  }
  if (rows.size() < 2) return {};
  std::vector<double> predicted;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    auto others = rows;
    auto other_seconds = seconds;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    other_seconds.erase(other_seconds.begin() + static_cast<std::ptrdiff_t>(i));
    const std::vector<double> fit = NonNegativeLeastSquares(others, other_seconds);
    predicted.push_back(fit[0] + fit[1] * rows[i][1] + fit[2] * rows[i][2]);
  }
  return QualityOf(predicted, seconds);
}

}  // namespace loramux
