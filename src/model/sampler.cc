#include "model/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/prng.h"

namespace loramux {
namespace {

using Candidate = std::pair<float, TokenId>;  // logit, id

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::size_t kBlock = 256;  // tokens per block of computed weights

// The order of all thresholds: descending logit, ascending id.
bool Better(const Candidate& a, const Candidate& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

// e^x for x <= 0, with a relative error of 2e-7; exactly 0 below -87 (so -infinity gives 0). Without branches or calls,
// so that the compiler vectorises loops over the vocabulary.
inline float ExpNonPositive(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const float rounded = x * 1.44269504f + kRound;
  const float n = rounded - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts (Cody and Waite)
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float mantissa = p * r * r + r + 1.0f;
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(rounded) - std::bit_cast<std::uint32_t>(kRound);
  const std::uint32_t in_range = -static_cast<std::uint32_t>(x > -87.0f);  // a mask: a condition would become a branch
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(mantissa) + (exponent << 23)) & in_range);
}

// Softmax without its denominator: weight(l) = e^((l - max) / temperature).
struct Softmax {
  float max = 0;
  float inverse_temperature = 1;
  float Score(float logit) const { return (logit - max) * inverse_temperature; }
  float Weight(float logit) const { return ExpNonPositive(Score(logit)); }
};

// Writes the weights of one block and returns their sum.
double BlockWeights(const Softmax& softmax, std::span<const float> block, float* weights) {
  constexpr std::size_t kLanes = 8;
  for (std::size_t i = 0; i < block.size(); ++i) weights[i] = softmax.Weight(block[i]);
  double sums[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= block.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += weights[i + lane];
  }
  for (; i < block.size(); ++i) sums[0] += weights[i];
  return std::accumulate(sums, sums + kLanes, 0.0);
}

std::span<const float> BlockAt(std::span<const float> logits, std::size_t begin) {
  return logits.subspan(begin, std::min(kBlock, logits.size() - begin));
}

double TotalWeight(const Softmax& softmax, std::span<const float> logits) {
  float weights[kBlock];
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); i += kBlock) total += BlockWeights(softmax, BlockAt(logits, i), weights);
  return total;
}

double TotalWeight(const Softmax& softmax, std::span<const Candidate> candidates) {
  double total = 0;
  for (const Candidate& candidate : candidates) total += softmax.Weight(candidate.first);
  return total;
}

struct Scan {
  float max = -kInfinity;  // ignoring NaNs
  bool has_nan = false;
};

Scan ScanLogits(std::span<const float> logits) {
  constexpr std::size_t kLanes = 16;
  float max[kLanes];
  std::int32_t nan[kLanes] = {};
  std::fill_n(max, kLanes, -kInfinity);
  const auto look = [&](std::size_t lane, float x) {
    max[lane] = x > max[lane] ? x : max[lane];
    nan[lane] |= x != x;
  };
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) look(lane, logits[i + lane]);
  }
  for (; i < logits.size(); ++i) look(0, logits[i]);
  return {*std::max_element(max, max + kLanes), std::any_of(nan, nan + kLanes, [](auto n) { return n != 0; })};
}

// ---- adjusting the logits before the draw

bool IsAllowed(const SamplerContext& context, std::size_t id) {
  return context.allowed.empty() ||
         (id / 32 < context.allowed.size() && (context.allowed[id / 32] >> (id % 32) & 1) != 0);
}

bool IsBanned(const SamplerContext& context, TokenId id) {
  return std::find(context.banned.begin(), context.banned.end(), id) != context.banned.end();
}

// The logits of the allowed tokens; -infinity for the others.
std::span<const float> AllowedLogits(std::span<const float> logits, const SamplerContext& context,
                                     SamplerScratch& scratch) {
  if (context.allowed.empty()) return logits;
  scratch.allowed.assign(logits.size(), -kInfinity);
  const std::size_t words = std::min(context.allowed.size(), (logits.size() + 31) / 32);
  for (std::size_t word = 0; word < words; ++word) {
    for (std::uint32_t bits = context.allowed[word]; bits != 0; bits &= bits - 1) {
      const std::size_t id = word * 32 + static_cast<std::size_t>(std::countr_zero(bits));
      if (id < logits.size()) scratch.allowed[id] = logits[id];
    }
  }
  return scratch.allowed;
}

