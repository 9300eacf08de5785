#include "tools/runtime_flags.h"

#include <algorithm>
#include <filesystem>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/log.h"
#include "cache/cache_regime.h"
#include "tools/progress_bar.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

// A quarter of the machine's memory, at most 8 GiB: enough to serve, without surprising who else runs here.
std::int64_t AutoDeviceMemory() {
  const std::int64_t physical = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return std::min<std::int64_t>(physical / 4, std::int64_t{8} << 30);
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

Result<LoraVariant> VariantFlag(const std::string& text) {
  if (text == "mbgmv") return LoraVariant::kMbgmv;
  if (text == "bgmv") return LoraVariant::kBgmv;
  return InvalidArgument("--lora-variant: expected mbgmv or bgmv, found '" + text + "'", "--lora-variant");
}

Result<FairnessOptions> FairnessFlags(const RuntimeFlags& flags) {
  FairnessOptions options;
  ASSIGN_OR_RETURN(options.policy, ParseFairnessPolicy(flags.fairness));
  for (const std::string& text : flags.tenant_weights) {
    ASSIGN_OR_RETURN(auto weight, ParseTenantWeight(text));
    options.weights.push_back(std::move(weight));
  }
  options.max_wait = static_cast<TimeNs>(flags.fairness_max_wait_seconds * static_cast<double>(kNsPerSecond));
  return options;
}

Status CheckRange(std::int64_t value, std::int64_t low, std::int64_t high, const std::string& flag) {
  if (value >= low && value <= high) return Ok{};
  return InvalidArgument(flag + ": expected " + std::to_string(low) + " to " + std::to_string(high) + ", found " +
                         std::to_string(value), flag);
}

Result<NamedPath> ParseLoraModule(const std::string& text) {
  if (!text.empty() && text.front() == '{') {
    const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("name") && json.contains("path") && json["name"].is_string() &&
        json["path"].is_string()) {
      return NamedPath{json["name"], json["path"]};
    }
    return InvalidArgument("--lora-modules: expected a JSON object with the strings name and path, found " + text,
                           "--lora-modules");
  }
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    return InvalidArgument("--lora-modules: expected name=path, found '" + text + "'", "--lora-modules");
  }
  return NamedPath{text.substr(0, equals), text.substr(equals + 1)};
}

}  // namespace

Result<RuntimeOptions> RuntimeOptionsOf(const RuntimeFlags& flags) {
  RuntimeOptions options;
  ASSIGN_OR_RETURN(options.device_memory, Memory(flags.device_memory, "--device-memory", AutoDeviceMemory()));
  ASSIGN_OR_RETURN(options.host_memory, Memory(flags.host_memory, "--host-memory", AutoDeviceMemory()));
  ASSIGN_OR_RETURN(options.kv_dtype, DTypeFlag(flags.kv_dtype, "--kv-cache-dtype"));
  ASSIGN_OR_RETURN(options.lora_dtype, DTypeFlag(flags.lora_dtype, "--lora-dtype"));
  ASSIGN_OR_RETURN(options.lora_variant, VariantFlag(flags.lora_variant));
  RETURN_IF_ERROR(CheckRange(flags.max_num_seqs, 1, 65536, "--max-num-seqs"));
  RETURN_IF_ERROR(CheckRange(flags.max_num_batched_tokens, 1, 1 << 20, "--max-num-batched-tokens"));
  RETURN_IF_ERROR(CheckRange(flags.prefill_chunk, 1, 1 << 20, "--prefill-chunk"));
  RETURN_IF_ERROR(CheckRange(flags.max_lora_rank, 1, 4096, "--max-lora-rank"));
  RETURN_IF_ERROR(CheckRange(flags.max_loras, 0, 1 << 20, "--max-loras"));
  RETURN_IF_ERROR(CheckRange(flags.max_model_len, 0, 1 << 24, "--max-model-len"));
  RETURN_IF_ERROR(CheckRange(flags.threads, 0, 1024, "--threads"));
  const std::int64_t pages = flags.page_tokens;
  if (pages != 0 && pages != 4 && pages != 8 && pages != 16 && pages != 32 && pages != 64) {
    return InvalidArgument("--page-tokens: expected 4, 8, 16, 32 or 64 (0: automatic), found " + std::to_string(pages),
                           "--page-tokens");
  }
  options.page_tokens = pages;
  options.max_lora_rank = flags.max_lora_rank;
  options.max_model_len = flags.max_model_len;
  options.cache = flags.cache;
  options.adapter_prefetch = flags.adapter_prefetch;
  options.prefix_cache = flags.prefix_cache;
  options.threads = flags.threads;
  options.scheduler.max_running = flags.max_num_seqs;
  options.scheduler.max_batch_tokens = flags.max_num_batched_tokens;
  options.scheduler.prefill_chunk = flags.prefill_chunk;
  options.scheduler.max_distinct_adapters = flags.max_loras;
  ASSIGN_OR_RETURN(options.scheduler.fairness, FairnessFlags(flags));
  RETURN_IF_ERROR(ApplyScheduleFlags(flags.schedule, options));
  options.base_names = flags.served_model_names;
  if (options.base_names.empty()) {
    // The directory's own name, and the path as it was written: readiness probes use either.
    const fs::path path = fs::path(flags.model_dir).lexically_normal();
    options.base_names.push_back((path.has_filename() ? path : path.parent_path()).filename().string());
    if (options.base_names[0] != flags.model_dir) options.base_names.push_back(flags.model_dir);
  }
  return options;
}

