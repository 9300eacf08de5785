// The gated delta rule and the selective scan (states.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/states.h"

namespace loramux::gpu {

// Where float `at` of a sequence's state lies.
LORAMUX_DEVICE float* StateAddress(const StatesOnDevice& states, std::int32_t first_page, std::int32_t at) {
  const std::int32_t from = states.first + at, page = from / states.page_floats;
  const std::uint32_t index = Load(states.page_tables + first_page - states.state_pages + page);
  return reinterpret_cast<float*>(states.base + index * states.page_stride) + (from - page * states.page_floats);
}

LORAMUX_DEVICE float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }
// As torch.nn.functional.softplus.
LORAMUX_DEVICE float Softplus(float x) { return x > 20.0f ? x : Log1p(Exp(x)); }

// What goes by a head's state. Block (sequence, value head, columns): kColumns columns of the state, which take all
// rows of the sequence in turn. A warp has 8 columns: the four lanes of a column divide its key_dim elements, and keep
// them in registers. Some rows at a time are brought to shared memory.
template <bool kScans>
struct StateHeads {
  using Arguments = StateHeadsOnDevice;
  static constexpr int kThreads = 128, kWarps = kThreads / 32;
  static constexpr int kGroups = 4, kColumnsOfWarp = 32 / kGroups, kColumns = kWarps * kColumnsOfWarp;
  static constexpr int kUnit = 4;      // neighbouring elements of a lane: 16 bytes of shared memory
  static constexpr int kVariants = 4;  // key_dim to 32, 64, 128, 256
  static int VariantOf(const Arguments& a) {
    int variant = 0;
    while (a.key_dim > 32 << variant) ++variant;
    return variant;
  }
  static constexpr int MinBlocks(int variant) { return variant < 3 ? 4 : 2; }
  static constexpr int kRows = 8;  // rows in shared memory

  template <int kVariant>
  struct Memory {
    static constexpr int kDim = 32 << kVariant;
    float q[kRows][kDim], k[kRows][kDim];
    float v[kRows][kColumns];
    float decay[kRows], factor[kRows];  // factor: beta of the delta rule, the step of the scan
  };
  static std::size_t SharedBytes(int variant) {
    constexpr std::size_t kBytes[kVariants] = {sizeof(Memory<0>), sizeof(Memory<1>), sizeof(Memory<2>),
                                               sizeof(Memory<3>)};
    return kBytes[variant];
  }

  LORAMUX_DEVICE static void Run(const Arguments& a) {
    if (a.key_dim <= 32) return RunVariant<0>(a);
    if (a.key_dim <= 64) return RunVariant<1>(a);
    if (a.key_dim <= 128) return RunVariant<2>(a);
    RunVariant<3>(a);
  }

  template <int kVariant>
  LORAMUX_DEVICE static void RunVariant(const Arguments& a) {
    constexpr int kOfLane = (32 << kVariant) / kGroups;
    if (static_cast<std::int32_t>(BlockX()) >= Load(a.num_sequences)) return;
    Memory<kVariant>& shared = Shared<Memory<kVariant>>();
    const SequenceOnDevice sequence = Load(a.states.sequences + BlockX());
    const Lanes lanes = LanesOf(a);
    const float skip = kScans ? Load(a.skip + BlockY()) : 0.0f;
    float state[kOfLane];
    ForEachElement<kOfLane>(
        a, sequence, lanes, [&](int i, float* at) { state[i] = sequence.position == 0 ? 0.0f : Load(at); },
        [&](int i) { state[i] = 0.0f; });
    for (std::int32_t done = 0; done < sequence.rows; done += kRows) {
      const int count = sequence.rows - done < kRows ? static_cast<int>(sequence.rows - done) : kRows;
      SyncBlock();  // what lies in shared memory has been read
      for (int row = static_cast<int>(Warp()); row < count; row += kWarps) {
        Bring(a, sequence.first_row + done + row, row, shared);
      }
      SyncBlock();
      for (int row = 0; row < count; ++row) {
        const float out = Pass(shared, row, lanes, skip, state);
        if (lanes.group > 0 || lanes.column >= a.value_dim) continue;
        const std::int64_t to = (sequence.first_row + done + row) * a.out_stride;
        Store(a.out + to + static_cast<std::int64_t>(BlockY()) * a.value_dim + lanes.column, out);
      }
    }
    ForEachElement<kOfLane>(
        a, sequence, lanes, [&](int i, float* at) { Store(at, state[i]); }, [](int) {});
  }

