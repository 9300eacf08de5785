#include "report/plot.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "report/html.h"
#include "report/number_format.h"

namespace loramux {
namespace {

constexpr double kWidth = 420, kHeight = 246, kLeft = 50, kRight = 408, kTop = 24, kBottom = 200;

struct Axes {
  double x0 = 0, x1 = 1, y1 = 1;
  bool log_x = false;
  double X(double x) const {
    const double u = log_x ? std::log(x / x0) / std::log(x1 / x0) : (x - x0) / (x1 - x0);
    return kLeft + std::clamp(u, 0.0, 1.0) * (kRight - kLeft);
  }
  double Y(double y) const { return kBottom - std::clamp(y / y1, 0.0, 1.0) * (kBottom - kTop); }
};

std::string TickLabel(double value) { return value >= 1000 ? FormatNumber(value) : fmt::format("{:.4g}", value); }

template <typename Visit>
void ForEachPoint(const Plot& plot, const Visit& visit) {
  for (const PlotSeries& series : plot.series) {
    for (const auto& point : series.points) visit(point);
  }
  for (const auto& point : plot.dots) visit(point);
}

std::optional<Axes> FitAxes(const Plot& plot) {
  double low = std::numeric_limits<double>::infinity(), high = -low, top = 0;
  ForEachPoint(plot, [&](const std::pair<double, double>& point) {
    // False for values that are not numbers.
    const bool drawable = std::abs(point.first) < 1e300 && std::abs(point.second) < 1e300;
    if (!drawable) return;
    low = std::min(low, point.first);
    high = std::max(high, point.first);
    top = std::max(top, point.second);
  });
  if (!std::isfinite(low)) return std::nullopt;
  Axes axes{.log_x = plot.log_x && low > 0};
  if (axes.log_x) {
    axes.x0 = low;
    axes.x1 = std::max(high, low * 1.01);
  } else {
    axes.x0 = 0;
    axes.x1 = high > 0 ? high : 1;
  }
  axes.y1 = plot.y_max > 0 ? plot.y_max : (top > 0 ? Ticks(0, top * 1.1, 5).back() : 1);
  if (axes.y1 < top && plot.y_max <= 0) axes.y1 = top * 1.05;
  return axes;
}

std::string Grid(const Plot& plot, const Axes& axes) {
  std::string svg;
  for (const double y : Ticks(0, axes.y1, 5)) {
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
        "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
        kLeft, kRight, axes.Y(y), axes.Y(y), kLeft - 8, axes.Y(y) + 4, TickLabel(y));
  }
  for (const double x : axes.log_x ? LogTicks(axes.x0, axes.x1) : Ticks(axes.x0, axes.x1, 5)) {
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>",
        axes.X(x), kTop, kBottom, kBottom + 18, TickLabel(x));
  }
  svg += fmt::format("<line class=\"axis\" x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>", kLeft, kRight, kBottom, kBottom);
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>", kRight, kBottom + 36,
                     EscapeHtml(plot.x_label));
  svg += fmt::format("<text x=\"{}\" y=\"{}\">{}</text>", kLeft - 44, kTop - 12, EscapeHtml(plot.y_label));
  return svg;
}

// Returns the runs of points between gaps.
std::vector<std::vector<std::pair<double, double>>> Runs(const PlotSeries& series) {
  std::vector<std::vector<std::pair<double, double>>> runs(1);
  for (const auto& point : series.points) {
    if (std::isfinite(point.second)) {
      runs.back().push_back(point);
    } else if (!runs.back().empty()) {
      runs.emplace_back();
    }
  }
  return runs;
}

std::string Lines(const PlotSeries& series, const Axes& axes) {
  std::string svg;
  for (const auto& run : Runs(series)) {
    if (run.empty()) continue;
    if (run.size() == 1) {
      svg += fmt::format("<circle class=\"f{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\"/>", series.colour,
                         axes.X(run[0].first), axes.Y(run[0].second));
      continue;
    }
    std::string points;
    for (const auto& [x, y] : run) points += fmt::format("{:.1f},{:.1f} ", axes.X(x), axes.Y(y));
    points.pop_back();
    if (series.area) {
      svg += fmt::format("<polygon class=\"area f{}\" points=\"{:.1f},{} {} {:.1f},{}\"/>", series.colour,
                         axes.X(run.front().first), kBottom, points, axes.X(run.back().first), kBottom);
    }
    svg += fmt::format("<polyline class=\"line c{}\" points=\"{}\"/>", series.colour, points);
  }
  return svg;
}

