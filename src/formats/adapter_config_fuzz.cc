// Fuzzes ParseAdapterConfig, the queries on the resulting configuration, and the parser of tensor names.
#include <cmath>
#include <string_view>

#include "base/check.h"
#include "base/fuzz_limits.h"
#include "formats/adapter_config.h"
#include "formats/adapter_tensor_name.h"

namespace loramux {
namespace {

void ParseConfig(std::string_view text) {
  const auto config = ParseAdapterConfig(text, "FILE");
  if (!config.ok()) {
    CHECK_LT(config.error().message.size(), 8192u);
    return;
  }
  for (const char* module :
       {"model.layers.0.self_attn.q_proj", "model.language_model.layers.17.mlp.down_proj", "lm_head", ""}) {
    const std::int64_t rank = config->RankOf(module);
    CHECK(rank >= 1 && rank <= 4096);
    CHECK(std::isfinite(config->ScaleOf(module)));
    static_cast<void>(config->Targets(module));
  }
}

void ParseName(std::string_view text) {
  const auto name = ParseAdapterTensorName(text, 24, "FILE");
  if (!name.ok()) {
    CHECK_LT(name.error().message.size(), 2048u);
    return;
  }
  CHECK(name->layer >= 0 && name->layer < 24);
  CHECK(!name->module.empty() && !name->plain_module.empty());
}

}  // namespace
}  // namespace loramux

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const loramux::FuzzLimits cost;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  loramux::ParseConfig(text);
  loramux::ParseName(text);
  return 0;
}
