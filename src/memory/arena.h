// A block of memory that a page pool divides into pages. A device brings an arena of its own; the pool, and everything
// that counts pages, stays the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/result.h"

namespace loramux {

// Who can read an arena's bytes.
enum class MemoryKind : std::uint8_t {
  kHost,    // the processor
  kPinned,  // the processor, and a device's copy engine without staging
  kDevice,  // a device alone: base() is an address on the device, and the processor must not read it
  kNone,    // nothing: the arena has a size but no bytes, for worlds that only count pages
};

// Owns the memory. Its properties never change.
class Arena {
 public:
  virtual ~Arena() = default;
  virtual MemoryKind kind() const = 0;
  // The first byte, aligned to 64 bytes; null for kNone.
  virtual std::byte* base() const = 0;
  // Unit: bytes.
  virtual std::int64_t size() const = 0;
};

// Host memory of `bytes` bytes: zeros, with huge pages where the system gives them. Physical memory is taken when a
// byte is first touched. `name` appears in the error. Error (kResourceExhausted): the system refuses. REQUIRES: bytes >
// 0.
Result<std::unique_ptr<Arena>> MapHostArena(std::string_view name, std::int64_t bytes);

// An arena of `bytes` bytes that has none (kNone), for simulations: it takes no address space.
std::unique_ptr<Arena> ArenaWithoutBytes(std::int64_t bytes);

}  // namespace loramux
