#include "report/plot.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "report/html.h"
#include "report/number_format.h"

namespace loramux {
namespace {

constexpr double kWidth = 420, kHeight = 246, kLeft = 50, kWidest = 408, kTop = 24, kBottom = 200;
constexpr double kLabelGap = 14, kLetter = 6.4, kSample = 18;  // sizes of labels beside the curves
constexpr double kHides = 2;                                   // pixels between curves that hide each other
// What of a cumulative curve must be in view, in %.
constexpr double kFirstShown = 0.5, kLastShown = 99.5;

struct Axes {
  double x0 = 0, x1 = 1, y1 = 1;
  double right = kWidest;
  double beyond = 0;  // cumulative: the largest share that lies beyond x1, in %
  bool log_x = false;
  double X(double x) const {
    const double u = log_x ? std::log(x / x0) / std::log(x1 / x0) : (x - x0) / (x1 - x0);
    return kLeft + std::clamp(u, 0.0, 1.0) * (right - kLeft);
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

bool HasLabels(const Plot& plot) {
  const bool areas = std::any_of(plot.series.begin(), plot.series.end(), [](const PlotSeries& s) { return s.area; });
  return plot.series.size() > 1 && !areas;
}

// Where the plot ends at the right, so that the labels have room.
double RightEnd(const Plot& plot) {
  if (!HasLabels(plot)) return kWidest;
  std::size_t letters = 0;
  for (const PlotSeries& series : plot.series) letters = std::max(letters, series.name.size());
  return kWidest - std::min(140.0, kSample + 8 + kLetter * static_cast<double>(letters));
}

// The range of x in which cumulative curves go from kFirstShown to kLastShown.
void FitCumulative(const Plot& plot, double& low, double& high, double& beyond) {
  double first = high, last = low;
  for (const PlotSeries& series : plot.series) {
    for (const auto& [x, y] : series.points) {
      if (y >= kFirstShown) first = std::min(first, x);
      if (y <= kLastShown) last = std::max(last, x);
    }
  }
  if (first < last) low = first, high = last;
  if (plot.marker_x) high = std::max(high, *plot.marker_x);  // a far objective is news too
  const double end = plot.log_x && low > 0 && low < high ? RoundLogEnds(low, high).second : high;
  for (const PlotSeries& series : plot.series) {
    double seen = 0;
    for (const auto& [x, y] : series.points) seen = x <= end ? y : seen;
    if (!series.points.empty()) beyond = std::max(beyond, 100 - seen);
  }
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
  Axes axes{.right = RightEnd(plot)};
  if (plot.cumulative) FitCumulative(plot, low, high, axes.beyond);
  axes.log_x = plot.log_x && low > 0;
  if (axes.log_x) {
    std::tie(axes.x0, axes.x1) = RoundLogEnds(low, std::max(high, low * 1.01));
  } else {
    axes.x0 = 0;
    axes.x1 = high > 0 ? RoundEnd(high, 5) : 1;
  }
  axes.y1 = plot.y_max > 0 ? plot.y_max : (top > 0 ? RoundEnd(top, 5) : 1);
  return axes;
}

std::string Grid(const Plot& plot, const Axes& axes) {
  std::string svg;
  for (const double y : Ticks(0, axes.y1, 5)) {
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
        "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
        kLeft, axes.right, axes.Y(y), axes.Y(y), kLeft - 8, axes.Y(y) + 4, TickLabel(y));
  }
  for (const double x : axes.log_x ? LogTicks(axes.x0, axes.x1) : Ticks(axes.x0, axes.x1, 5)) {
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>",
        axes.X(x), kTop, kBottom, kBottom + 18, TickLabel(x));
  }
  svg += fmt::format("<line class=\"axis\" x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>", kLeft, axes.right, kBottom,
                     kBottom);
  const std::string beyond = axes.beyond < 0.05 ? "" : fmt::format("up to {:.1f} % lie further right; ", axes.beyond);
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>", axes.right, kBottom + 36,
                     EscapeHtml(beyond + plot.x_label));
  svg += fmt::format("<text x=\"{}\" y=\"{}\">{}</text>", kLeft - 44, kTop - 12, EscapeHtml(plot.y_label));
  return svg;
}

// Returns the runs of points between gaps, within the axes.
std::vector<std::vector<std::pair<double, double>>> Runs(const PlotSeries& series, const Axes& axes) {
  std::vector<std::vector<std::pair<double, double>>> runs(1);
  for (const auto& point : series.points) {
    if (std::isfinite(point.second) && point.first <= axes.x1 * (1 + 1e-9)) {
      runs.back().push_back(point);
    } else if (!runs.back().empty()) {
      runs.emplace_back();
    }
  }
  return runs;
}

// The curve's height at x, in pixels; nullopt outside it.
std::optional<double> HeightAt(const PlotSeries& series, const Axes& axes, double x) {
  const auto after =
      std::lower_bound(series.points.begin(), series.points.end(), x,
                       [](const std::pair<double, double>& point, double at) { return point.first < at; });
  if (after == series.points.end()) return std::nullopt;
  if (after->first == x || after == series.points.begin())
    return after->first == x ? std::optional(axes.Y(after->second)) : std::nullopt;
  const auto before = after - 1;
  const double part =
      (axes.X(x) - axes.X(before->first)) / std::max(1e-9, axes.X(after->first) - axes.X(before->first));
  return axes.Y(before->second) + part * (axes.Y(after->second) - axes.Y(before->second));
}

// Whether much of the curve lies on one before it, so that it must not hide that one.
bool Hides(const Plot& plot, std::size_t which, const Axes& axes) {
  const PlotSeries& series = plot.series[which];
  for (std::size_t other = 0; other < which; ++other) {
    std::size_t near = 0;
    for (const auto& [x, y] : series.points) {
      const auto height = HeightAt(plot.series[other], axes, x);
      near += height && std::abs(*height - axes.Y(y)) < kHides ? 1 : 0;
    }
    if (5 * near > series.points.size()) return true;
  }
  return false;
}

// The dashes of each curve: those that lie on another one have gaps, through which it is seen.
std::vector<std::string> DashesOf(const Plot& plot, const Axes& axes) {
  constexpr std::array kDashes = {"7 5", "2 5", "11 4 2 4", "4 3"};
  std::vector<std::string> dashes;
  std::size_t hiding = 0;
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    const bool hides = !plot.series[i].area && Hides(plot, i, axes);
    dashes.push_back(hides ? fmt::format(" stroke-dasharray=\"{}\"", kDashes[hiding++ % kDashes.size()]) : "");
  }
  return dashes;
}

