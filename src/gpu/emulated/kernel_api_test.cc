// What kernels may use, on the emulated device, against its definition.
#include "gpu/kernel_api.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>
#include <gtest/gtest.h>

#include "base/prng.h"
#include "gpu/device_arrays_for_test.h"
#include "gpu/emulated/emulated_device.h"
#include "tensor/half_float.h"

namespace loramux::gpu::kernel_api_test {
namespace {

// A device of its own, with this order of lanes.
class Bench {
 public:
  explicit Bench(std::uint64_t seed = 1) : device_(MakeEmulatedDevice({.seed = seed})), arrays(*device_) {}

  template <typename KernelStruct>
  void Run(const typename KernelStruct::Arguments& arguments, std::uint32_t threads, std::size_t shared_bytes = 0,
           GridSize grid = {}) {
    device_->LaunchKernel<KernelStruct>(arrays.stream(), "test kernel", grid, threads, shared_bytes, arguments);
  }

 private:
  std::unique_ptr<EmulatedDevice> device_;

 public:
  DeviceArrays arrays;
};

TEST(KernelApi, ConversionsOfHalvesAreThoseOfTheHost) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float expected = F16ToF32(half);
    const float value = ToFloat(Half{half});
    if (expected != expected) {
      EXPECT_NE(value, value) << bits;
    } else {
      ASSERT_EQ(AsBits(value), AsBits(expected)) << bits;
      ASSERT_EQ(FromFloat<Half>(value).bits, half);
    }
    ASSERT_EQ(AsBits(ToFloat(Bf16{half})), AsBits(BF16ToF32(half)));
  }
  Prng random(1);
  for (int i = 0; i < 1'000'000; ++i) {
    const float value = AsFloat(static_cast<std::uint32_t>(random.Next()));
    if (value != value) continue;
    ASSERT_EQ(FromFloat<Half>(value).bits, F32ToF16(value)) << value;
    ASSERT_EQ(FromFloat<Bf16>(value).bits, F32ToBF16(value)) << value;
  }
  for (const float value : {65519.9f, 65520.0f, 0x1p-24f, 0x1p-25f, 0x1.8p-25f, 0x1.ffcp-15f, 0x1.ffep-15f, -0.0f}) {
    EXPECT_EQ(FromFloat<Half>(value).bits, F32ToF16(value)) << value;
  }
}

struct TileArguments {
  const std::uint16_t *a, *b;  // [16, 16], [16, 8]
  float* d;                    // [16, 8], added to
  bool swapped = false;        // planted: two words of a in each other's place
};

// Fills the fragments as PTX describes them: "Matrix fragments for mma.m16n8k16 with floating point type".
template <typename T>
struct TileKernel {
  using Arguments = TileArguments;
  static constexpr int kThreads = 32;
  static void Run(const Arguments& arguments) {
    const std::uint32_t group = Lane() >> 2, in_group = Lane() % 4;
    std::uint32_t a[4] = {}, b[2] = {};
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::uint32_t row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
      const std::uint32_t column = in_group * 2 + (i & 1) + (i < 4 ? 0 : 8);
      a[i / 2] |= static_cast<std::uint32_t>(Load(arguments.a + row * 16 + column)) << (16 * (i % 2));
    }
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint32_t row = in_group * 2 + (i & 1) + (i < 2 ? 0 : 8);
      b[i / 2] |= static_cast<std::uint32_t>(Load(arguments.b + row * 8 + group)) << (16 * (i % 2));
    }
    float d[4];
    for (std::uint32_t i = 0; i < 4; ++i) d[i] = Load(arguments.d + Element(i));
    const std::uint32_t first = arguments.swapped ? 2 : 1;
    MultiplyTile<T>(d, a[0], a[first], a[3 - first], a[3], b[0], b[1]);
    for (std::uint32_t i = 0; i < 4; ++i) Store(arguments.d + Element(i), d[i]);
  }
  static std::uint32_t Element(std::uint32_t i) {
    return ((Lane() >> 2) + (i < 2 ? 0 : 8)) * 8 + Lane() % 4 * 2 + (i & 1);
  }
};

// How many elements are right.
template <typename T>
int RightElements(std::uint64_t seed, bool swapped) {
  Prng random(seed + 5);
  std::vector<std::uint16_t> a(256), b(128);
  for (auto& x : a) x = FromFloat<T>(static_cast<float>(random.NextDouble()) - 0.5f).bits;
  for (auto& x : b) x = FromFloat<T>(static_cast<float>(random.NextDouble()) - 0.5f).bits;
  std::vector<float> d(128, 0.25f);
  Bench bench(seed);
  float* on_device = bench.arrays.Upload(d);
  bench.Run<TileKernel<T>>({bench.arrays.Upload(a), bench.arrays.Upload(b), on_device, swapped}, 32);
  const std::vector<float> result = bench.arrays.Download(on_device, d.size());
  int right = 0;
  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t column = 0; column < 8; ++column) {
      double expected = 0.25;
      for (std::size_t k = 0; k < 16; ++k) {
        expected += static_cast<double>(ToFloat(T{a[row * 16 + k]})) * ToFloat(T{b[k * 8 + column]});
      }
      right += std::abs(result[row * 8 + column] - expected) < 1e-6;
    }
  }
  return right;
}

