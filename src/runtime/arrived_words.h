// Words that say to kernels how much of a load is on the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/device.h"
#include "memory/arena.h"

namespace loramux {

// Counts of layers, one for each load in flight (gpu::PublishLayers writes it, gpu::DecideLayer reads it). They lie in
// pinned memory, so that the host can set one back to 0 for the next load without waiting for a stream. Thread-safe; a
// word outlives its load's readers, which hold it.
class ArrivedWords {
 public:
  // Takes no memory yet. The device outlives all words.
  explicit ArrivedWords(Device& device) : device_(device) {}
  ArrivedWords(const ArrivedWords&) = delete;
  ArrivedWords& operator=(const ArrivedWords&) = delete;

  // A word that is 0; null: no pinned memory is left.
  std::uint32_t* Take();
  // Gives the word back. REQUIRES: no work that was enqueued reads or writes it.
  void Give(std::uint32_t* word);

 private:
  // Each has a cache line of its own: the device writes it while the host takes others.
  static constexpr std::size_t kStride = 64, kWordsOfArena = 256;

  Device& device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<std::uint32_t*> free_;
};

}  // namespace loramux
