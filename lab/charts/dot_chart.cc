#include "lab/charts/dot_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "base/check.h"
#include "lab/charts/svg_page.h"
#include "report/html.h"
#include "report/number_format.h"
#include "report/plot.h"

namespace loramux {
namespace {

constexpr double kWidth = 860, kLeft = 190, kRight = 820, kTop = 100, kRowHeight = 34;

struct Axis {
  double low = 0, high = 1;
  bool log = false;
  double X(double value) const {
    const double u = log ? std::log(std::max(value, low) / low) / std::log(high / low) : value / high;
    return kLeft + std::clamp(u, 0.0, 1.0) * (kRight - kLeft);
  }
  std::vector<double> Ticks() const { return log ? LogTicks(low, high) : loramux::Ticks(0, high, 8); }
};

Axis FitAxis(const DotChart& chart) {
  double least = std::numeric_limits<double>::infinity(), most = 0;
  bool any = false;
  for (const DotChart::Row& row : chart.rows) {
    CHECK_EQ(row.dots.size(), chart.series.size());
    for (const DotChart::Dot& dot : row.dots) {
      if (!dot.present) continue;
      any = true;
      if (dot.low > 0) least = std::min(least, dot.low);
      most = std::max(most, dot.high);
    }
  }
  CHECK(any);
  if (most <= 0) return {};
  if (most > 10 * least) return {.low = least / 1.3, .high = most * 1.2, .log = true};
  return {.low = 0, .high = most * 1.05};
}

std::string Grid(const DotChart& chart, const Axis& axis, double bottom) {
  std::string svg;
  for (const double x : axis.Ticks()) {
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>\n",
        axis.X(x), kTop, bottom, bottom + 18, x < 1 ? fmt::format("{:g}", x) : FormatNumber(x));
  }
  return svg + fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}{}</text>\n", (kLeft + kRight) / 2,
                           bottom + 42, EscapeHtml(chart.x_label), axis.log ? " (logarithmic)" : "");
}

std::string Key(const DotChart& chart) {
  std::string svg;
  double x = kLeft;
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"72\" r=\"5\" fill=\"{}\"/><text x=\"{:.1f}\" y=\"76\">{}</text>\n",
                       x, kChartColours[i], x + 10, EscapeHtml(chart.series[i]));
    x += 34 + 8 * static_cast<double>(chart.series[i].size());
  }
  return svg;
}

}  // namespace

std::string RenderSvg(const DotChart& chart) {
  CHECK_LE(chart.series.size(), kChartColours.size());
  const Axis axis = FitAxis(chart);
  const double bottom = kTop + kRowHeight * static_cast<double>(chart.rows.size());
  std::string svg =
      BeginSvgPage(kWidth, bottom + 60, chart.title, chart.subtitle) + Grid(chart, axis, bottom) + Key(chart);
  double y = kTop + kRowHeight / 2;
  for (const DotChart::Row& row : chart.rows) {
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/><text x=\"{3}\" y=\"{4:.1f}\" "
        "text-anchor=\"end\">{5}</text>\n",
        kLeft, kRight, y, kLeft - 12, y + 4, EscapeHtml(row.name));
    for (std::size_t i = 0; i < row.dots.size(); ++i) {
      const DotChart::Dot& dot = row.dots[i];
      if (!dot.present) continue;
      // Placed below each other, so that equal values do not hide each other.
      const double dot_y = y + 7 * (static_cast<double>(i) - static_cast<double>(row.dots.size() - 1) / 2);
      svg += fmt::format(
          "<line stroke=\"{0}\" stroke-width=\"2\" x1=\"{1:.1f}\" x2=\"{2:.1f}\" y1=\"{3:.1f}\" y2=\"{3:.1f}\"/>"
          "<circle cx=\"{4:.1f}\" cy=\"{3:.1f}\" r=\"4\" fill=\"{0}\"/>\n",
          kChartColours[i], axis.X(dot.low), axis.X(dot.high), dot_y, axis.X(dot.value));
    }
    y += kRowHeight;
  }
  return svg + "</svg>\n";
}

}  // namespace loramux
