// The kernel of experts.h that chooses experts.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/experts.h"

namespace loramux::gpu {

LORAMUX_DEVICE bool IsNumber(float x) { return x == x; }

// One warp a row. Shared memory: the scores, the scores that choose, those of the groups.
template <typename T>
struct RouteRowsKernel {
  using Arguments = RouteRowsArguments;
  static constexpr int kThreads = 32, kMinBlocks = 1;

  LORAMUX_DEVICE static void Run(const Arguments& a) {
    const auto row = static_cast<std::int32_t>(BlockX()), lane = static_cast<std::int32_t>(Lane());
    if (row >= Load(a.rows)) return;
    float* scores = &Shared<float>();
    float* choosing = scores + a.form.experts;
    Score(a, a.logits + row * a.stride, scores);
    for (std::int32_t e = lane; e < a.form.experts; e += 32) {
      const float score = a.bias != nullptr ? scores[e] + Load(a.bias + e) : scores[e];
      choosing[e] = IsNumber(score) ? score : -__builtin_inff();
    }
    SyncWarp();
    if (a.form.groups > 1) KeepBestGroups(a.form, choosing, choosing + a.form.experts);
    std::int32_t mine = 0;  // the lane's choice: lane c has choice c
    float sum = 0;
    for (std::int32_t c = 0; c < a.form.per_token; ++c) {
      const std::int32_t best = TakeBest(choosing, a.form.experts);
      if (lane == c) mine = best;
      sum += scores[best];
    }
    if (lane >= a.form.per_token) return;
    const float factor = a.form.renormalise ? a.form.scale / sum : a.form.scale;
    Store(a.experts + row * a.form.per_token + lane, mine);
    Store(a.weights + row * a.form.per_token + lane, factor * scores[mine]);
  }

 private:
  LORAMUX_DEVICE static void Score(const Arguments& a, const float* logits, float* scores) {
    const auto lane = static_cast<std::int32_t>(Lane());
    const bool softmax = a.form.score == RouteForm::Score::kSoftmax;
    float most = -__builtin_inff();
    for (std::int32_t e = lane; e < a.form.experts; e += 32) {
      const float logit = Load(logits + e), x = IsNumber(logit) ? logit : -__builtin_inff();
      scores[e] = softmax ? x : 1.0f / (1.0f + Exp(-x));
      most = Max(most, x);
    }
    if (!softmax) return SyncWarp();
    most = MaxWarp(most);
    float sum = 0;
    for (std::int32_t e = lane; e < a.form.experts; e += 32) sum += scores[e] = Exp(scores[e] - most);
    sum = SumWarp(sum);
    for (std::int32_t e = lane; e < a.form.experts; e += 32) scores[e] /= sum;
    SyncWarp();
  }

  // The sort key of an index: higher for higher scores, and for equal ones higher for the first. Never 0.
  LORAMUX_DEVICE static std::uint64_t KeyOf(float score, std::int32_t index) {
    const std::uint32_t bits = AsBits(score + 0.0f);  // -0 becomes +0
    const std::uint32_t ordered = bits ^ (bits >> 31 != 0 ? 0xffffffffu : 0x80000000u);
    return static_cast<std::uint64_t>(ordered) << 32 | (0xffffffffu - static_cast<std::uint32_t>(index));
  }

  // The index of the highest of `count` scores, the first of equal ones. The score becomes NaN, and does not count
  // again. A lane looks at its own scores alone.
  LORAMUX_DEVICE static std::int32_t TakeBest(float* scores, std::int32_t count) {
    std::uint64_t best = 0;
    for (auto i = static_cast<std::int32_t>(Lane()); i < count; i += 32) {
      if (!IsNumber(scores[i])) continue;
      const std::uint64_t key = KeyOf(scores[i], i);
      if (key > best) best = key;
    }
    best = MaxWarp(best);
    const auto at = static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(best));
    if (static_cast<std::int32_t>(Lane()) == at % 32) scores[at] = __builtin_nanf("");
    return at;
  }

  LORAMUX_DEVICE static void KeepBestGroups(const RouteForm& form, float* choosing, float* of_groups) {
    const std::int32_t size = form.experts / form.groups, lane = static_cast<std::int32_t>(Lane());
    for (std::int32_t g = lane; g < form.groups; g += 32) {
      float first = -__builtin_inff(), second = first;
      for (std::int32_t e = g * size; e < (g + 1) * size; ++e) {
        second = Max(second, Min(first, choosing[e]));
        first = Max(first, choosing[e]);
      }
      of_groups[g] = size > 1 ? first + second : first;
    }
    SyncWarp();
    for (std::int32_t c = 0; c < form.chosen_groups; ++c) TakeBest(of_groups, form.groups);
    SyncWarp();
    for (std::int32_t e = lane; e < form.experts; e += 32)
      if (IsNumber(of_groups[e / size])) choosing[e] = -__builtin_inff();
    SyncWarp();
  }
};

}  // namespace loramux::gpu
