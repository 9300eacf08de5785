// Experiments compare the results that papers report with this project's results. An experiment is a function of a
// context; its result has rows of comparison, tables, plots and remarks. One .cc file per paper.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "lab/experiments/verdict.h"
#include "report/progress_bar.h"
#include "simulate/load_search.h"
#include "simulate/simulation.h"
#include "simulate/summary.h"
#include "workload/workload.h"

namespace loramux {

// A table of results.
struct ExperimentTable {
  std::string title;
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  // each as long as the header
};

// A plot of results.
struct ExperimentPlot {
  std::string name, title, svg;  // the file is <id>_<name>.svg
};

// The result of an experiment.
struct ExperimentResult {
  // Markdown: device, model, workload, and how to repeat a line with `loramux simulate`.
  std::string setting;
  std::vector<ComparisonRow> comparison;
  std::vector<ExperimentTable> tables;
  std::vector<ExperimentPlot> plots;
  std::vector<std::string> remarks;  // reasons for differences, as far as they were investigated
  double scale = 1;                  // ExperimentContext::scale
  std::size_t seeds = 1;             // seeds that the rows combine; tables, plots and remarks are of the first
};

// Every simulated row is judged by at least so many seeds.
constexpr int kSeedsOfExperiments = 5;

struct SimulationJob;

// The settings of a run, which all experiments share.
struct ExperimentContext {
  std::string data_dir = "shared/data";  // contains traces/
  double scale = 1;                      // factor for the numbers of requests
  std::uint64_t seed = 1;
  int seeds = kSeedsOfExperiments;  // runs with seed, seed + 1, ...; experiments that run once ignore it
  int threads = 0;                  // simulations at a time; 0: one per core
  ProgressBar* progress = nullptr;  // not owned; null: none
  // Changes each simulation of a document's testbed last: an experiment under another assumption. Null: none.
  std::function<void(SimulationJob&)> assume;
  // For rows that are repeated under assumptions: without further tables, and without the curves over all loads.
  bool rows_only = false;

  std::int64_t Requests(std::int64_t number) const;  // scaled, at least 50
  // The path of a trace file.
  std::string Trace(std::string_view file) const { return data_dir + "/traces/" + std::string(file); }
};

// One experiment.
struct Experiment {
  std::string_view id;             // "ch-11": names its files
  std::string_view covers;         // ids of the figures that it reproduces: "ch-11, ch-13"
  std::string_view title, source;  // "Chameleon 5.2, figure 11"
  Result<ExperimentResult> (*run)(ExperimentContext&);
  // Why one run is enough: "measured", "seven seeds of its own". Empty: it runs with several seeds.
  std::string_view once = {};
};

// The document whose figures the experiment repeats: "Chameleon"; empty if its rows are targets of our own.
std::string_view DocumentOf(const Experiment& experiment);
// The number of seeds that the experiment runs with.
int SeedsOf(const Experiment& experiment, const ExperimentContext& context);
// Combines the results of the seeds from `first_seed` on: the rows by CombineSeeds, the rest from the first. A table
// shows the rows of each seed. REQUIRES: a result.
ExperimentResult CombineResults(std::vector<ExperimentResult> results, std::uint64_t first_seed);

std::span<const Experiment> ChameleonExperiments();
std::span<const Experiment> VllmLoraExperiments();
std::span<const Experiment> FastLibraExperiments();
std::span<const Experiment> CaraServeExperiments();
std::span<const Experiment> CaraServeClusterExperiments();
std::span<const Experiment> FleetExperiments();
std::span<const Experiment> SLoraExperiments();

// Returns all experiments, ordered by paper.
std::vector<Experiment> AllExperiments();

// ---------------------------------------------------------------- Simulations side by side

// Calls job(0) ... job(count - 1), several at a time, and returns the error with the lowest index. Jobs must not share
// mutable state, and each writes its result to a place of its own, so the result does not depend on their order.
Status ParallelFor(ExperimentContext& context, std::size_t count, const std::function<Status(std::size_t)>& job);

// A simulation to run.
struct SimulationJob {
  SimulationOptions options;
  WorkloadOptions load;
};
struct SimulationOutcome {
  SimulationResult result;
  SimulationSummary summary;  // with the job's objective (SystemSpec::objective)
};
// Runs the simulations; results are in the order of the jobs. Errors: those of MakeWorkload and Simulate.
Result<std::vector<SimulationOutcome>> SimulateAll(ExperimentContext& context, std::span<const SimulationJob> jobs);
// Finds the load that each job sustains under its own objective. The search starts at load.rate.
Result<std::vector<SustainedLoad>> FindLoads(ExperimentContext& context, std::span<const SimulationJob> jobs);

// ---------------------------------------------------------------- Formatting

// Returns ours / base - 1; 0 if base is 0.
double Change(double ours, double base);

// Returns the experiments with these ids ("ch-11", or an id that an experiment covers: "ch-13"), in order and without
// duplicates; all experiments for "all". Error: an unknown id; the message lists the valid ones.
Result<std::vector<Experiment>> FindExperiments(const std::vector<std::string>& ids);

}  // namespace loramux
