// Rows of comparison between a document's figure and ours, and the verdict on them. Effects are compared as logarithms
// of factors, so that half and twice are equally far from no effect: a change of -0.246 is the factor 0.754.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace loramux {

// How this project's effect compares with the reported one.
enum class Verdict : std::uint8_t {
  kAgrees,        // same direction, log factor within a third of the reported one; or both within the dead band
  kWeaker,        // same direction, log factor smaller by more than a third
  kStronger,      // larger by more than a third; or an effect where the document reports none
  kNoEffect,      // ours lies within the dead band, the reported effect does not
  kOpposite,      // ours lies outside the dead band in the other direction; or a claim does not hold
  kUndecided,     // the direction, or whether a claim holds, depends on the seed
  kNotExercised,  // nothing happened that the row is about
  kInformation,   // the document reports nothing to compare with
};
const char* VerdictName(Verdict verdict);
constexpr std::size_t kVerdicts = static_cast<std::size_t>(Verdict::kInformation) + 1;

// Factors from 1 / 1.05 to 1.05 are no effect.
constexpr double kDeadBand = 0.05;
// Compares two factors, both of at least 0: the effect is the logarithm.
Verdict CompareFactors(double reported, double ours);
// The same for relative changes: -0.246 is the factor 0.754.
Verdict CompareEffects(double reported, double ours);
// The verdict on a claim that holds or does not ("under 150 ms", "in this order").
inline Verdict VerdictOfClaim(bool holds) { return holds ? Verdict::kAgrees : Verdict::kOpposite; }

// What a row's numbers are.
enum class Quantity : std::uint8_t {
  kText,     // none: only text and verdict
  kChange,   // a factor, shown as a relative change: "-24.6 %"
  kFactor,   // a factor: "1.53x"
  kValue,    // a value with a unit, compared with the reported one; it has no direction
  kAtMost,   // a value with a unit that must not exceed the reported one
  kAtLeast,  // ... that must reach it
};
const char* QuantityName(Quantity quantity);

// One row of a comparison.
struct ComparisonRow {
  std::string id, what, reported, ours;
  Verdict verdict = Verdict::kInformation;
  std::string origin = "simulated";  // or "measured", "counted"

  Quantity quantity = Quantity::kText;
  double reported_number = 0;   // for kText unused
  std::vector<double> numbers;  // ours, one a seed; empty for kText
  std::string unit;             // unit of values, with a leading space: " ms"
  int decimals = 0;             // decimals of values
  // How often that happened which the row is about (squashes, prefetches); 0 makes the row "not exercised".
  std::optional<std::int64_t> events;
  std::string events_of;  // "squashes"
};

// Rows for a relative change (-0.246), a factor (1.53), and a claim that holds or does not.
ComparisonRow ChangeRow(std::string_view id, std::string what, double reported, double ours);
ComparisonRow FactorRow(std::string_view id, std::string what, double reported, double ours);
ComparisonRow ClaimRow(std::string_view id, std::string what, std::string reported, std::string ours, bool holds);

// How a value is shown: "8.6 RPS" has the unit " RPS" and one decimal.
struct Unit {
  std::string name;
  int decimals = 0;
};
// Rows for values in a unit: within a third of the reported one; at most, or at least, the reported one.
ComparisonRow ValueRow(std::string_view id, std::string what, double reported, double ours, Unit unit);
ComparisonRow AtMostRow(std::string_view id, std::string what, double limit, double ours, Unit unit);
ComparisonRow AtLeastRow(std::string_view id, std::string what, double limit, double ours, Unit unit);

// Returns the row with the document's own words for its figure: "more than -50 %".
ComparisonRow ReportedAs(ComparisonRow row, std::string reported);
// Returns the row with the number of events that it is about: "squashes", "prefetches". Several seeds add theirs.
ComparisonRow WithEvents(ComparisonRow row, std::int64_t events, std::string of);

// Marks, in a row's text, a target that this project sets for a comparison with a document's figures; it does not count
// among what the document claims.
inline constexpr std::string_view kOurTarget = "(our target)";
inline bool IsOurTarget(const ComparisonRow& row) { return row.what.find(kOurTarget) != std::string::npos; }

// Returns the row with the id, text and quantity of `like`; null if there is none.
const ComparisonRow* FindRow(std::span<const ComparisonRow> rows, const ComparisonRow& like);

// Combines the rows of several seeds, matched by id and text, in the order of the first seed's. Rows with numbers show
// the median and, in brackets, the smallest and the largest; so do numbers within text. A direction that differs by
// seed is undecided. A row that some seeds lack says so. REQUIRES: a seed, and
// no two rows of a seed with the same id and text.
std::vector<ComparisonRow> CombineSeeds(std::span<const std::vector<ComparisonRow>> seeds);

// The median of values in any order. REQUIRES: a value.
double MedianOf(std::vector<double> values);

// Formats -0.246 as "-24.6 %", and 1.53 as "1.53x".
std::string ShowChange(double change);
std::string ShowFactor(double factor);

}  // namespace loramux