// True if a grammar allows tokens, and every one of them is banned.
bool BansAllAllowed(const SamplerContext& context) {
  if (context.allowed.empty() || context.banned.empty()) return false;
  std::size_t count = 0;
  for (const std::uint32_t word : context.allowed) count += static_cast<std::size_t>(std::popcount(word));
  if (count > context.banned.size()) return false;
  for (std::size_t id = 0; id < context.allowed.size() * 32; ++id) {
    if (IsAllowed(context, id) && !IsBanned(context, static_cast<TokenId>(id))) return false;
  }
  return true;
}

bool NeedsAdjustment(const SamplingParams& params, const SamplerContext& context) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f ||
         !context.logit_bias.empty() || !context.banned.empty();
}

// Visits each different generated token once with its count, then each prompt token not visited yet with 0.
template <typename Visit>
void ForEachSeenToken(const SamplerContext& context, std::vector<std::int32_t>& counts, const Visit& visit) {
  constexpr std::int32_t kVisited = -1;
  const auto in_vocabulary = [&](TokenId id) { return id >= 0 && static_cast<std::size_t>(id) < counts.size(); };
  for (TokenId id : context.generated) {
    if (in_vocabulary(id)) ++counts[id];
  }
  for (std::span<const TokenId> tokens : {context.generated, context.prompt}) {
    for (TokenId id : tokens) {
      if (!in_vocabulary(id) || counts[id] == kVisited) continue;
      visit(id, counts[id]);
      counts[id] = kVisited;
    }
  }
  for (std::span<const TokenId> tokens : {context.generated, context.prompt}) {
    for (TokenId id : tokens) {
      if (in_vocabulary(id)) counts[id] = 0;
    }
  }
}

void ApplyPenalties(const SamplingParams& params, const SamplerContext& context, SamplerScratch& scratch) {
  const bool repetition = params.repetition_penalty != 1.0f;
  if (!repetition && params.frequency_penalty == 0.0f && params.presence_penalty == 0.0f) return;
  if (scratch.counts.size() != scratch.logits.size()) scratch.counts.assign(scratch.logits.size(), 0);
  SamplerContext seen = context;
  if (!repetition) seen.prompt = {};  // the other penalties ignore the prompt
  ForEachSeenToken(seen, scratch.counts, [&](TokenId id, std::int32_t count) {
    float& logit = scratch.logits[id];
    if (repetition) logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    if (count == 0) return;
    logit -= params.frequency_penalty * static_cast<float>(count);
    logit -= params.presence_penalty;
  });
}

// Returns the logits with ban, bias and penalties applied; the given ones if there are none.
std::span<const float> AdjustLogits(std::span<const float> logits, const SamplingParams& params,
                                    const SamplerContext& context, SamplerScratch& scratch) {
  if (!NeedsAdjustment(params, context)) return logits;
  scratch.logits.assign(logits.begin(), logits.end());
  const auto in_vocabulary = [&](TokenId id) { return id >= 0 && static_cast<std::size_t>(id) < logits.size(); };
  for (TokenId id : context.banned) {
    if (in_vocabulary(id)) scratch.logits[id] = -kInfinity;
  }
  for (const auto& [id, bias] : context.logit_bias) {
    if (in_vocabulary(id)) scratch.logits[id] += bias;
  }
  ApplyPenalties(params, context, scratch);
  return scratch.logits;
}

// ---- candidates: the tokens that pass the thresholds, by ascending id

// Collects the tokens with Score >= -depth.
void Gather(const Softmax& softmax, std::span<const float> logits, float depth, std::vector<Candidate>& out) {
  out.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (softmax.Score(logits[i]) >= -depth) out.emplace_back(logits[i], static_cast<TokenId>(i));
  }
}

// Collects at least the n best tokens. A softmax is peaked: the few tokens near the maximum nearly always suffice,
// which avoids a selection from the whole vocabulary.
void GatherAtLeast(std::size_t n, const Softmax& softmax, std::span<const float> logits, std::vector<Candidate>& out) {
  for (float depth : {2.0f, 8.0f, 32.0f, kInfinity}) {
    Gather(softmax, logits, depth, out);
    if (out.size() >= n) return;
  }
}

void DropWorseThan(const Candidate& last, std::vector<Candidate>& candidates) {
  std::erase_if(candidates, [&](const Candidate& candidate) { return Better(last, candidate); });
}

// Keeps the best k candidates.
void KeepBest(std::size_t k, SamplerScratch& scratch) {
  if (scratch.candidates.size() <= k) return;
  auto& selection = scratch.selection;
  selection.assign(scratch.candidates.begin(), scratch.candidates.end());
  std::nth_element(selection.begin(), selection.begin() + (k - 1), selection.end(), Better);
  DropWorseThan(selection[k - 1], scratch.candidates);
}

