// Sampling: one block a row. A greedy row reads its logits once; top-k and top-p read them four or five times, mostly
// from the level-2 cache.
#pragma once

#include "gpu/kernels/sampling.h"
#include "gpu/kernels/sampling_adjust.h"
#include "gpu/kernels/sampling_block.h"
#include "gpu/kernels/sampling_search.h"

namespace loramux::gpu {

// ---- the best token

struct RowScan {
  std::uint64_t best;  // composite, ignoring NaNs; 0: all are
  bool has_nan;
  LORAMUX_DEVICE float Max() const { return best == 0 ? -Infinity() : LogitOf(best); }
};

LORAMUX_DEVICE RowScan ScanRow(SamplingShared& shared, const LogitRow& row) {
  std::uint64_t best = 0;
  bool has_nan = false;
  ForEachLogit(row, [&](std::int32_t id, float logit) {
    const std::uint64_t composite = Composite(logit, id);
    if (IsNan(logit)) {
      has_nan = true;
    } else if (composite > best) {
      best = composite;
    }
  });
  return {BlockMax(shared, best), BlockAny(shared, has_nan)};
}

// ---- log-probabilities

// Writes the maximum, the sum and the likeliest tokens of the raw logits.
LORAMUX_DEVICE void StoreDistribution(SamplingShared& shared, const LogitRow& row, std::int32_t top,
                                      SampledOnDevice* result) {
  const RowScan scan = ScanRow(shared, row);
  const DeviceSoftmax softmax = {scan.Max(), 1.0f};
  double weight = 0;
  if (IsFinite(softmax.max)) {
    ForEachLogit(row, [&](std::int32_t /*id*/, float logit) {
      if (!IsNan(logit)) weight += static_cast<double>(softmax.Weight(logit));
    });
  }
  const double total = BlockSum(shared, weight);
  if (ThreadOfBlock() == 0) {
    Store(&result->max, softmax.max);
    Store(&result->total, total);
  }
  if (top <= 0) return;
  const std::int32_t n = top < row.size ? top : row.size;
  const Prefix prefix = FindPrefix(shared, row, scan.best, n, false, softmax, PossibleCounts{});
  if (ThreadOfBlock() < prefix.listed) {
    Store(&result->top_tokens[ThreadOfBlock()], IdOf(shared.list[ThreadOfBlock()]));
    Store(&result->top_logits[ThreadOfBlock()], LogitOf(shared.list[ThreadOfBlock()]));
  }
  if (ThreadOfBlock() > 0) return;
  // Impossible tokens fill up. Enough of them are among the first n ids.
  for (std::int32_t id = 0, i = prefix.listed; i < n; ++id) {
    if (row.At(id) > -Infinity()) continue;
    Store(&result->top_tokens[i], id);
    Store(&result->top_logits[i], -Infinity());
    ++i;
  }
}

LORAMUX_DEVICE float WithoutNan(float logit) { return IsNan(logit) ? -Infinity() : logit; }

// ---- the draw

// The tokens of the vocabulary lie in at most kDrawChunks chunks of this size, a multiple of 32.
LORAMUX_DEVICE std::int32_t ChunkSize(std::int32_t size) {
  return (size + kDrawChunks * 32 - 1) / (kDrawChunks * 32) * 32;
}

// The weight of one chunk's token of this lane; 0 beyond the row's end.
LORAMUX_DEVICE float WeightAt(const LogitRow& row, std::int32_t id, const DrawWeights& weights) {
  if (id >= row.size) return 0;
  const float logit = row.At(id);
  return weights(logit, Composite(logit, id));
}

struct ChunkOfDraw {
  std::int32_t chunk;
  double left;  // what is left of the draw where the chunk begins
};

// The chunk that holds the share; by rounding, the last with a weight.
LORAMUX_DEVICE ChunkOfDraw FindChunk(const double* chunks, std::int32_t count, double draw) {
  double total = 0;
  for (std::int32_t chunk = 0; chunk < count; ++chunk) total += chunks[chunk];
  double left = draw * total;
  ChunkOfDraw found = {0, left};
  for (std::int32_t chunk = 0; chunk < count && left >= 0; ++chunk) {
    if (!(chunks[chunk] > 0)) continue;
    found = {chunk, left};
    left -= chunks[chunk];
  }
  return found;
}

// Draws in one chunk. All lanes of a warp come and get the token.
LORAMUX_DEVICE std::int32_t DrawInChunk(const LogitRow& row, const DrawWeights& weights, std::int32_t begin,
                                        std::int32_t end, double left) {
  std::int32_t last = 0;  // one more than the last token with a weight: rounding may leave a remainder
  for (std::int32_t id = begin + LaneOfWarp(); id < end + LaneOfWarp(); id += 32) {
    const float weight = WeightAt(row, id, weights);
    const double up_to = PrefixSumWarp(static_cast<double>(weight));
    const bool hit = weight > 0 && left - up_to < 0;
    const std::uint64_t first = MaxWarp(hit ? static_cast<std::uint64_t>(32 - LaneOfWarp()) : std::uint64_t{0});
    if (first > 0) return id - LaneOfWarp() + 32 - static_cast<std::int32_t>(first);
    last = weight > 0 ? id + 1 : last;
    left -= Shuffle(up_to, 31);
  }
  return static_cast<std::int32_t>(MaxWarp(static_cast<std::uint64_t>(last))) - 1;
}

// Picks from the cumulative distribution by ascending id.
LORAMUX_DEVICE std::int32_t Draw(SamplingShared& shared, const LogitRow& row, const DrawWeights& weights, double draw) {
  const std::int32_t size = ChunkSize(row.size);
  const std::int32_t count = (row.size + size - 1) / size;
  SyncBlock();  // the memory was in use
  for (std::int32_t chunk = WarpOfBlock(); chunk < count; chunk += kSamplingWarps) {
    double sum = 0;
    LORAMUX_UNROLL
    for (std::int32_t i = LaneOfWarp(); i < size; i += 32) {
      sum += static_cast<double>(WeightAt(row, chunk * size + i, weights));
    }
    sum = SumWarp(sum);
    if (LaneOfWarp() == 0) shared.chunks[chunk] = sum;
  }
  SyncBlock();
  if (WarpOfBlock() == 0) {
    const ChunkOfDraw found = FindChunk(shared.chunks, count, draw);
    const std::int32_t begin = found.chunk * size;
    const std::int32_t token = DrawInChunk(row, weights, begin, begin + size, found.left);
    if (LaneOfWarp() == 0) shared.token = token;
  }
  SyncBlock();
  return shared.token;
}

// ---- the choice

// The choice if the logits hold a NaN or have no finite maximum.
LORAMUX_DEVICE std::int32_t ChooseFromIrregular(SamplingShared& shared, const SampleRowsArguments& arguments,
                                                const SampleRowOnDevice& row, const RowScan& scan) {
  if (!scan.has_nan && scan.Max() == Infinity()) return IdOf(scan.best);
  std::uint64_t best = 0;
  ForEachLogit(row.logits, [&](std::int32_t id, float logit) {
    if (IsFinite(logit) && Composite(logit, id) > best) best = Composite(logit, id);
  });
  best = BlockMax(shared, best);
  if (best != 0) return IdOf(best);
  std::uint64_t possible = 0;  // the lowest id is the largest value
  for (std::int32_t id = ThreadOfBlock(); id < row.logits.size && possible == 0; id += kSamplingThreads) {
    if (row.logits.Allows(id) && !IsBanned(arguments, row, id)) possible = ~static_cast<std::uint32_t>(id);
  }
  possible = BlockMax(shared, possible);
  return possible == 0 ? 0 : IdOf(possible);
}

LORAMUX_DEVICE std::int32_t Choose(SamplingShared& shared, const SampleRowsArguments& arguments,
                                   const SampleRowOnDevice& row, const DeviceSampleRow* sample) {
  const LogitRow& logits = row.logits;
  const RowScan scan = ScanRow(shared, logits);
  if (scan.has_nan || !IsFinite(scan.Max())) return ChooseFromIrregular(shared, arguments, row, scan);
  if (Load(&sample->greedy) != 0) return IdOf(scan.best);
  const DeviceSoftmax softmax = {scan.Max(), Load(&sample->inverse_temperature)};
  DrawWeights weights = {softmax, Load(&sample->depth), 0};
  const std::int32_t top_k = Load(&sample->top_k);
  const double top_p = Load(&sample->top_p);
  Prefix kept = {0, -1};
  if (top_k > 0 && top_k < logits.size) {
    kept = FindPrefix(shared, logits, scan.best, top_k, false, softmax, DrawCounts{weights});
    weights.limit = kept.last;
  }
  if (top_p < 1) {
    kept = kept.listed > 0 ? FindInPrefix(shared, kept, top_p, weights)
                           : FindPrefix(shared, logits, scan.best, top_p, true, softmax, weights);
    weights.limit = kept.last;
  }
  return Draw(shared, logits, weights, Load(&sample->draw));
}

// ---- the kernels

template <typename T>
struct SampleRowsKernel {
  using Arguments = SampleRowsArguments;
  static constexpr int kThreads = kSamplingThreads;
  static constexpr int kMinBlocks = 1;

