// Chooses the size of the pool's pages for a model.
#pragma once

#include <cstdint>

#include "formats/model_config.h"
#include "tensor/kv_layout.h"

namespace loramux {

struct PageGeometry {
  KvLayout kv;                  // layout of a page that holds keys and values
  std::int64_t page_bytes = 0;  // size of every page of the pool: kv.PageBytes() rounded up to 64
};

// page_tokens 0 chooses: 16 positions a page, halved down to 4 while a page exceeds 640 KiB (so that adapters waste at
// most 5 % in their last page: adapter_test computes it), doubled up to 64 while the longest adapter row (lm_head's,
// one element per vocabulary entry) does not fit. Otherwise page_tokens must be 4, 8, 16, 32 or 64.
PageGeometry ChoosePageGeometry(const ModelConfig& model, DType kv_dtype, std::int64_t page_tokens = 0);

}  // namespace loramux