// Bounds of the shortest prefix of tokens with weight `target`, in terms of depth. All tokens with Score > -sure belong
// to the prefix and weigh `sure_weight`; no token below depth `enough` belongs to it.
struct Cut {
  double target = 0;
  float sure = -1;
  double sure_weight = 0;
  float enough = kInfinity;
};

// Cuts the whole vocabulary at a share of its weight, using a histogram of the depths.
Cut FindCut(double share, const Softmax& softmax, std::span<const float> logits) {
  constexpr float kBinsPerUnit = 8;          // a power of two: the scaling is exact
  constexpr std::size_t kBins = 87 * 8 + 1;  // deeper tokens have no weight
  double bins[kBins] = {};
  float weights[kBlock];
  double total = 0;
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::span<const float> block = BlockAt(logits, begin);
    total += BlockWeights(softmax, block, weights);
    for (std::size_t i = 0; i < block.size(); ++i) {
      const float depth = std::min(-softmax.Score(block[i]), 87.0f);
      bins[static_cast<std::size_t>(depth * kBinsPerUnit)] += weights[i];
    }
  }
  Cut cut{share * total};
  for (std::size_t bin = 0; bin < kBins; ++bin) {
    cut.sure = bin == 0 ? -1.0f : static_cast<float>(bin) / kBinsPerUnit;
    if (cut.sure_weight + bins[bin] >= cut.target) {
      cut.enough = static_cast<float>(bin + 1) / kBinsPerUnit;
      return cut;
    }
    cut.sure_weight += bins[bin];
  }
  return {share * total};  // reached only by rounding, with a share of nearly 1
}

// Keeps the shortest prefix of the candidates, best first, with at least the weight of the cut. Quickselect by weight:
// linear in the number of candidates that are not sure.
void KeepWeight(const Softmax& softmax, const Cut& cut, SamplerScratch& scratch) {
  auto& selection = scratch.selection;
  selection.clear();
  for (const Candidate& candidate : scratch.candidates) {
    if (!(-softmax.Score(candidate.first) < cut.sure)) selection.push_back(candidate);
  }
  if (selection.empty()) return;
  std::size_t low = 0;  // the last one kept is in [low, high)
  std::size_t high = selection.size();
  double before = cut.sure_weight;  // weight of all tokens better than selection[low]
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    std::nth_element(selection.begin() + low, selection.begin() + middle, selection.begin() + high, Better);
    const double upper = TotalWeight(softmax, {selection.data() + low, middle - low});
    if (before + upper >= cut.target) {
      high = middle;
    } else {
      before += upper;
      low = middle;
    }
  }
  DropWorseThan(selection[low], scratch.candidates);
}

struct Thresholds {
  std::size_t top_k;  // vocabulary size: off
  double top_p;       // >= 1: off
  float min_p;        // <= 0: off

  Thresholds(const SamplingParams& params, std::size_t vocabulary)
      : top_k(params.top_k > 0 ? std::min<std::size_t>(static_cast<std::size_t>(params.top_k), vocabulary)
                               : vocabulary),
        top_p(params.top_p),
        min_p(params.min_p) {}
};

void SelectCandidates(const Softmax& softmax, std::span<const float> logits, const Thresholds& limits,
                      SamplerScratch& scratch) {
  auto& candidates = scratch.candidates;
  const bool top_k = limits.top_k < logits.size();
  if (limits.min_p <= 0 && !top_k) {  // top-p of the whole vocabulary
    const Cut cut = FindCut(limits.top_p, softmax, logits);
    Gather(softmax, logits, cut.enough, candidates);
    KeepWeight(softmax, cut, scratch);
    return;
  }
  if (limits.min_p > 0) {
    Gather(softmax, logits, -std::log(std::min(limits.min_p, 1.0f)), candidates);
  } else {
    GatherAtLeast(limits.top_k, softmax, logits, candidates);
  }
  if (top_k) KeepBest(limits.top_k, scratch);
  if (limits.top_p < 1) KeepWeight(softmax, Cut{limits.top_p * TotalWeight(softmax, candidates)}, scratch);
}

// ---- the draw

double UniformDraw(std::uint64_t seed, std::size_t step) {
  return UnitDouble(SplitMix64(SplitMix64(seed) + static_cast<std::uint64_t>(step)));
}

