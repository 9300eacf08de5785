// A weight matrix as a file stores it: in floats, or in one of the formats in which quantised models are published.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/dtype.h"
#include "formats/safetensors.h"
#include "tensor/grouped_rows.h"
#include "tensor/weight_format.h"

namespace loramux {

// A matrix W [rows, columns] = [outputs, inputs], in a file that outlives it. Immutable; thread-safe to read.
class StoredMatrix {
 public:
  StoredMatrix(std::string name, std::int64_t rows, std::int64_t columns)
      : name_(std::move(name)), rows_(rows), columns_(columns) {}
  virtual ~StoredMatrix() = default;

  // The name of its tensor, for messages.
  const std::string& name() const { return name_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }

  // Bytes in the file: what reading it costs.
  virtual std::int64_t bytes() const = 0;
  // The format that holds its values. Floats hold them as they are stored. kQ8 and kQ4 hold the stored integers
  // themselves; scales and minima are rounded to float16. What no format holds as integers (FP8, Q6_K) has the nearest
  // one of at least as many bits, and ReadGroups rounds.
  virtual WeightFormat format() const = 0;
  // Rows [first, first + count) as float32 [count, columns], as the format's own library computes them.
  virtual void ReadFloats(std::int64_t first, std::int64_t count, float* out) const = 0;
  // The same rows as groups of format(). REQUIRES: IsQuantised(format()).
  virtual GroupedRows ReadGroups(std::int64_t first, std::int64_t count) const = 0;
  // The form that a device can keep with the values as they are stored, and how many neighbouring inputs share a scale:
  // a multiple of kWeightGroup, or all. nullopt: there is none, such as for floats.
  struct Kept {
    WeightFormat format = WeightFormat::kQ8;
    std::int64_t group = kWeightGroup;
  };
  virtual std::optional<Kept> kept() const { return std::nullopt; }
  // The rows as groups of kept()->format. REQUIRES: kept().
  virtual GroupedRows ReadKept(std::int64_t first, std::int64_t count) const { return ReadGroups(first, count); }
  // The rows as they lie in the file, row-major in DTypeOf(format()); empty unless they lie there so.
  virtual std::span<const std::byte> Raw(std::int64_t /*first*/, std::int64_t /*count*/) const { return {}; }
  // The whole matrix in the panels of tensor/group_panel.h, 64-byte aligned; empty unless it lies in the file so.
  virtual std::span<const std::byte> Panels() const { return {}; }
  // What keeps Panels() mapped beyond the source; null without panels.
  virtual std::shared_ptr<const void> Owner() const { return nullptr; }

 private:
  std::string name_;
  std::int64_t rows_, columns_;
};

// A matrix of floats: a tensor of a safetensors file. With three extents, matrices one after the other. REQUIRES:
// IsWeightDType(tensor.dtype), two or three extents; `tensor` outlives it.
std::unique_ptr<StoredMatrix> MakeFloatMatrix(const StoredTensor& tensor);

// Matrices that a tensor [count, columns, rows] holds transposed, one after the other: [count * rows, columns].
// REQUIRES: as above, with three extents.
std::unique_ptr<StoredMatrix> MakeTransposedMatrices(const StoredTensor& tensor);

// The same matrix with its columns in another order: column block i, of `size` columns, is block `blocks[i]` of
// `matrix`. REQUIRES: if IsQuantised(matrix->format()), `size` is a multiple of kWeightGroup.
std::shared_ptr<const StoredMatrix> ColumnsOfMatrix(std::shared_ptr<const StoredMatrix> matrix, std::int64_t size,
                                                    std::vector<std::int64_t> blocks);

// Some rows of a matrix, in this order, as one of their own.
std::shared_ptr<const StoredMatrix> RowsOfMatrix(std::shared_ptr<const StoredMatrix> matrix,
                                                 std::vector<std::int64_t> rows);

// The elements of a tensor of floats as float32. REQUIRES: IsWeightDType(tensor.dtype).
std::vector<float> ToFloats(const StoredTensor& tensor);

// Whether two matrices have the same shape and the same values.
bool SameValues(const StoredMatrix& a, const StoredMatrix& b);

}  // namespace loramux
