// The emulated device, and the faults that it must catch: each is planted in a small kernel or in a use of streams.
#include "gpu/emulated/emulated_device.h"

#include <atomic>
#include <cmath>
#include <thread>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/device_arrays_for_test.h"
#include "gpu/kernel_api.h"
#include "gpu/open_device.h"

namespace loramux::gpu::emulated_device_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// What a kernel here does wrong, if anything.
enum class Plant {
  kNothing,
  kNoBarrier,
  kBlocksMeetInMemory,  // they store at one place
  kMissedBarrier,       // by one warp
  kMissedMeeting,       // by one lane
  kOtherMeeting,        // one lane is in another one
  kReadPastTheEnd,
  kReadBefore,
  kMisalignedVector,
  kAsyncCopyUnwaited,
  kAsyncCopyOutside,  // an asynchronous copy to a place outside of shared memory
  kTooMuchShared,
  kRowsFromOutside,  // LoadMatrices
};

struct ExchangeArguments {
  const float* x;  // [blocks * threads]
  float* y;        // y[i] = x of the next thread of the block
  Plant plant;
};

// Threads exchange values through shared memory.
struct ExchangeKernel {
  using Arguments = ExchangeArguments;
  static constexpr int kThreads = 128;
  struct Memory {
    alignas(16) float values[kThreads];
  };
  static void Run(const Arguments& a) {
    auto& shared = Shared<Memory>();
    const std::uint32_t thread = ThreadIndex(), at = BlockX() * BlockThreads() + thread;
    if (a.plant == Plant::kMissedBarrier && Warp() == 2) return;
    if (a.plant == Plant::kBlocksMeetInMemory) {
      if (thread == BlockX()) Store(a.y, 0.0f);
      return;
    }
    PlantFaults(a, at);
    if (a.plant == Plant::kAsyncCopyUnwaited) {
      if (thread % 4 == 0) CopyAsync16(&shared.values[thread], a.x + at, true);
      CopyAsyncCommit();
    } else {
      shared.values[thread] = Load(a.x + at);
    }
    if (a.plant != Plant::kNoBarrier) SyncBlock();
    Store(a.y + at, shared.values[(thread + 1) % BlockThreads()]);
  }
  static void PlantFaults(const Arguments& a, std::uint32_t at) {
    auto& shared = Shared<Memory>();
    const std::uint32_t total = GridX() * BlockThreads();
    std::uint32_t words[4];
    if (a.plant == Plant::kMissedMeeting && Lane() != 5) SyncWarp();
    if (a.plant == Plant::kOtherMeeting) Lane() == 5 ? static_cast<void>(SumWarp(1.0f)) : SyncWarp();
    if (a.plant == Plant::kReadPastTheEnd && at == total - 1) Load(a.x + total);
    if (a.plant == Plant::kReadBefore && at == 0) Load(a.x - 1);
    if (a.plant == Plant::kMisalignedVector && at == 3) Load(reinterpret_cast<const Vec4*>(a.x + 2));
    if (a.plant == Plant::kAsyncCopyOutside) CopyAsync16(&shared + 1, a.x, true);
    if (a.plant == Plant::kTooMuchShared) Shared<Memory[2]>();
    if (a.plant == Plant::kRowsFromOutside) LoadMatrices(words, a.x);
  }
};

constexpr std::uint32_t kBlocks = 3, kTotal = kBlocks * ExchangeKernel::kThreads;

std::vector<float> Ascending() {
  std::vector<float> values(kTotal);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  return values;
}

