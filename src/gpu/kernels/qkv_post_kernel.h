// Norm, rotation and storing of q, k and v.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/own_norm.h"
#include "gpu/kernels/qkv_post.h"

namespace loramux::gpu {

// A warp: one head of one row; a lane: 8 neighbouring elements. Grid: rows, heads of q, k and v in fours.
template <typename T>
struct QkvPostKernel {
  using Arguments = QkvPostArguments;
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 8;
  static constexpr int kUnit = 8;

  LORAMUX_DEVICE static void Run(const Arguments& arguments) {
    const auto row = static_cast<std::int32_t>(BlockX());
    const int head = static_cast<int>(BlockY() * (BlockThreads() / 32) + Warp());
    if (row < Load(arguments.rows) && head < arguments.num_heads + 2 * arguments.pages.num_kv_heads)
      Head</*kGates=*/true>(arguments, row, head);
  }

  // One head of q, k or v of one row, by a warp. kGates: gates may lie between the heads of q.
  template <bool kGates>
  LORAMUX_DEVICE static void Head(const Arguments& arguments, std::int32_t row, int head) {
    const int num_kv_heads = arguments.pages.num_kv_heads, num_heads = arguments.num_heads;
    const bool is_q = head < num_heads, is_v = head >= num_heads + num_kv_heads;
    const int head_dim = arguments.pages.head_dim, first = kUnit * static_cast<int>(Lane());
    float* from = arguments.qkv + row * arguments.qkv_stride + static_cast<std::int64_t>(head) * head_dim;
    if (kGates && arguments.q_head_stride != 0)
      from += (is_q ? head : num_heads) * (arguments.q_head_stride - head_dim);
    Units units = {arguments, from, first, row};
    float x[kUnit];
    if (is_v) {
      units.Read(from, first, x);
    } else {
      const float* base = is_q ? arguments.q_norm : arguments.k_norm;
      if (arguments.centers && base != nullptr) base += (is_q ? head : head - num_heads) * head_dim;
      units.NormAndRotate(NormWeights(is_q ? arguments.own_q : arguments.own_k, row, base), x);
    }
    if (first >= head_dim) return;
    if (is_q) {
      if (arguments.query_scale != nullptr) {
        const float scale = Load(arguments.query_scale + row);
        LORAMUX_UNROLL
        for (int i = 0; i < kUnit; ++i) x[i] *= scale;
      }
      units.Write(from, x);
    } else {
      const int kv_head = (head - num_heads) % num_kv_heads;
      units.Write(PageRow(arguments, row, is_v, kv_head), x);
    }
  }

 private:
  struct Units {
    const Arguments& arguments;
    const float* head;
    int first;  // element of the lane
    std::int32_t row;

    // How many elements of a head turn.
    LORAMUX_DEVICE int Rotary() const {
      return arguments.rotary_dim == 0 ? arguments.pages.head_dim : arguments.rotary_dim;
    }

    // Whether all units are whole and 16-byte aligned, their partners and angles too.
    LORAMUX_DEVICE bool Whole() const {
      return arguments.pages.head_dim % (2 * kUnit) == 0 && Rotary() % (2 * kUnit) == 0 &&
             arguments.qkv_stride % 4 == 0 && !arguments.adjacent_pairs;
    }

    // Elements [at, at + 8) of one head's; 0 beyond its end.
    LORAMUX_DEVICE void Read(const float* elements, int at, float (&x)[kUnit]) const {
      const int head_dim = arguments.pages.head_dim;
      if (Whole() && at < head_dim) {
        ReadWhole(elements + at, x);
        return;
      }
      LORAMUX_UNROLL
      for (int i = 0; i < kUnit; ++i) x[i] = at + i < head_dim ? Load(elements + at + i) : 0.0f;
    }
    LORAMUX_DEVICE static void ReadWhole(const float* from, float (&x)[kUnit]) {
      const Vec4 low = Load(reinterpret_cast<const Vec4*>(from)), high = Load(reinterpret_cast<const Vec4*>(from) + 1);
      const std::uint32_t words[kUnit] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      LORAMUX_UNROLL
      for (int i = 0; i < kUnit; ++i) x[i] = AsFloat(words[i]);
    }

    // The index of the element that is turned together with `d`, which is below Rotary(); the index of their angle;
    // whether `d` is the first of the two.
    LORAMUX_DEVICE int Partner(int d) const {
      const int half = Rotary() / 2;
      if (arguments.adjacent_pairs) return d % 2 == 0 ? d + 1 : d - 1;
      return d < half ? d + half : d - half;
    }
    LORAMUX_DEVICE int Angle(int d) const { return arguments.adjacent_pairs ? d / 2 : d % (Rotary() / 2); }
    LORAMUX_DEVICE bool IsFirst(int d) const { return arguments.adjacent_pairs ? d % 2 == 0 : d < Rotary() / 2; }

    // Every lane of the warp must come; the partners have been read when it returns, so q may be written in place.
    LORAMUX_DEVICE void NormAndRotate(const float* weight, float (&x)[kUnit]) const {
      float y[kUnit], cos[kUnit], sin[kUnit];
      Read(head, first, x);
      ReadPartners(y, cos, sin);
      if (weight != nullptr) Norm(weight, x, y);
      LORAMUX_UNROLL
      for (int i = 0; i < kUnit; ++i) {
        // x cos - y sin for the first of a pair, x cos + y sin for the second.
        const float turned = IsFirst(first + i) ? -y[i] : y[i];
        x[i] = Fma(x[i], cos[i], turned * sin[i]);
      }
      SyncWarp();
    }

