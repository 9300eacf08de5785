#include "adapter/layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

std::size_t RoundUp(std::size_t bytes, std::size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

// Assigns the places of rows in order.
class RowPlacer {
 public:
  explicit RowPlacer(std::size_t page_bytes) : page_bytes_(page_bytes) {}

  RowPlace Place(std::size_t row_bytes) {
    const std::size_t aligned = RoundUp(row_bytes, kAdapterRowAlignment);
    if (pages_ == 0 || offset_ + row_bytes > page_bytes_) {
      ++pages_;
      offset_ = 0;
    }
    const RowPlace place{static_cast<std::uint32_t>(pages_ - 1), static_cast<std::uint32_t>(offset_)};
    offset_ += aligned;
    return place;
  }
  std::int64_t pages() const { return pages_; }

 private:
  std::size_t page_bytes_;
  std::size_t offset_ = 0;
  std::int64_t pages_ = 0;
};

// Copies `count` elements, `stride` elements apart in the source, to a contiguous row of type `dtype`. Returns false if
// one of them is not finite in that type.
bool CopyRow(DType source_dtype, const std::byte* source, std::int64_t first, std::int64_t stride, std::int64_t count,
             DType dtype, std::byte* target) {
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    StoreFromF32(dtype, target, i, LoadAsF32(source_dtype, source, first + i * stride));
    finite &= std::isfinite(LoadAsF32(dtype, target, i));
  }
  return finite;
}

// Elements `first`, `first + stride`, ... as floats, for loops without a branch on the type.
void ReadRow(DType dtype, const std::byte* source, std::int64_t first, std::int64_t stride, std::span<float> row) {
  const auto read = [&](auto element) {
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = element(first + static_cast<std::int64_t>(i) * stride);
  };
  if (dtype != DType::kBF16) return read([&](std::int64_t at) { return LoadAsF32(dtype, source, at); });
  read([&](std::int64_t at) {
    std::uint16_t bits;
    std::memcpy(&bits, source + at * 2, 2);
    return BF16ToF32(bits);
  });
}

// CopyRow for rows in 8 bits: rounds to codes of `dtype` times a step, with which the largest magnitude has the largest
// code. Returns the step; NaN if an element is not finite.
float QuantiseRow(std::span<const float> row, DType dtype, std::byte* target) {
  const float most = dtype == DType::kI8 ? 127 : kLargestF8E4M3;
  float largest = 0;
  bool finite = true;
  for (const float value : row) {
    finite &= std::isfinite(value);
    largest = std::max(largest, std::abs(value));
  }
  if (!finite) return std::numeric_limits<float>::quiet_NaN();
  const float step = largest / most;
  // A step of 0 is a row of zeros, or of values that are no more than that beside float32's smallest.
  const auto code = [&](float value) { return step == 0 ? 0 : std::clamp(value / step, -most, most); };
  if (dtype == DType::kI8) {
    for (const float value : row)
      *target++ = static_cast<std::byte>(static_cast<std::int8_t>(std::lrintf(code(value))));
  } else {
    for (const float value : row) *target++ = static_cast<std::byte>(F32ToF8E4M3(code(value)));
  }
  return step;
}

// Rows are in the order of modules, so the pages of the first layers come first.
std::vector<std::int32_t> LayerPages(const AdapterLayout& layout) {
  std::vector<std::int32_t> pages;
  std::int32_t needed = 0;
  const auto need_own = [&](bool of_output) {
    for (const OwnPlace& own : layout.own) {
      if ((own.kind == OwnKind::kOutput) != of_output) continue;
      for (const RowPlace& row : own.rows) needed = std::max(needed, static_cast<std::int32_t>(row.page) + 1);
    }
  };
  need_own(false);
  for (const ModulePlace& module : layout.modules) {
    for (const auto* rows : {&module.a_rows, &module.b_rows, &module.vectors}) {
      for (const RowPlace& row : *rows) needed = std::max(needed, static_cast<std::int32_t>(row.page) + 1);
    }
    if (module.factors) needed = std::max(needed, static_cast<std::int32_t>(module.factors->page) + 1);
    if (module.target == LoraTarget::kLmHead && !pages.empty()) continue;  // used after the last layer
    const auto layer = static_cast<std::size_t>(module.layer);
    if (pages.size() <= layer) pages.resize(layer + 1, pages.empty() ? 0 : pages.back());
    pages[layer] = needed;
  }
  need_own(true);
  if (!pages.empty()) pages.back() = needed;
  return pages;
}