// Runs the kernel on a device of its own.
struct Exchange {
  explicit Exchange(Plant plant, std::uint64_t seed = 1)
      : device(MakeEmulatedDevice({.seed = seed})),
        arrays(*device),
        x(arrays.Upload(Ascending())),
        y(arrays.Upload(std::vector<float>(kTotal))) {
    Launch(plant);
    status = arrays.stream().Synchronize();
  }
  void Launch(Plant plant) {
    device->LaunchKernel<ExchangeKernel>(arrays.stream(), "Exchange", {kBlocks, 1, 1}, ExchangeKernel::kThreads,
                                         sizeof(ExchangeKernel::Memory), {x, y, plant});
  }
  // How many results are wrong.
  int Wrong() {
    const std::vector<float> result = arrays.Download(y, kTotal);
    int wrong = 0;
    for (std::uint32_t i = 0; i < kTotal; ++i) {
      const std::uint32_t thread = i % ExchangeKernel::kThreads;
      wrong += result[i] != static_cast<float>(i - thread + (thread + 1) % ExchangeKernel::kThreads);
    }
    return wrong;
  }

  std::unique_ptr<EmulatedDevice> device;
  DeviceArrays arrays;
  float *x, *y;
  Status status = Ok{};
};

std::string MessageOf(Plant plant) {
  Exchange exchange(plant);
  return exchange.status.ok() ? "no fault was found" : exchange.status.error().message;
}

TEST(EmulatedDevice, ExchangesInEveryOrder) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    Exchange exchange(Plant::kNothing, seed);
    EXPECT_TRUE(exchange.status.ok());
    EXPECT_EQ(exchange.Wrong(), 0);
  }
}

#ifndef __SANITIZE_THREAD__  // it would report the planted races, see RacesAreReported
TEST(EmulatedDevice, AMissingBarrierGivesWrongResults) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    EXPECT_GT(Exchange(Plant::kNoBarrier, seed).Wrong(), 0);
    EXPECT_GT(Exchange(Plant::kAsyncCopyUnwaited, seed).Wrong(), 0);
  }
}
#else
void RunPlanted(Plant plant) {
  Exchange exchange(plant);
  std::exit(0);  // ThreadSanitizer's code if it found something
}

TEST(EmulatedDeviceDeathTest, RacesAreReported) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(RunPlanted(Plant::kNoBarrier), testing::ExitedWithCode(66), "data race");
  EXPECT_EXIT(RunPlanted(Plant::kBlocksMeetInMemory), testing::ExitedWithCode(66), "data race");
  EXPECT_EXIT(RunPlanted(Plant::kNothing), testing::ExitedWithCode(0), "");
}
#endif

TEST(EmulatedDevice, MeetingsThatNotAllReachEndTheLaunch) {
  EXPECT_THAT(MessageOf(Plant::kMissedBarrier),
              AllOf(HasSubstr("kernel Exchange, block ("), HasSubstr("not all threads of the block meet: of 128")));
  EXPECT_THAT(MessageOf(Plant::kMissedMeeting), HasSubstr("wait in SyncWarp"));
  EXPECT_THAT(MessageOf(Plant::kOtherMeeting), AllOf(HasSubstr("meet at different calls"), HasSubstr("SumWarp")));
}

TEST(EmulatedDevice, AccessesOutsideOfAllocationsEndTheLaunch) {
  EXPECT_THAT(MessageOf(Plant::kReadPastTheEnd),
              AllOf(HasSubstr("kernel Exchange, block (2, 0, 0), thread 127: load of 4 bytes at 0x"),
                    HasSubstr("past the end of allocation \"test array\"")));
  EXPECT_THAT(MessageOf(Plant::kReadBefore), HasSubstr("4 bytes before allocation \"test array\""));
  EXPECT_THAT(MessageOf(Plant::kMisalignedVector), HasSubstr("thread 3: load of 16 bytes"));
  EXPECT_THAT(MessageOf(Plant::kMisalignedVector), HasSubstr("not aligned to 16 bytes"));
}

TEST(EmulatedDevice, MisusesOfSharedMemoryEndTheLaunch) {
  EXPECT_THAT(MessageOf(Plant::kAsyncCopyOutside), HasSubstr("not in the block's 512 bytes of shared memory"));
  EXPECT_THAT(MessageOf(Plant::kTooMuchShared), HasSubstr("needs 1024 bytes of shared memory, the launch has 512"));
  EXPECT_THAT(MessageOf(Plant::kRowsFromOutside), HasSubstr("LoadMatrices at 0x"));
}

