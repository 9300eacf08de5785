#include "tools/simulate.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include <fmt/core.h>
#include <unistd.h>

#include "formats/file.h"
#include "formats/message.h"
#include "formats/model_files.h"
#include "schedule/profile/performance_profile.h"
#include "simulate/report.h"
#include "tools/simulate_fleet.h"
#include "tools/simulate_replay.h"
#include "tools/system_flags.h"

namespace loramux {
namespace {

constexpr double kSloFactor = 5;  // Chameleon 5.1

template <typename Range, typename Name>
std::string Names(const Range& range, Name name) {
  std::string names;
  for (const auto& item : range) names += (names.empty() ? "" : ", ") + std::string(name(item));
  return names;
}

void AddDeviceFlags(CommandLine& line, SimulateFlags& flags) {
  const std::string group = "Device";
  const auto name = [](const auto& shape) { return shape.name; };
  line.Add({.names = "--device",
            .target = &flags.device,
            .unit = "NAME",
            .group = group,
            .help = "Device to simulate, one of " + Names(DeviceShapes(), name)});
  line.Add({.names = "--model",
            .target = &flags.model,
            .unit = "DIR or NAME",
            .group = group,
            .help = "Directory with a model's config.json, or one of " + Names(ModelShapes(), name)});
  line.Add({.names = "--profile",
            .target = &flags.profile,
            .unit = "FILE",
            .group = group,
            .help = "A file of `loramux profile`. Steps and transfers take its measured times instead of --device's "
                    "rates; memory stays --device's",
            .path = FlagPath::kExistingFile});
  line.Add({.names = "--gpus",
            .target = &flags.gpus,
            .unit = "N",
            .group = group,
            .help = "Devices that act as one by tensor parallelism"});
  line.Add({.names = "--memory-share",
            .target = &flags.memory_share,
            .unit = "SHARE",
            .group = group,
            .help = "Share of the device's memory that may be used",
            .range = {{0.01, 1.0}}});
  line.Add({.names = "--host-link",
            .target = &flags.host_link_gb,
            .unit = "GB/S",
            .group = group,
            .help = "Measured bandwidth from host to device",
            .default_text = "four fifths of the published rate, or --profile's",
            .range = {{0.0, 1e5}}});
  line.Add({.names = "--host-memory",
            .target = &flags.host_memory_gb,
            .unit = "GB",
            .group = group,
            .help = "Size of the host tier; 0: none",
            .range = {{0.0, 1e6}}});
  line.Add({.names = "--pace",
            .target = &flags.pace,
            .unit = "FILE",
            .group = group,
            .help = "CSV file of seconds,factor: from each time on, steps take factor times as long (busy neighbours, "
                    "heat, a power limit). Replaces the pace in --profile",
            .path = FlagPath::kExistingFile});
  line.Add({.names = "--steady",
            .target = &flags.steady,
            .group = group,
            .help = "Simulate a machine of constant speed, without the variation that --profile found",
            .needs = "--profile",
            .excludes = "--pace"});
  line.Add({.names = "--adapters-on-disk",
            .target = &flags.adapters_on_disk,
            .group = group,
            .help = "Start with the adapters on disk instead of in host memory"});
}

void AddPresetFlags(CommandLine& line, SimulateFlags& flags) {
  const std::string group = "System";
  line.Add({.names = "--preset",
            .target = &flags.presets,
            .unit = "NAME",
            .group = group,
            .help = "Presets to compare, separated by commas, or 'all'; --list-presets explains them. A fleet has one",
            .default_text = "loramux,s-lora; of a fleet loramux",
            .comma_list = true});
  line.Add({.names = "--list-presets", .target = &flags.list, .group = group, .help = "Print the presets and exit"});
  line.Add(InGroup(CacheFlag(flags.cache), group, "each preset's"));
  line.Add(InGroup(ScheduleFlag(flags.schedule), group, "each preset's"));
  line.Add(InGroup(ColdStartFlag(flags.cold_start), group, "each preset's, or wait"));
  line.Add({.names = "--adapter-share",
            .target = &flags.adapter_share,
            .unit = "SHARE",
            .group = group,
            .help = "Share of memory reserved for adapters, for all presets",
            .default_text = "each preset's",
            .range = {{0.0, 0.95}}});
  line.Add(InGroup(MaxNumSeqsFlag(flags.max_num_seqs), group));
  line.Add(InGroup(MaxNumBatchedTokensFlag(&flags.max_num_batched_tokens), group));
  line.Add({.names = "--predictor-accuracy",
            .target = &flags.predictor_accuracy,
            .unit = "SHARE",
            .group = group,
            .help = "Share of output lengths that the predictor guesses right",
            .range = {{0.0, 1.0}}});
  line.Add(InGroup(AgeBoundFlag(flags.age_bound_seconds), group));
  line.Add(InGroup(AdapterPrefetchFlag(flags.adapter_prefetch), group));
  line.Add({.names = "--max-loras",
            .target = &flags.constants.constants.adapters_in_batch,
            .unit = "N",
            .group = group,
            .help = "Upper bound on different adapters in one batch (vLLM-LoRA: 32); 0: bounded by memory only",
            .default_text = "each preset's",
            .range = {{0, 1 << 20}}});
}

void AddArrivalFlags(CommandLine& line, SimulateFlags& flags) {
  const std::string group = "Load";
  WorkloadOptions& load = flags.workload;
  line.Add({.names = "--trace",
            .target = &load.trace,
            .unit = "FILE",
            .group = group,
            .help = "Take lengths from a trace: Azure's CSV, or Mooncake's JSONL with shared prefixes",
            .path = FlagPath::kExistingFile});
  line.Add({.names = "--arrivals",
            .target = &flags.arrivals,
            .unit = "SOURCE",
            .group = group,
            .help = "poisson draws arrival times; trace uses the trace's own",
            .choices = {"poisson", "trace"}});
  line.Add({.names = "--clients",
            .target = &load.clients,
            .unit = "DIR",
            .group = group,
            .help = "Directory of ServeGen client traces: arrivals are theirs, and each client has an adapter",
            .path = FlagPath::kExistingDirectory});
  line.Add({.names = "--clients-hour",
            .target = &load.clients_hour,
            .unit = "HOURS",
            .group = group,
            .help = "Point in the --clients recording at which to begin",
            .default_text = "0",
            .range = {{0.0, 1e5}}});
  line.Add({.names = "--requests",
            .target = &load.requests,
            .unit = "N",
            .group = group,
            .help = "Number of requests",
            .default_text = "all of the trace, or 2000"});
  line.Add({.names = "--rate",
            .target = &load.rate,
            .unit = "REQUESTS/S",
            .group = group,
            .help = "Mean arrival rate; recorded times are stretched to it"});
}

void AddLengthFlags(CommandLine& line, SimulateFlags& flags) {
  const std::string group = "Load";
  WorkloadOptions& load = flags.workload;
  line.Add({.names = "--input-mean",
            .target = &load.input_mean,
            .unit = "TOKENS",
            .group = group,
            .help = "Mean prompt length without a trace (log-normal)"});
  line.Add({.names = "--output-mean",
            .target = &load.output_mean,
            .unit = "TOKENS",
            .group = group,
            .help = "Mean output length without a trace (log-normal)"});
  line.Add({.names = "--input-cv",
            .target = &load.input_cv,
            .unit = "RATIO",
            .group = group,
            .help = "Standard deviation of prompt lengths over their mean; 0: all alike"});
  line.Add({.names = "--output-cv",
            .target = &load.output_cv,
            .unit = "RATIO",
            .group = group,
            .help = "Standard deviation of output lengths over their mean; 0: all alike"});
  line.Add({.names = "--input-scale",
            .target = &load.input_scale,
            .unit = "FACTOR",
            .group = group,
            .help = "Multiplies the trace's prompt lengths"});
  line.Add({.names = "--output-scale",
            .target = &load.output_scale,
            .unit = "FACTOR",
            .group = group,
            .help = "Multiplies the trace's output lengths"});
  line.Add({.names = "--max-input",
            .target = &load.max_input,
            .unit = "TOKENS",
            .group = group,
            .help = "Cut longer prompts"});
  line.Add({.names = "--max-output",
            .target = &load.max_output,
            .unit = "TOKENS",
            .group = group,
            .help = "Cut longer outputs"});
}

void AddSessionFlags(CommandLine& line, SimulateFlags& flags) {
  const std::string group = "Load";
  WorkloadOptions& load = flags.workload;
  line.Add({.names = "--turns",
            .target = &load.turns,
            .unit = "N",
            .group = group,
            .help = "Mean number of turns in a session; each prompt begins with the dialogue so far"});
  line.Add({.names = "--think-seconds",
            .target = &load.think_seconds,
            .unit = "SECONDS",
            .group = group,
            .help = "Mean time between an answer and the next turn of its session"});
  line.Add(
      {.names = "--seed", .target = &load.seed, .unit = "N", .group = group, .help = "Seed of all random choices"});
}

void AddAdapterFlags(CommandLine& line, SimulateFlags& flags) {
  const std::string group = "Adapters";
  WorkloadOptions& load = flags.workload;
  line.Add({.names = "--adapters",
            .target = &load.adapters,
            .unit = "N",
            .group = group,
            .help = "Number of adapters; 0: the base model alone"});
  line.Add({.names = "--ranks",
            .target = &load.ranks,
            .unit = "RANK",
            .group = group,
            .help = "Ranks of the adapters, in turn, separated by commas",
            .comma_list = true});
  line.Add({.names = "--adapter-dir",
            .target = &flags.adapter_dir,
            .unit = "DIR",
            .group = group,
            .help = "Take the number and the ranks of the adapters from this directory",
            .path = FlagPath::kExistingDirectory});
  line.Add({.names = "--lora-targets",
            .target = &flags.lora_targets,
            .unit = "LAYER",
            .group = group,
            .help = "Layers that the adapters change, separated by commas",
            .comma_list = true});
  line.Add({.names = "--popularity",
            .target = &flags.popularity,
            .unit = "NAME",
            .group = group,
            .help = "Distribution of requests over adapters: uniform, power-law, distinct (in turn) or gaussian"});
  line.Add({.names = "--exponent",
            .target = &load.exponent,
            .unit = "X",
            .group = group,
            .help = "Exponent of --popularity power-law",
            .range = {{0.0, 10.0}}});
  line.Add({.names = "--deviation",
            .target = &load.deviation,
            .unit = "ADAPTERS",
            .group = group,
            .help = "Standard deviation of --popularity gaussian"});
  line.Add({.names = "--rank-popularity",
            .target = &flags.rank_popularity,
            .unit = "NAME",
            .group = group,
            .help = "Distribution of requests over ranks: uniform, or power-law (low ranks most)"});
  line.Add({.names = "--base-share",
            .target = &load.base_share,
            .unit = "SHARE",
            .group = group,
            .help = "Share of requests for the base model",
            .range = {{0.0, 1.0}}});
}

Result<std::vector<Preset>> PresetsOf(const SimulateFlags& flags) {
  std::vector<Preset> presets;
  std::vector<std::string> names = flags.presets;
  if (names.empty() && flags.fleet.servers > 0) names = {"loramux"};
  if (names.empty()) names = {"loramux", "s-lora"};
  if (names == std::vector<std::string>{"all"}) presets.assign(Presets().begin(), Presets().end());
  for (const std::string& name : names) {
    if (name == "all") continue;
    ASSIGN_OR_RETURN(const Preset preset, FindPreset(name));
    presets.push_back(preset);
  }
  for (Preset& preset : presets) {
    if (!flags.cache.empty()) {
      ASSIGN_OR_RETURN(const CacheRegime regime, FindCacheRegime(flags.cache));
      preset.cache = regime.name;
    }
    if (!flags.schedule.empty()) preset.queue = flags.schedule;
    if (!flags.cold_start.empty()) {
      ASSIGN_OR_RETURN(preset.cold_start_policy, ParseColdStartPolicy(flags.cold_start));
    }
  }
  return presets;
}

// The name of a built-in shape, or a model: a directory, or a GGUF file.
Result<ModelShape> ModelOf(const std::string& name) {
  std::error_code error;  // a name that is no path
  if (!std::filesystem::is_directory(name, error) && !IsGgufModel(name)) return FindModel(name);
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(name));
  return ShapeOf(config, name);
}

// Of the adapters in a directory, by name. Errors name the file.
Result<std::vector<std::int64_t>> RanksIn(const std::string& directory) {
  constexpr std::size_t kMaxConfigBytes = 1 << 20;
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::filesystem::path file = entry->path() / "adapter_config.json";
    std::error_code ignored;  // what cannot be looked at is no adapter of ours
    if (std::filesystem::exists(file, ignored)) files.push_back(file);
  }
  if (error) return IoError(directory + ": " + error.message(), "--adapter-dir");
  std::sort(files.begin(), files.end());
  std::vector<std::int64_t> ranks;
  for (const std::filesystem::path& file : files) {
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file, kMaxConfigBytes));
    ASSIGN_OR_RETURN(const AdapterConfig config, ParseAdapterConfig(text, file.string()));
    ranks.push_back(config.r);
  }
  if (ranks.empty()) return InvalidArgument(directory + ": no adapter_config.json in its folders", "--adapter-dir");
  return ranks;
}

