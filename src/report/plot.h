// Line plots as inline SVG.
#pragma once

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace loramux {

// One line. Points ascend by x; a y that is not a number is a gap in the line.
struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;
  int colour = 1;     // 1 to 8
  bool area = false;  // fill the area down to the axis
};

// A plot with a linear y axis from 0.
struct Plot {
  std::string title, x_label, y_label;
  std::vector<PlotSeries> series;
  std::vector<std::pair<double, double>> dots;  // drawn behind the lines
  int dot_colour = 1;
  std::optional<double> marker_x;  // a vertical line, e.g. for an objective
  std::string marker_label;
  bool log_x = false;  // logarithmic x axis; used only if every x > 0
  double y_max = 0;    // upper end of the y axis; 0: from the data
};

// Returns a <figure>, or an empty string if there is nothing to draw.
std::string RenderPlot(const Plot& plot);

// Return about `count` round numbers from low to high, or 1, 2, 5, 10, ... for a logarithmic axis. REQUIRES: low <
// high.
std::vector<double> Ticks(double low, double high, int count);
std::vector<double> LogTicks(double low, double high);

}  // namespace loramux
