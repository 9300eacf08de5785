// Kernels against the machine's limits. Each case is checked against the reference, then timed, and printed as a share
// of a limit measured in the same run: the read bandwidth over a working set of the same size, or the multiply-add
// peak. Reports the best of several repetitions, since other programs share the machine.
//   kernels_bench [--threads N] [--only pool|matmul|attention|lora|linear|elementwise] [--rows M] [--instructions NAME]
// With --threads 1, it measures processor time instead of elapsed time, which other programs disturb less.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/lora.h"
#include "kernels/matmul.h"
#include "lab/bench/machine_limits.h"
#include "tensor/aligned_buffer.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

struct Bench {
  ThreadPool pool;
  KernelContext context{Backend::kCpu, &pool};
  KernelContext reference{Backend::kReference, &pool};
  Prng prng{42};
  explicit Bench(int threads) : pool(threads) {}
};

AlignedBuffer<float> RandomFloats(Prng& prng, std::int64_t count) {
  AlignedBuffer<float> values(count);
  for (std::int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(prng.NextDouble() - 0.5);
  return values;
}

void CheckClose(const float* actual, const float* expected, std::int64_t count, double tolerance) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (!(std::abs(actual[i] - expected[i]) <= tolerance)) {
      std::fprintf(stderr, "element %lld: %g, expected %g\n", static_cast<long long>(i), actual[i], expected[i]);
      CHECK(false);
    }
  }
}

