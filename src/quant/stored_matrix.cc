#include "quant/stored_matrix.h"

#include <algorithm>

#include "base/check.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

class FloatMatrix : public StoredMatrix {
 public:
  explicit FloatMatrix(const StoredTensor& tensor)
      : StoredMatrix(tensor.name, tensor.shape[0], tensor.shape[1]), tensor_(tensor) {
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

}  // namespace

std::unique_ptr<StoredMatrix> MakeFloatMatrix(const StoredTensor& tensor) {
  return std::make_unique<FloatMatrix>(tensor);
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
