// One arena of equal pages with one free list, for one tier (device or host). KV cache and adapters draw from it alike:
// no fixed split, no contiguous runs, no compaction (docs/design/architecture.md, Memory; the idea is S-LoRA's unified
// paging and FastLibra's unified pool, section 4.1). The pool knows sizes and owners' categories, not meanings.
//
// Not thread-safe: only the engine thread allocates and frees. The bytes of an allocated page belong to whoever holds
// its handle, on any thread.
//
// Invariants (CheckIntegrity): every page is either on the free list once, or allocated to one category; a freed page's
// generation has changed, so that a stale handle is caught.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace loramux {

enum class PageCategory : std::uint8_t { kKv, kAdapter };
inline constexpr int kNumPageCategories = 2;

// Names one allocation of one page. The generation is odd while allocated, and never comes back for the same index
// (2^31 reuses), so using a handle after its page was freed is detected.
struct PageHandle {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  friend bool operator==(PageHandle, PageHandle) = default;
};

struct PoolStats {
  std::int64_t capacity_pages = 0;
  std::int64_t free_pages = 0;
  std::array<std::int64_t, kNumPageCategories> used_pages = {};
  std::int64_t page_bytes = 0;
  std::int64_t allocations = 0;  // pages handed out since the start
  std::int64_t used(PageCategory category) const { return used_pages[static_cast<std::size_t>(category)]; }
};

class PagePool {
 public:
  // Reserves an arena of floor(capacity_bytes / page_bytes) pages; physical memory is taken when pages are first
  // touched. REQUIRES: page_bytes > 0, a multiple of 64. Error: no page would fit, or the system refuses the memory.
  static Result<std::unique_ptr<PagePool>> Create(std::string name, std::int64_t capacity_bytes,
                                                  std::int64_t page_bytes);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // All of `out` or nothing: false if fewer than out.size() pages are free. Constant time per page, no heap allocation.
  [[nodiscard]] bool Allocate(PageCategory category, std::span<PageHandle> out);
  // REQUIRES: every handle is current and of `category`.
  void Free(PageCategory category, std::span<const PageHandle> handles);

  // First byte of a page. REQUIRES: the handle is current.
  std::byte* Data(PageHandle handle) const;
  bool IsCurrent(PageHandle handle) const {
    return handle.index < generation_.size() && generation_[handle.index] == handle.generation &&
           (handle.generation & 1u) != 0;
  }

  std::int64_t capacity_pages() const { return static_cast<std::int64_t>(generation_.size()); }
  std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t page_bytes() const { return page_bytes_; }
  std::byte* base() const { return base_; }
  PoolStats Stats() const;

  // Aborts if the free list, the generations and the category counts disagree. O(capacity).
  void CheckIntegrity() const;

 private:
  PagePool(std::string name, std::byte* base, std::size_t mapped_bytes, std::int64_t pages, std::int64_t page_bytes);

  std::string name_;
  std::byte* base_;
  std::size_t mapped_bytes_;
  std::int64_t page_bytes_;
  std::vector<std::uint32_t> generation_;  // per page; odd: allocated
  std::vector<PageCategory> category_;     // per page; meaningful while allocated
  std::vector<std::uint32_t> free_;        // a stack: the page freed last is warm and is used first
  std::array<std::int64_t, kNumPageCategories> used_ = {};
  std::int64_t allocations_ = 0;
};

}  // namespace loramux
