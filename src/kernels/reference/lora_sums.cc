#include <algorithm>
#include <cmath>

#include "kernels/lora_sums.h"
#include "tensor/half_float.h"

namespace loramux::reference {
namespace {

float MultiplyAdd(float a, float b, float c, bool fused) { return fused ? std::fma(a, b, c) : a * b + c; }

// One block of up to 512 elements: 32 lanes, added in pairs.
float SumBlock(const LoraSumsArguments& input, std::int64_t row, const LoraWeights& weights, std::int32_t j,
               std::int64_t begin) {
  float lanes[32] = {};
  for (std::int64_t t = begin; t < std::min(begin + 512, input.in); ++t) {
    float& lane = lanes[t % 128 / 4];
    lane = MultiplyAdd(LoadAsF32(input.dtype, static_cast<const std::byte*>(input.x), row * input.x_stride + t),
                       LoadAsF32(weights.dtype, weights.a_rows[j], t), lane, input.fused);
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    for (int lane = 0; lane < distance; ++lane) lanes[lane] += lanes[lane + distance];
  }
  return lanes[0];
}

float DotOfDevice(const LoraSumsArguments& input, std::int64_t row, const LoraWeights& weights, std::int32_t j) {
  float sum = 0;
  for (std::int64_t split = 0; split < input.in; split += 2048) {
    float total = 0;
    for (std::int64_t begin = split; begin < std::min(split + 2048, input.in); begin += 512) {
      const float block = SumBlock(input, row, weights, j, begin);
      total = begin == split ? block : total + block;
    }
    sum = split == 0 ? total : sum + total;
  }
  return sum;
}

}  // namespace

void LoraSums(const KernelContext&, const LoraSumsArguments& input) {
  for (const LoraSumsOutput& output : input.outputs) {
    for (std::int64_t row = 0; row < input.rows; ++row) {
      float* sums = output.sums + row * output.stride;
      std::fill_n(sums, output.out, 0.0f);
      for (std::int32_t j = 0; j < output.weights.rank; ++j) {
        const float dot = DotOfDevice(input, row, output.weights, j);
        const float v = output.weights.factors == nullptr ? dot : dot * output.weights.factors[j];
        for (std::int64_t o = 0; o < output.out; ++o) {
          sums[o] = MultiplyAdd(v, LoadAsF32(output.weights.dtype, output.weights.b_rows[j], output.first_out + o),
                                sums[o], input.fused);
        }
      }
    }
  }
}

}  // namespace loramux::reference
