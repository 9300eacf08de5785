// Writes the results of an experiment as files: pages and plots, which docs/results keeps, and raw data, of which a
// page has the digest. Equal results give equal bytes.
#pragma once

#include <span>
#include <string>

#include "lab/experiments/experiment.h"

namespace loramux {

// Returns the command that repeats the experiment: "loramux-lab run ch-11 --seed 1".
std::string ExperimentCommand(const Experiment& experiment, const ExperimentContext& context);

// Returns the page. `command` is the result of ExperimentCommand.
std::string ExperimentAsMarkdown(const Experiment& experiment, const ExperimentResult& result,
                                 const std::string& command);
// Returns a JSON object: id, source, command, comparison, tables, remarks.
std::string ExperimentAsJson(const Experiment& experiment, const ExperimentResult& result, const std::string& command);
// Returns the rows of comparison as aligned text, for a terminal.
std::string ComparisonAsText(const ExperimentResult& result);

// Writes <id>.md, <id>.json and the plots. Error: a file cannot be written.
Status WriteExperiment(const std::string& directory, const Experiment& experiment, const ExperimentResult& result,
                       const std::string& command);
// Reads the rows of comparison in an <id>.json. Errors: a file that cannot be read, or is no result.
Result<std::vector<ComparisonRow>> ReadComparison(const std::string& path);

// Writes experiments.md: the rows of comparison of all experiments that have an <id>.json in the directory, and their
// verdicts counted by document, with targets of our own apart; then the rows that are opposite or without effect, with
// the assumptions that turn them (assumption_rows.h). Errors: a file cannot be read or written.
Status WriteExperimentIndex(const std::string& directory, std::span<const Experiment> experiments);

}  // namespace loramux
