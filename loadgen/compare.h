// Comparison of two runs.
#pragma once

#include <string>
#include <vector>

#include "loadgen/report.h"

namespace loramux::load {

// How run B compares with run A.
enum class Verdict { kSame, kBetter, kWorse };

// One value of both runs.
struct ComparedValue {
  std::string name;  // "TTFT P50"
  double a = 0, b = 0;
  bool higher_is_better = false;
  // The unit is milliseconds.
  bool is_ms = false;
  // B divided by A; 0 if A is 0.
  double ratio() const { return a == 0 ? 0 : b / a; }
  // kSame if the values differ by at most 2 %; smaller differences are mostly noise.
  Verdict verdict() const;
};

// Returns the values that both runs have. REQUIRES: both documents come from BuildReport.
std::vector<ComparedValue> CompareReports(const ReportJson& a, const ReportJson& b);

// Returns the settings in which the configurations differ, as "key: A -> B".
std::vector<std::string> ConfigurationDifferences(const ReportJson& a, const ReportJson& b);

// A report and the name to show for it.
struct NamedReport {
  std::string name;
  ReportJson report;
};
// Returns the comparison for a terminal.
std::string ConsoleComparison(const NamedReport& a, const NamedReport& b);
// Returns the comparison as an HTML page.
std::string HtmlComparison(const NamedReport& a, const NamedReport& b);

}  // namespace loramux::load
