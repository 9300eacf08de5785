// Fuzzes ParseModelConfig and checks its guarantees for every configuration that it accepts.
#include <cmath>
#include <string_view>

#include "base/check.h"
#include "base/fuzz_limits.h"
#include "formats/model_config.h"

namespace loramux {
namespace {

void CheckConfig(const ModelConfig& config) {
  constexpr std::int64_t kMaxExtent = std::int64_t{1} << 24;
  for (const std::int64_t extent :
       {config.hidden_size, config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim,
        config.intermediate_size, config.vocab_size, config.max_position, config.QDim(), config.KvDim()}) {
    CHECK(extent >= 1 && extent <= kMaxExtent);
  }
  CHECK_LE(config.num_layers, 1024);
  CHECK_EQ(config.num_heads % config.num_kv_heads, 0);
  CHECK_EQ(config.head_dim % 2, 0);
  CHECK(config.EmbeddingSize() >= 1 && config.EmbeddingSize() <= kMaxExtent);
  CHECK(config.shared_kv_layers >= 0 && config.shared_kv_layers < config.num_layers);
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) CHECK(config.KvSource(layer) >= 0);
  if (config.other_heads) {
    const HeadShape& heads = *config.other_heads;
    CHECK(heads.num_kv_heads >= 1 && heads.head_dim >= 1 && heads.head_dim % 2 == 0);
    CHECK_EQ(config.num_heads % heads.num_kv_heads, 0);
    CHECK_LE(heads.num_kv_heads * heads.head_dim, config.KvDim());
    CHECK_LE(config.MostQDim(), kMaxExtent);
  }
  CHECK_EQ(config.sliding_window.size(), static_cast<std::size_t>(config.num_layers));
  for (const std::int64_t window : config.sliding_window) CHECK(window >= 0 && window <= kMaxExtent);
  for (const TokenId token : config.eos_token_ids) CHECK(token >= 0 && token < config.vocab_size);
  CHECK(config.bos_token_id >= -1 && config.bos_token_id < config.vocab_size);
  const RopeConfig& rope = config.rope;
  for (const double number : {config.norm_eps, rope.theta, rope.factor, rope.low_freq_factor, rope.high_freq_factor}) {
    CHECK(std::isfinite(number) && number > 0);
  }
  const bool needs_length =
      rope.scaling == RopeConfig::Scaling::kLlama3 || rope.scaling == RopeConfig::Scaling::kDynamic;
  CHECK(!needs_length || rope.original_max_position >= 1);
}

}  // namespace
}  // namespace loramux

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const loramux::FuzzLimits cost;
  const auto config = loramux::ParseModelConfig({reinterpret_cast<const char*>(data), size}, "FILE");
  if (config.ok()) {
    loramux::CheckConfig(*config);
  } else {
    CHECK_LT(config.error().message.size(), 4096u);
  }
  return 0;
}
