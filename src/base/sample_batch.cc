#include "base/sample_batch.h"

namespace loramux {

void SampleBatch::Clear() {
  rows.clear();
  biases.clear();
  tokens.clear();
  constraints.clear();
}

FlatRange SampleBatch::Append(std::span<const TokenId> more) {
  const FlatRange range{static_cast<std::uint32_t>(tokens.size()), static_cast<std::uint32_t>(more.size())};
  tokens.insert(tokens.end(), more.begin(), more.end());
  return range;
}

void SampleBatch::Add(const SamplingParams& params, const SamplerContext& context,
                      const std::shared_ptr<TokenConstraint>& constraint) {
  SampleRow& row = rows.emplace_back();
  row.seed = params.seed;
  row.temperature = params.temperature;
  row.top_p = params.top_p;
  row.min_p = params.min_p;
  row.presence_penalty = params.presence_penalty;
  row.frequency_penalty = params.frequency_penalty;
  row.repetition_penalty = params.repetition_penalty;
  row.top_k = params.top_k;
  row.top_logprobs = params.top_logprobs;
  row.generated_count = static_cast<std::uint32_t>(context.generated.size());
  row.bias = {static_cast<std::uint32_t>(biases.size()), static_cast<std::uint32_t>(params.logit_bias.size())};
  biases.insert(biases.end(), params.logit_bias.begin(), params.logit_bias.end());
  if (params.repetition_penalty != 1.0f) row.prompt = Append(context.prompt);
  if (params.repetition_penalty != 1.0f || params.presence_penalty != 0 || params.frequency_penalty != 0) {
    row.generated = Append(context.generated);
  }
  row.banned = Append(context.banned);
  if (constraint == nullptr) return;
  row.constraint = static_cast<std::int32_t>(constraints.size());
  constraints.push_back(constraint);
}

void SampleBatch::Unpack(std::size_t index, SamplingParams& params, SamplerContext& context) const {
  const SampleRow& row = rows[index];
  params.seed = row.seed;
  params.temperature = row.temperature;
  params.top_p = row.top_p;
  params.min_p = row.min_p;
  params.presence_penalty = row.presence_penalty;
  params.frequency_penalty = row.frequency_penalty;
  params.repetition_penalty = row.repetition_penalty;
  params.top_k = row.top_k;
  params.top_logprobs = row.top_logprobs;
  const auto bias = std::span(biases).subspan(row.bias.first, row.bias.size);
  params.logit_bias.assign(bias.begin(), bias.end());
  context.prompt = Tokens(row.prompt);
  context.generated = Tokens(row.generated);
  context.banned = Tokens(row.banned);
  context.generated_count = row.generated_count;
  context.allowed = {};
  if (row.constraint >= 0) context.allowed = constraints[static_cast<std::size_t>(row.constraint)]->Allowed();
}

}  // namespace loramux
