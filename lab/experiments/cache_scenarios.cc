// The cache's regimes on the real engine with the demo model: three kinds of load, on a device smaller than their
// working set. Writes a page with tables and plots, and compares every answer with that of ample memory.
//
//   cache_scenarios --output build/results
//
// Takes about 25 minutes on two cores. Exit status: 0; 2 if an answer was wrong or missing; 1 if something could not
// run, or if a signal ended it after the current cell.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <optional>
#include <set>
#include <span>
#include <thread>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include "costs/performance_profile.h"
#include "lab/experiments/adapter_copies.h"
#include "lab/experiments/machine_text.h"
#include "lab/experiments/scenario_report.h"
#include "lab/experiments/scenario_run.h"
#include "lab/experiments/scenario_simulation.h"
#include "lab/experiments/scenario_workload.h"
#include "report/progress_bar.h"
#include "tools/command_line/command_line.h"
#include "worth/cache_regime.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

// The regime `vllm` gives adapters a fifth of the device, which is a quarter of the working set here. The demo's
// largest adapter would not fit, and its requests would be refused.
constexpr std::uintmax_t kLargestAdapter = 1'000'000;
constexpr std::string_view kOurs = "loramux";

std::vector<std::string> AllRegimes() {
  std::vector<std::string> names;
  for (const CacheRegime& regime : CacheRegimes()) names.emplace_back(regime.name);
  return names;
}

struct Flags {
  std::string demo = "demo", dialogs = "../shared/data/dialogs/taskmaster4_data_00.json", output;
  std::vector<std::string> scenarios = ScenarioNames(), regimes = AllRegimes();
  bool scenarios_given = false;
  std::vector<int> memory = {25, 50, 75};
  double seconds = 7, load = 0.6, rate = 0, zipf = 0.8, host = 1, adapter_share = 0;
  std::size_t adapters = 96;
  int repetitions = 2, pairs = 0, threads = 0, simulated = 0;
  std::string profile;
  std::uint64_t seed = 1;
  double WarmUp() const { return seconds / 4; }
};

// Set by the first SIGINT or SIGTERM: the current cell is finished, and no files are left behind. The second signal
// kills.
volatile std::sig_atomic_t interrupted = 0;

void EndAfterThisCell() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

// A folder for copies of adapters; the destructor removes it.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_(fs::temp_directory_path() / fmt::format("loramux-scenarios-{}", getpid())) {
    fs::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// A progress note with an estimate of the remaining time.
class Progress {
 public:
  explicit Progress(std::int64_t cells) : cells_(cells) {}
  void Begin(const std::string& what) {
    const double elapsed = Elapsed();
    const double left = done_ > 0 ? elapsed / static_cast<double>(done_) * static_cast<double>(cells_ - done_) : 0;
    bar_.Note(done_ > 0 ? fmt::format("{}, {:.0f} min left", what, left / 60 + 0.5) : what);
    bar_.Update(done_, cells_);
  }
  void CellDone() { ++done_; }
  // Prints a permanent line, for logs.
  void Say(const std::string& what) {
    bar_.Finish();
    fmt::print("{}; {} of {} cells, {:.0f} s so far\n", what, done_, cells_, Elapsed());
    std::fflush(stdout);
  }
  void Finish() { bar_.Finish(); }
  double Elapsed() const { return static_cast<double>(clock_.Now() - begin_) / kNsPerSecond; }

 private:
  OsClock clock_;
  TimeNs begin_ = clock_.Now();
  std::int64_t cells_, done_ = 0;
  ProgressBar bar_{"scenarios", "cells", 1};
};

struct Prepared {
  ScenarioSummary summary;
  ScenarioOptions options;  // options of its sessions
  Reference reference;
};

