// A chart of dots along one axis as an SVG file: a row per compared item, a colour per condition.
#pragma once

#include <string>
#include <vector>

namespace loramux {

// The content of a dot chart.
struct DotChart {
  // A value with its range; low == high: no whiskers.
  struct Dot {
    double value = 0, low = 0, high = 0;
    bool present = true;
  };
  struct Row {
    std::string name;
    std::vector<Dot> dots;  // by series
  };
  std::string title, subtitle, x_label;
  std::vector<std::string> series;  // at most 8
  std::vector<Row> rows;
};

// Renders the chart. The axis is logarithmic if the largest value is more than ten times the smallest; otherwise it
// begins at 0. A value of 0 or less is drawn at the axis' begin. REQUIRES: a dot that is present; as many dots in each
// row as there are series.
std::string RenderSvg(const DotChart& chart);

}  // namespace loramux
