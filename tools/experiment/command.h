// `loramux experiment`: reproduces what the source documents report, and writes ours beside it.
#pragma once

#include <string>
#include <vector>

#include "tools/experiment/experiment.h"
#include "tools/command_line/command_line.h"

namespace loramux {

struct ExperimentFlags {
  std::vector<std::string> ids;  // or "all"
  std::string output = "docs/results";
  bool quick = false, list = false;
  ExperimentContext context;
};

void AddExperimentFlags(CommandLine& line, ExperimentFlags& flags);
// Prints each comparison to stdout. Returns the process's exit status: 0 whatever the verdicts are.
int RunExperiment(ExperimentFlags flags);

Command ExperimentCommand();

// Those with these ids ("ch-11", or one that an experiment covers: "ch-13"), in order, each once; all for "all".
// Error: an unknown id; the message lists the valid ones.
Result<std::vector<Experiment>> FindExperiments(const std::vector<std::string>& ids);

}  // namespace loramux
