#include "kernels/matmul.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "base/check.h"
#include "tensor/half_float.h"

namespace loramux {

PackedMatrix::PackedMatrix(std::int64_t n, std::int64_t k, WeightFormat format)
    : PackedMatrix(std::initializer_list<Part>{{n, format}}, k) {}

PackedMatrix::PackedMatrix(std::span<const Part> parts, std::int64_t k) : k_(k) {
  PlacePanels(parts);
  std::shared_ptr<std::byte> memory(AllocateAligned(bytes_), FreeAligned);
  std::memset(memory.get(), 0, bytes_);
  data_ = memory.get();
  owner_ = std::move(memory);
}

PackedMatrix::PackedMatrix(std::span<const Part> parts, std::int64_t k, std::span<const std::byte> panels,
                           std::shared_ptr<const void> owner)
    : k_(k), data_(panels.data()), owner_(std::move(owner)) {
  PlacePanels(parts);
  CHECK(quantised());
  CHECK_EQ(panels.size(), bytes_);
  CHECK_EQ(reinterpret_cast<std::uintptr_t>(data_) % kCacheLineBytes, std::uintptr_t{0});
}

void PackedMatrix::PlacePanels(std::span<const Part> parts) {
  CHECK_GT(k_, 0);
  CHECK(ArePanels(parts));
  runs_.clear();
  for (const Part& part : parts) {
    CHECK_GT(part.rows, 0);
    if (runs_.empty() || runs_.back().format != part.format) {
      runs_.push_back({.first_panel = panels(),
                       .panel_bytes = kPanel * static_cast<std::int64_t>(WeightRowBytes(part.format, k_)),
                       .format = part.format});
    }
    n_ += part.rows;
  }
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    const std::int64_t end = run + 1 < runs_.size() ? runs_[run + 1].first_panel : panels();
    runs_[run].offset = static_cast<std::int64_t>(bytes_);
    bytes_ += static_cast<std::size_t>((end - runs_[run].first_panel) * runs_[run].panel_bytes);
  }
}

bool PackedMatrix::ArePanels(std::span<const Part> parts) {
  std::int64_t row = 0;
  for (std::size_t i = 0; i < parts.size(); row += parts[i++].rows) {
    if (parts[i].format == parts[0].format) {
      if (i == 0 || parts[i - 1].format == parts[i].format) continue;
    } else if (!IsQuantised(parts[i].format) || !IsQuantised(parts[0].format)) {
      return false;
    }
    if (parts[i - 1].format != parts[i].format && row % kPanel != 0) return false;
  }
  return true;
}

namespace {

// Rows of a source [rows, k] that go to one panel.
struct PanelRows {
  const std::byte* source;
  std::int64_t first_slot;  // output in the panel of the first row
  std::int64_t rows;
};

// Moves element (row, t) to [t][slot]. Works on a block of t at a time; its part of the panel (64 x 32 elements) stays
// in L1 for all rows. Elements are copied as bytes, since the source may be a mapped file at any address.
template <typename T>
void ScatterRows(const PanelRows& from, DType dtype, std::int64_t k, std::byte* panel) {
  constexpr std::int64_t kBlock = 64;
  for (std::int64_t begin = 0; begin < k; begin += kBlock) {
    const std::int64_t end = std::min(k, begin + kBlock);
    for (std::int64_t r = 0; r < from.rows; ++r) {
      const std::byte* row = from.source + r * k * static_cast<std::int64_t>(sizeof(T));
      T* to = reinterpret_cast<T*>(panel) + PackedMatrix::PanelSlot(dtype, from.first_slot + r);
      for (std::int64_t t = begin; t < end; ++t) {
        std::memcpy(to + t * PackedMatrix::kPanel, row + t * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
      }
    }
  }
}

}  // namespace

void PackedMatrix::PackRows(std::int64_t first_row, std::int64_t rows, const std::byte* source) {
  CHECK_GE(first_row, 0);
  CHECK_GE(rows, 0);
  CHECK_LE(first_row + rows, n_);
  const DType type = dtype();
  const std::int64_t row_bytes = k_ * static_cast<std::int64_t>(DTypeSize(type));
  for (std::int64_t r = 0; r < rows;) {
    const std::int64_t row = first_row + r;
    const PanelRows from = {source + r * row_bytes, row % kPanel, std::min(rows - r, kPanel - row % kPanel)};
    std::byte* to = MutablePanel(row / kPanel);
    if (type == DType::kF32) {
      ScatterRows<std::uint32_t>(from, type, k_, to);
    } else {
      ScatterRows<std::uint16_t>(from, type, k_, to);
    }
    r += from.rows;
  }
}

void PackedMatrix::PackGroups(std::int64_t first_row, const GroupedRows& source) {
  CHECK_GE(first_row, 0);
  CHECK_LE(first_row + source.rows, n_);
  CHECK_EQ(source.columns, k_);
  for (std::int64_t r = 0; r < source.rows; ++r) {
    const std::int64_t row = first_row + r, p = row / kPanel;
    CHECK(format(p) == source.format);
    PackGroupRow(source, r, row % kPanel, MutablePanel(p));
  }
}

void PackedMatrix::UnpackRow(std::int64_t row, float* out) const {
  CHECK_GE(row, 0);
  CHECK_LT(row, n_);
  const std::int64_t p = row / kPanel;
  if (quantised()) return UnpackGroupRow(format(p), panel(p), row % kPanel, k_, out);
  const DType type = dtype();
  const std::int64_t slot = PanelSlot(type, row % kPanel);
  for (std::int64_t t = 0; t < k_; ++t) out[t] = LoadAsF32(type, panel(p), t * kPanel + slot);
}

}  // namespace loramux
