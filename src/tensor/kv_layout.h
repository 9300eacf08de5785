// The layout of keys and values in a page of the pool. One page holds the keys and values of `page_tokens` consecutive
// positions of ONE sequence for ALL layers (docs/design/architecture.md, Memory).
//
// A page, from its first byte: [layer] { K: [kv_head][head_dim][page_tokens]   V: [kv_head][page_tokens][head_dim] }
//
// Keys are stored transposed, so that the scores of neighbouring positions are neighbouring lanes. Then no reduction
// over head_dim is needed, and each score is summed over head_dim in the same order at every vector width.
//
// With kI8, K and V of each head are followed by their scales, bf16 [page_tokens]: element = integer * scale
// (tensor/int8_kv.h). Each token and head has scales of its own, not each page: a page fills token by token, and a
// scale of the page would change with later tokens. Then what is stored would have to be quantised again, and a
// token's keys would depend on how the prompt was cut into chunks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/result.h"
#include "formats/dtype.h"

namespace loramux {

// The extents of a page and the offsets within it.
struct KvLayout {
  std::int64_t num_layers = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t page_tokens = 16;  // 4, 8, 16, 32 or 64
  DType dtype = DType::kBF16;     // kF32, kBF16, kF16 or kI8
  // Pages of a sequence with the states of recurrent layers, before those of its positions; num_layers counts none of
  // these layers.
  std::int64_t state_pages = 0;

  // Error: page_tokens or dtype outside the lists above, or an extent that is not positive.
  Status Validate() const;

  bool has_scales() const { return dtype == DType::kI8; }
  // Bytes of one position over all layers, with its scales.
  std::size_t BytesPerToken() const {
    return static_cast<std::size_t>(num_layers * 2 * num_kv_heads) * HeadBytesPerToken();
  }
  // Bytes of the keys and values of a page; the pool may round this up.
  std::size_t PageBytes() const { return BytesPerToken() * static_cast<std::size_t>(page_tokens); }
  // Byte offset of K [head_dim][page_tokens] of one head in a page.
  std::size_t KeyOffset(std::int64_t layer, std::int64_t kv_head) const {
    return HeadBytes() * static_cast<std::size_t>(layer * 2 * num_kv_heads + kv_head);
  }
  // Byte offset of V [page_tokens][head_dim] of one head in a page.
  std::size_t ValueOffset(std::int64_t layer, std::int64_t kv_head) const {
    return HeadBytes() * static_cast<std::size_t>((layer * 2 + 1) * num_kv_heads + kv_head);
  }
  // Byte offset of the scales, bf16 [page_tokens], from the K or V of their head. REQUIRES: has_scales().
  std::size_t ScalesOffset() const { return static_cast<std::size_t>(head_dim * page_tokens); }
  // Pages of a sequence of `tokens` positions.
  std::int64_t PagesFor(std::int64_t tokens) const { return state_pages + (tokens + page_tokens - 1) / page_tokens; }
  // Floats of states that a page holds.
  std::int64_t StateFloats() const { return static_cast<std::int64_t>(PageBytes() / sizeof(float)); }

 private:
  // Bytes of K or V of one head: of a position, and in a page.
  std::size_t HeadBytesPerToken() const {
    return static_cast<std::size_t>(head_dim) * DTypeSize(dtype) + (has_scales() ? DTypeSize(DType::kBF16) : 0);
  }
  std::size_t HeadBytes() const { return HeadBytesPerToken() * static_cast<std::size_t>(page_tokens); }
};

}  // namespace loramux
