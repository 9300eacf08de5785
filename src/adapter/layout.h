// The layout of an adapter's rows in pages of equal size. Rows are stored layer by layer at their true rank, without
// padding to a maximum rank. A row never straddles a page, so a kernel reads each row in one piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "formats/adapter_config.h"
#include "formats/dtype.h"
#include "formats/model_part.h"

namespace loramux {

// Alignment of rows in bytes, for vector loads.
inline constexpr std::size_t kAdapterRowAlignment = 64;

// The place of one row: byte `offset` of the adapter's page number `page`.
struct RowPlace {
  std::uint32_t page = 0;
  std::uint32_t offset = 0;
};

// The rows of one LoRA pair: `rank` rows of A with `in` elements each, then `rank` columns of B with `out` elements
// each; for rows in 8 bits, then a factor for each rank: `rank` float32; then the gains and shifts of its outputs, if
// it has any: `out` float32 each, whatever the layout's type. Of a rank's part, `out` is the room for its outputs, of
// which `first_out` is the first one of B.
struct ModulePlace {
  std::int32_t layer = 0;
  LoraTarget target = LoraTarget::kQ;
  std::int32_t rank = 0;
  float scale = 0;
  std::int64_t in = 0, out = 0;
  std::vector<RowPlace> a_rows, b_rows;  // `rank` entries each
  std::optional<RowPlace> factors;       // place of LoraWeights::factors
  std::vector<RowPlace> vectors;         // two entries, or none
  std::int32_t expert = -1;              // as LoraModule::expert
  std::int64_t first_out = 0;
};

// The rows of a matrix that the adapter brings (OwnPart), or a norm: one row. Of the type OwnRowDType gives.
struct OwnPlace {
  OwnKind kind = OwnKind::kEmbedding;
  std::int32_t layer = 0;
  std::int64_t width = 0;
  std::vector<TokenId> tokens;  // ascending
  std::vector<RowPlace> rows;   // a row for each of these tokens
};

// The layout of one adapter: own rows of the embedding and own norms, the modules, own rows of the output matrix.
struct AdapterLayout {
  DType dtype = DType::kBF16;        // type of the rows in memory
  std::vector<ModulePlace> modules;  // sorted as AdapterFile::modules
  std::vector<OwnPlace> own;         // as AdapterFile::own
  std::int64_t pages = 0;            // pages of the adapter
  // layer_pages[i]: the number of leading pages that hold all rows of layers 0 to i, and own rows and norms but those
  // of the output matrix. From the adapter's last layer on, and for lm_head, it is all pages.
  std::vector<std::int32_t> layer_pages;
  std::int64_t payload_bytes = 0;  // bytes of the elements, without alignment and page ends
  std::int32_t max_rank = 0;
};

// The extents of one module, the input of LayoutAdapter.
struct ModuleShape {
  std::int32_t layer = 0;
  LoraTarget target = LoraTarget::kQ;
  std::int32_t rank = 0;
  float scale = 0;
  std::int64_t in = 0, out = 0;
  bool has_vectors = false;
  std::int32_t expert = -1;  // as LoraModule::expert
  // The index of an earlier module of the layer that has the same A, or the same B; -1: none. Its rows serve both.
  std::int32_t same_a = -1, same_b = -1;
  std::int64_t first_out = 0;  // as ModulePlace::first_out
};

// Places the rows in order. A row goes into the current page if it fits, otherwise to the start of the next page. Error
// (kResourceExhausted): a row is longer than a page.
Result<AdapterLayout> LayoutAdapter(const std::vector<ModuleShape>& modules, DType dtype, std::size_t page_bytes,
                                    std::span<const OwnPart> own = {});
// The same of an opened adapter.
Result<AdapterLayout> LayoutAdapter(const AdapterFile& file, DType dtype, std::size_t page_bytes);
// The same of a rank's part of it: A is whole, and B has the rank's outputs. Pages and places are the same for all
// ranks. Error also (kUnsupported): what a part of the base model does not tell.
Result<AdapterLayout> LayoutAdapter(const AdapterFile& file, DType dtype, std::size_t page_bytes,
                                    const ModelConfig& model, const ModelPart& part);

// The module shapes of an opened adapter.
std::vector<ModuleShape> ModuleShapes(const AdapterFile& file);

// The type of an adapter's rows in memory. It is the file's type if that is narrower than the type of the base model's
// weights, otherwise the base model's (as in vLLM). With an f32 base model it is always the file's type. Joined
// adapters of different scales have float32 (formats/adapter_join.h).
DType ChooseAdapterDType(const AdapterFile& file, DType base_dtype);

// How far the elements of A and B are from what they are in 8 bits: the root of the mean square of the differences,
// relative to that of the elements.
struct RoundingError {
  double all = 0;    // error of all elements
  double worst = 0;  // error of the row of A or column of B where it is largest
};
// As in "int8 is 0.43 % off, 0.71 % in the worst row".
std::string Describe(const RoundingError& error, DType dtype);
// The name of a type of 8 bits in --lora-dtype: "int8" or "fp8". REQUIRES: HasRowFactors.
const char* EightBitName(DType dtype);
// The error of rows of `dtype`, which HasRowFactors. Reads the file. Errors: kIoError; a value is not finite (named).
Result<RoundingError> ErrorInEightBits(const AdapterFile& file, DType dtype);

// Writes the adapter's rows into its pages, and its vectors (REQUIRES: they were computed); `pages[i]` is the first
// byte of page i. Converts each element to layout.dtype (round to nearest even) and transposes B. In 8 bits, the
// largest magnitude of each row of A and column of B becomes the largest code. Reads the file and may block on the
// disk.
//
// Errors: a value is not finite after conversion (names the tensor); the bytes read do not have the digest with which
// the adapter was opened, because the file was changed in place. After an error the content of the pages is undefined.
// `cancelled` is called between tensors; if it returns true, the function ends with an error (kUnavailable).
// `arrived` is called with a number of layers, of layout.layer_pages.size(), once their rows are in the pages and the
// bytes that were read for them have the digest that they had when the adapter was opened (AdapterFile::layer_digests).
Status PackAdapter(const AdapterFile& file, const AdapterLayout& layout, const std::vector<std::byte*>& pages,
                   std::size_t page_bytes, const std::function<bool()>& cancelled = {},
                   const std::function<void(std::int32_t layers)>& arrived = {});

}  // namespace loramux