// The least seconds of one call of `run`, over at least `repetitions` calls and 0.2 s.
double BestSeconds(int repetitions, const std::function<void()>& run) {
  run();
  double best = 1e30, total = 0;
  for (int i = 0; i < repetitions || total < 0.2; ++i) {
    const double start = NowSeconds();
    run();
    const double seconds = NowSeconds() - start;
    best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

GroupedRows RandomGroups(Prng& prng, std::int64_t n, std::int64_t k, WeightFormat format) {
  GroupedRows rows(format, n, k);
  const int most = format == WeightFormat::kQ8 ? 254 : 15;
  for (std::uint8_t& code : rows.codes)
    code = static_cast<std::uint8_t>(1 + prng.NextBelow(static_cast<std::uint64_t>(most)));
  std::fill(rows.scales.begin(), rows.scales.end(), 1.0f / 256);
  std::fill(rows.minimums.begin(), rows.minimums.end(), -0.5f);
  return rows;
}

PackedMatrix RandomMatrix(Prng& prng, std::int64_t n, std::int64_t k, WeightFormat format) {
  PackedMatrix matrix(n, k, format);
  if (IsQuantised(format)) {
    matrix.PackGroups(0, RandomGroups(prng, n, k, format));
    return matrix;
  }
  const DType dtype = DTypeOf(format);
  std::vector<std::byte> row(static_cast<std::size_t>(k) * DTypeSize(dtype));
  for (std::int64_t j = 0; j < n; ++j) {
    for (std::int64_t t = 0; t < k; ++t) {
      StoreFromF32(dtype, row.data(), t, static_cast<float>(prng.NextDouble() - 0.5));
    }
    matrix.PackRows(j, 1, row.data());
  }
  return matrix;
}

void CheckMatMul(Bench& bench, WeightFormat format) {
  const std::int64_t n = 300, k = 700, m = 29;
  const PackedMatrix w = RandomMatrix(bench.prng, n, k, format);
  const auto x = RandomFloats(bench.prng, m * k);
  AlignedBuffer<float> expected(m * n), actual(m * n);
  MatMul(bench.reference, {.x = {x.data(), k}, .rows = m, .w = w, .y = {expected.data(), n}});
  for (std::int64_t rows : {std::int64_t{1}, std::int64_t{16}, m}) {
    MatMul(bench.context, {.x = {x.data(), k}, .rows = rows, .w = w, .y = {actual.data(), n}});
    CheckClose(actual.data(), expected.data(), rows * n, 1e-4);
  }
}

// One shape with one number of rows, over enough copies of the weights to exceed the caches of a core.
void BenchMatMulShape(Bench& bench, std::int64_t n, std::int64_t k, std::int64_t m, WeightFormat format,
                      double fma_peak) {
  const std::int64_t bytes = n * static_cast<std::int64_t>(WeightRowBytes(format, k));
  const std::int64_t copies = m > 32 ? 1 : std::max<std::int64_t>(1, (std::int64_t{96} << 20) / bytes);
  std::vector<PackedMatrix> weights;
  for (std::int64_t i = 0; i < copies; ++i) weights.emplace_back(n, k, format);
  for (auto& w : weights) {
    if (IsQuantised(format)) {
      w.PackGroups(0, RandomGroups(bench.prng, n, k, format));
      continue;
    }
    std::vector<std::byte> row(WeightRowBytes(format, k), std::byte{0x3c});
    for (std::int64_t j = 0; j < n; j += 17) w.PackRows(j, 1, row.data());
  }
  const auto x = RandomFloats(bench.prng, m * k);
  AlignedBuffer<float> y(m * n);
  const double seconds =
      BestSeconds(5,
                  [&] {
                    for (const auto& w : weights)
                      MatMul(bench.context, {.x = {x.data(), k}, .rows = m, .w = w, .y = {y.data(), n}});
                  }) /
      static_cast<double>(copies);
  const double bandwidth = ReadBandwidth(bench.pool, bytes * copies, 5);
  const double memory_s = static_cast<double>(bytes) / bandwidth;
  const double fma_s = 2.0 * static_cast<double>(m * n * k) / fma_peak;
  std::printf(
      "matmul %s n=%-6lld k=%-5lld m=%-4lld %9.1f us  %6.1f GB/s = %3.0f %% of read bandwidth  "
      "%6.1f GFLOP/s = %3.0f %% of peak\n",
      WeightFormatName(format), static_cast<long long>(n), static_cast<long long>(k), static_cast<long long>(m),
      seconds * 1e6, static_cast<double>(bytes) / seconds * 1e-9, 100 * memory_s / seconds,
      2e-9 * static_cast<double>(m * n * k) / seconds, 100 * fma_s / seconds);
}

void BenchMatMul(Bench& bench, const std::vector<std::int64_t>& rows) {
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kF16, WeightFormat::kQ8, WeightFormat::kQ4}) {
    CheckMatMul(bench, format);
  }
  constexpr std::int64_t kShapes[][2] = {{2304, 768},  {768, 768},   {4096, 768},   {768, 2048}, {32000, 768},
                                         {2560, 2048}, {2048, 2048}, {11264, 2048}, {2048, 5632}};
  for (std::int64_t m : rows) {
    const double fma_peak = FmaPeak(bench.pool, 20);
    std::printf("multiply-add peak %.1f GFLOP/s, read bandwidth of 96 MiB %.1f GB/s\n", fma_peak * 1e-9,
                ReadBandwidth(bench.pool, std::int64_t{96} << 20, 10) * 1e-9);
    for (const auto& shape : kShapes) BenchMatMulShape(bench, shape[0], shape[1], m, WeightFormat::kBF16, fma_peak);
    for (const WeightFormat format : {WeightFormat::kQ8, WeightFormat::kQ4}) {
      for (const auto& shape : kShapes) BenchMatMulShape(bench, shape[0], shape[1], m, format, fma_peak);
    }
    BenchMatMulShape(bench, 2048, 2048, m, WeightFormat::kF32, fma_peak);
    BenchMatMulShape(bench, 2048, 2048, m, WeightFormat::kF16, fma_peak);
  }
}

struct AttentionCase {
  const char* name;
  std::int64_t heads, kv_heads, head_dim;
  std::int64_t sequences, context, tokens;  // tokens: of each sequence in this step, the last of `context`
};

