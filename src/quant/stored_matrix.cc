#include "quant/stored_matrix.h"

#include <algorithm>

#include "base/check.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

class FloatMatrix : public StoredMatrix {
 public:
  explicit FloatMatrix(const StoredTensor& tensor)
      : StoredMatrix(tensor.name, tensor.ElementCount() / tensor.shape.back(), tensor.shape.back()), tensor_(tensor) {
    CHECK(IsWeightDType(tensor.dtype));
  }

  std::int64_t bytes() const override { return static_cast<std::int64_t>(tensor_.data.size()); }
  WeightFormat format() const override { return FormatOf(tensor_.dtype); }

  void ReadFloats(std::int64_t first, std::int64_t count, float* out) const override {
    const std::span<const std::byte> raw = Raw(first, count);
    for (std::int64_t i = 0; i < count * columns(); ++i) out[i] = LoadAsF32(tensor_.dtype, raw.data(), i);
  }

  GroupedRows ReadGroups(std::int64_t, std::int64_t) const override {
    CHECK(false);
    return {};
  }

  std::span<const std::byte> Raw(std::int64_t first, std::int64_t count) const override {
    const std::size_t row = static_cast<std::size_t>(columns()) * DTypeSize(tensor_.dtype);
    return tensor_.data.subspan(static_cast<std::size_t>(first) * row, static_cast<std::size_t>(count) * row);
  }

 private:
  const StoredTensor& tensor_;
};

class TransposedMatrices : public StoredMatrix {
 public:
  explicit TransposedMatrices(const StoredTensor& tensor)
      : StoredMatrix(tensor.name, tensor.shape[0] * tensor.shape[2], tensor.shape[1]), tensor_(tensor) {
    CHECK(IsWeightDType(tensor.dtype));
  }

  std::int64_t bytes() const override { return static_cast<std::int64_t>(tensor_.data.size()); }
  WeightFormat format() const override { return FormatOf(tensor_.dtype); }

  void ReadFloats(std::int64_t first, std::int64_t count, float* out) const override {
    const std::int64_t rows_of_one = tensor_.shape[2];
    for (std::int64_t row = first; row < first + count; ++row, out += columns()) {
      const std::int64_t begin = row / rows_of_one * columns() * rows_of_one + row % rows_of_one;
      for (std::int64_t t = 0; t < columns(); ++t) {
        out[t] = LoadAsF32(tensor_.dtype, tensor_.data.data(), begin + t * rows_of_one);
      }
    }
  }

  GroupedRows ReadGroups(std::int64_t, std::int64_t) const override {
    CHECK(false);
    return {};
  }

 private:
  const StoredTensor& tensor_;
};

// Some rows of another matrix.
class RowsMatrix : public StoredMatrix {
 public:
  RowsMatrix(std::shared_ptr<const StoredMatrix> whole, std::vector<std::int64_t> rows)
      : StoredMatrix(whole->name(), static_cast<std::int64_t>(rows.size()), whole->columns()),
        whole_(std::move(whole)),
        rows_(std::move(rows)) {}

  std::int64_t bytes() const override { return whole_->bytes() / whole_->rows() * rows(); }
  WeightFormat format() const override { return whole_->format(); }
  void ReadFloats(std::int64_t first, std::int64_t count, float* out) const override {
    ForEachRun(first, count, [&](std::int64_t row, std::int64_t rows) {
      whole_->ReadFloats(row, rows, out);
      out += rows * columns();
    });
  }
  GroupedRows ReadGroups(std::int64_t first, std::int64_t count) const override {
    return Gather(first, count, &StoredMatrix::ReadGroups);
  }
  std::optional<Kept> kept() const override { return whole_->kept(); }
  GroupedRows ReadKept(std::int64_t first, std::int64_t count) const override {
    return Gather(first, count, &StoredMatrix::ReadKept);
  }
  // Empty also if they do not follow each other.
  std::span<const std::byte> Raw(std::int64_t first, std::int64_t count) const override {
    std::span<const std::byte> found;
    ForEachRun(first, count, [&](std::int64_t row, std::int64_t rows) {
      if (rows == count) found = whole_->Raw(row, rows);
    });
    return found;
  }

 private:
  GroupedRows Gather(std::int64_t first, std::int64_t count,
                     GroupedRows (StoredMatrix::*read)(std::int64_t, std::int64_t) const) const {
    GroupedRows all;
    ForEachRun(first, count, [&](std::int64_t row, std::int64_t rows) {
      GroupedRows some = (*whole_.*read)(row, rows);
      if (all.codes.empty()) {
        all = std::move(some);
      } else {
        all.Append(some);
      }
    });
    return all;
  }
  // Calls fn(first row, count) for rows of the whole that follow each other.
  template <typename F>
  void ForEachRun(std::int64_t first, std::int64_t count, const F& fn) const {
    for (std::int64_t begin = first; begin < first + count;) {
      std::int64_t end = begin + 1;
      while (end < first + count && Row(end) == Row(end - 1) + 1) ++end;
      fn(Row(begin), end - begin);
      begin = end;
    }
  }
  std::int64_t Row(std::int64_t index) const { return rows_[static_cast<std::size_t>(index)]; }

