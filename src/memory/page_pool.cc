#include "memory/page_pool.h"

#include <cerrno>
#include <cstring>
#include <limits>
#include <sys/mman.h>

#include "base/check.h"

namespace loramux {
namespace {

// Huge pages reduce TLB misses: a decode step touches many scattered pages of the pool.
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

}  // namespace

Result<std::unique_ptr<PagePool>> PagePool::Create(std::string name, std::int64_t capacity_bytes,
                                                   std::int64_t page_bytes) {
  CHECK_GT(page_bytes, 0);
  CHECK_EQ(page_bytes % 64, 0);
  const std::int64_t pages = capacity_bytes / page_bytes;
  if (pages < 1) {
    return ResourceExhausted(name + " memory: expected room for at least one page of " + std::to_string(page_bytes) +
                             " bytes, found " + std::to_string(capacity_bytes) + " bytes in all");
  }
  if (pages > std::numeric_limits<std::uint32_t>::max()) {
    return InvalidArgument(name + " memory: " + std::to_string(pages) +
                           " pages are more than a 32-bit index can address");
  }
  const std::size_t bytes = static_cast<std::size_t>(pages * page_bytes);
  const std::size_t mapped = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return ResourceExhausted(name + " memory: the system refused " + std::to_string(mapped) +
                             " bytes: " + std::strerror(errno));
  }
  madvise(base, mapped, MADV_HUGEPAGE);  // advice only: a failure is harmless
  return std::unique_ptr<PagePool>(
      new PagePool(std::move(name), static_cast<std::byte*>(base), mapped, pages, page_bytes));
}

PagePool::PagePool(std::string name, std::byte* base, std::size_t mapped_bytes, std::int64_t pages,
                   std::int64_t page_bytes)
    : name_(std::move(name)),
      base_(base),
      mapped_bytes_(mapped_bytes),
      page_bytes_(page_bytes),
      generation_(static_cast<std::size_t>(pages), 0),
      category_(static_cast<std::size_t>(pages), PageCategory::kKv) {
  free_.reserve(generation_.size());
  for (std::size_t i = generation_.size(); i-- > 0;) free_.push_back(static_cast<std::uint32_t>(i));
}

PagePool::~PagePool() { munmap(base_, mapped_bytes_); }

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
  return base_ + static_cast<std::size_t>(handle.index) * static_cast<std::size_t>(page_bytes_);
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
