// `serve` and `simulate` mean the same by the same flags.
#include <gtest/gtest.h>

#include "simulate/simulated_server.h"
#include "tools/runtime_flags.h"
#include "tools/system_flags.h"

namespace loramux::system_settings_test {
namespace {

struct Made {
  SchedulerOptions scheduler;
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
  made.scheduler = SchedulerOptionsOf(options, {.max_model_len = max_model_len}, made.queue);
  return made;
}

// Left out are: the ridge and the policy for cold starts, of which only the simulator knows a data sheet and only the
// server an executor; the size of a page and of the memory.
void ExpectSame(const Made& served, const Made& simulated) {
  const SchedulerOptions &a = served.scheduler, &b = simulated.scheduler;
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

}  // namespace
}  // namespace loramux::system_settings_test
