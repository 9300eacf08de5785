#include "lab/experiments/validation_report.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/text_file.h"
#include "lab/charts/line_chart.h"
#include "lab/raw_data.h"
#include "profile/pace_fit.h"
#include "workload/statistics.h"

namespace loramux {
namespace {

struct Figure {
  const char* name;
  const char* key;
  double LatencyFigures::*value;
  double bound;
};
constexpr std::array kFigures = {Figure{"TPOT", "tpot_ms", &LatencyFigures::tpot_ms, kTpotBound},
                                 Figure{"TTFT P50", "ttft_p50_ms", &LatencyFigures::ttft_p50_ms, kTtftBound},
                                 Figure{"TTFT P90", "ttft_p90_ms", &LatencyFigures::ttft_p90_ms, kTtftBound}};

// The other figures of a run, by their names in JSON.
struct Number {
  const char* key;
  double ValidationRun::*value;
};
constexpr std::array kNumbers = {Number{"rate", &ValidationRun::rate},
                                 Number{"saturation", &ValidationRun::saturation},
                                 Number{"fit_error", &ValidationRun::fit_error},
                                 Number{"linear_fit_error", &ValidationRun::linear_fit_error},
                                 Number{"unevenness", &ValidationRun::unevenness},
                                 Number{"step_time_ratio", &ValidationRun::step_time_ratio},
                                 Number{"once_step_time_ratio", &ValidationRun::once_step_time_ratio},
                                 Number{"between_steps_us", &ValidationRun::between_steps_us},
                                 Number{"submit_latency_us", &ValidationRun::submit_latency_us},
                                 Number{"busy", &ValidationRun::busy},
                                 Number{"adapter_hits", &ValidationRun::adapter_hits},
                                 Number{"simulated_adapter_hits", &ValidationRun::simulated_adapter_hits}};
using Side = LatencyFigures ValidationRun::*;
constexpr std::array<std::pair<const char*, Side>, 6> kSides = {{{"real", &ValidationRun::real},
                                                                 {"simulated", &ValidationRun::simulated},
                                                                 {"even", &ValidationRun::even},
                                                                 {"beside", &ValidationRun::beside},
                                                                 {"linear", &ValidationRun::linear},
                                                                 {"once", &ValidationRun::once}}};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return Quantile(values, 0.5);
}

// The repetitions of one preset under one load.
struct Cell {
  std::string preset;
  int load_percent = 0;
  std::vector<const ValidationRun*> runs;