TokenId DrawCandidate(const Softmax& softmax, std::span<const Candidate> candidates, double u) {
  double left = u * TotalWeight(softmax, candidates);
  TokenId last = candidates.front().second;  // the last one with a weight: rounding may leave a remainder
  for (const Candidate& candidate : candidates) {
    const float weight = softmax.Weight(candidate.first);
    if (weight <= 0) continue;
    last = candidate.second;
    left -= weight;
    if (left < 0) break;
  }
  return last;
}

// Draws from the whole vocabulary: finds the block that holds the share u, then the token in it.
TokenId DrawAny(const Softmax& softmax, std::span<const float> logits, double u) {
  float weights[kBlock];
  double left = u * TotalWeight(softmax, logits);
  std::size_t chosen = 0;  // the last block with a weight: rounding may leave a remainder
  double left_in_chosen = left;
  for (std::size_t begin = 0; begin < logits.size() && left >= 0; begin += kBlock) {
    const double sum = BlockWeights(softmax, BlockAt(logits, begin), weights);
    if (sum <= 0) continue;
    chosen = begin;
    left_in_chosen = left;
    left -= sum;
  }
  const std::span<const float> block = BlockAt(logits, chosen);
  BlockWeights(softmax, block, weights);
  std::size_t last = 0;
  for (std::size_t i = 0; i < block.size() && left_in_chosen >= 0; ++i) {
    if (weights[i] <= 0) continue;
    last = i;
    left_in_chosen -= weights[i];
  }
  return static_cast<TokenId>(chosen + last);
}

TokenId FirstWith(std::span<const float> logits, float value) {
  return static_cast<TokenId>(std::find(logits.begin(), logits.end(), value) - logits.begin());
}

TokenId FirstAllowed(std::span<const float> logits, const SamplerContext& context) {
  for (TokenId id = 0; static_cast<std::size_t>(id) < logits.size(); ++id) {
    if (IsAllowed(context, static_cast<std::size_t>(id)) && !IsBanned(context, id)) return id;
  }
  return 0;
}

// The choice if the logits hold a NaN or have no finite maximum.
TokenId ChooseFromIrregular(std::span<const float> logits, const Scan& scan, const SamplerContext& context) {
  if (!scan.has_nan && scan.max == kInfinity) return FirstWith(logits, kInfinity);
  float best = -kInfinity;
  for (float logit : logits) {
    if (std::isfinite(logit) && logit > best) best = logit;
  }
  return best == -kInfinity ? FirstAllowed(logits, context) : FirstWith(logits, best);
}

// A token, and what it was drawn from.
struct Choice {
  TokenId id = 0;
  float temperature = 1;  // without a draw: 1
  bool cut = false;       // scratch.candidates are all that could be drawn
};

Choice Choose(std::span<const float> logits, const SamplingParams& params, const SamplerContext& context,
              SamplerScratch& scratch) {
  const Scan scan = ScanLogits(logits);
  if (scan.has_nan || !std::isfinite(scan.max)) return {ChooseFromIrregular(logits, scan, context)};
  if (params.IsGreedy()) return {FirstWith(logits, scan.max)};
  const Softmax softmax{scan.max, 1.0f / params.temperature};
  const double u = UniformDraw(params.seed, context.step());
  const Thresholds limits(params, logits.size());
  if (limits.top_k == logits.size() && limits.top_p >= 1 && limits.min_p <= 0) {
    return {DrawAny(softmax, logits, u), params.temperature};
  }
  SelectCandidates(softmax, logits, limits, scratch);
  return {DrawCandidate(softmax, scratch.candidates, u), params.temperature, true};
}

// ---- logprobs

// What is told of the tokens of one row: its log softmax, or the logits themselves.
class Told {
 public:
  // Copies logits with a NaN to `scratch.told`, where each NaN becomes -infinity.
  Told(std::span<const float> logits, SamplerScratch& scratch, float temperature = 1, bool normalised = true)
      : logits_(logits), temperature_(temperature), normalised_(normalised) {
    const Scan scan = ScanLogits(logits);
    if (scan.has_nan) {
      if (logits.data() != scratch.told.data()) scratch.told.assign(logits.begin(), logits.end());
      for (float& logit : scratch.told) logit = std::isnan(logit) ? -kInfinity : logit;
      logits_ = scratch.told;
    }
    regular_ = std::isfinite(scan.max);
    softmax_ = {regular_ ? scan.max : 0.0f, 1.0f / temperature};
    log_total_ = regular_ && normalised ? std::log(TotalWeight(softmax_, logits_)) : 0;
  }

