#include "model/device_lora.h"

#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "gpu/open_device.h"
#include "model/lora_view.h"

namespace loramux::device_lora_test {
namespace {

class DeviceLoraTest : public ::testing::Test {
 protected:
  // Reads a table back.
  std::vector<std::byte> Read(const void* from, std::size_t bytes) {
    const auto host = device_->AllocatePinned("copy", static_cast<std::int64_t>(bytes)).value();
    stream_->CopyToHost(host->base(), from, bytes);
    EXPECT_TRUE(stream_->Synchronize().ok());
    return {host->base(), host->base() + bytes};
  }

  // Addresses that nothing reads.
  static std::vector<const std::byte*> Addresses(std::size_t count, std::uintptr_t first) {
    std::vector<const std::byte*> rows;
    for (std::size_t i = 0; i < count; ++i) rows.push_back(reinterpret_cast<const std::byte*>(first + 64 * i));
    return rows;
  }

  Status Place(std::size_t slot, std::int64_t layer, LoraTarget target, std::size_t rank) {
    const auto a = Addresses(rank, 4096), b = Addresses(rank, 1 << 20);
    const DeviceLoraRows module = {.layer = layer, .target = target, .scale = 2, .a_rows = a, .b_rows = b};
    Status status = tables_.Place(*stream_, slot, DType::kF16, {&module, 1});
    EXPECT_TRUE(stream_->Synchronize().ok());
    return status;
  }

  std::unique_ptr<Device> device_ = gpu::OpenDevice("emulated", {.memory = std::int64_t{16} << 20}).value();
  std::unique_ptr<DeviceStream> stream_ = device_->CreateStream().value();
  DeviceLoraTables tables_{*device_, {.num_layers = 3}};
};

TEST_F(DeviceLoraTest, TheTableSaysWhereRowsLie) {
  ASSERT_TRUE(Place(5, 1, LoraTarget::kO, 3).ok());
  const DeviceLoraView& view = tables_.View(5);
  EXPECT_EQ(view.max_rank, 3);
  EXPECT_EQ(view.dtype, DType::kF16);
  EXPECT_TRUE(view.Changes(1, LoraTarget::kO));
  EXPECT_FALSE(view.Changes(1, LoraTarget::kQ));
  EXPECT_FALSE(view.Changes(0, LoraTarget::kO));
  EXPECT_FALSE(view.Changes(0, LoraTarget::kLmHead));
  const std::vector<std::byte> bytes = Read(view.modules, 22 * sizeof(gpu::LoraModule));
  std::vector<gpu::LoraModule> modules(22);
  std::memcpy(modules.data(), bytes.data(), bytes.size());
  for (std::size_t i = 0; i < modules.size(); ++i) {
    EXPECT_EQ(modules[i].rank, i == LoraView::Index(1, LoraTarget::kO, 3) ? 3 : 0);
  }
  const gpu::LoraModule& module = modules[LoraView::Index(1, LoraTarget::kO, 3)];
  EXPECT_EQ(module.scale, 2);
  const std::vector<std::byte> rows = Read(module.b_rows, 3 * sizeof(void*));
  EXPECT_EQ(std::memcmp(rows.data(), Addresses(3, 1 << 20).data(), rows.size()), 0);
}

TEST_F(DeviceLoraTest, LmHeadBelongsToNoLayer) {
  ASSERT_TRUE(Place(0, 0, LoraTarget::kLmHead, 2).ok());
  EXPECT_TRUE(tables_.View(0).Changes(0, LoraTarget::kLmHead));
  EXPECT_EQ(tables_.View(0).targets, (std::vector<LayerTargets>{0, 0, 0, 1}));
}

TEST_F(DeviceLoraTest, MemoryOfReplacedTablesIsUsedAgain) {
  ASSERT_TRUE(Place(0, 0, LoraTarget::kQ, 8).ok());
  const gpu::LoraModule* const small = tables_.View(0).modules;
  ASSERT_TRUE(Place(0, 0, LoraTarget::kQ, 4000).ok());  // a larger block
  const gpu::LoraModule* const large = tables_.View(0).modules;
  EXPECT_NE(large, small);
  ASSERT_TRUE(Place(1, 0, LoraTarget::kQ, 8).ok());
  EXPECT_EQ(tables_.View(1).modules, small);
  ASSERT_TRUE(Place(0, 0, LoraTarget::kQ, 8).ok());  // fits into what the slot has
  EXPECT_EQ(tables_.View(0).modules, large);
  const std::int64_t bytes = tables_.bytes();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(Place(static_cast<std::size_t>(i % 3), 1, LoraTarget::kUp, 64).ok());
  EXPECT_EQ(tables_.bytes(), bytes);
}

TEST_F(DeviceLoraTest, NoMemoryIsAnErrorOfThatSlot) {
  ASSERT_TRUE(Place(0, 0, LoraTarget::kQ, 8).ok());
  std::size_t slot = 1;
  Status status = Ok{};
  while ((status = Place(slot, 0, LoraTarget::kQ, 4096)).ok()) ASSERT_LT(++slot, 1000u);
  EXPECT_EQ(status.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(status.error().message.find("tables of adapters"), std::string::npos) << status.error().message;
  EXPECT_EQ(tables_.View(0).max_rank, 8);
  EXPECT_TRUE(Place(0, 0, LoraTarget::kQ, 9).ok());
}

}  // namespace
}  // namespace loramux::device_lora_test
