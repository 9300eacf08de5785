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
  // y is the share, in %, of what has at most this x. The x axis then ends where it can be read, and says how much lies
  // beyond.
  bool cumulative = false;
};

// Returns a <figure>, or an empty string if there is nothing to draw.
std::string RenderPlot(const Plot& plot);

// The least round number that is at least `high`, so that an axis from 0 ends at one of about `count` ticks; and the
// widest range of round numbers that a logarithmic axis from `low` to `high` needs. REQUIRES: high > 0; 0 < low < high.
double RoundEnd(double high, int count);
std::pair<double, double> RoundLogEnds(double low, double high);

// Moves labels apart, each as little as is possible in their order, until `gap` is between any two and all are from
// `low` to `high`, as far as there is room. Returns the new places, in the order of `wanted`.
std::vector<double> SpreadLabels(const std::vector<double>& wanted, double gap, double low, double high);

// Return about `count` round numbers from low to high, or 1, 2, 5, 10, ... for a logarithmic axis. REQUIRES: low <
// high.
std::vector<double> Ticks(double low, double high, int count);
std::vector<double> LogTicks(double low, double high);

}  // namespace loramux
