#include "lab/experiments/report.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/text_file.h"
#include "formats/file.h"
#include "lab/experiments/assumption_rows.h"
#include "lab/raw_data.h"

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

std::vector<std::string> CellsOf(const ComparisonRow& row) {
  return {row.id, row.what, row.reported, row.ours, VerdictName(row.verdict), row.origin};
}

std::vector<std::vector<std::string>> ComparisonCells(const ExperimentResult& result) {
  std::vector<std::vector<std::string>> rows;
  for (const ComparisonRow& row : result.comparison) rows.push_back(CellsOf(row));
  return rows;
}

Json RowAsJson(const ComparisonRow& row) {
  Json json;
  const std::vector<std::string> cells = CellsOf(row);
  for (std::size_t i = 0; i < cells.size(); ++i) json[kComparisonHeader[i]] = cells[i];
  if (row.quantity != Quantity::kText) {
    json["quantity"] = QuantityName(row.quantity);
    json["reported_number"] = row.reported_number;
    json["numbers"] = row.numbers;
  }
  if (row.events) json["events"] = *row.events;
  return json;
}

// The inverse of RowAsJson; what is absent or of another type stays empty.
ComparisonRow RowOfJson(const Json& json) {
  ComparisonRow row;
  if (!json.is_object()) return row;
  const auto text = [&](const char* name) {
    return json.contains(name) && json[name].is_string() ? json[name].get<std::string>() : std::string();
  };
  row.id = text("id");
  row.what = text("what");
  row.reported = text("reported");
  row.ours = text("ours");
  row.origin = text("origin");
  for (std::size_t i = 0; i < kVerdicts; ++i) {
    if (text("verdict") == VerdictName(static_cast<Verdict>(i))) row.verdict = static_cast<Verdict>(i);
  }
  for (const Quantity quantity :
       {Quantity::kChange, Quantity::kFactor, Quantity::kValue, Quantity::kAtMost, Quantity::kAtLeast}) {
    if (text("quantity") == QuantityName(quantity)) row.quantity = quantity;
  }
  row.reported_number = json.contains("reported_number") && json["reported_number"].is_number()
                            ? json["reported_number"].get<double>()
                            : 0;
  if (json.contains("numbers") && json["numbers"].is_array()) {
    for (const Json& number : json["numbers"]) {
      if (number.is_number()) row.numbers.push_back(number.get<double>());
    }
  }
  if (row.numbers.empty()) row.quantity = Quantity::kText;
  return row;
}

// The verdicts of a document's rows.
struct VerdictCounts {
  std::array<int, kVerdicts> counts = {};
  void Add(Verdict verdict) { ++counts[static_cast<std::size_t>(verdict)]; }
  std::vector<std::string> Cells(std::string name) const {
    std::vector<std::string> cells = {std::move(name)};
    int rows = 0;
    for (const int count : counts) rows += count;
    cells.push_back(std::to_string(rows));
    for (const int count : counts) cells.push_back(std::to_string(count));
    return cells;
  }
};

// The table of verdicts by document; targets of our own stand below the documents' sum, which leaves them out.
std::string CountsAsMarkdown(const std::vector<std::pair<std::string, VerdictCounts>>& documents,
                             const VerdictCounts& own) {
  std::vector<std::string> header = {"", "rows"};
  for (std::size_t i = 0; i < kVerdicts; ++i) header.emplace_back(VerdictName(static_cast<Verdict>(i)));
  std::vector<std::vector<std::string>> lines;
  VerdictCounts all;
  for (const auto& [name, counts] : documents) {
    lines.push_back(counts.Cells(name));
    for (std::size_t i = 0; i < kVerdicts; ++i) all.counts[i] += counts.counts[i];
  }
  lines.push_back(all.Cells("all documents"));
  lines.push_back(own.Cells("our own targets, not counted above"));
  return TableAsMarkdown(header, lines);
}

// Reads an <id>.json. Errors: a file that cannot be read, or is no result.
Result<Json> ReadResultFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxReportBytes));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("comparison") || !json["comparison"].is_array()) {
    return InvalidArgument(path + ": not a result of `loramux-lab`", "--output");
  }
  return json;
}

std::vector<ComparisonRow> RowsOfJson(const Json& json) {
  std::vector<ComparisonRow> rows;
  for (const Json& row : json["comparison"]) rows.push_back(RowOfJson(row));
  return rows;
}

// What the tables of assumptions of a result say of rows.
std::vector<Turned> TurnedOfJson(const Json& json) {
  std::vector<Turned> all;
  if (!json.contains("tables") || !json["tables"].is_array()) return all;
  for (const Json& table : json["tables"]) {
    if (!table.is_object() || !table.contains("title") || !table["title"].is_string() || !table.contains("rows") ||
        !table["rows"].is_array())
      continue;
    ExperimentTable found{.title = table["title"].get<std::string>(), .header = {}, .rows = {}};
    for (const Json& row : table["rows"]) {
      std::vector<std::string>& cells = found.rows.emplace_back();
      for (const Json& cell : row) cells.push_back(cell.is_string() ? cell.get<std::string>() : std::string());
    }
    const std::vector<Turned> turned = TurnedRows(found);
    all.insert(all.end(), turned.begin(), turned.end());
  }
  return all;
}

// A row that is opposite or without effect, and the experiment that has it.
struct MissedRow {
  std::string experiment;
  ComparisonRow row;
};
// One that was measured: what its table says, and the experiment that has the table.
struct MeasuredRow {
  std::string experiment;
  Turned turned;
};

