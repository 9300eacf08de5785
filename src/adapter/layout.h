// Where the rows of an adapter lie in equal pages: layer-major, at true rank, rows never straddle a page (so a kernel
// reads each row in one piece), nothing is padded to a maximum rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "formats/adapter_config.h"
#include "formats/dtype.h"

namespace loramux {

// Rows start at multiples of this, so that vector loads are aligned.
inline constexpr std::size_t kAdapterRowAlignment = 64;

// One row: byte `offset` of the adapter's `page`-th page.
struct RowPlace {
  std::uint32_t page = 0;
  std::uint32_t offset = 0;
};

// The rows of one LoRA pair: `rank` rows of A ([in] elements each), then `rank` columns of B ([out] elements each).
struct ModulePlace {
  std::int32_t layer = 0;
  LoraTarget target = LoraTarget::kQ;
  std::int32_t rank = 0;
  float scale = 0;
  std::int64_t in = 0, out = 0;
  std::vector<RowPlace> a_rows, b_rows;  // size rank each
};

struct AdapterLayout {
  DType dtype = DType::kBF16;        // of the rows in memory
  std::vector<ModulePlace> modules;  // sorted by (layer, target)
  std::int64_t pages = 0;            // pages that the adapter takes
  // Of these, the first so many hold all rows of layers 0 to i; behind its last layer (and for lm_head): all pages.
  std::vector<std::int32_t> layer_pages;
  std::int64_t payload_bytes = 0;  // bytes of its elements
  std::int32_t max_rank = 0;
};

// Extents of one module, as LayoutAdapter needs them.
struct ModuleShape {
  std::int32_t layer = 0;
  LoraTarget target = LoraTarget::kQ;
  std::int32_t rank = 0;
  float scale = 0;
  std::int64_t in = 0, out = 0;
};

// Places rows in order: first fit in the current page, otherwise at the start of the next. Error (kResourceExhausted):
// a row is longer than a page.
Result<AdapterLayout> LayoutAdapter(const std::vector<ModuleShape>& modules, DType dtype, std::size_t page_bytes);

// The module shapes of an opened adapter.
std::vector<ModuleShape> ModuleShapes(const AdapterFile& file);

// The type that an adapter's rows get in memory: the file's own type where it is narrower than the base model's
// weights, else the base model's (as vLLM does); with an f32 base, whatever the file has. `widest` overrides.
DType ChooseAdapterDType(const AdapterFile& file, DType base_dtype);

// Writes the adapter's rows into its pages: converts each element to layout.dtype (round to nearest even) and
// transposes B. `pages[i]` is the first byte of the i-th page. Reads the file; may block on the disk. Errors: a value
// is not finite once converted, naming the tensor; what was read has not the digest that the adapter was opened with
// (its file was changed in place). After an error the pages' content is undefined. `cancelled` is asked between
// tensors: true ends it, with an error (kUnavailable).
Status PackAdapter(const AdapterFile& file, const AdapterLayout& layout, const std::vector<std::byte*>& pages,
                   std::size_t page_bytes, const std::function<bool()>& cancelled = {});

}  // namespace loramux
