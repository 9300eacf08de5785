// A line chart as an SVG file for results kept in the repository; readable on light and dark pages.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace loramux {

// One line of a chart.
struct ChartLine {
  std::string name;
  std::vector<std::pair<double, double>> points;  // ascending by x
  bool reference = false;                         // a bound, drawn in grey
};

// The content of a line chart.
struct Chart {
  std::string title, subtitle, x_label, y_label;
  std::vector<ChartLine> lines;  // at most 8 that are not references
  bool log_x = false;            // all x > 0
  bool log_y = false;            // where all y > 0
};

// Renders the chart. REQUIRES: a line with a point.
std::string RenderSvg(const Chart& chart);

}  // namespace loramux
