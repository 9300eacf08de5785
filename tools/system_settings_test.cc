// `serve` and `simulate` mean the same by the same flags.
#include <gtest/gtest.h>

#include "runtime/choose_device.h"
#include "simulate/simulated_server.h"
#include "tools/idle_flags.h"
#include "tools/runtime_flags.h"
#include "tools/system_flags.h"

namespace loramux::system_settings_test {
namespace {

struct Made {
  SystemSpec scheduler;
  QueueOrderOptions queue;
};

// What the server makes of the flags when it starts (Runtime), with the model's longest sequence.
Made Served(const RuntimeFlags& flags, std::int64_t max_model_len) {
  RuntimeOptions options = RuntimeOptionsOf(flags).value();
  if (options.whole_prompts) ComputePromptsWhole(max_model_len, options.scheduler);
  ApplyRegime(FindCacheRegime(options.cache).value(), options.scheduler);
  return {options.scheduler, options.queue};
}

// What the simulator makes of the same settings.
Made Simulated(SimulationOptions options, std::string_view preset, std::string_view queue, std::int64_t max_model_len) {
  options.preset = FindPreset(preset).value();
  if (!queue.empty()) options.preset.queue = queue;
  Made made;
  made.scheduler = SpecOf(options, {.max_model_len = max_model_len}, made.queue);
  return made;
}

// Left out are: the ridge and the policy for cold starts, of which only the simulator knows a data sheet and only the
// server an executor; the size of a page and of the memory.
void ExpectSame(const Made& served, const Made& simulated) {
  const SystemSpec &a = served.scheduler, &b = simulated.scheduler;
  EXPECT_EQ(a.max_running, b.max_running);
  EXPECT_EQ(a.max_batch_tokens, b.max_batch_tokens);
  EXPECT_EQ(a.prefill_chunk, b.prefill_chunk);
  EXPECT_EQ(a.whole_prompt_tokens, b.whole_prompt_tokens);
  EXPECT_EQ(a.spread_prompts, b.spread_prompts);
  EXPECT_EQ(a.prompts_by_objective, b.prompts_by_objective);
  EXPECT_EQ(a.max_distinct_adapters, b.max_distinct_adapters);
  EXPECT_EQ(a.max_decode_step, b.max_decode_step);
  EXPECT_EQ(a.lookahead, b.lookahead);
  EXPECT_EQ(a.max_loads_in_flight, b.max_loads_in_flight);
  EXPECT_EQ(a.load_on_arrival, b.load_on_arrival);
  EXPECT_EQ(a.shape.cold_start, b.shape.cold_start);
  EXPECT_EQ(a.shape.separate_phases, b.shape.separate_phases);
  EXPECT_EQ(a.shape.decode_turns, b.shape.decode_turns);
  EXPECT_EQ(a.shape.prefetch_lookahead, b.shape.prefetch_lookahead);
  EXPECT_EQ(a.fairness.policy, b.fairness.policy);
  EXPECT_EQ(a.fairness.max_wait, b.fairness.max_wait);
  EXPECT_EQ(a.fairness.burst, b.fairness.burst);
  EXPECT_EQ(a.adapter_prefetch, b.adapter_prefetch);
  EXPECT_EQ(a.age_bound, b.age_bound);
  EXPECT_EQ(a.discard_share, b.discard_share);
  EXPECT_EQ(a.adapter_share, b.adapter_share);
  EXPECT_EQ(a.keep_idle_adapters, b.keep_idle_adapters);
  EXPECT_EQ(a.proactive_swapping, b.proactive_swapping);
  EXPECT_EQ(served.queue.name, simulated.queue.name);
  EXPECT_EQ(served.queue.age_bound, simulated.queue.age_bound);
  EXPECT_EQ(served.queue.objective, simulated.queue.objective);
  EXPECT_EQ(served.queue.lanes.slo, simulated.queue.lanes.slo);
  EXPECT_EQ(served.queue.lanes.form, simulated.queue.lanes.form);
  EXPECT_EQ(served.queue.lanes.count_cached, simulated.queue.lanes.count_cached);
  EXPECT_EQ(served.queue.lanes.count_rule, simulated.queue.lanes.count_rule);
}

TEST(SystemSettings, MeanTheSameInServeAndSimulate) {
  for (const Preset& preset : Presets()) {
    if (preset.all_on_device) continue;  // only simulated
    SCOPED_TRACE(preset.name);
    RuntimeFlags serve;
    serve.preset = preset.name;
    SimulationOptions simulate;
    ExpectSame(Served(serve, 3000), Simulated(simulate, preset.name, "", 3000));
    serve.max_num_seqs = simulate.max_running = 32;
    serve.schedule.age_bound_seconds = 7;
    simulate.age_bound = 7 * kNsPerSecond;
    serve.schedule.ttft_objective_seconds = 2;
    simulate.slo = 2 * kNsPerSecond;
    serve.fairness_max_wait_seconds = 9;
    simulate.fairness_max_wait = 9 * kNsPerSecond;
    serve.schedule.count_cached = "nowhere";
    simulate.count_cached = CountCached::kNowhere;
    serve.schedule.schedule = "mlq";
    ExpectSame(Served(serve, 3000), Simulated(simulate, preset.name, "mlq", 3000));
  }
}

// The time of a step is predicted, so a server needs a profile for it; the simulator has the model of its device. It
// must also be possible: otherwise every request would run alone.
TEST(SystemSettings, ABoundOnDecodingStepsNeedsAModel) {
  RuntimeFlags serve;
  serve.schedule.max_decode_step_seconds = 0.1;
  const auto made = RuntimeOptionsOf(serve);
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().message.find("--max-decode-step: expected --profile FILE"), std::string::npos)
      << made.error().message;
  const PerformanceModel model{.step = 0.02};
  EXPECT_TRUE(CheckMaxDecodeStep(20 * kNsPerMs, &model).ok());
  const Status impossible = CheckMaxDecodeStep(19 * kNsPerMs, &model);
  ASSERT_FALSE(impossible.ok());
  EXPECT_NE(impossible.error().message.find("expected at least 0.02 seconds"), std::string::npos)
      << impossible.error().message;
  EXPECT_TRUE(CheckMaxDecodeStep(0, nullptr).ok());