Error NotFinite(const AdapterFile& file, const TensorEntry& tensor, DType dtype) {
  return InvalidArgument(file.directory.string() + ": tensor " + tensor.name + " holds a value that is not finite as " +
                         DTypeName(dtype) + "; the adapter is damaged or was trained into overflow");
}

Error ChangedInPlace(const AdapterFile& file, const std::string& digest) {
  return InvalidArgument(file.directory.string() +
                         ": its weights were changed in place since the adapter was loaded (digest " + digest +
                         "); load the adapter again to serve the new weights, and replace adapter files by renaming");
}

// Error: it has what depends on more of the base model than a part of it.
Status CheckForParts(const AdapterFile& file) {
  std::string found;
  for (const LoraModule& module : file.modules) {
    if (module.has_vectors()) found = "a magnitude (DoRA) or a bias, which depends on the base model's whole layers";
  }
  for (const OwnPart& own : file.own) {
    if (own.whole) found = "a whole embedding or output matrix, which is compared with the base model's";
  }
  if (file.lm_head_base_copy != nullptr || file.embedding_base_copy != nullptr || !file.own_copies.empty()) {
    found = "copies of the base model's embedding or output matrix, which are compared with it";
  }
  if (found.empty()) return Ok{};
  return Unsupported(
      file.directory.string() + ": the adapter has " + found +
          "; a group of ranks (--tensor-parallel-size) serves LoRA, norms and rows of added tokens. Serve "
          "it by one process, or save it without",
      "lora_path");
}

Error RowTooLong(const char* name, std::size_t bytes, std::size_t page_bytes) {
  return ResourceExhausted(std::string("a row of ") + name + " takes " + std::to_string(bytes) +
                           " bytes, but a page has " + std::to_string(page_bytes) + "; raise --page-tokens");
}

// Places the parts that come before the modules, or after them.
Status PlaceOwn(std::span<const OwnPart> parts, bool of_output, std::size_t page_bytes, RowPlacer& placer,
                AdapterLayout& layout) {
  for (const OwnPart& part : parts) {
    if ((part.kind == OwnKind::kOutput) != of_output) continue;
    OwnPlace& own = layout.own.emplace_back(OwnPlace{.kind = part.kind, .layer = part.layer, .width = part.width()});
    const std::size_t bytes = static_cast<std::size_t>(own.width) * DTypeSize(OwnRowDType(part.kind, layout.dtype));
    if (bytes > page_bytes) return RowTooLong(OwnKindName(part.kind), bytes, page_bytes);
    for (const OwnRow& row : part.rows) {
      own.tokens.push_back(row.token);
      own.rows.push_back(placer.Place(bytes));
    }
    layout.payload_bytes += static_cast<std::int64_t>(bytes * part.rows.size());
  }
  return Ok{};
}

// Writes rows of the parts that an adapter brings, as they are read: each tensor from its first row on.
class OwnPacker {
 public:
  OwnPacker(const AdapterFile& file, const AdapterLayout& layout, const std::vector<std::byte*>& pages)
      : file_(file), layout_(layout), pages_(pages) {}

  // The rows from `first` on of a part's tensor. Error: one is not finite as the layout's type.
  Status Pack(std::size_t index, std::int64_t first, std::span<const std::byte> data) {
    const OwnPart& part = file_.own[index];
    const OwnPlace& place = layout_.own[index];
    if (index != index_) Begin(index);
    const std::size_t row_bytes = static_cast<std::size_t>(place.width) * DTypeSize(part.tensor->dtype);
    const DType dtype = OwnRowDType(part.kind, layout_.dtype);
    const auto end = first + static_cast<std::int64_t>(data.size() / std::max<std::size_t>(1, row_bytes));
    for (; next_ < by_row_.size() && part.rows[by_row_[next_]].row < end; ++next_) {
      const RowPlace to = place.rows[by_row_[next_]];
      const std::int64_t at = (part.rows[by_row_[next_]].row - first) * place.width;
      if (!CopyRow(part.tensor->dtype, data.data(), at, 1, place.width, dtype, pages_[to.page] + to.offset)) {
        return NotFinite(file_, *part.tensor, dtype);
      }
    }
    return Ok{};
  }

 private:
  void Begin(std::size_t index) {
    const OwnPart& part = file_.own[index];
    index_ = index;
    next_ = 0;
    by_row_.resize(part.rows.size());
    std::iota(by_row_.begin(), by_row_.end(), std::size_t{0});
    std::ranges::sort(by_row_, {}, [&](std::size_t i) { return part.rows[i].row; });
  }

  const AdapterFile& file_;
  const AdapterLayout& layout_;
  const std::vector<std::byte*>& pages_;
  std::vector<std::size_t> by_row_;          // indices of the part's rows, in the order of the tensor
  std::size_t index_ = SIZE_MAX, next_ = 0;  // index of the part; of its next row in by_row_
};