TEST(EmulatedDevice, FreedMemoryIsNotRead) {
  Exchange exchange(Plant::kNothing);
  auto freed = exchange.device->Allocate("freed", 4096).value();
  exchange.x = reinterpret_cast<float*>(freed->base());
  freed.reset();
  exchange.Launch(Plant::kNothing);
  EXPECT_THAT(exchange.arrays.stream().Synchronize().error().message, HasSubstr("load of 4 bytes at 0x"));
}

TEST(EmulatedDevice, NewMemoryIsNotZero) {
  const auto device = MakeEmulatedDevice({});
  DeviceArrays arrays(*device);
  EXPECT_TRUE(std::isnan(arrays.Download(arrays.Allocate<float>(8), 8)[3]));
}

TEST(EmulatedDevice, LaunchesThatNoDeviceAllowsLoseIt) {
  const auto message = [](GridSize grid, std::uint32_t threads, std::size_t shared_bytes) {
    const auto device = MakeEmulatedDevice({});
    const auto stream = device->CreateStream().value();
    device->LaunchKernel<ExchangeKernel>(*stream, "Exchange", grid, threads, shared_bytes, {});
    return stream->Synchronize().error().message;
  };
  EXPECT_THAT(message({1, 1, 1}, 100, 0), HasSubstr("100 threads a block"));
  EXPECT_THAT(message({1, 1, 1}, 256, 0), HasSubstr("multiples of 32 up to 128"));
  EXPECT_THAT(message({1, 0, 1}, 128, 0), HasSubstr("a grid of 1 x 0 x 1 blocks"));
  EXPECT_THAT(message({1, 1, 1}, 128, 1 << 20), HasSubstr("a block has at most"));
}

TEST(EmulatedDeviceDeathTest, TheHostCannotReadDeviceMemory) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto device = MakeEmulatedDevice({});
  const auto arena = device->Allocate("memory", 64).value();
  const volatile std::byte* base = arena->base();
  EXPECT_DEATH(static_cast<void>(*base), "");
}

// A kernel that ends when the host says so.
struct GateKernel {
  struct Arguments {
    const std::atomic<bool>* open;
  };
  static constexpr int kThreads = 32;
  static void Run(const Arguments& a) {
    while (!*a.open) std::this_thread::yield();
  }
};

// One stream brings the values, another uses them. `late`: after the other one, if it does not wait.
int WrongAfterArrival(bool wait, bool late) {
  const auto device = MakeEmulatedDevice({.threads = 1, .pause_one_in = 2});
  DeviceArrays arrays(*device);
  const auto transfer = device->CreateStream().value();
  const auto pinned = device->AllocatePinned("values", kTotal * sizeof(float)).value();
  std::memcpy(pinned->base(), Ascending().data(), kTotal * sizeof(float));
  float *x = arrays.Allocate<float>(kTotal), *y = arrays.Allocate<float>(kTotal);
  std::atomic<bool> open{!late};
  const auto arrived = device->CreateEvent();
  device->LaunchKernel<GateKernel>(*transfer, "Gate", {}, 32, 0, {&open});
  transfer->CopyToDevice(x, pinned->base(), kTotal * sizeof(float));
  transfer->Record(*arrived);
  if (wait) arrays.stream().Wait(*arrived);
  device->LaunchKernel<ExchangeKernel>(arrays.stream(), "Exchange", {kBlocks, 1, 1}, ExchangeKernel::kThreads,
                                       sizeof(ExchangeKernel::Memory), {x, y, Plant::kNothing});
  if (late) EXPECT_FALSE(device->IsDone(*arrived).value());
  if (wait) open = true;
  EXPECT_TRUE(arrays.stream().Synchronize().ok());
  open = true;
  EXPECT_TRUE(transfer->Synchronize().ok());
  EXPECT_TRUE(device->IsDone(*arrived).value());
  int wrong = 0;
  for (const float value : arrays.Download(y, kTotal)) wrong += std::isnan(value);
  return wrong;
}

