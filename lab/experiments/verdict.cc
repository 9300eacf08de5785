#include "lab/experiments/verdict.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/check.h"
#include "lab/experiments/number_text.h"

namespace loramux {
namespace {

constexpr double kLikeness = 1.0 / 3;     // an effect that differs by a larger share does not agree
constexpr double kNothing = 0.0005;       // a change that is shown as "+0.0 %"
constexpr double kSmallestFactor = 1e-6;  // stands for 0, whose logarithm is infinite

double LogOf(double factor) { return std::log(std::max(factor, kSmallestFactor)); }
// -1 and 1: outside the dead band; 0: within.
int DirectionOf(double log) { return std::abs(log) <= std::log1p(kDeadBand) ? 0 : log < 0 ? -1 : 1; }

bool IsFactor(Quantity quantity) { return quantity == Quantity::kChange || quantity == Quantity::kFactor; }

// The verdict on an effect whose direction is the reported one, or does not count.
Verdict CompareSizes(double reported, double ours) {
  const double ratio = ours / reported;
  if (ratio < 1 - kLikeness) return Verdict::kWeaker;
  return ratio > 1 + kLikeness ? Verdict::kStronger : Verdict::kAgrees;
}

// Whether the order depends on the seed: seeds lie outside the dead band on both sides, or the median lies outside and
// a seed on the other side of 1.
bool DependsOnSeed(const std::vector<double>& factors) {
  const auto [least, most] = std::minmax_element(factors.begin(), factors.end());
  const int low = DirectionOf(LogOf(*least)), high = DirectionOf(LogOf(*most));
  if (low < 0 && high > 0) return true;
  const int median = DirectionOf(LogOf(MedianOf(factors)));
  return (median < 0 && *most > 1 + kNothing) || (median > 0 && *least < 1 - kNothing);
}

Verdict JudgeFactors(const ComparisonRow& row) {
  const auto nothing = [](double factor) { return std::abs(factor - 1) < kNothing; };
  if (std::all_of(row.numbers.begin(), row.numbers.end(), nothing)) return Verdict::kNotExercised;
  if (DependsOnSeed(row.numbers)) return Verdict::kUndecided;
  return CompareFactors(row.reported_number, MedianOf(row.numbers));
}

Verdict JudgeLimit(const ComparisonRow& row) {
  const auto holds = [&](double ours) {
    return row.quantity == Quantity::kAtMost ? ours <= row.reported_number : ours >= row.reported_number;
  };
  const auto held = std::count_if(row.numbers.begin(), row.numbers.end(), holds);
  if (held == static_cast<std::ptrdiff_t>(row.numbers.size())) return Verdict::kAgrees;
  return held == 0 ? Verdict::kOpposite : Verdict::kUndecided;
}

// The verdict from the row's numbers and events.
Verdict Judge(const ComparisonRow& row) {
  if (row.events && *row.events == 0) return Verdict::kNotExercised;
  switch (row.quantity) {
    case Quantity::kText:
      return row.verdict;
    case Quantity::kChange:
    case Quantity::kFactor:
      return JudgeFactors(row);
    case Quantity::kValue:
      return CompareSizes(row.reported_number, MedianOf(row.numbers));
    case Quantity::kAtMost:
    case Quantity::kAtLeast:
      break;
  }
  return JudgeLimit(row);
}

std::string ShowNumber(const ComparisonRow& row, double number, bool with_unit) {
  if (row.quantity == Quantity::kChange) return fmt::format("{:+.1f}{}", 100 * (number - 1), with_unit ? " %" : "");
  if (row.quantity == Quantity::kFactor) return fmt::format("{:.2f}{}", number, with_unit ? "x" : "");
  return fmt::format("{:.{}f}{}", number, row.decimals, with_unit ? row.unit : "");
}

// "0 squashes"; empty if the row has no events.
std::string ShowEvents(const ComparisonRow& row) {
  return row.events ? fmt::format("; {} {}", *row.events, row.events_of) : "";
}

// The median, and the smallest and the largest of several.
std::string ShowNumbers(const ComparisonRow& row) {
  std::string text = ShowNumber(row, MedianOf(row.numbers), true);
  if (row.numbers.size() == 1) return text;
  const auto [least, most] = std::minmax_element(row.numbers.begin(), row.numbers.end());
  const std::string low = ShowNumber(row, *least, false), high = ShowNumber(row, *most, false);
  return low == high ? text : text + fmt::format(" ({} to {})", low, high);
}

ComparisonRow NumberRow(std::string_view id, std::string what, Quantity quantity, double reported, double ours,
                        Unit unit) {
  ComparisonRow row{.id = std::string(id), .what = std::move(what)};
  row.quantity = quantity;
  row.reported_number = reported;
  row.numbers = {ours};
  row.unit = std::move(unit.name);
  row.decimals = unit.decimals;
  const char* const limit = quantity == Quantity::kAtMost    ? "at most "
                            : quantity == Quantity::kAtLeast ? "at least "
                                                             : "";
  row.reported = limit + ShowNumber(row, reported, true);
  row.ours = ShowNumbers(row);
  row.verdict = Judge(row);
  return row;
}

// The verdict on rows of text: if a claim holds for some seeds only, it is undecided. Of sizes, the median counts.
Verdict CombineVerdicts(std::vector<Verdict> verdicts) {
  const auto is = [](Verdict wanted) { return [wanted](Verdict verdict) { return verdict == wanted; }; };
  const auto idle = std::count_if(verdicts.begin(), verdicts.end(), is(Verdict::kNotExercised));
  if (idle == static_cast<std::ptrdiff_t>(verdicts.size())) return Verdict::kNotExercised;
  verdicts.erase(std::remove(verdicts.begin(), verdicts.end(), Verdict::kNotExercised), verdicts.end());
  const auto opposite = std::count_if(verdicts.begin(), verdicts.end(), is(Verdict::kOpposite));
  if (opposite == static_cast<std::ptrdiff_t>(verdicts.size())) return Verdict::kOpposite;
  if (opposite > 0 || std::any_of(verdicts.begin(), verdicts.end(), is(Verdict::kUndecided))) {
    return Verdict::kUndecided;
  }
  const auto size = [](Verdict verdict) {
    return verdict == Verdict::kNoEffect ? 0 : verdict == Verdict::kWeaker ? 1 : verdict == Verdict::kAgrees ? 2 : 3;
  };
  std::sort(verdicts.begin(), verdicts.end(), [&](Verdict a, Verdict b) { return size(a) < size(b); });
  return verdicts[verdicts.size() / 2];
}

ComparisonRow CombineRow(const std::vector<const ComparisonRow*>& rows, std::size_t seeds) {
  ComparisonRow combined = *rows.front();
  combined.numbers.clear();
  std::vector<std::string> texts;
  std::vector<Verdict> verdicts;
  std::int64_t events = 0;
  for (const ComparisonRow* row : rows) {
    combined.numbers.insert(combined.numbers.end(), row->numbers.begin(), row->numbers.end());
    texts.push_back(row->ours);
    verdicts.push_back(row->verdict);
    events += row->events.value_or(0);
  }
  if (combined.events) combined.events = events;
  if (combined.quantity == Quantity::kText) {
    combined.ours = MediansOfTexts(texts);
    combined.verdict = CombineVerdicts(verdicts);
  } else {
    combined.ours = ShowNumbers(combined) + ShowEvents(combined);
    combined.verdict = Judge(combined);
  }
  const auto holds = std::count(verdicts.begin(), verdicts.end(), Verdict::kAgrees);
  const bool claim = combined.quantity != Quantity::kValue && !IsFactor(combined.quantity);
  if (claim && combined.verdict == Verdict::kUndecided)
    combined.ours += fmt::format("; holds for {} of {} seeds", holds, rows.size());
  if (rows.size() < seeds) combined.ours += fmt::format("; {} of {} seeds have this row", rows.size(), seeds);
  return combined;
}

}  // namespace

const char* VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kAgrees:
      return "agrees";
    case Verdict::kWeaker:
      return "weaker";
    case Verdict::kStronger:
      return "stronger";
    case Verdict::kNoEffect:
      return "no effect";
    case Verdict::kOpposite:
      return "opposite";
    case Verdict::kUndecided:
      return "undecided";
    case Verdict::kNotExercised:
      return "not exercised";
    case Verdict::kInformation:
      break;
  }
  return "information";
}

