// HTML reports of runs: one self-contained file with light and dark colours.
#pragma once

#include <string>

#include "loadgen/report.h"

namespace loramux::load {

// Returns the page for a document of BuildReport. Does not trust the strings in the document.
std::string HtmlReport(const ReportJson& report);

// Returns the line below the title of a report: the server, the load and the time of the run.
std::string DescribeRun(const ReportJson& report);

}  // namespace loramux::load