TEST(EmulatedDevice, StreamsAreOrderedByEventsAlone) {
  EXPECT_EQ(WrongAfterArrival(true, true), 0);
#ifndef __SANITIZE_THREAD__
  EXPECT_EQ(WrongAfterArrival(false, true), static_cast<int>(kTotal));
#endif
}

#ifdef __SANITIZE_THREAD__
void RunWithoutWait() {
  WrongAfterArrival(false, false);
  std::exit(0);
}

TEST(EmulatedDeviceDeathTest, AMissingWaitIsReported) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(RunWithoutWait(), testing::ExitedWithCode(66), "data race");
}
#endif

TEST(EmulatedDevice, EventsThatWereNeverRecordedAreDone) {
  const auto device = MakeEmulatedDevice({});
  const auto stream = device->CreateStream().value();
  const auto event = device->CreateEvent();
  EXPECT_TRUE(device->IsDone(*event).value());
  stream->Wait(*event);
  EXPECT_TRUE(stream->Synchronize().ok());
}

TEST(EmulatedDevice, AReplayReadsWhatMemoryHoldsThen) {
  Exchange exchange(Plant::kNothing);
  DeviceStream& stream = exchange.arrays.stream();
  auto graph = stream.Capture([&] { exchange.Launch(Plant::kNothing); });
  stream.Fill(exchange.y, 0, kTotal * sizeof(float));
  EXPECT_GT(exchange.Wrong(), 0);
  stream.Replay(**graph);
  EXPECT_EQ(exchange.Wrong(), 0);
  stream.Fill(exchange.x, 0, kTotal * sizeof(float));
  stream.Replay(**graph);
  EXPECT_EQ(exchange.arrays.Download(exchange.y, kTotal), std::vector<float>(kTotal));
}

TEST(EmulatedDevice, CountsWhatKernelsTouch) {
  Exchange exchange(Plant::kNothing);
  exchange.device->Watch("x", exchange.x, 256);
  exchange.device->Watch("x", exchange.x + 128, 4);
  exchange.device->Watch("y", exchange.y, kTotal * sizeof(float));
  for (int launches = 1; launches <= 2; ++launches) {
    exchange.Launch(Plant::kNothing);
    exchange.arrays.Synchronize();
    const Traffic x = exchange.device->TrafficOf("x"), y = exchange.device->TrafficOf("y");
    EXPECT_EQ(x.loads, 65 * launches);
    EXPECT_EQ(x.load_bytes, 260 * launches);
    EXPECT_EQ(x.store_bytes, 0);
    EXPECT_EQ(y.loads, 0);
    EXPECT_EQ(y.store_bytes, 4 * kTotal * launches);
    EXPECT_EQ(exchange.device->Total().load_bytes, 4 * kTotal * launches);
  }
  exchange.device->ResetTraffic();
  EXPECT_EQ(exchange.device->Total().store_bytes, 0);
}

