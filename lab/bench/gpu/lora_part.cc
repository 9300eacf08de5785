// The part of gpu_bench that times the batched LoRA product, with the rows of A and B scattered over pages in random
// order, as a page pool has them.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/prng.h"
#include "gpu/kernels/lora.h"
#include "gpu/kernels/skinny.h"
#include "lab/bench/gpu/gpu_bench.h"

namespace loramux {
namespace {

constexpr std::int64_t kPageBytes = std::int64_t{512} << 10;
constexpr float kScale = 0.5f;

// One group of linear layers that share an input, and a batch.
struct LoraCase {
  std::string name;
  std::int64_t in = 0, out = 0;
  std::int32_t slices = 1;
  std::vector<std::int32_t> ranks;  // one for each adapter
  std::int32_t tokens = 1;          // tokens of each adapter

  std::int64_t RankSum() const { return std::accumulate(ranks.begin(), ranks.end(), std::int64_t{0}); }
  std::int32_t MaxRank() const { return *std::max_element(ranks.begin(), ranks.end()); }
  std::int32_t Rows() const { return static_cast<std::int32_t>(ranks.size()) * tokens; }
};

// Gives out rows of pages in random order; a page has rows of one length.
class ScatteredRows {
 public:
  ScatteredRows(GpuBench& bench, std::int64_t pages) : base_(bench.AllocateRandom(pages * kPageBytes / 2)) {
    for (std::int64_t page = 0; page < pages; ++page) order_.push_back(page);
    Prng prng(3);
    for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[prng.NextBelow(i)]);
  }
  // `count` rows of `elements` elements, from the start of a page.
  std::vector<const void*> Take(std::int32_t count, std::int64_t elements) {
    const std::int64_t in_page = kPageBytes / (2 * elements);
    std::vector<const void*> rows;
    for (std::int32_t i = 0; i < count; ++i) {
      if (i % in_page == 0) ++used_;
      rows.push_back(base_ + order_.at(static_cast<std::size_t>(used_ - 1)) * kPageBytes + i % in_page * 2 * elements);
    }
    return rows;
  }
  // Index of an element for GpuBench::Random.
  std::int64_t ElementOf(const void* row) const { return (static_cast<const std::byte*>(row) - base_) / 2; }
  static std::int64_t PagesFor(std::int64_t rows, std::int64_t elements) {
    const std::int64_t in_page = kPageBytes / (2 * elements);
    return (rows + in_page - 1) / in_page;
  }

 private:
  const std::byte* base_;
  std::vector<std::int64_t> order_;
  std::int64_t used_ = 0;
};

// The adapters and the batch of a case in device memory. There are several sets of weights, used in turn as the layers
// of a model are, so that a cache holds none from one launch to the next.
class LoraWorld {
 public:
  LoraWorld(GpuBench& bench, const LoraCase& of) : bench_(bench), case_(of) {
    const double set_bytes = 2.0 * static_cast<double>(of.RankSum() * (of.in + of.out) * of.slices);
    sets_ = bench.check() ? 2 : std::clamp(static_cast<int>(std::ceil(4e8 / set_bytes)), 2, 32);
    std::int64_t pages = 0;
    for (const std::int32_t rank : of.ranks)
      pages += ScatteredRows::PagesFor(rank, of.in) + ScatteredRows::PagesFor(rank, of.out);
    rows_ = std::make_unique<ScatteredRows>(bench, pages * sets_ * of.slices);
    AddAdapters();
    x_elements_ = static_cast<std::int64_t>(of.Rows()) * of.in;
    shrink_.x = bench.AllocateRandom(x_elements_);
    shrink_.x_stride = shrink_.in = expand_.in = of.in;
    shrink_.slices = expand_.slices = of.slices;
    shrink_.partial_rows = expand_.partial_rows = of.Rows();
    const std::int64_t floats = gpu::LoraPartialFloats(of.Rows(), of.in, of.slices, of.MaxRank());
    shrink_.partial = reinterpret_cast<float*>(bench.Allocate(floats * 4));
    expand_.partial = shrink_.partial;
    for (int slice = 0; slice < of.slices; ++slice) {
      const std::int64_t bytes = of.Rows() * of.out * 4;
      expand_.y[slice] = reinterpret_cast<float*>(bench.Allocate(bytes));
      bench.stream().Fill(expand_.y[slice], 0, static_cast<std::size_t>(bytes));
      expand_.y_stride[slice] = expand_.out[slice] = of.out;
    }
  }

  int sets() const { return sets_; }
  void Shrink(int i) {
    SetModules(i, shrink_.module);
    gpu::LoraShrink(bench_.stream(), DType::kBF16, shrink_);
  }
  void Expand(int i) {
    SetModules(i, expand_.module);
    gpu::LoraExpand(bench_.stream(), expand_);
  }

