#include "tools/simulate.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include <fmt/core.h>
#include <unistd.h>

#include "base/message.h"
#include "costs/performance_profile.h"
#include "formats/file.h"
#include "formats/model_files.h"
#include "report/number_format.h"
#include "report/progress_bar.h"
#include "simulate/report.h"
#include "tools/simulate_fleet.h"
#include "tools/simulate_replay.h"
#include "tools/system_flags.h"

namespace loramux {
namespace {

constexpr std::string_view kThisCpu = "this-cpu";
constexpr double kObjectiveFactor = 5;  // Chameleon 5.1
// What a person who reads along notices: a wait of seconds, and text that comes slower than it is read.
constexpr TimeNs kDefaultTtft = 2 * kNsPerSecond, kDefaultTpot = 100 * kNsPerMs;

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
            .help = "Device to simulate, one of " + Names(DeviceShapes(), name) +
                    ", or this-cpu: the machine of --profile"});
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
            .help = "Devices that act as one by tensor parallelism; with --find-servers several numbers, separated by "
                    "commas, to compare",
            .comma_list = true});
  line.Add({.names = "--pipeline-stages",
            .target = &flags.stages,
            .unit = "N",
            .group = group,
            .help =
                "Stages of a pipeline, of --gpus devices each: the layers are split among them, and the sequences of "
                "a step pass them in as many microbatches",
            .range = {{1, 1024}}});
  line.Add({.names = "--device-memory",
            .target = &flags.device_memory_gb,
            .unit = "GB",
            .group = group,
            .help = "Memory of one device",
            .default_text = "the data sheet's; of this-cpu this machine's",
            .range = {{0.0, 1e6}}});
  line.Add({.names = "--memory-share",
            .target = &flags.memory_share,
            .unit = "SHARE",
            .group = group,
            .help = "Share of the device's memory that may be used",
            .range = {{0.01, 1.0}}});
  line.Add({.names = "--page-tokens",
            .target = &flags.page_tokens,
            .unit = "TOKENS",
            .group = group,
            .help = "Positions in a KV page",
            .default_text = "each preset's",
            .range = {{1, 65536}}});
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
            .help = "Presets to compare, separated by commas, or 'all'; --list-presets explains them. A fleet has one, "
                    "unless --find-servers compares them",
            .default_text = "loramux,s-lora; of a fleet loramux",
            .comma_list = true});
  line.Add({.names = "--list-presets", .target = &flags.list, .group = group, .help = "Print the presets and exit"});
  for (const SettingGroup of : {SettingGroup::kMemory, SettingGroup::kOrder, SettingGroup::kFairness,
                                SettingGroup::kAdapters, SettingGroup::kBatching}) {
    flags.settings.AddTo(line, of, SettingUse::kSimulate, group, /*many_presets=*/true);
  }
  line.Add({.names = "--predictor-accuracy",
            .target = &flags.fleet.server.predictor_accuracy,
            .unit = "SHARE",
            .group = group,
            .help = "Share of output lengths that the predictor guesses right",
            .range = {{0.0, 1.0}}});
}

