#include "lab/charts/stacked_areas.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "lab/charts/svg_page.h"
#include "report/html.h"
#include "report/plot.h"

namespace loramux {
namespace {

constexpr double kWidth = 860, kTop = 96, kPanelWidth = 350, kPanelHeight = 190, kLeft = 64, kColumn = 410,
                 kRowHeight = 262;

struct Scale {
  double x = 1, y = 1;  // the largest values
};

Scale FitScale(const StackedAreas& chart) {
  Scale scale{.x = 0, .y = 0};
  for (const StackedAreas::Panel& panel : chart.panels) {
    CHECK_EQ(panel.layers.size(), chart.layers.size());
    for (std::size_t i = 0; i < panel.x.size(); ++i) {
      double sum = 0;
      for (const auto& layer : panel.layers) sum += layer[i];
      scale.y = std::max(scale.y, sum);
    }
    if (!panel.x.empty()) scale.x = std::max(scale.x, panel.x.back());
  }
  return {scale.x > 0 ? scale.x : 1, scale.y > 0 ? scale.y : 1};
}

const char* Colour(const StackedAreas& chart, std::size_t layer) {
  return layer == chart.blank ? "#eef1f5" : kChartColours[layer];
}

std::string Key(const StackedAreas& chart) {
  std::string svg;
  double x = kLeft;
  for (std::size_t i = 0; i < chart.layers.size(); ++i) {
    svg += fmt::format(
        "<rect x=\"{:.1f}\" y=\"62\" width=\"14\" height=\"12\" fill=\"{}\"/><text x=\"{:.1f}\" y=\"73\">{}</text>\n",
        x, Colour(chart, i), x + 20, EscapeHtml(chart.layers[i]));
    x += 46 + 8 * static_cast<double>(chart.layers[i].size());
  }
  return svg;
}

std::string Axes(const StackedAreas& chart, const Scale& scale, double left, double top, const std::string& name) {
  const double bottom = top + kPanelHeight;
  std::string svg = fmt::format("<text class=\"title\" x=\"{}\" y=\"{}\">{}</text>\n", left, top - 8, EscapeHtml(name));
  for (const double y : Ticks(0, scale.y, 5)) {
    const double at = bottom - y / scale.y * kPanelHeight;
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:g}</text>\n",
        left, left + kPanelWidth, at, left - 6, at + 4, y);
  }
  for (const double x : Ticks(0, scale.x, 6)) {
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:g}</text>\n",
                       left + x / scale.x * kPanelWidth, bottom + 17, x);
  }
  return svg + fmt::format(
                   "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>"
                   "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n",
                   left + kPanelWidth / 2, bottom + 34, EscapeHtml(chart.x_label), left + kPanelWidth, top - 8,
                   EscapeHtml(chart.y_label));
}

std::string Areas(const StackedAreas& chart, const StackedAreas::Panel& panel, const Scale& scale, double left,
                  double top) {
  std::string svg;
  std::vector<double> below(panel.x.size(), 0.0);
  const auto point = [&](std::size_t i) {
    return fmt::format("{:.1f},{:.1f} ", left + panel.x[i] / scale.x * kPanelWidth,
                       top + kPanelHeight - below[i] / scale.y * kPanelHeight);
  };
  for (std::size_t layer = 0; layer < panel.layers.size(); ++layer) {
    CHECK_EQ(panel.layers[layer].size(), panel.x.size());
    std::string points;
    for (std::size_t i = panel.x.size(); i-- > 0;) points += point(i);
    for (std::size_t i = 0; i < panel.x.size(); ++i) {
      below[i] += panel.layers[layer][i];
      points += point(i);
    }
    svg += fmt::format("<polygon fill=\"{}\" points=\"{}\"/>\n", Colour(chart, layer), points);
  }
  return svg;
}

}  // namespace

std::string RenderSvg(const StackedAreas& chart) {
  CHECK(!chart.panels.empty());
  CHECK_LE(chart.layers.size(), kChartColours.size());
  const Scale scale = FitScale(chart);
  const std::size_t rows = (chart.panels.size() + 1) / 2;
  std::string svg =
      BeginSvgPage(kWidth, kTop + 14 + kRowHeight * static_cast<double>(rows), chart.title, chart.subtitle) +
      Key(chart);
  for (std::size_t i = 0; i < chart.panels.size(); ++i) {
    const double left = kLeft + kColumn * static_cast<double>(i % 2),
                 top = kTop + 18 + kRowHeight * static_cast<double>(i / 2);
    svg += Axes(chart, scale, left, top, chart.panels[i].name) + Areas(chart, chart.panels[i], scale, left, top);
  }
  return svg + "</svg>\n";
}

}  // namespace loramux
