// Sequences with keys and values in a device's pages, and what attention must make of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "gpu/device.h"
#include "gpu/device_arrays_for_test.h"
#include "gpu/kernels/attention.h"
#include "tensor/half_float.h"
#include "tensor/kv_layout.h"

namespace loramux::gpu {

// `value` as an element of `dtype` has it.
inline float RoundedTo(DType dtype, float value) {
  std::byte element[4] = {};
  StoreFromF32(dtype, element, 0, value);
  return LoadAsF32(dtype, element, 0);
}

inline std::vector<float> RandomFloats(Prng& prng, std::int64_t count, double magnitude) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>((prng.NextDouble() * 2 - 1) * magnitude);
  return values;
}

// Pages on the host in the layout of step_data.h; what no position holds is NaN.
class PagesForTest {
 public:
  PagesForTest(const KvLayout& layout, std::int64_t num_pages)
      : layout_(layout),
        stride_((layout.PageBytes() + 63) / 64 * 64 + 64),
        bytes(static_cast<std::size_t>(num_pages) * stride_, std::byte{0xff}) {}

  std::size_t stride() const { return stride_; }
  // Where K (half 0) or V (half 1) of a position begins, in elements of the page.
  std::int64_t Index(std::int64_t half, std::int64_t head, std::int64_t slot) const {
    return ((half * layout_.num_kv_heads + head) * layout_.page_tokens + slot) * layout_.head_dim;
  }
  std::byte* Layer(std::uint32_t page, std::int64_t layer) {
    return bytes.data() + page * stride_ + layout_.KeyOffset(layer, 0);
  }

 private:
  KvLayout layout_;
  std::size_t stride_;

 public:
  std::vector<std::byte> bytes;
};

struct AttentionShape {
  DType dtype = DType::kF32;  // type of the pages
  std::int64_t head_dim = 64, num_kv_heads = 2, group = 1, page_tokens = 16, window = 0;
  DType out_dtype = DType::kF32;
  double scale = 0, soft_cap = 0;  // as AttentionArguments
  std::vector<float> slopes = {};  // slopes of ALiBi; empty: no ALiBi
  std::vector<float> sinks = {};   // empty: none
  bool rounds_bias = false;

  std::int64_t NumHeads() const { return num_kv_heads * group; }
  std::int64_t QWidth() const { return NumHeads() * head_dim; }
  std::int64_t KvWidth() const { return num_kv_heads * head_dim; }
};

// One sequence: [positions][width]. Keys and values are as rounded.
struct SequenceForTest {
  std::vector<float> q, k, v;
  SequenceForTest(const AttentionShape& shape, std::int64_t positions, std::uint64_t seed) {
    Prng prng(seed);
    q = RandomFloats(prng, positions * shape.QWidth(), 3);
    k = RandomFloats(prng, positions * shape.KvWidth(), 1);
    v = RandomFloats(prng, positions * shape.KvWidth(), 1);
    for (float& x : k) x = RoundedTo(shape.dtype, x);
    for (float& x : v) x = RoundedTo(shape.dtype, x);
  }
};

// Rows of a sequence in a batch.
struct RowsForTest {
  const SequenceForTest* sequence;
  std::int64_t position, rows;
  bool decode = false;
};

// The result of one row: [num_heads * head_dim].
inline std::vector<double> ExpectedRow(const AttentionShape& shape, const SequenceForTest& sequence,
                                       std::int64_t position) {
  std::vector<double> out(static_cast<std::size_t>(shape.QWidth()));
  const std::int64_t first = shape.window > 0 ? std::max<std::int64_t>(0, position - shape.window + 1) : 0;
  for (std::int64_t head = 0; head < shape.NumHeads(); ++head) {
    const std::int64_t kv = head / shape.group * shape.head_dim, at = head * shape.head_dim;
    std::vector<double> weights;
    double maximum = -INFINITY, sum = 0;
    for (std::int64_t p = first; p <= position; ++p) {
      double dot = 0;
      for (std::int64_t d = 0; d < shape.head_dim; ++d) {
        const auto q = static_cast<std::size_t>(position * shape.QWidth() + at + d);
        const auto k = static_cast<std::size_t>(p * shape.KvWidth() + kv + d);
        dot += static_cast<double>(RoundedTo(shape.dtype, sequence.q[q])) * static_cast<double>(sequence.k[k]);
      }
      if (!shape.slopes.empty()) {
        const float slope = shape.slopes[static_cast<std::size_t>(head)];
        const float whole = RoundedTo(DType::kBF16, slope * RoundedTo(DType::kBF16, static_cast<float>(p)));
        dot += shape.rounds_bias ? static_cast<double>(whole)
                                 : static_cast<double>(slope) * static_cast<double>(p - position);
      }
      double score = shape.scale > 0 ? dot * shape.scale : dot / std::sqrt(static_cast<double>(shape.head_dim));
      if (shape.soft_cap > 0) score = shape.soft_cap * std::tanh(score / shape.soft_cap);
      weights.push_back(score);
      maximum = std::max(maximum, weights.back());
    }
    for (double& weight : weights) sum += weight = std::exp(weight - maximum);
    if (!shape.sinks.empty())
      sum += std::exp(static_cast<double>(shape.sinks[static_cast<std::size_t>(head)]) - maximum);
    for (std::int64_t p = first; p <= position; ++p) {
      for (std::int64_t d = 0; d < shape.head_dim; ++d) {
        const auto v = static_cast<std::size_t>(p * shape.KvWidth() + kv + d);
        out[static_cast<std::size_t>(at + d)] +=
            weights[static_cast<std::size_t>(p - first)] / sum * static_cast<double>(sequence.v[v]);
      }
    }
  }
  return out;
}

