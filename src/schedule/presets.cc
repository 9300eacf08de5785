#include "schedule/presets.h"

#include <algorithm>
#include <array>
#include <string>

namespace loramux {
namespace {

// Without chunked prefill: several prompts in a step while they have no more tokens than this together.
constexpr std::int64_t kWholePromptTokens = 4096;

constexpr Preset SLora(std::string_view name, std::string_view what, std::string_view cache, std::string_view queue,
                       RequestSizeForm form = RequestSizeForm::kProduct) {
  return {.name = name, .what = what, .cache = cache, .queue = queue, .keep_history = false, .chunked_prefill = false, .size_form = form};
}

constexpr std::array kPresets = std::to_array<Preset>({
    {.name = "loramux", .what = "ours: one pool, cost per page, lanes of like size, fair among tenants", .cache = "loramux", .queue = "mlq",
     .fair = true},
    {.name = "loramux-fifo", .what = "ours, first come, first served", .cache = "loramux", .fair = true},
    // Chameleon is built on S-LoRA: prompts whole, no history of keys and values.
    SLora("s-lora", "S-LoRA: first come, first served; an adapter leaves with its last request", "s-lora", "fifo"),
    SLora("s-lora-sjf", "S-LoRA with uServe's shortest job first", "s-lora", "sjf"),
    SLora("chameleon", "Chameleon: cache of adapters, lanes with quotas", "chameleon", "mlq"),
    SLora("chameleon-nocache", "Chameleon's lanes alone", "s-lora", "mlq"),
    SLora("chameleon-nosched", "Chameleon's cache alone", "chameleon", "fifo"),
    SLora("chameleon-lru", "Chameleon with LRU eviction", "lru", "mlq"),
    SLora("chameleon-fairshare", "Chameleon with FairShare eviction", "fairshare", "mlq"),
    SLora("chameleon-gdsf", "Chameleon with GDSF eviction", "gdsf", "mlq"),
    SLora("chameleon-static", "Chameleon with four lanes of equal ranges", "chameleon", "mlq-static"),
    SLora("chameleon-output-only", "Chameleon, sizes by predicted output alone", "chameleon", "mlq", RequestSizeForm::kOutputOnly),
    SLora("chameleon-sum", "Chameleon, sizes of degree 1", "chameleon", "mlq", RequestSizeForm::kSum),
    {.name = "vllm", .what = "vLLM as FastLibra runs it: a fifth of the memory for adapters, LRU on each side", .cache = "vllm"},
    {.name = "fastlibra", .what = "FastLibra: dependency tree and cost model", .cache = "fastlibra"},
    {.name = "fastlibra-wom", .what = "FastLibra without dependency maintenance", .cache = "fastlibra-wom"},
    {.name = "fastlibra-wos", .what = "FastLibra with LRU in place of its cost model", .cache = "fastlibra-wos"},
    {.name = "fastlibra-wol", .what = "FastLibra without the reward for enough adapters", .cache = "fastlibra-wol"},
    {.name = "vllm-lora-fifo", .what = "vLLM-LoRA, strategy 1: first come, first served, loads on demand", .cache = "vllm",
     .max_loads_in_flight = 1},
    {.name = "vllm-lora-residency", .what = "vLLM-LoRA, strategy 2: device-resident adapters first", .cache = "vllm", .queue = "residency",
     .max_loads_in_flight = 1},
    {.name = "vllm-lora-prefetch", .what = "vLLM-LoRA, strategy 3: and loads for those behind", .cache = "vllm", .queue = "residency",
     .max_loads_in_flight = 10},
    {.name = "vllm-lora-batch32", .what = "vLLM-LoRA, strategy 4: and at most 32 adapters a batch", .cache = "vllm", .queue = "residency",
     .max_loads_in_flight = 10, .max_distinct_adapters = 32},
    // One order each, all else alike.
    {.name = "fifo", .what = "LRU; first come, first served", .cache = "lru"},
    {.name = "sjf", .what = "LRU; shortest predicted output first, with aging", .cache = "lru", .queue = "sjf"},
    {.name = "residency", .what = "LRU; device-resident adapters first", .cache = "lru", .queue = "residency"},
    {.name = "mlq", .what = "LRU; lanes with quotas", .cache = "lru", .queue = "mlq"},
    {.name = "mlq-static", .what = "LRU; four lanes of equal ranges", .cache = "lru", .queue = "mlq-static"},
});

}  // namespace

std::span<const Preset> Presets() { return kPresets; }

Result<Preset> FindPreset(std::string_view name) {
  std::string valid;
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return preset;
    valid += (valid.empty() ? "" : ", ") + std::string(preset.name);
  }
  return InvalidArgument("preset: expected one of " + valid + ", found '" + std::string(name) + "'", "--preset");
}

void ApplyPreset(const Preset& preset, std::int64_t max_model_len, SchedulerOptions& scheduler, QueueOrderOptions& queue) {
  ApplyRegime(FindCacheRegime(preset.cache).value(), scheduler);
  scheduler.lookahead = preset.lookahead;
  scheduler.max_loads_in_flight = preset.max_loads_in_flight;
  scheduler.max_distinct_adapters = preset.max_distinct_adapters;
  scheduler.fairness.policy = preset.fair ? FairnessPolicy::kVtc : FairnessPolicy::kNone;
  if (!preset.chunked_prefill) {
    scheduler.whole_prompt_tokens = kWholePromptTokens;
    scheduler.prefill_chunk = max_model_len;
    scheduler.max_batch_tokens = std::max(max_model_len, kWholePromptTokens) + scheduler.max_running;
  }
  queue.name = preset.queue;
  queue.age_bound = scheduler.age_bound;
  queue.lanes.form = preset.size_form;
}

}  // namespace loramux
