// `loramux experiment`: what the source documents report beside what this project finds. An experiment is a function of
// a context; its result is rows of comparison, tables, plots and remarks. One .cc for each document.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "simulate/simulation.h"
#include "simulate/slo_search.h"
#include "simulate/summary.h"
#include "simulate/workload.h"
#include "tools/progress_bar.h"

namespace loramux {

enum class Verdict : std::uint8_t {
  kAgrees,  // same direction, effect within a third of the reported one
  kWeaker,
  kStronger,     // same direction, effect differs by more than a third
  kOpposite,     // other direction
  kInformation,  // nothing reported to compare with
};
const char* VerdictName(Verdict verdict);

// Of two effects in the same unit, 0 = no effect (a relative change of -0.246, or a factor less 1). Where none is
// reported, up to 0.05 either way agrees.
Verdict CompareEffects(double reported, double ours);
// Of a statement that holds or does not ("under 150 ms", "in this order").
inline Verdict VerdictOfClaim(bool holds) { return holds ? Verdict::kAgrees : Verdict::kOpposite; }

// One line of what is compared.
struct ComparisonRow {
  std::string id, what, reported, ours;
  Verdict verdict = Verdict::kInformation;
  std::string origin = "simulated";  // or "measured", "counted"
};

// A relative change (-0.246), a factor (1.53: the effect is 0.53), a statement that holds or not.
ComparisonRow ChangeRow(std::string_view id, std::string what, double reported, double ours);
ComparisonRow FactorRow(std::string_view id, std::string what, double reported, double ours);
ComparisonRow ClaimRow(std::string_view id, std::string what, std::string reported, std::string ours, bool holds);

struct ExperimentTable {
  std::string title;
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  // each as long as the header
};

struct ExperimentPlot {
  std::string name, title, svg;  // file <id>_<name>.svg
};

struct ExperimentResult {
  // Markdown: device, model, workload, and how to repeat a line with `loramux simulate`
  std::string setting;
  std::vector<ComparisonRow> comparison;
  std::vector<ExperimentTable> tables;
  std::vector<ExperimentPlot> plots;
  std::vector<std::string> remarks;  // why ours differs, after a look into it
};

struct ExperimentContext {
  std::string data_dir = "shared/data";  // with traces/
  double scale = 1;                      // of the numbers of requests
  std::uint64_t seed = 1;
  int threads = 0;                  // that simulate at once; 0: one a core
  ProgressBar* progress = nullptr;  // not owned; null: none

  std::int64_t Requests(std::int64_t number) const;  // scaled, at least 50
  std::string Trace(std::string_view file) const { return data_dir + "/traces/" + std::string(file); }
};

struct Experiment {
  std::string_view id;             // "ch-11": of its files
  std::string_view covers;         // "ch-11, ch-13"
  std::string_view title, source;  // "Chameleon 5.2, figure 11"
  Result<ExperimentResult> (*run)(ExperimentContext&);
};

std::span<const Experiment> ChameleonExperiments();
std::span<const Experiment> VllmLoraExperiments();
std::span<const Experiment> FastLibraExperiments();
std::span<const Experiment> CaraServeExperiments();

// All of them, by document.
std::vector<Experiment> AllExperiments();

// ---------------------------------------------------------------- Simulations side by side

// Calls job(0) ... job(count - 1), several at once, and returns the first error by index. Jobs share nothing that
// changes; what they find goes to places of their own, so the result does not depend on the order in which they ran.
Status ParallelFor(ExperimentContext& context, std::size_t count, const std::function<Status(std::size_t)>& job);

struct SimulationJob {
  SimulationOptions options;
  WorkloadOptions load;
};
struct SimulationOutcome {
  SimulationResult result;
  SimulationSummary summary;  // of the job's objective (SimulationOptions::slo)
};
// In the jobs' order. Errors: MakeWorkload's and Simulate's.
Result<std::vector<SimulationOutcome>> SimulateAll(ExperimentContext& context, std::span<const SimulationJob> jobs);
// The load that each sustains under its own objective, from load.rate on.
Result<std::vector<SustainedLoad>> FindLoads(ExperimentContext& context, std::span<const SimulationJob> jobs);

// ---------------------------------------------------------------- Words

// "-24.6 %" of -0.246; "1.53x" of 1.53.
std::string ShowChange(double change);
std::string ShowFactor(double factor);
// ours / base - 1; 0 where there is no base.
double Change(double ours, double base);

}  // namespace loramux