// A batch in device memory.
class AttentionWorld {
 public:
  AttentionWorld(Device& device, const AttentionShape& shape, const std::vector<RowsForTest>& batch,
                 std::uint64_t seed = 1)
      : shape_(shape), vectors_(device) {
    Prng prng(seed);
    const KvLayout layout = {kLayers, shape.num_kv_heads, shape.head_dim, shape.page_tokens, shape.dtype};
    std::int64_t num_pages = 3;
    for (const RowsForTest& rows : batch) num_pages += layout.PagesFor(rows.position + rows.rows);
    std::vector<std::uint32_t> order = Shuffled(num_pages, prng);

    PagesForTest pages(layout, num_pages);
    std::vector<SequenceOnDevice> sequences;
    std::vector<std::uint32_t> tables;
    std::vector<std::int32_t> row_position, row_sequence;
    std::vector<float> q;
    AttentionWorkLists work;
    for (const RowsForTest& rows : batch) {
      const auto index = static_cast<std::int32_t>(sequences.size());
      sequences.push_back({static_cast<std::int32_t>(row_position.size()), static_cast<std::int32_t>(rows.rows),
                           static_cast<std::int32_t>(rows.position), static_cast<std::int32_t>(tables.size())});
      for (std::int64_t i = 0; i < layout.PagesFor(rows.position + rows.rows); ++i) {
        tables.push_back(order.back());
        order.pop_back();
      }
      WritePages(rows, std::span(tables).subspan(static_cast<std::size_t>(sequences.back().first_page)), pages);
      if (!rows.decode) work.AddPrefill(index, rows.rows);
      for (std::int64_t i = 0; i < rows.rows; ++i) {
        const auto row = static_cast<std::int32_t>(row_position.size());
        if (rows.decode) work.AddDecodeRow(row, rows.position + i, list_window >= 0 ? list_window : shape.window);
        row_position.push_back(static_cast<std::int32_t>(rows.position + i));
        row_sequence.push_back(index);
        const float* from = rows.sequence->q.data() + (rows.position + i) * shape.QWidth();
        q.insert(q.end(), from, from + shape.QWidth());
        q.insert(q.end(), kPadding, NAN);
      }
    }
    rows_ = static_cast<std::int64_t>(row_position.size());
    max_chunks_ = static_cast<std::int64_t>(work.chunks.size());
    max_decode_rows_ = static_cast<std::int64_t>(work.decode_rows.size());
    max_tiles_ = static_cast<std::int64_t>(work.tiles.size());
    page_bytes_ = pages.bytes.size();

    a_.q = vectors_.Upload(q);
    a_.q_stride = a_.out_stride = shape.QWidth() + kPadding;
    a_.out = vectors_.Upload(std::vector<std::byte>(OutBytes(), std::byte{0xff}));
    a_.out_dtype = shape.out_dtype;
    a_.row_position = vectors_.Upload(row_position);
    a_.row_sequence = vectors_.Upload(row_sequence);
    a_.sequences = vectors_.Upload(sequences);
    a_.page_tables = vectors_.Upload(tables);
    a_.pages = {vectors_.Upload(pages.bytes), static_cast<std::int64_t>(pages.stride()),
                static_cast<std::int32_t>(shape.page_tokens), static_cast<std::int32_t>(shape.num_kv_heads),
                static_cast<std::int32_t>(shape.head_dim)};
    SetShape();
    a_.layer_offset = static_cast<std::int64_t>(layout.KeyOffset(kLayer, 0));
    a_.work = {vectors_.Upload(work.chunks), Count(max_chunks_),          vectors_.Upload(work.decode_rows),
               Count(max_decode_rows_),      vectors_.Upload(work.tiles), Count(max_tiles_)};
    const std::int64_t floats = AttentionPartialFloats(max_chunks_, shape.NumHeads(), shape.head_dim);
    a_.partial = vectors_.Upload(std::vector<float>(static_cast<std::size_t>(floats), NAN));
  }