  LORAMUX_DEVICE static void Run(const SampleRowsArguments& arguments) {
    const auto index = static_cast<std::int32_t>(BlockX());
    if (index >= Load(arguments.rows)) return;
    SamplingShared& shared = Shared<SamplingShared>();
    const DeviceSampleRow* sample = arguments.samples + index;
    SampledOnDevice* result = arguments.results + index;
    const std::int32_t mask = Load(&sample->mask);
    SampleRowOnDevice row;
    row.changed = arguments.logits + Load(&sample->logits_row) * arguments.stride;
    row.logits = {row.changed, static_cast<std::int32_t>(arguments.vocab),
                  mask < 0 ? nullptr : arguments.masks + mask * arguments.mask_words, arguments.mask_words};
    row.biases = LoadRange(&sample->biases);
    row.prompt = LoadRange(&sample->prompt);
    row.generated = LoadRange(&sample->generated);
    row.banned = LoadRange(&sample->banned);
    row.bans = BanHolds(shared, arguments, row.logits, row.banned);
    const Penalties penalties = {Load(&sample->presence_penalty), Load(&sample->frequency_penalty),
                                 Load(&sample->repetition_penalty)};
    const bool adjusts = row.biases.size + row.prompt.size + row.generated.size + row.banned.size > 0;
    const std::int32_t top_logprobs = Load(&sample->top_logprobs);
    const bool wants_logprobs = top_logprobs >= 0;
    if (wants_logprobs) {
      StoreDistribution(shared, row.logits, top_logprobs, result);
      if (adjusts) KeepRawLogits(arguments, row);
    }
    if (adjusts) AdjustLogits(shared, arguments, row, penalties);
    const std::int32_t token = Choose(shared, arguments, row, sample);
    const float logit = !wants_logprobs ? 0 : adjusts ? RawLogit(shared, arguments, row, token) : row.logits.At(token);
    if (ThreadOfBlock() > 0) return;
    Store(&result->token, token);
    Store(&result->logit, WithoutNan(logit));
  }
};

template <typename T>
struct ScoreRowsKernel {
  using Arguments = ScoreRowsArguments;
  static constexpr int kThreads = kSamplingThreads;
  static constexpr int kMinBlocks = 1;

