#include "quant/panel_matrix.h"

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "tensor/aligned_buffer.h"
#include "tensor/group_panel.h"

namespace loramux {
namespace {

class PanelMatrix : public StoredMatrix {
 public:
  PanelMatrix(const StoredTensor& tensor, WeightFormat format, std::int64_t rows, std::int64_t columns,
              std::shared_ptr<const void> owner)
      : StoredMatrix(tensor.name, rows, columns), tensor_(tensor), format_(format), owner_(std::move(owner)) {}

  std::int64_t bytes() const override { return static_cast<std::int64_t>(tensor_.data.size()); }
  WeightFormat format() const override { return format_; }
  std::optional<Kept> kept() const override { return Kept{format_}; }

  void ReadFloats(std::int64_t first, std::int64_t count, float* out) const override {
    for (std::int64_t row = first; row < first + count; ++row, out += columns()) {
      UnpackGroupRow(format_, Panel(row), row % kPanelOutputs, columns(), out);
    }
  }

  GroupedRows ReadGroups(std::int64_t first, std::int64_t count) const override {
    GroupedRows out(format_, count, columns());
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t row = first + r;
      for (std::int64_t g = 0; g < out.groups(); ++g) {
        const OutputGroup group = ReadGroup(format_, Panel(row), row % kPanelOutputs, g);
        out.ScalesOf(r)[g] = group.scale;
        out.MinimumsOf(r)[g] = IsCentred(format_) ? -kQ8Zero * group.scale : group.minimum;
        std::memcpy(out.CodesOf(r) + g * kWeightGroup, group.codes, kWeightGroup);
      }
    }
    return out;
  }

  std::span<const std::byte> Panels() const override {
    const bool aligned = reinterpret_cast<std::uintptr_t>(tensor_.data.data()) % kCacheLineBytes == 0;
    return aligned ? tensor_.data : std::span<const std::byte>();
  }
  std::shared_ptr<const void> Owner() const override { return owner_; }

 private:
  const std::byte* Panel(std::int64_t row) const {
    return tensor_.data.data() + row / kPanelOutputs * PanelBytes(format_, columns());
  }

  const StoredTensor& tensor_;
  const WeightFormat format_;
  const std::shared_ptr<const void> owner_;
};

}  // namespace

Result<std::unique_ptr<StoredMatrix>> MakePanelMatrix(const StoredTensor& tensor, std::int64_t rows,
                                                      std::int64_t columns, std::shared_ptr<const void> owner) {
  std::string expected;
  for (const WeightFormat format : {WeightFormat::kQ8, WeightFormat::kQ4, WeightFormat::kMx4}) {
    const std::vector<std::int64_t> shape = {PanelsOf(rows), PanelBytes(format, columns)};
    if (tensor.dtype == DType::kU8 && tensor.shape == shape) {
      std::unique_ptr<StoredMatrix> matrix =
          std::make_unique<PanelMatrix>(tensor, format, rows, columns, std::move(owner));
      return matrix;
    }
    expected += (expected.empty() ? "" : " or ") + ShapeToString(shape) + " (" + WeightFormatName(format) + ")";
  }
  return InvalidArgument("tensor " + Quote(tensor.name) + ": expected U8 " + expected + " for a matrix of " +
                             ShapeToString(std::vector<std::int64_t>{rows, columns}) + ", found " +
                             DTypeName(tensor.dtype) + " " + ShapeToString(tensor.shape),
                         tensor.name);
}

}  // namespace loramux
