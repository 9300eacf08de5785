#include "simulate/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/prng.h"
#include "simulate/summary.h"

namespace loramux::simulation_test {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

// Round figures: a step takes 1 ms, a prompt's token 0.1 ms, a decoding sequence 1 ms. A page of 1 MiB takes 1.048576
// ms plus 1 ms of latency from the host tier.
SimulatedDevice RoundDevice(std::int64_t pages = 1000) {
  SimulatedDevice device{.name = "round",
                         .page_tokens = 16,
                         .page_bytes = kMiB,
                         .device_pages = pages,
                         .adapter_bytes_per_rank = kMiB / 8};
  device.model.step = 1e-3;
  device.model.per_prefill_token = 1e-4;
  device.model.per_decode_sequence = 1e-3;
  device.model.disk = {.latency = 5e-3, .bytes_per_second = 1e8};
  device.model.host_to_device = device.model.device_to_host = {.latency = 1e-3, .bytes_per_second = 1e9};
  return device;
}

SimulationOptions OptionsFor(std::string_view preset, SimulatedDevice device = RoundDevice()) {
  return {
      .device = std::move(device), .preset = FindPreset(preset).value(), .host_bytes = 512.0 * kMiB, .check_every = 20};
}

Workload TwoRequests(std::int32_t first_adapter, std::int32_t second_adapter, TimeNs second_arrival) {
  Workload workload;
  workload.requests = {{.arrival = 0, .adapter = first_adapter, .input_tokens = 100, .output_tokens = 3},
                       {.arrival = second_arrival, .adapter = second_adapter, .input_tokens = 50, .output_tokens = 2}};
  workload.adapter_ranks = {8, 16};
  return workload;
}

TEST(Simulation, OneRequestTakesWhatTheModelSays) {
  Workload workload = TwoRequests(-1, -1, 0);
  workload.requests.resize(1);
  const SimulationResult result = Simulate(OptionsFor("fifo"), workload).value();
  const RequestRecord& record = result.requests[0];
  EXPECT_EQ(record.first_token, 11 * kNsPerMs);  // 1 + 100 x 0.1
  EXPECT_EQ(record.last_token, 15 * kNsPerMs);   // two steps of 1 + 1
  EXPECT_EQ(result.busy, 15 * kNsPerMs);
  EXPECT_EQ(record.output_tokens, 3);
}

// A second turn written in advance, with the answer that the first one gets.
TEST(Simulation, APromptThatQuotesAnAnswerFindsItCached) {
  Workload workload = TwoRequests(0, 0, kNsPerSecond);
  workload.requests[0].output_tokens = 40;
  workload.requests[1].input_tokens = 150;
  std::vector<TokenId> first(100), second;
  std::iota(first.begin(), first.end(), 7);
  second = first;
  SimulationOptions options = OptionsFor("loramux");
  for (std::size_t n = 0; n < 40; ++n) second.push_back(AnsweredToken(options.seed, 0, n));
  second.insert(second.end(), 10, 5);
  workload.prompts = {first, second};
  const SimulationResult result = Simulate(options, workload).value();
  EXPECT_EQ(result.requests[0].cached_tokens, 0);
  EXPECT_GE(result.requests[1].cached_tokens, 128);  // all full pages
  EXPECT_LT(result.requests[1].cached_tokens, 140);  // the last token of an answer is never computed
}

// S-LoRA reserves the output of every request that it admits. The same load in the same memory preempts where only the
// next token has its page.
TEST(Simulation, SLoraNeverPreempts) {
  WorkloadOptions load{.requests = 200, .rate = 40, .input_mean = 60, .output_mean = 120, .adapters = 6, .ranks = {8}};
  const Workload workload = MakeWorkload(load).value();
  SimulationOptions options = OptionsFor("s-lora", RoundDevice(100));
  EXPECT_EQ(Simulate(options, workload).value().stats.preemptions, 0);
  options.preset.spec.reserve_output = false;
  EXPECT_GT(Simulate(options, workload).value().stats.preemptions, 0);
}

// Steps of 2 ms on the device, whose host needs 5 ms for 10 layers; the prompt's 11 ms are longer. Each request costs
// 1 ms more.
TEST(Simulation, AStepTakesAtLeastTheHostsWork) {
  Workload workload = TwoRequests(-1, -1, 0);
  workload.requests.resize(1);
  SimulationOptions options = OptionsFor("fifo");
  options.device.layers = 10;
  options.preset.program.layer_seconds = 0.5e-3;
  options.preset.program.request_seconds = 1e-3;
  const SimulationResult result = Simulate(options, workload).value();
  EXPECT_EQ(result.requests[0].first_token, 12 * kNsPerMs);
  EXPECT_EQ(result.requests[0].last_token, 24 * kNsPerMs);
}

// Transfers use the adapters' bytes if they are known.
TEST(Simulation, AdaptersHaveTheBytesThatTheyAreSaidToHave) {
  Workload workload = TwoRequests(0, 1, 0);
  workload.adapter_pages = {3, 4};
  workload.adapter_bytes = {1000, 2000};
  const SimulationResult result = Simulate(OptionsFor("fifo"), workload).value();
  EXPECT_EQ(result.bytes_to_device, 3000);
}

// FastLibra brings what is not in use to an idle device: any adapter of the host tier, also one that no request wants.
TEST(Simulation, AdaptersThatStartInTheHostTierMayBeSwappedIn) {
  Workload workload = TwoRequests(0, 0, 10 * kNsPerSecond);
  workload.adapter_ranks = {8, 16, 16, 8};
  SimulationOptions options = OptionsFor("fastlibra");
  for (const bool in_memory : {true, false}) {
    options.adapters_in_host_memory = in_memory;
    const SimulationResult result = Simulate(options, workload).value();
    EXPECT_EQ(result.stats.adapters.device_loads, 4);
    EXPECT_EQ(result.stats.adapters.disk_loads, in_memory ? 0 : 4);
    EXPECT_EQ(result.bytes_from_disk > 0, !in_memory);
  }
  options.preset.spec.host_copies = HostCopies::kLoaded;
  EXPECT_EQ(Simulate(options, workload).value().stats.adapters.device_loads, 1);
}

// The machine is slower when the prompt begins, and twice as fast when the second decode step does.
TEST(Simulation, StepsTakeWhatThePaceOfTheMachineSaysWhenTheyBegin) {
  Workload workload = TwoRequests(-1, -1, 0);
  workload.requests.resize(1);
  SimulationOptions options = OptionsFor("fifo");
  options.pace =
      Pace({{.at = 0, .factor = 3}, {.at = 30 * kNsPerMs, .factor = 1}, {.at = 35 * kNsPerMs, .factor = 0.5}});
  const SimulationResult result = Simulate(options, workload).value();
  EXPECT_EQ(result.requests[0].first_token, 33 * kNsPerMs);
  EXPECT_EQ(result.requests[0].last_token, 36 * kNsPerMs);
}

// Both decode steps follow the prompt; the second one is slowed less.
TEST(Simulation, DecodingAfterAPromptTakesLonger) {
  Workload workload = TwoRequests(-1, -1, 0);
  workload.requests.resize(1);
  SimulationOptions options = OptionsFor("fifo");
  options.device.model.after_prefill = 3e-3;
  options.device.model.after_prefill_decay = 1.0 / 3;
  const SimulationResult result = Simulate(options, workload).value();
  EXPECT_EQ(result.requests[0].first_token, 11 * kNsPerMs);
  EXPECT_EQ(result.requests[0].last_token, 19 * kNsPerMs);
}

TEST(Simulation, AdaptersTakeThePagesThatAreSaid) {
  Workload workload = TwoRequests(0, 1, 0);
  workload.adapter_pages = {4, 5};
  EXPECT_EQ(Simulate(OptionsFor("fifo"), workload).value().stats.device.used(PageCategory::kAdapter), 9);
  workload.adapter_pages.clear();  // from their ranks
  EXPECT_EQ(Simulate(OptionsFor("fifo"), workload).value().stats.device.used(PageCategory::kAdapter), 3);
}

TEST(Simulation, AStepIsNotInterrupted) {
  const SimulationResult result = Simulate(OptionsFor("fifo"), TwoRequests(-1, -1, 4 * kNsPerMs)).value();
  // The second request waits for the first step, then shares one with the first one's decode: 1 + 50 x 0.1 + 1.
  EXPECT_EQ(result.requests[1].first_scheduled, 11 * kNsPerMs);
  EXPECT_EQ(result.requests[1].first_token, 18 * kNsPerMs);
  EXPECT_EQ(result.requests[1].Ttft(), 14 * kNsPerMs);
}

TEST(Simulation, AdaptersShareTheHostLink) {
  const SimulationResult result = Simulate(OptionsFor("fifo"), TwoRequests(0, 1, 0)).value();
  // One page, then two, one after the other on the link; the second request joins when the first one's step has ended.
  const TimeNs first_there = 1'048'576 + kNsPerMs, second_there = 3 * 1'048'576 + kNsPerMs;
  EXPECT_EQ(result.requests[0].first_token, first_there + 11 * kNsPerMs);
  EXPECT_GT(result.requests[0].first_token, second_there);
  EXPECT_EQ(result.requests[1].first_token, result.requests[0].first_token + 7 * kNsPerMs);
  EXPECT_EQ(result.bytes_to_device, 3.0 * kMiB);
  EXPECT_EQ(result.bytes_from_disk, 0);
  EXPECT_EQ(result.stats.adapters.device_loads, 2);
}

TEST(Simulation, AdaptersMayLieOnDiskAtFirst) {
  SimulationOptions options = OptionsFor("fifo");
  options.adapters_in_host_memory = false;
  Workload workload = TwoRequests(0, -1, 0);
  workload.requests.resize(1);
  const SimulationResult result = Simulate(options, workload).value();
  const TimeNs disk = 10'485'760 + 5 * kNsPerMs, host = 1'048'576 + kNsPerMs;
  EXPECT_EQ(result.requests[0].first_token, disk + host + 11 * kNsPerMs);
  EXPECT_EQ(result.bytes_from_disk, 1.0 * kMiB);
}

TEST(Simulation, PromptsAndDecodesTakeTurnsWherePhasesAreSeparate) {
  SimulationOptions options = OptionsFor("fifo");
  options.preset.spec.chunked_prefill = false;
  options.preset.spec.separate_phases = true;
  const SimulationResult result = Simulate(options, TwoRequests(-1, -1, 4 * kNsPerMs)).value();
  // The first prompt until 11; its decode until 13, although the second request waits; the second prompt, 1 + 5, while
  // the first request waits; then both decode, 1 + 2.
  EXPECT_EQ(result.requests[1].first_token, 19 * kNsPerMs);
  EXPECT_EQ(result.requests[0].last_token, 22 * kNsPerMs);
  EXPECT_EQ(result.requests[1].last_token, 22 * kNsPerMs);
}

TEST(Simulation, AfterPromptsThereAreAsManyStepsOfDecodesAsAreOwed) {
  SimulationOptions options = OptionsFor("fifo");
  options.preset.spec.chunked_prefill = false;
  options.preset.spec.separate_phases = true;
  options.preset.spec.decode_turns = 4;
  Workload workload = TwoRequests(-1, -1, 4 * kNsPerMs);
  workload.requests[0].output_tokens = 12;
  // The first prompt until 11, four decodes until 19, the second prompt, 1 + 5.
  EXPECT_EQ(Simulate(options, workload).value().requests[1].first_token, 25 * kNsPerMs);
  // For an adapter requested after S-LoRA's prefetches, nothing is loaded beside the last decode.
  workload = TwoRequests(-1, 1, 16 * kNsPerMs);
  workload.requests[0].output_tokens = 12;
  options.preset.spec.cold_start = ColdStart::kHold;
  const TimeNs load = 2 * 1'048'576 + kNsPerMs;
  EXPECT_EQ(Simulate(options, workload).value().requests[1].first_token, 25 * kNsPerMs + load);
  // Requested before them, it is loaded in time.
  workload.requests[1].arrival = 12 * kNsPerMs;
  EXPECT_EQ(Simulate(options, workload).value().requests[1].first_token, 25 * kNsPerMs);
}

TEST(Simulation, AStepWaitsForTheAdaptersOfThoseWhomItLetsIn) {
  SimulationOptions options = OptionsFor("fifo");
  const Workload workload = TwoRequests(-1, 1, 4 * kNsPerMs);
  const TimeNs load = 2 * 1'048'576 + kNsPerMs;
  const SimulationResult beside = Simulate(options, workload).value();
  // The first request decodes until 13 and 15 during the load; the second one is computed from 15 on.
  EXPECT_EQ(beside.requests[0].last_token, 15 * kNsPerMs);
  EXPECT_EQ(beside.requests[1].first_token, 21 * kNsPerMs);
  EXPECT_EQ(beside.requests[1].adapter_load, load);
  options.preset.spec.cold_start = ColdStart::kHold;
  const SimulationResult blocking = Simulate(options, workload).value();
  // From 11 on, nothing is computed until the load has ended; then both, 1 + 1 + 5, and both decode, 1 + 2.
  EXPECT_EQ(blocking.requests[1].first_token, 11 * kNsPerMs + load + 7 * kNsPerMs);
  EXPECT_EQ(blocking.requests[0].last_token, 11 * kNsPerMs + load + 10 * kNsPerMs);
  EXPECT_EQ(blocking.requests[0].adapter_load, 0);
  EXPECT_EQ(blocking.requests[1].adapter_load, load);
}

TEST(Simulation, RanksCostTime) {
  SimulationOptions options = OptionsFor("fifo");
  options.device.model.per_rank = 1e-4;
  options.device.model.per_adapter_token_rank = 1e-6;
  options.device.model.host_to_device = {.latency = 0, .bytes_per_second = 1e18};
  Workload workload = TwoRequests(1, -1, 0);
  workload.requests.resize(1);
  const SimulationResult result = Simulate(options, workload).value();
  // 1 + 10 as without an adapter, 16 x 0.1 for reading, 100 tokens x rank 16 x 0.001; up to the link's nanosecond and
  // rounding.
  EXPECT_NEAR(static_cast<double>(result.requests[0].first_token), (11 + 1.6 + 1.6) * kNsPerMs, 5);
}

// The second one's adapter takes 2.048576 ms. Its step: 1 + 50 x 0.1; the first one's decode is none of it.
constexpr double kLoadMs = 2.048576, kStepMs = 6;

TEST(Simulation, AStepWaitsForTheAdaptersOfThoseWhoJoin) {
  SimulationOptions pass_over = OptionsFor("ondmd");
  pass_over.preset.spec.cold_start = ColdStart::kPassOver;
  const SimulationResult passes = Simulate(pass_over, TwoRequests(-1, 0, 4 * kNsPerMs)).value();
  EXPECT_EQ(passes.requests[0].last_token, 15 * kNsPerMs);  // no request waits for another one's adapter
  EXPECT_EQ(passes.stats.cold_starts, 0);
  const SimulationResult waits = Simulate(OptionsFor("ondmd"), TwoRequests(-1, 0, 4 * kNsPerMs)).value();
  EXPECT_NEAR(static_cast<double>(waits.requests[1].first_token), (11 + kLoadMs + kStepMs) * kNsPerMs, 5);
  // Both decode, 1 + 2, and then the first one alone, 1 + 1.
  EXPECT_NEAR(static_cast<double>(waits.requests[0].last_token), (11 + kLoadMs + kStepMs + 3 + 2) * kNsPerMs, 5);
  EXPECT_EQ(waits.stats.cold_starts, 1);
}

// The second one has a step of 1 + 5 ms in 10 layers. While its adapter (two pages: from 1 ms on until 3.1 ms after the
// step's begin) arrives, a layer takes 2 x 50 x 16 x 0.005 = 8 ms on two cores beside 5 ms of products: 0.3 ms more.
TEST(Simulation, TheCpuComputesWithAnAdapterUntilItIsThere) {
  SimulationOptions options = OptionsFor("caraserve");
  options.device.model.assist = {.layers = 10, .cores = 2};
  options.device.model.assist.groups[0] = {.per_token_rank = 2e-5, .base_share = 1};
  const Workload workload = TwoRequests(-1, 1, 4 * kNsPerMs);
  const SimulationResult assisted = Simulate(options, workload).value();
  // Layer i begins at 0.9 i ms and arrives at 1 + 0.21 (i + 1) ms: the first two come too late.
  EXPECT_NEAR(static_cast<double>(assisted.requests[1].Ttft()), (11 - 4 + kStepMs + 0.6) * kNsPerMs, 5);
  EXPECT_EQ(assisted.stats.cold_starts, 0);
  options.device.model.host_to_device.latency = 1;  // it never comes in time: then it decodes, too
  const SimulationResult slow = Simulate(options, workload).value();
  EXPECT_NEAR(static_cast<double>(slow.requests[1].Ttft()), (11 - 4 + kStepMs + 3) * kNsPerMs, 5);
  EXPECT_LT(slow.requests[1].last_token - slow.requests[1].first_token, 10 * kNsPerMs);
}

// `auto` begins where that is sooner by the model that plans use, and waits otherwise.
TEST(Simulation, WhetherARequestBeginsBeforeItsAdapterIsThereIsAMatterOfCost) {
  const Workload workload = TwoRequests(-1, 1, 4 * kNsPerMs);
  const auto ttft = [&](ColdStartPolicy policy, double per_token_rank, double latency) {
    SimulationOptions options = OptionsFor("caraserve");
    options.preset.spec.cold_start_policy = policy;
    options.device.model.assist = {.layers = 10, .cores = 1};
    options.device.model.assist.groups[0] = {.per_token_rank = per_token_rank, .base_share = 1};
    options.device.model.host_to_device.latency = latency;
    options.costs = std::make_shared<const PerformanceModel>(options.device.model);
    return Simulate(options, workload).value().requests[1].Ttft();
  };
  constexpr auto kWait = ColdStartPolicy::kWait, kAssist = ColdStartPolicy::kAssist, kAuto = ColdStartPolicy::kAuto;
  EXPECT_LT(ttft(kAssist, 2e-5, 0.05), ttft(kWait, 2e-5, 0.05));
  EXPECT_EQ(ttft(kAuto, 2e-5, 0.05), ttft(kAssist, 2e-5, 0.05));
  EXPECT_GT(ttft(kAssist, 1e-2, 0.05), ttft(kWait, 1e-2, 0.05));  // the processor is very slow
  EXPECT_EQ(ttft(kAuto, 1e-2, 0.05), ttft(kWait, 1e-2, 0.05));
}

TEST(Simulation, AdaptersMayBeOnTheDeviceFromTheStart) {
  const SimulationResult result = Simulate(OptionsFor("cached"), TwoRequests(0, 1, 0)).value();
  EXPECT_EQ(result.requests[0].Ttft(), 16 * kNsPerMs);  // 1 + 150 x 0.1, together
  EXPECT_EQ(result.requests[1].Ttft(), 16 * kNsPerMs);
  EXPECT_EQ(result.stats.adapters.asked_on_device, 2);
}

// vLLM-LoRA: "while the prompt tokens are being prefilled, the adapter weights are transferred in parallel on a
// separate CUDA stream". The step of both takes 1 + 5 + 1 ms in 10 layers; layer i of the two pages is there 1 + 0.21
// (i + 1) ms after its begin, so that the first one alone waits, for 1.21 ms. A step that stalled would wait for 3.1
// ms.
TEST(Simulation, ALoadIsOverlappedWithThePromptLayerByLayer) {
  SimulationOptions options = OptionsFor("vllm-lora-fifo");
  const Workload workload = TwoRequests(-1, 1, 4 * kNsPerMs);
  const double all = 1 + 2 * 1.048576;
  for (const auto& [layers, waits] : {std::pair(10, 1 + 2 * 1.048576 / 10), std::pair(1, all), std::pair(0, all)}) {
    options.device.layers = layers;
    const SimulationResult result = Simulate(options, workload).value();
    const double first = static_cast<double>(result.requests[1].first_token);
    EXPECT_NEAR(first, (11 + waits + 7) * kNsPerMs, 10) << layers;
    EXPECT_NEAR(static_cast<double>(result.requests[0].last_token), first + 3 * kNsPerMs, 1);
    EXPECT_EQ(result.stats.cold_starts, 1);
    EXPECT_EQ(Summarise(result, kNsPerSecond).awaited_loads, 1);
    EXPECT_EQ(result.stats.adapters.disk_loads, 0) << "registered adapters are in memory";
  }
}

// "AdapterPoolExhaustedError: All GPU adapters are actively referenced": the pool holds two, and three are asked for.
TEST(Simulation, APoolWhoseAdaptersAreAllInUseRefusesOrLetsWait) {
  Workload workload;
  for (std::int32_t i = 0; i < 3; ++i)
    workload.requests.push_back({.adapter = i, .input_tokens = 10, .output_tokens = 5});
  workload.adapter_ranks.assign(3, 8);
  for (const PoolFull full : {PoolFull::kWait, PoolFull::kRefuse}) {
    SimulationOptions options = OptionsFor("vllm-lora-fifo");
    options.preset.spec.adapter_bytes = 2 * kMiB;
    options.preset.spec.pool_full = full;
    const SimulationResult result = Simulate(options, workload).value();
    const bool refuses = full == PoolFull::kRefuse;
    EXPECT_EQ(result.requests[2].refused, refuses);
    EXPECT_EQ(result.stats.exhausted, refuses ? 1 : 0);
    EXPECT_EQ(result.requests[1].output_tokens, 5);
    EXPECT_EQ(result.requests[2].output_tokens, refuses ? 0 : 5);
    ASSERT_EQ(result.refusals.size(), refuses ? 1u : 0u);
    for (const auto& [index, why] : result.refusals) EXPECT_NE(why.find("AdapterPoolExhausted"), std::string::npos);
    options.preset.spec.adapter_bytes = 1000 * kMiB;  // all of the device
    const auto refused = Simulate(options, workload);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().param, "--adapter-memory");
  }
}

