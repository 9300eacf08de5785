#include "tools/doctor/examine.h"

#include <algorithm>

#include <fmt/format.h>

#include "report/shown_text.h"
#include "tools/doctor/checks.h"

namespace loramux {
namespace {

const char* VerdictName(CheckVerdict verdict) {
  switch (verdict) {
    case CheckVerdict::kOk:
      return "ok";
    case CheckVerdict::kBetter:
      return "better";
    case CheckVerdict::kWrong:
      return "wrong";
  }
  return "wrong";
}

std::int64_t CountVerdicts(const std::vector<Finding>& findings, CheckVerdict verdict) {
  return std::count_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.verdict == verdict; });
}

std::string Summary(const std::vector<Finding>& findings) {
  const std::int64_t better = CountVerdicts(findings, CheckVerdict::kBetter);
  const std::int64_t wrong = CountVerdicts(findings, CheckVerdict::kWrong);
  const std::string could =
      better == 0 ? "Nothing could be better." : fmt::format("{} of {} could be better.", better, findings.size());
  if (wrong == 0) return "loramux can serve on this machine. " + could + "\n";
  return fmt::format("loramux cannot serve here yet: {} of {} wrong. {}\n", wrong, findings.size(), could);
}

}  // namespace

std::vector<Finding> Examine(const SystemFiles& files, const MachineFacts& facts) {
  const CgroupLimits limits = ReadCgroupLimits(files);
  return {CheckInstructions(files), CheckProcessors(files, limits),
          CheckLoad(files),         CheckFrequency(files),
          CheckNuma(files),         CheckMemory(files, limits),
          CheckOvercommit(files),   CheckHugePages(files),
          CheckGpu(files, facts),   CheckAddress(facts),
          CheckOpenFiles(files),    CheckTasks(files, limits),
          CheckCache(facts)};
}

bool PreventsServing(const std::vector<Finding>& findings) { return CountVerdicts(findings, CheckVerdict::kWrong) > 0; }

std::string FindingsAsText(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += fmt::format("{:<7} {:<14} {}\n", VerdictName(finding.verdict), finding.name, ShownText(finding.found));
    if (!finding.advice.empty()) text += fmt::format("{:<22} -> {}\n", "", ShownText(finding.advice));
  }
  return text + Summary(findings);
}

nlohmann::ordered_json FindingsAsJson(const std::vector<Finding>& findings) {
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    nlohmann::ordered_json check = {{"name", finding.name},
                                    {"verdict", VerdictName(finding.verdict)},
                                    {"found", ShownText(finding.found)},
                                    {"advice", nullptr}};
    if (!finding.advice.empty()) check["advice"] = ShownText(finding.advice);
    checks.push_back(std::move(check));
  }
  return {{"serves", !PreventsServing(findings)}, {"checks", std::move(checks)}};
}

}  // namespace loramux