// Writes rows of modules, as their tensors are read.
class ModulePacker {
 public:
  ModulePacker(const AdapterFile& file, const AdapterLayout& layout, const std::vector<std::byte*>& pages,
               std::size_t page_bytes)
      : file_(file), layout_(layout), pages_(pages), page_bytes_(page_bytes) {}

  // Writes A or B of a module, or this rank's part of B. Error: a value is not finite as the layout's type.
  Status Pack(std::size_t m, const TensorEntry& tensor, std::span<const std::byte> data) {
    const ModulePlace& place = layout_.modules[m];
    const bool is_a = &tensor == file_.modules[m].a;
    if (!is_a && &tensor != file_.modules[m].b) return Ok{};  // the vectors were made of it
    const std::int64_t all = is_a ? place.in : file_.modules[m].out(), first_row = is_a ? 0 : place.first_out;
    const std::int64_t count = is_a ? all : std::min(place.out, all - first_row);
    float* const factors =
        place.factors ? reinterpret_cast<float*>(pages_[place.factors->page] + place.factors->offset) : nullptr;
    for (std::int32_t j = 0; j < place.rank; ++j) {
      const RowPlace row = (is_a ? place.a_rows : place.b_rows)[static_cast<std::size_t>(j)];
      CHECK_LE(row.offset + static_cast<std::size_t>(count) * DTypeSize(layout_.dtype), page_bytes_);
      const std::int64_t begin = is_a ? j * place.in : j, stride = is_a ? 1 : place.rank;
      std::byte* const to = pages_[row.page] + row.offset;
      if (factors != nullptr) {
        // The step is that of the whole row, also for a rank's part of it.
        floats_.resize(static_cast<std::size_t>(all));
        codes_.resize(floats_.size());
        ReadRow(tensor.dtype, data.data(), begin, stride, floats_);
        const float step = QuantiseRow(floats_, layout_.dtype, codes_.data());
        std::memcpy(to, codes_.data() + first_row, static_cast<std::size_t>(count));
        factors[j] = is_a ? step : factors[j] * step;  // A comes before B
        if (!std::isfinite(step)) return NotFinite(file_, tensor, layout_.dtype);
      } else if (!CopyRow(tensor.dtype, data.data(), begin + first_row * stride, stride, count, layout_.dtype, to)) {
        return NotFinite(file_, tensor, layout_.dtype);
      }
    }
    return Ok{};
  }

 private:
  const AdapterFile& file_;
  const AdapterLayout& layout_;
  const std::vector<std::byte*>& pages_;
  const std::size_t page_bytes_;
  std::vector<float> floats_;     // a row of 8 bits before it is rounded
  std::vector<std::byte> codes_;  // and after
};

// Writes the vectors of a module.
void PackVectors(const ModuleVectors& vectors, const ModulePlace& place, const std::vector<std::byte*>& pages) {
  const auto pack = [&](const std::vector<float>& values, RowPlace row) {
    CHECK_EQ(static_cast<std::int64_t>(values.size()), place.out);
    std::memcpy(pages[row.page] + row.offset, values.data(), values.size() * sizeof(float));
  };
  pack(vectors.gains, place.vectors[0]);
  pack(vectors.shifts, place.vectors[1]);
}

// Whether joining adapters made float32 of the tensor to keep what they have.
bool IsWidened(const TensorEntry& tensor) {
  return tensor.view != nullptr && std::ranges::any_of(tensor.view->joined, [&](const TensorPart& part) {
           return part.factor != 1 || part.tensor.dtype != tensor.dtype;
         });
}

}  // namespace

Result<AdapterLayout> LayoutAdapter(const AdapterFile& file, DType dtype, std::size_t page_bytes) {
  return LayoutAdapter(ModuleShapes(file), dtype, page_bytes, file.own);
}

Result<AdapterLayout> LayoutAdapter(const AdapterFile& file, DType dtype, std::size_t page_bytes,
                                    const ModelConfig& model, const ModelPart& part) {
  if (part.whole()) return LayoutAdapter(file, dtype, page_bytes);
  RETURN_IF_ERROR(CheckForParts(file));
  std::vector<ModuleShape> shapes = ModuleShapes(file);
  for (ModuleShape& shape : shapes) {
    const OutputRange range = OutputsOf(part, model, shape.target, shape.layer, shape.expert);
    const bool shares = shape.target != LoraTarget::kEmbedding;  // whose outputs all ranks compute
    if (shares) {
      shape.out = range.room;
      shape.first_out = range.first;
    }
    if (shape.same_b < 0) continue;
    const ModuleShape& first = shapes[static_cast<std::size_t>(shape.same_b)];
    if (first.out != shape.out || first.first_out != shape.first_out) shape.same_b = -1;
  }
  return LayoutAdapter(shapes, dtype, page_bytes, file.own);
}

