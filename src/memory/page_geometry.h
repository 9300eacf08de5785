// Chooses the page size of the pool for a model.
#pragma once

#include <cstdint>

#include "formats/model_config.h"
#include "tensor/kv_layout.h"

namespace loramux {

// The size and the KV layout of the pool's pages.
struct PageGeometry {
  KvLayout kv;                  // layout of a KV page
  std::int64_t page_bytes = 0;  // size of every page: kv.PageBytes() rounded up to 64
};

// The layout of the model's pages. Where a part of its layers is recurrent, the others alone have keys and values, and
// the states take whole pages.
KvLayout KvLayoutOf(const ModelConfig& model, std::int64_t page_tokens, DType dtype);

// Returns the geometry for `page_tokens` positions a page: 4, 8, 16, 32 or 64. With 0 it chooses. It starts at 16 and
// halves down to 4 while a page exceeds 640 KiB, so that adapters waste at most 5 % in their last page (computed by
// adapter_test). Then it doubles up to 64 while the longest adapter row does not fit. That is the row of lm_head, with
// one element for each vocabulary entry, of the type of the keys and values; if those are in 8 bits, of `row_dtype`,
// because adapters are not.
PageGeometry ChoosePageGeometry(const ModelConfig& model, DType kv_dtype, std::int64_t page_tokens = 0,
                                DType row_dtype = DType::kBF16);

}  // namespace loramux
