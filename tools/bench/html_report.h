// Reports that can be looked at: one file, nothing loaded from elsewhere, light and dark.
#pragma once

#include <string>

#include "tools/bench/report.h"

namespace loramux::load {

// Of a document of BuildReport. Its strings are not trusted.
std::string HtmlReport(const ReportJson& report);

// The line under a report's title: against what, how, when.
std::string DescribeRun(const ReportJson& report);

}  // namespace loramux::load
