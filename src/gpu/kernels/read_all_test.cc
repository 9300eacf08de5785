#include "gpu/kernels/read_all.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "gpu/device_for_test.h"

namespace loramux::gpu::read_all_test {
namespace {

// The sum of `count` random pieces, read by `blocks` blocks, is the one that the processor counts.
void ExpectSum(std::int64_t count, std::uint32_t blocks) {
  Device& device = DeviceForTest();
  const std::int64_t bytes = count * 16, sum_bytes = blocks * 4;
  auto memory = std::move(device.Allocate("test", std::max<std::int64_t>(bytes, 16))).value();
  auto sums = std::move(device.Allocate("sums", sum_bytes)).value();
  auto host = std::move(device.AllocatePinned("host", bytes + sum_bytes)).value();
  auto stream = std::move(device.CreateStream()).value();
  Prng prng(static_cast<std::uint64_t>(count));
  auto* words = reinterpret_cast<std::uint32_t*>(host->base());
  std::uint32_t expected = 0;
  for (std::int64_t i = 0; i < count * 4; ++i) expected += words[i] = static_cast<std::uint32_t>(prng.Next());
  stream->CopyToDevice(memory->base(), host->base(), static_cast<std::size_t>(bytes));
  ReadAll(*stream, blocks, {memory->base(), count, reinterpret_cast<std::uint32_t*>(sums->base())});
  auto* read = reinterpret_cast<std::uint32_t*>(host->base() + bytes);
  stream->CopyToHost(read, sums->base(), static_cast<std::size_t>(sum_bytes));
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(std::accumulate(read, read + blocks, std::uint32_t{0}), expected) << count << " pieces";
}

TEST(ReadAll, SumsEveryWord) {
  ExpectSum(1, 1);
  ExpectSum(511, 3);
  ExpectSum(4096, 2);
  ExpectSum(20'001, 3);
}

}  // namespace
}  // namespace loramux::gpu::read_all_test