  // The base model's matrix of these layers, and the buffers of its product. REQUIRES: at most kSkinnyRows rows.
  void AddBase() {
    base_copies_ = std::min(sets_, 4);
    const std::int64_t n = case_.out * case_.slices;
    w_ = bench_.AllocateRandom(base_copies_ * n * case_.in);
    skinny_.lora = shrink_;
    skinny_.n = skinny_.y_stride = n;
    skinny_.y = reinterpret_cast<float*>(bench_.Allocate(case_.Rows() * n * 4));
    skinny_.rows = bench_.Upload(std::vector<std::int32_t>{case_.Rows()});
    skinny_.max_rows = case_.Rows();
  }
  void Base(int i) {
    DenseProduct product;
    product.dtype = DType::kBF16;
    product.m = case_.Rows();
    product.n = product.y_stride = skinny_.n;
    product.k = product.x_stride = case_.in;
    product.x = shrink_.x;
    product.w = BaseOf(i);
    product.y = skinny_.y;
    bench_.stream().Multiply(product);
  }
  void Skinny(int i) {
    SetModules(i, skinny_.lora.module);
    skinny_.w = BaseOf(i);
    gpu::SkinnyMatMulLora(bench_.stream(), DType::kBF16, bench_.device().properties().multiprocessors, skinny_);
  }
  // Both ways must give the same product, but for rounding.
  void CheckBase() {
    Base(0);
    const std::vector<float> apart = bench_.Download(static_cast<const float*>(skinny_.y), case_.Rows() * skinny_.n);
    Skinny(0);
    const std::vector<float> together = bench_.Download(static_cast<const float*>(skinny_.y), case_.Rows() * skinny_.n);
    for (std::size_t i = 0; i < apart.size(); i += 97) {
      CheckClose("SkinnyMatMulLora, " + case_.name, static_cast<double>(together[i]), static_cast<double>(apart[i]),
                 std::sqrt(static_cast<double>(case_.in)), 1e-4);
    }
  }

  // Compares some outputs of a first product with sums in double. REQUIRES: nothing was expanded before.
  void Check() {
    Shrink(0);
    Expand(0);
    Prng prng(11);
    for (int slice = 0; slice < case_.slices; ++slice) {
      const auto y = bench_.Download(static_cast<const float*>(expand_.y[slice]), case_.Rows() * case_.out);
      for (int i = 0; i < 8; ++i) {
        const auto row = static_cast<std::int64_t>(prng.NextBelow(static_cast<std::uint64_t>(case_.Rows())));
        const auto o = static_cast<std::int64_t>(prng.NextBelow(static_cast<std::uint64_t>(case_.out)));
        CheckOutput(slice, row, o, y[static_cast<std::size_t>(row * case_.out + o)]);
      }
    }
  }

 private:
  struct Module {
    std::vector<const void*> a, b;
  };

  const std::byte* BaseOf(int i) const { return w_ + i % base_copies_ * skinny_.n * case_.in * 2; }

  void AddAdapters() {
    std::vector<gpu::LoraItem> shrink, expand;
    std::int32_t first_row = 0;
    for (const std::int32_t rank : case_.ranks) {
      std::vector<gpu::LoraModule> table;
      for (int module = 0; module < sets_ * case_.slices; ++module) {
        Module rows = {rows_->Take(rank, case_.in), rows_->Take(rank, case_.out)};
        table.push_back({bench_.Upload(rows.a), bench_.Upload(rows.b), rank, kScale});
        if (module < case_.slices) first_set_.push_back(std::move(rows));
      }
      gpu::AppendLoraItems(bench_.Upload(table), DType::kBF16, rank, first_row, case_.tokens, shrink, expand);
      first_row += case_.tokens;
    }
    gpu::LoraWork& work = shrink_.work;
    work.shrink = bench_.Upload(shrink);
    work.expand = bench_.Upload(expand);
    work.max_shrink = static_cast<std::int32_t>(shrink.size());
    work.max_expand = static_cast<std::int32_t>(expand.size());
    work.shrink_count = bench_.Upload(std::vector<std::int32_t>{work.max_shrink});
    work.expand_count = bench_.Upload(std::vector<std::int32_t>{work.max_expand});
    work.max_rank = case_.MaxRank();
    expand_.work = work;
  }

  void SetModules(int i, std::int32_t (&modules)[gpu::kMaxLoraSlices]) const {
    for (int slice = 0; slice < case_.slices; ++slice) modules[slice] = i % sets_ * case_.slices + slice;
  }

  void CheckOutput(int slice, std::int64_t row, std::int64_t o, double found) const {
    const std::int64_t adapter = row / case_.tokens;
    const Module& module = first_set_[static_cast<std::size_t>(adapter * case_.slices + slice)];
    double expected = 0, scale = 0;
    for (std::size_t j = 0; j < module.a.size(); ++j) {
      const std::int64_t a = rows_->ElementOf(module.a[j]);
      double v = 0;
      for (std::int64_t t = 0; t < case_.in; ++t)
        v += static_cast<double>(bench_.Random(row * case_.in + t)) * bench_.Random(a + t);
      const double part = kScale * v * bench_.Random(rows_->ElementOf(module.b[j]) + o);
      expected += part;
      scale += std::abs(part);
    }
    CheckClose("LoRA, " + case_.name, found, expected, scale + 1e-3, 1e-3);
  }

