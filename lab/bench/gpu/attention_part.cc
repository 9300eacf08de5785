// The part of gpu_bench that times attention over paged keys and values, with pages in random order.
#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "base/prng.h"
#include "gpu/kernels/attention.h"
#include "lab/bench/gpu/gpu_bench.h"

namespace loramux {
namespace {

struct AttentionCase {
  std::int32_t page_tokens, heads, kv_heads, head_dim;
  std::int64_t context;    // positions of each sequence
  std::int64_t sequences;  // one row each; 0: one sequence whose prompt is `context`

  std::int64_t Rows() const { return sequences > 0 ? sequences : context; }
  std::int64_t Sequences() const { return std::max<std::int64_t>(1, sequences); }
  // Elements of K or V of a head in a page.
  std::int64_t HeadElements() const { return std::int64_t{page_tokens} * head_dim; }
  std::int64_t LayerBytes() const { return 4 * kv_heads * HeadElements(); }  // bytes of a layer in a page
  std::int64_t PagesOfSequence() const { return (context + page_tokens - 1) / page_tokens; }
};

// The batch in device memory. Layers are used in turn, so that a cache holds nothing from one launch to the next.
class AttentionWorld {
 public:
  AttentionWorld(GpuBench& bench, const AttentionCase& of) : bench_(bench), case_(of) {
    const std::int64_t pages = of.Sequences() * of.PagesOfSequence();
    const double layer_bytes = static_cast<double>(pages * of.LayerBytes());
    layers_ = bench.check() ? 2 : std::clamp(static_cast<int>(std::ceil(4e8 / layer_bytes)), 1, 64);
    for (std::int64_t page = 0; page < pages; ++page) tables_.push_back(static_cast<std::uint32_t>(page));
    Prng prng(9);
    for (std::size_t i = tables_.size(); i > 1; --i) std::swap(tables_[i - 1], tables_[prng.NextBelow(i)]);
    arguments_.pages.base = bench.AllocateRandom(pages * layers_ * of.LayerBytes() / 2);
    arguments_.pages.page_stride = layers_ * of.LayerBytes();
    arguments_.pages.page_tokens = of.page_tokens;
    arguments_.pages.num_kv_heads = of.kv_heads;
    arguments_.pages.head_dim = of.head_dim;
    arguments_.page_tables = bench.Upload(tables_);
    AddRows();
  }

  int layers() const { return layers_; }
  void Attend(int i) {
    arguments_.layer_offset = i % layers_ * case_.LayerBytes();
    if (case_.sequences > 0) {
      gpu::AttentionDecode(bench_.stream(), DType::kBF16, static_cast<std::int64_t>(lists_.decode_rows.size()),
                           static_cast<std::int64_t>(lists_.chunks.size()), arguments_);
    } else {
      gpu::AttentionPrefill(bench_.stream(), DType::kBF16, static_cast<std::int64_t>(lists_.tiles.size()), arguments_);
    }
  }

  // Compares some heads of some rows with softmaxes in double.
  void Check() {
    Attend(0);
    const auto out = bench_.Download(static_cast<const float*>(arguments_.out), case_.Rows() * Width());
    Prng prng(13);
    for (int i = 0; i < 4; ++i) {
      const auto row = static_cast<std::int64_t>(prng.NextBelow(static_cast<std::uint64_t>(case_.Rows())));
      const auto head = static_cast<std::int64_t>(prng.NextBelow(static_cast<std::uint64_t>(case_.heads)));
      CheckHead(row, head, out.data() + row * Width() + head * case_.head_dim);
    }
  }

 private:
  std::int64_t Width() const { return std::int64_t{case_.heads} * case_.head_dim; }
  std::int64_t PositionOf(std::int64_t row) const { return case_.sequences > 0 ? case_.context - 1 : row; }

  void AddRows() {
    std::vector<std::int32_t> positions, sequence_of;
    std::vector<gpu::SequenceOnDevice> sequences;
    for (std::int64_t row = 0; row < case_.Rows(); ++row) {
      positions.push_back(static_cast<std::int32_t>(PositionOf(row)));
      sequence_of.push_back(case_.sequences > 0 ? static_cast<std::int32_t>(row) : 0);
      for (int i = 0; i < Width(); ++i) q_.push_back(bench_.Random(row * Width() + i) * 4);
      if (case_.sequences > 0) lists_.AddDecodeRow(static_cast<std::int32_t>(row), PositionOf(row), 0);
    }
    for (std::int64_t i = 0; i < case_.Sequences(); ++i) {
      const std::int64_t rows = case_.sequences > 0 ? 1 : case_.context;
      sequences.push_back({static_cast<std::int32_t>(i), static_cast<std::int32_t>(rows),
                           static_cast<std::int32_t>(case_.context - rows),
                           static_cast<std::int32_t>(i * case_.PagesOfSequence())});
    }
    if (case_.sequences == 0) lists_.AddPrefill(0, case_.context);
    arguments_.q = bench_.Upload(q_);
    arguments_.q_stride = arguments_.out_stride = Width();
    arguments_.out = bench_.Allocate(case_.Rows() * Width() * 4);
    arguments_.out_dtype = DType::kF32;
    arguments_.row_position = bench_.Upload(positions);
    arguments_.row_sequence = bench_.Upload(sequence_of);
    arguments_.sequences = bench_.Upload(sequences);
    arguments_.num_heads = case_.heads;
    gpu::AttentionWork& work = arguments_.work;
    work.chunks = bench_.Upload(lists_.chunks);
    work.decode_rows = bench_.Upload(lists_.decode_rows);
    work.tiles = bench_.Upload(lists_.tiles);
    work.num_chunks = UploadCount(lists_.chunks.size());
    work.num_decode_rows = UploadCount(lists_.decode_rows.size());
    work.num_tiles = UploadCount(lists_.tiles.size());
    const auto chunks = std::max<std::int64_t>(1, static_cast<std::int64_t>(lists_.chunks.size()));
    arguments_.partial =
        reinterpret_cast<float*>(bench_.Allocate(4 * gpu::AttentionPartialFloats(chunks, case_.heads, case_.head_dim)));
  }

