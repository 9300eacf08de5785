#include "lab/experiments/kept_cells.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/text_file.h"
#include "hub/file_digest.h"

namespace loramux {
namespace {

using CellJson = nlohmann::ordered_json;

// JSON has no numbers for these.
CellJson NumberAsJson(double number) {
  if (std::isfinite(number)) return number;
  return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
}

double NumberOfJson(const CellJson& json) {
  if (json.is_number()) return json.get<double>();
  const auto name = json.get<std::string>();
  if (name == "nan") return std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  return name == "inf" ? infinity : -infinity;
}

CellJson KeptRow(const ComparisonRow& row) {
  CellJson json = {{"id", row.id},
                   {"what", row.what},
                   {"reported", row.reported},
                   {"ours", row.ours},
                   {"verdict", static_cast<int>(row.verdict)},
                   {"origin", row.origin},
                   {"quantity", static_cast<int>(row.quantity)},
                   {"reported_number", NumberAsJson(row.reported_number)},
                   {"numbers", CellJson::array()},
                   {"unit", row.unit},
                   {"decimals", row.decimals},
                   {"events_of", row.events_of}};
  for (const double number : row.numbers) json["numbers"].push_back(NumberAsJson(number));
  if (row.events.has_value()) json["events"] = *row.events;
  return json;
}

// What is absent or of another type throws.
ComparisonRow RowOfKept(const CellJson& json) {
  ComparisonRow row;
  row.id = json.at("id").get<std::string>();
  row.what = json.at("what").get<std::string>();
  row.reported = json.at("reported").get<std::string>();
  row.ours = json.at("ours").get<std::string>();
  row.verdict = static_cast<Verdict>(json.at("verdict").get<int>());
  row.origin = json.at("origin").get<std::string>();
  row.quantity = static_cast<Quantity>(json.at("quantity").get<int>());
  row.reported_number = NumberOfJson(json.at("reported_number"));
  for (const CellJson& number : json.at("numbers")) row.numbers.push_back(NumberOfJson(number));
  row.unit = json.at("unit").get<std::string>();
  row.decimals = json.at("decimals").get<int>();
  if (json.contains("events")) row.events = json.at("events").get<std::int64_t>();
  row.events_of = json.at("events_of").get<std::string>();
  return row;
}

CellJson KeptResult(const ExperimentResult& result) {
  CellJson json = {{"setting", result.setting},  {"comparison", CellJson::array()}, {"tables", CellJson::array()},
                   {"plots", CellJson::array()}, {"remarks", result.remarks},       {"seeds", result.seeds}};
  for (const ComparisonRow& row : result.comparison) json["comparison"].push_back(KeptRow(row));
  for (const ExperimentTable& table : result.tables)
    json["tables"].push_back({{"title", table.title}, {"header", table.header}, {"rows", table.rows}});
  for (const ExperimentPlot& plot : result.plots)
    json["plots"].push_back({{"name", plot.name}, {"title", plot.title}, {"svg", plot.svg}});
  return json;
}

// What is absent or of another type throws.
ExperimentResult ResultOfKept(const CellJson& json) {
  ExperimentResult result;
  result.setting = json.at("setting").get<std::string>();
  for (const CellJson& row : json.at("comparison")) result.comparison.push_back(RowOfKept(row));
  for (const CellJson& table : json.at("tables")) {
    result.tables.push_back({table.at("title").get<std::string>(), table.at("header").get<std::vector<std::string>>(),
                             table.at("rows").get<std::vector<std::vector<std::string>>>()});
  }
  for (const CellJson& plot : json.at("plots")) {
    result.plots.push_back(
        {plot.at("name").get<std::string>(), plot.at("title").get<std::string>(), plot.at("svg").get<std::string>()});
  }
  result.remarks = json.at("remarks").get<std::vector<std::string>>();
  result.seeds = json.at("seeds").get<std::size_t>();
  return result;
}

// The file of a cell; discarded if it cannot be read, or is not JSON.
CellJson ReadCell(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return CellJson(CellJson::value_t::discarded);
  const Result<std::string> text = ReadTextFile(path);
  if (!text.ok()) return CellJson(CellJson::value_t::discarded);
  return CellJson::parse(*text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace

std::string ResultAsJson(const ExperimentResult& result) { return KeptResult(result).dump(1) + "\n"; }

Result<ExperimentResult> ParseResult(const std::string& text) {
  try {
    return ResultOfKept(CellJson::parse(text));
  } catch (const CellJson::exception& error) {
    return InvalidArgument(std::string("not a result: ") + error.what(), "");
  }
}

std::string KeptCells::PathOf(const Experiment& experiment, std::uint64_t seed) const {
  return fmt::format("{}/{}.{}.json", folder_, experiment.id, seed);
}

std::optional<ExperimentResult> KeptCells::Find(const Experiment& experiment, std::uint64_t seed) const {
  const CellJson json = ReadCell(PathOf(experiment, seed));
  try {
    if (json.at("digest").get<std::string>() != digest_) return std::nullopt;
    return ResultOfKept(json.at("result"));
  } catch (const CellJson::exception&) {
    return std::nullopt;
  }
}

std::optional<double> KeptCells::SecondsOf(const Experiment& experiment, std::uint64_t seed) const {
  const CellJson json = ReadCell(PathOf(experiment, seed));
  if (!json.is_object() || !json.contains("seconds") || !json["seconds"].is_number()) return std::nullopt;
  return json["seconds"].get<double>();
}

Status KeptCells::Keep(const Experiment& experiment, std::uint64_t seed, const ExperimentResult& result,
                       double seconds) const {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) return IoError(folder_ + ": " + error.message(), "--output");
  const CellJson json = {{"digest", digest_}, {"seconds", seconds}, {"result", KeptResult(result)}};
  const std::string path = PathOf(experiment, seed), unfinished = fmt::format("{}.{}", path, getpid());
  RETURN_IF_ERROR(WriteTextFile(unfinished, json.dump(1) + "\n"));
  std::filesystem::rename(unfinished, path, error);
  if (error) return IoError(path + ": " + error.message(), "--output");
  return Ok{};
}

Result<std::string> DigestOfRun(const ExperimentContext& context) {
  ASSIGN_OR_RETURN(std::string all, Sha256HexOfFile("/proc/self/exe"));
  all += fmt::format(" {}", context.scale);
  std::vector<std::filesystem::path> files;
  std::error_code error;
  const std::filesystem::path traces = std::filesystem::path(context.data_dir) / "traces";
  for (std::filesystem::recursive_directory_iterator at(traces, error), end; !error && at != end; at.increment(error)) {
    if (at->is_regular_file()) files.push_back(at->path());
  }
  std::sort(files.begin(), files.end());  // what is not there is missed by the experiment that reads it
  for (const std::filesystem::path& file : files) {
    ASSIGN_OR_RETURN(const std::string digest, Sha256HexOfFile(file));
    all += fmt::format("\n{} {}", digest, std::filesystem::relative(file, traces, error).string());
  }
  return Sha256Hex(all);
}

}  // namespace loramux
