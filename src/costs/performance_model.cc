#include "costs/performance_model.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace loramux {
namespace {

template <std::int64_t StepLoad::*kField>
double Count(const PerformanceModel&, const StepLoad& load) {
  return static_cast<double>(load.*kField);
}

double One(const PerformanceModel&, const StepLoad&) { return 1; }

double TokenTiles(const PerformanceModel& model, const StepLoad& load) {
  if (model.token_tile <= 0) return 0;
  return static_cast<double>((load.prefill_tokens + load.decode_sequences + model.token_tile - 1) / model.token_tile);
}

double TokenRanks(const PerformanceModel&, const StepLoad& load) {
  if (load.token_ranks > 0 || load.distinct_adapters == 0) return static_cast<double>(load.token_ranks);
  return static_cast<double>(load.adapter_tokens) * static_cast<double>(load.rank_sum) /
         static_cast<double>(load.distinct_adapters);
}

double PaddedTokens(const PerformanceModel&, const StepLoad& load) {
  return static_cast<double>(load.adapter_tokens) * static_cast<double>(load.max_rank);
}

double PaddedAdapters(const PerformanceModel&, const StepLoad& load) {
  return static_cast<double>(load.distinct_adapters) * static_cast<double>(load.max_rank);
}

double TokensOf(const StepLoad& load) { return static_cast<double>(load.prefill_tokens + load.decode_sequences); }

double ExpertsTaken(const PerformanceModel& model, const StepLoad& load) { return model.experts.Taken(TokensOf(load)); }

// As if each adapter had as many tokens.
double PairRanks(const PerformanceModel& model, const StepLoad& load) {
  if (load.distinct_adapters == 0) return 0;
  const double tokens = static_cast<double>(load.adapter_tokens) / static_cast<double>(load.distinct_adapters);
  return static_cast<double>(load.rank_sum) * model.experts.Taken(tokens);
}

using Model = PerformanceModel;

// The terms that both shapes share lie between the terms of only one shape, so that each shape is one span.
constexpr std::array<PerformanceTerm, 16> kTerms = {{
    {"per_padded_rank", &Model::per_padded_rank, PaddedTokens},
    {"per_padded_adapter", &Model::per_padded_adapter, PaddedAdapters},
    {"step", &Model::step, One},
    {"per_prefill_token", &Model::per_prefill_token, Count<&StepLoad::prefill_tokens>},
    {"per_prefill_sequence", &Model::per_prefill_sequence, Count<&StepLoad::prefill_sequences>},
    {"per_decode_sequence", &Model::per_decode_sequence, Count<&StepLoad::decode_sequences>},
    {"per_prefill_attention", &Model::per_prefill_attention, Count<&StepLoad::prefill_attention>},
    {"per_prefill_context", &Model::per_prefill_context, Count<&StepLoad::prefill_context>},
    {"per_decode_context", &Model::per_decode_context, Count<&StepLoad::decode_context>},
    {"per_token_tile", &Model::per_token_tile, TokenTiles},
    {"per_expert", &Model::per_expert, ExpertsTaken, /*of_experts=*/true},
    {"per_adapter", &Model::per_adapter, Count<&StepLoad::distinct_adapters>},
    {"per_adapter_token", &Model::per_adapter_token, Count<&StepLoad::adapter_tokens>},
    {"per_adapter_token_rank", &Model::per_adapter_token_rank, TokenRanks},
    {"per_rank", &Model::per_rank, Count<&StepLoad::rank_sum>},
    {"per_expert_rank", &Model::per_expert_rank, PairRanks, /*of_experts=*/true},
}};
constexpr std::size_t kBgmvTerms = 2, kMbgmvTerms = 3;  // terms of only one shape

double FactorAt(std::span<const StepFactor> factors, double tokens) {
  if (factors.empty()) return 1;
  const auto after = std::upper_bound(factors.begin(), factors.end(), tokens,
                                      [](double at, const StepFactor& f) { return at < f.tokens; });
  if (after == factors.begin()) return factors.front().factor;
  const StepFactor& before = *std::prev(after);
  if (after == factors.end()) return before.factor;
  const double share = std::log(tokens / before.tokens) / std::log(after->tokens / before.tokens);
  return before.factor + share * (after->factor - before.factor);
}

double AfterPrefillSeconds(const PerformanceModel& model, const StepLoad& load) {
  if (load.prefill_tokens > 0 || load.after_prefill == 0 || load.after_prefill > kColdSteps) return 0;
  return model.after_prefill * std::pow(model.after_prefill_decay, load.after_prefill - 1) +
         model.after_prefill_per_sequence * static_cast<double>(load.decode_sequences);
}

}  // namespace

std::span<const PerformanceTerm> PerformanceTerms(LoraCostShape shape) {
  const std::span<const PerformanceTerm> all(kTerms);
  return shape == LoraCostShape::kBgmv ? all.first(all.size() - kMbgmvTerms) : all.subspan(kBgmvTerms);
}

const char* LoraCostShapeName(LoraCostShape shape) { return shape == LoraCostShape::kBgmv ? "bgmv" : "mbgmv"; }

FactorTable FactorTableOf(const StepLoad& load) {
  if (load.prefill_tokens == 0) return &PerformanceModel::decode_factors;
  return load.decode_sequences == 0 ? &PerformanceModel::prefill_factors : &PerformanceModel::mixed_factors;
}

double PerformanceModel::Link::OccupiedSeconds(double bytes) const {
  const double pieces = piece_bytes > 0 ? std::ceil(bytes / piece_bytes) : 0;
  return bytes / bytes_per_second + pieces * per_piece;
}

double PerformanceModel::Experts::Taken(double tokens) const {
  if (count == 0) return 0;
  const double missed = 1 - static_cast<double>(per_token) / static_cast<double>(count);
  return static_cast<double>(count) * (1 - std::pow(missed, tokens));
}

double PerformanceModel::SecondsOf(const StepLoad& load) const {
  const std::vector<StepFactor>& own = this->*FactorTableOf(load);
  const bool borrows = own.empty() && load.prefill_tokens > 0;  // no step with prefill and decode was measured
  const double factor = FactorAt(borrows ? prefill_factors : own, TokensOf(load));
  return factor * LinearSecondsOf(load) + AfterPrefillSeconds(*this, load);
}

double PerformanceModel::LinearSecondsOf(const StepLoad& load) const {
  double seconds = 0;
  for (const PerformanceTerm& term : PerformanceTerms(shape))
    seconds += this->*term.coefficient * term.count(*this, load);
  const double dense = per_prefill_token * static_cast<double>(load.prefill_tokens) +
                       per_decode_sequence * static_cast<double>(load.decode_sequences);
  seconds += std::max(0.0, DenseFloor(TokensOf(load)) - dense);
  seconds += per_state * static_cast<double>(load.prefill_sequences + load.decode_sequences);
  return std::max(floor, seconds);
}

double PerformanceModel::BaseProductSeconds(const StepLoad& load) const {
  const double dense = per_prefill_token * static_cast<double>(load.prefill_tokens) +
                       per_decode_sequence * static_cast<double>(load.decode_sequences);
  return std::max(dense, DenseFloor(TokensOf(load))) + per_token_tile * TokenTiles(*this, load) +
         per_expert * ExpertsTaken(*this, load);
}

}  // namespace loramux
