#include "lab/experiments/assumption_rows.h"

#include <fmt/format.h>

#include "base/check.h"

namespace loramux {

bool IsMissed(const ComparisonRow& row) {
  return row.verdict == Verdict::kOpposite || row.verdict == Verdict::kNoEffect;
}

bool Decides(const ComparisonRow& row) {
  return row.verdict != Verdict::kNotExercised && row.verdict != Verdict::kInformation;
}

bool HasDirection(const ComparisonRow& row) {
  return row.verdict == Verdict::kAgrees || row.verdict == Verdict::kWeaker || row.verdict == Verdict::kStronger;
}

ExperimentTable TableOfAssumptions(std::span<const RowsUnder> all, std::string_view note) {
  CHECK_GT(all.size(), 0u);
  ExperimentTable table{std::string(kAssumptionsTitle), {"id", "what", "reported"}, {}};
  if (!note.empty()) table.title += fmt::format(": {}", note);
  for (const RowsUnder& under : all) table.header.push_back(under.assumption);
  table.header.emplace_back("the document's direction under");
  for (const ComparisonRow& row : all.front().rows) {
    std::vector<std::string>& cells = table.rows.emplace_back(std::vector<std::string>{row.id, row.what, row.reported});
    std::string turned;
    std::size_t measured = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const ComparisonRow* const same = FindRow(all[i].rows, row);
      cells.push_back(same == nullptr ? "-" : fmt::format("{}: **{}**", same->ours, VerdictName(same->verdict)));
      if (i == 0 || same == nullptr || !Decides(*same)) continue;
      ++measured;
      if (HasDirection(*same)) turned += (turned.empty() ? "" : "; ") + all[i].assumption;
    }
    if (HasDirection(row))
      cells.emplace_back(kAsRead);
    else if (measured == 0)
      cells.emplace_back(kNotMeasured);
    else
      cells.push_back(turned.empty() ? fmt::format("none of {}", measured) : turned);
  }
  return table;
}

std::vector<Turned> TurnedRows(const ExperimentTable& table) {
  std::vector<Turned> turned;
  if (!table.title.starts_with(kAssumptionsTitle)) return turned;
  for (const std::vector<std::string>& row : table.rows) {
    if (row.size() > 3) turned.push_back({row[0], row[1], row.back()});
  }
  return turned;
}

}  // namespace loramux
