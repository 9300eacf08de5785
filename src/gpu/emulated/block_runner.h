// Runs the blocks of a launch on the calling thread: one fiber for each CUDA thread that has to wait for another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "gpu/emulated/device_memory.h"
#include "gpu/emulated/emulated_kernels.h"

namespace loramux::gpu {

// What all blocks of a launch share.
struct BlockLaunch {
  EmulatedKernel kernel;
  const void* arguments = nullptr;
  GridSize grid;
  std::uint32_t threads = 0;
  std::size_t shared_bytes = 0;
  std::uint64_t seed = 0;  // order of lanes and warps; 0: ascending
  const MemoryMap* memory = nullptr;
  mutable char start = 0, end = 0;  // for ThreadSanitizer: before its blocks, and after
};

// Each thread of the operating system has one. It keeps its fibers.
class BlockRunner {
 public:
  static BlockRunner& OfThisThread();
  BlockRunner();
  ~BlockRunner();
  BlockRunner(const BlockRunner&) = delete;
  BlockRunner& operator=(const BlockRunner&) = delete;

  // Before a launch, on the thread that has it. The blocks may then run on several.
  static void Start(const BlockLaunch& launch);
  // Runs a block. False: the kernel did something that it must not, fault() says what.
  // REQUIRES: the launch has been checked, and is the same object until Leave.
  bool Run(const BlockLaunch& launch, std::uint64_t block);
  // After the launch's last block on this thread. What blocks of this thread did to memory: one count for each watch;
  // empty if the launch does not count.
  std::vector<Traffic> Leave(const BlockLaunch& launch);
  const std::string& fault() const { return fault_; }

  struct State;

 private:
  State* state_;
  std::string fault_;
};

}  // namespace loramux::gpu