double MeanTokens(const std::vector<PlannedRequest>& requests, std::vector<TokenId> PlannedRequest::*tokens) {
  double sum = 0;
  for (const PlannedRequest& request : requests) sum += static_cast<double>((request.*tokens).size());
  return sum / static_cast<double>(std::max<std::size_t>(1, requests.size()));
}

// Requests per second after the warm-up; the sessions' first turns alone are fewer.
double MeasuredRate(const std::vector<PlannedRequest>& requests, const Flags& flags) {
  const auto warm = std::count_if(requests.begin(), requests.end(), [&](const PlannedRequest& request) {
    return request.due >= static_cast<TimeNs>(flags.WarmUp() * kNsPerSecond);
  });
  return static_cast<double>(warm) / (flags.seconds - flags.WarmUp());
}

// The load of a scenario: the given rate, or a share of the machine's measured capacity.
Result<Prepared> Prepare(const Flags& flags, const ScenarioText& text, const ScenarioHouse& house,
                         const std::string& name) {
  ASSIGN_OR_RETURN(const Scenario scenario, FindScenario(name));
  ScenarioOptions options{
      .adapters = flags.adapters, .zipf = flags.zipf, .rate = flags.rate, .seconds = flags.seconds, .seed = flags.seed};
  double capacity = 0;
  if (flags.rate == 0) {
    ScenarioOptions trial = options;
    trial.rate = 100;
    trial.seconds = 3;
    trial.seed = flags.seed + 1000;
    ASSIGN_OR_RETURN(const std::vector<Session> sessions, text.MakeSessions(scenario, trial));
    ASSIGN_OR_RETURN(capacity, MeasureCapacity(house, sessions));
    options.rate = flags.load * capacity;
  }
  ASSIGN_OR_RETURN(const std::vector<Session> sessions, text.MakeSessions(scenario, options));
  if (sessions.empty()) return InvalidArgument("--seconds: expected time for at least one request; raise it");
  Prepared prepared{.summary = {}, .options = options, .reference = {}};
  ASSIGN_OR_RETURN(prepared.reference, RunReference(house, sessions));
  const Reference& reference = prepared.reference;
  std::set<std::size_t> asked;
  for (const PlannedRequest& request : reference.requests) asked.insert(request.adapter);
  prepared.summary = {.name = name,
                      .sessions = sessions.size(),
                      .requests = reference.requests.size(),
                      .adapters_asked = asked.size(),
                      .rate = MeasuredRate(reference.requests, flags),
                      .capacity = flags.rate == 0 ? capacity : reference.capacity,
                      .prompt_tokens = MeanTokens(reference.requests, &PlannedRequest::prompt),
                      .answer_tokens = MeanTokens(reference.requests, &PlannedRequest::answer),
                      .working_set_bytes = reference.working_set_bytes,
                      .adapter_bytes = reference.adapter_bytes};
  return prepared;
}

CellOptions CellOf(const Flags& flags, std::int64_t working_set_bytes, const std::string& regime, int memory_percent) {
  const auto working_set = static_cast<double>(working_set_bytes);
  return {.regime = regime,
          .device_bytes = static_cast<std::int64_t>(working_set * memory_percent / 100),
          .host_bytes = static_cast<std::int64_t>(working_set * flags.host),
          .seconds = flags.seconds,
          .warm_up_seconds = flags.WarmUp()};
}

Result<CellResult> RunRegime(const Flags& flags, const ScenarioHouse& house, const Prepared& prepared,
                             const std::string& regime, int memory_percent) {
  return RunCell(house, prepared.reference.requests,
                 CellOf(flags, prepared.reference.working_set_bytes, regime, memory_percent));
}

void RunOnce(const Flags& flags, const ScenarioHouse& house, const Prepared& prepared, ScenarioCell& cell) {
  Result<CellResult> result = RunRegime(flags, house, prepared, cell.regime, cell.memory_percent);
  if (result.ok()) {
    cell.runs.push_back(std::move(*result));
  } else {
    cell.error = result.error().message;
  }
}