TEST(EmulatedDevice, MemoryIsLimited) {
  const auto device = MakeEmulatedDevice({.memory = 10'000});
  EXPECT_EQ(device->FreeMemory(), 10'000);
  auto first = device->Allocate("first", 6000).value();
  EXPECT_EQ(first->kind(), MemoryKind::kDevice);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first->base()) % 256, 0u);
  const auto second = device->Allocate("second", 6000);
  EXPECT_EQ(second.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(second.error().message, AllOf(HasSubstr("second"), HasSubstr("6000"), HasSubstr("4000 free")));
  first.reset();
  EXPECT_TRUE(device->Allocate("second", 10'000).ok());
  device->FailAllocationAfter(1);
  EXPECT_TRUE(device->Allocate("a", 1).ok());
  EXPECT_EQ(device->Allocate("b", 1).error().code, ErrorCode::kResourceExhausted);
  EXPECT_TRUE(device->AllocatePinned("c", 1).ok());
}

TEST(EmulatedDevice, CopiesOfOtherMemoryLoseTheDevice) {
  std::vector<std::byte> host(64);
  for (const bool pinned : {false, true}) {
    const auto device = MakeEmulatedDevice({});
    const auto stream = device->CreateStream().value();
    const auto memory = device->Allocate("memory", 64).value(), from = device->AllocatePinned("host", 64).value();
    stream->CopyToDevice(memory->base() + (pinned ? 8 : 0), pinned ? from->base() : host.data(), 64);
    EXPECT_THAT(stream->Synchronize().error().message,
                HasSubstr(pinned ? "past the end of allocation \"memory\"" : "not pinned memory"));
  }
}

TEST(EmulatedDevice, InjectedFailuresLoseTheDeviceOnce) {
  for (const bool copy : {false, true}) {
    Exchange exchange(Plant::kNothing);
    const auto pinned = exchange.device->AllocatePinned("result", 4).value();
    const auto event = exchange.device->CreateEvent();
    DeviceStream& stream = exchange.arrays.stream();
    copy ? exchange.device->FailCopyAfter(1) : exchange.device->LoseAfter(1);
    const auto work = [&] {
      copy ? stream.CopyToHost(pinned->base(), exchange.y, 4) : exchange.Launch(Plant::kNothing);
      return stream.Synchronize();
    };
    EXPECT_TRUE(work().ok());
    EXPECT_EQ(work().error().code, ErrorCode::kUnavailable);
    stream.Record(*event);
    stream.Wait(*event);  // returns: nothing hangs
    EXPECT_THAT(work().error().message, HasSubstr("the device is lost: injected"));
    EXPECT_FALSE(exchange.device->IsDone(*event).ok());
    EXPECT_FALSE(exchange.device->status().ok());
    EXPECT_FALSE(exchange.device->Allocate("more", 1).ok());
    EXPECT_FALSE(stream.Capture([] {}).ok());
  }
}

TEST(EmulatedDevice, DenseProducts) {
  const auto device = MakeEmulatedDevice({});
  DeviceArrays arrays(*device);
  const std::int64_t m = 3, n = 70, k = 37, x_stride = 40, y_stride = 72;
  std::vector<std::uint16_t> x(m * x_stride), w(n * k);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = FromFloat<Bf16>(std::sin(static_cast<float>(i))).bits;
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = FromFloat<Bf16>(std::cos(static_cast<float>(i))).bits;
  const std::vector<float> bias(n, 2), before(m * y_stride, 3);
  float* y = arrays.Upload(before);
  const DenseProduct product{DType::kBF16,        m, n,        k,   arrays.Upload(x), x_stride, arrays.Upload(w),
                             arrays.Upload(bias), y, y_stride, true};
  arrays.stream().Multiply(product);
  const std::vector<float> result = arrays.Download(y, before.size());
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double expected = 5;
      for (std::int64_t t = 0; t < k; ++t) {
        expected += static_cast<double>(ToFloat(Bf16{x[i * x_stride + t]})) * ToFloat(Bf16{w[j * k + t]});
      }
      EXPECT_NEAR(result[i * y_stride + j], expected, 1e-5);
    }
    EXPECT_EQ(result[i * y_stride + n], 3);
  }
  DenseProduct last_row = product;  // alone, it has the same bits
  last_row.m = 1;
  last_row.x = static_cast<const std::uint16_t*>(product.x) + 2 * x_stride;
  last_row.y = arrays.Upload(before);
  arrays.stream().Multiply(last_row);
  const std::vector<float> alone = arrays.Download(last_row.y, n);
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), result.begin() + 2 * y_stride));
}

TEST(OpenDevice, NamesTheDevices) {
  EXPECT_EQ(OpenDevice("emulated", {}).value()->properties().name, "emulated");
  EXPECT_THAT(OpenDevice("tpu", {}).error().message, HasSubstr("cuda, emulated"));
}

}  // namespace
}  // namespace loramux::gpu::emulated_device_test
