#include "model/part_exchange.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace loramux {

void PartExchange::Begin(Collectives* group) {
  CHECK_EQ(group == nullptr, whole());
  group_ = group;
  error_.reset();
  if (group == nullptr) return;
  CHECK_EQ(group->rank(), part_.rank);
  CHECK_EQ(group->ranks(), part_.ranks);
}

void PartExchange::Gather(bool to_root) {
  const std::int64_t total = std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{0});
  all_.resize(to_root && part_.rank > 0 ? 0 : static_cast<std::size_t>(total));
  const Status status = to_root ? group_->Gather(mine_, sizes_, all_) : group_->AllGather(mine_, sizes_, all_);
  if (status.ok()) return;
  if (!error_) error_ = status.error();
  std::ranges::fill(all_, 0.0f);
}

void PartExchange::Columns(Rows mine, std::int64_t rows, std::int64_t total, Rows all, bool to_root) {
  sizes_.clear();
  for (std::int64_t rank = 0; rank < part_.ranks; ++rank) {
    sizes_.push_back(rows * RangeOf({rank, part_.ranks}, total).count);
  }
  const std::int64_t width = RangeOf(part_, total).count;
  mine_.resize(static_cast<std::size_t>(rows * width));
  for (std::int64_t row = 0; row < rows; ++row) std::copy_n(mine[row], width, mine_.data() + row * width);
  Gather(to_root);
  const float* from = all_.data();
  for (std::int64_t rank = 0; rank < part_.ranks && !all_.empty(); ++rank) {
    const OutputRange range = RangeOf({rank, part_.ranks}, total);
    for (std::int64_t row = 0; row < rows; ++row, from += range.count) {
      std::copy_n(from, range.count, all[row] + range.first);
    }
  }
}

Rows PartExchange::Whole(Rows mine, std::int64_t rows, std::int64_t total) {
  const std::int64_t stride = (total + 15) / 16 * 16;  // rows begin on cache lines
  whole_.Reserve(rows * stride);
  const Rows all = {whole_.data(), stride};
  Columns(mine, rows, total, all);
  return all;
}

void PartExchange::RowsOfOwners(const std::vector<std::int64_t>& owners, std::int64_t width, Rows rows) {
  sizes_.assign(static_cast<std::size_t>(part_.ranks), 0);
  for (const std::int64_t owner : owners) sizes_[static_cast<std::size_t>(owner)] += width;
  mine_.clear();
  const auto count = static_cast<std::int64_t>(owners.size());
  for (std::int64_t row = 0; row < count; ++row) {
    if (owners[static_cast<std::size_t>(row)] == part_.rank) mine_.insert(mine_.end(), rows[row], rows[row] + width);
  }
  Gather(/*to_root=*/false);
  std::vector<const float*> next(sizes_.size(), all_.data());
  for (std::size_t rank = 1; rank < next.size(); ++rank) next[rank] = next[rank - 1] + sizes_[rank - 1];
  for (std::int64_t row = 0; row < count; ++row) {
    const float*& from = next[static_cast<std::size_t>(owners[static_cast<std::size_t>(row)])];
    std::copy_n(from, width, rows[row]);
    from += width;
  }
}

}  // namespace loramux
