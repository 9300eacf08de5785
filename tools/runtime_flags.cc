#include "tools/runtime_flags.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/log.h"
#include "base/message.h"
#include "costs/performance_profile.h"
#include "costs/service_times.h"
#include "formats/adapter_folder.h"
#include "formats/base_model_name.h"
#include "formats/model_files.h"
#include "hub/repo_name.h"
#include "report/progress_bar.h"
#include "runtime/choose_device.h"
#include "schedule/plan_by_model.h"
#include "schedule/presets.h"
#include "tools/idle_flags.h"
#include "tools/system_flags.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

std::int64_t MachineMemory() { return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE); }

// A quarter of the machine's memory, at most 8 GiB: enough to serve, without surprising other programs here.
std::int64_t AutoDeviceMemory() { return std::min<std::int64_t>(MachineMemory() / 4, std::int64_t{8} << 30); }

// Whether the device has memory of its own. The emulated device's is the machine's.
bool HasOwnMemory(const Device* device) { return device != nullptr && device->properties().major > 0; }

// Pools are filled bit by bit, so one that is too large would end the server much later.
Status CheckMemory(const RuntimeOptions& options) {
  const std::int64_t machine = MachineMemory();
  const std::int64_t device_memory = HasOwnMemory(options.device.get()) ? 0 : options.device_memory;
  for (const auto& [flag, bytes] :
       {std::pair{"--device-memory", device_memory}, std::pair{"--host-memory", options.host_memory}}) {
    if (bytes <= machine) continue;
    return InvalidArgument(std::string(flag) + ": expected at most " + FormatBytes(machine) +
                               ", the memory of this machine, found " + FormatBytes(bytes),
                           flag);
  }
  if (options.host_memory > machine - device_memory) {
    spdlog::warn(
        "--device-memory and --host-memory are {} together, but this machine has {}: the server may run out of "
        "memory when both are full",
        FormatBytes(device_memory + options.host_memory), FormatBytes(machine));
  }
  return Ok{};
}

Result<std::int64_t> Memory(const std::string& text, const std::string& flag, std::int64_t automatic) {
  if (text == "auto") return automatic;
  return ParseBytes(text, flag);
}

Result<std::optional<DType>> DTypeFlag(const std::string& text, const std::string& flag) {
  if (text == "auto") return std::optional<DType>();
  if (text == "f32" || text == "float32") return std::optional(DType::kF32);
  if (text == "bf16" || text == "bfloat16") return std::optional(DType::kBF16);
  if (text == "f16" || text == "float16") return std::optional(DType::kF16);
  return InvalidArgument(flag + ": expected auto, f32, bf16 or f16, found '" + text + "'", flag);
}

Result<std::optional<WeightFormat>> WeightFlag(const std::string& text, const std::string& flag) {
  if (text == "auto") return std::optional<WeightFormat>();
  const std::optional<WeightFormat> format = ParseWeightFormat(text);
  if (format) return format;
  return InvalidArgument(flag + ": expected auto, q8, q4, bf16, f16 or f32, found '" + text + "'", flag);
}

Result<std::optional<DType>> LoraDTypeFlag(const std::string& text) {
  const std::string flag = "--lora-dtype";
  for (const DType dtype : {DType::kI8, DType::kF8E4M3})
    if (text == EightBitName(dtype)) return std::optional(dtype);
  if (auto dtype = DTypeFlag(text, flag); dtype.ok()) return dtype;
  return InvalidArgument(flag + ": expected auto, f32, bf16, f16, int8 or fp8, found '" + text + "'", flag);
}

// Error also: int8 with a device, whose kernels do not read it.
Result<std::optional<DType>> KvDTypeFlag(const std::string& text, bool on_device) {
  const std::string flag = "--kv-cache-dtype";
  if (text == "int8" && on_device) {
    return InvalidArgument(flag + ": int8 is for the CPU: expected auto, f32, bf16 or f16 with a device, found 'int8'",
                           flag);
  }
  if (text == "int8") return std::optional(DType::kI8);
  if (auto dtype = DTypeFlag(text, flag); dtype.ok()) return dtype;
  return InvalidArgument(flag + ": expected auto, f32, bf16, f16 or int8, found '" + text + "'", flag);
}

