// `loramux inspect`: what is in a model or adapter directory, and what it will take in memory.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/result.h"

namespace loramux {

struct InspectFlags {
  std::string directory;
  std::string base;  // model directory that an adapter is for; empty: shapes from its tensors only
  bool json = false;
};

// One line of the report: `key` and `value` for JSON, `label` and `text` for people.
struct ReportLine {
  std::string key;
  nlohmann::ordered_json value;
  std::string label;
  std::string text;
};
using Report = std::vector<ReportLine>;

// What is in flags.directory: an adapter if it holds adapter_config.json, else a model. Errors are those of opening it.
Result<Report> Inspect(const InspectFlags& flags);

// The report as one JSON object, and as a table of two aligned columns.
std::string ReportAsJson(const Report& report);
std::string ReportAsTable(const Report& report);

void AddInspectFlags(CLI::App& command, InspectFlags& flags);
// Prints the report to stdout, or an error to stderr. Returns the process's exit status.
int RunInspect(const InspectFlags& flags);

}  // namespace loramux