  LORAMUX_DEVICE static void Run(const ScoreRowsArguments& arguments) {
    const auto index = static_cast<std::int32_t>(BlockX());
    if (index >= Load(arguments.rows)) return;
    SamplingShared& shared = Shared<SamplingShared>();
    const DeviceScoreRow* score = arguments.scores + index;
    SampledOnDevice* result = arguments.results + index;
    const LogitRow row = {arguments.logits + Load(&score->logits_row) * arguments.stride,
                          static_cast<std::int32_t>(arguments.vocab), nullptr, 0};
    const std::int32_t token = Load(&score->token);
    const float logit = WithoutNan(row.At(token));
    double rank = 0;
    ForEachLogit(row, [&](std::int32_t /*id*/, float other) { rank += WithoutNan(other) >= logit ? 1 : 0; });
    rank = BlockSum(shared, rank);
    StoreDistribution(shared, row, Load(&score->top_logprobs), result);
    if (ThreadOfBlock() > 0) return;
    Store(&result->token, token);
    Store(&result->logit, logit);
    Store(&result->rank, static_cast<std::int32_t>(rank));
  }
};

template <typename T>
struct ArgmaxRowsKernel {
  using Arguments = ArgmaxRowsArguments;
  static constexpr int kThreads = kSamplingThreads;
  static constexpr int kMinBlocks = 1;

  LORAMUX_DEVICE static void Run(const ArgmaxRowsArguments& arguments) {
    const auto index = static_cast<std::int32_t>(BlockX());
    if (index >= Load(arguments.rows)) return;
    const LogitRow row = {arguments.logits + index * arguments.stride, static_cast<std::int32_t>(arguments.vocab),
                          nullptr, 0};
    const RowScan scan = ScanRow(Shared<SamplingShared>(), row);
    if (ThreadOfBlock() > 0) return;
    Store(arguments.tokens + index, scan.has_nan || !IsFinite(scan.Max()) ? -1 : IdOf(scan.best));
  }
};

}  // namespace loramux::gpu