// A device's kernels compute as mbgmv does, whatever the flag says.
Result<LoraVariant> VariantFlag(const std::string& text, bool on_device) {
  if (text == "mbgmv") return LoraVariant::kMbgmv;
  if (text == "bgmv" && on_device) {
    return InvalidArgument(
        "--lora-variant: expected mbgmv with a GPU, whose kernels compute each adapter at its true rank, found bgmv, "
        "which is for --device cpu",
        "--lora-variant");
  }
  if (text == "bgmv") return LoraVariant::kBgmv;
  return InvalidArgument("--lora-variant: expected mbgmv or bgmv, found '" + text + "'", "--lora-variant");
}

Status CheckRange(std::int64_t value, std::int64_t low, std::int64_t high, const std::string& flag) {
  if (value >= low && value <= high) return Ok{};
  return InvalidArgument(
      flag + ": expected " + std::to_string(low) + " to " + std::to_string(high) + ", found " + std::to_string(value),
      flag);
}

// The further keys that vLLM and SGLang know. Where another value than theirs by default would change something, it is
// refused.
Status CheckModuleKeys(const nlohmann::json& module) {
  const std::string flag = "--lora-modules";
  for (const auto& [key, value] : module.items()) {
    const bool asks = value != false && !value.is_null();
    if (key == "pinned" && asks) {
      return InvalidArgument(flag +
                                 ": pinned is not for a start; load the adapter with POST /v1/load_lora_adapter and "
                                 "\"pinned\": true, which --enable-runtime-lora serves",
                             flag);
    }
    static constexpr std::array kKnown = {
        "name", "path", "lora_name", "lora_path", "base_model_name", "pinned", "is_3d_lora_weight"};
    if (std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end()) {
      return InvalidArgument(flag + ": expected the keys name and path, found '" + key + "'", flag);
    }
  }
  return Ok{};
}

Result<NamedPath> ParseLoraModule(const std::string& text) {
  if (!text.empty() && text.front() == '{') {
    const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    for (const auto& [name, path] : {std::pair("name", "path"), std::pair("lora_name", "lora_path")}) {  // SGLang's
      if (json.is_object() && json.contains(name) && json.contains(path) && json[name].is_string() &&
          json[path].is_string()) {
        RETURN_IF_ERROR(CheckModuleKeys(json));
        return NamedPath{json[name], json[path]};
      }
    }
    return InvalidArgument("--lora-modules: expected a JSON object with the strings name and path, found " + text,
                           "--lora-modules");
  }
  const std::size_t equals = text.find('=');
  // ORG/NAME alone is called NAME.
  if (const auto repo = equals == std::string::npos ? ParseRepoName(text) : std::nullopt) {
    return NamedPath{repo->name, text};
  }
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    return InvalidArgument(
        "--lora-modules: expected name=path, name=s3://BUCKET/PREFIX or ORG/NAME, found '" + text + "'",
        "--lora-modules");
  }
  return NamedPath{text.substr(0, equals), text.substr(equals + 1)};
}

// What the flags say of a system, over what its preset says, or a server's own defaults.
Result<SystemSpec> SpecOf(const RuntimeFlags& flags) {
  // In 16 bits, processor and device sum in other orders. So bits would depend on when an adapter arrives.
  const bool waits = flags.batch_invariant && flags.options.device != nullptr;
  const ColdStartPolicy cold_start = waits ? ColdStartPolicy::kWait : ColdStartPolicy::kAuto;
  // Without a preset, half a step is left to other requests. Presets of documents do as those do.
  SystemSpec spec{.prefill_chunk = 256, .load_on_arrival = true, .cold_start_policy = cold_start};
  if (!flags.preset.empty()) {
    ASSIGN_OR_RETURN(const Preset preset, FindPreset(flags.preset));
    if (preset.all_on_device) {
      return InvalidArgument("preset " + flags.preset +
                                 " can only be simulated: choose one that `loramux simulate --list-presets` does not "
                                 "mark \"simulated only\"",
                             "--preset");
    }
    spec = preset.spec;
    if (!preset.decides_cold_start) spec.cold_start_policy = cold_start;
  }
  RETURN_IF_ERROR(flags.settings.ApplyTo(spec));
  if (spec.speculation.method != Speculation::kNone && flags.options.device != nullptr) {
    return InvalidArgument(
        "--speculate: expected none on a GPU, found ngram: drafts are verified on processors only. Leave it out, or "
        "serve with --device cpu",
        "--speculate");
  }
  if (flags.settings.Gives("--max-num-batched-tokens") || flags.settings.Gives("--prefill-chunk")) {
    spec.chunked_prefill = true;
    spec.separate_phases = false;
  }
  for (const std::string& text : flags.tenant_weights) {
    ASSIGN_OR_RETURN(auto weight, ParseTenantWeight(text));
    spec.fairness.weights.push_back(std::move(weight));
  }
  if ((spec.length_predictor == "proxy") == flags.length_proxy.empty()) {
    return InvalidArgument("--length-proxy: expected a directory with --length-predictor proxy, and with no other",
                           "--length-proxy");
  }
  return spec;
}