  const AttentionArguments& arguments() const { return a_; }
  std::size_t page_bytes() const { return page_bytes_; }

  // Both kernels; `spare`: how much larger than the work the grids are. Returns the rows without padding.
  std::vector<float> Run(std::int64_t spare = 0) {
    AttentionDecode(vectors_.stream(), shape_.dtype, max_decode_rows_ + spare, max_chunks_ + spare, a_);
    AttentionPrefill(vectors_.stream(), shape_.dtype, max_tiles_ + spare, a_);
    const std::vector<std::byte> bytes = vectors_.Download(static_cast<const std::byte*>(a_.out), OutBytes());
    std::vector<float> out;
    for (std::int64_t i = 0; i < rows_ * a_.out_stride; ++i) {
      const float value = LoadAsF32(shape_.out_dtype, bytes.data(), i);
      if (i % a_.out_stride < shape_.QWidth()) {
        out.push_back(value);
      } else {
        CHECK(std::isnan(value));  // no kernel writes beyond a row
      }
    }
    return out;
  }

  // The window for which lists are made; below 0: the shape's.
  inline static std::int64_t list_window = -1;

 private:
  // The numbers below `count`, in a random order.
  static std::vector<std::uint32_t> Shuffled(std::int64_t count, Prng& prng) {
    std::vector<std::uint32_t> order(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint32_t>(i);
    for (std::size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[prng.NextBelow(i + 1)]);
    return order;
  }

  void SetShape() {
    a_.num_heads = static_cast<std::int32_t>(shape_.NumHeads());
    a_.form.window = static_cast<std::int32_t>(shape_.window);
    a_.form.scale = static_cast<float>(shape_.scale);
    a_.form.soft_cap = static_cast<float>(shape_.soft_cap);
    a_.form.slopes = shape_.slopes.empty() ? nullptr : vectors_.Upload(shape_.slopes);
    a_.form.rounds_bias = shape_.rounds_bias;
    a_.form.sinks = shape_.sinks.empty() ? nullptr : vectors_.Upload(shape_.sinks);
  }
  // Keys and values of all positions that the rows may see.
  void WritePages(const RowsForTest& rows, std::span<const std::uint32_t> table, PagesForTest& pages) const {
    for (std::int64_t p = 0; p < rows.position + rows.rows; ++p) {
      std::byte* const layer = pages.Layer(table[static_cast<std::size_t>(p / shape_.page_tokens)], kLayer);
      for (std::int64_t head = 0; head < shape_.num_kv_heads; ++head) {
        const float* k = rows.sequence->k.data() + p * shape_.KvWidth() + head * shape_.head_dim;
        const float* v = rows.sequence->v.data() + p * shape_.KvWidth() + head * shape_.head_dim;
        for (std::int64_t d = 0; d < shape_.head_dim; ++d) {
          StoreFromF32(shape_.dtype, layer, pages.Index(0, head, p % shape_.page_tokens) + d, k[d]);
          StoreFromF32(shape_.dtype, layer, pages.Index(1, head, p % shape_.page_tokens) + d, v[d]);
        }
      }
    }
  }
  static constexpr std::int64_t kLayers = 3, kLayer = 1, kPadding = 6;
  std::size_t OutBytes() const {
    return static_cast<std::size_t>(rows_ * (shape_.QWidth() + kPadding)) * DTypeSize(shape_.out_dtype);
  }
  const std::int32_t* Count(std::int64_t count) {
    return vectors_.Upload(std::vector<std::int32_t>{static_cast<std::int32_t>(count)});
  }

  AttentionShape shape_;
  DeviceArrays vectors_;
  AttentionArguments a_ = {};
  std::int64_t rows_ = 0, max_chunks_ = 0, max_decode_rows_ = 0, max_tiles_ = 0;
  std::size_t page_bytes_ = 0;
};

}  // namespace loramux::gpu
