#include "runtime/arrived_words.h"

#include <atomic>
#include <utility>

namespace loramux {

std::uint32_t* ArrivedWords::Take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    auto arena = device_.AllocatePinned("the progress of loads", static_cast<std::int64_t>(kWordsOfArena * kStride));
    if (!arena.ok()) return nullptr;
    for (std::size_t i = kWordsOfArena; i-- > 0;)
      free_.push_back(reinterpret_cast<std::uint32_t*>((*arena)->base() + i * kStride));
    arenas_.push_back(std::move(arena).value());
  }
  std::uint32_t* const word = free_.back();
  free_.pop_back();
  std::atomic_ref(*word).store(0, std::memory_order_release);
  return word;
}

void ArrivedWords::Give(std::uint32_t* word) {
  const std::lock_guard lock(mutex_);
  free_.push_back(word);
}

}  // namespace loramux