// Steps, transfers and plans by a measured profile; memory stays the device's. Errors: the file's, or another model's.
Status TakeProfile(const SimulateFlags& flags, const ModelShape& model, SimulationOptions& options) {
  ASSIGN_OR_RETURN(const PerformanceProfile profile, LoadPerformanceProfile(flags.profile));
  const PerformanceProfile::BaseModel wanted = {.name = flags.model,
                                                .hidden_size = model.hidden,
                                                .num_layers = model.layers,
                                                .num_heads = model.heads,
                                                .num_kv_heads = model.kv_heads,
                                                .head_dim = model.HeadDim(),
                                                .intermediate_size = model.intermediate,
                                                .vocab_size = model.vocab};
  RETURN_IF_ERROR(CheckSameShape(profile.base, wanted, flags.profile));
  if (flags.gpus != 1)
    return InvalidArgument("--gpus: expected 1 with --profile, because the profile was measured on one device",
                           "--gpus");
  UseProfile(profile, options);
  options.device.name = fmt::format("{} (measured: {}), memory of {}", Printable(profile.base.name),
                                    Printable(profile.device), options.device.name);
  return Ok{};
}

Result<SimulationOptions> OptionsOf(const SimulateFlags& flags) {
  ASSIGN_OR_RETURN(const DeviceShape device, FindDevice(flags.device));
  ASSIGN_OR_RETURN(const ModelShape model, ModelOf(flags.model));
  ASSIGN_OR_RETURN(const std::vector<LoraTarget> targets, ParseLoraTargets(flags.lora_targets));
  SimulationOptions options;
  ASSIGN_OR_RETURN(options.device, DescribeDevice(device, model, flags.gpus, flags.memory_share, targets));
  if (!flags.profile.empty()) RETURN_IF_ERROR(TakeProfile(flags, model, options));
  if (flags.host_link_gb > 0) {
    for (auto* link : {&options.device.model.host_to_device, &options.device.model.device_to_host}) {
      link->bytes_per_second = flags.host_link_gb * 1e9;
    }
    // plans know it too
    if (options.costs != nullptr) options.costs = std::make_shared<const PerformanceModel>(options.device.model);
  }
  if (flags.steady) options.pace = Pace();
  if (!flags.pace.empty()) {
    ASSIGN_OR_RETURN(options.pace, ReadPace(flags.pace));
  }
  options.max_running = flags.max_num_seqs;
  options.max_batch_tokens = flags.max_num_batched_tokens;
  options.adapter_share = flags.adapter_share;
  options.host_bytes = flags.host_memory_gb * 1e9;
  options.adapters_in_host_memory = !flags.adapters_on_disk;
  options.predictor_accuracy = flags.predictor_accuracy;
  options.age_bound = static_cast<TimeNs>(flags.age_bound_seconds * static_cast<double>(kNsPerSecond));
  ASSIGN_OR_RETURN(options.adapter_prefetch, FindAdapterPrefetch(flags.adapter_prefetch));
  ASSIGN_OR_RETURN(options.constants, ConstantsOf(flags.constants));
  options.seed = flags.workload.seed;
  options.check_every = flags.check_every;
  return options;
}

