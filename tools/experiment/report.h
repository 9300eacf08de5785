// What an experiment found, as files that are kept in the repository. The same result gives the same bytes.
#pragma once

#include <span>
#include <string>

#include "tools/experiment/experiment.h"

namespace loramux {

// How it was run, for the reports: "loramux experiment ch-11 --seed 1".
std::string ExperimentCommand(const Experiment& experiment, const ExperimentContext& context);

// `command` is as in ExperimentCommand.
std::string ExperimentAsMarkdown(const Experiment& experiment, const ExperimentResult& result,
                                 const std::string& command);
// An object: id, source, command, comparison, tables, remarks.
std::string ExperimentAsJson(const Experiment& experiment, const ExperimentResult& result, const std::string& command);
// The comparison alone, aligned, for a terminal.
std::string ComparisonAsText(const ExperimentResult& result);

// Writes <id>.md, <id>.json and the plots. Error: a file that cannot be written.
Status WriteExperiment(const std::string& directory, const Experiment& experiment, const ExperimentResult& result,
                       const std::string& command);
// Writes experiments.md: every row of comparison of those experiments whose <id>.json lies there. Errors: a file that
// cannot be read or written.
Status WriteExperimentIndex(const std::string& directory, std::span<const Experiment> experiments);

}  // namespace loramux