const char* QuantityName(Quantity quantity) {
  constexpr const char* kNames[] = {"text", "change", "factor", "value", "at most", "at least"};
  return kNames[static_cast<std::size_t>(quantity)];
}

Verdict CompareFactors(double reported, double ours) {
  const double reported_log = LogOf(reported), our_log = LogOf(ours);
  const int direction = DirectionOf(reported_log), our_direction = DirectionOf(our_log);
  if (direction == 0) return our_direction == 0 ? Verdict::kAgrees : Verdict::kStronger;
  if (our_direction == -direction) return Verdict::kOpposite;
  const Verdict size = CompareSizes(reported_log, our_log);
  return our_direction == 0 && size != Verdict::kAgrees ? Verdict::kNoEffect : size;
}

Verdict CompareEffects(double reported, double ours) { return CompareFactors(1 + reported, 1 + ours); }

ComparisonRow ChangeRow(std::string_view id, std::string what, double reported, double ours) {
  return NumberRow(id, std::move(what), Quantity::kChange, 1 + reported, 1 + ours, {});
}

ComparisonRow FactorRow(std::string_view id, std::string what, double reported, double ours) {
  return NumberRow(id, std::move(what), Quantity::kFactor, reported, ours, {});
}

ComparisonRow ValueRow(std::string_view id, std::string what, double reported, double ours, Unit unit) {
  CHECK_GT(reported, 0);
  return NumberRow(id, std::move(what), Quantity::kValue, reported, ours, std::move(unit));
}