void Progress(const std::string& what) {
  if (isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\r\033[K{}", what);
  std::fflush(stderr);
}

Result<SimulationReport> MakeReport(SimulateFlags flags) {
  ASSIGN_OR_RETURN(PreparedSimulation prepared, PrepareSimulation(flags));
  SimulationOptions& options = prepared.options;
  SimulationReport report{.device = options.device.name,
                          .workload = prepared.workload.what,
                          .command = flags.command_line,
                          .page_bytes = options.device.page_bytes,
                          .device_pages = options.device.device_pages,
                          .slo_ms = static_cast<double>(options.slo) / kNsPerMs,
                          .low_load_ms = prepared.low_load_ms};
  for (const Preset& preset : prepared.presets) {
    Progress("simulating " + std::string(preset.name));
    options.preset = preset;
    PresetRun run{.preset = preset};
    ASSIGN_OR_RETURN(run.result, Simulate(options, prepared.workload));
    run.summary = Summarise(run.result, options.slo);
    if (flags.find_load) {
      Progress("searching for the load that " + std::string(preset.name) + " sustains");
      ASSIGN_OR_RETURN(run.sustained, FindSustainedLoad(options, flags.workload, options.slo));
    }
    report.runs.push_back(std::move(run));
  }
  Progress("");
  return report;
}

Status Report(const SimulateFlags& flags) {
  ASSIGN_OR_RETURN(const SimulationReport report, MakeReport(flags));
  fmt::print("{}", ReportAsTable(report));
  return WriteReport(flags, report);
}

}  // namespace

Result<PreparedSimulation> PrepareSimulation(SimulateFlags& flags) {
  PreparedSimulation prepared;
  ASSIGN_OR_RETURN(prepared.presets, PresetsOf(flags));
  ASSIGN_OR_RETURN(prepared.options, OptionsOf(flags));
  SimulationOptions& options = prepared.options;
  flags.workload.poisson = flags.arrivals == "poisson";
  ASSIGN_OR_RETURN(flags.workload.popularity, ParsePopularity(flags.popularity));
  ASSIGN_OR_RETURN(flags.workload.rank_popularity, ParsePopularity(flags.rank_popularity));
  if (!flags.adapter_dir.empty()) {
    ASSIGN_OR_RETURN(flags.workload.ranks, RanksIn(flags.adapter_dir));
    flags.workload.adapters = static_cast<std::int64_t>(flags.workload.ranks.size());
  }
  ASSIGN_OR_RETURN(prepared.workload, MakeWorkload(flags.workload));
  options.slo = static_cast<TimeNs>(flags.slo_seconds * static_cast<double>(kNsPerSecond));
  if (options.slo <= 0) {
    ASSIGN_OR_RETURN(const TimeNs low_load, LowLoadTime(options, flags.workload));
    prepared.low_load_ms = static_cast<double>(low_load) / kNsPerMs;
    options.slo = std::max<TimeNs>(1, static_cast<TimeNs>(kSloFactor * static_cast<double>(low_load)));
  }
  return prepared;
}

Status WriteReportFile(const std::string& path, const std::string& text, const char* flag) {
  if (path.empty()) return Ok{};
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return IoError(path + ": cannot be written", flag);
  return Ok{};
}

Status WriteReport(const SimulateFlags& flags, const SimulationReport& report) {
  RETURN_IF_ERROR(WriteReportFile(flags.json, ReportAsJson(report), "--json"));
  return WriteReportFile(flags.html, flags.html.empty() ? "" : ReportAsHtml(report), "--html");
}

void AddSimulateFlags(CommandLine& line, SimulateFlags& flags) {
  AddArrivalFlags(line, flags);
  AddLengthFlags(line, flags);
  AddSessionFlags(line, flags);
  AddAdapterFlags(line, flags);
  AddDeviceFlags(line, flags);
  AddPresetFlags(line, flags);
  AddConstantFlags(line, flags.constants);
  AddFleetFlags(line, flags.fleet);
  const std::string group = "Result";
  line.Add({.names = "--slo",
            .target = &flags.slo_seconds,
            .unit = "SECONDS",
            .group = group,
            .help = "TTFT objective",
            .default_text = "5 times the mean time of a request at low load",
            .range = {{0.0, 1e6}}});
  line.Add({.names = "--find-load",
            .target = &flags.find_load,
            .group = group,
            .help = "Also search for the highest rate at which 99 % of requests meet the objective"});
  line.Add({.names = "--json",
            .target = &flags.json,
            .unit = "FILE",
            .group = group,
            .help = "Write all figures, and the memory's contents over time"});
  line.Add({.names = "--html",
            .target = &flags.html,
            .unit = "FILE",
            .group = group,
            .help = "Write a self-contained report with plots"});
  const std::string replay = "Replay";
  line.Add(
      {.names = "--replay",
       .target = &flags.replay,
       .unit = "FILE",
       .group = replay,
       .help =
           "Replay a recording of `loramux serve --record`: an engine with the recorded configuration gets the "
           "recorded "
           "inputs on a virtual clock, and every plan is compared. Flags for load, device and presets do not apply. "
           "Exit status 1: a plan differs",
       .path = FlagPath::kExistingFile});
  line.Add({.names = "--replay-truncated",
            .target = &flags.replay_truncated,
            .group = replay,
            .help = "Also accept a truncated recording, as a killed server leaves it"});
  line.Add({.names = "--check-every",
            .target = &flags.check_every,
            .unit = "EVENTS",
            .group = group,
            .help = "Verify the accounting of memory after every EVENTS events; for tests",
            .default_text = "0: never"});
}

int RunSimulate(SimulateFlags flags) {
  if (flags.list) {
    for (const Preset& preset : Presets()) fmt::print("{:<22} {}\n", preset.name, preset.what);
    return 0;
  }
  bool equal = true;
  const Status status = !flags.replay.empty()     ? ReportReplay(flags, equal)
                        : flags.fleet.servers > 0 ? ReportFleet(flags)
                                                  : Report(flags);
  if (!status.ok()) return FailCommand("simulate", status.error());
  return equal ? 0 : kExitFailure;
}

Command SimulateCommand(std::string command_line) {
  const auto flags = std::make_shared<SimulateFlags>();
  flags->command_line = std::move(command_line);
  Command command{.name = "simulate", .summary = "Predict on a virtual clock what the server does with a load"};
  AddSimulateFlags(command.line, *flags);
  command.run = [flags] { return RunSimulate(*flags); };
  return command;
}

}  // namespace loramux