  const std::shared_ptr<const StoredMatrix> whole_;
  const std::vector<std::int64_t> rows_;
};

class ColumnsMatrix : public StoredMatrix {
 public:
  ColumnsMatrix(std::shared_ptr<const StoredMatrix> whole, std::int64_t size, std::vector<std::int64_t> blocks)
      : StoredMatrix(whole->name(), whole->rows(), whole->columns()),
        whole_(std::move(whole)),
        size_(size),
        blocks_(std::move(blocks)) {
    CHECK_EQ(size_ * static_cast<std::int64_t>(blocks_.size()), columns());
    CHECK(!IsQuantised(format()) || size_ % kWeightGroup == 0);
  }

  std::int64_t bytes() const override { return whole_->bytes(); }
  WeightFormat format() const override { return whole_->format(); }
  void ReadFloats(std::int64_t first, std::int64_t count, float* out) const override {
    std::vector<float> stored(static_cast<std::size_t>(count * columns()));
    whole_->ReadFloats(first, count, stored.data());
    for (std::int64_t row = 0; row < count; ++row) Order(stored.data() + row * columns(), size_, out + row * columns());
  }
  GroupedRows ReadGroups(std::int64_t first, std::int64_t count) const override {
    return Reordered(whole_->ReadGroups(first, count), count);
  }
  // Blocks of columns that are no neighbours any more have their own scales.
  std::optional<Kept> kept() const override {
    std::optional<Kept> kept = whole_->kept();
    if (kept && kept->group < columns()) kept->group = kWeightGroup;
    return kept;
  }
  GroupedRows ReadKept(std::int64_t first, std::int64_t count) const override {
    return Reordered(whole_->ReadKept(first, count), count);
  }

 private:
  GroupedRows Reordered(const GroupedRows& stored, std::int64_t count) const {
    GroupedRows out = stored;
    for (std::int64_t row = 0; row < count; ++row) {
      Order(stored.CodesOf(row), size_, out.CodesOf(row));
      Order(stored.ScalesOf(row), size_ / kWeightGroup, out.ScalesOf(row));
      Order(stored.MinimumsOf(row), size_ / kWeightGroup, out.MinimumsOf(row));
    }
    return out;
  }
  // Copies one row whose blocks have `size` elements.
  template <typename T>
  void Order(const T* from, std::int64_t size, T* to) const {
    for (const std::int64_t block : blocks_) to = std::copy_n(from + block * size, size, to);
  }

  const std::shared_ptr<const StoredMatrix> whole_;
  const std::int64_t size_;
  const std::vector<std::int64_t> blocks_;
};

}  // namespace

std::shared_ptr<const StoredMatrix> ColumnsOfMatrix(std::shared_ptr<const StoredMatrix> matrix, std::int64_t size,
                                                    std::vector<std::int64_t> blocks) {
  return std::make_shared<const ColumnsMatrix>(std::move(matrix), size, std::move(blocks));
}

std::shared_ptr<const StoredMatrix> RowsOfMatrix(std::shared_ptr<const StoredMatrix> matrix,
                                                 std::vector<std::int64_t> rows) {
  return std::make_shared<const RowsMatrix>(std::move(matrix), std::move(rows));
}

std::unique_ptr<StoredMatrix> MakeFloatMatrix(const StoredTensor& tensor) {
  return std::make_unique<FloatMatrix>(tensor);
}

std::unique_ptr<StoredMatrix> MakeTransposedMatrices(const StoredTensor& tensor) {
  return std::make_unique<TransposedMatrices>(tensor);
}

std::vector<float> ToFloats(const StoredTensor& tensor) {
  std::vector<float> out(static_cast<std::size_t>(tensor.ElementCount()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = LoadAsF32(tensor.dtype, tensor.data.data(), static_cast<std::int64_t>(i));
  }
  return out;
}

bool SameValues(const StoredMatrix& a, const StoredMatrix& b) {
  if (a.rows() != b.rows() || a.columns() != b.columns()) return false;
  const std::span<const std::byte> raw_a = a.Raw(0, a.rows()), raw_b = b.Raw(0, b.rows());
  if (!raw_a.empty() && a.format() == b.format()) return std::ranges::equal(raw_a, raw_b);
  std::vector<float> row_a(static_cast<std::size_t>(a.columns())), row_b(row_a);
  for (std::int64_t row = 0; row < a.rows(); ++row) {
    a.ReadFloats(row, 1, row_a.data());
    b.ReadFloats(row, 1, row_b.data());
    if (row_a != row_b) return false;
  }
  return true;
}

}  // namespace loramux
