#include "assist/assist_pool.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <latch>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "assist/assist_world_for_test.h"
#include "gpu/device_for_test.h"
#include "kernels/lora_sums.h"

namespace loramux::assist_pool_test {
namespace {

using World = AssistWorldForTest;
using Adapter = AssistedAdapterForTest;

// Answers may take as long as a busy machine lets them, where a test says nothing else.
std::unique_ptr<AssistPool> MakePool(Device& device, AssistOptions options) {
  if (options.timeout == AssistOptions().timeout) options.timeout = 60 * kNsPerSecond;
  Result<std::unique_ptr<AssistPool>> pool = AssistPool::Create(device, options);
  if (!pool.ok()) CheckFailed(__FILE__, __LINE__, pool.error().message);
  return std::move(pool).value();
}

AssistedSegment SegmentOf(const Adapter& adapter, std::int32_t first_row, std::int32_t rows, int workers = 1) {
  return {.first_row = first_row, .rows = rows, .modules = adapter.modules, .workers = workers};
}

// Rows of one adapter.
struct Part {
  const Adapter* adapter;
  std::int32_t first_row, rows;
};

std::vector<float> DeviceAlone(World& world, const std::vector<Part>& parts) {
  float* y = world.UploadY();
  for (std::int64_t layer = 0; layer < world.layout.layers; ++layer) {
    for (const Part& part : parts) {
      world.AddLayerOnDevice(world.arrays.stream(), y, layer, *part.adapter, part.first_row, part.rows);
    }
  }
  return world.DownloadY(y);
}

// All layers of all parts on the host. Appends the failures.
std::vector<float> Assisted(World& world, AssistPool& pool, const std::vector<Part>& parts, int workers,
                            std::vector<AssistFailure>& failures) {
  float* y = world.UploadY();
  pool.Begin();
  for (const Part& part : parts) {
    EXPECT_NE(pool.AddSegment(SegmentOf(*part.adapter, part.first_row, part.rows, workers)), nullptr);
  }
  EXPECT_TRUE(pool.Upload(world.arrays.stream()).ok());
  for (std::int64_t layer = 0; layer < world.layout.layers; ++layer) {
    world.AddLayerAssisted(world.arrays.stream(), pool, y, layer);
  }
  world.arrays.Synchronize();
  pool.End(failures);
  return world.DownloadY(y);
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Whether the device multiplies rows of this type with x by tensor cores, which sum in another order. A GPU's own
// multiply-adds round once, as the pool's do then.
bool SumsInAnotherOrder(DType x, DType rows) { return x == rows && x != DType::kF32; }

TEST(AssistPool, AnswersHaveTheDevicesBits) {
  Device& device = gpu::DeviceForTest();
  for (const DType x : {DType::kF32, DType::kBF16, DType::kF16}) {
    World world(device, SmallLayoutForTest(x, 1), 20, 1);
    const auto pool = MakePool(device, {.layout = world.layout, .workers = 2, .slots = 8});
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const auto adapter = world.AddAdapter(dtype, 9);
      const std::vector<Part> parts = {{adapter.get(), 1, 18}};
      const std::vector<float> expected = DeviceAlone(world, parts);
      std::vector<AssistFailure> failures;
      const std::vector<float> actual = Assisted(world, *pool, parts, 2, failures);
      EXPECT_TRUE(failures.empty());
      EXPECT_FALSE(SameBits(actual, world.y_before()));
      if (!SumsInAnotherOrder(x, dtype)) {
        EXPECT_TRUE(SameBits(actual, expected)) << DTypeName(x) << " " << DTypeName(dtype);
      }
      for (std::size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], 2e-3f) << i;
    }
    EXPECT_GT(pool->counts().answers, 0);
  }
}

// More inputs than one split, and than one block, of the device's sums.
TEST(AssistPool, WideInputsHaveTheDevicesBits) {
  Device& device = gpu::DeviceForTest();
  AssistLayout layout = SmallLayoutForTest(DType::kF32, 1);
  layout.shapes = {{{4700, 8}, {4700, 8}, {4700, 8}, {600, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}}};
  World world(device, layout, 3, 2);
  const auto adapter = world.AddAdapter(DType::kBF16, 5);
  const auto pool = MakePool(device, {.layout = layout, .workers = 1, .slots = 1});
  std::vector<AssistFailure> failures;
  const std::vector<Part> parts = {{adapter.get(), 0, 3}};
  EXPECT_TRUE(SameBits(Assisted(world, *pool, parts, 1, failures), DeviceAlone(world, parts)));
  EXPECT_TRUE(failures.empty());
}

// From each layer on, the device has the adapter: decided by what PublishLayers wrote, layer by layer.
TEST(AssistPool, HandsOverAtEveryLayer) {
  Device& device = gpu::DeviceForTest();
  constexpr std::int64_t kLayers = 3;
  World world(device, SmallLayoutForTest(DType::kF32, kLayers), 20, 3);
  const auto cold = world.AddAdapter(DType::kBF16, 6), other = world.AddAdapter(DType::kF32, 4);
  const auto pool = MakePool(device, {.layout = world.layout, .workers = 1, .slots = 4});
  const std::vector<float> expected = DeviceAlone(world, {{cold.get(), 0, 17}, {other.get(), 17, 3}});
  for (std::int64_t hand_over = 0; hand_over <= kLayers; ++hand_over) {
    std::uint32_t* arrived = world.arrays.Upload<std::uint32_t>({0});
    const auto log = device.AllocatePinned("gates", kLayers * 4).value();
    DeviceStream& stream = world.arrays.stream();
    float* y = world.UploadY();
    pool->Begin();
    AssistedSegment segment = SegmentOf(*cold, 0, 17);
    segment.arrived = arrived;
    const std::uint32_t* gate = pool->AddSegment(segment);
    ASSERT_NE(pool->AddSegment(SegmentOf(*other, 17, 3)), nullptr);  // never arrives
    ASSERT_TRUE(pool->Upload(stream).ok());
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      if (layer == hand_over) gpu::PublishLayers(stream, {arrived, kLayers});
      world.AddLayerAssisted(stream, *pool, y, layer);
      stream.CopyToHost(log->base() + layer * 4, gate, 4);
    }
    world.arrays.Synchronize();
    std::vector<AssistFailure> failures;
    pool->End(failures);
    EXPECT_TRUE(failures.empty());
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      const std::uint32_t chosen = reinterpret_cast<const std::uint32_t*>(log->base())[layer];
      EXPECT_EQ(chosen, layer < hand_over ? gpu::kAssistOnHost : gpu::kAssistOnDevice);
      if (chosen == gpu::kAssistOnDevice) world.AddLayerOnDevice(stream, y, layer, *cold, 0, 17);
    }
    EXPECT_TRUE(SameBits(world.DownloadY(y), expected)) << hand_over;
  }
}

