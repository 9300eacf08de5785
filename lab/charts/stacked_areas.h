// A chart of stacked areas over time, in panels side by side with a common scale, as an SVG file.
#pragma once

#include <string>
#include <vector>

namespace loramux {

// The content of the chart.
struct StackedAreas {
  struct Panel {
    std::string name;
    std::vector<double> x;                    // ascending
    std::vector<std::vector<double>> layers;  // from the bottom up; each as long as x, values >= 0
  };
  std::string title, subtitle, x_label, y_label;
  std::vector<std::string> layers;  // names, from the bottom up; at most 8
  std::size_t blank = SIZE_MAX;     // index of a layer that is drawn in light grey, such as "free"
  std::vector<Panel> panels;        // at least one
};

// Renders the chart. REQUIRES: every panel has as many layers as there are names.
std::string RenderSvg(const StackedAreas& chart);

}  // namespace loramux
