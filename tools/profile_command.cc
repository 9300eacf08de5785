#include "tools/profile_command.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include <fmt/core.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file_system.h"
#include "base/log.h"
#include "costs/performance_profile.h"
#include "formats/random_adapter.h"
#include "profile/measure.h"
#include "profile/model_digest.h"
#include "report/progress_bar.h"
#include "tools/idle_flags.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

// A folder of our own that goes with us.
class ScratchFolder {
 public:
  static Result<ScratchFolder> Create(const std::string& parent) {
    std::error_code error;
    const fs::path base = parent.empty() ? fs::temp_directory_path(error) : fs::path(parent);
    std::string name = (base / "loramux-profile-XXXXXX").string();
    if (error || mkdtemp(name.data()) == nullptr)
      return IoError("--scratch: cannot make a folder in " + base.string(), "--scratch");
    ScratchFolder folder;
    folder.path_ = name;
    return folder;
  }
  ScratchFolder(ScratchFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  ScratchFolder& operator=(ScratchFolder&& other) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  ScratchFolder() = default;
  fs::path path_;
};

// The output appears whole or not at all; that it can be written is known before anything is measured.
class OutputFile {
 public:
  static Result<OutputFile> Create(const std::string& path) {
    OutputFile output(path);
    ASSIGN_OR_RETURN(output.file_, OsFileSystem().Create(output.temporary_));
    return output;
  }
  OutputFile(OutputFile&&) = default;
  OutputFile& operator=(OutputFile&&) = default;
  ~OutputFile() {
    std::error_code ignored;
    if (file_ != nullptr) fs::remove(temporary_, ignored);
  }
  Status Commit(std::string_view text) {
    while (!text.empty()) {
      ASSIGN_OR_RETURN(const std::size_t written, file_->Append(text));
      text.remove_prefix(written);
    }
    RETURN_IF_ERROR(file_->Sync());
    RETURN_IF_ERROR(OsFileSystem().Rename(temporary_, path_));
    file_.reset();
    return Ok{};
  }

 private:
  explicit OutputFile(const std::string& path) : path_(path), temporary_(path + ".tmp") {}
  fs::path path_, temporary_;
  std::unique_ptr<WritableFile> file_;
};

Result<std::vector<LoraTarget>> TargetsOf(const std::vector<std::string>& names) {
  std::vector<LoraTarget> targets;
  for (const std::string& name : names) {
    bool found = false;
    for (int i = 0; i <= static_cast<int>(LoraTarget::kLmHead); ++i) {
      const auto target = static_cast<LoraTarget>(i);
      if (name != LoraTargetName(target)) continue;
      targets.push_back(target);
      found = true;
    }
    if (!found || name == LoraTargetName(LoraTarget::kLmHead)) {
      return InvalidArgument("--lora-targets: expected linear layers such as q_proj or down_proj, found '" + name + "'",
                             "--lora-targets");
    }
  }
  return targets;
}

Result<std::unique_ptr<PlacedModel>> LoadModel(const ProfileFlags& flags) {
  if (flags.random_weights) {
    ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(flags.runtime.model_dir));
    const WeightFormat stored = config.dtype == "float32"   ? WeightFormat::kF32
                                : config.dtype == "float16" ? WeightFormat::kF16
                                                            : WeightFormat::kBF16;
    ASSIGN_OR_RETURN(const WeightOptions options, WeightOptionsOf(flags.runtime));
    ModelWeights weights = RandomModelWeights(config, options.layers.value_or(stored), flags.measure.seed);
    return PlacedModel::Place(std::make_unique<Model>(std::move(config), std::move(weights)),
                              flags.runtime.options.device);
  }
  ASSIGN_OR_RETURN(const WeightOptions weights, WeightOptionsOf(flags.runtime));
  ProgressBar bar("loading weights", "MiB", 1 << 20);
  auto model = PlacedModel::Load(flags.runtime.model_dir, flags.runtime.options.device, weights,
                                 [&](std::int64_t done, std::int64_t total) { bar.Update(done, total); });
  bar.Finish();
  return model;
}

