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
#include "report/progress_bar.h"
#include "simulate/simulation.h"
#include "simulate/slo_search.h"
#include "simulate/summary.h"
#include "workload/workload.h"

namespace loramux {

// How this project's effect compares with the reported one.
enum class Verdict : std::uint8_t {
  kAgrees,  // same direction, effect within a third of the reported one
  // Same direction, effect smaller by more than a third.
  kWeaker,
  kStronger,     // same direction, effect larger by more than a third
  kOpposite,     // other direction
  kInformation,  // the paper reports nothing to compare with
};
const char* VerdictName(Verdict verdict);

// Compares two effects in the same unit; 0 means no effect (for a relative change of -0.246 the effect is -0.246, for a
// factor it is the factor minus 1). If the reported effect is 0, up to 0.05 in either direction agrees.
Verdict CompareEffects(double reported, double ours);
// The verdict on a claim that holds or does not ("under 150 ms", "in this order").
inline Verdict VerdictOfClaim(bool holds) { return holds ? Verdict::kAgrees : Verdict::kOpposite; }

// One row of a comparison.
struct ComparisonRow {
  std::string id, what, reported, ours;
  Verdict verdict = Verdict::kInformation;
  std::string origin = "simulated";  // or "measured", "counted"
};

// Rows for a relative change (-0.246), a factor (1.53: the effect is 0.53), and a claim that holds or does not.
ComparisonRow ChangeRow(std::string_view id, std::string what, double reported, double ours);
ComparisonRow FactorRow(std::string_view id, std::string what, double reported, double ours);
ComparisonRow ClaimRow(std::string_view id, std::string what, std::string reported, std::string ours, bool holds);

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
};

// The settings of a run, which all experiments share.
struct ExperimentContext {
  std::string data_dir = "shared/data";  // contains traces/
  double scale = 1;                      // factor for the numbers of requests
  std::uint64_t seed = 1;
  int threads = 0;                  // simulations at a time; 0: one per core
  ProgressBar* progress = nullptr;  // not owned; null: none

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
};

std::span<const Experiment> ChameleonExperiments();
std::span<const Experiment> VllmLoraExperiments();
std::span<const Experiment> FastLibraExperiments();
std::span<const Experiment> CaraServeExperiments();
std::span<const Experiment> CaraServeClusterExperiments();
std::span<const Experiment> FleetExperiments();

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
  SimulationSummary summary;  // with the job's objective (SimulationOptions::slo)
};
// Runs the simulations; results are in the order of the jobs. Errors: those of MakeWorkload and Simulate.
Result<std::vector<SimulationOutcome>> SimulateAll(ExperimentContext& context, std::span<const SimulationJob> jobs);
// Finds the load that each job sustains under its own objective. The search starts at load.rate.
Result<std::vector<SustainedLoad>> FindLoads(ExperimentContext& context, std::span<const SimulationJob> jobs);

// ---------------------------------------------------------------- Formatting

// Formats -0.246 as "-24.6 %", and 1.53 as "1.53x".
std::string ShowChange(double change);
std::string ShowFactor(double factor);
// Returns ours / base - 1; 0 if base is 0.
double Change(double ours, double base);

// Returns the experiments with these ids ("ch-11", or an id that an experiment covers: "ch-13"), in order and without
// duplicates; all experiments for "all". Error: an unknown id; the message lists the valid ones.
Result<std::vector<Experiment>> FindExperiments(const std::vector<std::string>& ids);

}  // namespace loramux
