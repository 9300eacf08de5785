// Fuzzes ParseQuantizationConfig and checks its guarantees for every configuration that it accepts.
#include <string_view>

#include "base/check.h"
#include "base/fuzz_limits.h"
#include "quant/quantization_config.h"

namespace loramux {
namespace {

void CheckScheme(const QuantScheme& scheme) {
  using Spread = QuantScheme::Spread;
  CHECK(scheme.bits == 4 || scheme.bits == 8);
  CHECK(scheme.spread != Spread::kGroup || scheme.group_size > 0 || scheme.store == QuantScheme::Store::kIntegers);
  CHECK(scheme.spread != Spread::kBlock || (scheme.block_rows > 0 && scheme.block_columns > 0));
}

void CheckQuantizationConfig(const QuantizationConfig& config) {
  if (config.groups.empty()) CheckScheme(config.scheme);
  CHECK((config.method == QuantMethod::kCompressedTensors) == !config.groups.empty());
  for (const QuantGroup& group : config.groups) CheckScheme(group.scheme);
  CHECK(config.zero_offset == 0 || config.zero_offset == 1);
  for (const char* module : {"model.layers.0.self_attn.q_proj", "model.layers.31.mlp.down_proj", "lm_head"}) {
    if (const QuantScheme* scheme = config.SchemeOf(module)) CheckScheme(*scheme);
  }
}

}  // namespace
}  // namespace loramux

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const loramux::FuzzLimits cost;
  const auto config = loramux::ParseQuantizationConfig({reinterpret_cast<const char*>(data), size}, "FILE");
  if (config.ok()) {
    loramux::CheckQuantizationConfig(*config);
  } else {
    CHECK_LT(config.error().message.size(), 4096u);
  }
  return 0;
}
