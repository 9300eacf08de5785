#include "lab/experiments/run_cells.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

namespace loramux {
namespace {

bool IsMeasured(const ExperimentCell& cell) { return cell.experiment->once.find("measured") != std::string_view::npos; }

std::string NameOfCell(const ExperimentCell& cell) { return fmt::format("{} seed {}", cell.experiment->id, cell.seed); }

std::string TimeOfCells(double seconds) {
  return seconds < 120 ? fmt::format("{:.0f} s", seconds) : fmt::format("{:.0f} min", seconds / 60);
}

// In the process of the cell. Returns its exit status.
int RunInProcess(const ExperimentCell& cell, ExperimentContext context, const KeptCells& kept) {
  const OsClock clock;
  const TimeNs begin = clock.Now();
  context.seed = cell.seed;
  context.progress = nullptr;
  const auto fail = [&](const Error& error) {
    fmt::print(stderr, "{}: {}\n", NameOfCell(cell), error.message);
    return 1;
  };
  const Result<ExperimentResult> result = cell.experiment->run(context);
  if (!result.ok()) return fail(result.error());
  const double seconds = static_cast<double>(clock.Now() - begin) / kNsPerSecond;
  const Status status = kept.Keep(*cell.experiment, cell.seed, *result, seconds);
  return status.ok() ? 0 : fail(status.error());
}

// Processes that run cells.
class Workers {
 public:
  Workers(std::span<const ExperimentCell> cells, const ExperimentContext& context, const KeptCells& kept)
      : cells_(cells), context_(context), kept_(kept), seconds_(cells.size(), -1) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const bool have = kept.Find(*cells[i].experiment, cells[i].seed).has_value();
      seconds_[i] = kept.SecondsOf(*cells[i].experiment, cells[i].seed).value_or(-1);
      if (!have) left_.push_back(i);
    }
    had_ = cells.size() - left_.size();
    if (had_ > 0) fmt::print(stderr, "{} of {} cells are there already\n", had_, cells.size());
  }

  Status Run() {
    const std::size_t threads = context_.threads > 0 ? static_cast<std::size_t>(context_.threads)
                                                     : std::max(1u, std::thread::hardware_concurrency());
    std::vector<std::size_t> together, alone;
    for (const std::size_t i : left_) (IsMeasured(cells_[i]) ? alone : together).push_back(i);
    RETURN_IF_ERROR(RunThese(together, threads, threads));
    return RunThese(alone, 1, threads);
  }

 private:
  struct Worker {
    pid_t process = -1;
    std::size_t cell = 0;
  };

  // At most `most` at a time, which share `threads`.
  Status RunThese(std::span<const std::size_t> cells, std::size_t most, std::size_t threads) {
    std::size_t next = 0;
    Status status = Ok{};
    at_once_ = std::max<std::size_t>(1, std::min(most, cells.size()));
    while (next < cells.size() || !running_.empty()) {
      if (status.ok() && next < cells.size() && running_.size() < at_once_) {
        status = Begin(cells[next++], std::max<std::size_t>(1, threads / at_once_));
        continue;
      }
      if (running_.empty()) break;
      const Status ended = AwaitOne();
      if (status.ok()) status = ended;
    }
    return status;
  }

  Status Begin(std::size_t cell, std::size_t threads) {
    ExperimentContext context = context_;
    context.threads = static_cast<int>(threads);
    std::fflush(nullptr);
    const pid_t parent = getpid(), process = fork();
    if (process < 0) return IoError(fmt::format("cannot start a process: {}", std::strerror(errno)), "");
    if (process == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);  // it ended before
      const int exit_status = RunInProcess(cells_[cell], context, kept_);
      std::fflush(nullptr);
      _exit(exit_status);
    }
    running_.push_back({process, cell});
    return Ok{};
  }

  Status AwaitOne() {
    int how = 0;
    const pid_t process = waitpid(-1, &how, 0);
    if (process < 0 && errno == EINTR) return Ok{};
    const auto ended =
        std::find_if(running_.begin(), running_.end(), [&](const Worker& w) { return w.process == process; });
    if (ended == running_.end()) return Ok{};
    const std::size_t cell = ended->cell;
    running_.erase(ended);
    const std::string name = NameOfCell(cells_[cell]);
    if (WIFSIGNALED(how))
      return IoError(fmt::format("{}: its process was ended by signal {}", name, WTERMSIG(how)), "");
    if (WEXITSTATUS(how) != 0) return IoError(fmt::format("{} failed", name), "");
    std::erase(left_, cell);
    seconds_[cell] = kept_.SecondsOf(*cells_[cell].experiment, cells_[cell].seed).value_or(-1);
    fmt::print(stderr, "{}: {}; {} of {} cells{}\n", name, TimeOfCells(seconds_[cell]), cells_.size() - left_.size(),
               cells_.size(),
               left_.empty() ? "" : ", about " + TimeOfCells(SecondsLeft(cells_, seconds_, left_, at_once_)) + " left");
    return Ok{};
  }

  const std::span<const ExperimentCell> cells_;
  const ExperimentContext& context_;
  const KeptCells& kept_;
  std::vector<double> seconds_;    // by cell, as of its last run; below 0: not known
  std::vector<std::size_t> left_;  // cells that are not there yet
  std::vector<Worker> running_;
  std::size_t had_ = 0, at_once_ = 1;
};

}  // namespace

std::vector<ExperimentCell> CellsToRun(std::span<const Experiment> experiments, const ExperimentContext& context) {
  std::vector<ExperimentCell> cells;
  for (int i = 0; i < std::max(1, context.seeds); ++i) {
    for (const Experiment& experiment : experiments) {
      if (i < SeedsOf(experiment, context))
        cells.push_back({&experiment, context.seed + static_cast<std::uint64_t>(i)});
    }
  }
  return cells;
}

double SecondsLeft(std::span<const ExperimentCell> all, std::span<const double> seconds,
                   std::span<const std::size_t> left, std::size_t at_once) {
  const auto mean = [&](const Experiment* of) {
    double sum = 0;
    int count = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (seconds[i] < 0 || (of != nullptr && all[i].experiment != of)) continue;
      sum += seconds[i];
      ++count;
    }
    return count == 0 ? -1.0 : sum / count;
  };
  double sum = 0;
  for (const std::size_t i : left) {
    const double own = mean(all[i].experiment);
    sum += own >= 0 ? own : std::max(0.0, mean(nullptr));
  }
  return sum / static_cast<double>(at_once);
}

Status RunCells(std::span<const ExperimentCell> cells, const ExperimentContext& context, const KeptCells& kept) {
  return Workers(cells, context, kept).Run();
}

}  // namespace loramux
