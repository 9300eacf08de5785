// `loramux experiment`: reproduces the results that the papers report, and writes this project's results beside them.
#pragma once

#include <string>
#include <vector>

#include "experiments/experiment.h"
#include "tools/command_line/command_line.h"

namespace loramux {

// The command-line flags.
struct ExperimentFlags {
  std::vector<std::string> ids;  // or "all"
  std::string output = "docs/results";
  bool quick = false, list = false;
  ExperimentContext context;
};

// Adds the flags to `line`; they write into `flags`, which must outlive it.
void AddExperimentFlags(CommandLine& line, ExperimentFlags& flags);
// Runs the experiments and prints each comparison to stdout. Returns the process's exit status: 0 whatever the
// verdicts.
int RunExperiment(ExperimentFlags flags);

Command ExperimentCommand();

}  // namespace loramux
