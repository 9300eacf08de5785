#include "memory/page_pool.h"

#include <limits>

#include "base/check.h"

namespace loramux {
namespace {

// The number of pages in `bytes`, or the error that PagePool::Create returns.
Result<std::int64_t> PagesIn(const std::string& name, std::int64_t bytes, std::int64_t page_bytes) {
  CHECK_GT(page_bytes, 0);
  CHECK_EQ(page_bytes % 64, 0);
  const std::int64_t pages = bytes / page_bytes;
  if (pages < 1) {
    return ResourceExhausted(name + " memory: expected room for at least one page of " + std::to_string(page_bytes) +
                             " bytes, found " + std::to_string(bytes) + " bytes in all");
  }
  if (pages > std::numeric_limits<std::uint32_t>::max()) {
    return InvalidArgument(name + " memory: " + std::to_string(pages) +
                           " pages are more than a 32-bit index can address");
  }
  return pages;
}

}  // namespace

Result<std::unique_ptr<PagePool>> PagePool::Create(std::string name, std::unique_ptr<Arena> arena,
                                                   std::int64_t page_bytes) {
  ASSIGN_OR_RETURN(const std::int64_t pages, PagesIn(name, arena->size(), page_bytes));
  return std::unique_ptr<PagePool>(new PagePool(std::move(arena), pages, page_bytes));
}

Result<std::unique_ptr<PagePool>> PagePool::Create(std::string name, std::int64_t capacity_bytes,
                                                   std::int64_t page_bytes) {
  ASSIGN_OR_RETURN(const std::int64_t pages, PagesIn(name, capacity_bytes, page_bytes));
  ASSIGN_OR_RETURN(std::unique_ptr<Arena> arena, MapHostArena(name, pages * page_bytes));
  return Create(std::move(name), std::move(arena), page_bytes);
}

std::unique_ptr<PagePool> PagePool::WithoutPages(std::int64_t page_bytes) {
  return std::unique_ptr<PagePool>(new PagePool(ArenaWithoutBytes(0), 0, page_bytes));
}

PagePool::PagePool(std::unique_ptr<Arena> arena, std::int64_t pages, std::int64_t page_bytes)
    : arena_(std::move(arena)),
      page_bytes_(page_bytes),
      generation_(static_cast<std::size_t>(pages), 0),
      category_(static_cast<std::size_t>(pages), PageCategory::kKv) {
  free_.reserve(generation_.size());
  for (std::size_t i = generation_.size(); i-- > 0;) free_.push_back(static_cast<std::uint32_t>(i));
}

bool PagePool::Allocate(PageCategory category, std::span<PageHandle> out) {
  if (out.size() > free_.size()) return false;
  for (PageHandle& handle : out) {
    const std::uint32_t index = free_.back();
    free_.pop_back();
    category_[index] = category;
    handle = {index, ++generation_[index]};
  }
  used_[static_cast<std::size_t>(category)] += static_cast<std::int64_t>(out.size());
  allocations_ += static_cast<std::int64_t>(out.size());
  return true;
}

void PagePool::Free(PageCategory category, std::span<const PageHandle> handles) {
  for (const PageHandle handle : handles) {
    CHECK(IsCurrent(handle));
    CHECK(category_[handle.index] == category);
    ++generation_[handle.index];
    free_.push_back(handle.index);
  }
  used_[static_cast<std::size_t>(category)] -= static_cast<std::int64_t>(handles.size());
}

std::byte* PagePool::Data(PageHandle handle) const {
  CHECK(IsCurrent(handle));
  CHECK(arena_->base() != nullptr);
  return View().Page(handle.index);
}

PoolStats PagePool::Stats() const {
  return {.capacity_pages = capacity_pages(),
          .free_pages = free_pages(),
          .used_pages = used_,
          .page_bytes = page_bytes_,
          .allocations = allocations_};
}

void PagePool::CheckIntegrity() const {
  std::vector<bool> on_free_list(generation_.size(), false);
  for (const std::uint32_t index : free_) {
    CHECK_LT(index, generation_.size());
    CHECK(!on_free_list[index]);
    CHECK_EQ(generation_[index] & 1u, 0u);
    on_free_list[index] = true;
  }
  std::array<std::int64_t, kNumPageCategories> counted = {};
  for (std::size_t i = 0; i < generation_.size(); ++i) {
    if ((generation_[i] & 1u) == 0) {
      CHECK(on_free_list[i]);
    } else {
      ++counted[static_cast<std::size_t>(category_[i])];
    }
  }
  CHECK(counted == used_);
}

}  // namespace loramux
