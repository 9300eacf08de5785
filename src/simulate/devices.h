// Built-in descriptions of accelerators and models, based on published rates, and what follows from them: the
// performance model, the sizes of pages and adapters, and the memory left for them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "costs/performance_model.h"
#include "formats/adapter_config.h"
#include "formats/model_config.h"

namespace loramux {

// The default targets of an adapter: the four attention projections.
inline constexpr std::array kAttentionTargets = {LoraTarget::kQ, LoraTarget::kK, LoraTarget::kV, LoraTarget::kO};

// A decoder-only transformer with 16-bit weights, keys and values. Dimensions are in elements.
struct ModelShape {
  std::string_view name;
  std::int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, intermediate = 0, vocab = 0;
  std::int64_t head_dim = 0;  // 0: hidden / heads
  bool tied = false;          // whether the embedding matrix is also the output matrix
  // Of a mixture of experts, of which `intermediate` is the size of one; 0: it is none.
  std::int64_t experts = 0, experts_per_token = 0;
  bool gated = true;  // a feed-forward block has three matrices, else two
  // What the sizes above do not say: shared experts, layers of other sizes, inputs of layers, projections; rows of
  // positions and of the layers' inputs. May be negative.
  std::int64_t more_products = 0, more_embeddings = 0;
  // Layers of a mixture of experts that have none, or without a feed-forward block. What they have in its place is in
  // `more_products`, and no target of an adapter.
  std::int64_t dense_layers = 0;
  // Layers without keys and values, most of which carry a state from token to token, and the bytes of a sequence's
  // states in all layers. The products of recurrences are in `more_products`, and no target of an adapter here.
  std::int64_t state_layers = 0, state_bytes = 0;
  bool output_gate = false;  // q_proj has a gate as wide as the queries

  std::int64_t AttentionLayers() const { return layers - state_layers; }
  std::int64_t HeadDim() const { return head_dim > 0 ? head_dim : hidden / heads; }
  std::int64_t QueryWidth() const { return heads * HeadDim(); }
  std::int64_t QProjWidth() const { return output_gate ? 2 * QueryWidth() : QueryWidth(); }
  std::int64_t KvWidth() const { return kv_heads * HeadDim(); }
  // Those of one feed-forward block, or of one expert.
  std::int64_t BlockParameters() const { return (gated ? 3 : 2) * hidden * intermediate; }
  std::int64_t Parameters() const;        // including embeddings and output matrix
  std::int64_t MatmulParameters() const;  // without the embeddings
  std::int64_t ActiveParameters() const;  // those of them that each token is multiplied with
  std::int64_t WeightBytes() const { return 2 * Parameters(); }
  std::int64_t KvBytesPerToken() const { return 2 * 2 * AttentionLayers() * KvWidth(); }
  // Bytes per unit of rank of an adapter with these targets: both matrices, 16 bits, all layers. (Rank 32 on q, k, v,
  // o: 64 MiB for Llama-7B.)
  std::int64_t AdapterBytesPerRank(std::span<const LoraTarget> targets = kAttentionTargets) const;
};
// The shape of a model configuration. The data of `name` must outlive the result.
ModelShape ShapeOf(const ModelConfig& config, std::string_view name);
// Parses target names: "q", ..., "down", "lm_head", or as in PEFT's files, "q_proj". Errors: an unknown name, or an
// empty list.
Result<std::vector<LoraTarget>> ParseLoraTargets(const std::vector<std::string>& names);

// One accelerator. Rates are published peaks, per second.
struct DeviceShape {
  std::string_view name, what;
  double memory_bytes = 0, memory_bandwidth = 0;
  double flops = 0;      // dense, 16-bit operations
  double host_link = 0;  // bytes, one direction
  double peer_link = 0;  // bytes, one direction, to the other accelerators of a server
};

// All built-in shapes. Errors of the Find functions: an unknown name; the message lists the valid ones.
std::span<const DeviceShape> DeviceShapes();
std::span<const ModelShape> ModelShapes();
Result<DeviceShape> FindDevice(std::string_view name);
Result<ModelShape> FindModel(std::string_view name);

// The simulated machine.
struct SimulatedDevice {
  std::string name;  // human-readable
  PerformanceModel model;
  std::int64_t page_tokens = 16, page_bytes = 0;
  std::int64_t state_bytes = 0;   // ModelShape
  std::int64_t device_pages = 0;  // for keys, values and adapters
  std::int64_t adapter_bytes_per_rank = 0;
  std::int64_t layers = 0;  // layers of the model; for ProgramCosts::layer_seconds
  // Stages of a pipeline. Each has an equal part of the layers, and so of weights, keys, values and adapters. The
  // sequences of a step pass them in as many microbatches as there are stages. `model` describes one microbatch on its
  // way through all stages.
  std::int64_t stages = 1;

  // Seconds of a step: n stages work on n microbatches at a time, so it takes as long as one of them on its way. A step
  // of fewer sequences has fewer, and leaves stages idle.
  double SecondsOf(const StepLoad& load) const;

  // Pages that an adapter of this rank takes, rounded up.
  std::int64_t AdapterPages(std::int64_t rank) const {
    return (rank * adapter_bytes_per_rank + page_bytes - 1) / page_bytes;
  }
  // Pages of a sequence's states, rounded up.
  std::int64_t StatePages() const { return state_bytes == 0 ? 0 : (state_bytes + page_bytes - 1) / page_bytes; }
  // The same machine with pages of so many positions. REQUIRES: tokens > 0.
  SimulatedDevice WithPageTokens(std::int64_t tokens) const {
    SimulatedDevice other = *this;
    other.page_bytes = page_bytes / page_tokens * tokens;
    other.device_pages = device_pages * page_tokens / tokens;
    other.page_tokens = tokens;
    return other;
  }
  // Whole pages in `bytes`.
  std::int64_t PagesOf(double bytes) const {
    return static_cast<std::int64_t>(bytes / static_cast<double>(page_bytes));
  }
};

// Describes `gpus` accelerators combined by tensor parallelism, or `stages` times as many as a pipeline of such groups.
// `memory_share` of the memory may be used. Errors: `gpus` outside 1 to 64, `stages` outside 1 to the number of layers,
// or no memory left beside the weights.
Result<SimulatedDevice> DescribeDevice(const DeviceShape& device, const ModelShape& model, std::int64_t gpus = 1,
                                       double memory_share = 0.9,
                                       std::span<const LoraTarget> targets = kAttentionTargets,
                                       std::int64_t stages = 1);

}  // namespace loramux
