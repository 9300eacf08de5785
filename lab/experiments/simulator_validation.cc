// The simulator against the real engine: the demo model on the CPU, several presets under several loads. First, the
// code of `loramux profile` measures a profile. After each run, the same code fits the profile's factors to the steps
// of every other quarter of a second. Then the requests of the quarters between are simulated, at the pace that the
// real machine had.
//
//   simulator_validation --output build/results
//
// Takes about twenty minutes, on an otherwise idle machine; --runs divides it into parts. Exit status: 0; 2 if a figure
// is outside its bounds; 1 if something could not run.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/text_file.h"
#include "formats/random_adapter.h"
#include "lab/experiments/machine_text.h"
#include "lab/experiments/validation_report.h"
#include "lab/experiments/validation_run.h"
#include "profile/engine_fit.h"
#include "report/progress_bar.h"
#include "tools/command_line/command_line.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::int32_t, 4> kRanks = {8, 16, 32, 64};
// seconds; UnevennessOf ignores seconds in which the steps took less
constexpr double kLeastBusy = 0.05;
constexpr std::int64_t kBenchMemory = std::int64_t{256} << 20;  // for the steps that are measured one by one

struct Flags {
  std::string demo = "demo", output, runs, steps, profile;
  std::vector<std::string> presets = {"loramux", "chameleon", "fifo"};
  std::vector<int> loads = {20, 40, 60, 75};  // percent
  double seconds = 16, saturation = 0, profile_seconds = 40;
  int repetitions = 5, threads = 1;
  std::size_t adapters = 32;
  double device_mb = 16, host_mb = 64, input = 96, output_tokens = 32;
  std::uint64_t seed = 1;
};

// A folder of random adapters; the destructor removes it.
class AdapterFolder {
 public:
  AdapterFolder() : path_(fs::temp_directory_path() / fmt::format("loramux-validation-{}", getpid())) {}
  ~AdapterFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  AdapterFolder(const AdapterFolder&) = delete;
  AdapterFolder& operator=(const AdapterFolder&) = delete;

  Status Fill(const ModelConfig& config, std::size_t count, ValidationHouse& house) const {
    for (std::size_t i = 0; i < count; ++i) {
      const std::int32_t rank = kRanks[i % kRanks.size()];
      house.adapters.push_back((path_ / std::to_string(i)).string());
      house.ranks.push_back(rank);
      RETURN_IF_ERROR(WriteRandomAdapter(house.adapters.back(), config, rank,
                                         {LoraTarget::kQ, LoraTarget::kK, LoraTarget::kV, LoraTarget::kO}, i + 1));
    }
    return Ok{};
  }

 private:
  fs::path path_;
};

EngineLoad LoadOf(const Flags& flags, const ModelConfig& config, double rate) {
  return {.rate = rate,
          .seconds = flags.seconds,
          .adapters = flags.adapters,
          .input_mean = flags.input,
          .output_mean = flags.output_tokens,
          .vocab = config.vocab_size,
          .seed = flags.seed};
}

double Share(std::int64_t part, std::int64_t of) {
  return of > 0 ? static_cast<double>(part) / static_cast<double>(of) : 0;
}

// In seconds, all steps together.
struct StepTimes {
  double predicted = 0, measured = 0;
  StepTimes operator+(const StepTimes& other) const { return {predicted + other.predicted, measured + other.measured}; }
  double Ratio() const { return measured > 0 ? predicted / measured : 0; }
};
StepTimes TimesOf(const EngineRun& run, const PerformanceModel& model) {
  StepTimes times;
  for (const ObservedStep& step : run.steps) {
    times.predicted += model.SecondsOf(step.load);
    times.measured += static_cast<double>(step.seconds_ns) / kNsPerSecond;
  }
  return times;
}

// How far the second with the slowest or fastest steps is from the average: a property of the machine, not of the load.
double UnevennessOf(const EngineRun& run, const PerformanceModel& model) {
  std::vector<StepTimes> seconds;
  StepTimes all;
  for (const ObservedStep& step : run.steps) {
    const auto second = static_cast<std::size_t>(step.begin / kNsPerSecond);
    if (seconds.size() <= second) seconds.resize(second + 1);
    const StepTimes one{model.SecondsOf(step.load), static_cast<double>(step.seconds_ns) / kNsPerSecond};
    seconds[second] = seconds[second] + one;
    all = all + one;
  }
  double most = 0;
  for (const StepTimes& second : seconds) {
    if (second.measured < kLeastBusy) continue;
    most = std::max(most, std::abs(all.Ratio() / second.Ratio() - 1));
  }
  return most;
}

