// Recorded steps against the same steps launch by launch.
#include "model/step_graphs.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "model/device_model_world_for_test.h"
#include "model/step_parts_for_test.h"

namespace loramux::device_model_test {
namespace {

// Two equal devices: one enqueues launch by launch, the other records and replays. Adapters 0 to 2 have ranks 8, 64 and
// 13, the last one other targets.
class Replay {
 public:
  explicit Replay(DType dtype = DType::kBF16, bool batch_invariant = false, const ModelConfig& config = SmallConfig())
      : eager_(config, dtype, dtype, batch_invariant), replays_(config, dtype, dtype, batch_invariant) {
    for (Twins* twins : {&eager_, &replays_}) {
      twins->AddAdapter(8, kAll, DType::kBF16);
      twins->AddAdapter(64, kAll, DType::kF32);
      twins->AddAdapter(13, kSome, DType::kBF16);
    }
    replays_.Record();
  }

  Twins& replays() { return replays_; }
  StepWays ways() { return replays_.graphs().ways(); }

  void Reserve(std::int64_t max_tokens) {
    const DeviceModelLimits limits = {.max_tokens = max_tokens,
                                      .max_sequences = 8,
                                      .max_logit_rows = 8,
                                      .max_positions = 512,
                                      .max_rank = 64,
                                      .page_tokens = 8,
                                      .state_pages = replays_.layout().state_pages};
    ASSERT_TRUE(eager_.model().Reserve(limits).ok() && replays_.model().Reserve(limits).ok());
  }

  // A sequence of which `computed` tokens are computed.
  void AddSequence(std::int64_t computed, int adapter) {
    std::size_t index = 0;
    for (Twins* twins : {&eager_, &replays_}) index = twins->AddSequence(computed + 40, adapter);
    Step({{index, computed}});
  }

  // Both sides' logits and tokens are the same to the bit.
  void Step(const std::vector<Part>& parts, const StepBatch& what = {}) {
    Floats logits[2];
    for (int side = 0; side < 2; ++side) {
      Twins& twins = side == 0 ? eager_ : replays_;
      logits[side] = twins.ForwardOnDevice(parts, what);
      twins.Advance(parts);
    }
    const std::vector<SampledToken>* const tokens[] = {&eager_.device_result.tokens, &replays_.device_result.tokens};
    ASSERT_EQ(tokens[0]->size(), what.samples.rows.size());
    ASSERT_EQ(logits[0].size(), logits[1].size());
    ASSERT_EQ(std::memcmp(logits[0].data(), logits[1].data(), logits[0].size() * sizeof(float)), 0);
    ASSERT_EQ(tokens[0]->size(), tokens[1]->size());
    for (std::size_t i = 0; i < tokens[0]->size(); ++i) {
      const SampledToken &eager = (*tokens[0])[i], &replayed = (*tokens[1])[i];
      EXPECT_EQ(eager.id, replayed.id);
      EXPECT_EQ(eager.logprob, replayed.logprob);
      EXPECT_EQ(eager.top_logprobs.size(), replayed.top_logprobs.size());
    }
  }