Error NotToProfile(const NamedPath& adapter) {
  return Unsupported("--lora-modules: " + adapter.path + ": `loramux profile` takes folders; download it first",
                     "--lora-modules");
}

// The directories of the adapters to measure with: the given ones, and random ones of --ranks in turn.
Result<std::vector<std::string>> MakeAdapters(const ProfileFlags& flags, const ModelConfig& config,
                                              const fs::path& scratch) {
  ASSIGN_OR_RETURN(const std::vector<NamedPath> given, AdaptersOf(flags.runtime));
  std::vector<std::string> directories;
  for (const NamedPath& adapter : given) {
    if (IsRemoteSource(adapter.path)) return NotToProfile(adapter);
    directories.push_back(adapter.path);
  }
  std::vector<std::int64_t> ranks = flags.ranks;
  if (ranks.empty() && given.empty()) ranks = {8, 16, 32, 64};
  if (ranks.empty()) return directories;
  ASSIGN_OR_RETURN(const std::vector<LoraTarget> targets, TargetsOf(flags.lora_targets));
  ProgressBar bar("writing random adapters", "", 1);
  for (std::int64_t i = 0; i < flags.random_adapters; ++i) {
    const std::int64_t rank = ranks[static_cast<std::size_t>(i) % ranks.size()];
    const fs::path directory = scratch / std::to_string(i);
    RETURN_IF_ERROR(WriteRandomAdapter(directory, config, static_cast<std::int32_t>(rank), targets,
                                       flags.measure.seed + static_cast<std::uint64_t>(i)));
    directories.push_back(directory.string());
    bar.Update(i + 1, flags.random_adapters);
  }
  bar.Finish();
  return directories;
}

void PrintQuality(const char* what, const FitQuality& quality) {
  fmt::print("  {:<44} {:>6} {:>8.4f} {:>8.1f} % {:>8.1f} %\n", what, quality.points, quality.r2,
             quality.mean_error * 100, quality.p90_error * 100);
}

void PrintFactors(const char* what, const std::vector<StepFactor>& factors) {
  if (factors.empty()) return;
  fmt::print("  {}:", what);
  for (const StepFactor& at : factors) fmt::print(" {:.4g}: {:.3f}", at.tokens, at.factor);
  fmt::print("\n");
}

void PrintModel(const FittedModel& fitted) {
  fmt::print("\n{}\n  {:<44} {:>6} {:>8} {:>10} {:>10}\n", LoraCostShapeName(fitted.model.shape), "", "points", "R2",
             "mean error", "P90 error");
  PrintQuality("fitted steps", fitted.fitted);
  PrintQuality("steps held out", fitted.held_out);
  PrintQuality("  prefill steps", fitted.held_out_prefill);
  PrintQuality("  decode steps", fitted.held_out_decode);
  PrintQuality("  mixed steps", fitted.held_out_mixed);
  PrintQuality("batch size and ranks alone, decode", fitted.caraserve_decode);
  if (fitted.engine.points > 0) {
    PrintQuality("the engine's steps, linear terms alone", fitted.engine_linear);
    PrintQuality("the engine's steps, with factors", fitted.engine);
  }
  for (const PerformanceTerm& term : PerformanceTerms(fitted.model.shape)) {
    fmt::print("  {:<44} {:>14.4g} us\n", term.name, fitted.model.*term.coefficient * 1e6);
  }
  fmt::print("  {:<44} {:>14} tokens\n", "token_tile", fitted.model.token_tile);
  if (fitted.engine.points == 0) return;
  fmt::print("  {:<44} {:>14.4g} us\n", "after_prefill", fitted.model.after_prefill * 1e6);
  fmt::print("  {:<44} {:>14.4g}\n", "after_prefill_decay", fitted.model.after_prefill_decay);
  fmt::print("  {:<44} {:>14.4g} us\n", "after_prefill_per_sequence", fitted.model.after_prefill_per_sequence * 1e6);
  PrintFactors("factors of decode steps (tokens: factor)", fitted.model.decode_factors);
  PrintFactors("factors of prefill steps", fitted.model.prefill_factors);
  PrintFactors("factors of mixed steps", fitted.model.mixed_factors);
}

