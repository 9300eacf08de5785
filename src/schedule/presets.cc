#include "schedule/presets.h"

#include <string>
#include <vector>

namespace loramux {
namespace {

// S-LoRA admits requests after every tenth decoding step (max_wait_tokens of its RouterManager), with all loads that
// they need. Chameleon's scheduler runs "on every decode iteration" (4.1).
constexpr std::int64_t kSLoraDecodeTurns = 10;

// Chameleon has no bound on the requests of a queue that a step looks at (algorithm 1). More than these never wait.
constexpr std::int64_t kAllWaiting = 1 << 20;

// Chameleon "monitors the request queues and, whenever possible, prefetches the missing adapters required by the
// waiting requests" (4.2).
constexpr std::int64_t kChameleonLookahead = 64;

// A load moves the tensor with both matrices of all targets once for A and once for B (load_lora_A, load_lora_B of
// S-LoRA's infer_adapter.py). The comment there says that the copies on the device take about 3 ms. The host's work is
// taken from three of S-LoRA's published runs, and experiment sl-1 tests it with ten others. A layer: those with the
// fewest running requests, 43.1 ms a token for 32 layers on an A10G, 57.5 ms for 40 on an A100, of which prompts are
// some 5 %. A request: the one with the most, 77.9 ms a token for 200 requests of a 7B model on an A100.
constexpr ProgramCosts kSLoraProgram = {
    .link_passes = 2, .load_seconds = 3e-3, .layer_seconds = 1.3e-3, .request_seconds = 0.1e-3};

constexpr std::int64_t kFastLibraBlockTokens = 32;

// The systems of the papers have no fairness among tenants.
Preset WithoutFairness(Preset preset) {
  preset.spec.fairness.policy = FairnessPolicy::kNone;
  return preset;
}

Preset Loramux(std::string_view name, std::string_view what, std::string_view queue, bool prompts_by_objective) {
  return {.name = name,
          .what = what,
          .spec = {.queue = std::string(queue),
                   .spread_prompts = true,
                   .prompts_by_objective = prompts_by_objective,
                   .load_on_arrival = true}};
}

// With lanes, the quotas reserve what requests are predicted to need (Chameleon 4.3). Without, admission is S-LoRA's.
// Neither preempts for a waiting request ("non-preemptive", Chameleon 4.1). docs/design/to-the-letter.md names what the
// paper leaves open.
Preset SLora(std::string_view name, std::string_view what, std::string_view cache, std::string_view queue,
             RequestSizeForm size = RequestSizeForm::kProduct) {
  const bool lanes = queue.starts_with("mlq");
  return WithoutFairness({.name = name,
                          .what = what,
                          .spec = {.cache = std::string(cache),
                                   .queue = std::string(queue),
                                   .keep_history = false,
                                   .chunked_prefill = false,
                                   .lookahead = lanes ? kAllWaiting : SystemSpec().lookahead,
                                   .max_loads_in_flight = 256,
                                   .cold_start = ColdStart::kHold,
                                   .separate_phases = true,
                                   .decode_turns = lanes ? 1 : kSLoraDecodeTurns,
                                   .prefetch_lookahead = lanes ? kChameleonLookahead : 0,
                                   .overdue_first = !lanes,
                                   .request_size = size,
                                   // "picks the K that yields minimal WCSS" (4.3.4)
                                   .lane_count = LaneCountRule::kLeastSquares,
                                   .reserve_output = !lanes,
                                   .discard_share = 0},
                          .program = kSLoraProgram});
}

// "While the prompt tokens are being prefilled, the adapter weights are transferred in parallel on a separate CUDA
// stream." The number of loads is not bounded. register_adapter keeps the weights in main memory ("CPU copy always
// exists").
Preset VllmLora(std::string_view name, std::string_view what, std::string_view queue,
                std::int64_t prefetch_lookahead = 0, std::int64_t max_distinct_adapters = 0) {
  return WithoutFairness({.name = name,
                          .what = what,
                          .spec = {.cache = "vllm",
                                   .queue = std::string(queue),
                                   .max_distinct_adapters = max_distinct_adapters,
                                   .adapter_bound = AdapterBound::kStep,
                                   .max_loads_in_flight = 256,
                                   .cold_start = ColdStart::kOverlap,
                                   .prefetch_lookahead = prefetch_lookahead,
                                   .skip_beyond_distinct = true,
                                   .host_copies = HostCopies::kAlways},
                          .decides_cold_start = true});
}

// FastLibra and its variants, and vLLM as FastLibra has it: adapters are used when they are on the device. What leaves
// the device is swapped out then, by vLLM too ("offload its history KV caches and LoRAs in the main memory when the HBM
// is full", 6.1). Memory consists of blocks of 32 tokens. Main memory holds the adapters that are not on the device.
Preset FastLibra(std::string_view cache, std::string_view what) {
  return WithoutFairness({.name = cache,
                          .what = what,
                          .spec = {.cache = std::string(cache),
                                   .page_tokens = kFastLibraBlockTokens,
                                   .swap_out = SwapOut::kEvicted,
                                   .host_copies = HostCopies::kRegistered},
                          .decides_cold_start = true});
}

// CaraServe and its baselines interrupt decoding when a request arrives, compute its prompt whole, and then decode all
// together (figure 2). They measure cold starts, so an adapter is evicted with its last request.
Preset CaraServe(std::string_view name, std::string_view what, ColdStart cold_start,
                 ColdStartPolicy policy = ColdStartPolicy::kWait) {
  return WithoutFairness({.name = name,
                          .what = what,
                          .spec = {.cache = "s-lora",
                                   .keep_history = false,
                                   .chunked_prefill = false,
                                   .max_loads_in_flight = 256,
                                   .cold_start = cold_start,
                                   .separate_phases = true,
                                   .decode_turns = 0,
                                   .cold_start_policy = policy},
                          .decides_cold_start = true});
}

// One prompt a step, beside all decodes, as Punica's own scheduler: a second one never fits.
Preset Punica(Preset preset) {
  preset.spec.separate_phases = false;
  preset.spec.decode_turns = 1;
  preset.spec.whole_prompt_tokens = 1;
  return preset;
}

// A batch has the requests of one adapter: PEFT switches between adapters.
Preset HfPeft(Preset preset) {
  preset.spec.max_distinct_adapters = 1;
  return preset;
}

Preset Cached(Preset preset) {
  preset.spec.cache = "lru";
  preset.all_on_device = true;
  return preset;
}

// They differ only in the queue order.
Preset Order(std::string_view queue, std::string_view what) {
  return WithoutFairness({.name = queue, .what = what, .spec = {.cache = "lru", .queue = std::string(queue)}});
}

std::vector<Preset> MakePresets() {
  return {
      Loramux("loramux",
              "loramux: one memory pool, eviction by delay saved per page, deadline-aware order for a TTFT objective",
              "objective", /*prompts_by_objective=*/true),
      Loramux("loramux-mlq", "loramux with Chameleon's lanes in place of its queue order", "mlq",
              /*prompts_by_objective=*/false),
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
      FastLibra("vllm",
                "vLLM as FastLibra configures it: a fifth of the memory for adapters; LRU eviction in each part"),
      FastLibra("fastlibra", "FastLibra: dependency tree, and eviction by its cost model"),
      FastLibra("fastlibra-wom", "FastLibra without dependency maintenance"),
      FastLibra("fastlibra-wos", "FastLibra with LRU in place of its cost model"),
      FastLibra("fastlibra-wol", "FastLibra without the reward for enough adapters"),
      VllmLora("vllm-lora-fifo", "vLLM-LoRA, strategy 1: first come, first served; loads overlap with prompts", "fifo"),
      VllmLora("vllm-lora-residency", "vLLM-LoRA, strategy 2: device-resident adapters first", "residency"),
      VllmLora("vllm-lora-prefetch",
               "vLLM-LoRA, strategy 3: strategy 2, and loads for the next 10 requests during a step", "residency", 10),
      VllmLora("vllm-lora-batch32", "vLLM-LoRA, strategy 4: strategy 3, and at most 32 adapters in a step", "residency",
               10, 32),
      CaraServe("ondmd", "CaraServe's ONDMD: each step waits for the adapters of the requests that join it",
                ColdStart::kStall),
      CaraServe("caraserve", "CaraServe: until an adapter arrives, the CPU computes its part of the step",
                ColdStart::kPassOver, ColdStartPolicy::kAssist),
      Cached(CaraServe("cached", "CaraServe's CACHED: all adapters are on the device from the start (simulated only)",
                       ColdStart::kPassOver)),
      Punica(CaraServe("punica",
                       "Punica in CaraServe's table 1: a request waits for its adapter, which loads beside steps",
                       ColdStart::kPassOver)),
      Cached(HfPeft(CaraServe("hf-peft",
                              "HF-PEFT in CaraServe's table 1: all adapters are on the device, and a batch has one "
                              "(simulated only)",
                              ColdStart::kPassOver))),
      Order("fifo", "LRU eviction; first come, first served"),
      Order("sjf", "LRU eviction; shortest predicted output first, with aging"),
      Order("residency", "LRU eviction; device-resident adapters first"),
      Order("objective", "LRU eviction; deadline-aware: minimises requests that miss the TTFT objective"),
      Order("mlq", "LRU eviction; Chameleon's lanes with quotas"),
      Order("mlq-static", "LRU eviction; four lanes of equal size ranges"),
  };
}

}  // namespace

std::span<const Preset> Presets() {
  static const std::vector<Preset> presets = MakePresets();
  return presets;
}

Result<Preset> FindPreset(std::string_view name) {
  std::string valid;
  for (const Preset& preset : Presets()) {
    if (preset.name == name) return preset;
    valid += (valid.empty() ? "" : ", ") + std::string(preset.name);
  }
  return InvalidArgument("preset: expected one of " + valid + ", found '" + std::string(name) + "'", "--preset");
}

}  // namespace loramux
