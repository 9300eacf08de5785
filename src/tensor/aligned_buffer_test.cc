#include "tensor/aligned_buffer.h"

namespace loramux::aligned_buffer_test {
namespace {

TEST(AlignedBuffer, StartsAtACacheLine) {
  for (std::int64_t size : {1, 3, 17, 1000, 3 << 20}) {
    AlignedBuffer<float> buffer(size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % kCacheLineBytes, 0u);
    buffer[0] = 1;
    buffer[size - 1] = 2;
    EXPECT_EQ(buffer[size - 1], 2.0f);
  }
}

TEST(AlignedBuffer, ReserveKeepsMemoryThatIsLargeEnough) {
  AlignedBuffer<float> buffer(100);
  const float* before = buffer.data();
  buffer.Reserve(50);
  EXPECT_EQ(buffer.data(), before);
  EXPECT_EQ(buffer.capacity(), 100);
  buffer.Reserve(200);
  EXPECT_EQ(buffer.capacity(), 200);
}

}  // namespace
}  // namespace loramux::aligned_buffer_test