// Error: the profile is of a device of another kind. Another one of the same kind, or other threads: a warning.
Status CheckDeviceOf(const PerformanceProfile& profile, const RuntimeFlags& flags, const RuntimeOptions& options) {
  const int threads = options.threads > 0 ? options.threads : AvailableProcessors();
  const DeviceNames here = NamesOfDevice(options.device.get(), threads);
  RETURN_IF_ERROR(CheckSameDevice(profile, here.kind, here.description, "--profile: " + flags.profile));
  if (here.kind != "cuda" && profile.threads != threads) {
    spdlog::warn("--profile: measured with {} threads, but this server uses {}: its times may be wrong here",
                 profile.threads, threads);
  } else if (profile.device != here.description) {
    spdlog::warn("--profile: measured on {}, but this server computes on {}: its times may be wrong here",
                 Printable(profile.device), here.description);
  }
  return Ok{};
}

// Plans go by what was measured. Errors: the file's; it is of a model of another shape, or of a device of another kind.
// Where the server differs in what a profile is only a little off for, a warning.
Status UseProfile(const RuntimeFlags& flags, RuntimeOptions& options) {
  ASSIGN_OR_RETURN(const PerformanceProfile profile, LoadPerformanceProfile(flags.profile));
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(flags.model_dir));
  const PerformanceProfile::BaseModel wanted = {.name = flags.model_dir,
                                                .hidden_size = config.hidden_size,
                                                .num_layers = config.num_layers,
                                                .num_heads = config.num_heads,
                                                .num_kv_heads = config.num_kv_heads,
                                                .head_dim = config.head_dim,
                                                .intermediate_size = config.intermediate_size,
                                                .vocab_size = config.vocab_size};
  RETURN_IF_ERROR(CheckSameShape(profile.base, wanted, "--profile: " + flags.profile));
  RETURN_IF_ERROR(CheckDeviceOf(profile, flags, options));
  const LoraCostShape shape = options.lora_variant == LoraVariant::kBgmv ? LoraCostShape::kBgmv : LoraCostShape::kMbgmv;
  const FittedModel& other = shape == LoraCostShape::kBgmv ? profile.mbgmv : profile.bgmv;
  if (&profile.EngineModel() == &other.model && other.engine.points > 0) {
    spdlog::warn(
        "--profile: its engine ran with the other --lora-variant, so predictions for this one are less accurate");
  }
  PlanByModel(std::make_shared<const PerformanceModel>(profile.ModelOf(shape)), options.spec);
  spdlog::info("planning with profile {}: measured on {}; a single sequence decodes in {:.3f} ms per step",
               flags.profile, Printable(profile.device), ShortestStepSeconds(*options.spec.costs) * 1e3);
  return Ok{};
}

}  // namespace

Result<WeightOptions> WeightOptionsOf(const RuntimeFlags& flags) {
  WeightOptions options;
  ASSIGN_OR_RETURN(options.layers, WeightFlag(flags.weights, "--weights"));
  ASSIGN_OR_RETURN(options.embeddings, WeightFlag(flags.embedding_weights, "--embedding-weights"));
  return options;
}

