#include "memory/arena.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <sys/mman.h>

#include "base/check.h"

namespace loramux {
namespace {

// Huge pages reduce TLB misses: a decode step touches many scattered pages of the pool.
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

class HostArena final : public Arena {
 public:
  HostArena(std::byte* base, std::size_t mapped, std::int64_t bytes) : base_(base), mapped_(mapped), bytes_(bytes) {}
  ~HostArena() override { munmap(base_, mapped_); }
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;
  MemoryKind kind() const override { return MemoryKind::kHost; }
  std::byte* base() const override { return base_; }
  std::int64_t size() const override { return bytes_; }

 private:
  std::byte* base_;
  std::size_t mapped_;
  std::int64_t bytes_;
};

class EmptyArena final : public Arena {
 public:
  explicit EmptyArena(std::int64_t bytes) : bytes_(bytes) {}
  MemoryKind kind() const override { return MemoryKind::kNone; }
  std::byte* base() const override { return nullptr; }
  std::int64_t size() const override { return bytes_; }

 private:
  std::int64_t bytes_;
};

}  // namespace

Result<std::unique_ptr<Arena>> MapHostArena(std::string_view name, std::int64_t bytes) {
  CHECK_GT(bytes, 0);
  const std::size_t mapped = (static_cast<std::size_t>(bytes) + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return ResourceExhausted(std::string(name) + " memory: the system refused " + std::to_string(mapped) +
                             " bytes: " + std::strerror(errno));
  }
  madvise(base, mapped, MADV_HUGEPAGE);  // advice only: a failure is harmless
  return std::unique_ptr<Arena>(std::make_unique<HostArena>(static_cast<std::byte*>(base), mapped, bytes));
}

std::unique_ptr<Arena> ArenaWithoutBytes(std::int64_t bytes) { return std::make_unique<EmptyArena>(bytes); }

}  // namespace loramux