  GpuBench& bench_;
  const LoraCase case_;
  int sets_ = 0;
  std::unique_ptr<ScatteredRows> rows_;
  std::vector<Module> first_set_;  // [adapter][slice], of set 0
  std::int64_t x_elements_ = 0;
  gpu::LoraShrinkArguments shrink_ = {};
  gpu::LoraExpandArguments expand_ = {};
  gpu::SkinnyMatMulLoraArguments skinny_ = {};
  const std::byte* w_ = nullptr;  // copies of the base model's matrix, used in turn
  int base_copies_ = 1;
};

// Adapters of 8 to 128, in a mix with a mean of 45.
std::vector<std::int32_t> MixedRanks(std::int64_t adapters) {
  constexpr std::int32_t kMix[] = {8, 16, 32, 64, 128, 16, 32, 64};
  std::vector<std::int32_t> ranks;
  for (std::int64_t i = 0; i < adapters; ++i) ranks.push_back(kMix[i % 8]);
  return ranks;
}

std::vector<LoraCase> Cases(const GpuBench& bench) {
  if (bench.check()) {
    return {{"tiny", 256, 320, 1, {8, 16, 5}, 2}, {"tiny, three layers", 128, 128, 3, {16, 24}, 1}};
  }
  std::vector<LoraCase> cases;
  for (const std::int32_t tokens : {1, 2, 4, 8}) {
    for (const std::int64_t adapters : {21, 64}) cases.push_back({"q", 4096, 4096, 1, MixedRanks(adapters), tokens});
    cases.push_back({"q, k and v", 4096, 4096, 3, MixedRanks(64), tokens});
    cases.push_back({"gate and up", 4096, 11008, 2, MixedRanks(21), tokens});
    cases.push_back({"down", 11008, 4096, 1, MixedRanks(64), tokens});
  }
  for (const std::int64_t adapters : {1, 8, 16}) {
    cases.push_back({"q, k and v", 4096, 4096, 3, MixedRanks(adapters), 1});
    cases.push_back({"o", 4096, 4096, 1, MixedRanks(adapters), 1});
    cases.push_back({"gate and up", 4096, 11008, 2, MixedRanks(adapters), 1});
    cases.push_back({"down", 11008, 4096, 1, MixedRanks(adapters), 1});
  }
  cases.push_back({"q, rank 8 alone", 4096, 4096, 1, std::vector<std::int32_t>(128, 8), 1});
  cases.push_back({"q, one adapter's prompt", 4096, 4096, 1, {16}, 1024});
  return cases;
}

// The base model's product and the shrink of its input, as two launches and as one.
void BenchSkinny(GpuBench& bench, const LoraCase& of, LoraWorld& world, int launches, double read_ceiling,
                 GpuResults& results) {
  world.AddBase();
  world.CheckBase();
  const double apart = bench.Seconds(launches, [&](int i) {
    world.Base(i);
    world.Shrink(i);
  });
  const double together = bench.Seconds(launches, [&](int i) { world.Skinny(i); });
  const double bytes = 2.0 * static_cast<double>(of.slices * of.in * (of.out + of.RankSum()));
  AddRow(results, "skinny",
         {{"layers", of.name},
          {"in", of.in},
          {"out", of.out * of.slices},
          {"rows", of.Rows()},
          {"rank_sum", of.RankSum()},
          {"apart_us", 1e6 * apart},
          {"apart_of_ceiling", bytes / apart / read_ceiling},
          {"together_us", 1e6 * together},
          {"together_of_ceiling", bytes / together / read_ceiling}});
}

}  // namespace

void BenchLora(GpuBench& bench, double read_ceiling, GpuResults& results) {
  for (const LoraCase& of : Cases(bench)) {
    {
      LoraWorld world(bench, of);
      world.Check();
      const int launches = std::max(64, 2 * world.sets());
      const double shrink = bench.Seconds(launches, [&](int i) { world.Shrink(i); });
      const double expand = bench.Seconds(launches, [&](int i) { world.Expand(i); });
      const auto rank_bytes = 2.0 * static_cast<double>(of.RankSum() * of.slices);
      const double a = rank_bytes * static_cast<double>(of.in), b = rank_bytes * static_cast<double>(of.out);
      AddRow(results, "lora",
             {{"layers", of.name},
              {"in", of.in},
              {"out", of.out},
              {"adapters", of.ranks.size()},
              {"rank_sum", of.RankSum()},
              {"tokens_each", of.tokens},
              {"shrink_us", 1e6 * shrink},
              {"shrink_of_ceiling", a / shrink / read_ceiling},
              {"expand_us", 1e6 * expand},
              {"expand_of_ceiling", b / expand / read_ceiling}});
      if (of.Rows() <= gpu::kSkinnyRows) BenchSkinny(bench, of, world, launches, read_ceiling, results);
    }
    bench.Free();
  }
}

}  // namespace loramux