ComparisonRow AtMostRow(std::string_view id, std::string what, double limit, double ours, Unit unit) {
  return NumberRow(id, std::move(what), Quantity::kAtMost, limit, ours, std::move(unit));
}

ComparisonRow AtLeastRow(std::string_view id, std::string what, double limit, double ours, Unit unit) {
  return NumberRow(id, std::move(what), Quantity::kAtLeast, limit, ours, std::move(unit));
}

ComparisonRow ClaimRow(std::string_view id, std::string what, std::string reported, std::string ours, bool holds) {
  return {.id = std::string(id),
          .what = std::move(what),
          .reported = std::move(reported),
          .ours = std::move(ours),
          .verdict = VerdictOfClaim(holds)};
}

ComparisonRow ReportedAs(ComparisonRow row, std::string reported) {
  row.reported = std::move(reported);
  return row;
}

ComparisonRow WithEvents(ComparisonRow row, std::int64_t events, std::string of) {
  row.events = events;
  row.events_of = std::move(of);
  row.ours += ShowEvents(row);
  row.verdict = Judge(row);
  return row;
}

const ComparisonRow* FindRow(std::span<const ComparisonRow> rows, const ComparisonRow& like) {
  const auto same = std::find_if(rows.begin(), rows.end(), [&](const ComparisonRow& row) {
    return row.id == like.id && row.what == like.what && row.quantity == like.quantity;
  });
  return same == rows.end() ? nullptr : &*same;
}

std::vector<ComparisonRow> CombineSeeds(std::span<const std::vector<ComparisonRow>> seeds) {
  CHECK_GT(seeds.size(), 0u);
  std::vector<ComparisonRow> combined;
  for (const ComparisonRow& first : seeds.front()) {
    std::vector<const ComparisonRow*> rows;
    for (const auto& seed : seeds) {
      if (const ComparisonRow* const row = FindRow(seed, first)) rows.push_back(row);
    }
    const auto twice = [&](const ComparisonRow& row) { return row.id == first.id && row.what == first.what; };
    CHECK_EQ(std::count_if(seeds.front().begin(), seeds.front().end(), twice), 1);
    combined.push_back(CombineRow(rows, seeds.size()));
  }
  return combined;
}

double MedianOf(std::vector<double> values) {
  CHECK_GT(values.size(), 0u);
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string ShowChange(double change) { return fmt::format("{:+.1f} %", 100 * change); }
std::string ShowFactor(double factor) { return fmt::format("{:.2f}x", factor); }

}  // namespace loramux