// The rows of documents that are opposite or without effect, with the assumptions that turn them.
std::string MissedAsMarkdown(const std::vector<MissedRow>& missed, const std::vector<MeasuredRow>& measured) {
  std::vector<std::vector<std::string>> lines;
  std::size_t turn = 0, none = 0, as_read = 0;
  for (const MissedRow& m : missed) {
    const auto same = std::find_if(measured.begin(), measured.end(), [&m](const MeasuredRow& other) {
      return other.turned.id == m.row.id && other.turned.what == m.row.what;
    });
    const bool known = same != measured.end() && same->turned.under != kNotMeasured;
    const bool turns = known && !same->turned.under.starts_with("none of ");
    const bool already = known && same->turned.under == kAsRead;
    (already ? as_read : turns ? turn : none) += static_cast<std::size_t>(known);
    lines.push_back({fmt::format("[{}]({}.md)", m.row.id, m.experiment), m.row.what, VerdictName(m.row.verdict),
                     known ? same->turned.under : std::string(kNotMeasured),
                     known ? fmt::format("[{0}]({0}.md)", same->experiment) : "-"});
  }
  return fmt::format(
             "\n## Rows that are opposite or without effect, with one assumption changed at a time\n{} rows: {} have "
             "the document's direction under an assumption, {} under none that was tried, {} have it already where the "
             "table has fewer requests or seeds, {} are not measured. The pages on the right have the figures.\n\n",
             missed.size(), turn, none, as_read, missed.size() - turn - none - as_read) +
         TableAsMarkdown({"id", "what", "verdict", "the document's direction under", "measured in"}, lines);
}

// What the page says about the seeds of its rows.
std::string SeedsAsMarkdown(const Experiment& experiment, const ExperimentResult& result) {
  if (!experiment.once.empty()) return fmt::format("Run once: {}.\n\n", experiment.once);
  if (result.seeds == 1) return "One seed: too few to judge by.\n\n";
  return fmt::format(
      "Rows show the median of {} seeds, in brackets the smallest and the largest. Plots, remarks and all tables but "
      "the last are of the first seed.\n\n",
      result.seeds);
}

}  // namespace

std::string ExperimentCommand(const Experiment& experiment, const ExperimentContext& context) {
  std::string command = fmt::format("loramux-lab run {} --seed {}", experiment.id, context.seed);
  if (experiment.once.empty() && context.seeds != kSeedsOfExperiments)
    command += fmt::format(" --seeds {}", context.seeds);
  if (context.scale != 1) command += fmt::format(" --scale {:g}", context.scale);
  return command;
}

std::string ExperimentAsMarkdown(const Experiment& experiment, const ExperimentResult& result,
                                 const std::string& command) {
  std::string text = fmt::format(
      "# {}{}\n{}. Covers {}. Written by `{}`; meaning of the verdicts: [about the "
      "experiments](about-experiments.md).\n\n{}\n\n",
      experiment.title, result.scale == 1 ? "" : fmt::format(", with {:g} of the requests", result.scale),
      experiment.source, experiment.covers, command, RawDataLine(ExperimentAsJson(experiment, result, command)));
  text += SeedsAsMarkdown(experiment, result);
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
  for (const ComparisonRow& row : result.comparison) json["comparison"].push_back(RowAsJson(row));
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
  RETURN_IF_ERROR(WriteTextFile(path + ".md", ExperimentAsMarkdown(experiment, result, command)));
  RETURN_IF_ERROR(WriteTextFile(path + ".json", ExperimentAsJson(experiment, result, command)));
  for (const ExperimentPlot& plot : result.plots)
    RETURN_IF_ERROR(WriteTextFile(path + "_" + plot.name + ".svg", plot.svg));
  return Ok{};
}

Result<std::vector<ComparisonRow>> ReadComparison(const std::string& path) {
  ASSIGN_OR_RETURN(const Json json, ReadResultFile(path));
  return RowsOfJson(json);
}

Status WriteExperimentIndex(const std::string& directory, std::span<const Experiment> experiments) {
  std::string rows;
  std::vector<std::pair<std::string, VerdictCounts>> documents;
  VerdictCounts own;
  std::vector<MissedRow> missed;
  std::vector<MeasuredRow> measured;
  for (const Experiment& experiment : experiments) {
    const std::string path = directory + "/" + std::string(experiment.id) + ".json";
    std::error_code ignored;  // a file that cannot be accessed counts as absent
    if (!std::filesystem::exists(path, ignored)) continue;
    ASSIGN_OR_RETURN(const Json json, ReadResultFile(path));
    const std::string id(experiment.id);
    for (Turned& turned : TurnedOfJson(json)) measured.push_back({id, std::move(turned)});
    const std::string document(DocumentOf(experiment));
    auto counts = std::find_if(documents.begin(), documents.end(), [&](const auto& d) { return d.first == document; });
    if (counts == documents.end() && !document.empty())
      counts = documents.insert(documents.end(), {document, VerdictCounts{}});
    for (const ComparisonRow& row : RowsOfJson(json)) {
      if (!document.empty() && !IsOurTarget(row) && IsMissed(row)) missed.push_back({id, row});
      (document.empty() || IsOurTarget(row) ? own : counts->second).Add(row.verdict);
      std::vector<std::string> cells = CellsOf(row);
      cells[0] = fmt::format("[{}]({}.md)", row.id, experiment.id);
      rows += TableLine(cells);
    }
  }
  const std::string text =
      "# Experiments: reported and reproduced results\nWritten by `loramux-lab`; [how to run it and how to read "
      "this page](about-experiments.md).\n\n" +
      CountsAsMarkdown(documents, own) + "\n" + TableAsMarkdown(kComparisonHeader, {}) + rows +
      (missed.empty() ? "" : MissedAsMarkdown(missed, measured));
  return WriteTextFile(directory + "/experiments.md", text);
}

}  // namespace loramux