TEST(Simulation, WhoWaitsForASeatGetsHisAdapterMeanwhile) {
  SimulationOptions options = OptionsFor("vllm-lora-residency");
  options.preset.spec.max_running = 1;
  EXPECT_EQ(Simulate(options, TwoRequests(-1, 0, 4 * kNsPerMs)).value().stats.cold_starts, 1);
  options = OptionsFor("vllm-lora-prefetch");
  options.preset.spec.max_running = 1;
  const SimulationResult result = Simulate(options, TwoRequests(-1, 0, 4 * kNsPerMs)).value();
  EXPECT_EQ(result.stats.cold_starts, 0);
  EXPECT_EQ(result.requests[1].first_token, (15 + 6) * kNsPerMs);  // directly after the first one
}

// 40 adapters are requested at once: those beyond the 32nd let others pass, and get their turn.
TEST(Simulation, SomeAdaptersMakeABatchWithoutStoppingTheOthers) {
  Workload workload;
  for (std::int32_t i = 0; i < 80; ++i)
    workload.requests.push_back({.adapter = i / 2 % 40, .input_tokens = 10, .output_tokens = 3});
  workload.adapter_ranks.assign(40, 8);
  const SimulationResult result = Simulate(OptionsFor("vllm-lora-batch32"), workload).value();
  std::int64_t first = 0;
  for (const RequestRecord& record : result.requests) first += record.first_token == result.requests[0].first_token;
  EXPECT_GE(first, 50);  // 512 tokens per step: 51 prompts of 10
  for (const RequestRecord& record : result.requests) EXPECT_EQ(record.output_tokens, 3);
}