std::string Lines(const PlotSeries& series, const Axes& axes, const std::string& dashes) {
  std::string svg;
  for (const auto& run : Runs(series, axes)) {
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
    svg += fmt::format("<polyline class=\"line c{}\"{} points=\"{}\"/>", series.colour, dashes, points);
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
  const bool left = x > axes.right - 60;
  return fmt::format(
      "<line class=\"slo\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/><text x=\"{3:.1f}\" y=\"{4}\" "
      "text-anchor=\"{5}\">{6}</text>",
      x, kTop, kBottom, left ? x + 4 : x - 4, kTop - 3, left ? "end" : "start", EscapeHtml(plot.marker_label));
}

// Names beside the ends of the curves; in the order of their heights on average, so that the uppermost is first.
std::string Labels(const Plot& plot, const Axes& axes, const std::vector<std::string>& dashes) {
  if (!HasLabels(plot)) return {};
  struct Label {
    std::size_t series = 0;
    double end = kBottom, mean = 0;
  };
  std::vector<Label> labels;
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    Label label{.series = i};
    double count = 0;
    for (const auto& [x, y] : plot.series[i].points) {
      if (!std::isfinite(y) || x > axes.x1 * (1 + 1e-9)) continue;
      label.end = axes.Y(y);
      label.mean += axes.Y(y);
      ++count;
    }
    label.mean = count > 0 ? label.mean / count : kBottom;
    labels.push_back(label);
  }
  std::stable_sort(labels.begin(), labels.end(), [](const Label& a, const Label& b) {
    return std::abs(a.end - b.end) > kHides ? a.end < b.end : a.mean < b.mean;
  });
  std::vector<double> wanted;
  for (const Label& label : labels) wanted.push_back(label.end);
  const std::vector<double> places = SpreadLabels(wanted, kLabelGap, kTop + 2, kBottom - 4);
  std::string svg;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const PlotSeries& series = plot.series[labels[i].series];
    svg += fmt::format(
        "<line class=\"line c{0}\"{1} x1=\"{2:.1f}\" x2=\"{3:.1f}\" y1=\"{4:.1f}\" y2=\"{4:.1f}\"/>"
        "<text class=\"name f{0}\" x=\"{5:.1f}\" y=\"{6:.1f}\">{7}</text>",
        series.colour, dashes[labels[i].series], axes.right + 5, axes.right + 5 + kSample, places[i],
        axes.right + 9 + kSample, places[i] + 4, EscapeHtml(series.name));
  }
  return svg;
}