// Uses several layers, so that a decode step's pages exceed the caches of a core.
void BenchAttentionCase(Bench& bench, const AttentionCase& c, DType dtype, double fma_peak) {
  KvLayout layout = {.num_layers = 1, .num_kv_heads = c.kv_heads, .head_dim = c.head_dim, .dtype = dtype};
  const auto bytes_a_token = static_cast<std::int64_t>(layout.BytesPerToken());
  const std::int64_t layers =
      std::max<std::int64_t>(1, (std::int64_t{96} << 20) / (bytes_a_token * c.context * c.sequences));
  layout.num_layers = layers;
  const std::int64_t pages_each = layout.PagesFor(c.context);
  const std::size_t page_stride = (layout.PageBytes() + 63) / 64 * 64;
  AlignedBuffer<std::byte> memory(static_cast<std::int64_t>(page_stride) * pages_each * c.sequences);
  const PageArena arena = {memory.data(), page_stride};
  std::vector<std::uint32_t> pages(static_cast<std::size_t>(pages_each * c.sequences));
  for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<std::uint32_t>(i);
  for (std::size_t i = pages.size() - 1; i > 0; --i) std::swap(pages[i], pages[bench.prng.NextBelow(i + 1)]);

  std::vector<AttentionSequence> whole, step;
  for (std::int64_t s = 0; s < c.sequences; ++s) {
    whole.push_back({0, c.context, 0, pages.data() + s * pages_each});
    step.push_back({s * c.tokens, c.tokens, c.context - c.tokens, pages.data() + s * pages_each});
  }
  const std::int64_t width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  const auto k = RandomFloats(bench.prng, c.context * kv_width), v = RandomFloats(bench.prng, c.context * kv_width);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    StoreKv(bench.context, {{layout, arena, layer}, whole, {k.data(), kv_width}, {v.data(), kv_width}});
  }
  const std::int64_t rows = c.sequences * c.tokens;
  const auto q = RandomFloats(bench.prng, rows * width);
  AlignedBuffer<float> out(rows * width), expected(rows * width);
  AlignedBuffer<float> workspace(AttentionWorkspaceFloats(layout, c.heads, c.context, bench.pool.size()));
  const ScoreForm form = {.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim))};
  const auto run = [&](const KernelContext& context, std::int64_t layer, float* to) {
    Attention(context, {{layout, arena, layer}, step, c.heads, form, {q.data(), width}, {to, width}, workspace.data()});
  };
  run(bench.context, layers - 1, out.data());
  run(bench.reference, layers - 1, expected.data());
  CheckClose(out.data(), expected.data(), rows * width, 1e-4);

  const double seconds = BestSeconds(5,
                                     [&] {
                                       for (std::int64_t layer = 0; layer < layers; ++layer)
                                         run(bench.context, layer, out.data());
                                     }) /
                         static_cast<double>(layers);
  const double store = BestSeconds(5, [&] {
    StoreKv(bench.context, {{layout, arena}, {whole.data(), 1}, {k.data(), kv_width}, {v.data(), kv_width}});
  });
  const std::int64_t bytes = bytes_a_token * c.context * c.sequences;
  const double memory_s = static_cast<double>(bytes) / ReadBandwidth(bench.pool, bytes * layers, 5);
  // Each token attends to the context before it; a score and its share of the output take two multiply-adds per
  // dimension.
  const double mean_seen = static_cast<double>(c.context) - static_cast<double>(c.tokens - 1) / 2;
  const double seen = static_cast<double>(c.tokens) * mean_seen;
  const double flops = 4 * static_cast<double>(c.sequences * width) * seen;
  std::printf(
      "attention %-34s %-4s %9.1f us  %6.1f GB/s = %3.0f %% of read bandwidth  %6.1f GFLOP/s = %3.0f %% of peak"
      "  store %lld tokens %.1f us\n",
      c.name, DTypeName(dtype), seconds * 1e6, static_cast<double>(bytes) / seconds * 1e-9, 100 * memory_s / seconds,
      flops / seconds * 1e-9, 100 * flops / fma_peak / seconds, static_cast<long long>(c.context), store * 1e6);
}

