// What changes logits before the draw: ban, biases, penalties. As AdjustLogits in model/sampler.cc, in place.
#pragma once

#include "gpu/kernels/count_bits.h"
#include "gpu/kernels/sampling.h"
#include "gpu/kernels/sampling_block.h"

namespace loramux::gpu {

// A row of SampleRowsArguments, loaded.
struct SampleRowOnDevice {
  LogitRow logits;
  float* changed;  // the same logits
  TokenRange biases, prompt, generated, banned;
  bool bans;  // whether the ban holds
};

LORAMUX_DEVICE TokenRange LoadRange(const TokenRange* range) { return {Load(&range->first), Load(&range->size)}; }

LORAMUX_DEVICE bool InVocabulary(const LogitRow& row, std::int32_t id) { return id >= 0 && id < row.size; }

// Calls visit(index, id) for the thread's share of the tokens.
template <typename Visit>
LORAMUX_DEVICE void ForEachToken(const SampleRowsArguments& arguments, const TokenRange& range, const Visit& visit) {
  for (std::uint32_t i = range.first + ThreadIndex(); i < range.first + range.size; i += kSamplingThreads) {
    visit(i, Load(arguments.tokens + i));
  }
}

// Whether tokens[index] is its range's first of this id.
LORAMUX_DEVICE bool IsFirst(const SampleRowsArguments& arguments, const TokenRange& range, std::uint32_t index,
                            std::int32_t id) {
  for (std::uint32_t i = range.first; i < index; ++i) {
    if (Load(arguments.tokens + i) == id) return false;
  }
  return true;
}

LORAMUX_DEVICE bool IsBanned(const SampleRowsArguments& arguments, const SampleRowOnDevice& row, std::int32_t id) {
  return row.bans && !IsFirst(arguments, row.banned, row.banned.first + row.banned.size, id);
}

// False if a grammar allows banned tokens only: then the ban does not hold.
LORAMUX_DEVICE bool BanHolds(SamplingShared& shared, const SampleRowsArguments& arguments, const LogitRow& logits,
                             const TokenRange& banned) {
  if (banned.size == 0) return false;
  if (logits.mask == nullptr) return true;
  std::int32_t possible = 0;  // tokens of this thread's share that are allowed and not banned
  for (std::int64_t word = ThreadOfBlock(); word < logits.mask_words; word += kSamplingThreads) {
    possible += static_cast<std::int32_t>(CountBits(Load(logits.mask + word)));
  }
  ForEachToken(arguments, banned, [&](std::uint32_t index, std::int32_t id) {
    if (id >= 0 && logits.Allows(id) && IsFirst(arguments, banned, index, id)) --possible;
  });
  return BlockSum(shared, static_cast<double>(possible)) > 0;
}

// Keeps the logits of all tokens that will be changed.
LORAMUX_DEVICE void KeepRawLogits(const SampleRowsArguments& arguments, const SampleRowOnDevice& row) {
  const auto keep = [&](std::uint32_t index, std::int32_t id) {
    if (InVocabulary(row.logits, id)) Store(arguments.token_logits + index, row.logits.At(id));
  };
  ForEachToken(arguments, row.prompt, keep);
  ForEachToken(arguments, row.generated, keep);
  ForEachToken(arguments, row.banned, keep);
  for (std::uint32_t i = ThreadIndex(); i < row.biases.size; i += kSamplingThreads) {
    const std::uint32_t index = row.biases.first + i;
    const std::int32_t id = Load(&arguments.biases[index].token);
    if (InVocabulary(row.logits, id)) Store(arguments.bias_logits + index, row.logits.At(id));
  }
}

// The logit that the token had. All threads come.
LORAMUX_DEVICE float RawLogit(SamplingShared& shared, const SampleRowsArguments& arguments,
                              const SampleRowOnDevice& row, std::int32_t token) {
  std::uint64_t found = 0;  // 2^32 + the bits
  const auto take = [&](float logit) { found = std::uint64_t{1} << 32 | AsBits(logit); };
  const auto look = [&](std::uint32_t index, std::int32_t id) {
    if (id == token) take(Load(arguments.token_logits + index));
  };
  ForEachToken(arguments, row.prompt, look);
  ForEachToken(arguments, row.generated, look);
  ForEachToken(arguments, row.banned, look);
  for (std::uint32_t i = ThreadIndex(); i < row.biases.size; i += kSamplingThreads) {
    const std::uint32_t index = row.biases.first + i;
    if (Load(&arguments.biases[index].token) == token) take(Load(arguments.bias_logits + index));
  }
  found = BlockMax(shared, found);
  return found == 0 ? row.logits.At(token) : AsFloat(static_cast<std::uint32_t>(found));
}

LORAMUX_DEVICE void Ban(const SampleRowsArguments& arguments, const SampleRowOnDevice& row) {
  if (!row.bans) return;
  ForEachToken(arguments, row.banned, [&](std::uint32_t index, std::int32_t id) {
    if (InVocabulary(row.logits, id) && IsFirst(arguments, row.banned, index, id)) Store(row.changed + id, -Infinity());
  });
}

// A token's biases are added in their order, by the thread that has the first of them.
LORAMUX_DEVICE void AddBiases(const SampleRowsArguments& arguments, const SampleRowOnDevice& row) {
  const TokenBias* biases = arguments.biases + row.biases.first;
  for (std::uint32_t i = ThreadIndex(); i < row.biases.size; i += kSamplingThreads) {
    const std::int32_t id = Load(&biases[i].token);
    if (!InVocabulary(row.logits, id)) continue;
    bool first = true;
    for (std::uint32_t before = 0; before < i && first; ++before) first = Load(&biases[before].token) != id;
    if (!first) continue;
    float logit = Load(row.changed + id);
    for (std::uint32_t j = i; j < row.biases.size; ++j) {
      if (Load(&biases[j].token) == id) logit = AddRounded(logit, Load(&biases[j].bias));
    }
    Store(row.changed + id, logit);
  }
}

struct Penalties {
  float presence, frequency, repetition;
};

// Counts the tokens of one part of the vocabulary after the other in shared memory.
LORAMUX_DEVICE void Penalise(SamplingShared& shared, const SampleRowsArguments& arguments, const SampleRowOnDevice& row,
                             const Penalties& by) {
  constexpr std::uint32_t kInPrompt = 0x80000000u;
  const bool repetition = by.repetition != 1.0f;
  if (!repetition && by.presence == 0 && by.frequency == 0) return;
  for (std::int32_t begin = 0; begin < row.logits.size; begin += kCountersAtOnce) {
    const std::int32_t left = row.logits.size - begin;
    const std::int32_t size = left < kCountersAtOnce ? left : kCountersAtOnce;
    SyncBlock();  // the memory was in use
    for (std::int32_t i = ThreadOfBlock(); i < size; i += kSamplingThreads) shared.counters[i] = 0;
    SyncBlock();
    ForEachToken(arguments, row.generated, [&](std::uint32_t /*index*/, std::int32_t id) {
      if (id >= begin && id - begin < size) AtomicAddShared(&shared.counters[id - begin], 1u);
    });
    if (repetition) {
      ForEachToken(arguments, row.prompt, [&](std::uint32_t /*index*/, std::int32_t id) {
        if (id >= begin && id - begin < size) AtomicOrShared(&shared.counters[id - begin], kInPrompt);
      });
    }
    SyncBlock();
    for (std::int32_t i = ThreadOfBlock(); i < size; i += kSamplingThreads) {
      const std::uint32_t seen = shared.counters[i];
      if (seen == 0) continue;
      float logit = Load(row.changed + begin + i);
      if (repetition) logit = logit > 0 ? DivRounded(logit, by.repetition) : MulRounded(logit, by.repetition);
      const std::uint32_t count = seen & ~kInPrompt;
      if (count > 0) {
        logit = AddRounded(logit, -MulRounded(by.frequency, static_cast<float>(count)));
        logit = AddRounded(logit, -by.presence);
      }
      Store(row.changed + begin + i, logit);
    }
  }
}

// All threads come; the changes are seen by all at the end.
LORAMUX_DEVICE void AdjustLogits(SamplingShared& shared, const SampleRowsArguments& arguments,
                                 const SampleRowOnDevice& row, const Penalties& penalties) {
  SyncBlock();  // other threads may still read what is changed here
  Ban(arguments, row);
  SyncBlock();
  AddBiases(arguments, row);
  SyncBlock();
  Penalise(shared, arguments, row, penalties);
  SyncBlock();
}

}  // namespace loramux::gpu