void PrintLink(const char* what, const PerformanceModel::Link& link, const FitQuality& quality) {
  fmt::print("  {:<16} {:>10.1f} us + bytes at {:>7.2f} GB/s   {:>4} sizes, R2 {:.4f}, mean error {:.1f} %\n", what,
             link.latency * 1e6, link.bytes_per_second / 1e9, quality.points, quality.r2, quality.mean_error * 100);
}

// How many tokens a core keeps up with, by rank.
void PrintAssist(const PerformanceModel& model) {
  if (!model.assist.measured()) return;
  if (model.assist.cores == 0) {
    fmt::print("  an adapter in the host tier serves from there at once, at no cost\n");
    return;
  }
  fmt::print("  until an adapter is there, {} cores compute its part; one keeps up with", model.assist.cores);
  for (const std::int64_t rank : {8, 16, 32, 64, 128})
    fmt::print("{} {} of rank {}", rank == 8 ? "" : ",", TokensPerCore(model, rank), rank);
  fmt::print(" tokens; copies take {:.1f} us a token\n", model.assist.per_token * 1e6);
}

void PrintReport(const PerformanceProfile& profile, const std::string& output) {
  fmt::print("{}: model {} on {}; {} adapters on {}\n", output, profile.base.name, profile.device, profile.ranks.size(),
             profile.lora_targets.empty() ? "nothing" : profile.lora_targets);
  fmt::print(
      "repeated measurements of a step differ by {:.1f} % from their median on average (quiet machine: 1 to 2 %)\n",
      profile.repeat_error * 100);
  PrintModel(profile.mbgmv);
  PrintModel(profile.bgmv);
  fmt::print("\nthe engine takes {:.1f} us between two steps; when idle, it notices a request after {:.1f} us",
             profile.between_steps * 1e6, profile.submit_latency * 1e6);
  if (profile.requests_per_second > 0)
    fmt::print("; it sustained {:.3g} requests per second", profile.requests_per_second);
  fmt::print("\n\nlinks\n");
  const PerformanceModel& model = profile.mbgmv.model;
  PrintLink("disk to host", model.disk, profile.disk);
  PrintLink("host to device", model.host_to_device, profile.host_to_device);
  PrintLink("device to host", model.device_to_host, profile.device_to_host);
  PrintAssist(model);
}

// A bar for each of the things that are done one after the other.
class Progress {
 public:
  void operator()(const std::string& what, double passed, double expected) {
    if (what != what_) Finish();
    if (!bar_) bar_.emplace(what, "s", 1);
    what_ = what;
    bar_->Note(fmt::format("about {:.0f} s left", std::ceil(expected - passed)));
    bar_->Update(static_cast<std::int64_t>(passed), static_cast<std::int64_t>(std::ceil(expected)));
  }
  void Finish() {
    if (bar_) bar_->Finish();
    bar_.reset();
  }

 private:
  std::string what_;
  std::optional<ProgressBar> bar_;
};

MeasureOptions MeasureOptionsOf(const ProfileFlags& flags, const RuntimeOptions& runtime) {
  const fs::path path = fs::path(flags.runtime.model_dir).lexically_normal();
  MeasureOptions options = flags.measure;
  options.model_name = (path.has_filename() ? path : path.parent_path()).filename().string();
  options.digest = "random";
  options.engine = runtime;
  options.sweep.points = flags.points > 0 ? flags.points : flags.quick ? 160 : 400;
  options.sweep.least_points = std::min(options.sweep.points, 64);
  options.sweep.seconds = flags.seconds > 0 ? flags.seconds : flags.quick ? 45 : 240;
  options.link_seconds = flags.quick ? 3 : 12;
  options.engine_seconds = flags.engine_seconds >= 0 ? flags.engine_seconds : flags.quick ? 10 : 30;
  return options;
}

