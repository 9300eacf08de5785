// Rows of experiments with one assumption changed at a time: what would have to be true where a row is opposite or
// without effect. The index lists such rows with the assumptions that turn them (WriteExperimentIndex).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/experiments/experiment.h"

namespace loramux {

// The title of every such table, by which the index finds it.
inline constexpr std::string_view kAssumptionsTitle = "Rows with one assumption changed at a time";

// Rows under one assumption.
struct RowsUnder {
  std::string assumption;  // "as the document is read", or what is changed
  std::vector<ComparisonRow> rows;
};

// Whether a row is opposite or without effect; whether it has the document's direction; whether it says so of either:
// rows that are not exercised, or information, do not.
bool IsMissed(const ComparisonRow& row);
bool HasDirection(const ComparisonRow& row);
bool Decides(const ComparisonRow& row);

// What a table says of a row that has the direction without a change (there, it may have fewer requests or seeds than
// on its own page), and of one that no assumption decided.
inline constexpr std::string_view kAsRead = "already as the document is read, in this table";
inline constexpr std::string_view kNotMeasured = "not measured";

// Returns the table: a line for each row of `all.front()`, which are those without a change; a column for each
// assumption; then the assumptions under which a row has the document's direction. `note` follows the title. A row that
// an assumption lacks is "-" there, and counts as none that was tried; so does one that does not decide. REQUIRES: an
// assumption.
ExperimentTable TableOfAssumptions(std::span<const RowsUnder> all, std::string_view note = {});

// What a table of assumptions says of a row.
struct Turned {
  std::string id, what, under;  // under: "an objective of 2 s; ...", "none of 3", kAsRead or kNotMeasured
};
// Returns what the table says of each of its rows; nothing if it is no table of assumptions.
std::vector<Turned> TurnedRows(const ExperimentTable& table);

}  // namespace loramux