// Runs all cells repetition by repetition, so that a change of the machine's speed affects all of them.
Status RunCells(const Flags& flags, const ScenarioHouse& house, const std::vector<Prepared>& scenarios,
                Progress& progress, ScenarioReport& report) {
  for (const Prepared& prepared : scenarios) {
    for (const int percent : flags.memory) {
      for (const std::string& regime : flags.regimes) {
        report.cells.push_back({.scenario = prepared.summary.name, .regime = regime, .memory_percent = percent});
      }
    }
  }
  for (int repetition = 0; repetition < flags.repetitions; ++repetition) {
    std::size_t cell = 0;
    for (const Prepared& prepared : scenarios) {
      for (std::size_t i = 0; i < flags.memory.size() * flags.regimes.size(); ++i, ++cell) {
        ScenarioCell& at = report.cells[cell];
        progress.Begin(fmt::format("{} with {} %: {}", at.scenario, at.memory_percent, at.regime));
        RunOnce(flags, house, prepared, at);
        progress.CellDone();
        if (interrupted) return Unavailable("interrupted: nothing was written");
      }
      progress.Say(fmt::format("repetition {}: {}", repetition + 1, prepared.summary.name));
    }
  }
  return Ok{};
}

// Runs the duels. The cells, or better the runs in virtual time, determine the opponent. Goes pair by pair through all
// duels, for the same reason as above.
Status RunDuels(const Flags& flags, const ScenarioHouse& house, const std::vector<Prepared>& scenarios,
                Progress& progress, ScenarioReport& report) {
  for (const Prepared& prepared : scenarios) {
    for (const int percent : flags.memory) {
      const std::optional<std::string> other = report.BestOther(prepared.summary.name, percent);
      const auto fails = [&](const ScenarioCell& cell) {
        const bool ours =
            cell.scenario == prepared.summary.name && cell.memory_percent == percent && cell.regime == report.ours;
        return ours && !cell.error.empty();
      };
      const bool ours_fails = std::any_of(report.cells.begin(), report.cells.end(), fails);
      if (flags.pairs == 0 || !other.has_value() || ours_fails) continue;
      report.duels.push_back({.scenario = prepared.summary.name, .other = *other, .memory_percent = percent});
    }
  }
  for (int pair = 0; pair < flags.pairs; ++pair) {
    for (ScenarioDuel& duel : report.duels) {
      const auto prepared = std::find_if(scenarios.begin(), scenarios.end(),
                                         [&](const Prepared& p) { return p.summary.name == duel.scenario; });
      for (const bool first : {true, false}) {
        const bool ours = first == (pair % 2 == 0);
        const std::string& regime = ours ? report.ours : duel.other;
        progress.Begin(fmt::format("{} with {} %, pair {}: {}", duel.scenario, duel.memory_percent, pair + 1, regime));
        ASSIGN_OR_RETURN(CellResult run, RunRegime(flags, house, *prepared, regime, duel.memory_percent));
        if (run.requests == 0 || run.tpot_ms.count == 0)
          return InvalidArgument("--seconds: expected time to compare at least one request; raise it");
        (ours ? duel.ours : duel.others).push_back(std::move(run));
        progress.CellDone();
        if (interrupted) return Unavailable("interrupted: nothing was written");
      }
    }
    if (!report.duels.empty()) progress.Say(fmt::format("pair {}", pair + 1));
  }
  return Ok{};
}