// Layers arrive on another stream while the step runs: whatever the gates say, each layer is added once.
TEST(AssistPool, LayersMayArriveAtAnyMoment) {
  constexpr std::int64_t kLayers = 4;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const auto device = gpu::OpenDeviceForTest({});
    World world(*device, SmallLayoutForTest(DType::kF32, kLayers), 5, seed);
    const auto cold = world.AddAdapter(DType::kF32, 5);
    const auto pool = MakePool(*device, {.layout = world.layout, .workers = 2, .slots = 2});
    const std::vector<float> expected = DeviceAlone(world, {{cold.get(), 0, 5}});
    std::uint32_t* arrived = world.arrays.Upload<std::uint32_t>({0});
    const auto log = device->AllocatePinned("gates", kLayers * 4).value();
    const auto copies = device->CreateStream().value();
    DeviceStream& stream = world.arrays.stream();
    float* y = world.UploadY();
    pool->Begin();
    AssistedSegment segment = SegmentOf(*cold, 0, 5);
    segment.arrived = arrived;
    const std::uint32_t* gate = pool->AddSegment(segment);
    ASSERT_TRUE(pool->Upload(stream).ok());
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      world.AddLayerAssisted(stream, *pool, y, layer);
      stream.CopyToHost(log->base() + layer * 4, gate, 4);
    }
    for (std::uint32_t layer = 1; layer <= kLayers; ++layer) gpu::PublishLayers(*copies, {arrived, layer});
    world.arrays.Synchronize();
    ASSERT_TRUE(copies->Synchronize().ok());
    std::vector<AssistFailure> failures;
    pool->End(failures);
    EXPECT_TRUE(failures.empty());
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      if (reinterpret_cast<const std::uint32_t*>(log->base())[layer] == gpu::kAssistOnDevice) {
        world.AddLayerOnDevice(stream, y, layer, *cold, 0, 5);
      }
    }
    EXPECT_TRUE(SameBits(world.DownloadY(y), expected)) << seed;
  }
}