TEST(KernelApi, MultiplyTileHasTheFragmentsOfPtx) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    EXPECT_EQ(RightElements<Bf16>(seed, false), 128);
    EXPECT_EQ(RightElements<Half>(seed, false), 128);
    EXPECT_LT(RightElements<Bf16>(seed, true), 128);
    EXPECT_LT(RightElements<Half>(seed, true), 128);
  }
}

struct MatricesArguments {
  const std::uint16_t* matrices;  // [4][8][8]
  std::uint32_t* words;           // [32][4]
  bool transposed;
};

struct MatricesKernel {
  using Arguments = MatricesArguments;
  static constexpr int kThreads = 32;
  struct Memory {
    std::uint16_t matrices[32][8];
  };
  static void Run(const Arguments& arguments) {
    auto& shared = Shared<Memory>();
    for (std::uint32_t i = 0; i < 8; ++i) shared.matrices[Lane()][i] = Load(arguments.matrices + Lane() * 8 + i);
    SyncWarp();
    std::uint32_t r[4];
    if (arguments.transposed) {
      LoadMatricesTransposed(r, shared.matrices[Lane()]);
    } else {
      LoadMatrices(r, shared.matrices[Lane()]);
    }
    for (std::uint32_t i = 0; i < 4; ++i) Store(arguments.words + Lane() * 4 + i, r[i]);
  }
};

// PTX: thread i holds of row i / 4 of each matrix the elements 2 (i % 4) and the next; with .trans, of column i / 4.
TEST(KernelApi, LoadMatricesHasTheLayoutOfPtx) {
  std::vector<std::uint16_t> matrices(256);
  for (std::size_t i = 0; i < matrices.size(); ++i) matrices[i] = static_cast<std::uint16_t>(i);
  for (const bool transposed : {false, true}) {
    Bench bench;
    std::uint32_t* words = bench.arrays.Upload(std::vector<std::uint32_t>(128));
    bench.Run<MatricesKernel>({bench.arrays.Upload(matrices), words, transposed}, 32, sizeof(MatricesKernel::Memory));
    const auto result = bench.arrays.Download(words, 128);
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      for (std::uint32_t m = 0; m < 4; ++m) {
        const std::uint32_t major = lane / 4, minor = lane % 4 * 2, first = m * 64;
        const std::uint32_t low = transposed ? first + minor * 8 + major : first + major * 8 + minor;
        const std::uint32_t high = transposed ? low + 8 : low + 1;
        EXPECT_EQ(result[lane * 4 + m], low | high << 16);
      }
    }
  }
}

struct SumsArguments {
  const float* x;  // [blocks, threads]
  float* sums;     // [blocks, 4]: by SumWarp and shared memory, by ShuffleXor, by MaxWarp, by Shuffle from lane 3
};

struct SumsKernel {
  using Arguments = SumsArguments;
  static constexpr int kThreads = 256;
  struct Memory {
    float parts[8][4];
  };
  static void Run(const Arguments& arguments) {
    auto& shared = Shared<Memory>();
    const float x = Load(arguments.x + BlockX() * BlockThreads() + ThreadIndex());
    float by_xor = x;
    for (std::uint32_t mask = 16; mask > 0; mask /= 2) by_xor += ShuffleXor(by_xor, mask);
    const float values[4] = {SumWarp(x), by_xor, MaxWarp(x), Shuffle(x, 3)};
    if (Lane() == 0) {
      for (int i = 0; i < 4; ++i) shared.parts[Warp()][i] = values[i];
    }
    SyncBlock();
    if (ThreadIndex() >= 4) return;
    float sum = 0;
    for (std::uint32_t w = 0; w < BlockThreads() / 32; ++w) sum += shared.parts[w][ThreadIndex()];
    Store(arguments.sums + BlockX() * 4 + ThreadIndex(), sum);
  }
};

