// The parts of the simulator, each alone.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>

#include "simulate/devices.h"
#include "simulate/event_queue.h"
#include "simulate/load_search.h"
#include "simulate/simulated_executor.h"
#include "simulate/simulated_server.h"
#include "simulate/simulated_transfer.h"
#include "simulate/summary.h"

namespace loramux::models_test {
namespace {

TEST(EventQueue, TimeThenKindThenSequence) {
  EventQueue queue;
  queue.Push(20, EventKind::kTransferEnds, 1);
  queue.Push(10, EventKind::kArrival, 2);
  queue.Push(10, EventKind::kArrival, 3);
  queue.Push(10, EventKind::kStepEnds, 4);
  queue.Push(10, EventKind::kSample, 5);
  queue.Push(10, EventKind::kTransferEnds, 6);
  std::vector<std::int64_t> order;
  while (!queue.empty()) order.push_back(queue.Pop().subject);
  EXPECT_EQ(order, (std::vector<std::int64_t>{6, 4, 2, 3, 5, 1}));
}

// ---- Devices, against published figures

TEST(Devices, ShapesGiveThePublishedSizes) {
  EXPECT_NEAR(static_cast<double>(FindModel("llama-7b").value().Parameters()), 6.74e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(FindModel("llama-13b").value().Parameters()), 13.02e9, 0.02e9);
  EXPECT_NEAR(static_cast<double>(FindModel("llama-30b").value().Parameters()), 32.5e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(FindModel("llama-34b").value().Parameters()), 33.7e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(FindModel("llama-70b").value().Parameters()), 68.98e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(FindModel("llama-3-8b").value().Parameters()), 8.03e9, 0.01e9);
  // As the models' cards say; of Gemma 3 the language model.
  const std::map<std::string_view, double> cards = {
      {"mistral-7b", 7.24e9},      {"qwen2.5-7b", 7.62e9},     {"qwen3-4b", 4.02e9},       {"qwen3-8b", 8.19e9},
      {"gemma-3-4b", 3.88e9},      {"gemma-3-12b", 11.8e9},    {"gemma-3-27b", 27.0e9},    {"phi-4", 14.7e9},
      {"smollm3-3b", 3.08e9},      {"mixtral-8x7b", 46.7e9},   {"qwen3-30b-a3b", 30.5e9},  {"gpt-oss-20b", 20.9e9},
      {"llama-3.2-1b", 1.24e9},    {"llama-3.2-3b", 3.21e9},   {"ministral-3-8b", 8.49e9}, {"qwen3-0.6b", 0.596e9},
      {"qwen3-1.7b", 1.72e9},      {"qwen3-14b", 14.8e9},      {"qwen3-32b", 32.8e9},      {"gemma-2-2b", 2.61e9},
      {"gemma-2-9b", 9.24e9},      {"gemma-2-27b", 27.2e9},    {"gemma-3-1b", 1.0e9},      {"phi-3-mini", 3.82e9},
      {"phi-4-mini", 3.84e9},      {"granite-3.3-8b", 8.17e9}, {"olmo-2-7b", 7.3e9},       {"glm-4-9b", 9.4e9},
      {"exaone-4.0-1.2b", 1.28e9}, {"stablelm-3b", 2.8e9},     {"pythia-1.4b", 1.4146e9},  {"pythia-6.9b", 6.857e9},
      {"gpt-neox-20b", 20.55e9},   {"falcon-7b", 6.92e9},      {"falcon-40b", 41.3e9},     {"mixtral-8x22b", 141e9},
      {"qwen3-235b-a22b", 235e9},  {"gpt-oss-120b", 117e9},    {"opt-1.3b", 1.316e9},      {"opt-2.7b", 2.65e9},
      {"opt-6.7b", 6.66e9},        {"opt-13b", 12.85e9},       {"opt-30b", 29.97e9},       {"opt-66b", 65.7e9},
      {"olmo-3-7b", 7.3e9},        {"olmo-3-32b", 32.2e9},     {"qwen3.5-9b", 9e9}};
  std::set<std::string_view> unchecked = {"llama-7b", "llama-13b", "llama-30b", "llama-34b", "llama-70b", "llama-3-8b"};
  for (const ModelShape& shape : ModelShapes()) {
    EXPECT_EQ(cards.contains(shape.name), !unchecked.contains(shape.name)) << shape.name;
  }
  for (const auto& [name, parameters] : cards) {
    EXPECT_NEAR(static_cast<double>(FindModel(name).value().Parameters()), parameters, 0.01 * parameters) << name;
  }
  EXPECT_NEAR(static_cast<double>(FindModel("mixtral-8x7b").value().ActiveParameters()), 12.7e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(FindModel("qwen3-30b-a3b").value().ActiveParameters()), 3.04e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(FindModel("qwen3-235b-a22b").value().ActiveParameters()), 22e9, 0.6e9);
  EXPECT_NEAR(static_cast<double>(FindModel("gpt-oss-120b").value().ActiveParameters()), 5.1e9, 0.6e9);
  EXPECT_EQ(FindModel("llama-7b").value().KvBytesPerToken(), 512 * 1024);
  EXPECT_EQ(FindModel("llama-3-8b").value().KvBytesPerToken(), 128 * 1024);
}

// Chameleon: a rank-32 adapter is 64 MB for Llama-7B, 256 MB for Llama-70B.
TEST(Devices, AdaptersAreAsLargeAsChameleonSays) {
  EXPECT_EQ(32 * FindModel("llama-7b").value().AdapterBytesPerRank(), 64 << 20);
  EXPECT_NEAR(32.0 * static_cast<double>(FindModel("llama-70b").value().AdapterBytesPerRank()), 256e6, 10e6);
}

TEST(Devices, TargetsAndShapesOfFiles) {
  const ModelShape llama = FindModel("llama-7b").value();
  const auto targets = ParseLoraTargets({"q", "v_proj", "down"}).value();
  EXPECT_EQ(llama.AdapterBytesPerRank(targets), 2 * 32 * (2 * 8192 + 4096 + 11008));
  EXPECT_FALSE(ParseLoraTargets({"q", "router"}).ok());
  EXPECT_FALSE(ParseLoraTargets({}).ok());
  const ModelConfig config{.hidden_size = 1024,
                           .num_layers = 2,
                           .num_heads = 16,
                           .num_kv_heads = 8,
                           .head_dim = 128,
                           .intermediate_size = 3072,
                           .vocab_size = 1000,
                           .tie_word_embeddings = true};
  const ModelShape shape = ShapeOf(config, "mine");
  EXPECT_EQ(shape.QueryWidth(), 2048);
  EXPECT_EQ(shape.KvBytesPerToken(), 2 * 2 * 2 * 1024);
  EXPECT_EQ(shape.Parameters(), 2 * (1024 * (2 * 2048 + 2 * 1024) + 3 * 1024 * 3072) + 1000 * 1024);
}

// Layers of linear attention have no keys and values, but states, which a step reads and writes.
TEST(Devices, ShapesOfHybridModels) {
  RecurrentConfig recurrent{.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128};
  for (int layer = 0; layer < 32; ++layer) recurrent.layers.push_back(layer % 4 != 3);
  ModelConfig config{.hidden_size = 4096,
                     .num_layers = 32,
                     .num_heads = 16,
                     .num_kv_heads = 4,
                     .head_dim = 256,
                     .intermediate_size = 12288,
                     .vocab_size = 248320};
  config.output_gate = true;
  config.recurrent = recurrent;
  const ModelShape shape = ShapeOf(config, "mine"), named = FindModel("qwen3.5-9b").value();
  EXPECT_EQ(shape.Parameters(), named.Parameters());
  EXPECT_EQ(shape.state_bytes, named.state_bytes);
  EXPECT_EQ(named.KvBytesPerToken(), 2 * 2 * 8 * 1024);
  EXPECT_EQ(named.AdapterBytesPerRank(), 2 * 8 * ((4096 + 8192) + (4096 + 4096) + 2 * (4096 + 1024)));
  EXPECT_EQ(shape.AdapterBytesPerRank(), named.AdapterBytesPerRank());
  const SimulatedDevice device = DescribeDevice(FindDevice("a40").value(), named).value();
  EXPECT_EQ(device.StatePages(), 101);  // 52,690,944 bytes in pages of 512 KiB
  SimulationOptions options;
  options.device = device;
  EXPECT_EQ(SpecOf(options, 4096).value().state_pages, 101);
  ModelShape stateless = named;
  stateless.state_bytes = 0;
  const SimulatedDevice without = DescribeDevice(FindDevice("a40").value(), stateless).value();
  EXPECT_EQ(without.StatePages(), 0);
  const double seconds =
      device.model.SecondsOf({.decode_sequences = 10}) - without.model.SecondsOf({.decode_sequences = 10});
  EXPECT_NEAR(seconds, 10 * 2 * 52690944 / (696e9 * 0.8), 0.01 * seconds);
}

// Mamba-2 makes all that it computes of its input at first in one product.
TEST(Devices, ShapesOfMambaModels) {
  ModelConfig config{.hidden_size = 64,
                     .num_layers = 3,
                     .num_heads = 4,
                     .num_kv_heads = 2,
                     .head_dim = 16,
                     .intermediate_size = 96,
                     .vocab_size = 100};
  config.recurrent = RecurrentConfig{
      .mamba = true, .key_heads = 2, .value_heads = 8, .key_dim = 16, .value_dim = 16, .layers = {true, false, true}};
  config.tie_word_embeddings = true;
  const ModelShape shape = ShapeOf(config, "mine");
  const std::int64_t mamba = 64 * (2 * 128 + 2 * 2 * 16 + 8) + 128 * 64;  // in_proj, out_proj
  const std::int64_t attention = 64 * (64 + 2 * 32) + 64 * 64;
  EXPECT_EQ(shape.Parameters(), 2 * mamba + attention + 3 * 3 * 64 * 96 + 100 * 64);
  EXPECT_EQ(shape.state_bytes, 2 * (3 * (128 + 2 * 2 * 16) + 8 * 16 * 16) * 4);
  EXPECT_EQ(shape.KvBytesPerToken(), 2 * 2 * 32);
}

// Without a gate a block has two matrices; what the sizes do not say is counted from the configuration.
TEST(Devices, ShapesOfOtherFamilies) {
  ModelConfig config{.hidden_size = 64,
                     .num_layers = 2,
                     .num_heads = 4,
                     .num_kv_heads = 4,
                     .head_dim = 16,
                     .intermediate_size = 256,
                     .vocab_size = 1000};
  config.gated = false;
  const std::int64_t layer = 4 * 64 * 64 + 2 * 64 * 256;
  EXPECT_EQ(ShapeOf(config, "m").Parameters(), 2 * layer + 2 * 1000 * 64);
  EXPECT_EQ(ShapeOf(config, "m").more_products, 0);
  const auto all = ParseLoraTargets({"gate", "up", "down"}).value();
  EXPECT_EQ(ShapeOf(config, "m").AdapterBytesPerRank(all), 2 * 2 * 2 * (64 + 256));

  config.embedding_size = 32;  // as OPT-350M's
  config.max_position = 128;
  config.position_rows_before = 2;
  EXPECT_EQ(ShapeOf(config, "m").Parameters(), 2 * layer + 2 * 1000 * 32 + 2 * 32 * 64 + 130 * 64);

  config = {.hidden_size = 64,
            .num_layers = 2,
            .num_heads = 4,
            .num_kv_heads = 4,
            .head_dim = 16,
            .intermediate_size = 256,
            .vocab_size = 1000,
            .tie_word_embeddings = true};
  config.layer_input_size = 8;  // as Gemma 4's
  const std::int64_t gated = 4 * 64 * 64 + 3 * 64 * 256, inputs = 2 * 64 * 8;
  EXPECT_EQ(ShapeOf(config, "m").Parameters(), 2 * (gated + inputs) + 1000 * 64 + 64 * 16 + 1000 * 16);

  config.layer_input_size = 0;
  config.experts = ExpertsConfig();
  config.experts->layers = {true, true};
  config.experts->route.experts = 8;
  config.experts->route.per_token = 2;
  config.experts->intermediate_size = 32;
  config.experts->shared_size = 48;
  config.experts->shared_gate = true;
  const ModelShape experts = ShapeOf(config, "m");
  const std::int64_t shared = 3 * 64 * 48 + 64, all_experts = 8 * 3 * 64 * 32 + 8 * 64;
  EXPECT_EQ(experts.Parameters(), 2 * (4 * 64 * 64 + shared + all_experts) + 1000 * 64);
  EXPECT_EQ(experts.Parameters() - experts.ActiveParameters(), 2 * 6 * 3 * 64 * 32);

  config.experts->layers = {false, true};  // the first has the usual block
  const ModelShape one_dense = ShapeOf(config, "m");
  EXPECT_EQ(one_dense.Parameters(), 2 * 4 * 64 * 64 + 3 * 64 * 256 + shared + all_experts + 1000 * 64);
  EXPECT_EQ(one_dense.Parameters() - one_dense.ActiveParameters(), 6 * 3 * 64 * 32);
  EXPECT_EQ(one_dense.AdapterBytesPerRank(all), 2 * 3 * (64 + 32) * 8);
}

SimulatedDevice Describe(const char* device, const char* model, std::int64_t gpus = 1) {
  return DescribeDevice(FindDevice(device).value(), FindModel(model).value(), gpus).value();
}

TEST(Devices, DecodeIsBoundByBandwidthAndPrefillByArithmetic) {
  const SimulatedDevice a40 = Describe("a40", "llama-7b");
  // 13.2 GB of weights at 80 % of 696 GB/s.
  EXPECT_NEAR(a40.model.SecondsOf({.decode_sequences = 1, .decode_context = 1}), 0.0237 + 0.0015, 0.001);
  // 1,000 tokens x 13.2 GFLOP at 55 % of 149.7 TFLOPS; reading the weights is hidden behind it.
  EXPECT_NEAR(a40.model.SecondsOf({.prefill_tokens = 1000, .prefill_attention = 500'500}), 0.160 + 0.006 + 0.0015,
              0.003);
  // 20,000 tokens of context are 10.5 GB, read in addition to the weights.
  EXPECT_NEAR(a40.model.SecondsOf({.decode_sequences = 20, .decode_context = 20'000}), 0.0237 + 0.0188 + 0.0015, 0.001);
  EXPECT_LT(Describe("h100", "llama-7b").model.SecondsOf({.decode_sequences = 1}),
            a40.model.SecondsOf({.decode_sequences = 1}) / 3);
}

TEST(Devices, MemoryAndTensorParallelism) {
  const SimulatedDevice one = Describe("a100-80", "llama-7b"), two = Describe("a100-80", "llama-7b", 2);
  EXPECT_NEAR(static_cast<double>(one.device_pages * one.page_bytes), 0.9 * 80 * 1024 * 1024 * 1024 - 13.5e9, 0.1e9);
  EXPECT_GT(two.device_pages, 2 * one.device_pages);
  EXPECT_NEAR(two.model.host_to_device.bytes_per_second / one.model.host_to_device.bytes_per_second, 2, 1e-9);
  const StepLoad prefill{.prefill_tokens = 4000}, decode{.decode_sequences = 1};
  EXPECT_GT(two.model.SecondsOf(prefill), one.model.SecondsOf(prefill) / 2);  // the all-reduces
  EXPECT_LT(two.model.SecondsOf(prefill), one.model.SecondsOf(prefill));
  EXPECT_LT(two.model.SecondsOf(decode), one.model.SecondsOf(decode));
  const auto refused = DescribeDevice(FindDevice("a10").value(), FindModel("llama-70b").value());
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("--gpus"), std::string::npos);
  EXPECT_FALSE(DescribeDevice(FindDevice("a10").value(), FindModel("llama-7b").value(), 0).ok());
  for (const char* name : {"l4", "l40s", "rtx-4090"}) EXPECT_GT(Describe(name, "llama-3-8b").device_pages, 0) << name;
  EXPECT_NE(FindDevice("a41").error().message.find("a100-80"), std::string::npos);
}

// Two stages of Llama-7B on A40s, by hand. The weights are split, and the memory of both is free for the rest. A step
// of 40 decodes is two microbatches of 20, each of which reads all weights on its way: 23.7 ms and half of the keys and
// values, where one device reads them all. One sequence alone has no other microbatch beside it, and gains nothing.
TEST(Devices, StagesOfAPipelineHaveAMicrobatchEach) {
  const DeviceShape a40 = FindDevice("a40").value();
  const ModelShape model = FindModel("llama-7b").value();
  const SimulatedDevice one = DescribeDevice(a40, model).value();
  const SimulatedDevice two = DescribeDevice(a40, model, 1, 0.9, kAttentionTargets, 2).value();
  EXPECT_EQ(two.device_pages, one.PagesOf(2 * 0.9 * a40.memory_bytes - static_cast<double>(model.WeightBytes())));
  EXPECT_EQ(two.model.host_to_device.bytes_per_second, 2 * one.model.host_to_device.bytes_per_second);
  const StepLoad decodes{.decode_sequences = 40, .decode_context = 40'000};
  EXPECT_NEAR(one.SecondsOf(decodes), 0.0237 + 0.0376 + 0.0015, 0.001);
  EXPECT_NEAR(two.SecondsOf(decodes), 0.0237 + 0.0188 + 0.0015, 0.001);
  const StepLoad alone{.decode_sequences = 1, .decode_context = 1000};
  EXPECT_GE(two.SecondsOf(alone), one.SecondsOf(alone));
  EXPECT_NEAR(two.SecondsOf(alone), one.SecondsOf(alone), 0.0005);
  const StepLoad prompts{.prefill_tokens = 2000, .prefill_attention = 1'001'000, .prefill_sequences = 2};
  EXPECT_NEAR(two.SecondsOf(prompts) / one.SecondsOf(prompts), 0.5, 0.02);
  // One prompt is in one microbatch, whatever the others are.
  const StepLoad prompt{.prefill_tokens = 2000, .prefill_attention = 2'001'000, .prefill_sequences = 1};
  EXPECT_GE(two.SecondsOf(prompt), one.SecondsOf(prompt));
  const StepLoad mixed{.prefill_tokens = 2000,
                       .decode_sequences = 39,
                       .prefill_attention = 2'001'000,
                       .decode_context = 39'000,
                       .prefill_sequences = 1};
  EXPECT_GE(two.SecondsOf(mixed), one.SecondsOf(prompt));
  EXPECT_LT(two.SecondsOf(mixed), one.SecondsOf(mixed));
  EXPECT_EQ(one.SecondsOf(decodes), one.model.SecondsOf(decodes));
  EXPECT_FALSE(DescribeDevice(a40, model, 1, 0.9, kAttentionTargets, 0).ok());
  EXPECT_EQ(DescribeDevice(a40, model, 1, 0.9, kAttentionTargets, 33).error().param, "--pipeline-stages");
}

TEST(Devices, AdapterPagesRoundUp) {
  const SimulatedDevice a40 = Describe("a40", "llama-7b");  // pages of 8 MiB, 2 MiB per rank
  EXPECT_EQ(a40.page_bytes, 8 << 20);
  EXPECT_EQ(a40.AdapterPages(8), 2);
  EXPECT_EQ(a40.AdapterPages(9), 3);
  EXPECT_EQ(a40.AdapterPages(128), 32);
}

// ---- Links

TransferJob Job(std::uint64_t id, TransferKind kind, std::size_t pages,
                std::shared_ptr<AdapterVersion> adapter = nullptr) {
  const bool disk = kind == TransferKind::kDiskToHost || kind == TransferKind::kDiskToDevice,
             to_device = kind == TransferKind::kHostToDevice || kind == TransferKind::kDiskToDevice;
  const Tier other = to_device ? Tier::kHost : Tier::kDevice;
  return {.id = id,
          .from = {disk ? Tier::kDisk : other, std::vector<std::uint32_t>(disk ? 0 : pages)},
          .to = {to_device ? Tier::kDevice : Tier::kHost, std::vector<std::uint32_t>(pages)},
          .adapter = std::move(adapter),
          .page_bytes = 1000};
}

TEST(SimulatedTransfer, KvAndAdaptersQueueOnOneLink) {
  VirtualClock clock;
  EventQueue events;
  PerformanceModel model;
  model.host_to_device = model.device_to_host = {.latency = 1e-6, .bytes_per_second = 1e9};  // a page per microsecond
  model.disk = {.latency = 0, .bytes_per_second = 1e8};
  SimulatedTransfer transfer(&clock, &events, model, false);
  auto version = std::make_shared<AdapterVersion>();
  version->generation = AdapterGeneration{1};
  version->layout.payload_bytes = 3500;  // fills four pages
  transfer.Submit(Job(1, TransferKind::kHostToDevice, 4, version));
  transfer.Submit(Job(2, TransferKind::kHostToDevice, 2));
  transfer.Submit(Job(3, TransferKind::kDeviceToHost, 2));  // the other direction is free
  std::map<TimeNs, std::uint64_t> ends;
  while (!events.empty()) {
    clock.AdvanceTo(events.Pop().at);
    if (const auto done = transfer.Poll()) ends[clock.Now()] = done->id;
  }
  EXPECT_EQ(ends, (std::map<TimeNs, std::uint64_t>{{3000, 3}, {4500, 1}, {6500, 2}}));
  EXPECT_EQ(transfer.links().to_device.bytes(), 5500);
  EXPECT_EQ(transfer.links().to_device.busy(), 5500);
}

TEST(SimulatedTransfer, OnlyTheFirstMoveFromHostMemoryIsFree) {
  VirtualClock clock;
  EventQueue events;
  PerformanceModel model;
  model.disk = {.latency = 0, .bytes_per_second = 1e9};
  model.host_to_device = {.latency = 0, .bytes_per_second = 1e9};
  SimulatedTransfer transfer(&clock, &events, model, /*in_host_memory=*/true);
  auto version = std::make_shared<AdapterVersion>();
  version->generation = AdapterGeneration{1};
  version->layout.payload_bytes = 1000;
  transfer.Submit(Job(1, TransferKind::kDiskToHost, 1, version));
  EXPECT_EQ(events.Pop().at, 0);
  EXPECT_EQ(transfer.Poll()->id, 1u);
  transfer.Submit(Job(2, TransferKind::kDiskToHost, 1, version));
  EXPECT_EQ(events.Pop().at, 1000);
  EXPECT_FALSE(transfer.Poll().has_value());
}

// Each copy of a piece costs as much as its start does, whatever its size.
TEST(SimulatedTransfer, PiecesCostTheirStart) {
  SimulatedLink link({.latency = 1e-6, .bytes_per_second = 1e9, .piece_bytes = 1000, .per_piece = 5e-6});
  const SimulatedLink::Arrival first = link.Occupy(2500, 0), second = link.Occupy(1000, 0);
  const auto near = [](TimeNs time, TimeNs expected) { return std::abs(time - expected) <= 2; };  // rounded up
  EXPECT_TRUE(near(first.ends, 1000 + 2500 + 3 * 5000)) << first.ends;
  EXPECT_EQ(second.begins, first.ends);  // the latency is beside the link's use
  EXPECT_TRUE(near(second.ends, first.ends + 1000 + 5000)) << second.ends;
  EXPECT_TRUE(near(link.busy(), 2500 + 1000 + 4 * 5000)) << link.busy();
}

// CaraServe's example (2.3): an objective of 36 ms for a decoding step, and a request of rank 64. With the padded
// kernel it belongs to instance 2, with the kernel at true ranks to instance 1. The notes give no batches; these are
// this project's: 24 requests of rank 32 and 16 of rank 64, each with an adapter of its own, after 128 tokens.
TEST(Devices, TheRequestOfCaraServesExampleBelongsToAnotherInstanceWithEachKernel) {
  const std::array targets = {LoraTarget::kQ, LoraTarget::kK, LoraTarget::kV};
  PerformanceModel model =
      DescribeDevice(FindDevice("a10").value(), FindModel("llama-7b").value(), 1, 0.9, targets).value().model;
  const auto step_ms = [&model](std::int64_t others, std::int64_t rank) {
    const std::int64_t all = others + 1, sum = others * rank + 64;
    return 1e3 * model.SecondsOf({.decode_sequences = all,
                                  .decode_context = all * 128,
                                  .adapter_tokens = all,
                                  .rank_sum = sum,
                                  .max_rank = 64,
                                  .distinct_adapters = all,
                                  .token_ranks = sum});
  };
  constexpr double kObjectiveMs = 36;
  model.shape = LoraCostShape::kBgmv;
  EXPECT_GT(step_ms(24, 32), kObjectiveMs);  // instance 1: all 25 are computed as wide as rank 64
  EXPECT_LT(step_ms(16, 64), kObjectiveMs);  // instance 2
  const double padded = step_ms(24, 32);
  model.shape = LoraCostShape::kMbgmv;
  EXPECT_LT(step_ms(24, 32), kObjectiveMs);  // instance 1
  EXPECT_LT(step_ms(24, 32), padded);
}

// Chameleon's figure 14: S-LoRA's loads take up to 30 ms, and Chameleon's, of small adapters, up to 6 ms.
TEST(SimulatedTransfer, SLoraMovesAnAdapterTwiceAndCopiesItOnTheDevice) {
  const auto load_ms = [](std::string_view preset, std::int64_t rank) {
    VirtualClock clock;
    EventQueue events;
    PerformanceModel model;
    model.host_to_device = {.latency = 1e-4, .bytes_per_second = 25e9};
    const ProgramCosts program = FindPreset(preset).value().program;
    SimulatedTransfer transfer(&clock, &events, model, /*in_host_memory=*/true, 0, program);
    auto version = std::make_shared<AdapterVersion>();
    version->generation = AdapterGeneration{1};
    version->layout.payload_bytes = rank * Describe("a40", "llama-7b").adapter_bytes_per_rank;
    const auto pages = static_cast<std::size_t>(version->layout.payload_bytes) / 1000 + 1;  // pages of the job
    transfer.Submit(Job(1, TransferKind::kHostToDevice, pages, version));
    return static_cast<double>(events.Pop().at) / kNsPerMs;
  };
  EXPECT_NEAR(load_ms("s-lora", 128), 2 * 268.4 / 25 + 3.1, 0.1);  // 24.6 ms
  EXPECT_NEAR(load_ms("chameleon", 16), 5.8, 0.1);
  EXPECT_NEAR(load_ms("loramux", 128), 268.4 / 25 + 0.1, 0.1);
}

// ---- The executor

TEST(LoadSearch, FindsTheLoadThatIsSustained) {
  SimulationOptions options{.device = Describe("a40", "llama-7b"), .preset = FindPreset("fifo").value()};
  WorkloadOptions load{.requests = 300, .rate = 1, .input_mean = 256, .output_mean = 32, .adapters = 10, .ranks = {8}};
  const TimeNs low_load = LowLoadTime(options, load).value();
  // 31 decodes of 25 ms and a prompt of 43 ms: about 0.8 s.
  EXPECT_NEAR(static_cast<double>(low_load) / kNsPerSecond, 0.82, 0.12);
  const SustainedLoad found = FindSustainedLoad(options, load, low_load).value();
  EXPECT_GT(found.rate, 2);
  for (const LoadProbe& probe : found.probes) EXPECT_EQ(probe.within, probe.rate <= found.rate) << probe.rate;
  const auto next =
      std::find_if(found.probes.begin(), found.probes.end(), [&](const LoadProbe& p) { return p.rate > found.rate; });
  ASSERT_NE(next, found.probes.end());
  EXPECT_LE(next->rate, found.rate * 1.021);
  EXPECT_FALSE(found.at_least);
  EXPECT_EQ(FindSustainedLoad(options, load, kNsPerUs).value().rate, 0);
}

TEST(LoadSearch, InHasteItFindsTheSame) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SimulationOptions options{.device = Describe("a40", "llama-7b"),
                              .preset = FindPreset(seed % 2 == 0 ? "loramux" : "s-lora").value(),
                              .seed = seed};
    const WorkloadOptions load{
        .requests = 2400, .rate = 1, .input_mean = 200, .output_mean = 12, .adapters = 20, .seed = seed};
    LoadSearch search{.objective = {.ttft = kNsPerSecond}};
    if (seed > 3) search.objective.tpot = 60 * kNsPerMs;
    options.preset.spec.objective = search.objective.ttft;
    double last = 0;
    search.progress = [&](double share) {
      EXPECT_GE(share, 0);
      EXPECT_LE(share, 1);
      last = share;
    };
    const SustainedLoad hastened = FindSustainedLoad(options, load, search).value();
    EXPECT_GT(last, 0.5);
    search.hasten = false;
    const SustainedLoad thorough = FindSustainedLoad(options, load, search).value();
    EXPECT_GT(thorough.rate, 1);
    EXPECT_EQ(hastened.rate, thorough.rate) << seed;
    EXPECT_LT(hastened.probes.size(), thorough.probes.size());
    for (const LoadProbe& probe : hastened.probes) EXPECT_EQ(probe.within, probe.rate <= hastened.rate) << probe.rate;
  }
}

TEST(Objective, AsManyMayMissAsTheShareAllows) {
  for (const std::int64_t requests : {1, 7, 99, 100, 101, 2000, 19366}) {
    const auto all = static_cast<double>(requests);
    for (const double share : {0.0, 0.5, 0.9, 0.95, 0.99, 1.0}) {
      const std::int64_t most = MostMissed(requests, share);
      EXPECT_GE((all - static_cast<double>(most)) / all, share);
      EXPECT_TRUE(most == requests || (all - static_cast<double>(most + 1)) / all < share);
    }
    // One more, and the percentile is beyond whatever the others have.
    std::vector<double> values(static_cast<std::size_t>(requests), 1.0);
    const std::int64_t most = MostMissedOfP99(requests);
    for (std::int64_t i = 0; i <= most && i < requests; ++i) values[static_cast<std::size_t>(i)] = 2;
    EXPECT_EQ(Summarise(values).p99, 2) << requests;
  }
}

TEST(Objective, ARunIsGivenUpOnlyWhenTheObjectiveIsOutOfReach) {
  const SimulationOptions options{.device = Describe("a40", "llama-7b"), .preset = FindPreset("fifo").value()};
  const WorkloadOptions load{.requests = 400, .rate = 6, .input_mean = 200, .output_mean = 30, .adapters = 10};
  const Workload workload = MakeWorkload(load).value();
  const SimulationResult whole = Simulate(options, workload).value();
  int given_up = 0;
  for (const TimeNs ttft : {kNsPerSecond / 10, kNsPerSecond, 4 * kNsPerSecond, 60 * kNsPerSecond}) {
    SimulationOptions bounded = options;
    bounded.give_up = {{.ttft = ttft}, MostMissedOfP99(400)};
    const SimulationResult result = Simulate(bounded, workload).value();
    const bool keeps = Summarise(whole, ttft).ttft.p99 * kNsPerMs <= static_cast<double>(ttft);
    given_up += result.given_up;
    EXPECT_TRUE(keeps ? !result.given_up : true) << ttft;
    if (!result.given_up) {
      EXPECT_EQ(result.end, whole.end);
    } else {
      EXPECT_LT(result.end, whole.end);
    }
  }
  EXPECT_GE(given_up, 1);
  EXPECT_LT(given_up, 4);
}

// The mean of TTFT alone decides whether a run with a bound on their sum is given up.
TEST(Objective, ARunIsGivenUpWhenItsMeanIsOutOfReach) {
  const SimulationOptions options{.device = Describe("a40", "llama-7b"), .preset = FindPreset("fifo").value()};
  const WorkloadOptions load{.requests = 400, .rate = 6, .input_mean = 200, .output_mean = 30, .adapters = 10};
  const Workload workload = MakeWorkload(load).value();
  const SimulationResult whole = Simulate(options, workload).value();
  const double mean = Summarise(whole, TimeNs{0}).ttft.mean;
  for (const double factor : {0.1, 0.5, 0.99, 1.01, 2.0}) {
    SimulationOptions bounded = options;
    bounded.give_up.most_ttft_sum = factor * mean * kNsPerMs * 400;
    const SimulationResult result = Simulate(bounded, workload).value();
    EXPECT_EQ(result.given_up, factor < 1) << factor;
    if (!result.given_up) {
      EXPECT_EQ(result.end, whole.end);
    } else {
      EXPECT_LT(result.end, whole.end);
    }
  }
}

TEST(Devices, PagesOfAnotherSizeHoldTheSameMemory) {
  const SimulatedDevice device = Describe("a40", "llama-7b"), blocks = device.WithPageTokens(32);
  EXPECT_EQ(blocks.page_bytes, 2 * device.page_bytes);
  EXPECT_EQ(blocks.device_pages, device.device_pages / 2);
  EXPECT_EQ(blocks.AdapterPages(64), (device.AdapterPages(64) + 1) / 2);
  EXPECT_EQ(blocks.WithPageTokens(32).page_bytes, blocks.page_bytes);
}

TEST(Objective, EachPartIsCountedByItself) {
  SimulationResult result;
  const auto add = [&](double ttft, double last, std::int32_t tokens) {
    result.requests.push_back({.arrival = 0,
                               .first_scheduled = 0,
                               .first_token = static_cast<TimeNs>(ttft * kNsPerSecond),
                               .last_token = static_cast<TimeNs>(last * kNsPerSecond),
                               .output_tokens = tokens});
  };
  add(1, 2, 11);    // TPOT 0.1 s, 0.18 s per token
  add(3, 3.5, 11);  // TPOT 0.05 s, late
  add(1, 4, 11);    // TPOT 0.3 s
  add(1, 1, 1);     // one token
  result.end = 4 * kNsPerSecond;
  const SimulationSummary s =
      Summarise(result, {.ttft = 2 * kNsPerSecond, .token = kNsPerSecond / 5, .tpot = kNsPerSecond / 10});
  EXPECT_EQ(s.within_slo, 0.75);
  EXPECT_EQ(s.within_tpot, 0.75);
  EXPECT_EQ(s.within_token, 0.25);
  EXPECT_EQ(s.attained, 0.25);
  EXPECT_EQ(Summarise(result, {.ttft = 2 * kNsPerSecond, .tpot = kNsPerSecond / 10}).attained, 0.5);
}

TEST(LoadSearch, SaysWhenNoLoadWasTooHigh) {
  const SimulationOptions options{.device = Describe("a40", "llama-7b"), .preset = FindPreset("fifo").value()};
  const WorkloadOptions load{
      .requests = 10, .rate = 1000, .input_mean = 20, .output_mean = 4, .adapters = 2, .ranks = {8}};
  const SustainedLoad found = FindSustainedLoad(options, load, 3600 * kNsPerSecond).value();
  EXPECT_TRUE(found.at_least);
  EXPECT_GT(found.rate, kMaxRate / 2);
}

TEST(LoadSearch, AnObjectiveNeedsARequestThatFits) {
  SimulationOptions options{.device = Describe("a40", "llama-7b"), .preset = FindPreset("fifo").value()};
  options.device.device_pages = 10;  // pages of 16 tokens
  const auto low_load =
      LowLoadTime(options, {.requests = 20, .rate = 1, .input_mean = 1000, .input_cv = 0, .adapters = 0});
  ASSERT_FALSE(low_load.ok());
  EXPECT_EQ(low_load.error().param, "--ttft-objective");
}

}  // namespace
}  // namespace loramux::models_test
