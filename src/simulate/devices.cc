#include "simulate/devices.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/ceil_divide.h"

namespace loramux {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

// Shares of the published peaks that serving software reaches: one set for all devices and models, not fitted to any
// document's results.
constexpr double kBandwidthShare = 0.8;       // a copy kernel reaches 80 to 90 % of the memory's peak
constexpr double kFlopsShare = 0.55;          // dense products of a prompt; cuBLAS reaches 60 to 70 % on large ones
constexpr double kAttentionFlopsShare = 0.3;  // FlashAttention-2 on an A100, with short sequences
constexpr double kLoraFlopsShare = 0.1;       // products as thin as a rank: bound by gathering and by kernel launches
constexpr double kHostLinkShare = 0.8;        // pinned copies over PCIe 4.0 x16 reach 25 of 31.5 GB/s
constexpr double kPeerLinkShare = 0.7;        // all-reduce
constexpr double kStepSeconds = 1.5e-3;       // planning, launches, sampling: per step, beside the products
constexpr double kTransferSeconds = 100e-6;   // to start a copy of many pieces
constexpr double kAllReduceSeconds = 10e-6;   // latency of an all-reduce; two per layer
// bytes per second: an NVMe drive on PCIe 4.0 x4, read through a file system
constexpr double kDiskBandwidth = 3e9;
constexpr double kDiskSeconds = 1e-3;

// The host's processor: 16 cores of AMD EPYC 7R32 (as in AWS g5.8xlarge, with an A10) at 2.8 GHz with 32 32-bit
// operations per cycle (AVX2, two FMAs). A product as thin as a rank reaches half of that.
constexpr std::int64_t kCpuCores = 16;
constexpr double kCoreFlops = 2.8e9 * 32 * 0.5;
constexpr double kCpuSignalSeconds = 20e-6;  // through shared memory, round trip, per layer

// NVIDIA's data sheets: memory, its bandwidth, dense fp16 tensor FLOPs (half of the figure "with sparsity"). PCIe 4.0
// x16 has 31.5 GB/s in one direction, PCIe 5.0 63.0. Peer links are per direction: half of the data sheet's NVLink
// figure.
constexpr std::array kDevices = std::to_array<DeviceShape>({
    // nvidia.com A40 data sheet: 48 GB, 696 GB/s, 149.7 TFLOPS, PCIe 4.0, NVLink 112.5 GB/s.
    {"a40", "A40 48 GB", 48 * kGiB, 696e9, 149.7e12, 31.5e9, 56.25e9},
    // nvidia.com A10 data sheet: 24 GB, 600 GB/s, 125 TFLOPS, PCIe 4.0; no NVLink, so peers use PCIe.
    {"a10", "A10 24 GB", 24 * kGiB, 600e9, 125e12, 31.5e9, 31.5e9},
    // nvidia.com L4 data sheet: 24 GB, 300 GB/s, 242 TFLOPS fp16 with sparsity (121 dense), PCIe 4.0 x16; no NVLink.
    {"l4", "L4 24 GB", 24 * kGiB, 300e9, 121e12, 31.5e9, 31.5e9},
    // nvidia.com L40S data sheet: 48 GB, 864 GB/s, 362.05 TFLOPS fp16 dense (733 with sparsity), PCIe 4.0 x16; no
    // NVLink.
    {"l40s", "L40S 48 GB", 48 * kGiB, 864e9, 362.05e12, 31.5e9, 31.5e9},
    // NVIDIA Ada GPU architecture whitepaper, table of the GeForce RTX 4090: 24 GB, 1,008 GB/s, 165.2 TFLOPS fp16 dense
    // with fp32 accumulation, which products of serving software use; PCIe 4.0 x16; no NVLink, and no peer-to-peer
    // copies either, so activations cross the host's memory: half of the link's rate.
    {"rtx-4090", "GeForce RTX 4090 24 GB", 24 * kGiB, 1008e9, 165.2e12, 31.5e9, 15.75e9},
    // nvidia.com A100 data sheet: 40 GB 1,555 GB/s; 80 GB SXM 2,039 GB/s; 312 TFLOPS; NVLink 600 GB/s. The 24 GB and 48
    // GB entries are an 80 GB card with less memory in use, as in Chameleon 5.5.
    {"a100-24", "A100 limited to 24 GB", 24 * kGiB, 2039e9, 312e12, 31.5e9, 300e9},
    {"a100-40", "A100 40 GB", 40 * kGiB, 1555e9, 312e12, 31.5e9, 300e9},
    {"a100-48", "A100 limited to 48 GB", 48 * kGiB, 2039e9, 312e12, 31.5e9, 300e9},
    {"a100-80", "A100 80 GB", 80 * kGiB, 2039e9, 312e12, 31.5e9, 300e9},
    // nvidia.com H100 SXM data sheet: 80 GB, 3.35 TB/s, 989.4 TFLOPS dense, PCIe 5.0, NVLink 900 GB/s.
    {"h100", "H100 80 GB", 80 * kGiB, 3350e9, 989.4e12, 63e9, 450e9},
    // nvidia.com H200 SXM data sheet: 141 GB (GB of 10^9), 4.8 TB/s; the rest as H100.
    {"h200", "H200 141 GB", 141e9, 4800e9, 989.4e12, 63e9, 450e9},
    // FastLibra, table 1: 64 GB, 256 TFLOPS fp16, PCIe 4.0 x16. The memory's bandwidth is not given; 1.6 TB/s (HBM2E)
    // is our assumption. Peers use PCIe.
    {"npu-64", "FastLibra's NPU, 64 GB", 64 * kGiB, 1600e9, 256e12, 31.5e9, 31.5e9},
});

// Every fourth layer of Qwen 3.5 is attention, whose queries have a gate as wide; the others are gated DeltaNet with a
// convolution over four positions. `keys`, `values`: heads of `dim` elements.
constexpr ModelShape Qwen35(ModelShape shape, std::int64_t keys, std::int64_t values, std::int64_t dim) {
  shape.state_layers = shape.layers / 4 * 3;
  const std::int64_t channels = (2 * keys + values) * dim, wide = values * dim;
  shape.output_gate = true;
  shape.more_products = shape.state_layers * shape.hidden * (channels + 2 * wide + 2 * values);
  shape.state_bytes = shape.state_layers * (3 * channels + wide * dim) * 4;
  return shape;
}

constexpr std::int64_t kOptPositions = 2050;  // 2,048, after two rows that none uses

// From the models' published config.json, or from who repeats it: transformers' default of the class, Lightning AI's
// LitGPT, NVIDIA's Megatron Bridge, table 1 of OPT's paper. models_test.cc compares what follows with the published
// numbers of parameters.
constexpr std::array kModels = std::to_array<ModelShape>({
    {"llama-7b", 32, 4096, 32, 32, 11008, 32000},
    {"llama-13b", 40, 5120, 40, 40, 13824, 32000},
    {"llama-30b", 60, 6656, 52, 52, 17920, 32000},
    {"llama-34b", 48, 8192, 64, 8, 22016, 32000},  // CodeLlama-34B: the only Llama of that size
    {"llama-70b", 80, 8192, 64, 8, 28672, 32000},
    {"llama-3-8b", 32, 4096, 32, 8, 14336, 128256},
    {"llama-3.2-1b", 16, 2048, 32, 8, 8192, 128256, 0, /*tied=*/true},
    {"llama-3.2-3b", 28, 3072, 24, 8, 8192, 128256, 0, /*tied=*/true},
    {"mistral-7b", 32, 4096, 32, 8, 14336, 32000},
    {"qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064},
    {"ministral-3-8b", 34, 4096, 32, 8, 14336, 131072, 128},
    {"qwen3-0.6b", 28, 1024, 16, 8, 3072, 151936, 128, /*tied=*/true},
    {"qwen3-1.7b", 28, 2048, 16, 8, 6144, 151936, 128, /*tied=*/true},
    {"qwen3-4b", 36, 2560, 32, 8, 9728, 151936, 128, /*tied=*/true},
    {"qwen3-8b", 36, 4096, 32, 8, 12288, 151936, 128},
    {"qwen3-14b", 40, 5120, 40, 8, 17408, 151936, 128},
    {"qwen3-32b", 64, 5120, 64, 8, 25600, 151936, 128},
    Qwen35({"qwen3.5-9b", 32, 4096, 16, 4, 12288, 248320, 256}, 16, 32, 128),
    {"gemma-2-2b", 26, 2304, 8, 4, 9216, 256000, 256, /*tied=*/true},
    {"gemma-2-9b", 42, 3584, 16, 8, 14336, 256000, 256, /*tied=*/true},
    {"gemma-2-27b", 46, 4608, 32, 16, 36864, 256000, 128, /*tied=*/true},
    {"gemma-3-1b", 26, 1152, 4, 1, 6912, 262144, 256, /*tied=*/true},
    {"gemma-3-4b", 34, 2560, 8, 4, 10240, 262208, 256, /*tied=*/true},
    {"gemma-3-12b", 48, 3840, 16, 8, 15360, 262208, 256, /*tied=*/true},
    {"gemma-3-27b", 62, 5376, 32, 16, 21504, 262208, 128, /*tied=*/true},
    {"phi-3-mini", 32, 3072, 32, 32, 8192, 32064},
    {"phi-4-mini", 32, 3072, 24, 8, 8192, 200064, 0, /*tied=*/true},
    {"phi-4", 40, 5120, 40, 10, 17920, 100352},
    {"smollm3-3b", 36, 2048, 16, 4, 11008, 128256, 0, /*tied=*/true},
    {"granite-3.3-8b", 40, 4096, 32, 8, 12800, 49159, 0, /*tied=*/true},
    {"olmo-2-7b", 32, 4096, 32, 32, 11008, 100352},
    {"olmo-3-7b", 32, 4096, 32, 32, 11008, 100278},
    {"olmo-3-32b", 64, 5120, 40, 8, 27648, 100278},
    {"glm-4-9b", 40, 4096, 32, 2, 13696, 151552, 128},
    {"exaone-4.0-1.2b", 30, 2048, 32, 8, 4096, 102400, 64, /*tied=*/true},
    {"stablelm-3b", 32, 2560, 32, 32, 6912, 50304},
    {"pythia-1.4b", 24, 2048, 16, 16, 8192, 50304, 0, false, 0, 0, /*gated=*/false},
    {"pythia-6.9b", 32, 4096, 32, 32, 16384, 50432, 0, false, 0, 0, /*gated=*/false},
    {"gpt-neox-20b", 44, 6144, 64, 64, 24576, 50432, 0, false, 0, 0, /*gated=*/false},
    {"falcon-7b", 32, 4544, 71, 1, 18176, 65024, 0, true, 0, 0, /*gated=*/false},
    {"falcon-40b", 60, 8192, 128, 8, 32768, 65024, 0, true, 0, 0, /*gated=*/false},
    {"opt-1.3b", 24, 2048, 32, 32, 8192, 50272, 0, true, 0, 0, /*gated=*/false, 0, kOptPositions * 2048},
    {"opt-2.7b", 32, 2560, 32, 32, 10240, 50272, 0, true, 0, 0, /*gated=*/false, 0, kOptPositions * 2560},
    {"opt-6.7b", 32, 4096, 32, 32, 16384, 50272, 0, true, 0, 0, /*gated=*/false, 0, kOptPositions * 4096},
    {"opt-13b", 40, 5120, 40, 40, 20480, 50272, 0, true, 0, 0, /*gated=*/false, 0, kOptPositions * 5120},
    {"opt-30b", 48, 7168, 56, 56, 28672, 50272, 0, true, 0, 0, /*gated=*/false, 0, kOptPositions * 7168},
    {"opt-66b", 64, 9216, 72, 72, 36864, 50272, 0, true, 0, 0, /*gated=*/false, 0, kOptPositions * 9216},
    {"mixtral-8x7b", 32, 4096, 32, 8, 14336, 32000, 0, false, 8, 2},
    {"mixtral-8x22b", 56, 6144, 48, 8, 16384, 32768, 0, false, 8, 2},
    {"qwen3-30b-a3b", 48, 2048, 32, 4, 768, 151936, 128, false, 128, 8},
    {"qwen3-235b-a22b", 94, 4096, 64, 4, 1536, 151936, 128, false, 128, 8},
    {"gpt-oss-20b", 24, 2880, 64, 8, 2880, 201088, 64, false, 32, 4},
    {"gpt-oss-120b", 36, 2880, 64, 8, 2880, 201088, 64, false, 128, 4},
});

template <typename Shape>
Result<Shape> FindByName(std::span<const Shape> shapes, std::string_view name, const std::string& what,
                         const std::string& flag) {
  std::string valid;
  for (const Shape& shape : shapes) {
    if (shape.name == name) return shape;
    valid += (valid.empty() ? "" : ", ") + std::string(shape.name);
  }
  return InvalidArgument(what + ": expected one of " + valid + ", found '" + std::string(name) + "'", flag);
}

// Rates of `n` devices: n times those of one device, plus two all-reduces per layer.
PerformanceModel ModelOf(const DeviceShape& device, const ModelShape& model, double rank_bytes, double n) {
  const double bandwidth = n * device.memory_bandwidth * kBandwidthShare, flops = n * device.flops;
  const auto states = static_cast<double>(model.state_bytes);
  // A token of gated DeltaNet reads each float of the states twice, and changes it twice: two operations each. One of
  // Mamba-2 does so once.
  const double token_flops = 2.0 * static_cast<double>(model.ActiveParameters()) + 2.0 * states;
  const double layers = static_cast<double>(model.layers), hidden = static_cast<double>(model.hidden);
  // Ring all-reduce: 2 (n - 1) / n of the activations pass each link, twice per layer, in 16 bits.
  const double reduced_bytes = 2 * layers * 2 * (n - 1) / n * hidden * 2;
  const double reduce_token = n > 1 ? reduced_bytes / (device.peer_link * kPeerLinkShare) : 0;
  PerformanceModel result;
  result.step = kStepSeconds + (n > 1 ? 2 * layers * kAllReduceSeconds : 0);
  const auto of_experts = static_cast<double>(2 * (model.MatmulParameters() - model.ActiveParameters()));
  result.dense_floor = static_cast<double>(2 * model.MatmulParameters()) / bandwidth;
  if (model.experts > model.experts_per_token) {
    result.experts = {model.experts, model.experts_per_token};
    // Active parameters lack these experts, so the difference gives the size of one.
    const double all = of_experts / static_cast<double>(model.experts - model.experts_per_token);
    result.expert_floor = all / bandwidth;
    result.dense_floor -= result.expert_floor * static_cast<double>(model.experts);
  }
  result.per_prefill_token = token_flops / (flops * kFlopsShare) + reduce_token;
  result.per_state = 2 * states / bandwidth;
  result.per_decode_sequence = result.per_prefill_token;
  // Scores and weighted sums: two products as wide as the queries, per layer and pair.
  result.per_prefill_attention =
      4 * static_cast<double>(model.AttentionLayers() * model.QueryWidth()) / (flops * kAttentionFlopsShare);
  result.per_decode_context = static_cast<double>(model.KvBytesPerToken()) / bandwidth;
  // An adapter has rank_bytes / 2 elements per rank; each takes a multiplication and an addition per token.
  result.per_adapter_token_rank = rank_bytes / (flops * kLoraFlopsShare);
  result.per_rank = rank_bytes / bandwidth;
  result.per_padded_rank = result.per_adapter_token_rank;
  result.per_padded_adapter = result.per_rank;  // padded matrices are read as wide as the widest
  result.disk = {kDiskSeconds, kDiskBandwidth};
  result.host_to_device = result.device_to_host = {kTransferSeconds, n * device.host_link * kHostLinkShare};
  return result;
}

// A token's activations go from stage to stage, in 16 bits. Each stage loads its part of an adapter over a link of its
// own.
void AddStages(const DeviceShape& device, const ModelShape& model, std::int64_t stages, PerformanceModel& result) {
  const auto hops = static_cast<double>(stages - 1);
  result.step += hops * kAllReduceSeconds;
  const double token = hops * 2 * static_cast<double>(model.hidden) / (device.peer_link * kPeerLinkShare);
  if (stages > 1) {
    result.per_prefill_token += token;
    result.per_decode_sequence += token;
  }
  for (PerformanceModel::Link* link : {&result.host_to_device, &result.device_to_host})
    link->bytes_per_second *= static_cast<double>(stages);
}

// The group of CpuAssist that a target belongs to.
std::size_t AssistGroupOf(LoraTarget target) {
  switch (target) {
    case LoraTarget::kQ:
    case LoraTarget::kK:
    case LoraTarget::kV:
      return 0;
    case LoraTarget::kO:
      return 1;
    case LoraTarget::kGate:
    case LoraTarget::kUp:
      return 2;
    case LoraTarget::kDown:
      return 3;
    case LoraTarget::kLmHead:
    case LoraTarget::kEmbedding:
    case LoraTarget::kRouter:
    case LoraTarget::kSharedGate:
    case LoraTarget::kInQkv:
    case LoraTarget::kInZ:
    case LoraTarget::kInB:
    case LoraTarget::kInA:
    case LoraTarget::kInAll:
    case LoraTarget::kOut:
    case LoraTarget::kInputGate:
    case LoraTarget::kInputProjection:
    case LoraTarget::kLayerContext:
    case LoraTarget::kProjectIn:
    case LoraTarget::kProjectOut:
      break;
  }
  return 4;
}

// Per group: the input goes to the host once, the answer of each target comes back, 16 bits each. The products of a
// layer are those of MatmulParameters.
CpuAssist AssistOf(const DeviceShape& device, const ModelShape& model, std::span<const LoraTarget> targets, double n) {
  CpuAssist assist{.layers = model.layers, .cores = kCpuCores};
  const std::int64_t query = model.QueryWidth(), kv = model.KvWidth(), hidden = model.hidden, wide = model.intermediate;
  const std::int64_t attention = model.AttentionLayers(), q_proj = model.QProjWidth();
  const std::array<std::int64_t, 5> base = {attention * hidden * (q_proj + 2 * kv), attention * query * hidden,
                                            model.layers * (model.gated ? 2 : 1) * hidden * wide,
                                            model.layers * wide * hidden, hidden * model.vocab};
  const std::array<std::int64_t, 5> input = {hidden, query, hidden, wide, hidden};
  std::array<bool, 5> used = {};
  std::int64_t values = 0;
  for (const LoraTarget target : targets) {
    const std::size_t g = AssistGroupOf(target);
    const bool of_layer = target != LoraTarget::kLmHead, narrow = target == LoraTarget::kK || target == LoraTarget::kV;
    const std::int64_t output = target == LoraTarget::kLmHead ? model.vocab
                                : narrow                      ? kv
                                : target == LoraTarget::kQ    ? q_proj
                                : g == 2                      ? wide
                                                              : hidden;
    const std::int64_t times = g < 2 ? attention : of_layer ? model.layers : 1;
    CpuAssist::Group& group = assist.groups[g];
    group.per_token_rank += 2.0 * static_cast<double>(times * (input[g] + output)) / kCoreFlops;
    group.hand_off = static_cast<double>(times) * kCpuSignalSeconds;
    group.base_share = static_cast<double>(base[g]) / static_cast<double>(model.MatmulParameters());
    values += times * (output + (used[g] ? 0 : input[g]));
    used[g] = true;
  }
  assist.per_token = 2.0 * static_cast<double>(values) / (n * device.host_link * kHostLinkShare);
  return assist;
}

}  // namespace

double SimulatedDevice::SecondsOf(const StepLoad& load) const {
  const std::int64_t parts = std::min(stages, load.prefill_sequences + load.decode_sequences);
  if (parts <= 1) return model.SecondsOf(load);
  StepLoad part = load;  // the largest microbatch
  for (std::int64_t* number : {&part.decode_sequences, &part.decode_context, &part.adapter_tokens, &part.rank_sum,
                               &part.distinct_adapters, &part.token_ranks, &part.prefill_sequences})
    *number = CeilDivide(*number, parts);
  // A prompt is in one of them.
  const std::int64_t prompts = std::clamp<std::int64_t>(load.prefill_sequences, 1, parts);
  for (std::int64_t* number : {&part.prefill_tokens, &part.prefill_attention, &part.prefill_context})
    *number = CeilDivide(*number, prompts);
  return model.SecondsOf(part);
}

std::int64_t ModelShape::MatmulParameters() const {
  const std::int64_t attention = hidden * (QProjWidth() + QueryWidth() + 2 * KvWidth());
  const std::int64_t feed_forward = BlockParameters() * std::max<std::int64_t>(1, experts) + hidden * experts;
  return AttentionLayers() * attention + (layers - dense_layers) * feed_forward + hidden * vocab + more_products;
}

std::int64_t ModelShape::ActiveParameters() const {
  return MatmulParameters() - (layers - dense_layers) * BlockParameters() * (experts - experts_per_token);
}

std::int64_t ModelShape::Parameters() const {
  return MatmulParameters() + (tied ? 0 : hidden * vocab) + more_embeddings;
}

std::int64_t ModelShape::AdapterBytesPerRank(std::span<const LoraTarget> targets) const {
  std::int64_t elements = 0;
  for (const LoraTarget target : targets) {
    switch (target) {
      case LoraTarget::kQ:
        elements += AttentionLayers() * (hidden + QProjWidth());
        break;
      case LoraTarget::kO:
        elements += AttentionLayers() * (hidden + QueryWidth());
        break;
      case LoraTarget::kK:
      case LoraTarget::kV:
        elements += AttentionLayers() * (hidden + KvWidth());
        break;
      case LoraTarget::kGate:
        if (!gated) break;
        [[fallthrough]];
      case LoraTarget::kUp:
      case LoraTarget::kDown:
        elements += (layers - dense_layers) * (hidden + intermediate) * std::max<std::int64_t>(1, experts);
        break;
      case LoraTarget::kLmHead:
      case LoraTarget::kEmbedding:
        elements += hidden + vocab;
        break;
      case LoraTarget::kRouter:  // no model with a shape here has these
      case LoraTarget::kSharedGate:
      case LoraTarget::kInQkv:
      case LoraTarget::kInZ:
      case LoraTarget::kInB:
      case LoraTarget::kInA:
      case LoraTarget::kInAll:
      case LoraTarget::kOut:
      case LoraTarget::kInputGate:
      case LoraTarget::kInputProjection:
      case LoraTarget::kLayerContext:
      case LoraTarget::kProjectIn:
      case LoraTarget::kProjectOut:
        break;
    }
  }
  return 2 * elements;
}

namespace {

// The parameters of all products of a model.
std::int64_t ProductsOf(const ModelConfig& config) {
  std::int64_t products = 0;
  const auto add = [&](LoraTarget target, std::int64_t layer, std::int32_t expert = -1, std::int64_t times = 1) {
    const LinearShape shape = TargetShape(config, target, layer, expert);
    products += times * shape.in * shape.out;
  };
  const auto add_block = [&](std::int64_t layer, std::int32_t expert, std::int64_t times) {
    if (config.gated) add(LoraTarget::kGate, layer, expert, times);
    add(LoraTarget::kUp, layer, expert, times);
    add(LoraTarget::kDown, layer, expert, times);
  };
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.IsRecurrent(layer)) {
      if (config.recurrent->mamba) {
        add(LoraTarget::kInAll, layer);
      } else {
        for (const LoraTarget target : {LoraTarget::kInQkv, LoraTarget::kInZ, LoraTarget::kInB, LoraTarget::kInA})
          add(target, layer);
      }
      add(LoraTarget::kOut, layer);
    }
    if (config.HasAttention(layer)) {
      add(LoraTarget::kQ, layer);
      if (!config.SharesKv(layer)) add(LoraTarget::kK, layer);
      if (!config.SharesKv(layer) && !config.ValuesAreKeys(layer)) add(LoraTarget::kV, layer);
      add(LoraTarget::kO, layer);
    }
    if (config.HasOwnBlock(layer)) add_block(layer, -1, 1);
    for (const LoraTarget target : {LoraTarget::kInputGate, LoraTarget::kInputProjection}) add(target, layer);
    if (!config.HasExperts(layer)) continue;
    add(LoraTarget::kRouter, layer);
    if (config.experts->shared_gate) add(LoraTarget::kSharedGate, layer);
    add_block(layer, 0, config.experts->route.experts);
  }
  for (const LoraTarget target :
       {LoraTarget::kLayerContext, LoraTarget::kProjectIn, LoraTarget::kProjectOut, LoraTarget::kLmHead})
    add(target, 0);
  return products;
}

}  // namespace

