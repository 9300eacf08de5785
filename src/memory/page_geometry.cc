#include "memory/page_geometry.h"

#include <algorithm>

#include "base/check.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxPageBytes = std::size_t{640} << 10;

std::size_t LongestAdapterRowBytes(const ModelConfig& model, DType dtype) {
  const std::int64_t states = model.recurrent ? model.MostQkvDim() : 0;
  const std::int64_t elements =
      std::max({model.hidden_size, model.MostBlockSize(), model.MostQDim(), model.vocab_size, states});
  return static_cast<std::size_t>(elements) * DTypeSize(dtype);
}

}  // namespace

KvLayout KvLayoutOf(const ModelConfig& model, std::int64_t page_tokens, DType dtype) {
  KvLayout layout = {.num_layers = model.KvLayers(),
                     .num_kv_heads = model.num_kv_heads,
                     .head_dim = model.head_dim,
                     .page_tokens = page_tokens,
                     .dtype = dtype};
  if (!model.recurrent) return layout;
  const std::int64_t page_bytes = layout.StateFloats() * static_cast<std::int64_t>(sizeof(float));
  layout.state_pages = (model.recurrent->StateBytes() + page_bytes - 1) / page_bytes;
  return layout;
}

PageGeometry ChoosePageGeometry(const ModelConfig& model, DType kv_dtype, std::int64_t page_tokens, DType row_dtype) {
  PageGeometry geometry;
  geometry.kv = KvLayoutOf(model, page_tokens == 0 ? 16 : page_tokens, kv_dtype);
  if (page_tokens == 0) {
    while (geometry.kv.page_tokens > 4 && geometry.kv.PageBytes() > kMaxPageBytes) geometry.kv.page_tokens /= 2;
    const std::size_t row = LongestAdapterRowBytes(model, geometry.kv.has_scales() ? row_dtype : kv_dtype);
    while (geometry.kv.page_tokens < 64 && geometry.kv.PageBytes() < row) geometry.kv.page_tokens *= 2;
  } else {
    CHECK(page_tokens == 4 || page_tokens == 8 || page_tokens == 16 || page_tokens == 32 || page_tokens == 64);
  }
  geometry.kv = KvLayoutOf(model, geometry.kv.page_tokens, kv_dtype);  // with the states' pages of that size
  geometry.page_bytes = static_cast<std::int64_t>((geometry.kv.PageBytes() + 63) / 64 * 64);
  return geometry;
}

}  // namespace loramux
