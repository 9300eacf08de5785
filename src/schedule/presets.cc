#include "schedule/presets.h"

#include <algorithm>
#include <array>
#include <string>

namespace loramux {
namespace {

// Without chunked prefill: the most tokens of several prompts in a step.
constexpr std::int64_t kWholePromptTokens = 4096;

// S-LoRA admits requests after every tenth decoding step (max_wait_tokens of its RouterManager), with all loads that
// they need. Chameleon's scheduler runs "on every decode iteration" (4.1).
constexpr std::int64_t kSLoraDecodeTurns = 10;

// A load moves the tensor with both matrices of all targets once for A and once for B (load_lora_A, load_lora_B of
// S-LoRA's infer_adapter.py). The comment there says that the copies on the device take about 3 ms. The host's work is
// taken from three of S-LoRA's published runs, and experiment sl-1 tests it with ten others. A layer: those with the
// fewest running requests, 43.1 ms a token for 32 layers on an A10G, 57.5 ms for 40 on an A100, of which prompts are
// some 5 %. A request: the one with the most, 77.9 ms a token for 200 requests of a 7B model on an A100.
constexpr ProgramCosts kSLoraProgram = {
    .link_passes = 2, .load_seconds = 3e-3, .layer_seconds = 1.3e-3, .request_seconds = 0.1e-3};

// With lanes, the quotas reserve what requests are predicted to need (Chameleon 4.3). Without, admission is S-LoRA's.
constexpr Preset SLora(std::string_view name, std::string_view what, std::string_view cache, std::string_view queue,
                       RequestSizeForm form = RequestSizeForm::kProduct) {
  return {.name = name,
          .what = what,
          .cache = cache,
          .queue = queue,
          .keep_history = false,
          .chunked_prefill = false,
          .max_loads_in_flight = 256,
          .shape = {.cold_start = ColdStart::kHold,
                    .separate_phases = true,
                    .decode_turns = queue.starts_with("mlq") ? 1 : kSLoraDecodeTurns},
          .size_form = form,
          .reserve_output = !queue.starts_with("mlq"),
          .program = kSLoraProgram};
}

// An admitted request waits for its adapter, and the whole step waits with it (AdapterPool.ensure_loaded). The number
// of loads is not bounded.
constexpr Preset VllmLora(std::string_view name, std::string_view what, std::string_view queue,
                          std::int64_t prefetch_lookahead = 0, std::int64_t max_distinct_adapters = 0) {
  return {.name = name,
          .what = what,
          .cache = "vllm",
          .queue = queue,
          .max_loads_in_flight = 256,
          .max_distinct_adapters = max_distinct_adapters,
          .shape = {
              .cold_start = ColdStart::kStall, .prefetch_lookahead = prefetch_lookahead, .skip_beyond_distinct = true}};
}

constexpr Preset FastLibra(std::string_view name, std::string_view what) {
  return {.name = name, .what = what, .cache = name, .cold_start_policy = ColdStartPolicy::kWait};
}

// CaraServe and its baselines compute prompts whole. They measure cold starts, so an adapter is evicted with its last
// request.
constexpr Preset CaraServe(std::string_view name, std::string_view what, ColdStart cold_start,
                           ColdStartPolicy policy = ColdStartPolicy::kWait) {
  return {.name = name,
          .what = what,
          .cache = "s-lora",
          .keep_history = false,
          .chunked_prefill = false,
          .max_loads_in_flight = 256,
          .shape = {.cold_start = cold_start},
          .cold_start_policy = policy};
}

constexpr Preset Cached(Preset preset) {
  preset.cache = "lru";
  preset.all_on_device = true;
  return preset;
}

constexpr std::array kPresets = std::to_array<Preset>({
    {.name = "loramux",
     .what = "loramux: one memory pool, eviction by delay saved per page, deadline-aware order for a TTFT objective",
     .cache = "loramux",
     .queue = "objective",
     .spread_prompts = true,
     .load_on_arrival = true,
     .prompts_by_objective = true,
     .fair = true},
    {.name = "loramux-mlq",
     .what = "loramux with Chameleon's lanes in place of its queue order",
     .cache = "loramux",
     .queue = "mlq",
     .spread_prompts = true,
     .load_on_arrival = true,
     .fair = true},
    // Chameleon is based on S-LoRA: whole prompts, in steps of their own; no history of keys and values. "Before it
    // sends the batch to the GPU, the scheduler also loads any missing adapters required by the requests in the
    // batch" (section 2).
    SLora("s-lora", "S-LoRA: first come, first served; an adapter is evicted when its last request ends", "s-lora",
          "fifo"),
    SLora("s-lora-sjf", "S-LoRA with uServe's shortest-job-first order", "s-lora", "sjf"),
    SLora("chameleon", "Chameleon: adapter cache, and lanes with quotas", "chameleon", "mlq"),
    SLora("chameleon-nocache", "S-LoRA with Chameleon's lanes, without its cache", "s-lora", "mlq"),
    SLora("chameleon-nosched", "S-LoRA with Chameleon's cache, without its lanes", "chameleon", "fifo"),
    SLora("chameleon-lru", "Chameleon with LRU eviction", "lru", "mlq"),
    SLora("chameleon-fairshare", "Chameleon with FairShare eviction", "fairshare", "mlq"),
    SLora("chameleon-gdsf", "Chameleon with GDSF eviction", "gdsf", "mlq"),
    SLora("chameleon-static", "Chameleon with four lanes of equal size ranges", "chameleon", "mlq-static"),
    SLora("chameleon-output-only", "Chameleon, request size by predicted output alone", "chameleon", "mlq",
          RequestSizeForm::kOutputOnly),
    SLora("chameleon-sum", "Chameleon, request size as a weighted sum", "chameleon", "mlq", RequestSizeForm::kSum),
    {.name = "vllm",
     .what = "vLLM as FastLibra configures it: a fifth of the memory for adapters; LRU eviction in each part",
     .cache = "vllm",
     .cold_start_policy = ColdStartPolicy::kWait},
    FastLibra("fastlibra", "FastLibra: dependency tree, and eviction by its cost model"),
    FastLibra("fastlibra-wom", "FastLibra without dependency maintenance"),
    FastLibra("fastlibra-wos", "FastLibra with LRU in place of its cost model"),
    FastLibra("fastlibra-wol", "FastLibra without the reward for enough adapters"),
    VllmLora("vllm-lora-fifo", "vLLM-LoRA, strategy 1: first come, first served; steps wait for loads", "fifo"),
    VllmLora("vllm-lora-residency", "vLLM-LoRA, strategy 2: device-resident adapters first", "residency"),
    VllmLora("vllm-lora-prefetch",
             "vLLM-LoRA, strategy 3: strategy 2, and loads for the next 10 requests during a step", "residency", 10),
    VllmLora("vllm-lora-batch32", "vLLM-LoRA, strategy 4: strategy 3, and at most 32 adapters per batch", "residency",
             10, 32),
    CaraServe("ondmd", "CaraServe's ONDMD: each step waits for the adapters of the requests that join it",
              ColdStart::kStall),
    CaraServe("caraserve", "CaraServe: until an adapter arrives, the CPU computes its part of the step",
              ColdStart::kPassOver, ColdStartPolicy::kAssist),
    Cached(CaraServe("cached", "CaraServe's CACHED: all adapters are on the device from the start (simulated only)",
                     ColdStart::kPassOver)),
    // Presets that differ only in the queue order.
    {.name = "fifo", .what = "LRU eviction; first come, first served", .cache = "lru"},
    {.name = "sjf",
     .what = "LRU eviction; shortest predicted output first, with aging",
     .cache = "lru",
     .queue = "sjf"},
    {.name = "residency", .what = "LRU eviction; device-resident adapters first", .cache = "lru", .queue = "residency"},
    {.name = "objective",
     .what = "LRU eviction; deadline-aware: minimises requests that miss the TTFT objective",
     .cache = "lru",
     .queue = "objective"},
    {.name = "mlq", .what = "LRU eviction; Chameleon's lanes with quotas", .cache = "lru", .queue = "mlq"},
    {.name = "mlq-static",
     .what = "LRU eviction; four lanes of equal size ranges",
     .cache = "lru",
     .queue = "mlq-static"},
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

void ApplySettings(const SystemSettings& settings, SystemSpec& scheduler, QueueOrderOptions& queue) {
  scheduler.max_running = settings.max_running;
  scheduler.max_batch_tokens = settings.max_batch_tokens;
  scheduler.prefill_chunk = settings.prefill_chunk.value_or(settings.max_batch_tokens);
  scheduler.age_bound = queue.age_bound = settings.age_bound;
  scheduler.fairness.max_wait = settings.fairness_max_wait;
  queue.objective = queue.lanes.slo = settings.objective;
  queue.lanes.count_cached = settings.count_cached;
  scheduler.max_decode_step = settings.max_decode_step;
}

void ComputePromptsWhole(std::int64_t max_model_len, SystemSpec& scheduler, std::int64_t together) {
  scheduler.whole_prompt_tokens = together > 0 ? together : kWholePromptTokens;
  scheduler.prefill_chunk = max_model_len;
  scheduler.max_batch_tokens = std::max(max_model_len, scheduler.whole_prompt_tokens) + scheduler.max_running;
}

void ApplyPreset(const Preset& preset, std::int64_t max_model_len, SystemSpec& scheduler, QueueOrderOptions& queue) {
  ApplyRegime(FindCacheRegime(preset.cache).value(), scheduler);
  ApplyPresetOrder(preset, scheduler, queue);
  if (!preset.chunked_prefill) ComputePromptsWhole(max_model_len, scheduler, preset.whole_prompt_tokens);
  queue.age_bound = scheduler.age_bound;
}

void ApplyPresetOrder(const Preset& preset, SystemSpec& scheduler, QueueOrderOptions& queue) {
  scheduler.lookahead = preset.lookahead;
  scheduler.max_loads_in_flight = preset.max_loads_in_flight;
  scheduler.max_distinct_adapters = preset.max_distinct_adapters;
  scheduler.spread_prompts = preset.spread_prompts;
  scheduler.load_on_arrival = preset.load_on_arrival;
  scheduler.prompts_by_objective = preset.prompts_by_objective;
  scheduler.shape = preset.shape;
  scheduler.reserve_output = preset.reserve_output;
  if (preset.reserve_output) scheduler.discard_share = 0;
  scheduler.cold_start_policy = preset.cold_start_policy.value_or(scheduler.cold_start_policy);
  scheduler.fairness.policy = preset.fair ? FairnessPolicy::kVtc : FairnessPolicy::kNone;
  queue.name = preset.queue;
  queue.lanes.form = preset.size_form;
}

void ApplyConstants(const DocumentConstants& constants, SystemSpec& scheduler, QueueOrderOptions& queue) {
  scheduler.score_weights = constants.score;
  scheduler.expectation = constants.expectation;
  scheduler.swapping = constants.swapping;
  scheduler.batch_window = constants.batch_window;
  scheduler.shape.prefetch_lookahead = constants.prefetch_lookahead.value_or(scheduler.shape.prefetch_lookahead);
  scheduler.max_distinct_adapters = constants.adapters_in_batch.value_or(scheduler.max_distinct_adapters);
  queue.lanes.input_weight = constants.input_weight;
  queue.lanes.output_weight = constants.output_weight;
  queue.lanes.most_lanes = static_cast<std::int32_t>(constants.most_lanes);
  queue.lanes.refresh = constants.lane_refresh;
}

}  // namespace loramux
