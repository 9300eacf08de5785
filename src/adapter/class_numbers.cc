#include "adapter/class_numbers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

// Sums that a processor can add side by side.
constexpr std::size_t kLanes = 8;

double Dot(std::span<const float> a, std::span<const float> b) {
  std::array<double, kLanes> sums = {};
  std::size_t i = 0;
  for (; i + kLanes <= a.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
    }
  }
  double sum = 0;
  for (const double lane : sums) sum += lane;
  for (; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

}  // namespace

std::vector<float> ClassNumbers(const ClassHead& head, std::span<const float> hidden) {
  const DType dtype = head.tensor->dtype;
  const auto classes = static_cast<std::size_t>(head.classes());
  CHECK_EQ(head.weights.size(), classes * hidden.size() * DTypeSize(dtype));
  std::vector<float> numbers, row(hidden.size());
  for (std::size_t c = 0; c < classes; ++c) {
    const std::byte* const from = head.weights.data() + c * hidden.size() * DTypeSize(dtype);
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = LoadAsF32(dtype, from, static_cast<std::int64_t>(i));
    numbers.push_back(static_cast<float>(Dot(row, hidden)));
  }
  return numbers;
}

void ActivateClasses(ClassTask task, std::vector<float>& numbers) {
  if (task == ClassTask::kRegression) return;
  if (task == ClassTask::kAnyOf || numbers.size() == 1) {
    for (float& number : numbers) number = static_cast<float>(1 / (1 + std::exp(-static_cast<double>(number))));
    return;
  }
  const double largest = *std::ranges::max_element(numbers);
  double sum = 0;
  for (const float number : numbers) sum += std::exp(static_cast<double>(number) - largest);
  for (float& number : numbers) number = static_cast<float>(std::exp(static_cast<double>(number) - largest) / sum);
}

}  // namespace loramux