void AddRuntimeFlags(CLI::App& command, RuntimeFlags& flags) {
  command.add_option("model", flags.model_dir, "Hugging Face model directory (config.json, *.safetensors, tokenizer.json)")
      ->required();
  const std::string adapters = "Adapters", memory = "Memory", batching = "Batching", machine = "Machine";
  command.add_option("--lora-modules", flags.lora_modules, "Adapters to serve: name=path ... (or JSON {\"name\",\"path\"})")
      ->group(adapters);
  command.add_option("--adapter-dir", flags.adapter_dir,
                     "Serve every PEFT adapter in DIR/*/ under its folder's name (serve: found while running)")
      ->group(adapters);
  command.add_option("--max-lora-rank", flags.max_lora_rank, "Refuse adapters of a higher rank")->group(adapters)
      ->capture_default_str();
  command.add_option("--max-loras", flags.max_loras, "At most so many different adapters in one batch (0: bytes decide)")
      ->group(adapters)->capture_default_str();
  command.add_option("--max-cpu-loras", flags.max_cpu_loras,
                     "Accepted for compatibility: --host-memory bounds the host tier in bytes")->group(adapters);
  command.add_option("--lora-dtype", flags.lora_dtype, "Adapters in memory: auto, f32, bf16, f16")->group(adapters)
      ->capture_default_str();
  command.add_option("--lora-variant", flags.lora_variant,
                     "Batched LoRA at true ranks (mbgmv) or padded to the batch's largest (bgmv)")->group(adapters)
      ->capture_default_str();
  command.add_option("--device-memory", flags.device_memory,
                     "Page pool for KV cache and adapters, e.g. 2GiB (auto: a quarter of the machine's, at most 8 GiB)")
      ->group(memory)->capture_default_str();
  command.add_option("--host-memory", flags.host_memory, "Host tier that keeps evicted adapters, e.g. 4GiB; 0: none")
      ->group(memory)->capture_default_str();
  command.add_option("--page-tokens", flags.page_tokens, "Positions a page: 4, 8, 16, 32, 64 (0: automatic)")
      ->group(memory)->capture_default_str();
  command.add_option("--kv-cache-dtype", flags.kv_dtype, "Keys and values: auto (the weights' type), f32, bf16, f16")
      ->group(memory)->capture_default_str();
  std::string regimes;
  for (const CacheRegime& regime : CacheRegimes()) regimes += (regimes.empty() ? "" : ", ") + std::string(regime.name);
  command.add_option("--cache,--eviction", flags.cache, "What is kept, and what gives way: " + regimes)->group(memory)
      ->capture_default_str();
  command.add_option("--adapter-prefetch", flags.adapter_prefetch,
                     "Load adapters before they are asked for: none, or those whose histogram of idle times says so (histogram)")
      ->group(memory)->capture_default_str();
  command.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", flags.prefix_cache,
                   "Use keys and values of earlier requests with the same adapter content and first tokens (default: on)")
      ->group(memory);
  command.add_option("--max-model-len", flags.max_model_len, "Positions of a sequence (0: the model's own limit)")
      ->group(batching)->capture_default_str();
  command.add_option("--max-num-seqs", flags.max_num_seqs, "Requests in a batch")->group(batching)
      ->capture_default_str();
  command.add_option("--max-num-batched-tokens", flags.max_num_batched_tokens, "Tokens computed in one step")
      ->group(batching)->capture_default_str();
  command.add_option("--prefill-chunk", flags.prefill_chunk, "Prompt tokens of one request in one step")
      ->group(batching)->capture_default_str();
  command.add_option("--served-model-name", flags.served_model_names, "Names of the base model (default: its folder's)");
  command.add_option("--threads", flags.threads, "Kernel threads (0: one per processor)")->group(machine)
      ->capture_default_str();
  command.add_option("--log-level", flags.log_level, "trace, debug, info, warn, error, off")->group(machine)
      ->capture_default_str();
  command.add_option("--log-format", flags.log_format, "text (a line a record) or json (an object a line)")->group(machine)
      ->capture_default_str()->check(CLI::IsMember({"text", "json"}));
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
    if (fs::exists(it->path() / "adapter_config.json", ignored)) {
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

Result<std::unique_ptr<Runtime>> StartRuntime(const RuntimeFlags& flags) {
  RETURN_IF_ERROR(InitLogging(flags.log_level, flags.log_format));
  ASSIGN_OR_RETURN(RuntimeOptions options, RuntimeOptionsOf(flags));
  ASSIGN_OR_RETURN(const std::vector<NamedPath> adapters, AdaptersOf(flags));
  ProgressBar weights("loading weights", "MiB", 1 << 20);
  ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime,
                   Runtime::Load(flags.model_dir, std::move(options),
                                 [&](std::int64_t done, std::int64_t total) { weights.Update(done, total); }));
  weights.Finish();
  ProgressBar registered("checking adapters", "", 1);
  std::int64_t done = 0;
  for (const NamedPath& adapter : adapters) {
    auto version = runtime->registry().Register(adapter.name, adapter.path, runtime->clock().UnixSeconds());
    if (!version.ok()) {
      return Error{version.error().code, "adapter '" + adapter.name + "': " + version.error().message, adapter.name};
    }
    registered.Update(++done, static_cast<std::int64_t>(adapters.size()));
  }
  registered.Finish();
  const PageGeometry& geometry = runtime->geometry();
  const EngineStats stats = runtime->engine().Stats();
  spdlog::info("model {}: {} of weights; pages of {} ({} positions); device {} pages = {}, host {} pages = {}; {} adapters",
               flags.model_dir, FormatBytes(runtime->model().weights().Bytes()), FormatBytes(geometry.page_bytes),
               geometry.kv.page_tokens, stats.device.capacity_pages,
               FormatBytes(stats.device.capacity_pages * geometry.page_bytes), stats.host.capacity_pages,
               FormatBytes(stats.host.capacity_pages * geometry.page_bytes), adapters.size());
  return runtime;
}

}  // namespace loramux
