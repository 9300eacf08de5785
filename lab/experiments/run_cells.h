// Runs cells (kept_cells.h) in processes of their own, several at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lab/experiments/experiment.h"
#include "lab/experiments/kept_cells.h"

namespace loramux {

// An experiment with one seed.
struct ExperimentCell {
  const Experiment* experiment = nullptr;
  std::uint64_t seed = 1;
};

// The cells of these experiments: all experiments with the first seed, then with the second, so that the times of the
// first tell how long the rest will take.
std::vector<ExperimentCell> CellsToRun(std::span<const Experiment> experiments, const ExperimentContext& context);

// The seconds that the `left` cells will take, `at_once` at a time; `seconds`: of the cells that ran, or ran once, in
// the order of `all`; below 0: not known. A cell takes as long as those of its experiment, or else as all do.
double SecondsLeft(std::span<const ExperimentCell> all, std::span<const double> seconds,
                   std::span<const std::size_t> left, std::size_t at_once);

// Runs the cells that are not kept yet, each in a process of its own, and keeps them. At most
// ExperimentContext::threads simulations run at a time. What is measured runs last, with nothing beside it. Says on
// stderr what has ended and how long the rest will take. If this process is killed, the others end too. REQUIRES: the
// process has one thread. Error: of the first cell that fails; no further one is begun.
Status RunCells(std::span<const ExperimentCell> cells, const ExperimentContext& context, const KeptCells& kept);

}  // namespace loramux