  SimulationOptions simulate;
  simulate.max_decode_step = 100 * kNsPerMs;
  const Made simulated = Simulated(simulate, "loramux", "", 3000);
  EXPECT_EQ(simulated.scheduler.max_decode_step, 100 * kNsPerMs);
  EXPECT_NE(simulated.scheduler.costs, nullptr);
}

// The flags that the warnings of `flags` name as without effect.
std::vector<std::string> Idle(RuntimeFlags flags, std::vector<std::string> given) {
  flags.given = std::move(given);
  std::vector<std::string> names;
  for (const std::string& warning : WarningsOfIdle(flags, RuntimeOptionsOf(flags).value())) {
    names.push_back(warning.substr(0, warning.find(": no effect: ")));
  }
  return names;
}

using Names = std::vector<std::string>;

TEST(IdleFlags, AreNamedOnlyIfTheyWereGiven) {
  RuntimeFlags flags;
  flags.max_cpu_loras = 8;
  EXPECT_EQ(Idle(flags, {"--max-cpu-loras"}), Names{"--max-cpu-loras"});
  EXPECT_EQ(Idle(flags, {}), Names{});
  flags.max_cpu_loras = 0;  // no bound, as it is
  EXPECT_EQ(Idle(flags, {"--max-cpu-loras"}), Names{});
}

TEST(IdleFlags, OnADeviceAndOnACpu) {
  RuntimeFlags cpu;
  cpu.lora_variant = "bgmv";
  cpu.assist_cores = 2;
  cpu.cold_start = "assist";
  const Names given = {"--lora-variant", "--assist-cores", "--cold-start"};
  EXPECT_EQ(Idle(cpu, given), Names{"--assist-cores"});
  RuntimeFlags device = cpu;
  device.opened = ChooseDevice("emulated", /*batch_invariant=*/false).value();
  EXPECT_EQ(Idle(device, given), Names{"--lora-variant"});
  EXPECT_EQ(RuntimeOptionsOf(device)->lora_variant, LoraVariant::kMbgmv);  // a profile's times must be its own
  device.host_memory = "0";
  EXPECT_EQ(Idle(device, given), (Names{"--lora-variant", "--cold-start", "--assist-cores"}));
  device.cold_start = "wait";
  device.lora_variant = "mbgmv";
  EXPECT_EQ(Idle(device, given), Names{"--assist-cores"});
}

TEST(IdleFlags, OfACacheRegime) {
  const Names score = {"--score-frequency", "--score-size"}, swap = {"--swap-lower"}, window = {"--batch-window"};
  const auto idle = [](const std::string& cache, const Names& given) {
    RuntimeFlags flags;
    flags.cache = cache;
    return !Idle(flags, given).empty();
  };
  EXPECT_TRUE(idle("lru", score) && idle("lru", swap) && idle("lru", window));
  EXPECT_FALSE(idle("chameleon", score));
  EXPECT_FALSE(idle("fastlibra", swap) || idle("fastlibra", window) || idle("loramux", window));
  EXPECT_FALSE(idle("fastlibra-wos", swap));
  EXPECT_TRUE(idle("fastlibra-wos", window));
  RuntimeFlags history;
  history.prefix_cache = true;
  EXPECT_EQ(Idle(history, {"--enable-prefix-caching"}), Names{});
  history.preset = "s-lora";
  EXPECT_EQ(Idle(history, {"--enable-prefix-caching"}), Names{"--enable-prefix-caching"});
  history.prefix_cache = false;
  EXPECT_EQ(Idle(history, {"--enable-prefix-caching"}), Names{});
}

TEST(IdleFlags, OfAQueueOrderOrAPreset) {
  const Names lanes = {"--request-size", "--lane-count", "--size-input-weight", "--ttft-objective"};
  const auto idle = [&](const std::string& order) {
    RuntimeFlags flags;
    flags.schedule.schedule = order;
    return Idle(flags, lanes);
  };
  EXPECT_EQ(idle("mlq"), Names{});
  EXPECT_EQ(idle("mlq-static"), (Names{"--lane-count", "--ttft-objective"}));
  EXPECT_EQ(idle("objective"), (Names{"--request-size", "--lane-count", "--size-input-weight"}));
  EXPECT_EQ(idle("sjf"), lanes);
  RuntimeFlags preset;
  preset.preset = "chameleon-output-only";
  EXPECT_EQ(Idle(preset, {"--size-input-weight", "--size-output-weight", "--tenant-weight"}),
            (Names{"--size-input-weight, --size-output-weight", "--tenant-weight"}));
  EXPECT_EQ(Idle(preset, {"--prefetch-lookahead"}), Names{"--prefetch-lookahead"});
  preset.preset = "vllm-lora-prefetch";
  EXPECT_EQ(Idle(preset, {"--prefetch-lookahead"}), Names{});
  EXPECT_EQ(Idle(preset, {"--cold-start"}), Names{"--cold-start"});
}

TEST(IdleFlags, OfAModelOnTheDisk) {
  RuntimeFlags flags;
  EXPECT_EQ(Idle(flags, {"--revision"}), Names{"--revision"});
  flags.model_name = "org/name";
  EXPECT_EQ(Idle(flags, {"--revision"}), Names{});
}

}  // namespace
}  // namespace loramux::system_settings_test
