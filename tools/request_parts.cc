#include "tools/request_parts.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "formats/embedding_config.h"
#include "formats/generation_defaults.h"

namespace loramux {
namespace {

// Returns the model's own defaults of sampling, as in vLLM.
Result<GenerationDefaults> LoadDefaults(const std::string& source, const std::string& model_dir) {
  if (source == "none" || source == "vllm") return GenerationDefaults();  // vLLM's word for the same
  const bool automatic = source == "auto";
  auto defaults = LoadGenerationDefaults(automatic ? model_dir : source);
  if (defaults.ok()) return defaults;
  if (automatic && defaults.error().code == ErrorCode::kNotFound) return GenerationDefaults();
  return Error{defaults.error().code,
               "--generation-config: " + defaults.error().message + "; --generation-config none ignores the file",
               "--generation-config"};
}

}  // namespace

Flag GenerationConfigFlag(std::string& target) {
  return {.names = "--generation-config",
          .target = &target,
          .unit = "PATH",
          .help =
              "What requests get where they say nothing of temperature, top_p, top_k, min_p and "
              "repetition_penalty, and the bound max_new_tokens: auto takes the model's generation_config.json, "
              "none OpenAI's defaults, and PATH that file or directory"};
}

Result<RequestDefaults> RequestDefaultsOf(const std::string& source, const std::string& model_dir) {
  ASSIGN_OR_RETURN(const GenerationDefaults loaded, LoadDefaults(source, model_dir));
  if (loaded == GenerationDefaults()) return RequestDefaults();
  spdlog::info("generation_config.json sets what requests do not say: {} (--generation-config none ignores it)",
               DescribeDefaults(loaded));
  RequestDefaults defaults;
  SamplingParams& sampling = defaults.sampling;
  sampling.temperature = loaded.temperature.value_or(sampling.temperature);
  sampling.top_p = loaded.top_p.value_or(sampling.top_p);
  sampling.top_k = loaded.top_k.value_or(sampling.top_k);
  sampling.min_p = loaded.min_p.value_or(sampling.min_p);
  sampling.repetition_penalty = loaded.repetition_penalty.value_or(sampling.repetition_penalty);
  defaults.max_output_tokens = loaded.max_new_tokens;
  return defaults;
}

Flag PoolingFlag(std::string& target) {
  return {.names = "--pooling",
          .target = &target,
          .unit = "NAME",
          .help =
              "Which hidden states make an embedding (/v1/embeddings): last, the last token's; mean, the mean over "
              "all tokens; auto, what the modules.json of the adapter or the model says, without one the last "
              "token's"};
}

Result<EmbeddingOptions> EmbeddingOptionsOf(const std::string& pooling, const std::string& model_dir) {
  EmbeddingOptions options;
  options.pooling = FindPooling(pooling);
  if (!options.pooling && pooling != "auto") {
    return InvalidArgument("--pooling: expected auto, last or mean, found " + pooling, "--pooling");
  }
  options.model = LoadEmbeddingConfig(model_dir);
  if (!options.model.ok() && !options.pooling) {
    spdlog::warn("{}: {}; /v1/embeddings will refuse requests for this model (--pooling chooses another pooling)",
                 model_dir, options.model.error().message);
  }
  return options;
}

std::unique_ptr<GrammarCompiler> MakeGrammarCompiler(const Tokenizer& tokenizer, const Runtime& runtime) {
  GrammarCompilerOptions options;
  options.mask_threads = std::clamp(AvailableProcessors() / 8, 1, 8);
  auto compiler = GrammarCompiler::Create(tokenizer, runtime.config().eos_token_ids, options);
  if (compiler.ok()) return std::move(*compiler);
  spdlog::warn("structured output is not available: {}", compiler.error().message);
  return nullptr;
}

}  // namespace loramux