 private:
  Twins eager_, replays_;
};

void ExpectWays(const StepWays& found, const StepWays& before, const StepWays& more) {
  EXPECT_EQ(found.eager - before.eager, more.eager);
  EXPECT_EQ(found.recorded - before.recorded, more.recorded);
  EXPECT_EQ(found.replayed - before.replayed, more.replayed);
}

// Samples of this many rows that are not all greedy.
StepBatch Samples(int rows, std::uint64_t seed) {
  StepBatch what;
  for (int row = 0; row < rows; ++row) {
    SamplingParams params;
    params.seed = seed * 100 + static_cast<std::uint64_t>(row);
    params.temperature = (seed + static_cast<std::uint64_t>(row)) % 3 == 0 ? 0.0f : 0.3f * static_cast<float>(seed);
    params.top_p = seed % 2 == 0 ? 0.7f : 1.0f;
    params.top_k = static_cast<int>(seed);
    params.top_logprobs = static_cast<int>(seed);
    what.samples.Add(params, {});
  }
  return what;
}

// Mixes of adapters of other ranks and types, three or four rows, and sampling parameters change from step to step; so
// do the experts, where there are some, and the states.
class RecordedMixes : public testing::TestWithParam<ModelConfig> {};
INSTANTIATE_TEST_SUITE_P(Models, RecordedMixes,
                         testing::Values(SmallConfig(), SmallConfigWithExperts(), SmallHybridConfig(),
                                         SmallHybridConfig(/*mamba=*/true)));

TEST_P(RecordedMixes, AGraphServesAll) {
  Replay world(DType::kBF16, false, GetParam());
  world.Reserve(64);
  for (const int adapter : {0, 0, 1, 2, -1, -1, 1}) world.AddSequence(9 + adapter, adapter);
  const StepWays before = world.ways();
  const std::vector<std::vector<std::size_t>> mixes = {{0, 1, 2, 3}, {2, 6, 4},    {4, 5, 3, 2}, {0, 1, 4},
                                                       {5, 3, 4, 0}, {1, 0, 5, 2}, {6, 2, 3},    {1, 3, 4},
                                                       {3, 4, 5, 1}, {3, 2, 6, 1}};
  std::uint64_t seed = 0;
  for (const std::vector<std::size_t>& mix : mixes) {
    std::vector<Part> parts;
    for (const std::size_t sequence : mix) parts.push_back({sequence, 1});
    ASSERT_NO_FATAL_FAILURE(world.Step(parts, Samples(static_cast<int>(mix.size()), ++seed)));
  }
  // One graph for ranks up to 64, and one for ranks up to 16.
  ExpectWays(world.ways(), before, {.eager = 2, .recorded = 2, .replayed = 6});
  EXPECT_EQ(world.replays().graphs().size(), 2u);
}

TEST(RecordedSteps, KeepTheMemoryOfReserve) {
  Replay world;
  world.Reserve(8);
  for (int i = 0; i < 7; ++i) world.AddSequence(5, i % 3);
  const std::int64_t free = world.replays().device().FreeMemory();
  std::vector<Part> parts;
  for (std::size_t i = 0; i < 7; ++i) parts.push_back({i, 1});
  for (int step = 0; step < 4; ++step) ASSERT_NO_FATAL_FAILURE(world.Step(parts));
  EXPECT_EQ(world.replays().device().FreeMemory(), free);
  EXPECT_EQ(world.ways().replayed, 2);
}

TEST(RecordedSteps, WithAndWithoutAdaptersAlternate) {
  Replay world(DType::kF32, /*batch_invariant=*/true);
  world.Reserve(64);
  for (const int adapter : {0, -1}) world.AddSequence(9, adapter);
  const StepWays before = world.ways();
  for (int step = 0; step < 4; ++step) {
    for (const std::size_t sequence : {0, 1}) ASSERT_NO_FATAL_FAILURE(world.Step({{sequence, 1}}));
  }
  ExpectWays(world.ways(), before, {.eager = 2, .recorded = 2, .replayed = 4});
}

// A graph has room for a power of two of attention's chunks; those behind the first chunk need another one.
TEST(RecordedSteps, ContextsGrowBeyondAChunk) {
  Replay world;
  world.Reserve(300);
  world.AddSequence(252, 0);
  world.AddSequence(6, -1);
  const StepWays before = world.ways();
  for (int step = 0; step < 8; ++step) ASSERT_NO_FATAL_FAILURE(world.Step({{0, 1}, {1, 1}}));
  ExpectWays(world.ways(), before, {.eager = 2, .recorded = 2, .replayed = 4});
}

// An adapter of further targets, a larger rank and a longer batch each make the graphs so far useless.
TEST(RecordedSteps, AreForgottenWhenMemoryOrTargetsChange) {
  Replay world;
  world.AddSequence(6, 2);  // kSome
  world.AddSequence(6, -1);
  const auto decode = [&](std::size_t sequence, const StepWays& more) {
    const StepWays before = world.ways();
    for (int step = 0; step < 3; ++step) ASSERT_NO_FATAL_FAILURE(world.Step({{sequence, 1}}));
    ExpectWays(world.ways(), before, more);
  };
  decode(0, {1, 1, 1});
  decode(1, {1, 1, 1});
  world.AddSequence(60, -1);  // more rows than before
  decode(0, {1, 1, 1});
  world.AddSequence(6, 0);  // a smaller rank, other targets
  decode(3, {1, 1, 1});
  decode(0, {0, 0, 3});
  world.AddSequence(6, 1);  // a larger rank: other memory
  decode(0, {1, 1, 1});
  decode(1, {1, 1, 1});
}

// What the host samples, and masks of grammars, come after the graph.
TEST(RecordedSteps, TheHostSamplesBehindTheGraph) {
  Replay world;
  world.Reserve(64);
  world.AddSequence(9, 0);
  world.AddSequence(9, 1);
  const StepWays before = world.ways();
  for (int step = 0; step < 6; ++step) {
    StepBatch what;
    SamplingParams params;
    params.temperature = 0.7f;
    params.seed = static_cast<std::uint64_t>(step);
    what.samples.Add(params, {}, step % 2 == 0 ? std::make_shared<EveryThird>() : nullptr);
    params.top_logprobs = step % 2 == 0 ? 3 : 25;
    what.samples.Add(params, {});
    ASSERT_NO_FATAL_FAILURE(world.Step({{0, 1}, {1, 1}}, what));
  }
  ExpectWays(world.ways(), before, {.eager = 1, .recorded = 1, .replayed = 4});
}

// Penalties, biases and bans have arrays of any length.
TEST(RecordedSteps, ListsOfTokensGrow) {
  Replay world;
  world.Reserve(64);
  world.AddSequence(9, 0);
  const StepWays before = world.ways();
  Tokens generated;
  for (int step = 0; step < 8; ++step) {
    generated.push_back(step * 7);
    SamplingParams params;
    params.temperature = 0.9f;
    params.repetition_penalty = 1.3f;
    const std::vector<LogitBias> biases = {{step, 2.0f}};
    StepBatch what;
    what.samples.Add(params, {.generated = generated, .logit_bias = biases});
    ASSERT_NO_FATAL_FAILURE(world.Step({{0, 1}}, what));
  }
  // Lists of 1, 2, 3 to 4, and 5 to 8 tokens.
  ExpectWays(world.ways(), before, {.eager = 4, .recorded = 2, .replayed = 2});
}

TEST(RecordedSteps, WithArrivalsAreEager) {
  Twins twins(SmallConfig(), DType::kF32, DType::kF32);
  twins.Record();
  twins.AddSequence(20, -1);
  std::vector<std::int64_t> waits;
  const auto arriving = std::make_shared<LayerProgress>(2);
  arriving->AttachEvents(std::make_unique<CountingEvents>(waits));
  StepBatch what;
  what.arrivals = {arriving};
  const Part part = {0, 1};
  for (int step = 0; step < 3; ++step) twins.ForwardOnDevice({&part, 1}, what);
  EXPECT_EQ(waits.size(), 6u);
  ExpectWays(twins.graphs().ways(), {}, {.eager = 3});
  arriving->Publish(2);
  for (int step = 0; step < 3; ++step) twins.ForwardOnDevice({&part, 1}, what);
  EXPECT_EQ(waits.size(), 6u);
  ExpectWays(twins.graphs().ways(), {}, {.eager = 4, .recorded = 1, .replayed = 1});
}

TEST(RecordedSteps, ALostDeviceIsAnError) {
  for (int steps = 1; steps < 4; ++steps) {  // lost before the recording, before the first replay, and later
    for (const int launches : {0, 9}) {
      Twins twins(SmallConfig(), DType::kBF16, DType::kBF16);
      twins.Record();
      twins.AddSequence(20, twins.AddAdapter(8, kAll, DType::kBF16));
      const Part part = {0, 1};
      for (int i = 0; i < steps; ++i) twins.ForwardOnDevice({&part, 1});
      dynamic_cast<gpu::EmulatedDevice&>(twins.device()).LoseAfter(launches);
      for (int i = 0; i < 2; ++i) {
        const Status result = twins.TryOnDevice({&part, 1});
        ASSERT_FALSE(result.ok()) << steps << ", " << launches;
        EXPECT_EQ(result.error().code, ErrorCode::kUnavailable);
      }
    }
  }
}

// The shape that was used least lately goes first.
TEST(RecordedSteps, HaveABound) {
  const auto device = gpu::OpenDevice("emulated", {}).value();
  const auto stream = device->CreateStream().value();
  StepGraphs graphs;
  int calls = 0;
  const auto run = [&](std::int64_t rows) {
    const GraphShape shape = {.rows = rows};
    ASSERT_TRUE(graphs.Run(*stream, shape, 1, false, [&] { ++calls; }).ok());
  };
  for (std::int64_t rows = 0; rows < 60; ++rows) {
    for (int i = 0; i < 3; ++i) run(rows);
    run(0);
  }
  EXPECT_EQ(graphs.size(), StepGraphs::kMaxGraphs);
  EXPECT_EQ(calls, 120);
  run(59);
  run(0);
  EXPECT_EQ(calls, 120);
  run(1);
  EXPECT_EQ(calls, 121);
}

}  // namespace
}  // namespace loramux::device_model_test
