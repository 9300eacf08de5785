// The table of the settings of a system: a row for each field of SystemSpec. Flags, configuration file, environment and
// reference (tools/system_flags.h), recordings (record/recording_setup.h) and the comparison of two systems are loops
// over it.
#pragma once

#include <array>
#include <string_view>

#include "schedule/setting.h"
#include "schedule/system_spec.h"

namespace loramux {

namespace setting_names {
inline constexpr std::array<std::string_view, 4> kColdStart = {"pass-over", "hold", "stall", "overlap"};
inline constexpr std::array<std::string_view, 2> kAdapterBound = {"running", "step"};
inline constexpr std::array<std::string_view, 2> kPoolFull = {"wait", "refuse"};
inline constexpr std::array<std::string_view, 3> kColdStartPolicy = {"wait", "assist", "auto"};
inline constexpr std::array<std::string_view, 2> kSwapOut = {"ahead", "evicted"};
inline constexpr std::array<std::string_view, 3> kHostCopies = {"loaded", "registered", "always"};
inline constexpr std::array<std::string_view, 2> kSpeculation = {"none", "ngram"};
inline constexpr std::array<std::string_view, 2> kFairness = {"none", "vtc"};
inline constexpr std::array<std::string_view, 2> kPrefetch = {"none", "histogram"};
inline constexpr std::array<std::string_view, 3> kRequestSize = {"product", "sum", "output"};
inline constexpr std::array<std::string_view, 2> kLaneCount = {"worth-it", "least-squares"};
inline constexpr std::array<std::string_view, 3> kCountCached = {"everywhere", "quota", "nowhere"};
}  // namespace setting_names

// The table: every field but the weights of tenants and the costs. Commands list the flags of a group in this order.
inline constexpr auto kSettings = [] {
  using namespace setting_names;
  using S = SystemSpec;
  constexpr double kTokens = 1 << 24, kCount = 1 << 20, kNs = 1e15;  // the most of each; 1e15 ns: 11 days
  return std::to_array<Setting>({
      Row<&S::cold_start_policy>("cold_start_policy")
          .Names(kColdStartPolicy)
          .Flag(SettingGroup::kAdapters, "--cold-start", "WHEN",
                "When a request begins whose adapter is in memory but not on the device: wait until it is there, "
                "assist (at once, computed from memory meanwhile) or auto (whichever is sooner)")
          .Shown("auto")
          .InPresets(),
      Row<&S::max_distinct_adapters>("max_distinct_adapters", {0, kCount})
          .Flag(SettingGroup::kAdapters, "--max-loras", "N",
                "Upper bound on different adapters in one batch (vLLM-LoRA: 32); 0: bounded by memory only",
                {0, kCount})
          .InPresets(),
      Row<&S::cache>("cache")
          .Flag(SettingGroup::kMemory, "--cache,--eviction", "NAME",
                "Cache regime, which decides what stays in memory and what is evicted first")
          .InPresets(),
      Row<&S::adapter_share>("adapter_share", {0, 0.95})
          .Flag(SettingGroup::kMemory, "--adapter-share", "SHARE",
                "Share of the device's pages reserved for adapters; keys and values have the rest", {0, 0.95})
          .Shown("that of --cache: 0.2 for vllm, else one pool for both"),
      Row<&S::adapter_bytes>("adapter_bytes", {0, 1e15})
          .Flag(SettingGroup::kMemory, "--adapter-memory", "BYTES",
                "The same in bytes, in place of a share (vLLM-LoRA: 12GiB)", {0, 1e15})
          .Shown("a share, or one pool for both"),
      Row<&S::pool_full>("pool_full")
          .Names(kPoolFull)
          .Flag(SettingGroup::kMemory, "--adapter-pool-full", "WHAT",
                "What becomes of a request that could begin, but whose adapter finds no room because requests use all "
                "that are there: wait, or refuse (an error with status 503: vLLM-LoRA's AdapterPoolExhaustedError)"),
      Row<&S::host_copies>("host_copies")
          .Names(kHostCopies)
          .Flag(SettingGroup::kMemory, "--adapters-in-host", "WHICH",
                "Adapters with a copy in the host tier: loaded (a load leaves it there), registered (those that are "
                "registered are read there too, in the background, where pages are free) or always (as registered, "
                "but history gives way, and the copies stay until their adapters are unloaded)")
          .InPresets(),
      Row<&S::adapter_prefetch>("adapter_prefetch")
          .Names(kPrefetch)
          .Flag(SettingGroup::kMemory, "--adapter-prefetch", "POLICY",
                "Load adapters before a request asks for them: none, or histogram (by each adapter's history of idle "
                "times)"),
      Row<&S::keep_history>("prefix_cache")
          .Flag(SettingGroup::kMemory, "--enable-prefix-caching,!--no-enable-prefix-caching", "",
                "Reuse keys and values of earlier requests that had the same adapter content and the same first tokens")
          .Shown("on")
          .InPresets(),
      Row<&S::state_snapshot_tokens>("state_snapshot_tokens", {0, kTokens})
          .Flag(SettingGroup::kMemory, "--state-snapshot-tokens", "N",
                "Tokens after which the states of a sequence are kept for its prefix (layers of linear attention), "
                "beside where a prompt ends and where it parts from another. The number to begin with: it follows the "
                "reuse observed, up to an eighth or eight times. 0: no prefix is cached for such models",
                {0, kTokens}),
      Row<&S::max_running>("max_running", {1, kCount})
          .Flag(SettingGroup::kBatching, "--max-num-seqs", "N", "Requests in one batch", {1, 65536}),
      Row<&S::max_batch_tokens>("max_batch_tokens", {1, kTokens})
          .Flag(SettingGroup::kBatching, "--max-num-batched-tokens", "TOKENS", "Tokens computed in one step",
                {1, kCount})
          .Shown("512, or as many as a preset with whole prompts needs"),
      Row<&S::prefill_chunk>("prefill_chunk", {1, kTokens})
          .Flag(SettingGroup::kBatching, "--prefill-chunk", "TOKENS",
                "Prompt tokens of one request that one step computes", {1, kCount})
          .Shown("a whole step, or whole prompts, as the preset has it; of a server without a preset 256"),
      Row<&S::speculation, &SpeculationOptions::method>("speculation")
          .Names(kSpeculation)
          .Flag(
              SettingGroup::kBatching, "--speculate", "METHOD",
              "Guess the next tokens of answers and verify several in one step: none, or ngram (what followed when the "
              "last tokens occurred before, in the request or in the adapter's last answers), or vLLM's JSON for "
              "that. Answers are the same")
          .Only(SettingUse::kServe),
      Row<&S::speculation, &SpeculationOptions::draft_tokens>("draft_tokens", {1, 64})
          .Flag(SettingGroup::kBatching, "--draft-tokens", "TOKENS",
                "With --speculate: the most tokens guessed for a request in one step", {1, 64})
          .Only(SettingUse::kServe),
      Row<&S::speculation, &SpeculationOptions::least_ngram>("least_ngram", {1, 64})
          .Flag(SettingGroup::kBatching, "--draft-ngram-min", "TOKENS",
                "With --speculate: the fewest last tokens that must have occurred before", {1, 64})
          .Only(SettingUse::kServe),
      Row<&S::speculation, &SpeculationOptions::most_ngram>("most_ngram", {1, 64})
          .Flag(SettingGroup::kBatching, "--draft-ngram-max", "TOKENS",
                "With --speculate: how many last tokens are compared at most; the place where most agree counts",
                {1, 64})
          .Only(SettingUse::kServe),
      Row<&S::queue>("queue")
          .Flag(SettingGroup::kOrder, "--schedule", "ORDER", "Order in which waiting requests of a tenant are admitted")
          .InPresets(),
      Row<&S::age_bound>("age_bound", {1, kNs})
          .Flag(SettingGroup::kOrder, "--age-bound", "SECONDS",
                "Seconds after which a waiting request is served first within its tenant, in any order",
                {0.1, 86400.0}),
      Row<&S::overdue_first>("overdue_first")
          .Flag(SettingGroup::kOrder, "--overdue-first,!--no-overdue-first", "",
                "Requests that have waited longer than the age bound go before all others; off: mlq admits by lanes "
                "and quotas alone (Chameleon's algorithm 1)")
          .Shown("on, but with the presets of Chameleon")
          .InPresets(),
      Row<&S::objective>("ttft_objective", {1, kNs})
          .Flag(SettingGroup::kOrder, "--ttft-objective", "SECONDS",
                "Time to first token that --schedule objective aims at: it minimises requests that miss it. Lanes of "
                "mlq have their quotas by it",
                {0.001, 86400.0})
          .Only(SettingUse::kServe),
      Row<&S::max_decode_step>("max_decode_step", {0, kNs})
          .Flag(SettingGroup::kOrder, "--max-decode-step", "SECONDS",
                "Bounds batches by time instead of adapters: a request is admitted only if a step that decodes it with "
                "all that run is predicted to take at most so long, by keys and values and by the ranks of the "
                "adapters. Prompts come on top of it; 0: no bound",
                {0, 86400.0}),
      Row<&S::request_size>("size_form")
          .Names(kRequestSize)
          .Flag(
              SettingGroup::kOrder, "--request-size", "FORM",
              "Size of a request for mlq: product or sum of input, predicted output and adapter size, or output alone")
          .InPresets(),
      Row<&S::lane_count>("lane_count_rule")
          .Names(kLaneCount)
          .Flag(SettingGroup::kOrder, "--lane-count", "RULE",
                "Number of mlq lanes: worth-it adds a lane while it pays, least-squares follows Chameleon (nearly "
                "always 4)")
          .InPresets(),
      Row<&S::count_cached>("count_cached")
          .Names(kCountCached)
          .Flag(SettingGroup::kOrder, "--count-cached", "WHERE",
                "Where mlq counts prompt tokens that the cache has when a request arrives: everywhere (in its size and "
                "against its lane's quota), quota (not in its size) or nowhere"),
      Row<&S::length_predictor>("length_predictor")
          .Flag(SettingGroup::kOrder, "--length-predictor", "NAME",
                "Source of predicted output lengths: history (per adapter, kept in --state-dir), proxy (a model that "
                "reads the prompt) or none")
          .Only(SettingUse::kServe),
      Row<&S::fairness, &FairnessOptions::policy>("fairness")
          .Names(kFairness)
          .Flag(SettingGroup::kFairness, "--fairness", "POLICY",
                "Order among tenants: vtc serves the tenant that received the least service; none serves in order of "
                "arrival")
          .InPresets(),
      Row<&S::fairness, &FairnessOptions::max_wait>("fairness_max_wait", {0, kNs})
          .Flag(SettingGroup::kFairness, "--fairness-max-wait", "SECONDS",
                "Time without service after which a tenant is served next, whatever it received before", {0, 86400.0}),
      Row<&S::score_weights, &ScoreWeights::frequency>("score_frequency", {0, 1e6})
          .Flag(SettingGroup::kDocuments, "--score-frequency", "WEIGHT",
                "F of the score of --cache chameleon (Chameleon 4.2)", {0, 1e6}),
      Row<&S::score_weights, &ScoreWeights::recency>("score_recency", {0, 1e6})
          .Flag(SettingGroup::kDocuments, "--score-recency", "WEIGHT", "R of that score", {0, 1e6}),
      Row<&S::score_weights, &ScoreWeights::size>("score_size", {0, 1e6})
          .Flag(SettingGroup::kDocuments, "--score-size", "WEIGHT", "S of that score", {0, 1e6}),
      Row<&S::usage_window>("usage_window", {1e6, kNs})
          .Flag(SettingGroup::kDocuments, "--usage-window", "SECONDS",
                "Time over which uses count: the window of --cache chameleon and fairshare (\"within a specific time "
                "frame\", Chameleon 4.2), the half-life of visits with the others",
                {0.001, 86400}),
      Row<&S::size_input_weight>("size_input_weight", {0, 1e6})
          .Flag(SettingGroup::kDocuments, "--size-input-weight", "WEIGHT",
                "A of the weighted request size of mlq (Chameleon 4.3.1)", {0, 1e6}),
      Row<&S::size_output_weight>("size_output_weight", {0, 1e6})
          .Flag(SettingGroup::kDocuments, "--size-output-weight", "WEIGHT", "B of that size", {0, 1e6}),
      Row<&S::most_lanes>("most_lanes", {1, kMaxLanes})
          .Flag(SettingGroup::kDocuments, "--most-lanes", "N", "K_max: the most lanes of mlq (Chameleon 4.3.4)",
                {1, kMaxLanes}),
      Row<&S::lane_refresh>("lane_refresh", {1, kNs})
          .Flag(SettingGroup::kDocuments, "--lane-refresh", "SECONDS",
                "T_refresh: time after which lanes are fitted again (Chameleon 4.3.4)", {0.001, 86400}),
      Row<&S::expectation, &ExpectationOptions::bin>("expect_bin", {1e6, kNs})
          .Flag(SettingGroup::kDocuments, "--expect-bin", "SECONDS",
                "Width of the 240 bins of --adapter-prefetch histogram; 60 in Shahrad et al.", {0.001, 3600}),
      Row<&S::expectation, &ExpectationOptions::least_variation>("expect_variation", {0, 1e3})
          .Flag(SettingGroup::kDocuments, "--expect-variation", "RATIO",
                "Least coefficient of variation of the bins' counts for which an adapter is expected (Shahrad et al.)",
                {0, 1000}),
      Row<&S::swapping, &SwapThresholds::upper>("swap_upper", {0, 1})
          .Flag(SettingGroup::kDocuments, "--swap-upper", "SHARE",
                "Share of the device's pages above which --cache fastlibra frees pages (FastLibra 5.3)", {0, 1}),
      Row<&S::swapping, &SwapThresholds::lower>("swap_lower", {0, 1})
          .Flag(SettingGroup::kDocuments, "--swap-lower", "SHARE", "Share below which it brings pages back", {0, 1}),
      Row<&S::swapping, &SwapThresholds::interval>("swap_interval", {1, kNs})
          .Flag(SettingGroup::kDocuments, "--swap-interval", "SECONDS",
                "Time between two looks at these thresholds (FastLibra 5.3)", {0.001, 3600}),
      Row<&S::swapping, &SwapThresholds::draw>("swap_draw", {0, 1e15}),
      Row<&S::swap_out>("swap_out")
          .Names(kSwapOut)
          .Flag(SettingGroup::kDocuments, "--swap-out", "WHEN",
                "When keys and values are copied to the host tier: ahead (those that are evicted next, once the device "
                "fills) or evicted (as FastLibra 3.2: what leaves the device is copied first)")
          .InPresets(),
      Row<&S::score_weights, &ScoreWeights::time_unit>("score_time_unit", {1e6, kNs})
          .Flag(SettingGroup::kDocuments, "--score-time-unit", "SECONDS",
                "Unit of t in 1 - sigmoid(t) of --cache fastlibra, which gives none (FastLibra 5.2)", {0.001, 86400}),
      Row<&S::batch_window>("batch_window", {1e6, kNs})
          .Flag(SettingGroup::kDocuments, "--batch-window", "SECONDS",
                "Time over which the mean batch is taken, for the number of adapters wanted (FastLibra 5.1)",
                {0.001, 3600}),
      Row<&S::prefetch_lookahead>("prefetch_lookahead", {0, kCount})
          .Flag(SettingGroup::kDocuments, "--prefetch-lookahead", "N",
                "Waiting requests whose adapters are loaded ahead, with presets whose steps wait for adapters "
                "(vLLM-LoRA: 10), and with lanes, also for requests that wait for quota (Chameleon: 64)",
                {0, kCount})
          .InPresets(),
      Row<&S::adapter_bound>("adapter_bound")
          .Names(kAdapterBound)
          .Flag(SettingGroup::kDocuments, "--max-loras-bound", "WHAT",
                "What --max-loras bounds: running (the adapters of all running requests) or step (those that one step "
                "computes; requests beyond them wait for a later step, as in vLLM-LoRA)")
          .InPresets(),
      // What presets, regimes, the model and the machine decide.
      Row<&S::page_tokens>("page_tokens", {1, 65536}),
      Row<&S::state_pages>("state_pages", {0, kCount}),
      Row<&S::chunked_prefill>("chunked_prefill"),
      Row<&S::whole_prompt_tokens>("whole_prompt_tokens", {0, kTokens}),
      Row<&S::spread_prompts>("spread_prompts"),
      Row<&S::prompts_by_objective>("prompts_by_objective"),
      Row<&S::lookahead>("lookahead", {1, kCount}),
      Row<&S::max_loads_in_flight>("max_loads_in_flight", {1, kCount}),
      Row<&S::load_on_arrival>("load_on_arrival"),
      Row<&S::cold_start>("cold_start").Names(kColdStart),
      Row<&S::separate_phases>("separate_phases"),
      Row<&S::decode_turns>("decode_turns", {0, kCount}),
      Row<&S::skip_beyond_distinct>("skip_beyond_distinct"),
      Row<&S::reads_host_tier>("reads_host_tier"),
      Row<&S::disk_by_layer>("disk_by_layer"),
      Row<&S::fairness, &FairnessOptions::prompt_token_cost>("prompt_token_cost", {0, 1e6}),
      Row<&S::fairness, &FairnessOptions::output_token_cost>("output_token_cost", {0, 1e6}),
      Row<&S::fairness, &FairnessOptions::burst>("fairness_burst", {0, 1e12}),
      Row<&S::fairness, &FairnessOptions::max_idle_tenants>("max_idle_tenants", {1, 1 << 24}),
      Row<&S::fetch_ahead>("fetch_ahead"),
      Row<&S::reserve_output>("reserve_output"),
      Row<&S::discard_share>("discard_share", {0, 1}),
      Row<&S::keep_idle_adapters>("keep_idle_adapters"),
      Row<&S::maintain_dependency>("maintain_dependency"),
      Row<&S::host_bonus>("host_bonus", {0, kNs}),
      Row<&S::proactive_swapping>("proactive_swapping"),
      Row<&S::total_tokens>("total_tokens", {1, 1e15}),
  });
}();

}  // namespace loramux