// Converts the profile to a file and back, as between `loramux profile` and `loramux simulate`.
Result<PerformanceProfile> ThroughFile(const PerformanceProfile& profile) {
  return ParsePerformanceProfile(PerformanceProfileAsJson(profile), "the measured profile");
}

using Profiles = std::array<PerformanceProfile, 2>;  // profiles of a run's turns

// Only the linear terms, at the pace that was found with the factors.
Profiles WithoutFactors(Profiles profiles) {
  for (PerformanceProfile& profile : profiles) {
    PerformanceModel& model = profile.mbgmv.model;
    for (const FactorTable table : kFactorTables) (model.*table).clear();
    model.after_prefill = model.after_prefill_decay = model.after_prefill_per_sequence = 0;
  }
  return profiles;
}

Profiles AtPace(Profiles profiles, const Pace& pace) {
  for (PerformanceProfile& profile : profiles) profile.pace = pace;
  return profiles;
}

Status Append(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::app);
  file << text;
  file.close();
  if (!file) return IoError(path + ": cannot be written");
  return Ok{};
}

class Validation {
 public:
  Validation(const Flags& flags, ModelConfig config) : flags_(flags), config_(std::move(config)) {}

  Status Prepare(const AdapterFolder& folder) {
    house_ = {.model = fs::path(flags_.demo) / "model",
              .adapters = {},
              .ranks = {},
              .device_bytes = static_cast<std::int64_t>(flags_.device_mb * 1e6),
              .host_bytes = static_cast<std::int64_t>(flags_.host_mb * 1e6),
              .threads = flags_.threads,
              .costs = {}};
    RETURN_IF_ERROR(folder.Fill(config_, flags_.adapters, house_));
    RETURN_IF_ERROR(TakeProfile());
    saturation_ = flags_.saturation > 0 ? flags_.saturation : profile_.requests_per_second;
    if (flags_.saturation == 0 && fs::exists(flags_.runs)) {
      ASSIGN_OR_RETURN(const std::vector<ValidationRun> before, ReadRuns(flags_.runs));
      if (!before.empty()) saturation_ = before.front().saturation;
    }
    if (saturation_ <= 0)
      return InvalidArgument("the profile has no sustained request rate: give one with --saturation", "--saturation");
    house_.costs = std::make_shared<const PerformanceModel>(profile_.EngineModel());
    return Ok{};
  }

