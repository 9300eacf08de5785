#include "step/sample_batch.h"

#include <algorithm>
#include <array>

namespace loramux {
namespace {

// In the order of LogprobsMode.
constexpr std::array<std::string_view, 4> kModes = {"raw_logprobs", "processed_logprobs", "raw_logits",
                                                    "processed_logits"};

}  // namespace

std::string_view LogprobsModeName(LogprobsMode mode) { return kModes[static_cast<std::size_t>(mode)]; }

std::optional<LogprobsMode> FindLogprobsMode(std::string_view name) {
  const auto found = std::ranges::find(kModes, name);
  if (found == kModes.end()) return std::nullopt;
  return static_cast<LogprobsMode>(found - kModes.begin());
}

void SampleBatch::Clear() {
  rows.clear();
  biases.clear();
  tokens.clear();
  constraints.clear();
}

FlatRange SampleBatch::Append(std::span<const TokenId> more) {
  const FlatRange range{static_cast<std::uint32_t>(tokens.size()), static_cast<std::uint32_t>(more.size())};
  if (!more.empty()) tokens.insert(tokens.end(), more.begin(), more.end());
  return range;
}

void SampleBatch::Add(const SamplingParams& params, const SamplerContext& context,
                      const std::shared_ptr<TokenConstraint>& constraint, std::span<const TokenId> draft) {
  SampleRow row;
  row.params = params;
  row.generated_count = static_cast<std::uint32_t>(context.generated.size());
  row.bias = {static_cast<std::uint32_t>(biases.size()), static_cast<std::uint32_t>(context.logit_bias.size())};
  if (!context.logit_bias.empty()) biases.insert(biases.end(), context.logit_bias.begin(), context.logit_bias.end());
  if (params.repetition_penalty != 1.0f) row.prompt = Append(context.prompt);
  if (params.repetition_penalty != 1.0f || params.presence_penalty != 0 || params.frequency_penalty != 0) {
    row.generated = Append(context.generated);
    Append(draft);  // behind them: each row sees one more
  }
  row.banned = Append(context.banned);
  if (params.top_logprobs >= 0) row.logprob_ids = Append(context.logprob_ids);
  if (constraint != nullptr) {
    row.constraint = static_cast<std::int32_t>(constraints.size());
    constraints.push_back(constraint);
  }
  const std::uint32_t seen = row.generated.size > 0 ? 1 : 0;
  for (const TokenId token : draft) {
    row.drafted = token;
    rows.push_back(row);
    ++row.generated_count;
    row.generated.size += seen;
  }
  row.drafted = kNoToken;
  rows.push_back(row);
}

SamplerContext SampleBatch::ContextOf(const SampleRow& row) const {
  SamplerContext context = {.prompt = Tokens(row.prompt),
                            .generated = Tokens(row.generated),
                            .banned = Tokens(row.banned),
                            .generated_count = row.generated_count,
                            .logit_bias = std::span(biases).subspan(row.bias.first, row.bias.size),
                            .logprob_ids = Tokens(row.logprob_ids)};
  if (row.constraint >= 0) context.allowed = constraints[static_cast<std::size_t>(row.constraint)]->Allowed();
  return context;
}

}  // namespace loramux
