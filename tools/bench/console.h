// The summary that a run prints.
#pragma once

#include <string>

#include "tools/bench/report.h"

namespace loramux::load {

// Of a document of BuildReport; ends with a line break. At most `adapters` adapters are listed, the busiest first.
std::string ConsoleSummary(const ReportJson& report, std::size_t adapters = 20);

// `text` without control characters, cut at `width` code points (with a mark) and padded to it: for names of others.
std::string FixedWidth(const std::string& text, std::size_t width);
// The same without the padding.
std::string OneLine(const std::string& text, std::size_t width);

}  // namespace loramux::load
