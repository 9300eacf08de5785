// Two runs side by side.
#pragma once

#include <string>
#include <vector>

#include "tools/bench/report.h"

namespace loramux::load {

enum class Verdict { kSame, kBetter, kWorse };

struct ComparedValue {
  std::string name;  // "TTFT P50"
  double a = 0, b = 0;
  bool higher_is_better = false;
  bool is_ms = false;
  // B divided by A; 0 if A is 0.
  double ratio() const { return a == 0 ? 0 : b / a; }
  // kSame within 2 %: less than that is rarely more than noise.
  Verdict verdict() const;
};

// The values that both runs have. REQUIRES: documents of BuildReport.
std::vector<ComparedValue> CompareReports(const ReportJson& a, const ReportJson& b);

// What differs in the two configurations, "key: A -> B"; a comparison of unlike runs should say so.
std::vector<std::string> ConfigurationDifferences(const ReportJson& a, const ReportJson& b);

struct NamedReport {
  std::string name;
  ReportJson report;
};
std::string ConsoleComparison(const NamedReport& a, const NamedReport& b);
std::string HtmlComparison(const NamedReport& a, const NamedReport& b);

}  // namespace loramux::load
