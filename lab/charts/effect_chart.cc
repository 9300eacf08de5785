#include "lab/charts/effect_chart.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "base/check.h"
#include "lab/charts/svg_page.h"
#include "report/html.h"
#include "report/plot.h"

namespace loramux {
namespace {

constexpr double kWidth = 680, kHeight = 520, kLeft = 64, kRight = 540, kTop = 72, kBottom = 452;
constexpr double kLetter = 6.2, kLine = 12;  // about the size of a letter of a point's name

struct LogAxis {
  double low = 1, high = 1, from = 0, to = 1;  // values, and where they lie on the page
  double At(double value) const {
    return from + std::log(std::clamp(value, low, high) / low) / std::log(high / low) * (to - from);
  }
};

// Both axes reach from half to twice, so that no effect can be seen, and hold the ends of all spreads.
std::array<LogAxis, 2> FitAxes(const EffectChart& chart) {
  LogAxis x{.low = 0.45, .high = 2.2, .from = kLeft, .to = kRight},
      y{.low = 0.45, .high = 2.2, .from = kBottom, .to = kTop};
  const auto widen = [](LogAxis& axis, double value) {
    axis.low = std::min(axis.low, value / 1.15);
    axis.high = std::max(axis.high, value * 1.15);
  };
  for (const EffectChart::Point& point : chart.points) {
    CHECK_GT(std::min({point.reported, point.ours, point.low}), 0.0);
    widen(x, point.reported);
    for (const double value : {point.ours, point.low, point.high}) widen(y, value);
  }
  return {x, y};
}

// At most eight ticks: a long axis names every second or third of them.
std::vector<double> FewTicks(const LogAxis& axis) {
  std::vector<double> ticks = LogTicks(axis.low, axis.high), few;
  const std::size_t every = (ticks.size() + 7) / 8;
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    if (every == 1 || i % every == 0) few.push_back(ticks[i]);
  }
  if (std::find(few.begin(), few.end(), 1.0) == few.end()) few.push_back(1);
  return few;
}

std::string Rectangle(const char* style, double x0, double x1, double y0, double y1) {
  return fmt::format("<rect {} x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n", style,
                     std::min(x0, x1), std::min(y0, y1), std::abs(x1 - x0), std::abs(y1 - y0));
}

std::string Background(const EffectChart& chart, const LogAxis& x, const LogAxis& y) {
  const double band = 1 + chart.dead_band;
  const char* const shade = "fill=\"#8b93a1\" fill-opacity=\"0.22\"";
  std::string svg = Rectangle(shade, kLeft, kRight, y.At(1 / band), y.At(band)) +
                    Rectangle(shade, x.At(1 / band), x.At(band), kTop, kBottom);
  for (const double tick : FewTicks(x)) {
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:g}x</text>\n",
        x.At(tick), kTop, kBottom, kBottom + 18, tick);
  }
  for (const double tick : FewTicks(y)) {
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:g}x</text>\n",
        kLeft, kRight, y.At(tick), kLeft - 8, y.At(tick) + 4, tick);
  }
  const double low = std::max(x.low, y.low), high = std::min(x.high, y.high);
  svg += fmt::format(
      "<polyline stroke=\"#8b93a1\" stroke-width=\"1.6\" stroke-dasharray=\"6 4\" points=\"{:.1f},{:.1f} "
      "{:.1f},{:.1f}\"/>\n",
      x.At(low), y.At(low), x.At(high), y.At(high));
  return svg + fmt::format(
                   "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">reported factor (logarithmic)</text>"
                   "<text x=\"{}\" y=\"{}\">ours</text>\n",
                   (kLeft + kRight) / 2, kBottom + 42, kLeft - 40, kTop - 8);
}

// Names beside their points. A name that would lie over another name or a point is left out.
class Names {
 public:
  void AddPoint(double x, double y) { taken_.push_back({x - 5, x + 5, y - 5, y + 5}); }
  std::string Place(const std::string& name, double x, double y) {
    const double width = kLetter * static_cast<double>(name.size());
    const std::array<std::array<double, 2>, 6> places = {{{x + 8, y + 4},
                                                          {x - 8 - width, y + 4},
                                                          {x + 5, y - 7},
                                                          {x + 5, y + 16},
                                                          {x - 5 - width, y - 7},
                                                          {x - 5 - width, y + 16}}};
    for (const auto& [left, base] : places) {
      const Box box{left, left + width, base - kLine + 2, base + 2};
      const bool inside = box.x0 > kLeft && box.x1 < kRight && box.y0 > kTop && box.y1 < kBottom;
      if (!inside || std::any_of(taken_.begin(), taken_.end(), [&](const Box& other) { return box.Meets(other); }))
        continue;
      taken_.push_back(box);
      return fmt::format("<text style=\"font-size:11px\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", left, base,
                         EscapeHtml(name));
    }
    return "";
  }

 private:
  struct Box {
    double x0, x1, y0, y1;
    bool Meets(const Box& other) const { return x0 < other.x1 && other.x0 < x1 && y0 < other.y1 && other.y0 < y1; }
  };
  std::vector<Box> taken_;
};

std::string Key(const EffectChart& chart) {
  std::string svg;
  double y = kTop + 8;
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const auto has = [i](const EffectChart::Point& point) { return point.series == i; };
    if (std::none_of(chart.points.begin(), chart.points.end(), has)) continue;
    svg += fmt::format("<circle cx=\"{0}\" cy=\"{1}\" r=\"5\" fill=\"{2}\"/><text x=\"{3}\" y=\"{4}\">{5}</text>\n",
                       kRight + 22, y, kChartColours[i], kRight + 34, y + 4, EscapeHtml(chart.series[i]));
    y += 22;
  }
  y += 10;
  svg += fmt::format(
      "<polyline stroke=\"#8b93a1\" stroke-width=\"1.6\" stroke-dasharray=\"6 4\" points=\"{0},{1} {2},{1}\"/>"
      "<text x=\"{3}\" y=\"{4}\">the same</text>\n",
      kRight + 14, y, kRight + 30, kRight + 34, y + 4);
  y += 22;
  return svg + Rectangle("fill=\"#8b93a1\" fill-opacity=\"0.22\"", kRight + 14, kRight + 30, y - 6, y + 6) +
         fmt::format("<text x=\"{}\" y=\"{}\">no effect</text>\n", kRight + 34, y + 4);
}

}  // namespace

std::string RenderSvg(const EffectChart& chart) {
  CHECK_GT(chart.points.size(), 0u);
  CHECK_LE(chart.series.size(), kChartColours.size());
  const auto [x, y] = FitAxes(chart);
  std::string svg = BeginSvgPage(kWidth, kHeight, chart.title, chart.subtitle) + Background(chart, x, y);
  Names names;
  for (const EffectChart::Point& point : chart.points) names.AddPoint(x.At(point.reported), y.At(point.ours));
  for (const EffectChart::Point& point : chart.points) {
    CHECK_LT(point.series, chart.series.size());
    svg += fmt::format(
        "<line stroke=\"{0}\" stroke-width=\"2\" stroke-opacity=\"0.6\" x1=\"{1:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" "
        "y2=\"{3:.1f}\"/><circle cx=\"{1:.1f}\" cy=\"{4:.1f}\" r=\"4.5\" fill=\"{0}\"/>\n",
        kChartColours[point.series], x.At(point.reported), y.At(point.low), y.At(point.high), y.At(point.ours));
  }
  for (const EffectChart::Point& point : chart.points)
    svg += names.Place(point.name, x.At(point.reported), y.At(point.ours));
  return svg + Key(chart) + "</svg>\n";
}

}  // namespace loramux