  double Of(Side side, const Figure& figure) const {
    std::vector<double> values;
    for (const ValidationRun* run : runs) values.push_back(run->*side.*figure.value);
    return Median(std::move(values));
  }
  double Of(double ValidationRun::*number) const {
    std::vector<double> values;
    for (const ValidationRun* run : runs) values.push_back(run->*number);
    return Median(std::move(values));
  }
  // Compares each repetition with its own real run: requests and machine speed differ between repetitions.
  std::vector<double> Differences(Side side, const Figure& figure) const {
    std::vector<double> differences;
    for (const ValidationRun* run : runs)
      differences.push_back(run->*side.*figure.value / (run->real.*figure.value) - 1);
    return differences;
  }
  double Difference(Side side, const Figure& figure) const { return Median(Differences(side, figure)); }
  // The least and largest difference of the simulated runs.
  std::pair<double, double> Range(const Figure& figure) const {
    const std::vector<double> differences = Differences(&ValidationRun::simulated, figure);
    const auto [least, largest] = std::minmax_element(differences.begin(), differences.end());
    return {*least, *largest};
  }
  bool Within(Side side, const Figure& figure) const { return std::abs(Difference(side, figure)) <= figure.bound; }
};

std::int64_t CountWithin(const std::vector<Cell>& cells, Side side) {
  std::int64_t within = 0;
  for (const Cell& cell : cells) {
    for (const Figure& figure : kFigures) within += cell.Within(side, figure);
  }
  return within;
}

// By load, then in the presets' order of appearance.
std::vector<Cell> CellsOf(const std::vector<ValidationRun>& runs) {
  std::vector<Cell> cells;
  for (const ValidationRun& run : runs) {
    const auto found = std::find_if(cells.begin(), cells.end(), [&](const Cell& cell) {
      return cell.preset == run.preset && cell.load_percent == run.load_percent;
    });
    if (found != cells.end()) {
      found->runs.push_back(&run);
    } else {
      cells.push_back({.preset = run.preset, .load_percent = run.load_percent, .runs = {&run}});
    }
  }
  std::stable_sort(cells.begin(), cells.end(),
                   [](const Cell& a, const Cell& b) { return a.load_percent < b.load_percent; });
  return cells;
}

std::string Percent(double share) { return fmt::format("{:+.1f}", 100 * share + 0.0); }

std::string MainTable(const std::vector<Cell>& cells) {
  std::string text = "| load | preset |";
  for (const Figure& figure : kFigures)
    text += fmt::format(" {} real | simulated | difference % | repetitions % |", figure.name);
  text += "\n|---|---|" + std::string("---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const Cell& cell : cells) {
    text += fmt::format("| {} % | `{}` |", cell.load_percent, cell.preset);
    for (const Figure& figure : kFigures) {
      const auto [low, high] = cell.Range(figure);
      const std::string difference = Percent(cell.Difference(&ValidationRun::simulated, figure));
      text += fmt::format(" {:.3f} | {:.3f} | {} | {} to {} |", cell.Of(&ValidationRun::real, figure),
                          cell.Of(&ValidationRun::simulated, figure),
                          cell.Within(&ValidationRun::simulated, figure) ? difference : "**" + difference + "**",
                          Percent(low), Percent(high));
    }
    text += "\n";
  }
  return text;
}

std::string ModelTable(const std::vector<Cell>& cells) {
  std::string text =
      "| load | preset | requests per second | executor busy | adapter hits real | simulated | steps fitted "
      "| mean error of a step % | linear terms only % | unevenness % | all steps: model / measured % "
      "| all steps, measured once: model / measured % |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const Cell& cell : cells) {
    text +=
        fmt::format("| {} % | `{}` | {:.1f} | {:.0f} % | {:.0f} % | {:.0f} % | {} | {:.1f} | {:.1f} | {} | {} | {} |\n",
                    cell.load_percent, cell.preset, cell.Of(&ValidationRun::rate), 100 * cell.Of(&ValidationRun::busy),
                    100 * cell.Of(&ValidationRun::adapter_hits), 100 * cell.Of(&ValidationRun::simulated_adapter_hits),
                    cell.runs.front()->fitted_steps, 100 * cell.Of(&ValidationRun::fit_error),
                    100 * cell.Of(&ValidationRun::linear_fit_error), Percent(cell.Of(&ValidationRun::unevenness)),
                    Percent(cell.Of(&ValidationRun::step_time_ratio) - 1),
                    Percent(cell.Of(&ValidationRun::once_step_time_ratio) - 1));
  }
  return text;
}

// The simulator's results with less information.
std::string LessTable(const std::vector<Cell>& cells) {
  struct Less {
    const char* name;
    Side side;
  };
  constexpr std::array<Less, 4> kLess = {{{"one pace", &ValidationRun::even},
                                          {"pace beside", &ValidationRun::beside},
                                          {"linear", &ValidationRun::linear},
                                          {"once", &ValidationRun::once}}};
  std::string header = "| load | preset |", rule = "|---|---|",
              within = "| within | of " + std::to_string(cells.size()) + " |";
  for (const Less& less : kLess) {
    for (const Figure& figure : kFigures) {
      header += fmt::format(" {}, {} % |", figure.name, less.name);
      rule += "---|";
      const auto is_within = [&](const Cell& cell) { return cell.Within(less.side, figure); };
      within += fmt::format(" {} |", std::count_if(cells.begin(), cells.end(), is_within));
    }
  }
  std::string text = header + "\n" + rule + "\n";
  for (const Cell& cell : cells) {
    text += fmt::format("| {} % | `{}` |", cell.load_percent, cell.preset);
    for (const Less& less : kLess) {
      for (const Figure& figure : kFigures) text += fmt::format(" {} |", Percent(cell.Difference(less.side, figure)));
    }
    text += "\n";
  }
  return text + within + "\n";
}

