// A chart of reported against own effects as an SVG file. Both axes are logarithmic factors; on the diagonal the two
// agree.
#pragma once

#include <string>
#include <vector>

namespace loramux {

// The content of the chart.
struct EffectChart {
  struct Point {
    std::string name;
    double reported = 1, ours = 1, low = 1, high = 1;  // factors above 0; low and high: the spread of ours
    std::size_t series = 0;
  };
  std::string title, subtitle;
  std::vector<std::string> series;  // at most 8, each with a colour; the key names those that have points
  std::vector<Point> points;
  double dead_band = 0.05;  // factors from 1 / (1 + dead_band) to 1 + dead_band are shaded: no effect
};

// Renders the chart. REQUIRES: a point.
std::string RenderSvg(const EffectChart& chart);

}  // namespace loramux