void AddArrivalFlags(CommandLine& line, SimulateFlags& flags) {
  const std::string group = "Load";
  WorkloadOptions& load = flags.workload;
  line.Add({.names = "--trace",
            .target = &load.trace,
            .unit = "FILE",
            .group = group,
            .help =
                "Take lengths, and adapters if it names them, from a trace: CSV with times, prompt tokens and output "
                "tokens (Azure's or your own), or Mooncake's JSONL with shared prefixes. The invocations of Azure "
                "Functions of 2021 (app,func,end_timestamp,duration) give times, and the functions that are invoked "
                "most are the --adapters",
            .path = FlagPath::kExistingFile});
  line.Add({.names = "--arrivals",
            .target = &flags.arrivals,
            .unit = "SOURCE",
            .group = group,
            .help = "poisson draws arrival times; trace uses the trace's own",
            .default_text = "trace if there is one and no --rate, else poisson",
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

void AddObjectiveFlags(CommandLine& line, SimulateFlags& flags) {
  const std::string group = "Result";
  line.Add({.names = "--ttft-objective,--slo",
            .target = &flags.objective.ttft,
            .form = FlagForm::kSeconds,
            .unit = "SECONDS",
            .group = group,
            .help = "Objective for TTFT; 0: 5 times the mean time of a request at low load",
            .default_text = "2",
            .range = {{0.0, 1e6}}});
  line.Add({.names = "--tpot-objective,--tpot-slo",
            .target = &flags.objective.tpot,
            .form = FlagForm::kSeconds,
            .unit = "SECONDS",
            .group = group,
            .help = "Objective for TPOT, the mean time per token of a request after its first; 0: none",
            .default_text = "0.1, or none with another objective",
            .range = {{0.0, 1e6}}});
  line.Add({.names = "--token-objective,--token-slo",
            .target = &flags.objective.token,
            .form = FlagForm::kSeconds,
            .unit = "SECONDS",
            .group = group,
            .help = "Objective for the time per token: from arrival to the last token, over the tokens of the answer",
            .default_text = "0: none",
            .range = {{0.0, 1e6}}});
}

void AddReplayFlags(CommandLine& line, SimulateFlags& flags) {
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
}

Result<std::vector<Preset>> PresetsOf(const SimulateFlags& flags) {
  std::vector<Preset> presets;
  std::vector<std::string> names = flags.presets;
  if (names.empty() && flags.fleet.servers > 0 && !flags.find_servers) names = {"loramux"};
  if (names.empty()) names = {"loramux", "s-lora"};
  if (names == std::vector<std::string>{"all"}) presets.assign(Presets().begin(), Presets().end());
  for (const std::string& name : names) {
    if (name == "all") continue;
    ASSIGN_OR_RETURN(const Preset preset, FindPreset(name));
    presets.push_back(preset);
  }
  for (Preset& preset : presets) {
    if (flags.page_tokens > 0) preset.spec.page_tokens = flags.page_tokens;
    RETURN_IF_ERROR(flags.settings.ApplyTo(preset.spec));
    RETURN_IF_ERROR(FindCacheRegime(preset.spec.cache));
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

// Takes names and ranks of the adapters in a directory. Errors name the file.
Status ReadAdapters(const std::string& directory, WorkloadOptions& load) {
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
  load.ranks.clear();
  for (const std::filesystem::path& file : files) {
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file, kMaxConfigBytes));
    ASSIGN_OR_RETURN(const AdapterConfig config, ParseAdapterConfig(text, file.string()));
    load.ranks.push_back(config.r);
    load.adapter_names.push_back(file.parent_path().filename().string());
  }
  if (files.empty()) return InvalidArgument(directory + ": no adapter_config.json in its folders", "--adapter-dir");
  return Ok{};
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
  if (flags.gpus != std::vector<std::int64_t>{1})
    return InvalidArgument("--gpus: expected 1 with --profile, because the profile was measured on one device",
                           "--gpus");
  if (flags.stages != 1)
    return InvalidArgument("--pipeline-stages: expected 1 with --profile, because it was measured on one device",
                           "--pipeline-stages");
  UseProfile(profile, options);
  options.device.name = fmt::format("{} (measured: {}), memory of {}", Printable(profile.base.name),
                                    Printable(profile.device), options.device.name);
  return Ok{};
}

// The device without its model.
Result<DeviceShape> DeviceOf(const SimulateFlags& flags) {
  constexpr double kGigabyte = 1e9;
  DeviceShape device;
  if (flags.device == kThisCpu) {
    if (flags.profile.empty()) {
      return InvalidArgument(
          "--device this-cpu: expected --profile FILE with the times of this machine; `loramux profile` measures them",
          "--device");
    }
    // Its times are the profile's; these rates only stand for what no profile has.
    device = {.name = kThisCpu,
              .what = "this machine's CPU",
              .memory_bytes = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE)),
              .memory_bandwidth = 50e9,
              .flops = 1e12,
              .host_link = 10e9,
              .peer_link = 10e9};
  } else {
    ASSIGN_OR_RETURN(device, FindDevice(flags.device));
  }
  if (flags.device_memory_gb > 0) device.memory_bytes = flags.device_memory_gb * kGigabyte;
  return device;
}

// One device for each number of GPUs that the model fits. Error: there is none.
Result<std::vector<SimulatedDevice>> DevicesOf(const SimulateFlags& flags, const SimulationOptions& options) {
  std::vector<SimulatedDevice> devices = {options.device};
  if (flags.gpus.size() == 1) return devices;
  devices.clear();
  ASSIGN_OR_RETURN(const DeviceShape device, DeviceOf(flags));
  ASSIGN_OR_RETURN(const ModelShape model, ModelOf(flags.model));
  ASSIGN_OR_RETURN(const std::vector<LoraTarget> targets, ParseLoraTargets(flags.lora_targets));
  for (const std::int64_t gpus : flags.gpus) {
    ASSIGN_OR_RETURN(devices.emplace_back(), DescribeDevice(device, model, gpus, flags.memory_share, targets));
    devices.back().model.host_to_device = options.device.model.host_to_device;
    devices.back().model.device_to_host = options.device.model.device_to_host;
  }
  return devices;
}

Result<SimulationOptions> OptionsOf(const SimulateFlags& flags) {
  ASSIGN_OR_RETURN(const DeviceShape device, DeviceOf(flags));
  ASSIGN_OR_RETURN(const ModelShape model, ModelOf(flags.model));
  ASSIGN_OR_RETURN(const std::vector<LoraTarget> targets, ParseLoraTargets(flags.lora_targets));
  SimulationOptions options = flags.fleet.server;
  ASSIGN_OR_RETURN(options.device,
                   DescribeDevice(device, model, flags.gpus.front(), flags.memory_share, targets, flags.stages));
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
  options.host_bytes = flags.host_memory_gb * 1e9;
  options.adapters_in_host_memory = !flags.adapters_on_disk;
  options.seed = flags.workload.seed;
  return options;
}

// The objective, and where it comes from.
Status SetObjective(const SimulateFlags& flags, PreparedSimulation& prepared) {
  const ServiceObjective& asked = flags.objective;
  const bool ttft_given = asked.ttft >= 0, tpot_given = asked.tpot >= 0 || asked.token > 0;
  const bool given = ttft_given || tpot_given;
  prepared.objective_source = ttft_given ? "as given" : tpot_given ? "TTFT: the default" : "the default";
  TimeNs ttft = ttft_given ? asked.ttft : kDefaultTtft;
  if (ttft == 0) {
    SimulationOptions quiet = prepared.options;
    quiet.preset = prepared.presets.front();
    ASSIGN_OR_RETURN(const TimeNs low_load, LowLoadTime(quiet, flags.workload));
    prepared.low_load_ms = static_cast<double>(low_load) / kNsPerMs;
    ttft = std::max<TimeNs>(1, static_cast<TimeNs>(kObjectiveFactor * static_cast<double>(low_load)));
    prepared.objective_source = "TTFT: 5 x the mean time of a request at low load, " + FormatMs(prepared.low_load_ms);
  }
  for (Preset& preset : prepared.presets) preset.spec.objective = ttft;
  prepared.objective = {.ttft = ttft,
                        .token = asked.token,
                        .warmup = asked.warmup,
                        .tpot = asked.tpot >= 0 ? asked.tpot
                                : given         ? 0
                                                : kDefaultTpot};
  return Ok{};
}

Result<SimulationReport> MakeReport(SimulateFlags flags) {
  ASSIGN_OR_RETURN(PreparedSimulation prepared, PrepareSimulation(flags));
  SimulationOptions& options = prepared.options;
  SimulationReport report{.device = options.device.name,
                          .workload = prepared.workload.what,
                          .command = flags.command_line,
                          .page_bytes = options.device.page_bytes,
                          .device_pages = options.device.device_pages,
                          .objective = prepared.objective,
                          .objective_source = prepared.objective_source,
                          .low_load_ms = prepared.low_load_ms};
  const SimulatedDevice device = options.device;
  for (const Preset& preset : prepared.presets) {
    const std::string name(preset.name);
    options.preset = preset;
    options.device = device.WithPageTokens(preset.spec.page_tokens);
    PresetRun run{.preset = preset};
    if (options.device.page_tokens != device.page_tokens) run.page_bytes = options.device.page_bytes;
    TimedProgress progress("simulating " + name);
    options.progress = [&](double share) { progress.Update(share); };
    ASSIGN_OR_RETURN(run.result, Simulate(options, prepared.workload));
    run.summary = Summarise(run.result, prepared.objective);
    progress.Finish();
    if (flags.find_load) {
      TimedProgress searching("searching for the load that " + name + " sustains");
      const LoadSearch search{.objective = prepared.objective,
                              .progress = [&](double share) { searching.Update(share); }};
      ASSIGN_OR_RETURN(run.sustained, FindSustainedLoad(options, flags.workload, search));
      searching.Finish();
    }
    report.runs.push_back(std::move(run));
  }
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
  for (const Preset& preset : prepared.presets) {
    RETURN_IF_ERROR(CheckMaxDecodeStep(preset.spec, &prepared.options.device.model));
  }
  if (flags.stages > 1 && flags.find_servers)
    return InvalidArgument("--pipeline-stages: expected 1 with --find-servers, which counts devices by --gpus",
                           "--pipeline-stages");
  if (flags.gpus.size() > 1 && !flags.find_servers)
    return InvalidArgument("--gpus: expected one number without --find-servers", "--gpus");
  ASSIGN_OR_RETURN(const DeviceShape device, DeviceOf(flags));
  prepared.device = device.what;
  ASSIGN_OR_RETURN(prepared.devices, DevicesOf(flags, prepared.options));
  const bool own_times = flags.workload.rate == 0 && !flags.workload.trace.empty();
  flags.workload.poisson = flags.arrivals.empty() ? !own_times : flags.arrivals == "poisson";
  ASSIGN_OR_RETURN(flags.workload.popularity, ParsePopularity(flags.popularity));
  ASSIGN_OR_RETURN(flags.workload.rank_popularity, ParsePopularity(flags.rank_popularity));
  if (!flags.adapter_dir.empty()) {
    RETURN_IF_ERROR(ReadAdapters(flags.adapter_dir, flags.workload));
    flags.workload.adapters = static_cast<std::int64_t>(flags.workload.ranks.size());
  }
  ASSIGN_OR_RETURN(prepared.workload, MakeWorkload(flags.workload));
  RETURN_IF_ERROR(SetObjective(flags, prepared));
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
  flags.settings.AddTo(line, SettingGroup::kDocuments, SettingUse::kSimulate, "Constants of the source documents",
                       /*many_presets=*/true);
  AddFleetFlags(line, flags);
  const std::string group = "Result";
  AddObjectiveFlags(line, flags);
  line.Add({.names = "--find-load",
            .target = &flags.find_load,
            .group = group,
            .help = "Also search for the highest rate at which 99 % of the requests keep the objective"});
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
  line.Add({.names = "--check-every",
            .target = &flags.fleet.server.check_every,
            .unit = "EVENTS",
            .group = group,
            .help = "Verify the accounting of memory after every EVENTS events; for tests",
            .default_text = "0: never"});
  AddReplayFlags(line, flags);
}

int RunSimulate(SimulateFlags flags) {
  if (flags.list) {
    for (const Preset& preset : Presets()) fmt::print("{:<22} {}\n", preset.name, preset.what);
    return 0;
  }
  bool equal = true;
  if (const Status fleet = CheckFleetFlags(flags); !fleet.ok()) return FailCommand("simulate", fleet.error());
  const Status status = !flags.replay.empty()     ? ReportReplay(flags, equal)
                        : flags.simulates_fleet() ? ReportFleet(flags)
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
