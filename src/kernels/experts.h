// Mixtures of experts: choosing experts, and products of each row with its expert's matrix.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/routing.h"
#include "kernels/kernel_context.h"
#include "kernels/matmul.h"

namespace loramux {

// Chooses `form.per_token` experts of each of m rows of logits, `stride` floats apart, best first: their numbers and
// weights, [m, per_token] each. bias: [experts], added to the scores that choose but not to the weights, or null.
// Each row depends on its logits alone. What is not a number counts as least.
void ChooseExperts(const KernelContext& context, const RouteForm& form, const float* logits, std::int64_t stride,
                   std::int64_t m, const float* bias, std::int32_t* experts, float* weights);

// The chosen (row, choice) pairs of a step sorted by expert, those of one expert by row. Grows to the largest step.
struct ChosenRows {
  std::vector<std::int64_t> begins;  // [experts + 1]: where each expert's pairs begin
  std::vector<std::int32_t> rows;    // by place: the row
  std::vector<std::int32_t> places;  // by row * per_token + choice: the place

  // Sorts `experts` [m, per_token].
  void Sort(const RouteForm& form, std::int64_t m, const std::int32_t* experts);
};

// y[p, :] = x[p, :] W_e^T + bias_e for places p in [begins[e], begins[e + 1]): MatMul with each expert's matrix,
// bitwise the same. Matrices that no row takes are not read, the others once. biases: empty, or one for each expert.
void ExpertMatMul(const KernelContext& context, std::span<const std::int64_t> begins, const float* x,
                  std::int64_t x_stride, std::span<const PackedMatrix> w, std::span<const std::vector<float>> biases,
                  float* y, std::int64_t y_stride);

// to[p, :] = x[rows[p], :], n floats each.
void GatherRows(const KernelContext& context, std::span<const std::int32_t> rows, const float* x, std::int64_t x_stride,
                std::int64_t n, float* to, std::int64_t to_stride);

// y[i, :] = factor(i) * y[i, :] + the sum over the choices c, best first, of weights[i, c] * x[places[i, c], :].
// Factors: 0 if `keeps` is not set, 1 with `gates` null, else the sigmoid of gates[i * gate_stride].
struct CombineForm {
  std::int32_t per_token = 0;
  bool keeps = false;
  const float* gates = nullptr;
  std::int64_t gate_stride = 0;
};
void CombineExperts(const KernelContext& context, const CombineForm& form, std::span<const std::int32_t> places,
                    const float* weights, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n,
                    float* y, std::int64_t y_stride);

}  // namespace loramux