Result<RuntimeOptions> RuntimeOptionsOf(const RuntimeFlags& flags) {
  RuntimeOptions options = flags.options;
  ASSIGN_OR_RETURN(options.spec, SpecOf(flags));
  const ModelPart part = options.weights.part;  // each has pools of its own, most often on the same machine
  const std::int64_t of_machine = AutoDeviceMemory() / part.ranks;
  const std::int64_t automatic = HasOwnMemory(options.device.get()) ? 0 : of_machine;  // 0: what is left
  ASSIGN_OR_RETURN(options.device_memory, Memory(flags.device_memory, "--device-memory", automatic));
  ASSIGN_OR_RETURN(options.host_memory, Memory(flags.host_memory, "--host-memory", of_machine));
  RETURN_IF_ERROR(CheckMemory(options));
  ASSIGN_OR_RETURN(options.weights, WeightOptionsOf(flags));
  options.weights.part = part;
  RETURN_IF_ERROR(CheckRange(flags.adapter_tokens, 0, kMostAdapterTokens, "--adapter-tokens"));
  options.weights.added_tokens = flags.adapter_tokens;
  ASSIGN_OR_RETURN(options.kv_dtype, KvDTypeFlag(flags.kv_dtype, options.device != nullptr));
  ASSIGN_OR_RETURN(options.lora_dtype, LoraDTypeFlag(flags.lora_dtype));
  ASSIGN_OR_RETURN(options.lora_variant, VariantFlag(flags.lora_variant, options.device != nullptr));
  RETURN_IF_ERROR(CheckRange(flags.options.max_lora_rank, 1, 4096, "--max-lora-rank"));
  RETURN_IF_ERROR(CheckRange(flags.options.max_model_len, 0, 1 << 24, "--max-model-len"));
  RETURN_IF_ERROR(CheckRange(flags.options.threads, 0, 1024, "--threads"));
  RETURN_IF_ERROR(CheckRange(flags.assist_cores, 0, 1024, "--assist-cores"));
  const std::int64_t pages = flags.options.page_tokens;
  if (pages != 0 && pages != 4 && pages != 8 && pages != 16 && pages != 32 && pages != 64) {
    return InvalidArgument("--page-tokens: expected 4, 8, 16, 32 or 64 (0: automatic), found " + std::to_string(pages),
                           "--page-tokens");
  }
  if (pages == 0 && options.spec.page_tokens != SystemSpec().page_tokens)
    options.page_tokens = options.spec.page_tokens;
  options.length_directory = AdapterCacheDirectory(flags.remote) / "lengths";
  if (flags.assist_cores > 0) options.assist.cores = flags.assist_cores;
  if (!flags.profile.empty()) RETURN_IF_ERROR(UseProfile(flags, options));
  RETURN_IF_ERROR(CheckMaxDecodeStep(options.spec, options.spec.costs.get()));
  options.model_names = NamesOfModel(flags.model_dir);
  options.base_names = BaseNamesOf(flags);
  return options;
}

std::vector<std::string> BaseNamesOf(const RuntimeFlags& flags) {
  if (!flags.served_model_names.empty()) return flags.served_model_names;
  // The directory's own name, and the path as it was written: readiness probes use either. ORG/NAME as it is first.
  const std::string& given = flags.model_name.empty() ? flags.model_dir : flags.model_name;
  const fs::path path = fs::path(given).lexically_normal(), named = path.has_filename() ? path : path.parent_path();
  std::vector<std::string> names = {(IsGgufModel(named) ? named.stem() : named.filename()).string()};
  if (names[0] != given) names.push_back(given);
  if (!flags.model_name.empty()) std::reverse(names.begin(), names.end());
  return names;
}

