// Memory for kernels, 64-byte aligned so that vectors do not straddle cache lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace loramux {

inline constexpr std::size_t kCacheLineBytes = 64;

// Allocates at least one byte, uninitialised; aborts the process if there is no memory. Large blocks are aligned to 2
// MiB and offered to the kernel for huge pages. Streaming weights touches each page once, and with 4 KiB pages the page
// table walks cost a measurable part of the bandwidth. The caller frees the memory with FreeAligned.
std::byte* AllocateAligned(std::size_t bytes);
// Frees memory from AllocateAligned; null is allowed.
void FreeAligned(std::byte* memory);

// Deleter for std::unique_ptr.
struct AlignedDelete {
  void operator()(const void* memory) const { FreeAligned(static_cast<std::byte*>(const_cast<void*>(memory))); }
};

// A growable scratch array of trivial elements, uninitialised. Movable; not thread-safe.
template <typename T>
class AlignedBuffer {
  static_assert(std::is_trivial_v<T>);

 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::int64_t size) { Reserve(size); }

  // Makes room for `size` elements. Allocates only if it grows; then the contents are lost.
  void Reserve(std::int64_t size) {
    if (size <= capacity_) return;
    data_.reset();
    data_.reset(reinterpret_cast<T*>(AllocateAligned(static_cast<std::size_t>(size) * sizeof(T))));
    capacity_ = size;
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::int64_t capacity() const { return capacity_; }
  T& operator[](std::int64_t i) { return data_.get()[i]; }
  const T& operator[](std::int64_t i) const { return data_.get()[i]; }

 private:
  std::unique_ptr<T[], AlignedDelete> data_;
  std::int64_t capacity_ = 0;
};

}  // namespace loramux