  const std::int32_t* UploadCount(std::size_t count) {
    return bench_.Upload(std::vector<std::int32_t>{static_cast<std::int32_t>(count)});
  }

  // Index, for GpuBench::Random, of the first element of a position's keys (half 0) or values (half 1) in layer 0.
  std::int64_t ElementOf(std::int64_t sequence, std::int64_t kv_head, int half, std::int64_t position) const {
    const auto entry = static_cast<std::size_t>(sequence * case_.PagesOfSequence() + position / case_.page_tokens);
    return tables_[entry] * arguments_.pages.page_stride / 2 +
           (half * case_.kv_heads + kv_head) * case_.HeadElements() + position % case_.page_tokens * case_.head_dim;
  }

  void CheckHead(std::int64_t row, std::int64_t head, const float* found) const {
    const std::int64_t sequence = case_.sequences > 0 ? row : 0, kv_head = head / (case_.heads / case_.kv_heads);
    const float* q = q_.data() + row * Width() + head * case_.head_dim;
    std::vector<double> values(static_cast<std::size_t>(case_.head_dim));
    double sum = 0;
    for (std::int64_t position = 0; position <= PositionOf(row); ++position) {
      double score = 0;
      const std::int64_t key = ElementOf(sequence, kv_head, 0, position);
      for (std::int32_t d = 0; d < case_.head_dim; ++d) score += static_cast<double>(q[d]) * bench_.Random(key + d);
      const double weight = std::exp(score / std::sqrt(case_.head_dim));
      sum += weight;
      const std::int64_t value = ElementOf(sequence, kv_head, 1, position);
      for (std::int32_t d = 0; d < case_.head_dim; ++d)
        values[static_cast<std::size_t>(d)] += weight * bench_.Random(value + d);
    }
    const std::string what = fmt::format("attention, row {}, head {}", row, head);
    for (std::int32_t d = 0; d < case_.head_dim; ++d)
      CheckClose(what, found[d], values[static_cast<std::size_t>(d)] / sum, 1, 1e-2);
  }

  GpuBench& bench_;
  const AttentionCase case_;
  int layers_ = 0;
  std::vector<std::uint32_t> tables_;
  std::vector<float> q_;
  gpu::AttentionWorkLists lists_;
  gpu::AttentionArguments arguments_ = {};
};

std::vector<AttentionCase> Cases(const GpuBench& bench) {
  if (bench.check()) return {{8, 4, 2, 32, 300, 3}, {16, 4, 4, 64, 80, 0}};
  std::vector<AttentionCase> cases;
  for (const std::int32_t page_tokens : {4, 8, 16}) {
    for (const std::int64_t context : {512, 2048, 8192}) {
      for (const std::int64_t sequences : {1, 16, 64}) {
        for (const std::int32_t kv_heads : {32, 8}) {
          const AttentionCase of = {page_tokens, 32, kv_heads, 128, context, sequences};
          if (of.sequences * of.PagesOfSequence() * of.LayerBytes() <= std::int64_t{5} << 30) cases.push_back(of);
        }
      }
    }
  }
  for (const std::int32_t kv_heads : {32, 8}) {
    for (const std::int64_t context : {512, 2048, 8192}) cases.push_back({16, 32, kv_heads, 128, context, 0});
  }
  return cases;
}

}  // namespace

void BenchAttention(GpuBench& bench, double read_ceiling, GpuResults& results) {
  for (const AttentionCase& of : Cases(bench)) {
    {
      AttentionWorld world(bench, of);
      world.Check();
      const double seconds = bench.Seconds(std::clamp(world.layers(), 8, 64), [&](int i) { world.Attend(i); });
      GpuResults row = {{"page_tokens", of.page_tokens}, {"kv_heads", of.kv_heads}, {"context", of.context}};
      if (of.sequences > 0) {
        const double bytes = static_cast<double>(of.sequences * of.context * of.kv_heads) * of.head_dim * 4;
        row.update(
            {{"sequences", of.sequences}, {"us", 1e6 * seconds}, {"of_ceiling", bytes / seconds / read_ceiling}});
        AddRow(results, "decode_attention", std::move(row));
      } else {
        const auto pairs = static_cast<double>(of.context) * static_cast<double>(of.context + 1) / 2;
        row.update({{"us", 1e6 * seconds}, {"tflop_per_s", 4e-12 * pairs * of.heads * of.head_dim / seconds}});
        AddRow(results, "prefill_attention", std::move(row));
      }
    }
    bench.Free();
  }
}

}  // namespace loramux