TEST(KernelApi, MeetingsGiveTheSameBitsInEveryOrder) {
  Prng random(3);
  std::vector<float> x(20 * 256);
  for (float& value : x) value = static_cast<float>(random.NextDouble());
  std::vector<float> first;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Bench bench(seed);
    float* sums = bench.arrays.Upload(std::vector<float>(80));
    bench.Run<SumsKernel>({bench.arrays.Upload(x), sums}, 256, sizeof(SumsKernel::Memory), {20, 1, 1});
    const std::vector<float> result = bench.arrays.Download(sums, 80);
    if (seed == 0) first = result;
    EXPECT_EQ(std::memcmp(result.data(), first.data(), 80 * sizeof(float)), 0);
    for (std::size_t block = 0; block < 20; ++block) {
      double expected = 0;
      for (std::size_t i = 0; i < 256; ++i) expected += x[block * 256 + i];
      EXPECT_NEAR(result[block * 4], expected, 1e-4);
      EXPECT_EQ(result[block * 4], result[block * 4 + 1]);
    }
  }
}

struct WideArguments {
  const double* x;             // [64]
  const std::uint64_t* words;  // [64]
  double* sums;                // by warp: SumWarp, by ShuffleXor, the value of lane 5
  std::uint64_t* maxima;       // by warp: MaxWarp, the value of lane 7
  std::uint32_t* counts;       // SumWarp of the first warp, then the block's count and its bits
};
template <typename T>
struct WideKernel {
  using Arguments = WideArguments;
  static constexpr int kThreads = 64, kMinBlocks = 1;
  struct Memory {
    std::uint32_t count, bits;
  };
  static void Run(const Arguments& arguments) {
    auto& shared = Shared<Memory>();
    if (ThreadIndex() == 0) shared = {0, 0};
    SyncBlock();
    const double x = Load(arguments.x + ThreadIndex());
    const std::uint64_t word = Load(arguments.words + ThreadIndex());
    double by_xor = x;
    for (std::uint32_t mask = 16; mask > 0; mask /= 2) by_xor += ShuffleXor(by_xor, mask);
    const double sums[3] = {SumWarp(x), by_xor, Shuffle(x, 5)};
    const std::uint64_t maxima[2] = {MaxWarp(word), Shuffle(word, 7)};
    const std::uint32_t lanes = SumWarp(Lane() + 0x80000000u * (Lane() == 1 ? 1 : 0));
    AtomicAddShared(&shared.count, ThreadIndex());
    AtomicOrShared(&shared.bits, 1u << Lane());
    SyncBlock();
    if (Lane() != 0) return;
    for (std::uint32_t i = 0; i < 3; ++i) Store(arguments.sums + 3 * Warp() + i, sums[i]);
    for (std::uint32_t i = 0; i < 2; ++i) Store(arguments.maxima + 2 * Warp() + i, maxima[i]);
    if (Warp() != 0) return;
    Store(arguments.counts, lanes);
    Store(arguments.counts + 1, shared.count);
    Store(arguments.counts + 2, shared.bits);
  }
};

TEST(KernelApi, WideValuesAndIntegersMeet) {
  Prng random(4);
  std::vector<double> x(64);
  std::vector<std::uint64_t> words(64);
  for (double& value : x) value = random.NextDouble();
  for (std::uint64_t& word : words) word = random.Next();
  Bench bench;
  double* sums = bench.arrays.Allocate<double>(6);
  std::uint64_t* maxima = bench.arrays.Allocate<std::uint64_t>(4);
  std::uint32_t* counts = bench.arrays.Allocate<std::uint32_t>(3);
  bench.Run<WideKernel<float>>({bench.arrays.Upload(x), bench.arrays.Upload(words), sums, maxima, counts}, 64,
                               sizeof(WideKernel<float>::Memory));
  const std::vector<double> sums_of_warps = bench.arrays.Download(sums, 6);
  const std::vector<std::uint64_t> maxima_of_warps = bench.arrays.Download(maxima, 4);
  for (std::size_t warp = 0; warp < 2; ++warp) {
    double sum = 0;
    std::uint64_t max = 0;
    for (std::size_t lane = 0; lane < 32; ++lane) {
      sum += x[warp * 32 + lane];
      max = std::max(max, words[warp * 32 + lane]);
    }
    EXPECT_NEAR(sums_of_warps[3 * warp], sum, 1e-12);
    EXPECT_EQ(sums_of_warps[3 * warp], sums_of_warps[3 * warp + 1]);
    EXPECT_EQ(sums_of_warps[3 * warp + 2], x[warp * 32 + 5]);
    EXPECT_EQ(maxima_of_warps[2 * warp], max);
    EXPECT_EQ(maxima_of_warps[2 * warp + 1], words[warp * 32 + 7]);
  }
  EXPECT_EQ(bench.arrays.Download(counts, 3), (std::vector<std::uint32_t>{0x80000000u + 496, 2016, 0xffffffffu}));
}

}  // namespace
}  // namespace loramux::gpu::kernel_api_test
