#include "tools/simulate.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <fmt/core.h>
#include <unistd.h>

#include "formats/file.h"
#include "formats/message.h"
#include "schedule/performance_profile.h"
#include "tools/simulate_replay.h"
#include "tools/simulate_report.h"

namespace loramux {
namespace {

constexpr double kSloFactor = 5;  // Chameleon 5.1

template <typename Range, typename Name>
std::string Names(const Range& range, Name name) {
  std::string names;
  for (const auto& item : range) names += (names.empty() ? "" : ", ") + std::string(name(item));
  return names;
}

void AddDeviceFlags(CLI::App& command, SimulateFlags& flags) {
  const std::string group = "Device";
  const auto name = [](const auto& shape) { return shape.name; };
  command.add_option("--device", flags.device, "One of " + Names(DeviceShapes(), name))
      ->group(group)
      ->capture_default_str();
  command
      .add_option("--model", flags.model,
                  "A directory with a model's config.json, or one of " + Names(ModelShapes(), name))
      ->group(group)
      ->capture_default_str();
  command
      .add_option("--profile", flags.profile,
                  "File of `loramux profile`: steps and transfers take what was measured, in place of "
                  "--device's rates; memory stays --device's")
      ->group(group)
      ->check(CLI::ExistingFile);
  command.add_option("--gpus", flags.gpus, "Of them, as one by tensor parallelism")
      ->group(group)
      ->capture_default_str();
  command.add_option("--memory-share", flags.memory_share, "Of the device's memory that may be used")
      ->group(group)
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  command
      .add_option("--host-link", flags.host_link_gb,
                  "GB a second from the host's memory to the device, as measured; 0: four fifths of "
                  "the published rate, or --profile's")
      ->group(group)
      ->check(CLI::Range(0.0, 1e5));
  command.add_option("--host-memory", flags.host_memory_gb, "GB of the host tier; 0: none")
      ->group(group)
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command
      .add_option("--pace", flags.pace,
                  "CSV file of seconds,factor: from then on steps take so many times as long (neighbours on the "
                  "host, heat, a power limit), in place of what --profile saw")
      ->group(group)
      ->check(CLI::ExistingFile);
  command
      .add_flag("--steady", flags.steady,
                "A machine that is always as fast as on average, not as restless as --profile found it")
      ->group(group)
      ->needs("--profile")
      ->excludes("--pace");
  command
      .add_flag("--adapters-on-disk", flags.adapters_on_disk, "At the start; otherwise they lie in the host's memory")
      ->group(group);
}

void AddPresetFlags(CLI::App& command, SimulateFlags& flags) {
  const std::string group = "System";
  command.add_option("--preset", flags.presets, "Names, separated by commas, or 'all'; --list-presets explains them")
      ->group(group)
      ->delimiter(',')
      ->capture_default_str();
  command.add_flag("--list-presets", flags.list, "Print the presets and end")->group(group);
  command.add_option("--cache", flags.cache, "Regime of the cache, in place of the presets'")->group(group);
  command.add_option("--schedule", flags.schedule, "Order of the queue, in place of the presets'")->group(group);
  command
      .add_option("--adapter-share", flags.adapter_share, "Of the memory for adapters alone, in place of the presets'")
      ->group(group)
      ->check(CLI::Range(0.0, 0.95));
  command.add_option("--max-num-seqs", flags.max_num_seqs, "Requests in a batch")
      ->group(group)
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--max-num-batched-tokens", flags.max_num_batched_tokens,
                  "Tokens in a step, where prompts are computed in chunks")
      ->group(group)
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command
      .add_option("--predictor-accuracy", flags.predictor_accuracy, "Share of output lengths that are guessed right")
      ->group(group)
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--age-bound", flags.age_bound_seconds, "Seconds after which a request goes before all others")
      ->group(group)
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
}

void AddWorkloadFlags(CLI::App& command, SimulateFlags& flags) {
  const std::string group = "Load";
  WorkloadOptions& load = flags.workload;
  command
      .add_option("--trace", load.trace, "Lengths from a trace: Azure's CSV, Mooncake's JSONL (with shared prefixes)")
      ->group(group)
      ->check(CLI::ExistingFile);
  command.add_option("--arrivals", flags.arrivals, "poisson, or trace: the trace's own times")
      ->group(group)
      ->check(CLI::IsMember({"poisson", "trace"}))
      ->capture_default_str();
  command
      .add_option("--clients", load.clients,
                  "Directory of ServeGen's clients: arrivals are theirs, each client has an adapter")
      ->group(group)
      ->check(CLI::ExistingDirectory);
  command.add_option("--clients-hour", load.clients_hour, "Where in the recording to begin")
      ->group(group)
      ->check(CLI::Range(0.0, 1e5));
  command.add_option("--requests", load.requests, "How many (default: as many as the trace has, or 2,000)")
      ->group(group);
  command.add_option("--rate", load.rate, "Requests a second; recorded times are stretched to it")
      ->group(group)
      ->capture_default_str();
  command.add_option("--input-mean", load.input_mean, "Tokens of a prompt, without a trace (log-normal)")
      ->group(group)
      ->capture_default_str();
  command.add_option("--output-mean", load.output_mean, "Tokens of an answer, without a trace")
      ->group(group)
      ->capture_default_str();
  command.add_option("--input-cv", load.input_cv, "Standard deviation over mean; 0: all alike")
      ->group(group)
      ->capture_default_str();
  command.add_option("--output-cv", load.output_cv, "The same of answers")->group(group)->capture_default_str();
  command.add_option("--input-scale", load.input_scale, "Factor on the trace's prompts")
      ->group(group)
      ->capture_default_str();
  command.add_option("--output-scale", load.output_scale, "Factor on the trace's answers")
      ->group(group)
      ->capture_default_str();
  command.add_option("--max-input", load.max_input, "Longer prompts are cut")->group(group)->capture_default_str();
  command.add_option("--max-output", load.max_output, "Longer answers are cut")->group(group)->capture_default_str();
  command.add_option("--turns", load.turns, "Of a session, on average; each prompt begins with all before it")
      ->group(group)
      ->capture_default_str();
  command
      .add_option("--think-seconds", load.think_seconds, "Between an answer and the session's next turn, on average")
      ->group(group)
      ->capture_default_str();
  command.add_option("--seed", load.seed, "Of everything that is drawn")->group(group)->capture_default_str();
}

void AddAdapterFlags(CLI::App& command, SimulateFlags& flags) {
  const std::string group = "Adapters";
  WorkloadOptions& load = flags.workload;
  command.add_option("--adapters", load.adapters, "How many; 0: the base model alone")
      ->group(group)
      ->capture_default_str();
  command.add_option("--ranks", load.ranks, "Their ranks, in turn, separated by commas")
      ->group(group)
      ->delimiter(',')
      ->capture_default_str();
  command
      .add_option("--adapter-dir", flags.adapter_dir, "Take number and ranks of the adapters in this directory instead")
      ->group(group)
      ->check(CLI::ExistingDirectory);
  command.add_option("--lora-targets", flags.lora_targets, "Layers that they change, separated by commas")
      ->group(group)
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--popularity", flags.popularity, "uniform, power-law, distinct (in turn) or gaussian")
      ->group(group)
      ->capture_default_str();
  command.add_option("--exponent", load.exponent, "Of the power law")
      ->group(group)
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  command.add_option("--deviation", load.deviation, "Of the Gaussian, in adapters")
      ->group(group)
      ->capture_default_str();
  command.add_option("--rank-popularity", flags.rank_popularity, "uniform or power-law (low ranks most)")
      ->group(group)
      ->capture_default_str();
  command.add_option("--base-share", load.base_share, "Of the requests that want no adapter")
      ->group(group)
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

Result<std::vector<Preset>> PresetsOf(const SimulateFlags& flags) {
  std::vector<Preset> presets;
  if (flags.presets == std::vector<std::string>{"all"}) presets.assign(Presets().begin(), Presets().end());
  for (const std::string& name : flags.presets) {
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
  }
  return presets;
}

// The name of a built-in shape, or a directory.
Result<ModelShape> ModelOf(const std::string& name) {
  std::error_code error;  // a name that is no path
  if (!std::filesystem::is_directory(name, error)) return FindModel(name);
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
    return InvalidArgument("--gpus: expected 1 with --profile: it was measured on one device", "--gpus");
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
  ASSIGN_OR_RETURN(const std::vector<Preset> presets, PresetsOf(flags));
  ASSIGN_OR_RETURN(SimulationOptions options, OptionsOf(flags));
  flags.workload.poisson = flags.arrivals == "poisson";
  ASSIGN_OR_RETURN(flags.workload.popularity, ParsePopularity(flags.popularity));
  ASSIGN_OR_RETURN(flags.workload.rank_popularity, ParsePopularity(flags.rank_popularity));
  if (!flags.adapter_dir.empty()) {
    ASSIGN_OR_RETURN(flags.workload.ranks, RanksIn(flags.adapter_dir));
    flags.workload.adapters = static_cast<std::int64_t>(flags.workload.ranks.size());
  }
  ASSIGN_OR_RETURN(const Workload workload, MakeWorkload(flags.workload));
  SimulationReport report{.device = options.device.name,
                          .workload = workload.what,
                          .command = flags.command_line,
                          .page_bytes = options.device.page_bytes,
                          .device_pages = options.device.device_pages};
  options.slo = static_cast<TimeNs>(flags.slo_seconds * static_cast<double>(kNsPerSecond));
  if (options.slo <= 0) {
    ASSIGN_OR_RETURN(const TimeNs low_load, LowLoadTime(options, flags.workload));
    report.low_load_ms = static_cast<double>(low_load) / kNsPerMs;
    options.slo = std::max<TimeNs>(1, static_cast<TimeNs>(kSloFactor * static_cast<double>(low_load)));
  }
  report.slo_ms = static_cast<double>(options.slo) / kNsPerMs;
  for (const Preset& preset : presets) {
    Progress("simulating " + std::string(preset.name));
    options.preset = preset;
    PresetRun run{.preset = preset};
    ASSIGN_OR_RETURN(run.result, Simulate(options, workload));
    run.summary = Summarise(run.result, options.slo);
    if (flags.find_load) {
      Progress("searching the load that " + std::string(preset.name) + " sustains");
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

Status WriteFile(const std::string& path, const std::string& text, const char* flag) {
  if (path.empty()) return Ok{};
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return IoError(path + ": cannot be written", flag);
  return Ok{};
}

}  // namespace

Status WriteReport(const SimulateFlags& flags, const SimulationReport& report) {
  RETURN_IF_ERROR(WriteFile(flags.json, ReportAsJson(report), "--json"));
  return WriteFile(flags.html, flags.html.empty() ? "" : ReportAsHtml(report), "--html");
}

void AddSimulateFlags(CLI::App& command, SimulateFlags& flags) {
  AddWorkloadFlags(command, flags);
  AddAdapterFlags(command, flags);
  AddDeviceFlags(command, flags);
  AddPresetFlags(command, flags);
  const std::string group = "Result";
  command
      .add_option("--slo", flags.slo_seconds,
                  "Objective of the time to first token, in seconds (default: 5 times the mean time of a "
                  "request at low load)")
      ->group(group)
      ->check(CLI::Range(0.0, 1e6));
  command
      .add_flag("--find-load", flags.find_load,
                "Also search the rate at which 99 % of the requests are within the objective")
      ->group(group);
  command.add_option("--json", flags.json, "File for all figures, and what the memory held over time")->group(group);
  command.add_option("--html", flags.html, "File for a report with plots, of one piece")->group(group);
  const std::string replay = "Replay";
  command
      .add_option(
          "--replay", flags.replay,
          "A file of loramux serve --record: an engine made alike, on a virtual clock, is told what the recorded one "
          "was "
          "told, and every plan is compared; load, device and presets are the recording's. Status 1: one differs")
      ->group(replay)
      ->check(CLI::ExistingFile);
  command
      .add_flag("--replay-truncated", flags.replay_truncated,
                "Also a recording without an end, of a server that was killed")
      ->group(replay);
  command.add_option("--check-every", flags.check_every, "Events after which all accounts are compared; for tests")
      ->group(group);
}

int RunSimulate(SimulateFlags flags) {
  if (flags.list) {
    for (const Preset& preset : Presets()) fmt::print("{:<22} {}\n", preset.name, preset.what);
    return 0;
  }
  bool equal = true;
  const Status status = flags.replay.empty() ? Report(flags) : ReportReplay(flags, equal);
  if (status.ok()) return equal ? 0 : 1;
  fmt::print(stderr, "error: {}\n", status.error().message);
  return 1;
}

}  // namespace loramux
