#include "cluster/default_model.h"

namespace loramux {

std::shared_ptr<const PerformanceModel> DefaultPerformanceModel() {
  constexpr double kWeightBytes = 16e9, kTokenFlops = 16e9;
  constexpr double kBandwidth = 0.8 * 2e12, kFlops = 0.55 * 312e12;
  constexpr double kLayers = 32, kWidth = 4096, kKvBytesPerToken = 131'072;
  constexpr double kAttentionFlops = 0.3 * 312e12, kLoraFlops = 0.1 * 312e12;
  auto model = std::make_shared<PerformanceModel>();
  model->device = "assumed: an 8B model on an accelerator with 80 GB";
  model->step = 1.5e-3;  // planning, launches, sampling
  model->dense_floor = kWeightBytes / kBandwidth;
  model->per_prefill_token = model->per_decode_sequence = kTokenFlops / kFlops;
  model->per_prefill_attention = 4 * kLayers * kWidth / kAttentionFlops;
  model->per_decode_context = kKvBytesPerToken / kBandwidth;
  model->per_adapter_token_rank = model->per_padded_rank = static_cast<double>(kAssumedBytesPerRank) / kLoraFlops;
  model->per_rank = model->per_padded_adapter = static_cast<double>(kAssumedBytesPerRank) / kBandwidth;
  model->disk = {.latency = 1e-3, .bytes_per_second = 3e9};
  model->host_to_device = model->device_to_host = {.latency = 1e-4, .bytes_per_second = 25e9};
  return model;
}

}  // namespace loramux