  Result<ValidationRun> Run(const Preset& preset, int load_percent, int repetition) {
    const double rate = saturation_ * load_percent / 100;
    EngineLoad load = LoadOf(flags_, config_, rate);
    // different requests each time, so that a borderline one does not decide all repetitions
    load.seed += static_cast<std::uint64_t>(repetition);
    const std::vector<EngineRequest> requests = DrawRequests(load);
    if (requests.empty()) return TooShort();
    ASSIGN_OR_RETURN(const RealRun real, RunReal(house_, preset, requests));
    const std::array<EngineRun, 2> by_turn = StepsByTurns(real.run);
    ASSIGN_OR_RETURN(const Profiles fitted, FitByTurns(by_turn));
    ASSIGN_OR_RETURN(const SimulatedRun simulated,
                     SimulateByTurns(preset, requests, real, AtPace(fitted, OwnPaceOf(by_turn, fitted))));
    ASSIGN_OR_RETURN(const SimulatedRun even, SimulateByTurns(preset, requests, real, AtPace(fitted, Pace())));
    ASSIGN_OR_RETURN(const SimulatedRun beside, SimulateByTurns(preset, requests, real, fitted));
    ASSIGN_OR_RETURN(const SimulatedRun linear, SimulateByTurns(preset, requests, real, WithoutFactors(fitted)));
    ASSIGN_OR_RETURN(const SimulatedRun once, RunSimulated(house_, preset, requests, real, profile_));
    const auto warm_up = static_cast<TimeNs>(flags_.seconds / 4 * kNsPerSecond);
    if (!flags_.steps.empty()) {
      const std::string name = fmt::format("{}.{}.{}.{}", flags_.steps, preset.name, load_percent, repetition);
      RETURN_IF_ERROR(WriteTextFile(name + ".steps.csv", StepsAsCsv(by_turn, fitted)));
      RETURN_IF_ERROR(WriteTextFile(name + ".transfers.csv", TransfersAsCsv(real.run)));
      RETURN_IF_ERROR(WriteTextFile(name + ".requests.csv", RequestsAsCsv(requests, real.run, simulated)));
    }
    const PerformanceModel &a = fitted[0].mbgmv.model, &b = fitted[1].mbgmv.model;
    const StepTimes steps = TimesOf(by_turn[0], a) + TimesOf(by_turn[1], b);
    return ValidationRun{
        .preset = std::string(preset.name),
        .load_percent = load_percent,
        .rate = rate,
        .saturation = saturation_,
        .requests = static_cast<std::int64_t>(requests.size()),
        .real = FiguresOf(real.run.requests, warm_up),
        .simulated = FiguresOf(simulated.requests, warm_up),
        .even = FiguresOf(even.requests, warm_up),
        .beside = FiguresOf(beside.requests, warm_up),
        .linear = FiguresOf(linear.requests, warm_up),
        .once = FiguresOf(once.requests, warm_up),
        .fitted_steps = static_cast<std::int64_t>(real.run.steps.size()),
        .fit_error = (fitted[0].mbgmv.engine.mean_error + fitted[1].mbgmv.engine.mean_error) / 2,
        .linear_fit_error = (fitted[0].mbgmv.engine_linear.mean_error + fitted[1].mbgmv.engine_linear.mean_error) / 2,
        .unevenness = UnevennessOf(real.run, profile_.mbgmv.model),
        .step_time_ratio = steps.Ratio(),
        .once_step_time_ratio = TimesOf(real.run, profile_.mbgmv.model).Ratio(),
        .between_steps_us = (a.between_steps + b.between_steps) / 2 * 1e6,
        .submit_latency_us = (a.submit_latency + b.submit_latency) / 2 * 1e6,
        .busy = steps.measured / (static_cast<double>(real.run.end) / kNsPerSecond),
        .adapter_hits = Share(real.stats.adapters.asked_on_device, real.stats.adapters.asked),
        .simulated_adapter_hits = Share(simulated.stats.adapters.asked_on_device, simulated.stats.adapters.asked)};
  }

 private:
  // Takes each request from the simulation of its turn. The counts are those of the first turn's simulation.
  Result<SimulatedRun> SimulateByTurns(const Preset& preset, const std::vector<EngineRequest>& requests,
                                       const RealRun& real, const Profiles& fitted) const {
    std::array<SimulatedRun, 2> of_turn;
    for (std::size_t turn = 0; turn < of_turn.size(); ++turn) {
      ASSIGN_OR_RETURN(of_turn[turn], RunSimulated(house_, preset, requests, real, fitted[turn]));
    }
    return ByTurns(of_turn);
  }

  static Error TooShort() {
    return InvalidArgument("--seconds: too short: a run needs steps in odd and in even quarters of a second",
                           "--seconds");
  }

  // Fits, for each turn, to the steps of the other one.
  Result<Profiles> FitByTurns(const std::array<EngineRun, 2>& by_turn) const {
    Profiles fitted = {profile_, profile_};
    for (std::size_t turn = 0; turn < fitted.size(); ++turn) {
      const EngineRun& other = by_turn[1 - turn];
      if (other.steps.empty()) return TooShort();
      FitEngine({&other, 1}, LoraCostShape::kMbgmv, fitted[turn]);
      ASSIGN_OR_RETURN(fitted[turn], ThroughFile(fitted[turn]));
    }
    return fitted;
  }

  // Measures what `loramux profile --quick` measures on such a server, or reads the file of an earlier call.
  Status TakeProfile() {
    if (!flags_.profile.empty() && fs::exists(flags_.profile)) {
      ASSIGN_OR_RETURN(profile_, LoadPerformanceProfile(flags_.profile));
      return Ok{};
    }
    ASSIGN_OR_RETURN(const Preset preset, FindPreset("loramux"));
    MeasureOptions options{.model_name = "demo", .digest = "demo"};
    options.adapters = house_.adapters;
    options.engine = OptionsOf(house_, preset);
    options.step_memory = kBenchMemory;
    options.sweep = {.points = 160, .least_points = 64, .seconds = flags_.profile_seconds};
    options.link_seconds = 3;
    options.engine_seconds = flags_.profile_seconds / 4;
    options.input_mean = flags_.input;
    options.output_mean = flags_.output_tokens;
    options.seed = flags_.seed;
    ASSIGN_OR_RETURN(std::unique_ptr<PlacedModel> model, PlacedModel::Load(house_.model, nullptr, {}, {}));
    ASSIGN_OR_RETURN(const MeasuredProfile measured, MeasureProfile(std::move(model), options));
    ASSIGN_OR_RETURN(profile_, ThroughFile(measured.profile));
    if (flags_.profile.empty()) return Ok{};
    return WriteTextFile(flags_.profile, PerformanceProfileAsJson(profile_));
  }