 private:
  // The lane's place: its part of a column, and the column, in the block and in the head.
  struct Lanes {
    int group, in_block, column;
  };
  LORAMUX_DEVICE static Lanes LanesOf(const Arguments&) {
    const int lane = static_cast<int>(Lane()), warp = static_cast<int>(Warp());
    const int in_block = warp * kColumnsOfWarp + lane % kColumnsOfWarp;
    return {lane / kColumnsOfWarp, in_block, static_cast<int>(BlockZ()) * kColumns + in_block};
  }
  // The place in a column of the lane's element i: units of all its lanes alternate.
  LORAMUX_DEVICE static int ElementOf(int i, int group) { return (i / kUnit * kGroups + group) * kUnit + i % kUnit; }

  // Calls fn(i, address) for the lane's elements of the head's state, none(i) for those beyond its end.
  template <int kOfLane, typename F, typename G>
  LORAMUX_DEVICE static void ForEachElement(const Arguments& a, const SequenceOnDevice& sequence, const Lanes& lanes,
                                            const F& fn, const G& none) {
    const std::int32_t of_head = static_cast<std::int32_t>(BlockY()) * a.key_dim * a.value_dim;
    LORAMUX_UNROLL
    for (int i = 0; i < kOfLane; ++i) {
      const int element = ElementOf(i, lanes.group);
      if (element < a.key_dim && lanes.column < a.value_dim) {
        fn(i, StateAddress(a.states, sequence.first_page, of_head + element * a.value_dim + lanes.column));
      } else {
        none(i);
      }
    }
  }

  // One row passes the state. The result is the same in all lanes of a column.
  template <int kVariant, int kOfLane>
  LORAMUX_DEVICE static float Pass(const Memory<kVariant>& shared, int row, const Lanes& lanes, float skip,
                                   float (&state)[kOfLane]) {
    const float decay = shared.decay[row], factor = shared.factor[row], v = shared.v[row][lanes.in_block];
    float change = factor * v;
    if constexpr (!kScans) {
      float known[kUnit] = {0, 0, 0, 0};
      LORAMUX_UNROLL
      for (int i = 0; i < kOfLane; i += kUnit) {
        float k[kUnit];
        LoadUnit(shared.k[row] + ElementOf(i, lanes.group), k);
        LORAMUX_UNROLL
        for (int j = 0; j < kUnit; ++j) {
          state[i + j] *= decay;
          known[j] = Fma(state[i + j], k[j], known[j]);
        }
      }
      change = (v - SumColumn(known)) * factor;
    }
    float out[kUnit] = {0, 0, 0, 0};
    LORAMUX_UNROLL
    for (int i = 0; i < kOfLane; i += kUnit) {
      float k[kUnit], q[kUnit];
      LoadUnit(shared.k[row] + ElementOf(i, lanes.group), k);
      LoadUnit(shared.q[row] + ElementOf(i, lanes.group), q);
      LORAMUX_UNROLL
      for (int j = 0; j < kUnit; ++j) {
        if constexpr (kScans) state[i + j] *= decay;
        state[i + j] = Fma(k[j], change, state[i + j]);
        out[j] = Fma(state[i + j], q[j], out[j]);
      }
    }
    const float sum = SumColumn(out);
    return kScans ? Fma(skip, v, sum) : sum;
  }

