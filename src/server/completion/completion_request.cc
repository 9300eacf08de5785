#include "server/completion/completion_request.h"

namespace loramux {

Status CompletionRequest::TakeDefaults(const RequestDefaults& defaults) {
  const SamplingParams& usual = defaults.sampling;
  const auto take = [&](SamplingField field, auto SamplingParams::*number) {
    if ((given & field) == 0) sampling.*number = usual.*number;
  };
  take(kTemperature, &SamplingParams::temperature);
  take(kTopP, &SamplingParams::top_p);
  take(kMinP, &SamplingParams::min_p);
  take(kTopK, &SamplingParams::top_k);
  take(kPresencePenalty, &SamplingParams::presence_penalty);
  take(kFrequencyPenalty, &SamplingParams::frequency_penalty);
  take(kRepetitionPenalty, &SamplingParams::repetition_penalty);
  sampling.logprobs_mode = usual.logprobs_mode;
  const bool logits =
      usual.logprobs_mode == LogprobsMode::kRawLogits || usual.logprobs_mode == LogprobsMode::kProcessedLogits;
  if (likeliest_choice && n > 1 && logits) {
    return Unsupported("`n`: expected 1, because logits, which --logprobs-mode " +
                           std::string(LogprobsModeName(usual.logprobs_mode)) +
                           " tells, do not say which choice is likeliest; found " + std::to_string(n),
                       "n");
  }
  const auto bound = defaults.max_output_tokens;
  if (!bound || min_tokens <= *bound) return Ok{};
  return InvalidArgument("`min_tokens`: expected at most max_new_tokens of the model's generation_config.json (" +
                             std::to_string(*bound) + "), found " + std::to_string(min_tokens),
                         "min_tokens");
}

}  // namespace loramux
