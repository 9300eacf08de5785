#include "kernels/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace loramux {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
// Below so many elements, waking the other threads costs as much as it saves.
constexpr std::int64_t kSmall = std::int64_t{32} << 10;

// Scores of one row, in place of its logits.
void Score(RouteForm::Score score, std::span<float> row) {
  if (score == RouteForm::Score::kSigmoid) {
    for (float& x : row) x = 1.0f / (1.0f + std::exp(-x));
    return;
  }
  const float most = *std::ranges::max_element(row);
  float sum = 0;
  for (float& x : row) sum += x = std::exp(x - most);
  for (float& x : row) x /= sum;
}

// The `count` highest of `scores`, best first; of equal ones the first. Makes them NaN, which no score is.
void TakeBest(std::span<float> scores, std::int32_t count, std::int32_t* best) {
  for (std::int32_t c = 0; c < count; ++c) {
    std::size_t at = scores.size();
    for (std::size_t i = 0; i < scores.size(); ++i) {
      if (!std::isnan(scores[i]) && (at == scores.size() || scores[i] > scores[at])) at = i;
    }
    best[c] = static_cast<std::int32_t>(at);
    scores[at] = std::numeric_limits<float>::quiet_NaN();
  }
}

// Leaves the scores of the best groups only.
void KeepBestGroups(const RouteForm& form, std::span<float> scores, std::span<float> of_groups,
                    std::span<std::int32_t> kept) {
  const auto size = static_cast<std::size_t>(form.experts / form.groups);
  for (std::size_t g = 0; g < of_groups.size(); ++g) {
    float first = kLowest, second = kLowest;
    for (const float score : scores.subspan(g * size, size)) {
      second = std::max(second, std::min(first, score));
      first = std::max(first, score);
    }
    of_groups[g] = size > 1 ? first + second : first;
  }
  TakeBest(of_groups, form.chosen_groups, kept.data());
  for (std::size_t g = 0; g < of_groups.size(); ++g) {
    if (std::ranges::find(kept, static_cast<std::int32_t>(g)) != kept.end()) continue;
    std::ranges::fill(scores.subspan(g * size, size), kLowest);
  }
}

// Memory of one thread.
struct Scratch {
  std::vector<float> scores, choosing, of_groups;
  std::vector<std::int32_t> kept;
};

void ChooseOfRow(const RouteRowsArguments& a, std::int64_t row, Scratch& s) {
  const RouteForm& form = a.form;
  const float* const logits = a.logits[row];
  std::int32_t* const experts = a.experts + row * form.per_token;
  float* const weights = a.weights + row * form.per_token;
  const auto count = static_cast<std::size_t>(form.experts);
  s.scores.assign(logits, logits + count);
  for (float& x : s.scores) x = std::isnan(x) ? kLowest : x;
  Score(form.score, s.scores);
  s.choosing = s.scores;
  for (std::size_t e = 0; a.bias != nullptr && e < count; ++e) s.choosing[e] += a.bias[e];
  for (float& x : s.choosing) x = std::isnan(x) ? kLowest : x;  // all logits were -infinity
  if (form.groups > 1) {
    s.of_groups.resize(static_cast<std::size_t>(form.groups));
    s.kept.resize(static_cast<std::size_t>(form.chosen_groups));
    KeepBestGroups(form, s.choosing, s.of_groups, s.kept);
  }
  TakeBest(s.choosing, form.per_token, experts);
  float sum = 0;
  for (std::int32_t c = 0; c < form.per_token; ++c) {
    sum += weights[c] = s.scores[static_cast<std::size_t>(experts[c])];
  }
  const float factor = form.renormalise ? form.scale / sum : form.scale;
  for (std::int32_t c = 0; c < form.per_token; ++c) {
    weights[c] *= factor;
    if (a.scales != nullptr) weights[c] *= a.scales[experts[c]];
  }
}

// Calls fn(task) for rows, in this thread if they are few.
template <typename F>
void ForEachRow(const KernelContext& context, std::int64_t rows, std::int64_t row_work, const F& fn) {
  if (rows * row_work < kSmall) {
    for (std::int64_t i = 0; i < rows; ++i) fn(i);
  } else {
    context.pool->Run(rows, [&](std::int64_t i, int) { fn(i); });
  }
}

}  // namespace

