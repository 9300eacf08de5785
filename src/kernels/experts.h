// Mixtures of experts: choosing experts, and products of each row with its expert's matrix.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/operation_forms.h"
#include "formats/routing.h"
#include "kernels/kernel_context.h"
#include "kernels/matmul.h"

namespace loramux {

// Chooses `form.per_token` experts of each row of logits, best first. Each row depends on its logits alone. What is not
// a number counts as least.
struct RouteRowsArguments {
  ConstRows logits;
  const float* bias = nullptr;    // [experts], added to the scores that choose but not to the weights, or null
  const float* scales = nullptr;  // [experts], by which the weights of the chosen are multiplied at last, or null
  std::int64_t rows = 0;
  RouteForm form;
  std::int32_t* experts = nullptr;  // [rows, per_token]
  float* weights = nullptr;         // [rows, per_token]: the weights of the chosen
};
void RouteRows(const KernelContext& context, const RouteRowsArguments& arguments);

// The chosen (row, choice) pairs of a step sorted by expert, those of one expert by row. Grows to the largest step.
struct ChosenRows {
  std::vector<std::int64_t> begins;  // [experts + 1]: where each expert's pairs begin
  std::vector<std::int32_t> rows;    // by place: the row
  std::vector<std::int32_t> places;  // by row * per_token + choice: the place

  // Sorts `experts` [m, per_token].
  void Sort(const RouteForm& form, std::int64_t m, const std::int32_t* experts);
};

// y[p, :] = x[p, :] W_e^T + bias_e for places p in [begins[e], begins[e + 1]): MatMul with each expert's matrix,
// bitwise the same. Matrices that no row takes are not read, the others once.
struct ExpertMatMulArguments {
  std::span<const std::int64_t> begins;
  ConstRows x;
  std::span<const PackedMatrix> w;
  std::span<const std::vector<float>> biases;  // one for each expert, or none
  Rows y;
};
void ExpertMatMul(const KernelContext& context, const ExpertMatMulArguments& arguments);

// y[p, :] = x[indices[p], :].
struct GatherRowsArguments {
  ConstRows x;
  std::span<const std::int32_t> indices;
  Rows y;
  std::int64_t width = 0;
};
void GatherRows(const KernelContext& context, const GatherRowsArguments& arguments);

// y[i, :] = factor(i) * y[i, :] + the sum over the choices c, best first, of weights[i, c] * x[places[i, c], :].
struct CombineChosenArguments {
  ConstRows x;
  std::span<const std::int32_t> places;
  const float* weights = nullptr;
  Rows y;
  std::int64_t rows = 0, width = 0;
  CombineForm form;
};
void CombineChosen(const KernelContext& context, const CombineChosenArguments& arguments);

}  // namespace loramux
