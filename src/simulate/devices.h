// Built-in descriptions of accelerators and models, from published rates, and what follows from them: the performance
// model, the sizes of pages and adapters, the memory that is left for them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "formats/adapter_config.h"
#include "formats/model_config.h"
#include "schedule/performance_model.h"

namespace loramux {

inline constexpr std::array kAttentionTargets = {LoraTarget::kQ, LoraTarget::kK, LoraTarget::kV, LoraTarget::kO};

// A decoder-only transformer with 16-bit weights, keys and values.
struct ModelShape {
  std::string_view name;
  std::int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, intermediate = 0, vocab = 0;
  std::int64_t head_dim = 0;  // 0: hidden / heads
  bool tied = false;          // the embeddings are the output matrix

  std::int64_t HeadDim() const { return head_dim > 0 ? head_dim : hidden / heads; }
  std::int64_t QueryWidth() const { return heads * HeadDim(); }
  std::int64_t KvWidth() const { return kv_heads * HeadDim(); }
  std::int64_t Parameters() const;        // embeddings and output matrix included
  std::int64_t MatmulParameters() const;  // without the embeddings: what a token is multiplied with
  std::int64_t WeightBytes() const { return 2 * Parameters(); }
  std::int64_t KvBytesPerToken() const { return 2 * 2 * layers * KvWidth(); }
  // Of an adapter of rank 1 on these layers: both matrices, 16 bits. (Rank 32 on q, k, v, o: 64 MiB for Llama-7B.)
  std::int64_t AdapterBytesPerRank(std::span<const LoraTarget> targets = kAttentionTargets) const;
};
// `name` must outlive it.
ModelShape ShapeOf(const ModelConfig& config, std::string_view name);
// "q", ..., "down", "lm_head", or as in PEFT's files, "q_proj". Error: another name, or none at all.
Result<std::vector<LoraTarget>> ParseLoraTargets(const std::vector<std::string>& names);

// One accelerator. Rates are published peaks, per second.
struct DeviceShape {
  std::string_view name, what;
  double memory_bytes = 0, memory_bandwidth = 0;
  double flops = 0;      // dense, 16 bits
  double host_link = 0;  // bytes, one direction
  double peer_link = 0;  // bytes, one direction, to the other accelerators of a server
};

// All of them. Errors of Find: an unknown name; the message lists the valid ones.
std::span<const DeviceShape> DeviceShapes();
std::span<const ModelShape> ModelShapes();
Result<DeviceShape> FindDevice(std::string_view name);
Result<ModelShape> FindModel(std::string_view name);

// An adapter's part of a step on the host's processor, while the adapter is on its way to the device (CaraServe 4).
// Seconds. The device's own products go on meanwhile, which is not subtracted.
struct CpuAssist {
  double per_step = 0;        // to signal and to wait, layer by layer
  double per_token = 0;       // activations to the host and results back
  double per_token_rank = 0;  // arithmetic
};

// What a simulation runs on.
struct SimulatedDevice {
  std::string name;  // in words
  PerformanceModel model;
  std::int64_t page_tokens = 16, page_bytes = 0;
  std::int64_t device_pages = 0;  // for keys, values and adapters
  std::int64_t adapter_bytes_per_rank = 0;
  CpuAssist cpu_assist;  // for presets that use it

  std::int64_t AdapterPages(std::int64_t rank) const {
    return (rank * adapter_bytes_per_rank + page_bytes - 1) / page_bytes;
  }
  std::int64_t PagesOf(double bytes) const {
    return static_cast<std::int64_t>(bytes / static_cast<double>(page_bytes));
  }
};

// `gpus` of the device as one, by tensor parallelism. `memory_share` of its memory may be used. Errors: gpus out of
// 1..64, or the weights leave no memory.
Result<SimulatedDevice> DescribeDevice(const DeviceShape& device, const ModelShape& model, std::int64_t gpus = 1,
                                       double memory_share = 0.9,
                                       std::span<const LoraTarget> targets = kAttentionTargets);

}  // namespace loramux