WorkloadOptions SmallLoad(std::uint64_t seed) {
  return {.requests = 400,
          .rate = 60,
          .input_mean = 120,
          .output_mean = 20,
          .max_input = 600,
          .max_output = 100,
          .adapters = 12,
          .ranks = {8, 16, 64},
          .turns = 3,
          .think_seconds = 0.5,
          .seed = seed};
}

TEST(Simulation, ATurnBeginsBehindWhatItsSessionHas) {
  Workload workload;
  workload.requests = {
      {.adapter = -1, .input_tokens = 64, .output_tokens = 32, .next = 1},
      {.arrival = 50 * kNsPerMs, .adapter = -1, .input_tokens = 16, .output_tokens = 4, .follows = true}};
  const SimulationResult result = Simulate(OptionsFor("fifo"), workload).value();
  const RequestRecord &first = result.requests[0], &second = result.requests[1];
  EXPECT_EQ(second.arrival, first.last_token + 50 * kNsPerMs);
  EXPECT_EQ(second.prompt_tokens, 64 + 32 + 16);
  EXPECT_EQ(second.cached_tokens, 80);  // the answer's last token was never computed: its page is not full
}

TEST(Simulation, TheSameSeedGivesTheSameResult) {
  const Workload workload = MakeWorkload(SmallLoad(7)).value();
  const SimulationOptions options = OptionsFor("loramux", RoundDevice(120));
  const SimulationResult a = Simulate(options, workload).value(), b = Simulate(options, workload).value();
  ASSERT_EQ(a.requests.size(), b.requests.size());
  for (std::size_t i = 0; i < a.requests.size(); ++i) {
    EXPECT_EQ(a.requests[i].first_token, b.requests[i].first_token);
    EXPECT_EQ(a.requests[i].last_token, b.requests[i].last_token);
    EXPECT_EQ(a.requests[i].cached_tokens, b.requests[i].cached_tokens);
  }
  EXPECT_EQ(a.stats.steps, b.stats.steps);
  EXPECT_EQ(a.bytes_to_device, b.bytes_to_device);
  const SimulationResult other = Simulate(options, MakeWorkload(SmallLoad(8)).value()).value();
  EXPECT_NE(a.end, other.end);
}