void BenchAttention(Bench& bench) {
  const double fma_peak = FmaPeak(bench.pool, 20);
  constexpr AttentionCase kCases[] = {
      {"prefill 512, 12 x 64", 12, 12, 64, 1, 512, 512},
      {"prefill 512, 32 heads, 4 kv x 64", 32, 4, 64, 1, 512, 512},
      {"prefill 512 at 2048, 12 x 64", 12, 12, 64, 1, 2048, 512},
      {"prefill 2048, 12 x 64", 12, 12, 64, 1, 2048, 2048},
      {"prefill 2048, 32 heads, 4 kv x 64", 32, 4, 64, 1, 2048, 2048},
      {"decode 16 at 1024, 12 x 64", 12, 12, 64, 16, 1024, 1},
      {"decode 1 at 2048, 12 x 64", 12, 12, 64, 1, 2048, 1},
      {"decode 16 at 1024, 32 heads, 4 kv", 32, 4, 64, 16, 1024, 1},
      {"decode 4 at 8192, 12 x 64", 12, 12, 64, 4, 8192, 1},
      {"decode 4 at 8192, 32 heads, 4 kv", 32, 4, 64, 4, 8192, 1},
      {"decode 16 at 100, 12 x 64", 12, 12, 64, 16, 100, 1},
  };
  for (const AttentionCase& c : kCases) {
    for (const DType dtype : {DType::kBF16, DType::kI8}) BenchAttentionCase(bench, c, dtype, fma_peak);
  }
}

// Adapters of the given ranks on q, k, v and o of a model of hidden size `hidden`; each row at a random place.
struct Adapters {
  AlignedBuffer<std::byte> memory;
  std::vector<std::vector<const std::byte*>> rows;  // [adapter * 4 + target]: A then B
  std::vector<LoraSegment> segments[4];
  std::int64_t bytes = 0;
};

// `scattered`: rows lie in random order, and not one after the other as in a pool that was just filled.
Adapters MakeAdapters(Bench& bench, const std::vector<std::int32_t>& ranks, std::int64_t hidden, std::int64_t tokens,
                      bool scattered = true) {
  Adapters adapters;
  const std::int64_t row_bytes = hidden * 2;
  std::int64_t total = 0;
  for (std::int32_t rank : ranks) total += 4 * 2 * rank;
  adapters.bytes = total * row_bytes;
  adapters.memory.Reserve(std::max(adapters.bytes, std::int64_t{4} << 20));  // in huge pages, as the pool
  for (std::int64_t i = 0; i < total * hidden; ++i) {
    StoreFromF32(DType::kBF16, adapters.memory.data(), i, static_cast<float>(bench.prng.NextDouble() - 0.5));
  }
  std::vector<std::int64_t> order(static_cast<std::size_t>(total));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  for (std::size_t i = order.size() - 1; scattered && i > 0; --i) {
    std::swap(order[i], order[bench.prng.NextBelow(i + 1)]);
  }
  std::size_t next = 0;
  for (std::int32_t rank : ranks) {
    for (int target = 0; target < 4; ++target) {
      adapters.rows.emplace_back();
      for (std::int32_t j = 0; j < 2 * rank; ++j) {
        adapters.rows.back().push_back(adapters.memory.data() + order[next++] * row_bytes);
      }
    }
  }
  for (std::size_t a = 0; a < ranks.size(); ++a) {
    for (std::size_t target = 0; target < 4; ++target) {
      const auto& rows = adapters.rows[a * 4 + target];
      const auto begin = static_cast<std::int64_t>(a) * tokens;
      adapters.segments[target].push_back(
          {begin, begin + tokens, {ranks[a], 0.5f, DType::kBF16, rows.data(), rows.data() + ranks[a]}});
    }
  }
  return adapters;
}

