#include "model/packer.h"

#include <algorithm>
#include <vector>

#include "quant/quantise.h"
#include "tensor/group_panel.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

// Where all of the matrices lie as panels, one after the other; empty if they do not.
std::span<const std::byte> MappedPanels(std::initializer_list<LinearTensors> linears,
                                        std::span<const PackedMatrix::Part> parts) {
  std::span<const std::byte> all;
  bool whole = true;  // the last panel so far has no filling
  auto part = parts.begin();
  for (const LinearTensors& linear : linears) {
    const std::span<const std::byte> panels = linear.weight->Panels();
    const bool follows = all.empty() || (whole && all.data() + all.size() == panels.data());
    if (panels.empty() || !follows || part->format != linear.weight->format()) return {};
    all = {all.empty() ? panels.data() : all.data(), all.size() + panels.size()};
    whole = part++->rows % kPanelOutputs == 0;
  }
  return all;
}

// Rows [row, row + rows) of a matrix become output rows from `to` on. Outputs share no byte.
void PackPiece(const StoredMatrix& from, std::int64_t row, std::int64_t rows, WeightFormat format, std::int64_t to,
               PackedMatrix& matrix) {
  const std::span<const std::byte> raw = from.Raw(row, rows);
  if (from.format() == format) {
    if (IsQuantised(format)) return matrix.PackGroups(to, from.ReadGroups(row, rows));
    if (!raw.empty()) return matrix.PackRows(to, rows, raw.data());
  }
  std::vector<float> floats(static_cast<std::size_t>(rows * from.columns()));
  from.ReadFloats(row, rows, floats.data());
  if (IsQuantised(format)) return matrix.PackGroups(to, Quantise(format, floats.data(), rows, from.columns()));
  const DType dtype = DTypeOf(format);
  std::vector<std::byte> elements(floats.size() * DTypeSize(dtype));
  for (std::size_t i = 0; i < floats.size(); ++i) {
    StoreFromF32(dtype, elements.data(), static_cast<std::int64_t>(i), floats[i]);
  }
  matrix.PackRows(to, rows, elements.data());
}

}  // namespace

PackedMatrix Packer::Matrix(std::initializer_list<LinearTensors> linears, std::optional<WeightFormat> format) {
  std::vector<PackedMatrix::Part> parts;
  for (const LinearTensors& linear : linears) {
    parts.push_back({linear.weight->rows(), format.value_or(linear.weight->format())});
  }
  if (!PackedMatrix::ArePanels(parts)) {
    for (PackedMatrix::Part& part : parts) part.format = WeightFormat::kF32;
  }
  const std::span<const std::byte> mapped = MappedPanels(linears, parts);
  if (!mapped.empty()) {
    for (const LinearTensors& linear : linears) Report(linear.weight->bytes());
    const StoredMatrix& first = *linears.begin()->weight;
    return PackedMatrix(parts, first.columns(), mapped, first.Owner());
  }
  PackedMatrix matrix(parts, linears.begin()->weight->columns());
  std::int64_t row = 0;
  auto part = parts.begin();
  for (const LinearTensors& linear : linears) {
    Pack(*linear.weight, row, *part++, matrix);
    row += linear.weight->rows();
  }
  return matrix;
}

void Packer::Report(std::int64_t bytes) {
  done_ += bytes;
  if (progress_) progress_(done_, total_);
}

void Packer::Pack(const StoredMatrix& from, std::int64_t first_row, const PackedMatrix::Part& part,
                  PackedMatrix& matrix) {
  // A task's rows as floats are a megabyte or less.
  const std::int64_t piece = std::max<std::int64_t>(1, (std::int64_t{256} << 10) / from.columns());
  const std::int64_t pieces = (part.rows + piece - 1) / piece;
  constexpr std::int64_t kRound = 64;  // between reports
  const std::int64_t before = done_;
  for (std::int64_t begin = 0; begin < pieces; begin += kRound) {
    const std::int64_t end = std::min(pieces, begin + kRound);
    pool_.Run(end - begin, [&](std::int64_t task, int) {
      const std::int64_t row = (begin + task) * piece;
      PackPiece(from, row, std::min(piece, part.rows - row), part.format, first_row + row, matrix);
    });
    done_ = before + from.bytes() / pieces * end;
    if (end == pieces) done_ = before + from.bytes();
    if (progress_) progress_(done_, total_);
  }
}

}  // namespace loramux