TEST(AssistPool, ManySegmentsShareTheWorkers) {
  Device& device = gpu::DeviceForTest();
  World world(device, SmallLayoutForTest(DType::kF32, 1), 59, 4);
  std::vector<std::unique_ptr<Adapter>> adapters;
  std::vector<Part> parts;
  std::int32_t row = 0;
  for (const std::int32_t rows : {1, 18, 3, 1, 34, 2}) {
    adapters.push_back(world.AddAdapter(row % 2 == 0 ? DType::kBF16 : DType::kF16, 4 + rows % 3));
    parts.push_back({adapters.back().get(), row, rows});
    row += rows;
  }
  const std::vector<float> expected = DeviceAlone(world, parts);
  const auto pool = MakePool(device, {.layout = world.layout, .workers = 3, .slots = 12});
  for (int workers = 1; workers <= 3; ++workers) {  // slots and tickets are used again
    std::vector<AssistFailure> failures;
    EXPECT_TRUE(SameBits(Assisted(world, *pool, parts, workers, failures), expected)) << workers;
    EXPECT_TRUE(failures.empty());
  }
}

// CaraServe: a core processes at most c tokens, so L/c cores compute x A B of L tokens. A piece of 16 rows would leave
// 20 tokens to two cores.
TEST(AssistPool, AsManyWorkersAsTokensByThoseOfACore) {
  Device& device = gpu::DeviceForTest();
  World world(device, SmallLayoutForTest(DType::kF32, 1), 20, 4);
  const auto adapter = world.AddAdapter(DType::kF32, 3);
  const std::vector<Part> parts = {{adapter.get(), 0, 20}};
  const std::vector<float> expected = DeviceAlone(world, parts);
  std::array<std::atomic<bool>, 8> worked = {};
  const auto answers = [&](int worker, std::uint32_t) { worked[static_cast<std::size_t>(worker)] = true; };
  const auto pool = MakePool(device, {.layout = world.layout, .workers = 8, .slots = 20, .before_answer = answers});
  for (const int tokens_per_core : {20, 16, 4, 3, 1}) {
    for (std::atomic<bool>& any : worked) any = false;
    std::vector<AssistFailure> failures;
    const int cores = static_cast<int>(CeilDivide(20, tokens_per_core));
    EXPECT_TRUE(SameBits(Assisted(world, *pool, parts, cores, failures), expected)) << tokens_per_core;
    EXPECT_TRUE(failures.empty());
    EXPECT_EQ(std::count(worked.begin(), worked.end(), true), std::min(cores, 8)) << tokens_per_core;
  }
}

// A segment does not take the slots that later ones need, once all workers are busy.
TEST(AssistPool, PiecesAreFinerOnlyForIdleWorkers) {
  Device& device = gpu::DeviceForTest();
  World world(device, SmallLayoutForTest(DType::kF32, 1), 64, 7);
  const auto adapter = world.AddAdapter(DType::kF32, 3);
  const auto pool = MakePool(device, {.layout = world.layout, .workers = 4, .slots = 6});
  pool->Begin();
  EXPECT_NE(pool->AddSegment(SegmentOf(*adapter, 0, 16, 3)), nullptr);
  EXPECT_EQ(pool->RoomForRows(), 48);
  EXPECT_NE(pool->AddSegment(SegmentOf(*adapter, 16, 16, 8)), nullptr);
  EXPECT_EQ(pool->RoomForRows(), 32);
  EXPECT_NE(pool->AddSegment(SegmentOf(*adapter, 32, 16, 8)), nullptr);
  EXPECT_NE(pool->AddSegment(SegmentOf(*adapter, 48, 16, 8)), nullptr);
  std::vector<AssistFailure> failures;
  pool->End(failures);
}

