// The laboratory: `loramux-lab run ID` repeats the results that the papers report, and writes this project's results
// beside them.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "lab/experiments/claims.h"
#include "lab/experiments/experiment.h"
#include "lab/experiments/kept_cells.h"
#include "lab/experiments/report.h"
#include "lab/experiments/run_cells.h"
#include "tools/command_line/command_line.h"
#include "tools/command_line/last_resort.h"

namespace loramux {
namespace {

constexpr double kQuickScale = 0.1;

struct RunFlags {
  std::vector<std::string> ids;  // or "all"
  std::string output = "build/results";
  bool quick = false;
  ExperimentContext context;
};

// The result of all seeds. Error: a cell is not there.
Result<ExperimentResult> Combined(const Experiment& experiment, const ExperimentContext& context,
                                  const KeptCells& kept) {
  std::vector<ExperimentResult> results;
  for (const ExperimentCell& cell : CellsToRun({&experiment, 1}, context)) {
    std::optional<ExperimentResult> result = kept.Find(experiment, cell.seed);
    if (!result.has_value())
      return IoError(fmt::format("{} seed {}: its result cannot be read", experiment.id, cell.seed), "--output");
    results.push_back(*std::move(result));
  }
  return CombineResults(std::move(results), context.seed);
}

Status RunAll(RunFlags& flags) {
  ASSIGN_OR_RETURN(const std::vector<Experiment> chosen, FindExperiments(flags.ids));
  ASSIGN_OR_RETURN(std::string digest, DigestOfRun(flags.context));
  const KeptCells kept(flags.output + "/cells", std::move(digest));
  RETURN_IF_ERROR(RunCells(CellsToRun(chosen, flags.context), flags.context, kept));
  for (const Experiment& experiment : chosen) {
    ASSIGN_OR_RETURN(ExperimentResult result, Combined(experiment, flags.context, kept));
    result.scale = flags.context.scale;
    const std::string command = ExperimentCommand(experiment, flags.context);
    fmt::print("{}: {} ({})\n{}\n", experiment.id, experiment.title, experiment.source, ComparisonAsText(result));
    std::fflush(stdout);
    RETURN_IF_ERROR(WriteExperiment(flags.output, experiment, result, command));
  }
  const std::vector<Experiment> all = AllExperiments();
  RETURN_IF_ERROR(WriteExperimentIndex(flags.output, all));
  RETURN_IF_ERROR(WriteClaims(flags.output, all));
  fmt::print("written to {}: see {}/claims.md and {}/experiments.md\n", flags.output, flags.output, flags.output);
  return Ok{};
}

void AddRunFlags(CommandLine& line, RunFlags& flags) {
  line.Add(
      {.names = "ID",
       .target = &flags.ids,
       .unit = "ID",
       .help =
           "Experiments by id as in docs/results/experiments.md (ch-11 ...), or 'all'; loramux-lab list prints them",
       .required = true});
  line.Add({.names = "--quick",
            .target = &flags.quick,
            .help = "Run a tenth of the requests: checks that the experiment runs, but gives no result"});
  line.Add({.names = "--scale",
            .target = &flags.context.scale,
            .unit = "FACTOR",
            .help = "Multiplies the numbers of requests",
            .range = {{1e-3, 100.0}}});
  line.Add({.names = "--output",
            .target = &flags.output,
            .unit = "DIR",
            .help = "Directory for ID.md, plots, raw data in ID.json, and from all raw data there experiments.md and "
                    "claims.md. What was killed goes on: cells/ has the results by experiment and seed, which are used "
                    "again by the same program with the same data and scale"});
  line.Add({.names = "--data-dir",
            .target = &flags.context.data_dir,
            .unit = "DIR",
            .help = "Directory that holds traces/ with Azure's conversations"});
  line.Add({.names = "--seed",
            .target = &flags.context.seed,
            .unit = "N",
            .help = "Seed of all random choices; the same seed writes the same bytes"});
  line.Add({.names = "--seeds",
            .target = &flags.context.seeds,
            .unit = "N",
            .help = "Runs with so many seeds, from --seed on; rows show median and spread, and an order that depends "
                    "on the seed is undecided. What is measured, or has seeds of its own, runs once",
            .range = {{1, 100}}});
  line.Add({.names = "--threads",
            .target = &flags.context.threads,
            .unit = "N",
            .help = "Simulations at a time; changes no result",
            .default_text = "one per processor",
            .range = {{0, 1024}}});
  line.set_footer(
      "Each experiment prints the figures of its document beside ours, with a verdict:\n"
      "  agrees    same direction, log factor within a third of the reported one, or both within +-5 %\n"
      "  weaker, stronger    same direction, differs by more than a third; no effect: ours is within +-5 %\n"
      "  opposite  the other direction; undecided: depends on the seed; not exercised: nothing happened\n"
      "  information: nothing to compare with\n"
      "Examples:\n"
      "  loramux-lab run ch-11 --quick\n"
      "  loramux-lab run all          (hours on two cores; what was killed goes on)");
}

// The exit status is 0 whatever the verdicts.
Command RunCommand() {
  const auto flags = std::make_shared<RunFlags>();
  Command command{.name = "run", .summary = "Repeat experiments of the source documents in the simulator"};
  AddRunFlags(command.line, *flags);
  command.run = [flags] {
    if (flags->quick) flags->context.scale *= kQuickScale;
    const Status status = RunAll(*flags);
    return status.ok() ? 0 : FailCommand("run", status.error());
  };
  return command;
}

Command ListCommand() {
  return {.name = "list", .summary = "Print the experiments", .run = [] {
            for (const Experiment& known : AllExperiments())
              fmt::print("{:<10} {} ({})\n", known.id, known.title, known.source);
            return 0;
          }};
}

int RunLaboratory(int argc, char** argv) {
  Program program{.name = "loramux-lab",
                  .summary = "loramux-lab: the experiments of the source documents beside loramux",
                  .version = LORAMUX_VERSION};
  program.footer =
      "Examples:\n"
      "  loramux-lab list\n"
      "  loramux-lab run ch-11 --quick\n"
      "Each command explains its flags: loramux-lab COMMAND --help";
  program.commands.push_back(RunCommand());
  program.commands.push_back(ListCommand());
  return RunProgram(program, argc, argv);
}

}  // namespace
}  // namespace loramux

int main(int argc, char** argv) {
  return loramux::RunToTheEnd([&] { return loramux::RunLaboratory(argc, argv); });
}
