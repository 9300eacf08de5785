// The summary that a run prints to the terminal.
#pragma once

#include <string>

#include "loadgen/report.h"

namespace loramux::load {

// Returns the summary of a document of BuildReport, ending with a line break. Lists at most `adapters` adapters, the
// busiest first.
std::string ConsoleSummary(const ReportJson& report, std::size_t adapters = 20);

// Returns `text`, which may come from others, without control characters, cut to `width` code points (with a mark) and
// padded to that width.
std::string FixedWidth(const std::string& text, std::size_t width);
// Like FixedWidth, without padding.
std::string OneLine(const std::string& text, std::size_t width);

}  // namespace loramux::load