  const Flags& flags_;
  const ModelConfig config_;
  ValidationHouse house_;
  PerformanceProfile profile_;  // measured once, before all runs
  double saturation_ = 0;
};

// Calls that add to a file of runs continue after the runs in it.
Result<int> FirstRepetition(const Flags& flags) {
  if (flags.runs.empty() || !fs::exists(flags.runs)) return 0;
  ASSIGN_OR_RETURN(const std::vector<ValidationRun> before, ReadRuns(flags.runs));
  return static_cast<int>(std::count_if(before.begin(), before.end(), [&](const ValidationRun& run) {
    return run.preset == flags.presets.front() && run.load_percent == flags.loads.front();
  }));
}

// Runs repetition by repetition, so that a change of the machine's speed affects all cells.
Result<std::vector<ValidationRun>> RunAll(const Flags& flags, const ModelConfig& config) {
  const AdapterFolder folder;
  Validation validation(flags, config);
  RETURN_IF_ERROR(validation.Prepare(folder));
  std::vector<ValidationRun> runs;
  ProgressBar bar("validation", "runs", 1);
  const auto total = static_cast<std::int64_t>(flags.loads.size() * flags.presets.size()) * flags.repetitions;
  ASSIGN_OR_RETURN(const int begin, FirstRepetition(flags));
  for (int repetition = begin; repetition < begin + flags.repetitions; ++repetition) {
    for (const int load : flags.loads) {
      for (const std::string& name : flags.presets) {
        ASSIGN_OR_RETURN(const Preset preset, FindPreset(name));
        ASSIGN_OR_RETURN(const ValidationRun run, validation.Run(preset, load, repetition));
        if (!flags.runs.empty()) RETURN_IF_ERROR(Append(flags.runs, RunAsJsonLine(run)));
        runs.push_back(run);
        bar.Update(static_cast<std::int64_t>(runs.size()), total);
      }
    }
  }
  bar.Finish();
  return runs;
}

std::string SettingOf(const Flags& flags, double saturation) {
  return fmt::format(
      "Poisson arrivals for {:g} s, the first quarter warms up; {:.1f} requests a second are 100 %. Prompts of {:g} "
      "and "
      "answers of {:g} tokens on average (log-normal, coefficient of variation 0.6), random tokens. {} random adapters "
      "of "
      "ranks 8 to 64 on q, k, v, o, popularity by Zipf's law with exponent 0.8. {:g} MB of device memory, {:g} MB of "
      "host "
      "tier. {} thread(s) of the executor, so that engine and sender have a processor of their own.",
      flags.seconds, saturation, flags.input, flags.output_tokens, flags.adapters, flags.device_mb, flags.host_mb,
      flags.threads);
}

Result<ValidationReport> Run(const Flags& flags, std::string command) {
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(fs::path(flags.demo) / "model"));
  ValidationReport report{.command = std::move(command), .machine = Machine(), .date = {}, .setting = {}, .runs = {}};
  report.date = fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(static_cast<std::time_t>(OsClock().UnixSeconds())));
  if (flags.repetitions > 0) {
    ASSIGN_OR_RETURN(report.runs, RunAll(flags, config));
  }
  if (!flags.runs.empty()) {
    ASSIGN_OR_RETURN(report.runs, ReadRuns(flags.runs));  // including those of other calls
  }
  if (report.runs.empty())
    return InvalidArgument(
        "expected at least one run, found none: with --repetitions 0, --runs must name a file of earlier runs",
        "--runs");
  report.setting = SettingOf(flags, report.runs.front().saturation);
  RETURN_IF_ERROR(WriteReport(report, flags.output));
  return report;
}

