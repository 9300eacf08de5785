#include "experiments/report.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "formats/file.h"

namespace loramux {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::size_t kMaxReportBytes = 16 << 20;

// Escapes vertical bars, which would end a cell.
std::string Cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.replace(at, 1, "\\|");
  return text;
}

std::string TableLine(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const std::string& cell : cells) line.append(" ").append(Cell(cell)).append(" |");
  return line.append("\n");
}

std::string TableAsMarkdown(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows) {
  std::string text = TableLine(header) + "|";
  for (std::size_t i = 0; i < header.size(); ++i) text += "---|";
  text += "\n";
  for (const auto& row : rows) {
    CHECK_EQ(row.size(), header.size());
    text += TableLine(row);
  }
  return text;
}

const std::vector<std::string> kComparisonHeader = {"id", "what", "reported", "ours", "verdict", "origin"};

std::vector<std::vector<std::string>> ComparisonCells(const ExperimentResult& result) {
  std::vector<std::vector<std::string>> rows;
  for (const ComparisonRow& row : result.comparison) {
    rows.push_back({row.id, row.what, row.reported, row.ours, VerdictName(row.verdict), row.origin});
  }
  return rows;
}

Status WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return IoError(path + ": cannot be written", "--output");
  return Ok{};
}

// Returns the rows of comparison in an <id>.json.
Result<std::vector<std::vector<std::string>>> ReadComparison(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxReportBytes));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::vector<std::vector<std::string>> rows;
  if (!json.is_object() || !json.contains("comparison") || !json["comparison"].is_array()) {
    return InvalidArgument(path + ": not a result of `loramux experiment`", "--output");
  }
  for (const Json& row : json["comparison"]) {
    std::vector<std::string>& cells = rows.emplace_back();
    for (const std::string& name : kComparisonHeader) {
      const bool known = row.is_object() && row.contains(name) && row[name].is_string();
      cells.push_back(known ? row[name].get<std::string>() : "");
    }
  }
  return rows;
}

}  // namespace

std::string ExperimentCommand(const Experiment& experiment, const ExperimentContext& context) {
  std::string command = fmt::format("loramux experiment {} --seed {}", experiment.id, context.seed);
  if (context.scale != 1) command += fmt::format(" --scale {:g}", context.scale);
  return command;
}

std::string ExperimentAsMarkdown(const Experiment& experiment, const ExperimentResult& result,
                                 const std::string& command) {
  std::string text =
      fmt::format("# {}\n{}. Covers {}. Written by `{}`; meaning of the verdicts: [results](README.md).\n\n",
                  experiment.title, experiment.source, experiment.covers, command);
  text += TableAsMarkdown(kComparisonHeader, ComparisonCells(result));
  if (!result.remarks.empty()) text += "\n## Differences and further observations\n";
  for (const std::string& remark : result.remarks) text += "- " + remark + "\n";
  text += "\n## Setting\n" + result.setting + "\n";
  for (const ExperimentTable& table : result.tables)
    text += "\n## " + table.title + "\n" + TableAsMarkdown(table.header, table.rows);
  for (const ExperimentPlot& plot : result.plots) {
    text += fmt::format("\n![{}]({}_{}.svg)\n", plot.title, experiment.id, plot.name);
  }
  return text;
}

std::string ExperimentAsJson(const Experiment& experiment, const ExperimentResult& result, const std::string& command) {
  Json json;
  json["id"] = experiment.id;
  json["covers"] = experiment.covers;
  json["title"] = experiment.title;
  json["source"] = experiment.source;
  json["command"] = command;
  json["setting"] = result.setting;
  json["comparison"] = Json::array();
  for (const auto& cells : ComparisonCells(result)) {
    Json row;
    for (std::size_t i = 0; i < cells.size(); ++i) row[kComparisonHeader[i]] = cells[i];
    json["comparison"].push_back(std::move(row));
  }
  json["remarks"] = result.remarks;
  json["tables"] = Json::array();
  for (const ExperimentTable& table : result.tables) {
    json["tables"].push_back({{"title", table.title}, {"header", table.header}, {"rows", table.rows}});
  }
  return json.dump(1) + "\n";
}

std::string ComparisonAsText(const ExperimentResult& result) {
  std::vector<std::vector<std::string>> rows = ComparisonCells(result);
  rows.insert(rows.begin(), kComparisonHeader);
  std::vector<std::size_t> widths(kComparisonHeader.size(), 0);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

Status WriteExperiment(const std::string& directory, const Experiment& experiment, const ExperimentResult& result,
                       const std::string& command) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return IoError(directory + ": " + error.message(), "--output");
  const std::string path = directory + "/" + std::string(experiment.id);
  RETURN_IF_ERROR(WriteText(path + ".md", ExperimentAsMarkdown(experiment, result, command)));
  RETURN_IF_ERROR(WriteText(path + ".json", ExperimentAsJson(experiment, result, command)));
  for (const ExperimentPlot& plot : result.plots) RETURN_IF_ERROR(WriteText(path + "_" + plot.name + ".svg", plot.svg));
  return Ok{};
}

Status WriteExperimentIndex(const std::string& directory, std::span<const Experiment> experiments) {
  std::string rows;
  std::map<std::string, int> counts;
  for (const Experiment& experiment : experiments) {
    const std::string path = directory + "/" + std::string(experiment.id) + ".json";
    std::error_code ignored;  // a file that cannot be accessed counts as absent
    if (!std::filesystem::exists(path, ignored)) continue;
    ASSIGN_OR_RETURN(const auto comparison, ReadComparison(path));
    for (auto row : comparison) {
      ++counts[row[4]];
      row[0] = fmt::format("[{}]({}.md)", row[0], experiment.id);
      rows += TableLine(row);
    }
  }
  std::string text =
      "# Experiments: reported and reproduced results\nWritten by `loramux experiment`; [how to run it and how to read "
      "this page](README.md).\n\n";
  for (const char* verdict : {"agrees", "weaker", "stronger", "opposite", "information"}) {
    text += fmt::format("{}{} {}", verdict == std::string_view("agrees") ? "" : ", ", counts[verdict], verdict);
  }
  text += ".\n\n" + TableAsMarkdown(kComparisonHeader, {}) + rows;
  return WriteText(directory + "/experiments.md", text);
}

}  // namespace loramux