// Runs all regimes in virtual time, with different sessions for each seed.
Status RunSimulations(const Flags& flags, const ScenarioText& text, const PerformanceModel& model,
                      const std::vector<Prepared>& scenarios, Progress& progress, ScenarioReport& report) {
  for (const Prepared& prepared : scenarios) {
    const std::string& name = prepared.summary.name;
    ASSIGN_OR_RETURN(const Scenario scenario, FindScenario(name));
    const SimulatedHouse house{.model = model, .sizes = prepared.reference.sizes, .adapter_share = flags.adapter_share};
    const std::size_t first = report.simulated.size();
    for (const int percent : flags.memory) {
      for (const std::string& regime : flags.regimes) {
        report.simulated.push_back(
            {.scenario = name, .regime = regime, .memory_percent = percent, .runs = {}, .error = {}});
      }
    }
    const std::span<SimulatedCell> cells(report.simulated.begin() + static_cast<std::ptrdiff_t>(first),
                                         report.simulated.end());
    for (int i = 0; i < flags.simulated; ++i) {
      progress.Begin(fmt::format("{} in virtual time, seed {}", name, i + 1));
      ScenarioOptions options = prepared.options;
      options.seed += static_cast<std::uint64_t>(i);
      ASSIGN_OR_RETURN(const std::vector<Session> sessions, text.MakeSessions(scenario, options));
      ASSIGN_OR_RETURN(const SimulatedScenario simulated, PrepareSimulation(house, sessions));
      for (SimulatedCell& cell : cells) {
        const CellOptions at = CellOf(flags, simulated.working_set_bytes, cell.regime, cell.memory_percent);
        // none of the regimes can serve all requests of this seed
        if (simulated.largest_request_bytes > at.device_bytes) continue;
        const Result<SimulatedCellResult> run = SimulateCell(house, simulated, at);
        if (run.ok() && run->refused == 0)
          cell.runs.push_back(*run);
        else
          cell.error = run.ok() ? "requests were refused: too little memory" : run.error().message;
      }
      progress.CellDone();
      if (interrupted) return Unavailable("interrupted: nothing was written");
    }
    progress.Say(name + " in virtual time");
  }
  return Ok{};
}

// The scenarios that can run. Without the dialogs there is no agent scenario, which is an error only if it was
// requested.
Result<std::vector<std::string>> Scenarios(const Flags& flags, const ScenarioText& text) {
  std::vector<std::string> names = flags.scenarios;
  const auto agent = std::find(names.begin(), names.end(), ScenarioName(Scenario::kAgent));
  if (text.has_dialogs() || agent == names.end()) return names;
  if (flags.scenarios_given) return NotFound(flags.dialogs + ": no such file; give Taskmaster-4's file with --dialogs");
  fmt::print(stderr, "cache_scenarios: {}: no such file, so the scenario 'agent' does not run\n", flags.dialogs);
  names.erase(agent);
  return names;
}

Result<ScenarioReport> Run(const Flags& flags, ScenarioReport report) {
  PerformanceProfile profile;
  if (flags.simulated > 0) {
    ASSIGN_OR_RETURN(profile, LoadPerformanceProfile(flags.profile));
    report.profiled = profile.device;
    report.seeds = flags.simulated;
  }
  const TemporaryFolder folder;
  ScenarioHouse house{.model = fs::path(flags.demo) / "model", .adapters = {}, .threads = flags.threads};
  ASSIGN_OR_RETURN(house.adapters,
                   CopyAdapters(fs::path(flags.demo) / "adapters", folder.path(), flags.adapters, kLargestAdapter));
  const bool dialogs = fs::exists(flags.dialogs);
  ASSIGN_OR_RETURN(const ScenarioText text, ScenarioText::Load(flags.demo, dialogs ? flags.dialogs : ""));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, Scenarios(flags, text));
  const auto repetitions = static_cast<std::size_t>(flags.repetitions), pairs = static_cast<std::size_t>(flags.pairs);
  const std::size_t runs = flags.memory.size() * (flags.regimes.size() * repetitions + 2 * pairs);
  Progress progress(static_cast<std::int64_t>(names.size() * (runs + static_cast<std::size_t>(flags.simulated))));
  std::vector<Prepared> scenarios;
  for (const std::string& name : names) {
    progress.Begin(name + ": reference answers");
    if (interrupted) return Unavailable("interrupted: nothing was written");
    ASSIGN_OR_RETURN(Prepared prepared, Prepare(flags, text, house, name));
    report.scenarios.push_back(prepared.summary);
    progress.Say(fmt::format("{}: {} requests, {:.1f} per second after the warm-up; working set {:.1f} MB", name,
                             prepared.summary.requests, prepared.summary.rate,
                             static_cast<double>(prepared.summary.working_set_bytes) / 1e6));
    scenarios.push_back(std::move(prepared));
  }
  Status done = RunCells(flags, house, scenarios, progress, report);
  if (done.ok() && flags.simulated > 0)
    done = RunSimulations(flags, text, profile.EngineModel(), scenarios, progress, report);
  if (done.ok()) done = RunDuels(flags, house, scenarios, progress, report);
  progress.Finish();
  RETURN_IF_ERROR(done);
  report.run_seconds = progress.Elapsed();
  return report;
}