void RouteRows(const KernelContext& context, const RouteRowsArguments& a) {
  CHECK(a.form.per_token >= 1 && a.form.per_token <= a.form.experts);
  CHECK(a.form.groups == 1 || a.form.experts % a.form.groups == 0);
  ForEachRow(context, a.rows, 16 * a.form.experts, [&](std::int64_t i) {
    thread_local Scratch scratch;
    ChooseOfRow(a, i, scratch);
  });
}

void ChosenRows::Sort(const RouteForm& form, std::int64_t m, const std::int32_t* experts) {
  const std::int64_t k = form.per_token;
  begins.assign(static_cast<std::size_t>(form.experts) + 1, 0);
  rows.resize(static_cast<std::size_t>(m * k));
  places.resize(rows.size());
  for (std::int64_t pair = 0; pair < m * k; ++pair) ++begins[static_cast<std::size_t>(experts[pair]) + 1];
  for (std::size_t e = 1; e < begins.size(); ++e) begins[e] += begins[e - 1];
  // Each begin moves to its end, which is the next one's begin; then they move back by one.
  for (std::int64_t pair = 0; pair < m * k; ++pair) {
    const auto place = begins[static_cast<std::size_t>(experts[pair])]++;
    rows[static_cast<std::size_t>(place)] = static_cast<std::int32_t>(pair / k);
    places[static_cast<std::size_t>(pair)] = static_cast<std::int32_t>(place);
  }
  for (std::size_t e = begins.size() - 1; e > 0; --e) begins[e] = begins[e - 1];
  begins[0] = 0;
}

void ExpertMatMul(const KernelContext& context, const ExpertMatMulArguments& a) {
  CHECK_EQ(a.begins.size(), a.w.size() + 1);
  thread_local std::vector<std::size_t> taken;
  taken.clear();
  for (std::size_t e = 0; e < a.w.size(); ++e) {
    if (a.begins[e] < a.begins[e + 1]) taken.push_back(e);
  }
  const auto multiply = [&](const KernelContext& by, std::size_t e) {
    MatMul(by, {.x = a.x.Below(a.begins[e]),
                .rows = a.begins[e + 1] - a.begins[e],
                .w = a.w[e],
                .bias = a.biases.empty() ? nullptr : a.biases[e].data(),
                .y = a.y.Below(a.begins[e])});
  };
  // Few experts: all threads share each matrix. Many: each takes whole matrices, which leaves out the waits.
  const auto count = static_cast<std::int64_t>(taken.size());
  if (count < 2 * context.pool->size() || context.pool->size() == 1) {
    for (const std::size_t e : taken) multiply(context, e);
    return;
  }
  const std::span<const std::size_t> all = taken;
  context.pool->Run(count, [&, all](std::int64_t task, int) {
    thread_local ThreadPool alone(1);
    multiply({context.backend, &alone}, all[static_cast<std::size_t>(task)]);
  });
}

void GatherRows(const KernelContext& context, const GatherRowsArguments& a) {
  ForEachRow(context, static_cast<std::int64_t>(a.indices.size()), a.width, [&](std::int64_t p) {
    std::memcpy(a.y[p], a.x[a.indices[static_cast<std::size_t>(p)]], static_cast<std::size_t>(a.width) * sizeof(float));
  });
}

void CombineChosen(const KernelContext& context, const CombineChosenArguments& a) {
  const std::int64_t k = a.form.per_token, n = a.width;
  ForEachRow(context, a.rows, n * k, [&](std::int64_t i) {
    float* const out = a.y[i];
    if (!a.form.keeps) {
      std::fill_n(out, n, 0.0f);
    } else if (a.form.gates != nullptr) {
      const float factor = 1.0f / (1.0f + std::exp(-a.form.gates[i * a.form.gate_stride]));
      for (std::int64_t t = 0; t < n; ++t) out[t] *= factor;
    }
    for (std::int64_t c = i * k; c < (i + 1) * k; ++c) {
      const float weight = a.weights[c];
      const float* const from = a.x[a.places[static_cast<std::size_t>(c)]];
      for (std::int64_t t = 0; t < n; ++t) out[t] += weight * from[t];
    }
  });
}

}  // namespace loramux