  std::span<const float> logits() const { return logits_; }
  float Of(float logit) const {
    if (!normalised_) return logit / temperature_;
    if (!regular_) return logit == kInfinity ? 0.0f : -kInfinity;
    return static_cast<float>((static_cast<double>(logit) - softmax_.max) / temperature_ - log_total_);
  }
  float Of(TokenId id) const { return Of(logits_[static_cast<std::size_t>(id)]); }

  // The likeliest tokens, descending.
  void Top(std::int32_t alternatives, SamplerScratch& scratch, std::vector<TokenLogprob>& top) const {
    const auto n = std::min(static_cast<std::size_t>(alternatives), logits_.size());
    if (n == 0) return;
    GatherAtLeast(n, softmax_, logits_, scratch.candidates);
    KeepBest(n, scratch);
    std::sort(scratch.candidates.begin(), scratch.candidates.end(), Better);
    top.reserve(n);
    for (const auto& [logit, id] : scratch.candidates) top.push_back({id, Of(logit)});
  }

  // The chosen token, and then the others of `ids`, each once.
  void Listed(TokenId chosen, std::span<const TokenId> ids, std::vector<TokenLogprob>& listed) const {
    listed.reserve(ids.size() + 1);
    listed.push_back({chosen, Of(chosen)});
    for (const TokenId id : ids) {
      if (std::ranges::find(listed, id, &TokenLogprob::id) == listed.end()) listed.push_back({id, Of(id)});
    }
  }

 private:
  std::span<const float> logits_;
  float temperature_ = 1;
  bool normalised_ = true;
  bool regular_ = false;
  Softmax softmax_ = {0.0f, 1.0f};
  double log_total_ = 0;
};

// The candidates' logits; -infinity for the other tokens.
std::span<const float> CandidateLogits(std::size_t vocabulary, SamplerScratch& scratch) {
  scratch.told.assign(vocabulary, -kInfinity);
  for (const auto& [logit, id] : scratch.candidates) scratch.told[static_cast<std::size_t>(id)] = logit;
  return scratch.told;
}

// `raw` and `adjusted`: the row's logits before and after ban, bias and penalties.
Told ToTell(std::span<const float> raw, std::span<const float> adjusted, LogprobsMode mode, const Choice& choice,
            SamplerScratch& scratch) {
  const bool normalised = mode == LogprobsMode::kRawLogprobs || mode == LogprobsMode::kProcessedLogprobs;
  if (mode == LogprobsMode::kRawLogprobs || mode == LogprobsMode::kRawLogits) return {raw, scratch, 1, normalised};
  const std::span<const float> drawn = choice.cut ? CandidateLogits(adjusted.size(), scratch) : adjusted;
  return {drawn, scratch, choice.temperature, normalised};
}

}  // namespace

SampledToken Sample(std::span<const float> all_logits, const SamplingParams& params, const SamplerContext& of_sequence,
                    SamplerScratch& scratch) {
  CHECK(!all_logits.empty());
  SamplerContext context = of_sequence;
  if (BansAllAllowed(context)) context.banned = {};
  const std::span<const float> logits = AllowedLogits(all_logits, context, scratch);
  const std::span<const float> adjusted = AdjustLogits(logits, params, context, scratch);
  const Choice choice = Choose(adjusted, params, context, scratch);
  SampledToken token;
  token.id = choice.id;
  if (params.top_logprobs < 0) return token;
  const Told told = ToTell(logits, adjusted, params.logprobs_mode, choice, scratch);
  token.logprob = told.Of(token.id);
  if (context.logprob_ids.empty()) {
    told.Top(params.top_logprobs, scratch, token.top_logprobs);
  } else {
    told.Listed(token.id, context.logprob_ids, token.top_logprobs);
  }
  return token;
}

ScoredToken Score(std::span<const float> logits, const ScoreRow& row, SamplerScratch& scratch) {
  CHECK(!logits.empty());
  const Told told(logits, scratch);
  ScoredToken token;
  token.id = row.token;
  token.logprob = told.Of(row.token);
  const float logit = told.logits()[static_cast<std::size_t>(row.token)];
  token.rank = static_cast<std::int32_t>(
      std::count_if(told.logits().begin(), told.logits().end(), [logit](float other) { return other >= logit; }));
  told.Top(row.top_logprobs, scratch, token.top_logprobs);
  return token;
}

}  // namespace loramux
