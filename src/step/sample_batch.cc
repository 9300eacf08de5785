#include "step/sample_batch.h"

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
  row.params = params;
  row.generated_count = static_cast<std::uint32_t>(context.generated.size());
  row.bias = {static_cast<std::uint32_t>(biases.size()), static_cast<std::uint32_t>(context.logit_bias.size())};
  biases.insert(biases.end(), context.logit_bias.begin(), context.logit_bias.end());
  if (params.repetition_penalty != 1.0f) row.prompt = Append(context.prompt);
  if (params.repetition_penalty != 1.0f || params.presence_penalty != 0 || params.frequency_penalty != 0) {
    row.generated = Append(context.generated);
  }
  row.banned = Append(context.banned);
  if (constraint == nullptr) return;
  row.constraint = static_cast<std::int32_t>(constraints.size());
  constraints.push_back(constraint);
}

SamplerContext SampleBatch::ContextOf(const SampleRow& row) const {
  SamplerContext context = {.prompt = Tokens(row.prompt),
                            .generated = Tokens(row.generated),
                            .banned = Tokens(row.banned),
                            .generated_count = row.generated_count,
                            .logit_bias = std::span(biases).subspan(row.bias.first, row.bias.size)};
  if (row.constraint >= 0) context.allowed = constraints[static_cast<std::size_t>(row.constraint)]->Allowed();
  return context;
}

}  // namespace loramux