// Every measured step: for plots, and for looking into what the model misses.
std::string MeasurementsAsCsv(const SweepResult& sweep, const PerformanceProfile& profile) {
  std::string csv =
      "shape,held_out,prefill_tokens,prefill_sequences,decode_sequences,prefill_attention,prefill_context,decode_"
      "context,"
      "adapter_tokens,distinct_adapters,rank_sum,max_rank,token_ranks,seconds,predicted_seconds\n";
  for (const LoraCostShape shape : {LoraCostShape::kMbgmv, LoraCostShape::kBgmv}) {
    for (const StepMeasurement& point : shape == LoraCostShape::kBgmv ? sweep.bgmv : sweep.mbgmv) {
      const StepLoad& load = point.load;
      csv += fmt::format("{},{:d},{},{},{},{},{},{},{},{},{},{},{},{:.9f},{:.9f}\n", LoraCostShapeName(shape),
                         point.held_out, load.prefill_tokens, load.prefill_sequences, load.decode_sequences,
                         load.prefill_attention, load.prefill_context, load.decode_context, load.adapter_tokens,
                         load.distinct_adapters, load.rank_sum, load.max_rank, load.token_ranks, point.seconds,
                         profile.ModelOf(shape).SecondsOf(load));
    }
  }
  return csv;
}

Status Profile(ProfileFlags flags) {
  RETURN_IF_ERROR(InitLogging(flags.runtime.log_level, flags.runtime.log_format));
  RETURN_IF_ERROR(OpenDeviceOf(flags.runtime));
  RETURN_IF_ERROR(FetchNamed(flags.runtime));
  ASSIGN_OR_RETURN(const RuntimeOptions runtime, RuntimeOptionsOf(flags.runtime));
  for (const std::string& warning : WarningsOfIdle(flags.runtime, runtime)) spdlog::warn("{}", warning);
  ASSIGN_OR_RETURN(OutputFile output, OutputFile::Create(flags.output));
  std::optional<OutputFile> measurements;
  if (!flags.measurements.empty()) {
    ASSIGN_OR_RETURN(measurements, OutputFile::Create(flags.measurements));
  }
  ASSIGN_OR_RETURN(const ScratchFolder scratch, ScratchFolder::Create(flags.scratch));
  MeasureOptions options = MeasureOptionsOf(flags, runtime);
  if (!flags.random_weights) {
    ASSIGN_OR_RETURN(options.digest, ModelDigest(flags.runtime.model_dir));
  }
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(flags.runtime.model_dir));
  ASSIGN_OR_RETURN(options.adapters, MakeAdapters(flags, config, scratch.path()));
  ASSIGN_OR_RETURN(std::unique_ptr<PlacedModel> model, LoadModel(flags));
  Progress progress;
  options.progress = std::ref(progress);
  const Result<MeasuredProfile> measured = MeasureProfile(std::move(model), options);
  progress.Finish();
  if (!measured.ok()) return measured.error();
  const auto& [profile, sweep] = *measured;
  if (measurements) RETURN_IF_ERROR(measurements->Commit(MeasurementsAsCsv(sweep, profile)));
  const std::string text = PerformanceProfileAsJson(profile);
  if (const auto read = ParsePerformanceProfile(text, flags.output); !read.ok()) {
    return Internal("the measurements form no valid profile, so nothing was written: " + read.error().message);
  }
  RETURN_IF_ERROR(output.Commit(text));
  PrintReport(profile, flags.output);
  return Ok{};
}