    // The partners of the lane's elements, and their angles: 1 and 0 where nothing turns.
    LORAMUX_DEVICE void ReadPartners(float (&y)[kUnit], float (&cos)[kUnit], float (&sin)[kUnit]) const {
      const int rotary = arguments.cos == nullptr ? 0 : Rotary(), half = Rotary() / 2;
      if (Whole() && first < rotary) {
        const std::int64_t angle = static_cast<std::int64_t>(row) * half + first % half;
        Read(head, Partner(first), y);
        ReadWhole(arguments.cos + angle, cos);
        ReadWhole(arguments.sin + angle, sin);
        return;
      }
      LORAMUX_UNROLL
      for (int i = 0; i < kUnit; ++i) {
        const int d = first + i;
        const std::int64_t angle = static_cast<std::int64_t>(row) * half + Angle(d);
        y[i] = d < rotary ? Load(head + Partner(d)) : 0.0f;
        cos[i] = d < rotary ? Load(arguments.cos + angle) : 1.0f;
        sin[i] = d < rotary ? Load(arguments.sin + angle) : 0.0f;
      }
    }

    // Takes the mean of the head from the lane's elements and their partners.
    LORAMUX_DEVICE void Center(float (&x)[kUnit], float (&y)[kUnit]) const {
      const int head_dim = arguments.pages.head_dim;
      float sum = 0;
      LORAMUX_UNROLL
      for (int i = 0; i < kUnit; ++i) sum += x[i];
      const float mean = SumWarp(sum) / static_cast<float>(head_dim);
      LORAMUX_UNROLL
      for (int i = 0; i < kUnit; ++i) {
        x[i] = first + i < head_dim ? x[i] - mean : 0.0f;
        y[i] -= mean;
      }
    }

    LORAMUX_DEVICE void Norm(const float* weight, float (&x)[kUnit], float (&y)[kUnit]) const {
      const int head_dim = arguments.pages.head_dim;
      if (arguments.centers) Center(x, y);
      float squares = 0;
      LORAMUX_UNROLL
      for (int i = 0; i < kUnit; ++i) squares = Fma(x[i], x[i], squares);
      squares = SumWarp(squares);
      const float inverse = ReciprocalSqrt(squares / static_cast<float>(head_dim) + arguments.eps);
      LORAMUX_UNROLL
      for (int i = 0; i < kUnit; ++i) {
        const int d = first + i;
        if (d < head_dim) x[i] = x[i] * inverse * (Load(weight + d) + arguments.norm_offset);
        if (d < Rotary()) y[i] = y[i] * inverse * (Load(weight + Partner(d)) + arguments.norm_offset);
      }
    }

    // Writes the lane's elements of one head.
    LORAMUX_DEVICE void Write(float* elements, const float (&x)[kUnit]) const {
      if (Whole()) {
        auto* to = reinterpret_cast<Vec4*>(elements + first);
        Store(to, Vec4{AsBits(x[0]), AsBits(x[1]), AsBits(x[2]), AsBits(x[3])});
        Store(to + 1, Vec4{AsBits(x[4]), AsBits(x[5]), AsBits(x[6]), AsBits(x[7])});
        return;
      }
      LORAMUX_UNROLL
      for (int i = 0; i < kUnit; ++i) {
        if (first + i < arguments.pages.head_dim) Store(elements + first + i, x[i]);
      }
    }
    template <typename Element>
    LORAMUX_DEVICE void Write(Element* elements, const float (&x)[kUnit]) const {
      if (Whole()) {
        Store(reinterpret_cast<Vec4*>(elements + first), Vec4{Pack<Element>(x[0], x[1]), Pack<Element>(x[2], x[3]),
                                                              Pack<Element>(x[4], x[5]), Pack<Element>(x[6], x[7])});
        return;
      }
      LORAMUX_UNROLL
      for (int i = 0; i < kUnit; ++i) {
        if (first + i < arguments.pages.head_dim) Store(elements + first + i, FromFloat<Element>(x[i]));
      }
    }
  };

  // Where the row's k (or v) of a head lies.
  LORAMUX_DEVICE static T* PageRow(const Arguments& arguments, std::int32_t row, bool is_v, int kv_head) {
    const PagesOnDevice& pages = arguments.pages;
    const std::int32_t position = Load(arguments.row_position + row), sequence = Load(arguments.row_sequence + row);
    const std::int32_t first_page = Load(&arguments.sequences[sequence].first_page);
    const std::uint32_t page = Load(arguments.page_tables + first_page + position / pages.page_tokens);
    const std::int64_t head_index = (is_v ? pages.num_kv_heads : 0) + kv_head;
    std::byte* head = pages.base + static_cast<std::int64_t>(page) * pages.page_stride + arguments.layer_offset;
    return reinterpret_cast<T*>(head) +
           (head_index * pages.page_tokens + position % pages.page_tokens) * pages.head_dim;
  }
};

}  // namespace loramux::gpu