ModelShape ShapeOf(const ModelConfig& config, std::string_view name) {
  ModelShape shape = {.name = name,
                      .layers = config.num_layers,
                      .hidden = config.hidden_size,
                      .heads = config.num_heads,
                      .kv_heads = config.num_kv_heads,
                      .intermediate = config.experts ? config.experts->intermediate_size : config.intermediate_size,
                      .vocab = config.vocab_size,
                      .head_dim = config.head_dim,
                      .tied = config.tie_word_embeddings,
                      .experts = config.experts ? config.experts->route.experts : 0,
                      .experts_per_token = config.experts ? config.experts->route.per_token : 0,
                      .gated = config.gated,
                      .output_gate = config.output_gate};
  if (config.recurrent) {
    shape.state_layers = config.num_layers - config.KvLayers();
    shape.state_bytes = config.recurrent->StateBytes();
  }
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const bool counts = config.experts ? config.HasExperts(layer) : config.Has(LayerPart::kFeedForward, layer);
    if (!counts) ++shape.dense_layers;
  }
  shape.more_products = ProductsOf(config) - shape.MatmulParameters();
  const std::int64_t embedding = config.EmbeddingSize() - config.hidden_size;
  const std::int64_t positions = config.max_position + config.position_rows_before.value_or(0);
  shape.more_embeddings = (config.tie_word_embeddings ? 0 : embedding * config.vocab_size) +
                          config.vocab_size * config.num_layers * config.layer_input_size +
                          (config.position_rows_before ? positions * config.hidden_size : 0);
  return shape;
}