void AddRunFlags(CommandLine& line, Flags& flags) {
  line.Add({.names = "--output",
            .target = &flags.output,
            .unit = "DIR",
            .help = "Folder for simulator_validation.md, .json and .svg",
            .required = true});
  line.Add({.names = "--demo",
            .target = &flags.demo,
            .unit = "DIR",
            .help = "Folder with model/",
            .path = FlagPath::kExistingDirectory});
  line.Add({.names = "--presets",
            .target = &flags.presets,
            .unit = "NAME",
            .help = "Presets to run, separated by commas",
            .comma_list = true});
  line.Add({.names = "--loads",
            .target = &flags.loads,
            .unit = "PERCENT",
            .help = "Request rates, of the rate that the machine sustains, separated by commas",
            .range = {{1, 100}},
            .comma_list = true});
  line.Add({.names = "--saturation",
            .target = &flags.saturation,
            .unit = "RATE",
            .help = "Requests per second that count as 100 %; 0: the rate in --runs, or measured",
            .range = {{0, 1e6}}});
  line.Add({.names = "--seconds",
            .target = &flags.seconds,
            .unit = "SECONDS",
            .help = "Length of the arrivals in a run",
            .range = {{0.1, 3600}}});
  line.Add({.names = "--repetitions",
            .target = &flags.repetitions,
            .unit = "N",
            .help = "Repetitions of each run; 0: only write the report of --runs again",
            .range = {{0, 100}}});
  line.Add({.names = "--runs",
            .target = &flags.runs,
            .unit = "FILE",
            .help = "File to which the runs are appended, one per line; the report covers all runs in it"});
  line.Add({.names = "--profile",
            .target = &flags.profile,
            .unit = "FILE",
            .help = "File of the profile; measured first if the file does not exist"});
  line.Add({.names = "--profile-seconds",
            .target = &flags.profile_seconds,
            .unit = "SECONDS",
            .help = "How long steps are measured for the profile",
            .range = {{0.1, 3600}}});
  line.Add({.names = "--steps",
            .target = &flags.steps,
            .unit = "PREFIX",
            .help = "Prefix of the names of CSV files with the steps, transfers and requests of each run"});
  line.Add({.names = "--seed", .target = &flags.seed, .unit = "N", .help = "Seed of all random choices"});
}

void AddWorldFlags(CommandLine& line, Flags& flags) {
  line.Add({.names = "--adapters",
            .target = &flags.adapters,
            .unit = "N",
            .help = "Number of adapters",
            .range = {{1, 1000}}});
  line.Add({.names = "--device-mb",
            .target = &flags.device_mb,
            .unit = "MB",
            .help = "Size of the device tier",
            .range = {{1, 1e5}}});
  line.Add({.names = "--host-mb",
            .target = &flags.host_mb,
            .unit = "MB",
            .help = "Size of the host tier",
            .range = {{1, 1e5}}});
  line.Add({.names = "--input-mean",
            .target = &flags.input,
            .unit = "TOKENS",
            .help = "Mean prompt length",
            .range = {{2, 512}}});
  line.Add({.names = "--output-mean",
            .target = &flags.output_tokens,
            .unit = "TOKENS",
            .help = "Mean answer length",
            .range = {{2, 192}}});
  line.Add({.names = "--threads",
            .target = &flags.threads,
            .unit = "N",
            .help = "Threads of the executor",
            .range = {{1, 1024}}});
}

}  // namespace
}  // namespace loramux

int main(int argc, char** argv) {
  loramux::Flags flags;
  loramux::Command command{.name = "simulator_validation",
                           .summary = "Compare the simulator with the real engine, on the demo model"};
  loramux::AddRunFlags(command.line, flags);
  loramux::AddWorldFlags(command.line, flags);
  command.run = [&] {
    std::string given = "simulator_validation";
    for (int i = 1; i < argc; ++i) given += " " + std::string(argv[i]);  // for the report
    const auto report = loramux::Run(flags, std::move(given));
    if (!report.ok()) {
      fmt::print(stderr, "simulator_validation: {}\n", report.error().message);
      return loramux::kExitFailure;
    }
    const std::int64_t outside = loramux::OutsideBounds(*report);
    fmt::print("{} runs, {} figures outside their bounds: {}/simulator_validation.md\n", report->runs.size(), outside,
               flags.output);
    return outside == 0 ? 0 : 2;
  };
  return loramux::RunCommand(command, argc, argv);
}