namespace {

void AddAdapterFlags(CommandLine& line, RuntimeFlags& flags) {
  const std::string adapters = "Adapters";
  line.Add({.names = "--lora-modules",
            .target = &flags.lora_modules,
            .unit = "NAME=PATH",
            .group = adapters,
            .help = "Adapters to serve, each as name=path or as JSON {\"name\", \"path\"}; a path may be ORG/NAME, "
                    "s3://BUCKET/PREFIX or hf://ORG/NAME",
            .common = true});
  line.Add({.names = "--adapter-dir",
            .target = &flags.adapter_dir,
            .unit = "DIR",
            .group = adapters,
            .help = "Serve every PEFT adapter in DIR/*/ under the name of its folder. `serve` also finds adapters that "
                    "are added while it runs",
            .common = true});
  line.Add({.names = "--max-lora-rank",
            .target = &flags.options.max_lora_rank,
            .unit = "RANK",
            .group = adapters,
            .help = "Refuse adapters of a higher rank"});
  AddRemoteFlags(line, flags.remote);
  flags.settings.AddTo(line, SettingGroup::kAdapters, SettingUse::kServe, adapters);
  line.Add({.names = "--assist-cores",
            .target = &flags.assist_cores,
            .unit = "N",
            .group = adapters,
            .help = "On a device, threads that compute adapters from memory until they are on the device; 0: half of "
                    "the processors, at least one. --cold-start wait needs none"});
  line.Add({.names = "--verify-before-use",
            .target = &flags.options.verify_before_use,
            .group = adapters,
            .help = "Use an adapter only once its whole file was read and matches its digest; without it, on a CPU, "
                    "each layer is used as soon as it was read and verified"});
  line.Add({.names = "--max-cpu-loras",
            .target = &flags.max_cpu_loras,
            .unit = "N",
            .group = adapters,
            .help = "Accepted for compatibility, with a warning; --host-memory bounds the host tier in bytes instead"});
}

// Adds the flags of adapters' weights.
void AddAdapterWeightFlags(CommandLine& line, RuntimeFlags& flags) {
  const std::string adapters = "Adapters";
  line.Add({.names = "--adapter-tokens",
            .target = &flags.adapter_tokens,
            .unit = "N",
            .group = adapters,
            .help = "The most tokens that an adapter may add to the base model's vocabulary, with rows of its own of "
                    "embed_tokens and lm_head"});
  line.Add({.names = "--lora-dtype",
            .target = &flags.lora_dtype,
            .unit = "DTYPE",
            .group = adapters,
            .help = "Type of adapter weights in memory: auto (the narrower of the file's and the model's), f32, bf16, "
                    "f16, or int8 and fp8, which take half the memory of bf16 and round each row of A and column of B "
                    "to 8 bits: to integers, or to e4m3 (`loramux inspect` shows the error)"});
  line.Add({.names = "--lora-variant",
            .target = &flags.lora_variant,
            .unit = "NAME",
            .group = adapters,
            .help = "Batched LoRA kernel of the CPU: mbgmv computes each adapter at its true rank, bgmv pads to the "
                    "largest rank of the batch. A GPU computes as mbgmv does, and bgmv is refused there"});
}

void AddMemoryFlags(CommandLine& line, RuntimeFlags& flags) {
  const std::string memory = "Memory";
  line.Add({.names = "--device-memory",
            .target = &flags.device_memory,
            .unit = "BYTES",
            .group = memory,
            .help = "Size of the page pool for KV cache and adapters, as in 2GiB; auto: a quarter of the machine's "
                    "memory, at most 8 GiB; on a GPU what weights and activations leave",
            .common = true});
  line.Add({.names = "--host-memory",
            .target = &flags.host_memory,
            .unit = "BYTES",
            .group = memory,
            .help = "Size of the host tier, which keeps evicted adapters and KV pages, as in 4GiB; 0: no host tier. "
                    "With a GPU it is pinned",
            .common = true});
  line.Add({.names = "--page-tokens",
            .target = &flags.options.page_tokens,
            .unit = "TOKENS",
            .group = memory,
            .help = "Positions in a KV page: 4, 8, 16, 32 or 64; 0: the preset's, or chosen by the model's shape"});
  line.Add({.names = "--weights",
            .target = &flags.weights,
            .unit = "FORMAT",
            .group = memory,
            .help =
                "How the layers' weights are kept in memory: auto (as in the file), q8 (8 bits), q4 (4 bits), bf16, "
                "f16 or f32. q8 halves memory and time of bf16 at no measurable loss; q4 has a third of the bytes",
            .common = true});
  line.Add({.names = "--embedding-weights",
            .target = &flags.embedding_weights,
            .unit = "FORMAT",
            .group = memory,
            .help = "The same for the embeddings and the output matrix",
            .default_text = "as in the file; q8 if --weights is q8 or q4"});
  line.Add({.names = "--kv-cache-dtype,--kv-dtype",
            .target = &flags.kv_dtype,
            .unit = "DTYPE",
            .group = memory,
            .help = "Type of keys and values: auto (the weights' type), f32, bf16, f16, or on the CPU int8: 8 bits "
                    "with a scale for each token and head, for nearly twice the history of bf16"});
  flags.settings.AddTo(line, SettingGroup::kMemory, SettingUse::kServe, memory);
}

void AddBatchingFlags(CommandLine& line, RuntimeFlags& flags) {
  const std::string batching = "Batching";
  line.Add({.names = "--max-model-len",
            .target = &flags.options.max_model_len,
            .unit = "TOKENS",
            .group = batching,
            .help = "Positions of a sequence, prompt and output together; 0: the model's own limit. A model whose "
                    "rope_type is dynamic may have up to `factor` times as many, then without prefix cache",
            .common = true});
  flags.settings.AddTo(line, SettingGroup::kBatching, SettingUse::kServe, batching);
}

void AddMachineFlags(CommandLine& line, RuntimeFlags& flags) {
  const std::string machine = "Machine";
  line.Add({.names = "--threads",
            .target = &flags.options.threads,
            .unit = "N",
            .group = machine,
            .help = "Kernel threads; 0: one per processor",
            .common = true});
  line.Add({.names = "--log-level",
            .target = &flags.log_level,
            .unit = "LEVEL",
            .group = machine,
            .help = "Least severe log records to write: trace, debug, info, warn, error or off",
            .common = true});
  line.Add({.names = "--log-format",
            .target = &flags.log_format,
            .unit = "FORMAT",
            .group = machine,
            .help = "text writes a line per record, json an object per line",
            .choices = {"text", "json"}});
}

}  // namespace

