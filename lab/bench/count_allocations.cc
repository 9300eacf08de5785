#include "lab/bench/count_allocations.h"

#include <cstdlib>
#include <new>

void* operator new(std::size_t bytes) {
  using namespace loramux;
  if (counting_allocations.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