void BenchLoraCase(Bench& bench, const char* name, const std::vector<std::int32_t>& ranks, std::int64_t hidden,
                   std::int64_t tokens, LoraVariant variant, double fma_peak) {
  // Enough layers to exceed the caches of a core.
  std::vector<Adapters> layers;
  std::int64_t bytes = 0, rank_sum = 0;
  do {
    layers.push_back(MakeAdapters(bench, ranks, hidden, tokens));
    bytes += layers.back().bytes;
  } while (bytes < (std::int64_t{96} << 20) && tokens < 64);
  for (std::int32_t rank : ranks) rank_sum += rank;
  const auto rows = static_cast<std::int64_t>(ranks.size()) * tokens;
  const auto x = RandomFloats(bench.prng, rows * hidden);
  AlignedBuffer<float> y(rows * 3 * hidden), o(rows * hidden), workspace(rows * 3 * 128);
  AlignedBuffer<float> expected(rows * hidden);
  const auto multiply = [&](const KernelContext& context, std::span<const LoraProjection> projections) {
    LoraMatMul(context, {variant, projections, {x.data(), hidden}, hidden, workspace.data()});
  };
  const auto of_o = [&](const Adapters& adapters, float* to) {
    return LoraProjection{adapters.segments[3], {to, hidden}, hidden};
  };
  const auto run_layer = [&](const Adapters& adapters) {
    const Rows all = {y.data(), 3 * hidden};
    const LoraProjection qkv[] = {{adapters.segments[0], all, hidden},
                                  {adapters.segments[1], all.From(hidden), hidden},
                                  {adapters.segments[2], all.From(2 * hidden), hidden}};
    multiply(bench.context, qkv);
    multiply(bench.context, std::array{of_o(adapters, o.data())});
  };
  std::fill_n(y.data(), y.capacity(), 0.0f);
  std::fill_n(o.data(), o.capacity(), 0.0f);
  std::fill_n(expected.data(), expected.capacity(), 0.0f);
  run_layer(layers[0]);
  multiply(bench.reference, std::array{of_o(layers[0], expected.data())});
  CheckClose(o.data(), expected.data(), rows * hidden, 1e-3);

  const double seconds = BestSeconds(5,
                                     [&] {
                                       for (const Adapters& adapters : layers) run_layer(adapters);
                                     }) /
                         static_cast<double>(layers.size());
  const auto layer_bytes = static_cast<double>(bytes) / static_cast<double>(layers.size());
  const double bandwidth = ReadBandwidth(bench.pool, bytes, 5);
  const double flops = 2 * layer_bytes / 2 * static_cast<double>(tokens);
  std::printf(
      "lora %-40s rank sum %-5lld %9.1f us  %6.1f GB/s = %3.0f %% of read bandwidth  "
      "%6.1f GFLOP/s = %3.0f %% of peak\n",
      name, static_cast<long long>(rank_sum), seconds * 1e6, layer_bytes / seconds * 1e-9,
      100 * layer_bytes / bandwidth / seconds, flops / seconds * 1e-9, 100 * flops / fma_peak / seconds);
}

void BenchLora(Bench& bench) {
  const double fma_peak = FmaPeak(bench.pool, 20);
  const std::vector<std::int32_t> mixed = {8, 16, 32, 64, 128, 8, 16, 32, 64, 128, 8, 16, 32, 64, 128, 64};
  BenchLoraCase(bench, "qkvo 768, 16 adapters, 1 token", mixed, 768, 1, LoraVariant::kMbgmv, fma_peak);
  BenchLoraCase(bench, "qkvo 768, 16 adapters, 1 token, bgmv", mixed, 768, 1, LoraVariant::kBgmv, fma_peak);
  BenchLoraCase(bench, "qkvo 2048, 16 adapters, 1 token", mixed, 2048, 1, LoraVariant::kMbgmv, fma_peak);
  BenchLoraCase(bench, "qkvo 768, 1 adapter, 1 token", {16}, 768, 1, LoraVariant::kMbgmv, fma_peak);
  BenchLoraCase(bench, "qkvo 768, 1 adapter, 16 tokens", {64}, 768, 16, LoraVariant::kMbgmv, fma_peak);
  BenchLoraCase(bench, "qkvo 768, 16 adapters, 4 tokens", mixed, 768, 4, LoraVariant::kMbgmv, fma_peak);
  BenchLoraCase(bench, "qkvo 768, 1 adapter, 512 tokens", {64}, 768, 512, LoraVariant::kMbgmv, fma_peak);
  BenchLoraCase(bench, "qkvo 2048, 1 adapter, 512 tokens", {16}, 2048, 512, LoraVariant::kMbgmv, fma_peak);
}