void AddDeviceFlag(CommandLine& line, RuntimeFlags& flags) {
  line.Add({.names = "--device",
            .target = &flags.device,
            .unit = "DEVICE",
            .group = "Machine",
            .help = "Compute on the CPU or on a GPU: cuda is an NVIDIA GPU, auto is one if it works and else the CPU. "
                    "emulated is a GPU that the CPU plays: very slow, for tests and for people who write kernels",
            .choices = {"auto", "cpu", "cuda", "emulated"},
            .common = true});
  line.Add({.names = "--batch-invariant",
            .target = &flags.batch_invariant,
            .group = "Machine",
            .help = "On a GPU, compute each request with the same bits whatever shares its batch; products are slower, "
                    "and --cold-start is wait unless you set it. On a CPU it is always so"});
}

void AddScheduleFlags(CommandLine& line, RuntimeFlags& flags) {
  const std::string order = "Order of service";
  flags.settings.AddTo(line, SettingGroup::kOrder, SettingUse::kServe, order);
  line.Add({.names = "--length-proxy",
            .target = &flags.length_proxy,
            .unit = "DIR",
            .group = order,
            .help = "Model of the proxy: a Hugging Face BertForSequenceClassification over ranges of output tokens"});
  line.Add({.names = "--profile",
            .target = &flags.profile,
            .unit = "FILE",
            .group = order,
            .help = "A file of `loramux profile` for a model of this shape. The planner then uses its measured times "
                    "for bypasses, lane quotas and reloads",
            .default_text = "none: learned while serving"});
  flags.settings.AddTo(line, SettingGroup::kDocuments, SettingUse::kServe, "Constants of the source documents");
  const std::string fairness = "Fairness";
  flags.settings.AddTo(line, SettingGroup::kFairness, SettingUse::kServe, fairness);
  line.Add({.names = "--tenant-weight",
            .target = &flags.tenant_weights,
            .unit = "NAME=WEIGHT",
            .group = fairness,
            .help = "Share of a tenant relative to the others, whose weight is 1. Repeatable"});
}

Status OpenDeviceOf(RuntimeFlags& flags) {
  ASSIGN_OR_RETURN(flags.options.device, ChooseDevice(flags.device, flags.batch_invariant));
  return Ok{};
}

void AddRuntimeFlags(CommandLine& line, RuntimeFlags& flags) {
  line.TellGiven(&flags.given);
  AddModelFlags(line, flags);
  AddAdapterFlags(line, flags);
  AddAdapterWeightFlags(line, flags);
  AddMemoryFlags(line, flags);
  AddBatchingFlags(line, flags);
  line.Add({.names = "--served-model-name",
            .target = &flags.served_model_names,
            .unit = "NAME",
            .help = "Names of the base model in requests",
            .default_text = "the name of its folder",
            .common = true});
  AddMachineFlags(line, flags);
}