Result<std::vector<LoraTarget>> ParseLoraTargets(const std::vector<std::string>& names) {
  std::vector<LoraTarget> targets;
  for (const std::string& name : names) {
    for (int i = 0; i < kNumLoraTargets; ++i) {
      const auto target = static_cast<LoraTarget>(i);
      if (name == LoraTargetName(target) || name + "_proj" == LoraTargetName(target)) targets.push_back(target);
    }
  }
  if (targets.size() == names.size() && !targets.empty()) return targets;
  return InvalidArgument("adapter targets: expected one or more of q, k, v, o, gate, up, down, lm_head",
                         "--lora-targets");
}

std::span<const DeviceShape> DeviceShapes() { return kDevices; }
std::span<const ModelShape> ModelShapes() { return kModels; }

Result<DeviceShape> FindDevice(std::string_view name) { return FindByName(DeviceShapes(), name, "device", "--device"); }
Result<ModelShape> FindModel(std::string_view name) { return FindByName(ModelShapes(), name, "model", "--model"); }

Result<SimulatedDevice> DescribeDevice(const DeviceShape& device, const ModelShape& model, std::int64_t gpus,
                                       double memory_share, std::span<const LoraTarget> targets, std::int64_t stages) {
  if (gpus < 1 || gpus > 64)
    return InvalidArgument("tensor parallelism: expected 1 to 64, found " + std::to_string(gpus), "--gpus");
  if (stages < 1 || stages > model.layers) {
    return InvalidArgument("pipeline: expected 1 to " + std::to_string(model.layers) + " stages, as " +
                               std::string(model.name) + " has layers, found " + std::to_string(stages),
                           "--pipeline-stages");
  }
  SimulatedDevice result;
  result.stages = stages;
  const std::string count = gpus == 1 ? "" : std::to_string(gpus) + " x ";
  const std::string in_stages = stages == 1 ? "" : std::to_string(stages) + " stages of ";
  result.name = in_stages + count + std::string(device.what) + ", " + std::string(model.name);
  result.adapter_bytes_per_rank = model.AdapterBytesPerRank(targets);
  result.model = ModelOf(device, model, static_cast<double>(result.adapter_bytes_per_rank), static_cast<double>(gpus));
  result.model.device = result.name;
  AddStages(device, model, stages, result.model);
  result.model.assist = AssistOf(device, model, targets, static_cast<double>(gpus));
  result.page_bytes = result.page_tokens * model.KvBytesPerToken();
  result.state_bytes = model.state_bytes;
  result.layers = model.layers;
  const double left = static_cast<double>(gpus * stages) * device.memory_bytes * memory_share -
                      static_cast<double>(model.WeightBytes());
  result.device_pages = left > 0 ? result.PagesOf(left) : 0;
  if (result.device_pages < 1) {
    return ResourceExhausted(std::string(model.name) + " has " + std::to_string(model.WeightBytes() / 1'000'000'000) +
                                 " GB of weights: they do not fit " + result.name + "; raise --gpus or --memory-share",
                             "--gpus");
  }
  return result;
}

}  // namespace loramux
