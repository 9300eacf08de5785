// Line plots as inline SVG.
#pragma once

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace loramux::load {

// Points ascend by x; a y that is not a number is a gap in the line.
struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;
  int colour = 1;     // 1 to 8
  bool area = false;  // filled down to the axis
};

struct Plot {
  std::string title, x_label, y_label;
  std::vector<PlotSeries> series;
  std::vector<std::pair<double, double>> dots;  // behind the lines
  int dot_colour = 1;
  std::optional<double> marker_x;  // a vertical line: an objective
  std::string marker_label;
  bool log_x = false;  // all x > 0
  double y_max = 0;    // 0: of the data
};

// A <figure>, or an empty string if there is nothing to see.
std::string RenderPlot(const Plot& plot);

// About `count` round numbers from low to high, or 1, 2, 5, 10, ... for a logarithmic axis. REQUIRES: low < high.
std::vector<double> Ticks(double low, double high, int count);
std::vector<double> LogTicks(double low, double high);

}  // namespace loramux::load
