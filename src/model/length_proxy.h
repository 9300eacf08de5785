// The length proxy: a small BERT that reads a prompt and predicts how many tokens the answer will have (uServe,
// Chameleon 4.3.1). Runs beside the engine, on the calling thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "formats/length_proxy_config.h"
#include "kernels/matmul.h"

namespace loramux {

// Immutable after loading; thread-safe. A call allocates memory for its activations and uses one thread.
class LengthProxy {
 public:
  // Reads config.json and model.safetensors of a Hugging Face directory of a BertForSequenceClassification. Errors name
  // the file and the field or tensor: another kind of model, or a tensor that is missing, misshapen, of another type,
  // or unused.
  static Result<LengthProxy> Load(const std::filesystem::path& directory);

  const LengthProxyConfig& config() const { return config_; }

  // The logits of all classes, as transformers computes them: without dropout, token types all 0. If there are more
  // than max_position ids, the first max_position - 1 and the last are used. REQUIRES: at least one id; ids in [0,
  // vocab_size).
  std::vector<float> Logits(std::span<const TokenId> ids, Backend backend = Backend::kCpu) const;
  // The predicted length in tokens, at least 1 (0: the logits are not numbers). It is the geometric mean of the
  // classes' middles, weighted by the model's probabilities. An open class extends to twice its beginning.
  std::int32_t Guess(std::span<const TokenId> ids) const { return GuessOf(Logits(ids)); }
  std::int32_t GuessOf(std::span<const float> logits) const;

 private:
  struct Linear {
    PackedMatrix weight;
    std::vector<float> bias;
  };
  struct Norm {
    std::vector<float> weight, bias;
  };
  struct Layer {
    Linear qkv, attention_out, up, down;
    Norm attention_norm, output_norm;
  };
  struct Loader;
  LengthProxy() = default;
  void Embed(std::span<const TokenId> ids, std::span<float> x) const;
  void ApplyLayer(const KernelContext& context, const Layer& layer, std::int64_t rows, std::span<float> x) const;
  void ApplyNorm(const KernelContext& context, const Norm& norm, std::int64_t rows, float* x) const;

  LengthProxyConfig config_;
  std::vector<float> words_, positions_, types_;  // [.., hidden]
  Norm embedding_norm_;
  std::vector<Layer> layers_;
  Linear pooler_, classifier_;
};

}  // namespace loramux