Result<std::vector<NamedPath>> AdaptersOf(const RuntimeFlags& flags) {
  std::vector<NamedPath> adapters;
  for (const std::string& text : flags.lora_modules) {
    ASSIGN_OR_RETURN(NamedPath adapter, ParseLoraModule(text));
    adapters.push_back(std::move(adapter));
  }
  if (flags.adapter_dir.empty()) return adapters;
  std::error_code error;
  std::vector<NamedPath> found;
  for (fs::directory_iterator it(flags.adapter_dir, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (fs::exists(it->path() / "adapter_config.json", ignored) || GgufFileOfAdapter(it->path())) {
      found.push_back({it->path().filename().string(), it->path().string()});
    }
  }
  if (error) {
    return NotFound("--adapter-dir: cannot list '" + flags.adapter_dir + "': " + error.message(), "--adapter-dir");
  }
  std::sort(found.begin(), found.end(), [](const NamedPath& a, const NamedPath& b) { return a.name < b.name; });
  adapters.insert(adapters.end(), found.begin(), found.end());
  return adapters;
}

Status FetchNamed(RuntimeFlags& flags) {
  RETURN_IF_ERROR(FetchModel(flags));
  for (std::string& text : flags.lora_modules) {
    ASSIGN_OR_RETURN(NamedPath adapter, ParseLoraModule(text));
    if (IsRemoteSource(adapter.path)) {
      RETURN_IF_ERROR(ParseAdapterSource(adapter.path));
      RETURN_IF_ERROR(OpenRemoteAdapters(flags));
      continue;
    }
    std::error_code ignored;
    if (fs::exists(adapter.path, ignored) || !ParseRepoName(adapter.path)) continue;  // Register says what is wrong
    ASSIGN_OR_RETURN(adapter.path, FolderOf(adapter.path, flags.hub));
    text = nlohmann::json{{"name", adapter.name}, {"path", adapter.path}}.dump();
  }
  return Ok{};
}

namespace {

Result<std::shared_ptr<const AdapterVersion>> RegisterNamed(const RuntimeFlags& flags, const NamedPath& adapter,
                                                            Runtime& runtime) {
  AdapterRegistry& registry = runtime.registry();
  const std::int64_t now = runtime.clock().UnixSeconds();
  if (!IsRemoteSource(adapter.path)) return registry.Register(adapter.name, LocalPathOf(adapter.path), now);
  ASSIGN_OR_RETURN(auto version, PrepareFromSource(flags, registry, adapter.name, adapter.path, now));
  auto published = registry.Publish(version, /*replace=*/false);
  if (!published.ok()) registry.Discard(*version);
  return published;
}

// Registered adapters that the host tier has no room for are served nevertheless.
void WarnOfHostTier(HostCopies which, const Runtime& runtime, const AdapterRegistry& registry,
                    std::int64_t host_pages) {
  if (which == HostCopies::kLoaded) return;
  std::int64_t pages = 0;
  const auto adapters = registry.List();
  for (const auto& version : adapters) pages += version->layout.pages;
  if (pages <= host_pages) return;
  const std::int64_t page_bytes = runtime.geometry().page_bytes;
  spdlog::warn(
      "--adapters-in-host: the {} adapters take {}, and the host tier has {}: those that it has no room for are read "
      "from disk when requests ask for them; raise --host-memory",
      adapters.size(), FormatBytes(pages * page_bytes), FormatBytes(host_pages * page_bytes));
}

// What an operator would not expect of a model like others.
// `snapshot_tokens`: SystemSpec::state_snapshot_tokens, or 0 if nothing is cached.
void LogPeculiarities(const Runtime& runtime, std::int64_t snapshot_tokens) {
  const ModelConfig& config = runtime.config();
  if (!runtime.generates()) {
    spdlog::warn(
        "the model's files hold no output layer (lm_head): it makes embeddings, and requests for text are refused");
  }
  if (config.recurrent) {
    const std::int64_t pages = runtime.geometry().kv.state_pages, bytes = runtime.geometry().page_bytes;
    const std::string what = snapshot_tokens > 0
                                 ? fmt::format(
                                       "prefixes are cached up to snapshots of them, every {} tokens, where a "
                                       "prompt ends and where it parts from another",
                                       snapshot_tokens)
                                 : std::string(
                                       "no prefix is cached, and a preempted request is computed again from "
                                       "its beginning (--state-snapshot-tokens)");
    spdlog::info("linear attention: a sequence's states take {} pages of {} each beside its keys and values; {}", pages,
                 FormatBytes(bytes), what);
  }
  if (config.TurnsAlike(config.MostPositions())) return;
  const bool dynamic = config.rope.scaling == RopeConfig::Scaling::kDynamic;
  if (!dynamic && config.TurnsAlike(runtime.max_model_len())) return;
  if (!dynamic) {
    spdlog::info(
        "rope_type longrope: sequences beyond {0} positions turn by other factors than shorter ones, so no prefix is "
        "cached; with --max-model-len {0} prefixes are",
        config.TurnsAlikeUpTo());
  } else if (config.TurnsAlike(runtime.max_model_len())) {
    spdlog::info(
        "rope_type dynamic: sequences have at most {} positions, and up to there nothing is scaled; --max-model-len "
        "serves up to {}, without prefix cache",
        runtime.max_model_len(), config.MostPositions());
  } else {
    spdlog::info("rope_type dynamic: sequences beyond {} positions are scaled by their length, so no prefix is cached",
                 config.max_position);
  }
}

}  // namespace

Result<std::unique_ptr<Runtime>> StartRuntime(const RuntimeFlags& flags, AdapterRegistry::Complete complete,
                                              FlightRecorder* recorder) {
  RETURN_IF_ERROR(CheckModelDType(flags));
  ASSIGN_OR_RETURN(RuntimeOptions options, RuntimeOptionsOf(flags));
  for (const std::string& warning : WarningsOfIdle(flags, options)) spdlog::warn("{}", warning);
  options.complete_adapter = std::move(complete);
  options.recorder = recorder;
  ASSIGN_OR_RETURN(const std::vector<NamedPath> adapters, AdaptersOf(flags));
  const HostCopies host_copies = options.spec.host_copies;
  const bool keeps = options.spec.keep_history && options.spec.chunked_prefill;
  const std::int64_t snapshot_tokens = keeps ? options.spec.state_snapshot_tokens : 0;
  spdlog::info("served by: --cache {}, --schedule {}, --fairness {}, prompts {}", options.spec.cache,
               options.spec.queue, options.spec.fairness.policy == FairnessPolicy::kVtc ? "vtc" : "none",
               options.spec.chunked_prefill ? "in chunks" : "whole");
  ProgressBar weights("loading weights", "MiB", 1 << 20);
  ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime,
                   Runtime::Load(flags.model_dir, std::move(options),
                                 [&](std::int64_t done, std::int64_t total) { weights.Update(done, total); }));
  weights.Finish();
  LogPeculiarities(*runtime, snapshot_tokens);
  ProgressBar registered("checking adapters", "", 1);
  std::int64_t done = 0;
  for (const NamedPath& adapter : adapters) {
    const auto version = RegisterNamed(flags, adapter, *runtime);
    if (!version.ok()) {
      return Error{version.error().code, "adapter '" + adapter.name + "': " + version.error().message, adapter.name};
    }
    const AdapterVersion& found = **version;
    if (found.rounding) spdlog::info("adapter '{}': {}", adapter.name, Describe(*found.rounding, found.layout.dtype));
    if (!found.warning.empty()) spdlog::warn("adapter '{}': {}", adapter.name, found.warning);
    registered.Update(++done, static_cast<std::int64_t>(adapters.size()));
  }
  registered.Finish();
  const PageGeometry& geometry = runtime->geometry();
  const EngineStats stats = runtime->engine().Stats();
  spdlog::info(
      "model {}: {} of weights; pages of {} ({} positions); device {} pages = {}, host {} pages = {}; {} adapters",
      flags.model_dir, FormatBytes(runtime->weight_bytes()), FormatBytes(geometry.page_bytes), geometry.kv.page_tokens,
      stats.device.capacity_pages, FormatBytes(stats.device.capacity_pages * geometry.page_bytes),
      stats.host.capacity_pages, FormatBytes(stats.host.capacity_pages * geometry.page_bytes), adapters.size());
  WarnOfHostTier(host_copies, *runtime, runtime->registry(), stats.host.capacity_pages);
  return runtime;
}

}  // namespace loramux
