// The memory of this machine.
#pragma once

#include <cstdint>

namespace loramux {

// Bytes of RAM.
std::int64_t MachineMemory();
// Bytes of RAM and swap: what a program cannot hold at all beyond.
std::int64_t MachineMemoryWithSwap();

}  // namespace loramux