void AddMeasuringFlags(CommandLine& line, ProfileFlags& flags) {
  const std::string measuring = "Measuring";
  line.Add({.names = "-o,--output",
            .target = &flags.output,
            .unit = "FILE",
            .help = "Profile to write (JSON)",
            .required = true,
            .common = true});
  line.Add({.names = "--measurements",
            .target = &flags.measurements,
            .unit = "FILE",
            .group = measuring,
            .help = "Also write every measured step (CSV)"});
  line.Add({.names = "--ranks",
            .target = &flags.ranks,
            .unit = "RANK",
            .group = measuring,
            .help = "Measure with random adapters of these ranks, separated by commas",
            .default_text = "8,16,32,64 if no adapters are given",
            .range = {{1, 4096}},
            .comma_list = true});
  line.Add({.names = "--random-adapters",
            .target = &flags.random_adapters,
            .unit = "N",
            .group = measuring,
            .help = "Number of random adapters",
            .range = {{1, 4096}}});
  line.Add({.names = "--lora-targets",
            .target = &flags.lora_targets,
            .unit = "LAYER",
            .group = measuring,
            .help = "Layers that the random adapters change, separated by commas",
            .comma_list = true});
  line.Add({.names = "--scratch",
            .target = &flags.scratch,
            .unit = "DIR",
            .group = measuring,
            .help = "Folder for the random adapters; the disk's read rate is measured there",
            .default_text = "the system's temporary folder"});
  line.Add({.names = "--random-weights",
            .target = &flags.random_weights,
            .group = measuring,
            .help = "Use random weights: the model directory needs config.json only"});
  line.Add({.names = "--quick",
            .target = &flags.quick,
            .group = measuring,
            .help = "Measure fewer points: about a minute for a small model instead of five"});
}

void AddEffortFlags(CommandLine& line, ProfileFlags& flags) {
  const std::string measuring = "Measuring";
  line.Add({.names = "--points",
            .target = &flags.points,
            .unit = "N",
            .group = measuring,
            .help = "Different steps to measure",
            .default_text = "400, or 160 with --quick",
            .range = {{16, 100000}}});
  line.Add({.names = "--seconds",
            .target = &flags.seconds,
            .unit = "SECONDS",
            .group = measuring,
            .help = "Time after which step measurements end, but not before 64 points",
            .default_text = "240, or 45 with --quick",
            .range = {{0.001, 1e9}}});
  line.Add({.names = "--engine-seconds",
            .target = &flags.engine_seconds,
            .unit = "SECONDS",
            .group = measuring,
            .help = "Time to run the whole engine under several loads, which shows what linear terms miss; 0: none",
            .default_text = "30, or 10 with --quick",
            .range = {{0.0, 3600.0}}});
  line.Add({.names = "--rates",
            .target = &flags.measure.rates,
            .unit = "REQUESTS/S",
            .group = measuring,
            .help = "Request rates for the engine runs, separated by commas",
            .default_text = "20 to 80 % of what the engine sustains",
            .range = {{0.001, 1e6}},
            .comma_list = true});
  line.Add({.names = "--input-mean",
            .target = &flags.measure.input_mean,
            .unit = "TOKENS",
            .group = measuring,
            .help = "Mean prompt length in the engine runs; shorter where the engine is slow",
            .range = {{2.0, 1e6}}});
  line.Add({.names = "--output-mean",
            .target = &flags.measure.output_mean,
            .unit = "TOKENS",
            .group = measuring,
            .help = "Mean output length in the engine runs",
            .range = {{2.0, 1e6}}});
  line.Add({.names = "--seed",
            .target = &flags.measure.seed,
            .unit = "N",
            .group = measuring,
            .help = "Seed for the choice of points and of held-out steps"});
}

}  // namespace

void AddProfileFlags(CommandLine& line, ProfileFlags& flags) {
  AddRuntimeFlags(line, flags.runtime);
  AddDeviceFlag(line, flags.runtime);
  flags.runtime.log_level = "warn";
  AddMeasuringFlags(line, flags);
  AddEffortFlags(line, flags);
}

int RunProfile(const ProfileFlags& flags) {
  const Status status = Profile(flags);
  return status.ok() ? 0 : FailCommand("profile", status.error());
}

Command ProfileCommand() {
  const auto flags = std::make_shared<ProfileFlags>();
  Command command{.name = "profile",
                  .summary = "Measure how long steps and transfers take on this machine, and fit models to it"};
  AddProfileFlags(command.line, *flags);
  command.run = [flags] { return RunProfile(*flags); };
  return command;
}

}  // namespace loramux