// Under memory pressure: preemptions, evictions, loads, history in both tiers.
class EveryPreset : public testing::TestWithParam<std::string_view> {};

TEST_P(EveryPreset, EndsEveryRequestAndLosesNothing) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    SimulationOptions options = OptionsFor(GetParam(), RoundDevice(160));
    options.host_bytes = 100.0 * kMiB;
    options.preset.spec.age_bound = 2 * kNsPerSecond;
    const Workload workload = MakeWorkload(SmallLoad(seed)).value();
    const SimulationResult result = Simulate(options, workload).value();  // checks integrity every 20 events
    std::int64_t generated = 0, prompts = 0;
    for (std::size_t i = 0; i < result.requests.size(); ++i) {
      const RequestRecord& record = result.requests[i];
      ASSERT_FALSE(record.refused);
      EXPECT_EQ(record.output_tokens, workload.requests[i].output_tokens);
      EXPECT_LE(record.arrival, record.first_scheduled);
      EXPECT_LT(record.first_scheduled, record.first_token);
      EXPECT_LE(record.first_token, record.last_token);
      generated += record.output_tokens;
      prompts += record.prompt_tokens;
    }
    EXPECT_EQ(result.stats.tokens_generated, generated);
    EXPECT_EQ(result.stats.finished, static_cast<std::int64_t>(result.requests.size()));
    // A last token that a prompt's chunk has to itself counts as decoded.
    EXPECT_GE(result.stats.tokens_prefilled + result.stats.prefix.found_tokens + result.stats.finished, prompts);
    // History and idle adapters are left on the device.
    EXPECT_EQ(
        result.stats.device.free_pages + result.stats.history_pages + result.stats.device.used(PageCategory::kAdapter),
        result.stats.device.capacity_pages);
    EXPECT_EQ(result.between_tokens.count(), generated - static_cast<std::int64_t>(result.requests.size()));
  }
}

