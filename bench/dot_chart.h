// Dots along one axis, a row for each thing compared and a colour for each condition, as an SVG file of its own.
#pragma once

#include <string>
#include <vector>

namespace loramux {

struct DotChart {
  // A value with the range that it came from; low == high: no whiskers.
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

// The axis is logarithmic where the largest value is more than ten times the smallest; otherwise it begins at 0. A
// value that is not above 0 is drawn at the axis' begin.
// REQUIRES: a dot that is present; as many dots in each row as there are series.
std::string RenderSvg(const DotChart& chart);

}  // namespace loramux