Result<AdapterLayout> LayoutAdapter(const std::vector<ModuleShape>& modules, DType dtype, std::size_t page_bytes,
                                    std::span<const OwnPart> own) {
  AdapterLayout layout;
  layout.dtype = dtype;
  RowPlacer placer(page_bytes);
  RETURN_IF_ERROR(PlaceOwn(own, /*of_output=*/false, page_bytes, placer, layout));
  const std::size_t element = DTypeSize(dtype);
  for (const ModuleShape& shape : modules) {
    const std::size_t a_bytes = static_cast<std::size_t>(shape.in) * element;
    const std::size_t b_bytes = static_cast<std::size_t>(shape.out) * element;
    const std::size_t vector_bytes = shape.has_vectors ? static_cast<std::size_t>(shape.out) * sizeof(float) : 0;
    const std::size_t factor_bytes =
        HasRowFactors(dtype) ? static_cast<std::size_t>(shape.rank) * sizeof(float) : 0;  // 0: there are none
    const std::size_t longest = std::max({a_bytes, b_bytes, vector_bytes, factor_bytes});
    if (longest > page_bytes) return RowTooLong(LoraTargetName(shape.target), longest, page_bytes);
    ModulePlace place{shape.layer, shape.target, shape.rank, shape.scale, shape.in,     shape.out,
                      {},          {},           {},         {},          shape.expert, shape.first_out};
    const auto place_rows = [&](std::size_t bytes, std::int32_t same, std::vector<RowPlace> ModulePlace::*rows) {
      if (same >= 0) {
        place.*rows = layout.modules[static_cast<std::size_t>(same)].*rows;
        return;
      }
      for (std::int32_t j = 0; j < shape.rank; ++j) (place.*rows).push_back(placer.Place(bytes));
      layout.payload_bytes += static_cast<std::int64_t>(bytes) * shape.rank;
    };
    place_rows(a_bytes, shape.same_a, &ModulePlace::a_rows);
    place_rows(b_bytes, shape.same_b, &ModulePlace::b_rows);
    if (factor_bytes > 0) place.factors = placer.Place(factor_bytes);
    if (shape.has_vectors) place.vectors = {placer.Place(vector_bytes), placer.Place(vector_bytes)};
    layout.payload_bytes += static_cast<std::int64_t>(factor_bytes) + 2 * static_cast<std::int64_t>(vector_bytes);
    layout.max_rank = std::max(layout.max_rank, shape.rank);
    layout.modules.push_back(std::move(place));
  }
  RETURN_IF_ERROR(PlaceOwn(own, /*of_output=*/true, page_bytes, placer, layout));
  layout.pages = placer.pages();
  layout.layer_pages = LayerPages(layout);
  return layout;
}

std::vector<ModuleShape> ModuleShapes(const AdapterFile& file) {
  std::vector<ModuleShape> shapes;
  shapes.reserve(file.modules.size());
  std::map<std::pair<std::int32_t, const TensorEntry*>, std::int32_t> first;  // by layer and tensor: the first module
  for (const LoraModule& module : file.modules) {
    ModuleShape& shape =
        shapes.emplace_back(ModuleShape{module.layer, module.target, module.rank, module.scale, module.in(),
                                        module.out(), module.has_vectors(), module.expert});
    const auto index = static_cast<std::int32_t>(shapes.size()) - 1;
    const auto same = [&](const TensorEntry* tensor) {
      if (tensor == nullptr) return -1;
      const auto [at, is_new] = first.try_emplace({module.layer, tensor}, index);
      return is_new ? -1 : at->second;
    };
    shape.same_a = same(module.a);
    shape.same_b = same(module.b);
  }
  return shapes;
}

DType ChooseAdapterDType(const AdapterFile& file, DType base_dtype) {
  std::size_t widest = 0;
  DType dtype = base_dtype;
  const auto widen = [&](const TensorEntry* tensor) {
    if (tensor == nullptr || DTypeSize(tensor->dtype) <= widest) return;
    widest = DTypeSize(tensor->dtype);
    dtype = tensor->dtype;
  };
  for (const LoraModule& module : file.modules) {
    if (module.a != nullptr && (IsWidened(*module.a) || IsWidened(*module.b))) return DType::kF32;
    widen(module.a);
    widen(module.b);
  }
  for (const OwnPart& own : file.own) {
    if (!IsNorm(own.kind)) widen(own.tensor);
  }
  return widest > DTypeSize(base_dtype) ? base_dtype : dtype;
}