double Median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// The linear layers of the 160M shape with `tokens` rows for each of `ranks`, in turn without adapters, with adapters
// on q, k, v and o in loops of their own, and with them in the loops of the products. Prints the medians, and the
// medians of the ratios of neighbours.
void BenchLinear(Bench& bench, const char* name, const std::vector<std::int32_t>& ranks, std::int64_t tokens) {
  constexpr std::int64_t kHidden = 768, kIntermediate = 2048, kLayers = 12;
  struct Layer {
    PackedMatrix qkv, o, gate_up, down;
    Adapters adapters;
  };
  const auto matrix = [](std::int64_t n, std::int64_t k) { return PackedMatrix(n, k, DType::kBF16); };
  std::vector<Layer> layers;
  for (std::int64_t i = 0; i < kLayers; ++i) {
    layers.push_back({matrix(3 * kHidden, kHidden), matrix(kHidden, kHidden), matrix(2 * kIntermediate, kHidden),
                      matrix(kHidden, kIntermediate), MakeAdapters(bench, ranks, kHidden, tokens, false)});
  }
  const auto rows = static_cast<std::int64_t>(ranks.size()) * tokens;
  const auto x = RandomFloats(bench.prng, rows * kIntermediate);
  AlignedBuffer<float> y(rows * 2 * kIntermediate), workspace(rows * 3 * 128);
  const auto product_of = [&](const PackedMatrix& w) {
    return MatMulArguments{.x = {x.data(), w.k()}, .rows = rows, .w = w, .y = {y.data(), w.n()}};
  };
  enum class Way { kNone, kApart, kWithTheProduct };
  const auto seconds = [&](Way way) {
    const double start = NowSeconds();
    for (const Layer& layer : layers) {
      const auto& of = layer.adapters.segments;
      const Rows all = {y.data(), 3 * kHidden};
      const LoraProjection qkv[] = {
          {of[0], all, kHidden}, {of[1], all.From(kHidden), kHidden}, {of[2], all.From(2 * kHidden), kHidden}};
      const LoraProjection o[] = {{of[3], {y.data(), kHidden}, kHidden}};
      const auto linear = [&](const PackedMatrix& w, std::span<const LoraProjection> projections) {
        const MatMulWithLoraArguments with_lora = {
            .product = product_of(w), .projections = projections, .workspace = workspace.data()};
        if (way == Way::kWithTheProduct) return MatMulWithLora(bench.context, with_lora);
        MatMul(bench.context, with_lora.product);
        if (way == Way::kApart) LoraMatMul(bench.context, with_lora.Lora());
      };
      linear(layer.qkv, qkv);
      linear(layer.o, o);
      MatMul(bench.context, product_of(layer.gate_up));
      MatMul(bench.context, product_of(layer.down));
    }
    return NowSeconds() - start;
  };
  std::vector<double> without, apart, apart_ratio, with, with_ratio;
  for (int round = 0; round < (rows > 64 ? 9 : 101); ++round) {
    without.push_back(seconds(Way::kNone));
    apart.push_back(seconds(Way::kApart));
    apart_ratio.push_back(apart.back() / without.back());
    without.push_back(seconds(Way::kNone));
    with.push_back(seconds(Way::kWithTheProduct));
    with_ratio.push_back(with.back() / without.back());
  }
  std::printf(
      "linear layers, 160M, %-38s without adapters %9.1f us, apart %9.1f us: %.3f times, with the product %9.1f us: "
      "%.3f times\n",
      name, Median(without) * 1e6, Median(apart) * 1e6, Median(apart_ratio), Median(with) * 1e6, Median(with_ratio));
}

