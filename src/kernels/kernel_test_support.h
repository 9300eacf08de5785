// Shared by kernel tests: every backend at every instruction set that the machine supports, and random data.
#pragma once

#include <cstring>
#include <ostream>
#include <sstream>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "formats/dtype.h"
#include "hwy/targets.h"
#include "kernels/kernel_context.h"
#include "tensor/half_float.h"

namespace loramux {

// A backend, and for kCpu the one instruction set that it may use.
struct KernelVariant {
  Backend backend = Backend::kReference;
  std::int64_t target = 0;
  int threads = 1;

  friend std::ostream& operator<<(std::ostream& out, const KernelVariant& variant) {
    if (variant.backend == Backend::kReference) return out << "reference";
    return out << hwy::TargetName(variant.target) << "_" << variant.threads << "threads";
  }
};

// The reference, and kCpu with each instruction set at 1 and 3 threads.
inline std::vector<KernelVariant> AllKernelVariants() {
  std::vector<KernelVariant> variants = {{Backend::kReference, 0, 1}};
  for (std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    for (int threads : {1, 3}) variants.push_back({Backend::kCpu, target, threads});
  }
  return variants;
}

// Base of kernel tests: restricts the dispatch to the variant's instruction set.
class KernelTest : public testing::TestWithParam<KernelVariant> {
 protected:
  KernelTest() : pool_(GetParam().threads), reference_pool_(1) {
    if (GetParam().backend == Backend::kCpu) {
      hwy::SetSupportedTargetsForTest(GetParam().target);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    }
  }
  ~KernelTest() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }

  // The variant under test, and the single-threaded oracle.
  KernelContext context() { return {GetParam().backend, &pool_}; }
  KernelContext reference() { return {Backend::kReference, &reference_pool_}; }

 private:
  ThreadPool pool_;
  ThreadPool reference_pool_;
};

#define LORAMUX_INSTANTIATE_KERNEL_TEST(name)                                      \
  INSTANTIATE_TEST_SUITE_P(Variants, name, testing::ValuesIn(AllKernelVariants()), \
                           [](const testing::TestParamInfo<KernelVariant>& info) { \
                             std::ostringstream text;                              \
                             text << info.param;                                   \
                             return text.str();                                    \
                           })

// `count` uniform floats in [-1, 1).
inline std::vector<float> RandomFloats(std::int64_t count, Prng& prng) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(2 * prng.NextDouble() - 1);
  return values;
}

// The largest code of a type of 8 bits, else 1.
inline float RangeOf(DType dtype) {
  return dtype == DType::kI8 ? 127.0f : HasRowFactors(dtype) ? kLargestF8E4M3 : 1.0f;
}

// `count` uniform numbers in [-1, 1), rounded to `dtype`; of i8 in [-127, 127), of f8_e4m3 in [-448, 448).
inline std::vector<std::byte> RandomElements(DType dtype, std::int64_t count, Prng& prng) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * DTypeSize(dtype));
  const double range = RangeOf(dtype);
  for (std::int64_t i = 0; i < count; ++i) {
    StoreFromF32(dtype, bytes.data(), i, static_cast<float>((2 * prng.NextDouble() - 1) * range));
  }
  return bytes;
}

// Whether `count` floats have the same bits.
inline bool BitwiseEqual(const float* a, const float* b, std::int64_t count) {
  return std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(float)) == 0;
}

// Bound of the difference between two orders of summation of `terms` products of numbers in [-1, 1]. Partial sums are
// of order sqrt(terms) / 3. They are rounded `terms` times, each time by at most 2^-24 of their value, in random
// directions. The total is of order 2^-24 * terms / 3; the bound has a margin of eight. A missing or wrong product
// makes a difference of order 0.3, so the margin does not weaken the test.
inline float SumTolerance(std::int64_t terms) { return 8.0f * 0x1.0p-24f * static_cast<float>(terms) / 3 + 1e-6f; }

// The types that weights and pages may have.
inline constexpr DType kStoredTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
// The types that the rows of adapters may have.
inline constexpr DType kAdapterTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kI8, DType::kF8E4M3};

// Factors of ranks: of codes of 8 bits, they make numbers in [-1, 1) of the products of RandomElements.
inline std::vector<float> RandomFactors(DType dtype, std::int64_t rank, Prng& prng) {
  std::vector<float> factors = RandomFloats(rank, prng);
  for (float& factor : factors) factor /= RangeOf(dtype) * RangeOf(dtype);
  return factors;
}

}  // namespace loramux