const char* EightBitName(DType dtype) {
  CHECK(HasRowFactors(dtype));
  return dtype == DType::kI8 ? "int8" : "fp8";
}

std::string Describe(const RoundingError& error, DType dtype) {
  return fmt::format("{} is {:.2f} % off, {:.2f} % in the worst row", EightBitName(dtype), 100 * error.all,
                     100 * error.worst);
}

Result<RoundingError> ErrorInEightBits(const AdapterFile& file, DType dtype) {
  CHECK(HasRowFactors(dtype));
  double squares = 0, differences = 0, worst = 0;
  std::vector<float> row;
  std::vector<std::byte> codes;
  const auto measure = [&](std::size_t m, const TensorEntry& tensor, std::span<const std::byte> data) -> Status {
    const LoraModule& module = file.modules[m];
    const bool is_a = &tensor == module.a;
    if (!is_a && &tensor != module.b) return Ok{};
    const std::int64_t count = is_a ? module.in() : module.out(), stride = is_a ? 1 : module.rank;
    row.resize(static_cast<std::size_t>(count));
    codes.resize(row.size());
    for (std::int32_t j = 0; j < module.rank; ++j) {
      ReadRow(tensor.dtype, data.data(), is_a ? j * count : j, stride, row);
      const float step = QuantiseRow(row, dtype, codes.data());
      if (!std::isfinite(step)) return NotFinite(file, tensor, dtype);
      double of_row = 0, wrong = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        const double value = static_cast<double>(row[static_cast<std::size_t>(i)]);
        const double difference = value - static_cast<double>(step * LoadAsF32(dtype, codes.data(), i));
        of_row += value * value;
        wrong += difference * difference;
      }
      squares += of_row;
      differences += wrong;
      if (of_row > 0) worst = std::max(worst, wrong / of_row);
    }
    return Ok{};
  };
  RETURN_IF_ERROR(ScanAdapterTensors(file, measure));
  return RoundingError{squares == 0 ? 0 : std::sqrt(differences / squares), std::sqrt(worst)};
}

Status PackAdapter(const AdapterFile& file, const AdapterLayout& layout, const std::vector<std::byte*>& pages,
                   std::size_t page_bytes, const std::function<bool()>& cancelled,
                   const std::function<void(std::int32_t)>& arrived) {
  CHECK_EQ(file.modules.size(), layout.modules.size());
  CHECK_EQ(file.own.size(), layout.own.size());
  CHECK_EQ(static_cast<std::int64_t>(pages.size()), layout.pages);
  for (std::size_t m = 0; m < layout.modules.size(); ++m) {
    if (!layout.modules[m].vectors.empty()) PackVectors(file.vectors.at(m), layout.modules[m], pages);
  }
  ModulePacker modules(file, layout, pages, page_bytes);
  const auto pack = [&](std::size_t m, const TensorEntry& tensor, std::span<const std::byte> data) -> Status {
    if (cancelled && cancelled()) return Unavailable("the load was cancelled");
    return modules.Pack(m, tensor, data);
  };
  std::size_t layer = 0;  // index among the layers that have modules
  const auto check = [&](std::size_t modules, const Sha256Digest& so_far) -> Status {
    if (layer >= file.layer_digests.size() || so_far != file.layer_digests[layer])
      return ChangedInPlace(file, "of the first " + std::to_string(modules) + " modules differs");
    ++layer;
    // Layers without modules in between have arrived too. The last one, with lm_head, comes with the end of the scan.
    if (modules < layout.modules.size() && layout.modules[modules].target != LoraTarget::kLmHead)
      arrived(layout.modules[modules].layer);
    return Ok{};
  };
  OwnPacker own(file, layout, pages);
  const auto pack_own = [&](std::size_t part, std::int64_t first, std::span<const std::byte> rows) -> Status {
    if (cancelled && cancelled()) return Unavailable("the load was cancelled");
    return own.Pack(part, first, rows);
  };
  const bool by_layer = arrived && !file.layer_digests.empty();
  ASSIGN_OR_RETURN(
      const std::string digest,
      ScanAdapterTensors(file, pack, by_layer ? AdapterLayerVisitor(check) : AdapterLayerVisitor(), pack_own));
  if (digest != file.digest) return ChangedInPlace(file, digest + ", expected " + file.digest);
  if (arrived) arrived(static_cast<std::int32_t>(layout.layer_pages.size()));
  return Ok{};
}

}  // namespace loramux
