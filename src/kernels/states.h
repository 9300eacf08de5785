// Layers that carry a state from token to token in place of keys and values: a causal convolution, then the gated delta
// rule or Mamba-2's selective scan, with what stands around them. What is computed for a token depends on the state
// before it and on its own row alone, so that the result has the same bits however a prompt is cut into steps, and
// whatever else the batch has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "kernels/kernel_context.h"
#include "tensor/page_arena.h"

namespace loramux {

// The rows of the batch that belong to one sequence in this step, and where its states lie.
struct StateSequence {
  std::int64_t first_row = 0;  // rows [first_row, first_row + num_tokens) of the batch
  std::int64_t num_tokens = 0;
  bool begins = false;                   // at position 0: the state before it is zero, whatever the pages hold
  const std::uint32_t* pages = nullptr;  // in which its states lie one after the other
};

// The states of one kind and layer: floats in the pages of each sequence, `first` floats after the first page's begin.
struct StatePlace {
  PageArena arena;
  std::int64_t page_floats = 0;  // floats of a page that states use
  std::int64_t first = 0;

  // Calls fn(address, done, count) for the pieces of floats [at, at + count) of the place.
  template <typename F>
  void ForEachPiece(const std::uint32_t* pages, std::int64_t at, std::int64_t count, const F& fn) const {
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t from = first + at + done, in_page = from % page_floats;
      const std::int64_t piece = std::min(count - done, page_floats - in_page);
      fn(reinterpret_cast<float*>(arena.Page(pages[from / page_floats])) + in_page, done, piece);
      done += piece;
    }
  }
  // Reads floats of a sequence's state, zeros if it begins; writes them.
  void Read(const StateSequence& of, std::int64_t at, std::int64_t count, float* to) const {
    if (of.begins) {
      std::fill_n(to, count, 0.0f);
      return;
    }
    ForEachPiece(of.pages, at, count, [&](const float* from, std::int64_t done, std::int64_t piece) {
      std::memcpy(to + done, from, static_cast<std::size_t>(piece) * sizeof(float));
    });
  }
  void Write(const StateSequence& of, std::int64_t at, std::int64_t count, const float* from) const {
    ForEachPiece(of.pages, at, count, [&](float* to, std::int64_t done, std::int64_t piece) {
      std::memcpy(to, from + done, static_cast<std::size_t>(piece) * sizeof(float));
    });
  }
};

// The heads of the gated delta rule, and those of the selective scan, whose B are keys, whose C are queries, and whose
// groups are key heads. Key head j serves value heads j r to j r + r - 1, with r = value_heads /
// key_heads.
struct DeltaShape {
  std::int64_t key_heads = 0, value_heads = 0;
  std::int64_t key_dim = 0, value_dim = 0;

  // A row of what goes in: all queries, all keys, all values; of the scan, all values, all keys, all queries.
  std::int64_t Keys() const { return key_heads * key_dim; }
  std::int64_t Values() const { return value_heads * value_dim; }
  std::int64_t Channels() const { return 2 * Keys() + Values(); }
  std::int64_t HeadFloats() const { return key_dim * value_dim; }  // the state of a value head: [key_dim, value_dim]
};

// y[t, c] = silu(bias[c] + sum over j of weights[j, c] x[t - width + 1 + j, c]) for each sequence's rows t; what lies
// before them is its state [width - 1, channels], which then has its last rows. x and y do not overlap.
struct CausalConvArguments {
  std::int64_t channels = 0, width = 0;
  const float* weights = nullptr;  // [width, channels]
  StatePlace place;
  std::span<const StateSequence> sequences;
  ConstRows x;
  Rows y;
  const float* bias = nullptr;  // [channels]; null: none

  void Check() const {
    CHECK_GT(channels, 0);
    CHECK_GT(width, 1);
    CHECK_GT(place.page_floats, 0);
  }
};
LORAMUX_KERNEL(CausalConv)