ScenarioReport Describe(const Flags& flags, int argc, char** argv) {
  ScenarioReport report{.machine = Machine(),
                        .adapters = flags.adapters,
                        .zipf = flags.zipf,
                        .load = flags.load,
                        .seconds = flags.seconds,
                        .warm_up_seconds = flags.WarmUp(),
                        .host_share = flags.host,
                        .repetitions = flags.repetitions,
                        .threads = flags.threads,
                        .memory_percent = flags.memory,
                        .regimes = flags.regimes,
                        .ours = std::string(kOurs)};
  for (int i = 0; i < argc; ++i) report.command += (i == 0 ? "" : " ") + std::string(argv[i]);
  report.date = fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(static_cast<std::time_t>(OsClock().UnixSeconds())));
  std::error_code error;
  const auto weights = fs::file_size(fs::path(flags.demo) / "model" / "model.safetensors", error);
  if (!error) report.weight_bytes = static_cast<std::int64_t>(weights);
  return report;
}

int Main(const Flags& flags, int argc, char** argv) {
  EndAfterThisCell();
  const Result<ScenarioReport> report = Run(flags, Describe(flags, argc, argv));
  const Status written = report.ok() ? WriteReport(*report, flags.output) : Status(report.error());
  if (!written.ok()) {
    fmt::print(stderr, "cache_scenarios: {}\n", written.error().message);
    return 1;
  }
  std::size_t runs = 0;
  for (const ScenarioCell& cell : report->cells) runs += cell.runs.size();
  for (const ScenarioDuel& duel : report->duels) runs += duel.ours.size() + duel.others.size();
  fmt::print("{} runs in {:.1f} minutes, {} answers wrong or missing: {}\n", runs, report->run_seconds / 60,
             report->WrongAnswers(), (fs::path(flags.output) / "cache_scenarios.md").string());
  for (const ScenarioCell& cell : report->cells) {
    if (!cell.error.empty())
      fmt::print(stderr, "{} with {} %, {}: {}\n", cell.scenario, cell.memory_percent, cell.regime, cell.error);
  }
  if (!report->AllRan()) return 1;
  return report->WrongAnswers() == 0 ? 0 : 2;
}