// One of two workers goes and comes back. Only its rows fail, each after one time-out; the next steps do without it.
TEST(AssistPool, ALostWorkerFailsItsRowsAlone) {
  Device& device = gpu::DeviceForTest();
  World world(device, SmallLayoutForTest(DType::kF32, 2), 8, 5);
  const auto one = world.AddAdapter(DType::kF32, 4), two = world.AddAdapter(DType::kF32, 5);
  const std::vector<Part> parts = {{one.get(), 0, 4}, {two.get(), 4, 4}};
  const std::vector<float> expected = DeviceAlone(world, parts);
  std::latch come_back(1);
  std::atomic<bool> lost{true};
  std::atomic<int> answered_by_lost{0};
  AssistOptions options = {.layout = world.layout, .workers = 2, .slots = 4, .timeout = 1500 * kNsPerMs};
  options.before_answer = [&](int worker, std::uint32_t group) {
    if (worker != 1) return;
    ++answered_by_lost;
    if (group == 2 && lost.exchange(false)) come_back.wait();
  };
  const auto pool = MakePool(device, options);
  const OsClock clock;
  const TimeNs begin = clock.Now();
  std::vector<AssistFailure> failures;
  const std::vector<float> partly = Assisted(world, *pool, parts, 1, failures);
  EXPECT_LT(clock.Now() - begin, 30 * kNsPerSecond);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].segment, 1);
  EXPECT_EQ(failures[0].first_row, 4);
  EXPECT_EQ(failures[0].rows, 4);
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    for (int t = 0; t < 7; ++t) {
      const auto target = static_cast<LoraTarget>(t);
      const auto at = static_cast<std::size_t>(world.YIndex(layer, target, 0));
      const auto floats = static_cast<std::size_t>(4 * world.YStride(target));
      EXPECT_EQ(std::memcmp(&partly[at], &expected[at], floats * 4), 0) << layer << " " << t;
      if (layer == 1 && one->modules[7 + static_cast<std::size_t>(t)].rank > 0) {  // after the loss
        EXPECT_EQ(std::memcmp(&partly[at + floats], &world.y_before()[at + floats], floats * 4), 0);
      }
    }
  }
  const int before = answered_by_lost;
  failures.clear();
  EXPECT_TRUE(SameBits(Assisted(world, *pool, parts, 1, failures), expected));  // by the other worker
  EXPECT_TRUE(failures.empty());
  EXPECT_EQ(answered_by_lost, before);
  come_back.count_down();
  for (int i = 0; i < 1000 && answered_by_lost == before; ++i) {
    EXPECT_TRUE(SameBits(Assisted(world, *pool, parts, 1, failures), expected));
  }
  EXPECT_GT(answered_by_lost, before);
  EXPECT_TRUE(failures.empty());
  EXPECT_EQ(pool->counts().failures, 1);
}

// Without workers there is no room; the step goes on without the segment.
TEST(AssistPool, WithoutWorkersThereIsNoRoom) {
  Device& device = gpu::DeviceForTest();
  World world(device, SmallLayoutForTest(DType::kF32, 1), 2, 6);
  const auto adapter = world.AddAdapter(DType::kF32, 3);
  std::latch come_back(1);
  AssistOptions options = {.layout = world.layout, .workers = 1, .slots = 2, .timeout = 30 * kNsPerMs};
  options.before_answer = [&](int, std::uint32_t) { come_back.wait(); };
  const auto pool = MakePool(device, options);
  std::vector<AssistFailure> failures;
  Assisted(world, *pool, {{adapter.get(), 0, 2}}, 1, failures);
  EXPECT_EQ(failures.size(), 1u);
  pool->Begin();
  EXPECT_EQ(pool->RoomForRows(), 0);
  EXPECT_EQ(pool->AddSegment(SegmentOf(*adapter, 0, 2)), nullptr);
  EXPECT_FALSE(pool->active());
  EXPECT_TRUE(pool->Upload(world.arrays.stream()).ok());
  pool->BeginLayer(world.arrays.stream(), 0);  // nothing
  pool->End(failures);
  EXPECT_EQ(failures.size(), 1u);
  come_back.count_down();
}

TEST(AssistPool, SlotsBoundTheRows) {
  Device& device = gpu::DeviceForTest();
  World world(device, SmallLayoutForTest(DType::kF32, 1), 64, 7);
  const auto adapter = world.AddAdapter(DType::kF32, 3);
  const auto pool = MakePool(device, {.layout = world.layout, .workers = 1, .slots = 3});
  for (int repeat = 0; repeat < 2; ++repeat) {
    pool->Begin();
    EXPECT_EQ(pool->RoomForRows(), 48);
    EXPECT_NE(pool->AddSegment(SegmentOf(*adapter, 0, 17)), nullptr);
    EXPECT_EQ(pool->RoomForRows(), 16);
    EXPECT_EQ(pool->AddSegment(SegmentOf(*adapter, 17, 17)), nullptr);
    EXPECT_NE(pool->AddSegment(SegmentOf(*adapter, 17, 16)), nullptr);
    std::vector<AssistFailure> failures;
    pool->End(failures);  // a step that was never launched
    EXPECT_TRUE(failures.empty());
  }
}

