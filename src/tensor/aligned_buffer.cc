#include "tensor/aligned_buffer.h"

#include <cstdlib>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "base/check.h"

namespace loramux {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

std::size_t RoundUp(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

std::byte* AllocateAligned(std::size_t bytes) {
  // From half a huge page on, rounding up at worst doubles a small matrix, while streaming it is about a fifth faster.
  const bool huge = bytes >= kHugePageBytes / 2;
  const std::size_t alignment = huge ? kHugePageBytes : kCacheLineBytes;
  const std::size_t rounded = RoundUp(bytes == 0 ? 1 : bytes, alignment);
  void* memory = std::aligned_alloc(alignment, rounded);
  CHECK(memory != nullptr);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  // Advice only: if it is refused, memory is only slower.
  if (huge) (void)madvise(memory, rounded, MADV_HUGEPAGE);
#endif
  return static_cast<std::byte*>(memory);
}

void FreeAligned(std::byte* memory) { std::free(memory); }

}  // namespace loramux
