// The part of gpu_bench that times products of quantised weights: the packed bytes, and what they are widened to.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/ceil_divide.h"
#include "base/prng.h"
#include "gpu/kernels/packed.h"
#include "gpu/kernels/skinny.h"
#include "lab/bench/gpu/gpu_bench.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

struct Shape {
  const char* name;
  std::int64_t n, k;
};
struct Form {
  WeightFormat format;
  std::int32_t group_shift;
};

// One matrix, in as many copies as it takes for a cache to hold none of them from one product to the next.
class QuantisedWorld {
 public:
  QuantisedWorld(GpuBench& bench, const Shape& shape, const Form& form, std::int32_t rows)
      : bench_(bench), shape_(shape), rows_(rows) {
    code_bytes_ = gpu::PackedCodeBytes(form.format, shape.n, shape.k);
    const std::int64_t scales = gpu::PackedScaleBytes(form.format, form.group_shift, shape.n, shape.k);
    copies_ = bench.check() ? 1 : CeilDivide(std::int64_t{256} << 20, code_bytes_);
    codes_ = bench.AllocateRandom(copies_ * code_bytes_ / 2);
    // Scales of a hundredth, and minimums of the same where a form has them.
    const std::vector<std::uint16_t> half(static_cast<std::size_t>(scales / 2), F32ToF16(0.01f));
    const std::uint16_t* const uploaded = bench.Upload(half);
    form_ = {reinterpret_cast<const std::uint8_t*>(uploaded), form.format, form.group_shift};
    x_ = bench.AllocateRandom(rows * shape.k);
    y_ = reinterpret_cast<float*>(bench.Allocate(rows * shape.n * 4));
    widened_ = bench.Allocate(shape.n * shape.k * 2);
    bytes_ = code_bytes_ + scales;
    of_rows_ = bench.Upload(std::vector<std::int32_t>{rows});
  }

  std::int64_t bytes() const { return bytes_; }
  int launches() const { return static_cast<int>(std::max<std::int64_t>(64, 2 * copies_)); }

  void Packed(int i) {
    gpu::SkinnyMatMulLoraArguments a = {};
    a.lora.x = x_;
    a.lora.x_stride = a.lora.in = shape_.k;
    a.w = Codes(i);
    a.form = form_;
    a.n = a.y_stride = shape_.n;
    a.y = y_;
    a.rows = of_rows_;
    a.max_rows = rows_;
    gpu::SkinnyMatMulLora(bench_.stream(), DType::kBF16, bench_.device().properties().multiprocessors, a);
  }

  // As a model does: in pieces that a cache holds.
  void Widened(int i) {
    const std::int64_t piece = std::max<std::int64_t>(1, (std::int64_t{32} << 20) / (shape_.k * 32)) * 16;
    DenseProduct product;
    product.dtype = DType::kBF16;
    product.m = rows_;
    product.k = product.x_stride = shape_.k;
    product.x = x_;
    product.w = widened_;
    product.y_stride = shape_.n;
    for (std::int64_t first = 0; first < shape_.n; first += piece) {
      product.n = std::min(piece, shape_.n - first);
      product.y = y_ + first;
      gpu::WidenPacked(bench_.stream(), DType::kBF16, {Codes(i), form_, shape_.k, first, product.n, widened_});
      bench_.stream().Multiply(product);
    }
  }

  // Each way against the other.
  void Check() {
    Packed(0);
    const std::vector<float> packed = bench_.Download(y_, rows_ * shape_.n);
    Widened(0);
    const std::vector<float> widened = bench_.Download(y_, rows_ * shape_.n);
    double largest = 0;
    for (const float value : widened) largest = std::max(largest, std::abs(static_cast<double>(value)));
    Prng prng(6);
    for (int i = 0; i < 64; ++i) {
      const auto at = static_cast<std::size_t>(prng.NextBelow(widened.size()));
      CheckClose(fmt::format("quantised product, {} at {} rows", shape_.name, rows_), static_cast<double>(packed[at]),
                 static_cast<double>(widened[at]), largest, 1e-4);
    }
  }

 private:
  const std::byte* Codes(int i) const { return codes_ + i % copies_ * code_bytes_; }

  GpuBench& bench_;
  const Shape shape_;
  const std::int32_t rows_;
  gpu::PackedForm form_;
  std::int64_t code_bytes_ = 0, bytes_ = 0, copies_ = 1;
  const std::byte *codes_ = nullptr, *x_ = nullptr;
  std::byte* widened_ = nullptr;
  float* y_ = nullptr;
  const std::int32_t* of_rows_ = nullptr;
};

}  // namespace

void BenchQuantised(GpuBench& bench, double read_ceiling, GpuResults& results) {
  std::vector<Shape> shapes = {
      {"q, k and v", 12288, 4096}, {"o", 4096, 4096}, {"gate and up", 22016, 4096}, {"down", 4096, 11008}};
  std::vector<std::int32_t> rows = {1, 8, 16, 32, 64};
  if (bench.check()) {
    shapes = {{"tiny", 80, 256}};
    rows = {1, 20};
  }
  constexpr Form kForms[] = {{WeightFormat::kQ8, 5}, {WeightFormat::kQ4, 5}, {WeightFormat::kQ4, 7}};
  for (const Shape& shape : shapes)
    for (const Form& form : kForms)
      for (const std::int32_t count : rows) {
        QuantisedWorld world(bench, shape, form, count);
        world.Check();
        const double packed = bench.Seconds(world.launches(), [&](int i) { world.Packed(i); });
        const double widened = bench.Seconds(world.launches(), [&](int i) { world.Widened(i); });
        AddRow(results, "quantised",
               {{"layers", shape.name},
                {"out", shape.n},
                {"in", shape.k},
                {"format", WeightFormatName(form.format)},
                {"group", 1 << form.group_shift},
                {"rows", count},
                {"packed_us", 1e6 * packed},
                {"packed_of_ceiling", static_cast<double>(world.bytes()) / packed / read_ceiling},
                {"widened_us", 1e6 * widened}});
        bench.Free();
      }
}

}  // namespace loramux