  LORAMUX_DEVICE static void LoadUnit(const float* shared, float (&values)[kUnit]) {
    const Vec4 unit = *reinterpret_cast<const Vec4*>(shared);
    values[0] = AsFloat(unit.x), values[1] = AsFloat(unit.y), values[2] = AsFloat(unit.z), values[3] = AsFloat(unit.w);
  }
  // Over the lanes of a column.
  LORAMUX_DEVICE static float SumColumn(const float (&values)[kUnit]) {
    float sum = (values[0] + values[1]) + (values[2] + values[3]);
    sum += ShuffleXor(sum, kColumnsOfWarp);
    return sum + ShuffleXor(sum, 2 * kColumnsOfWarp);
  }

  // By a warp: a row's query and key, the block's values, and what its gates say.
  template <int kVariant>
  LORAMUX_DEVICE static void Bring(const Arguments& a, std::int32_t row, int to, Memory<kVariant>& shared) {
    const auto head = static_cast<int>(BlockY()), lane = static_cast<int>(Lane());
    const int keys = a.key_heads * a.key_dim, values = a.value_heads * a.value_dim;
    const float* const x = a.x + row * a.x_stride;
    const float* const k = x + (kScans ? values : keys) + head / (a.value_heads / a.key_heads) * a.key_dim;
    const float* const q = kScans ? k + keys : k - keys;
    if constexpr (kScans) {
      BringHead<kVariant>(q, a.key_dim, shared.q[to]);
      BringHead<kVariant>(k, a.key_dim, shared.k[to]);
    } else {
      Normalise<kVariant>(q, a.key_dim, ReciprocalSqrt(static_cast<float>(a.key_dim)), shared.q[to]);
      Normalise<kVariant>(k, a.key_dim, 1.0f, shared.k[to]);
    }
    const int first = static_cast<int>(BlockZ()) * kColumns;
    const float* const v = x + (kScans ? 0 : 2 * keys) + head * a.value_dim + first;
    static_assert(kColumns == 32);
    shared.v[to][lane] = first + lane < a.value_dim ? Load(v + lane) : 0.0f;
    if (lane != 0) return;
    const float* const gates = a.gates + row * a.gates_stride;
    const float softplus = Softplus(Load(gates + (kScans ? 0 : a.value_heads) + head) + Load(a.bias + head));
    const float step = kScans ? Min(Max(softplus, a.least_step), a.most_step) : softplus;
    shared.factor[to] = kScans ? step : Sigmoid(Load(gates + head));
    shared.decay[to] = Exp(Load(a.rate + head) * step);
  }

  // y = x, and zeros behind it.
  template <int kVariant>
  LORAMUX_DEVICE static void BringHead(const float* x, std::int32_t dim, float* y) {
    for (int at = static_cast<int>(Lane()); at < 32 << kVariant; at += 32) y[at] = at < dim ? Load(x + at) : 0.0f;
  }
  // y = x times `scale` over its length, and zeros behind it.
  template <int kVariant>
  LORAMUX_DEVICE static void Normalise(const float* x, std::int32_t dim, float scale, float* y) {
    constexpr int kOfLane = 1 << kVariant;
    float values[kOfLane], squares = 0;
    LORAMUX_UNROLL
    for (int i = 0; i < kOfLane; ++i) {
      const int at = i * 32 + static_cast<int>(Lane());
      values[i] = at < dim ? Load(x + at) : 0.0f;
      squares = Fma(values[i], values[i], squares);
    }
    const float factor = scale * ReciprocalSqrt(SumWarp(squares) + 1e-6f);
    LORAMUX_UNROLL
    for (int i = 0; i < kOfLane; ++i) y[i * 32 + static_cast<int>(Lane())] = values[i] * factor;
  }
};

template <typename T>
struct DeltaRuleKernel : StateHeads<false> {};
template <typename T>
struct SelectiveScanKernel : StateHeads<true> {};

}  // namespace loramux::gpu