std::string Dots(const Plot& plot, const Axes& axes) {
  std::string svg;
  for (const auto& [x, y] : plot.dots) {
    svg += fmt::format("<circle class=\"dot f{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.2\"/>", plot.dot_colour, axes.X(x),
                       axes.Y(y));
  }
  return svg;
}

std::string Marker(const Plot& plot, const Axes& axes) {
  if (!plot.marker_x || *plot.marker_x < axes.x0 || *plot.marker_x > axes.x1) return {};
  const double x = axes.X(*plot.marker_x);
  const bool left = x > kRight - 120;
  return fmt::format(
      "<line class=\"slo\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/><text x=\"{3:.1f}\" y=\"{4}\" "
      "text-anchor=\"{5}\">{6}</text>",
      x, kTop, kBottom, left ? x - 5 : x + 5, kTop + 10, left ? "end" : "start", EscapeHtml(plot.marker_label));
}

std::string Legend(const Plot& plot) {
  if (plot.series.size() < 2) return {};
  std::string html = "<span class=\"legend\">";
  for (const PlotSeries& series : plot.series) {
    html += fmt::format("<i class=\"c{}\"></i>{}", series.colour, EscapeHtml(series.name));
  }
  return html + "</span>";
}

// Returns the data that the script needs for the cross hair.
std::string PointerData(const Plot& plot, const Axes& axes) {
  nlohmann::json json{{"w", kWidth},   {"l", kLeft},        {"r", kRight},       {"x0", axes.x0},
                      {"x1", axes.x1}, {"log", axes.log_x}, {"x", plot.x_label}, {"s", nlohmann::json::array()}};
  for (const PlotSeries& series : plot.series) {
    nlohmann::json points = nlohmann::json::array();
    const auto number = [](double value) {
      return std::isfinite(value) ? nlohmann::json(std::round(value * 1e4) / 1e4) : nlohmann::json();
    };
    for (const auto& [x, y] : series.points) points.push_back({number(x), number(y)});
    json["s"].push_back({{"n", series.name}, {"p", std::move(points)}});
  }
  return EscapeHtml(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

std::vector<double> Ticks(double low, double high, int count) {
  const double raw = (high - low) / count, power = std::pow(10, std::floor(std::log10(raw)));
  const double rest = raw / power;
  const double step = power * (rest <= 1 ? 1 : rest <= 2 ? 2 : rest <= 5 ? 5 : 10);
  std::vector<double> ticks;  // + 0.0 avoids a minus sign before zero
  for (double k = std::ceil(low / step - 1e-9) + 0.0; k * step <= high * (1 + 1e-9); ++k) ticks.push_back(k * step);
  return ticks;
}

std::vector<double> LogTicks(double low, double high) {
  std::vector<double> ticks;
  const bool wide = high / low > 200;  // then powers of ten only
  for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      if (wide && step > 1) continue;
      if (step * power >= low * (1 - 1e-9) && step * power <= high * (1 + 1e-9)) ticks.push_back(step * power);
    }
  }
  return ticks;
}

std::string RenderPlot(const Plot& plot) {
  const std::optional<Axes> axes = FitAxes(plot);
  if (!axes) return {};
  std::string svg = Grid(plot, *axes) + Dots(plot, *axes);
  for (const PlotSeries& series : plot.series) svg += Lines(series, *axes);
  svg += Marker(plot, *axes);
  svg += fmt::format("<line class=\"hair\" x1=\"0\" x2=\"0\" y1=\"{}\" y2=\"{}\"/>", kTop, kBottom);
  return fmt::format(
      "<figure data-plot=\"{}\"><figcaption>{}{}</figcaption><svg viewBox=\"0 0 {} {}\" role=\"img\" "
      "aria-label=\"{}\">{}</svg><div class=\"tip\"></div></figure>\n",
      PointerData(plot, *axes), EscapeHtml(plot.title), Legend(plot), kWidth, kHeight, EscapeHtml(plot.title), svg);
}

}  // namespace loramux