std::vector<std::string_view> PresetNames() {
  std::vector<std::string_view> names;
  for (const Preset& preset : Presets()) names.push_back(preset.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Presets, EveryPreset, testing::ValuesIn(PresetNames()), [](const auto& info) {
  std::string name(info.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(Simulation, ALongerHostLinkMakesLoadsSlower) {
  const Workload workload = MakeWorkload(SmallLoad(5)).value();
  SimulationOptions options = OptionsFor("s-lora", RoundDevice(160));
  const SimulationSummary fast = Summarise(Simulate(options, workload).value(), kNsPerSecond);
  options.device.model.host_to_device.bytes_per_second /= 20;
  const SimulationSummary slow = Summarise(Simulate(options, workload).value(), kNsPerSecond);
  EXPECT_GT(slow.mean_load_ms, 5 * fast.mean_load_ms);
  EXPECT_GT(slow.ttft.mean, fast.ttft.mean);
}

// More adapters are requested than the link can load. The large ones load later, so that most are in time. Meanwhile
// most requests are for a resident adapter, so that the device's throughput seems high.
TEST(Simulation, WhereTheLinkIsShortLoramuxIsLateForFew) {
  Workload workload;
  for (std::int32_t i = 0; i < 300; ++i) {
    for (int other = 0; other < 4; ++other) {
      workload.requests.push_back(
          {.arrival = (5 * i + other) * 10 * kNsPerMs, .adapter = 0, .input_tokens = 20, .output_tokens = 2});
    }
    workload.requests.push_back(
        {.arrival = (5 * i + 4) * 10 * kNsPerMs, .adapter = i, .input_tokens = 20, .output_tokens = 2});
    workload.adapter_ranks.push_back(std::int64_t{8} << (i % 5));
  }
  const auto late = [&](std::string_view preset) {
    SimulationOptions options = OptionsFor(preset);
    options.preset.spec.fairness.policy = FairnessPolicy::kNone;
    options.host_bytes = 4e9;
    options.preset.spec.objective = kNsPerSecond;
    options.device.model.host_to_device.bytes_per_second = 1e8;  // 65 ms each, on average
    const SimulationResult result = Simulate(options, workload).value();
    return std::count_if(result.requests.begin(), result.requests.end(),
                         [&](const RequestRecord& record) { return record.Ttft() > options.preset.spec.objective; });
  };
  const auto ours = late("loramux"), fifo = late("fifo");
  EXPECT_GT(fifo, 150);
  EXPECT_LT(ours, 60);  // a third of those of rank 128
}

// If memory is the bottleneck, prompts that fill decoding steps cost nothing.
TEST(Simulation, SpreadPromptsServeMoreWhereMemoryIsShort) {
  Workload workload;
  for (std::int32_t i = 0; i < 200; ++i)
    workload.requests.push_back({.arrival = 0, .input_tokens = 150, .output_tokens = 40});
  const auto seconds = [&](bool spread) {
    SimulationOptions options = OptionsFor("loramux", RoundDevice(/*pages=*/130));  // about ten requests
    options.preset.spec.spread_prompts = spread;
    options.device.model.per_decode_sequence = options.device.model.per_prefill_token;
    options.device.model.dense_floor = 5e-3;  // 50 tokens
    return static_cast<double>(Simulate(options, workload).value().end) / kNsPerSecond;
  };
  EXPECT_LT(seconds(true), 0.85 * seconds(false));
}

// A prompt of 41 ms; at 10 ms a request arrives with an adapter that takes 2 ms.
TEST(Simulation, WhoComesDuringAStepHasHisAdapterAtItsEnd) {
  Workload workload = TwoRequests(-1, 0, 10 * kNsPerMs);
  workload.requests[0].input_tokens = 400;
  const auto ttft = [&](bool on_arrival) {
    SimulationOptions options = OptionsFor("loramux");
    options.preset.spec.load_on_arrival = on_arrival;
    const SimulationResult result = Simulate(options, workload).value();
    EXPECT_EQ(result.stats.adapters.device_loads, 1);
    EXPECT_EQ(result.stats.loads_on_arrival, on_arrival);
    return result.requests[1].Ttft();
  };
  const TimeNs early = ttft(true);
  // until 41 ms, then 1 + 50 x 0.1, and 1 for the other's next token
  EXPECT_EQ(early, 38 * kNsPerMs);
  EXPECT_GT(ttft(false), early + kNsPerMs);  // the other's next token is computed alone
}

// If each side evicts only its own pages, an adapter could never be evicted if its history had to be evicted first.
TEST(Simulation, AdaptersWithAShareLeaveBeforeTheirHistory) {
  for (const std::string_view preset : {"loramux", "fastlibra", "mlq"}) {
    SimulationOptions options = OptionsFor(preset, RoundDevice(160));
    options.preset.spec.adapter_share = 0.1;  // share of 44 pages
    const SimulationResult result = Simulate(options, MakeWorkload(SmallLoad(6)).value()).value();
    EXPECT_GT(result.stats.adapters.device_evictions, 0);
    EXPECT_GT(result.stats.prefix.found_tokens, 0);
  }
}

TEST(Simulation, AClientMayGoAway) {
  Workload workload = TwoRequests(-1, -1, 0);
  workload.requests[0].cancel_after = 12 * kNsPerMs;  // two of three tokens are generated
  workload.requests[1].cancel_after = kNsPerSecond;   // long after its end
  const SimulationResult result = Simulate(OptionsFor("fifo"), workload).value();
  EXPECT_TRUE(result.requests[0].cancelled);
  EXPECT_LT(result.requests[0].output_tokens, 3);
  EXPECT_TRUE(result.requests[1].Ended());
  EXPECT_EQ(result.requests[1].output_tokens, 2);
  const SimulationSummary summary = Summarise(result, kNsPerSecond);
  EXPECT_EQ(summary.finished, 1);
  EXPECT_EQ(summary.refused, 0);
}

TEST(Simulation, ARefusalSaysWhy) {
  Workload workload = TwoRequests(-1, -1, 0);
  workload.requests[0].input_tokens = 1000;
  const SimulationResult result = Simulate(OptionsFor("fifo", RoundDevice(20)), workload).value();
  ASSERT_EQ(result.refusals.size(), 1u);
  EXPECT_EQ(result.refusals[0].first, 0u);
  EXPECT_NE(result.refusals[0].second.find("at most 320 tokens"), std::string::npos) << result.refusals[0].second;
}

TEST(Simulation, WhatNeverFitsIsRefused) {
  Workload workload = TwoRequests(-1, -1, 0);
  workload.requests[0].input_tokens = 1000;
  workload.requests[0].next = 1;
  workload.requests[1].follows = true;
  const SimulationResult result = Simulate(OptionsFor("fifo", RoundDevice(20)), workload).value();
  EXPECT_TRUE(result.requests[0].refused);
  EXPECT_TRUE(result.requests[1].refused);  // it could never be asked
  EXPECT_EQ(Summarise(result, kNsPerSecond).refused, 2);
}

TEST(Simulation, UnknownNamesAreErrors) {
  SimulationOptions options = OptionsFor("fifo");
  options.preset.spec.queue = "lifo";
  const auto result = Simulate(options, TwoRequests(-1, -1, 0));
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("lifo"), std::string::npos);
}

// ---- Summaries

TEST(Summary, Quantiles) {
  const Summary s = Summarise({4, 1, 3, 2, 5});
  EXPECT_EQ(s.count, 5);
  EXPECT_EQ(s.mean, 3);
  EXPECT_EQ(s.p50, 3);
  EXPECT_NEAR(s.p90, 4.6, 1e-12);
  EXPECT_EQ(s.max, 5);
  EXPECT_EQ(Summarise({}).p99, 0);
}

TEST(Summary, HistogramIsWithinOnePercent) {
  DurationHistogram histogram;
  std::vector<double> exact;
  Prng prng(3);
  for (int i = 0; i < 20000; ++i) {
    const auto value = static_cast<TimeNs>(std::exp(3 + 15 * prng.NextDouble()));
    histogram.Add(value);
    exact.push_back(static_cast<double>(value));
  }
  std::sort(exact.begin(), exact.end());
  for (const double q : {0.01, 0.5, 0.9, 0.99, 1.0}) {
    const double wanted = exact[static_cast<std::size_t>(q * (exact.size() - 1))];
    EXPECT_NEAR(histogram.Quantile(q) / wanted, 1, 0.01) << q;
  }
  EXPECT_EQ(DurationHistogram().Quantile(0.5), 0);
}

}  // namespace
}  // namespace loramux::simulation_test
