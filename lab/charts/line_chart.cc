#include "lab/charts/line_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>

#include <fmt/format.h>

#include "base/check.h"
#include "lab/charts/svg_page.h"
#include "report/html.h"
#include "report/number_format.h"
#include "report/plot.h"

namespace loramux {
namespace {

constexpr double kWidth = 860, kHeight = 490, kLeft = 64, kRight = 600, kTop = 92, kBottom = 430;
// Dashes distinguish lines that coincide.
constexpr std::array<const char*, kChartColours.size()> kDashes = {"", "9 4", "", "3 3", "12 3 3 3", "6 3", "", "2 4"};

struct Axes {
  double x0 = std::numeric_limits<double>::infinity(), x1 = -x0, y0 = 0, y1 = 0;
  bool log_x = false, log_y = false;
  double X(double x) const {
    return kLeft + (log_x ? std::log(x / x0) / std::log(x1 / x0) : (x - x0) / (x1 - x0)) * (kRight - kLeft);
  }
  double Y(double y) const {
    return kBottom - (log_y ? std::log(y / y0) / std::log(y1 / y0) : y / y1) * (kBottom - kTop);
  }
};

Axes FitAxes(const Chart& chart) {
  Axes axes{.log_x = chart.log_x};
  double top = 0, bottom = std::numeric_limits<double>::infinity();
  for (const ChartLine& line : chart.lines) {
    for (const auto& [x, y] : line.points) {
      axes.x0 = std::min(axes.x0, x);
      axes.x1 = std::max(axes.x1, x);
      top = std::max(top, y);
      bottom = std::min(bottom, y);
    }
  }
  CHECK_LE(axes.x0, axes.x1);
  if (axes.x1 == axes.x0) axes.x1 = axes.x0 * 1.01 + 1;
  axes.y1 = top > 0 ? RoundEnd(top, 8) : 1;
  axes.log_y = chart.log_y && 0 < bottom && bottom < top;
  if (axes.log_y) std::tie(axes.y0, axes.y1) = RoundLogEnds(bottom, top);
  return axes;
}

std::string Grid(const Chart& chart, const Axes& axes) {
  std::string svg;
  for (const double y : axes.log_y ? LogTicks(axes.y0, axes.y1) : Ticks(0, axes.y1, 8)) {
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
        kLeft, kRight, axes.Y(y), kLeft - 8, axes.Y(y) + 4,
        axes.log_y && y >= 1 ? FormatNumber(y) : fmt::format("{:g}", y));
  }
  for (const double x : axes.log_x ? LogTicks(axes.x0, axes.x1) : Ticks(axes.x0, axes.x1, 6)) {
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>\n",
        axes.X(x), kTop, kBottom, kBottom + 18, x < 1 ? fmt::format("{:g}", x) : FormatNumber(x));
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", (kLeft + kRight) / 2, kBottom + 42,
                     EscapeHtml(chart.x_label));
  svg += fmt::format("<text x=\"{}\" y=\"{}\">{}</text>\n", kLeft - 40, kTop - 10, EscapeHtml(chart.y_label));
  return svg;
}

// The style of the n-th line of its kind.
std::string Style(bool reference, std::size_t n) {
  CHECK_LT(n, kChartColours.size());
  const char* const dashes = reference ? (n == 0 ? "" : "2 3") : kDashes[n];
  return fmt::format("stroke=\"{}\" stroke-width=\"{}\"{}", reference ? "#8b93a1" : kChartColours[n],
                     reference ? 1.6 : 2.2, *dashes == '\0' ? "" : fmt::format(" stroke-dasharray=\"{}\"", dashes));
}

}  // namespace

std::string RenderSvg(const Chart& chart) {
  const Axes axes = FitAxes(chart);
  std::string svg = BeginSvgPage(kWidth, kHeight, chart.title, chart.subtitle);
  svg += Grid(chart, axes);
  std::size_t references = 0, others = 0;
  // Each name is at the height of its line's end, as far as there is room.
  std::vector<double> ends;
  for (const ChartLine& line : chart.lines)
    ends.push_back(line.points.empty() ? kBottom : axes.Y(line.points.back().second));
  const std::vector<double> places = SpreadLabels(ends, 20, kTop + 8, kBottom - 4);
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const ChartLine& line = chart.lines[i];
    const double key_y = places[i];
    const std::string style = Style(line.reference, line.reference ? references++ : others++);
    std::string points;
    for (const auto& [x, y] : line.points) points += fmt::format("{:.1f},{:.1f} ", axes.X(x), axes.Y(y));
    svg += fmt::format("<polyline {} points=\"{}\"/>\n", style, points);
    svg += fmt::format(
        "<line class=\"key\" {0} x1=\"{1}\" x2=\"{2}\" y1=\"{4}\" y2=\"{4}\"/><text x=\"{5}\" y=\"{6}\">{3}</text>\n",
        style, kRight + 20, kRight + 52, EscapeHtml(line.name), key_y, kRight + 60, key_y + 4);
  }
  return svg + "</svg>\n";
}

}  // namespace loramux
