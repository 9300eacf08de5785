// The part of gpu_bench that times dense products and asks whether a row has the same bits in a batch as alone.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "base/prng.h"
#include "lab/bench/gpu/gpu_bench.h"

namespace loramux {
namespace {

struct Shape {
  const char* name;
  std::int64_t n, k;
};

// One matrix, in as many copies as it takes for a cache to hold none of them from one product to the next.
struct DenseWorld {
  Shape shape;
  std::int64_t copies;
  const std::byte *w, *x;  // x: [max_rows, k]
  float* y;                // [max_rows, n]

  DenseProduct Product(std::int64_t m, int i) const {
    DenseProduct product;
    product.dtype = DType::kBF16;
    product.m = m;
    product.n = shape.n;
    product.k = product.x_stride = shape.k;
    product.x = x;
    product.w = w + i % copies * shape.n * shape.k * 2;
    product.y = y;
    product.y_stride = shape.n;
    return product;
  }
};

void CheckOutputs(GpuBench& bench, const DenseWorld& world, std::int64_t m, const std::vector<float>& y) {
  Prng prng(5);
  for (int i = 0; i < 8; ++i) {
    const auto row = static_cast<std::int64_t>(prng.NextBelow(static_cast<std::uint64_t>(m)));
    const auto j = static_cast<std::int64_t>(prng.NextBelow(static_cast<std::uint64_t>(world.shape.n)));
    double expected = 0, scale = 0;
    for (std::int64_t t = 0; t < world.shape.k; ++t) {
      const double part =
          static_cast<double>(bench.Random(row * world.shape.k + t)) * bench.Random(j * world.shape.k + t);
      expected += part;
      scale += std::abs(part);
    }
    CheckClose(fmt::format("dense product, {} at {} rows", world.shape.name, m),
               y[static_cast<std::size_t>(row * world.shape.n + j)], expected, scale, 1e-4);
  }
}

void BenchShape(GpuBench& bench, const std::string& name, const Shape& shape, GpuResults& results) {
  std::vector<std::int64_t> rows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 2048};
  if (bench.check()) rows = {1, 3};
  const std::int64_t bytes = shape.n * shape.k * 2;
  const std::int64_t copies = bench.check() ? 1 : std::max<std::int64_t>(1, 400'000'000 / bytes);
  const DenseWorld world = {shape, copies, bench.AllocateRandom(copies * shape.n * shape.k),
                            bench.AllocateRandom(rows.back() * shape.k),
                            reinterpret_cast<float*>(bench.Allocate(rows.back() * shape.n * 4))};
  std::vector<float> alone;
  for (const std::int64_t m : rows) {
    bench.stream().Multiply(world.Product(m, 0));
    const auto y = bench.Download(static_cast<const float*>(world.y), m * shape.n);
    CheckOutputs(bench, world, m, y);
    if (m == 1) alone = y;
    const bool same_bits = std::memcmp(alone.data(), y.data(), alone.size() * sizeof(float)) == 0;
    const int launches = std::max(2, static_cast<int>(64 / std::max<std::int64_t>(1, m / 64)));
    const double seconds = bench.Seconds(launches, [&](int i) { bench.stream().Multiply(world.Product(m, i)); });
    AddRow(results, "dense",
           {{"products", name},
            {"layer", shape.name},
            {"n", shape.n},
            {"k", shape.k},
            {"rows", m},
            {"us", 1e6 * seconds},
            {"weights_gb_per_s", 1e-9 * static_cast<double>(bytes) / seconds},
            {"tflop_per_s", 2e-12 * static_cast<double>(m * shape.n * shape.k) / seconds},
            {"row_0_as_alone", same_bits}});
  }
}

}  // namespace

void BenchDense(GpuBench& bench, const std::string& name, GpuResults& results) {
  std::vector<Shape> shapes = {
      {"qkv", 12288, 4096}, {"o", 4096, 4096}, {"gate and up", 22016, 4096}, {"down", 4096, 11008}};
  if (bench.check()) shapes = {{"tiny", 96, 64}};
  for (const Shape& shape : shapes) {
    BenchShape(bench, name, shape, results);
    bench.Free();
  }
}

}  // namespace loramux