// The copy in host memory arrives layer by layer, or never.
TEST(AssistPool, WorkersWaitForLayersOfTheHostCopy) {
  Device& device = gpu::DeviceForTest();
  World world(device, SmallLayoutForTest(DType::kF32, 3), 4, 8);
  const auto adapter = world.AddAdapter(DType::kF32, 3);
  const std::vector<float> expected = DeviceAlone(world, {{adapter.get(), 0, 4}});
  for (const bool fails : {false, true}) {
    const auto pool = MakePool(device, {.layout = world.layout, .workers = 1, .slots = 1});
    const auto host = std::make_shared<LayerProgress>(3);
    host->Publish(1);
    float* y = world.UploadY();
    pool->Begin();
    AssistedSegment segment = SegmentOf(*adapter, 0, 4);
    segment.host = host;
    ASSERT_NE(pool->AddSegment(segment), nullptr);
    ASSERT_TRUE(pool->Upload(world.arrays.stream()).ok());
    for (std::int64_t layer = 0; layer < 3; ++layer) {
      world.AddLayerAssisted(world.arrays.stream(), *pool, y, layer);
    }
    if (fails) {
      host->Fail();
    } else {
      host->Publish(3);
    }
    world.arrays.Synchronize();  // no time-out: a worker that cannot answer says so
    std::vector<AssistFailure> failures;
    pool->End(failures);
    EXPECT_EQ(failures.size(), fails ? 1u : 0u);
    if (!fails) {
      EXPECT_TRUE(SameBits(world.DownloadY(y), expected));
    }
  }
}

// Logits have more columns than a slot has room for, and come in several blocks.
TEST(AssistPool, LogitsComeInParts) {
  Device& device = gpu::DeviceForTest();
  const AssistLayout layout = SmallLayoutForTest(DType::kF32, 1);
  ASSERT_GT(layout.HeadParts(), 1);
  World world(device, layout, 24, 9);
  const auto one = world.AddAdapter(DType::kBF16, 5, true), two = world.AddAdapter(DType::kF32, 3, true);
  DeviceStream& stream = world.arrays.stream();
  const auto head = LoraTarget::kLmHead;
  // Segment 0 has rows 0 ... 19 and segment 1 rows 20 ... 23; block 0 has 18 and 0, block 5 has 2 and 4.
  const auto pool = MakePool(device, {.layout = layout, .workers = 2, .slots = 4});
  pool->Begin();
  ASSERT_NE(pool->AddSegment(SegmentOf(*one, 0, 20)), nullptr);
  ASSERT_NE(pool->AddSegment(SegmentOf(*two, 20, 4)), nullptr);
  pool->AddLogitRows(0, 0, 0, 18);
  pool->AddLogitRows(0, 5, 0, 2);
  pool->AddLogitRows(1, 5, 2, 4);
  ASSERT_TRUE(pool->Upload(stream).ok());
  float* first = world.UploadY();
  float* second = world.UploadY();
  pool->BeginHead(stream);
  const std::int64_t stride = World::Stride(layout.Shape(head).in);
  for (const auto& [block, y] : {std::pair(0, first), std::pair(3, first), std::pair(5, second)}) {
    pool->SendHead(stream, block, world.X(head), stride);
    pool->AddHead(stream, block, world.Y(y, 1, head), world.YStride(head));
  }
  world.arrays.Synchronize();
  std::vector<AssistFailure> failures;
  pool->End(failures);
  EXPECT_TRUE(failures.empty());
  float* expected_first = world.UploadY();
  float* expected_second = world.UploadY();
  world.AddOnDevice(stream, expected_first, 1, head, 1, *one, 0, 18);
  world.AddOnDevice(stream, expected_second, 1, head, 1, *one, 0, 2);
  world.AddOnDevice(stream, expected_second, 1, head, 1, *two, 2, 4);
  EXPECT_TRUE(SameBits(world.DownloadY(first), world.DownloadY(expected_first)));
  EXPECT_TRUE(SameBits(world.DownloadY(second), world.DownloadY(expected_second)));
}

}  // namespace
}  // namespace loramux::assist_pool_test