void BenchLinearLayers(Bench& bench) {
  const std::vector<std::int32_t> mixed = {8, 16, 32, 64, 128, 8, 16, 32, 64, 128, 8, 16, 32, 64, 128, 8};
  for (std::int32_t rank : {8, 16, 128}) {
    BenchLinear(bench, ("1 token, rank " + std::to_string(rank)).c_str(), {rank}, 1);
  }
  BenchLinear(bench, "16 adapters of ranks 8 to 128, 1 token", mixed, 1);
  for (std::int32_t rank : {8, 128}) {
    BenchLinear(bench, ("128 tokens, rank " + std::to_string(rank)).c_str(), {rank}, 128);
  }
}

void BenchElementwise(Bench& bench) {
  for (std::int64_t m : {1, 16, 512}) {
    const std::int64_t n = 768, intermediate = 2048, heads = 12, head_dim = 64;
    auto x = RandomFloats(bench.prng, m * 2 * intermediate);
    const auto weight = RandomFloats(bench.prng, n), angle = RandomFloats(bench.prng, m * head_dim / 2);
    AlignedBuffer<float> y(m * intermediate);
    std::fill_n(y.data(), y.capacity(), 0.0f);
    const KernelContext& context = bench.context;
    const Rows rows_x = {x.data(), n}, rows_y = {y.data(), n};
    const double norm = BestSeconds(5, [&] { NormRows(context, {rows_x, rows_y, m, n, {weight.data()}, 1e-5f}); });
    const double rope = BestSeconds(5, [&] {
      Rope(context, {rows_y, m, heads, {head_dim, head_dim}, angle.data(), angle.data()});
    });
    const double silu = BestSeconds(5, [&] {
      GateMul(context, {{x.data(), 2 * intermediate}, {y.data(), intermediate}, m, intermediate});
    });
    const double add = BestSeconds(5, [&] { AddRows(context, {rows_x, rows_y, m, n}); });
    std::printf(
        "elementwise m=%-4lld NormRows 768 %.1f us  Rope 12 x 64 %.1f us  GateMul 2048 %.1f us  "
        "AddRows 768 %.1f us\n",
        static_cast<long long>(m), norm * 1e6, rope * 1e6, silu * 1e6, add * 1e6);
  }
}

void BenchThreadPool(Bench& bench) {
  const double empty = BestSeconds(20, [&] {
    for (int i = 0; i < 1000; ++i) bench.pool.Run(bench.pool.size(), [](std::int64_t, int) {});
  });
  std::printf("thread pool: an empty loop on %d threads takes %.2f us\n", bench.pool.size(), empty * 1e3);
}

int Main(int argc, char** argv) {
  int threads = 2;
  std::string only;
  std::vector<std::int64_t> rows = {1, 2, 4, 8, 12, 16, 32, 64, 128, 512};
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--threads") == 0) threads = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--only") == 0) only = argv[i + 1];
    if (std::strcmp(argv[i], "--rows") == 0) rows = {std::atoll(argv[i + 1])};
    if (std::strcmp(argv[i], "--instructions") == 0 && !UseInstructionSet(argv[i + 1])) {
      std::fprintf(stderr, "--instructions: expected one of \"%s\", found \"%s\"\n", InstructionSets().c_str(),
                   argv[i + 1]);
      return 1;
    }
  }
  // With several threads, the processor time of one of them is not meaningful.
  if (threads == 1) UseCpuTime();
  Bench bench(threads);
  const auto wanted = [&only](const char* name) { return only.empty() || only == name; };
  if (wanted("pool")) BenchThreadPool(bench);
  if (wanted("matmul")) BenchMatMul(bench, rows);
  if (wanted("attention")) BenchAttention(bench);
  if (wanted("lora")) BenchLora(bench);
  if (wanted("linear")) BenchLinearLayers(bench);
  if (wanted("elementwise")) BenchElementwise(bench);
  return 0;
}

}  // namespace
}  // namespace loramux

int main(int argc, char** argv) { return loramux::Main(argc, argv); }