void AddLoadFlags(CommandLine& line, Flags& flags) {
  line.Add({.names = "--output",
            .target = &flags.output,
            .unit = "DIR",
            .help = "Folder for cache_scenarios.md, .json and .svg",
            .required = true});
  line.Add({.names = "--demo",
            .target = &flags.demo,
            .unit = "DIR",
            .help = "Folder with model/, adapters/ and eval/",
            .path = FlagPath::kExistingDirectory});
  line.Add({.names = "--dialogs",
            .target = &flags.dialogs,
            .unit = "FILE",
            .help = "File of Taskmaster-4 dialogs, for the scenario 'agent'"});
  line.Add({.names = "--scenarios",
            .target = &flags.scenarios,
            .unit = "NAME",
            .help = "Scenarios to run, separated by commas",
            .choices = ScenarioNames(),
            .comma_list = true});
  line.Add({.names = "--regimes",
            .target = &flags.regimes,
            .unit = "NAME",
            .help = "Cache regimes to run, separated by commas",
            .choices = AllRegimes(),
            .comma_list = true});
  line.Add({.names = "--memory",
            .target = &flags.memory,
            .unit = "PERCENT",
            .help = "Sizes of the device tier, of the working set, separated by commas",
            .range = {{1, 1000}},
            .comma_list = true});
  line.Add({.names = "--host",
            .target = &flags.host,
            .unit = "SHARE",
            .help = "Size of the host tier, as a fraction of the working set",
            .range = {{0, 100}}});
  line.Add({.names = "--adapters",
            .target = &flags.adapters,
            .unit = "N",
            .help = "Number of adapters",
            .range = {{1, 1000}}});
  line.Add({.names = "--zipf",
            .target = &flags.zipf,
            .unit = "NUMBER",
            .help = "Zipf exponent of the adapters' popularity",
            .range = {{0, 10}}});
  line.Add({.names = "--load",
            .target = &flags.load,
            .unit = "SHARE",
            .help = "Request rate, as a fraction of the rate that the machine sustains with ample memory",
            .range = {{0.01, 10}}});
  line.Add({.names = "--rate",
            .target = &flags.rate,
            .unit = "RATE",
            .help = "Requests per second, instead of --load; 0: by --load",
            .range = {{0, 1e6}}});
}

void AddRunFlags(CommandLine& line, Flags& flags) {
  line.Add({.names = "--seconds",
            .target = &flags.seconds,
            .unit = "SECONDS",
            .help = "Length of the arrivals in a run; the first quarter is warm-up",
            .range = {{0.1, 3600}}});
  line.Add({.names = "--repetitions",
            .target = &flags.repetitions,
            .unit = "N",
            .help = "Repetitions of each cell; 0: only the runs of --simulated",
            .range = {{0, 100}}});
  line.Add({.names = "--pairs",
            .target = &flags.pairs,
            .unit = "N",
            .help = "Pairs of runs that then compare loramux with the best other regime of each scenario and size",
            .range = {{0, 1000}}});
  line.Add({.names = "--profile",
            .target = &flags.profile,
            .unit = "FILE",
            .help = "File of `loramux profile` for this machine and the demo model",
            .path = FlagPath::kExistingFile});
  line.Add({.names = "--simulated",
            .target = &flags.simulated,
            .unit = "N",
            .help = "Seeds of sessions that then run in virtual time under all regimes, with the profile's times",
            .range = {{0, 10000}},
            .needs = "--profile"});
  line.Add({.names = "--adapter-share",
            .target = &flags.adapter_share,
            .unit = "SHARE",
            .help = "In virtual time: share of the device reserved for adapters, for all regimes; 0: each regime's own",
            .range = {{0, 0.99}}});
  line.Add({.names = "--threads",
            .target = &flags.threads,
            .unit = "N",
            .help = "Threads of the executor; 0: one per processor",
            .range = {{0, 1024}}});
  line.Add({.names = "--seed", .target = &flags.seed, .unit = "N", .help = "Seed of all random choices"});
}

}  // namespace
}  // namespace loramux

int main(int argc, char** argv) {
  loramux::Flags flags;
  std::vector<std::string> given;
  loramux::Command command{
      .name = "cache_scenarios",
      .summary = "Compare the cache regimes under three kinds of load, on the real engine with the demo model"};
  loramux::AddLoadFlags(command.line, flags);
  loramux::AddRunFlags(command.line, flags);
  command.line.TellGiven(&given);
  command.run = [&] {
    flags.scenarios_given = std::find(given.begin(), given.end(), "--scenarios") != given.end();
    return loramux::Main(flags, argc, argv);
  };
  return loramux::RunCommand(command, argc, argv);
}
