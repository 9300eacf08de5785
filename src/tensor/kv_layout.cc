#include "tensor/kv_layout.h"

#include <string>

namespace loramux {

Status KvLayout::Validate() const {
  const bool page_ok =
      page_tokens == 4 || page_tokens == 8 || page_tokens == 16 || page_tokens == 32 || page_tokens == 64;
  if (!page_ok) {
    return InvalidArgument("page_tokens: expected 4, 8, 16, 32 or 64, found " + std::to_string(page_tokens),
                           "page_tokens");
  }
  if (!IsWeightDType(dtype) && dtype != DType::kI8) {
    return InvalidArgument(
        std::string("type of keys and values: expected f32, bf16, f16 or i8, found ") + DTypeName(dtype), "dtype");
  }
  if (num_layers <= 0 || num_kv_heads <= 0 || head_dim <= 0) {
    return InvalidArgument("expected positive numbers of layers and heads and a positive head dimension, found " +
                           std::to_string(num_layers) + " layers, " + std::to_string(num_kv_heads) +
                           " heads, dimension " + std::to_string(head_dim));
  }
  return Ok{};
}

}  // namespace loramux