// The gated delta rule, for each value head and token in turn: S *= decay; S += k ((v - S^T k) beta)^T; out = S^T q /
// sqrt(key_dim), where q and k are divided by the root of the sum of their squares + 1e-6. The state: [value_heads,
// HeadFloats()]. It decays by exp(rate softplus(a + bias)) before each token, and learns sigmoid(b) of the difference.
struct DeltaRuleArguments {
  DeltaShape shape;
  const float* rate = nullptr;  // [value_heads], below 0
  const float* bias = nullptr;  // [value_heads]
  StatePlace place;
  std::span<const StateSequence> sequences;
  ConstRows x;                 // [rows, Channels()]
  ConstRows gates;             // [rows, 2 value_heads], b of all heads and then a
  Rows out;                    // [rows, Values()]
  float* workspace = nullptr;  // threads times DeltaWorkspaceFloats

  void Check() const {
    CHECK_GT(shape.HeadFloats(), 0);
    CHECK_EQ(shape.value_heads % shape.key_heads, 0);
    CHECK_GT(place.page_floats, 0);
  }
};
LORAMUX_KERNEL(DeltaRule)
// A state, and the rows of a head that pass it together.
inline constexpr std::int64_t kStateTile = 16;
inline std::int64_t DeltaWorkspaceFloats(const DeltaShape& shape) {
  return (shape.HeadFloats() + 2 * kStateTile * (shape.key_dim + shape.value_dim) + 15) / 16 * 16;
}

// Mamba-2's recurrence, for each value head and token in turn, with step = softplus(steps + bias) within its limits:
// S = exp(rate step) S + k (step v)^T; out = S^T q + skip v. The state: as the delta rule's.
struct SelectiveScanArguments {
  DeltaShape shape;
  const float* rate = nullptr;  // [value_heads], below 0
  const float* bias = nullptr;  // [value_heads]
  const float* skip = nullptr;  // [value_heads]
  float least_step = 0, most_step = std::numeric_limits<float>::infinity();
  StatePlace place;
  std::span<const StateSequence> sequences;
  ConstRows x;                 // [rows, Channels()]
  ConstRows steps;             // [rows, value_heads]
  Rows out;                    // [rows, Values()]
  float* workspace = nullptr;  // threads times DeltaWorkspaceFloats

  void Check() const {
    CHECK_GT(shape.HeadFloats(), 0);
    CHECK_EQ(shape.value_heads % shape.key_heads, 0);
    CHECK_LE(least_step, most_step);
    CHECK_GT(place.page_floats, 0);
  }
};
LORAMUX_KERNEL(SelectiveScan)

// y = y / sqrt(mean(y^2) + eps) * weight * silu(z) for each head of each row; with `gate_first` the mean is that of
// y * silu(z), which weights alone multiply then.
struct GatedRmsNormArguments {
  std::int64_t rows = 0, heads = 0, head_dim = 0;
  const float* weight = nullptr;  // [head_dim]
  float eps = 0;
  ConstRows z;
  Rows y;
  bool gate_first = false;
  std::int64_t weight_stride = 0;  // from the weights of a head to those of the next; 0: all have the same

  void Check() const { CHECK_GT(head_dim, 0); }
};
LORAMUX_KERNEL(GatedRmsNorm)

// y[i, :] *= sigmoid(gate[i, :]).
struct MulSigmoidArguments {
  ConstRows gate;
  Rows y;
  std::int64_t rows = 0, width = 0;

  void Check() const { CHECK_GE(width, 0); }
};
LORAMUX_KERNEL(MulSigmoid)

// x: rows of `heads` pairs of a query and its gate. Moves the queries to the end of the 2 heads head_dim elements and
// copies the gates to y.
struct SplitGatesArguments {
  Rows x, y;
  std::int64_t rows = 0, heads = 0, head_dim = 0;
};
void SplitGates(const KernelContext& context, const SplitGatesArguments& arguments);

}  // namespace loramux