std::string AsMarkdown(const ValidationReport& report, const std::vector<Cell>& cells, const std::string& raw) {
  std::size_t least = cells.front().runs.size(), most = least;
  for (const Cell& cell : cells) {
    least = std::min(least, cell.runs.size());
    most = std::max(most, cell.runs.size());
  }
  const auto figures = static_cast<std::int64_t>(cells.size() * kFigures.size());
  std::string text = "# The simulator against the real engine\n";
  text += fmt::format(
      "Written by `lab/experiments/simulator_validation`. [simulator.md](../design/simulator.md) explains the "
      "method and the result under \"Validation\".\n\n{}, {}.\n\n```\n{}\n```\n{}\n\n{}\n\n",
      report.machine, report.date, report.command, RawDataLine(raw), report.setting);
  text += fmt::format(
      "Milliseconds, medians of {} repetitions with different requests. \"Difference\": the median over the "
      "repetitions of the difference between a simulated run and its real run. \"Repetitions\": the least and the "
      "largest of these differences. TPOT is the mean over requests; TTFT counts from the time of sending. Bounds: "
      "TPOT within {:.0f} %, TTFT within {:.0f} %; **bold**: outside. {} of {} figures are within; {} if the machine "
      "is assumed to run always at its average speed (below).\n\n",
      least == most ? std::to_string(least) : fmt::format("{} to {}", least, most), 100 * kTpotBound, 100 * kTtftBound,
      CountWithin(cells, &ValidationRun::simulated), figures, CountWithin(cells, &ValidationRun::even));
  text += MainTable(cells) + "\n![TTFT P90 by load, real and simulated](simulator_validation.svg)\n\n";
  text +=
      "## Inputs of the simulation\nThe profile has the form that `loramux profile` makes: linear terms from steps "
      "that are measured one by one, and factors from steps of the running engine. The factors are fitted to the real "
      "run itself, by the same function. Factors fitted to the steps of every other quarter of a second simulate the "
      "requests sent in the quarters between, and vice versa. So the cost of a combined step is known from other "
      "moments only. The machine's speed, which no simulator can predict, is given, as are the times of sending. For "
      "each interval of " +
      std::to_string(kPaceStretch / kNsPerMs) +
      " ms of computing, it is the measured time of all its steps over the model's time (`loramux simulate --pace`). "
      "No run is left out.\n\n" +
      ModelTable(cells) +
      "\n\"Unevenness\": how far the second with the slowest or fastest steps was from the average, by the profile "
      "measured before all runs.\n\n"
      "## With less information\nDifferences in %, as above. \"One pace\": the same model, for a machine that always "
      "runs at its average speed. \"Pace beside\": with the pace of the quarters of a second that the model was fitted "
      "to, each also used for the next quarter; the judged moments are unknown. \"Linear\": the same without factors. "
      "\"Once\": the profile measured before all runs, under loads of its own, with its pace: the result for an "
      "operator that measures a profile on one day and simulates on another.\n\n" +
      LessTable(cells);
  return text;
}

nlohmann::ordered_json AsJson(const ValidationRun& run) {
  nlohmann::ordered_json json{{"preset", run.preset},
                              {"load_percent", run.load_percent},
                              {"requests", run.requests},
                              {"fitted_steps", run.fitted_steps}};
  for (const Number& number : kNumbers) json[number.key] = run.*number.value;
  for (const auto& [name, side] : kSides) {
    for (const Figure& figure : kFigures) json[name][figure.key] = run.*side.*figure.value;
  }
  return json;
}

std::string AsJson(const ValidationReport& report, const std::vector<Cell>& cells) {
  nlohmann::ordered_json json{{"command", report.command},
                              {"machine", report.machine},
                              {"date", report.date},
                              {"setting", report.setting},
                              {"outside_bounds", OutsideBounds(report)}};
  for (const Cell& cell : cells) {
    nlohmann::ordered_json row{{"preset", cell.preset}, {"load_percent", cell.load_percent}};
    for (const Figure& figure : kFigures) {
      row[figure.key] = {{"real", cell.Of(&ValidationRun::real, figure)},
                         {"simulated", cell.Of(&ValidationRun::simulated, figure)},
                         {"difference", cell.Difference(&ValidationRun::simulated, figure)},
                         {"difference_even", cell.Difference(&ValidationRun::even, figure)},
                         {"difference_linear", cell.Difference(&ValidationRun::linear, figure)},
                         {"within", cell.Within(&ValidationRun::simulated, figure)}};
    }
    json["cells"].push_back(std::move(row));
  }
  for (const ValidationRun& run : report.runs) json["runs"].push_back(AsJson(run));
  return json.dump(1) + "\n";
}

