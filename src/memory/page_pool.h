// The memory pool of one tier (device or host): one arena of pages of equal size with one free list. The arena comes
// from the tier's device (memory/arena.h). KV pages and adapters share it, without a fixed split, contiguous runs or
// compaction (architecture.md, Memory). The idea is S-LoRA's unified paging and FastLibra's unified pool (section 4.1).
// The pool knows sizes and categories of owners, not the content of pages.
//
// Not thread-safe: only the engine thread allocates and frees. The bytes of an allocated page belong to the holder of
// its handle, on any thread.
//
// Invariants (CheckIntegrity): every page is either on the free list once, or allocated to one category. Freeing a page
// changes its generation, so that a stale handle is detected.
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
#include "memory/arena.h"
#include "tensor/page_arena.h"

namespace loramux {

// The owner of a page.
enum class PageCategory : std::uint8_t { kKv, kAdapter };
inline constexpr int kNumPageCategories = 2;

// Names one allocation of one page. The generation is odd while the page is allocated and is not reused for the same
// index (for 2^31 allocations). So using a handle after its page was freed is detected.
struct PageHandle {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  friend bool operator==(PageHandle, PageHandle) = default;
};

// The state of a pool.
struct PoolStats {
  std::int64_t capacity_pages = 0;
  std::int64_t free_pages = 0;
  std::array<std::int64_t, kNumPageCategories> used_pages = {};
  std::int64_t page_bytes = 0;
  std::int64_t allocations = 0;  // pages allocated since the start
  std::int64_t used(PageCategory category) const { return used_pages[static_cast<std::size_t>(category)]; }
};

// The pool; see the top of this file.
class PagePool {
 public:
  // Divides `arena` into floor(size / page_bytes) pages and owns it. `name` appears in errors. REQUIRES: page_bytes is
  // a positive multiple of 64. Error: not even one page fits, or more than a 32-bit index can address.
  static Result<std::unique_ptr<PagePool>> Create(std::string name, std::unique_ptr<Arena> arena,
                                                  std::int64_t page_bytes);
  // The same over host memory of `capacity_bytes` bytes (MapHostArena). Error also: the system refuses the memory.
  static Result<std::unique_ptr<PagePool>> Create(std::string name, std::int64_t capacity_bytes,
                                                  std::int64_t page_bytes);
  // A pool of no pages, for a tier that is not there. REQUIRES: as above.
  static std::unique_ptr<PagePool> WithoutPages(std::int64_t page_bytes);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Allocates all of `out` or nothing; returns false if fewer than out.size() pages are free. Constant time for each
  // page, no heap allocation.
  [[nodiscard]] bool Allocate(PageCategory category, std::span<PageHandle> out);
  // Frees the pages. REQUIRES: every handle is current and of `category`.
  void Free(PageCategory category, std::span<const PageHandle> handles);

  // The first byte of a page, in the arena's kind of memory. REQUIRES: the handle is current, and the arena has bytes.
  std::byte* Data(PageHandle handle) const;
  // Whether the handle names a page that is still allocated under it.
  bool IsCurrent(PageHandle handle) const {
    return handle.index < generation_.size() && generation_[handle.index] == handle.generation &&
           (handle.generation & 1u) != 0;
  }

  std::int64_t capacity_pages() const { return static_cast<std::int64_t>(generation_.size()); }
  std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t page_bytes() const { return page_bytes_; }
  // Who can read the pages.
  MemoryKind memory_kind() const { return arena_->kind(); }
  // The pages by index, for kernels and transfers; base is null if the arena has no bytes.
  PageArena View() const { return {arena_->base(), static_cast<std::size_t>(page_bytes_)}; }
  // The current state and counters.
  PoolStats Stats() const;

  // Aborts if the free list, the generations and the category counts disagree. Takes time proportional to the capacity.
  void CheckIntegrity() const;

 private:
  PagePool(std::unique_ptr<Arena> arena, std::int64_t pages, std::int64_t page_bytes);

  std::unique_ptr<Arena> arena_;
  std::int64_t page_bytes_;
  std::vector<std::uint32_t> generation_;  // per page; odd: allocated
  std::vector<PageCategory> category_;     // per page; meaningful while allocated
  std::vector<std::uint32_t> free_;        // a stack: the page freed last is in the CPU caches and is used first
  std::array<std::int64_t, kNumPageCategories> used_ = {};
  std::int64_t allocations_ = 0;
};

}  // namespace loramux