std::string Legend(const Plot& plot) {
  if (plot.series.size() < 2 || HasLabels(plot)) return {};
  std::string html = "<span class=\"legend\">";
  for (const PlotSeries& series : plot.series) {
    html += fmt::format("<i class=\"c{}\"></i>{}", series.colour, EscapeHtml(series.name));
  }
  return html + "</span>";
}

// Returns the data that the script needs for the cross hair.
std::string PointerData(const Plot& plot, const Axes& axes) {
  nlohmann::json json{{"w", kWidth},   {"l", kLeft},        {"r", axes.right},   {"x0", axes.x0},
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

double RoundEnd(double high, int count) {
  const std::vector<double> ticks = Ticks(0, high, count);
  const double step = ticks.size() > 1 ? ticks[1] : high;
  return step * std::max(1.0, std::ceil(high / step - 1e-9));
}

std::pair<double, double> RoundLogEnds(double low, double high) {
  const auto below = [](double value) {  // the largest of 1, 2, 5, 10, ... that is not above
    const double power = std::pow(10, std::floor(std::log10(value) + 1e-9));
    const double rest = value / power * (1 + 1e-9);
    return power * (rest >= 5 ? 5 : rest >= 2 ? 2 : 1);
  };
  const double first = below(low), last = below(high);
  if (last * (1 + 1e-9) >= high) return {first, std::max(last, first * 2)};
  const double power = std::pow(10, std::floor(std::log10(last) + 1e-9));
  const double rest = std::round(last / power);
  return {first, power * (rest >= 5 ? 10 : rest >= 2 ? 5 : 2)};
}

std::vector<double> SpreadLabels(const std::vector<double>& wanted, double gap, double low, double high) {
  std::vector<std::size_t> order(wanted.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return wanted[a] < wanted[b]; });
  // Groups of labels that touch lie around the mean of what they want.
  struct Group {
    double middle = 0;
    std::size_t count = 0;
  };
  std::vector<Group> groups;
  const auto fit = [&](Group& group) {
    const double half = gap * static_cast<double>(group.count - 1) / 2;
    group.middle = std::max(low + half, std::min(group.middle, high - half));
  };
  for (const std::size_t label : order) {
    groups.push_back({wanted[label], 1});
    fit(groups.back());
    while (groups.size() > 1) {
      Group &last = groups.back(), &before = groups[groups.size() - 2];
      const double apart = gap * static_cast<double>(last.count + before.count) / 2;
      if (last.middle - before.middle >= apart - 1e-9) break;
      const auto a = static_cast<double>(before.count), b = static_cast<double>(last.count);
      before.middle = (a * before.middle + b * last.middle) / (a + b);
      before.count += last.count;
      fit(before);
      groups.pop_back();
    }
  }
  std::vector<double> places(wanted.size());
  std::size_t next = 0;
  for (const Group& group : groups) {
    for (std::size_t i = 0; i < group.count; ++i, ++next)
      places[order[next]] = group.middle + gap * (static_cast<double>(i) - static_cast<double>(group.count - 1) / 2);
  }
  return places;
}

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
  const std::vector<std::string> dashes = DashesOf(plot, *axes);
  for (std::size_t i = 0; i < plot.series.size(); ++i) svg += Lines(plot.series[i], *axes, dashes[i]);
  svg += Labels(plot, *axes, dashes);
  svg += Marker(plot, *axes);
  svg += fmt::format("<line class=\"hair\" x1=\"0\" x2=\"0\" y1=\"{}\" y2=\"{}\"/>", kTop, kBottom);
  return fmt::format(
      "<figure data-plot=\"{}\"><figcaption>{}{}</figcaption><svg viewBox=\"0 0 {} {}\" role=\"img\" "
      "aria-label=\"{}\">{}</svg><div class=\"tip\"></div></figure>\n",
      PointerData(plot, *axes), EscapeHtml(plot.title), Legend(plot), kWidth, kHeight, EscapeHtml(plot.title), svg);
}

}  // namespace loramux