std::string AsSvg(const std::vector<Cell>& cells) {
  Chart chart{.title = "TTFT P90: the real engine and the simulator",
              .subtitle = "demo model on the CPU, medians of the repetitions",
              .x_label = "load, % of saturation",
              .y_label = "ms",
              .lines = {}};
  for (const auto& [name, side] : {kSides[0], kSides[1]}) {
    for (const Cell& cell : cells) {
      const std::string line = cell.preset + ", " + name;
      auto found =
          std::find_if(chart.lines.begin(), chart.lines.end(), [&](const ChartLine& at) { return at.name == line; });
      if (found == chart.lines.end())
        found = chart.lines.insert(chart.lines.end(), ChartLine{.name = line, .points = {}});
      found->points.emplace_back(cell.load_percent, cell.Of(side, kFigures[2]));
    }
  }
  return RenderSvg(chart);
}

}  // namespace

LatencyFigures FiguresOf(const std::vector<ServedRequest>& requests, TimeNs warm_up) {
  std::vector<double> ttft, tpot;
  for (const ServedRequest& request : requests) {
    if (request.sent < warm_up) continue;
    ttft.push_back(static_cast<double>(request.first_token - request.sent) / kNsPerMs);
    if (request.tokens < 2) continue;
    tpot.push_back(static_cast<double>(request.last_token - request.first_token) / kNsPerMs / (request.tokens - 1));
  }
  const Summary first = Summarise(std::move(ttft));
  return {.tpot_ms = Summarise(std::move(tpot)).mean, .ttft_p50_ms = first.p50, .ttft_p90_ms = first.p90};
}

std::string RunAsJsonLine(const ValidationRun& run) { return AsJson(run).dump() + "\n"; }

Result<std::vector<ValidationRun>> ReadRuns(const std::filesystem::path& file) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file.string()));
  std::vector<ValidationRun> runs;
  for (std::size_t begin = 0, line = 1; begin < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    try {
      const auto json = nlohmann::json::parse(text.substr(begin, end - begin));
      ValidationRun& run = runs.emplace_back();
      run.preset = json.at("preset").get<std::string>();
      run.load_percent = json.at("load_percent").get<int>();
      run.requests = json.at("requests").get<std::int64_t>();
      run.fitted_steps = json.at("fitted_steps").get<std::int64_t>();
      for (const Number& number : kNumbers) run.*number.value = json.at(number.key).get<double>();
      for (const auto& [name, side] : kSides) {
        for (const Figure& figure : kFigures) run.*side.*figure.value = json.at(name).at(figure.key).get<double>();
      }
    } catch (const nlohmann::json::exception& error) {
      return InvalidArgument(fmt::format("{}: line {}: {}", file.string(), line, error.what()));
    }
    begin = end + 1;
  }
  return runs;
}

std::int64_t OutsideBounds(const ValidationReport& report) {
  const std::vector<Cell> cells = CellsOf(report.runs);
  return static_cast<std::int64_t>(cells.size() * kFigures.size()) - CountWithin(cells, &ValidationRun::simulated);
}

Status WriteReport(const ValidationReport& report, const std::filesystem::path& folder) {
  const std::vector<Cell> cells = CellsOf(report.runs);
  CHECK(!cells.empty());
  std::error_code ignored;  // a failure shows when writing
  std::filesystem::create_directories(folder, ignored);
  const std::string raw = AsJson(report, cells);
  RETURN_IF_ERROR(WriteTextFile((folder / "simulator_validation.md").string(), AsMarkdown(report, cells, raw)));
  RETURN_IF_ERROR(WriteTextFile((folder / "simulator_validation.json").string(), raw));
  return WriteTextFile((folder / "simulator_validation.svg").string(), AsSvg(cells));
}

}  // namespace loramux
