// Transfers by a device's copy engines, on the emulated device: content, the order that events make, and how transfers
// end.
#include "runtime/device_transfer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "gpu/emulated/emulated_device.h"
#include "gpu/kernels/elementwise.h"

namespace loramux::device_transfer_test {
namespace {

using gpu::EmulatedDevice;

constexpr std::size_t kPageBytes = 256;
constexpr std::size_t kPages = 6;
constexpr std::int32_t kLayers = 4;
constexpr std::size_t kLayerBytes = 48;  // the rest of the page moves with the last layer

// Two tiers of an emulated device; the device's pages begin as poison (0xFF).
struct World {
  std::unique_ptr<EmulatedDevice> device;
  std::size_t page_bytes, pages;
  std::unique_ptr<Arena> on_host, on_device;
  std::unique_ptr<DeviceStream> compute;
  std::atomic<int> wakes{0};
  std::unique_ptr<DeviceTransfer> transfer;

  explicit World(gpu::EmulatedDeviceOptions options = {}, DeviceTransferOptions transfers = {},
                 std::size_t bytes_of_page = kPageBytes, std::size_t pages_of_tier = kPages)
      : device(gpu::MakeEmulatedDevice(options)),
        page_bytes(bytes_of_page),
        pages(pages_of_tier),
        on_host(device->AllocatePinned("host", static_cast<std::int64_t>(pages * page_bytes)).value()),
        on_device(device->Allocate("device", static_cast<std::int64_t>(pages * page_bytes)).value()),
        compute(device->CreateStream().value()) {
    for (std::size_t p = 0; p < pages; ++p) {
      for (std::size_t b = 0; b < page_bytes; ++b) Host(p)[b] = Pattern(p, b);
    }
    transfer = DeviceTransfer::Create(
                   *device, Memory(), [this] { ++wakes; }, transfers)
                   .value();
  }
  ~World() { transfer.reset(); }

  static std::byte Pattern(std::size_t page, std::size_t byte) { return static_cast<std::byte>(1 + page * 31 + byte); }
  TierMemory Memory() const { return {{on_host->base(), page_bytes}, {on_device->base(), page_bytes}}; }
  std::byte* Host(std::size_t page) const { return on_host->base() + page * page_bytes; }

  // Page i of the host to page to[i] of the device.
  TransferJob Job(std::uint64_t id = 7, std::vector<std::uint32_t> to = {0, 1, 2, 3, 4, 5}) const {
    TransferJob job;
    job.id = id;
    job.from = {Tier::kHost, std::vector<std::uint32_t>(to.size())};
    std::iota(job.from.pages.begin(), job.from.pages.end(), 0u);
    job.to = {Tier::kDevice, std::move(to)};
    job.page_bytes = page_bytes;
    job.progress = std::make_shared<LayerProgress>(kLayers);
    return job;
  }
  TransferJob KvJob(std::uint64_t id = 7, std::vector<std::uint32_t> to = {0, 1, 2, 3, 4, 5}) const {
    TransferJob job = Job(id, std::move(to));
    job.layer_bytes = kLayerBytes;
    return job;
  }
  // Layer 1 needs no page of its own.
  TransferJob AdapterJob(std::uint64_t id = 7, std::vector<std::uint32_t> to = {0, 1, 2, 3, 4, 5}) const {
    TransferJob job = Job(id, std::move(to));
    auto version = std::make_shared<AdapterVersion>();
    version->layout.pages = kPages;
    version->layout.layer_pages = {2, 2, 5, 6};
    job.adapter = version;
    return job;
  }
  std::vector<std::byte> PageOfDevice(std::uint32_t page) const {
    const auto copy = device->AllocatePinned("a copy", static_cast<std::int64_t>(page_bytes)).value();
    compute->CopyToHost(copy->base(), on_device->base() + page * page_bytes, page_bytes);
    EXPECT_TRUE(compute->Synchronize().ok());
    return {copy->base(), copy->base() + page_bytes};
  }
  std::vector<std::byte> PageOfHost(std::size_t page) const { return {Host(page), Host(page) + page_bytes}; }
  std::vector<TransferCompletion> Collect(std::size_t count) const {
    std::vector<TransferCompletion> done;
    while (done.size() < count) {
      if (auto completion = transfer->Poll())
        done.push_back(std::move(*completion));
      else
        std::this_thread::yield();
    }
    return done;
  }
};

bool Good(const TransferCompletion& completion) { return !completion.error && !completion.cancelled; }

TEST(DeviceTransfer, PagesGoWhereTheJobSaysAndBack) {
  for (const int kind : {0, 1, 2}) {
    for (const std::size_t max_copies : {1, 13, 2048}) {  // all layers at once, groups of two, each by itself
      World w({}, {.max_copies = max_copies});
      const std::vector<std::uint32_t> to = {1, 2, 0, 5, 4, 3};  // one run of two pages
      TransferJob job = kind == 0 ? w.KvJob(7, to) : kind == 1 ? w.AdapterJob(7, to) : w.Job(7, to);
      w.transfer->Submit(job);
      ASSERT_NE(job.progress->events(), nullptr);
      const auto done = w.Collect(1);
      EXPECT_EQ(done[0].id, 7u);
      EXPECT_TRUE(Good(done[0]));
      EXPECT_EQ(job.progress->arrived(), kLayers);
      for (std::size_t i = 0; i < kPages; ++i) EXPECT_EQ(w.PageOfDevice(to[i]), w.PageOfHost(i)) << i;
      // and back to another place
      std::swap(job.from, job.to);
      std::reverse(job.to.pages.begin(), job.to.pages.end());
      job.progress = nullptr;
      std::memset(w.Host(0), 0, kPages * kPageBytes);
      w.transfer->Submit(job);
      EXPECT_TRUE(Good(w.Collect(1)[0]));
      for (std::size_t i = 0; i < kPages; ++i) {
        for (std::size_t b = 0; b < kPageBytes; ++b) ASSERT_EQ(w.Host(kPages - 1 - i)[b], World::Pattern(i, b));
      }
    }
  }
}

// The layers are published one by one, in order, and the engine is woken for the lead and for the end.
TEST(DeviceTransfer, PollPublishesWhatHasArrived) {
  World w({.pause_one_in = 2});
  const TransferJob job = w.KvJob();
  w.transfer->Submit(job);
  std::int32_t before = 0;
  while (true) {
    const auto completion = w.transfer->Poll();
    const std::int32_t arrived = job.progress->arrived();
    EXPECT_GE(arrived, before);
    before = arrived;
    if (completion.has_value()) break;
  }
  EXPECT_EQ(before, kLayers);
  World woken;
  const TransferJob other = woken.KvJob();
  woken.transfer->Submit(other);
  while (woken.wakes == 0) std::this_thread::yield();
  EXPECT_TRUE(Good(woken.Collect(1)[0]));
}

// What the compute stream finds in a job's layers if it reads them behind jobs that keep the copies' stream busy.
// Returns the number of wrong bytes.
std::size_t WrongBytes(bool waits, std::size_t max_copies) {
  World w({.pause_one_in = 3}, {.max_copies = max_copies}, kPageBytes, 2 * kPages);
  const auto seen = w.device->AllocatePinned("seen", kLayers * kPages * kLayerBytes).value();
  for (std::uint64_t id = 1; id <= 3; ++id) w.transfer->Submit(w.KvJob(id, {6, 7, 8, 9, 10, 11}));
  const TransferJob job = w.KvJob();
  w.transfer->Submit(job);
  std::byte* next = seen->base();
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    if (waits) job.progress->events()->EnqueueWait(*w.compute, layer);
    for (std::uint32_t p = 0; p < kPages; ++p, next += kLayerBytes) {
      w.compute->CopyToHost(next, w.Memory().device.Page(p) + static_cast<std::size_t>(layer) * kLayerBytes,
                            kLayerBytes);
    }
  }
  EXPECT_TRUE(w.compute->Synchronize().ok());
  w.Collect(4);
  std::size_t wrong = 0;
  next = seen->base();
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    for (std::size_t p = 0; p < kPages; ++p) {
      for (std::size_t b = 0; b < kLayerBytes; ++b)
        wrong += *next++ != World::Pattern(p, static_cast<std::size_t>(layer) * kLayerBytes + b);
    }
  }
  return wrong;
}

TEST(DeviceTransfer, TheComputeStreamWaitsForEachLayer) {
  for (const std::size_t max_copies : {1, 13, 2048}) EXPECT_EQ(WrongBytes(/*waits=*/true, max_copies), 0u);
}

// The test above would see a wait that is missing. (It is a race, which ThreadSanitizer would report.)
#if !defined(__SANITIZE_THREAD__)
TEST(DeviceTransfer, WithoutTheWaitItReadsPoison) { EXPECT_GT(WrongBytes(/*waits=*/false, 2048), 0u); }
#endif

TEST(DeviceTransfer, ALayerBeyondTheLastArrivesWithTheLast) {
  World w;
  const TransferJob job = w.KvJob();
  w.transfer->Submit(job);
  job.progress->events()->EnqueueWait(*w.compute, kLayers + 5);
  EXPECT_TRUE(w.compute->Synchronize().ok());
  EXPECT_EQ(w.PageOfDevice(5), w.PageOfHost(5));
  w.Collect(1);
}

TEST(DeviceTransfer, ACancelledJobEndsAsCancelledAndOthersDoNot) {
  World w({.pause_one_in = 2});
  const TransferJob cancelled = w.KvJob(1), other = w.KvJob(2);
  cancelled.progress->Cancel();
  w.transfer->Submit(cancelled);
  w.transfer->Submit(other);
  const auto done = w.Collect(2);
  EXPECT_EQ(done[0].id, 1u);
  EXPECT_TRUE(done[0].cancelled);
  EXPECT_FALSE(done[0].error);
  EXPECT_TRUE(cancelled.progress->failed());
  EXPECT_TRUE(Good(done[1]));
  EXPECT_EQ(w.PageOfDevice(3), w.PageOfHost(3));
}

// A copy that fails loses the device: all jobs end with the reason, those of the past, the present and the future.
TEST(DeviceTransfer, AFailedCopyFailsEveryJob) {
  World w;
  w.device->FailCopyAfter(9);
  std::vector<TransferJob> jobs;
  for (std::uint64_t id = 0; id < 3; ++id) jobs.push_back(w.KvJob(id));
  for (const TransferJob& job : jobs) w.transfer->Submit(job);
  while (w.device->status().ok()) std::this_thread::yield();
  jobs.push_back(w.KvJob(3));
  w.transfer->Submit(jobs.back());
  for (const TransferCompletion& completion : w.Collect(4)) {
    ASSERT_TRUE(completion.error.has_value()) << completion.id;
    EXPECT_EQ(completion.error->code, ErrorCode::kUnavailable);
    EXPECT_TRUE(jobs[completion.id].progress->failed());
  }
  EXPECT_FALSE(w.compute->Synchronize().ok());
}

// Nothing waits in vain when the transfer ends with jobs in flight.
TEST(DeviceTransfer, ItsEndEndsTheWaiting) {
  World w({.pause_one_in = 1});
  const TransferJob first = w.KvJob(1), second = w.KvJob(2);
  w.transfer->Submit(first);
  w.transfer->Submit(second);
  std::thread waiter([&] { EXPECT_FALSE(second.progress->Wait(kLayers - 1)); });
  w.transfer.reset();
  waiter.join();
}

// ---------------------------------------------------------------- From disk

const std::filesystem::path kDemo = std::filesystem::path(LORAMUX_SOURCE_DIR) / "demo";

// An adapter of the demo model in pages of 16 KiB, for tiers that hold it twice.
struct DiskWorld {
  static constexpr std::size_t kBytes = std::size_t{16} << 10;
  ModelConfig config = LoadModelConfig(kDemo / "model").value();
  AdapterRegistry registry{config, {"base"}, {.page_bytes = kBytes, .base_dtype = DType::kF32}};
  std::shared_ptr<const AdapterVersion> version = registry.Register("rot13", kDemo / "adapters/rot13", 0).value();
  std::size_t pages = static_cast<std::size_t>(version->layout.pages);
  World w;

  // A ring of three pages only.
  DiskWorld() : w({}, {.staging_bytes = 3 * kBytes}, kBytes, 2 * pages) {}

  TransferJob Job(std::uint64_t id, Tier to) const {
    TransferJob job;
    job.id = id;
    job.from = {Tier::kDisk, {}};
    job.to = {to, std::vector<std::uint32_t>(pages)};
    for (std::uint32_t i = 0; i < pages; ++i) job.to.pages[i] = 2 * i + 1;
    job.adapter = version;
    job.page_bytes = kBytes;
    job.progress = std::make_shared<LayerProgress>(static_cast<std::int32_t>(config.num_layers));
    return job;
  }
  // Rows of the layout whose bytes differ between the tiers.
  std::size_t DifferentRows() const {
    std::size_t different = 0;
    std::vector<std::vector<std::byte>> read;
    for (std::uint32_t i = 0; i < pages; ++i) read.push_back(w.PageOfDevice(2 * i + 1));
    const std::size_t size = DTypeSize(version->layout.dtype);
    for (const ModulePlace& module : version->layout.modules) {
      const auto compare = [&](const std::vector<RowPlace>& rows, std::int64_t elements) {
        for (const RowPlace row : rows) {
          different += std::memcmp(read[row.page].data() + row.offset, w.Host(2 * row.page + 1) + row.offset,
                                   static_cast<std::size_t>(elements) * size) != 0;
        }
      };
      compare(module.a_rows, module.in);
      compare(module.b_rows, module.out);
    }
    return different;
  }
};

TEST(DeviceTransfer, AnAdapterFromDiskIsTheSameInBothTiers) {
  DiskWorld d;
  ASSERT_GT(d.pages, 3u);
  const TransferJob to_host = d.Job(1, Tier::kHost), to_device = d.Job(2, Tier::kDevice);
  d.w.transfer->Submit(to_host);
  d.w.transfer->Submit(to_device);
  for (const TransferCompletion& completion : d.w.Collect(2)) {
    EXPECT_TRUE(Good(completion)) << (completion.error ? completion.error->message : "cancelled");
  }
  EXPECT_EQ(to_device.progress->arrived(), d.config.num_layers);
  EXPECT_EQ(to_device.progress->events(), nullptr);
  EXPECT_EQ(d.DifferentRows(), 0u);
  for (std::size_t b = 0; b < DiskWorld::kBytes; ++b) ASSERT_EQ(d.w.Host(0)[b], World::Pattern(0, b));  // others stay
}

TEST(DeviceTransfer, JobsFromDiskAreCancelledAndFail) {
  DiskWorld d;
  const TransferJob cancelled = d.Job(1, Tier::kDevice);
  cancelled.progress->Cancel();
  d.w.transfer->Submit(cancelled);
  const TransferCompletion first = d.w.Collect(1)[0];
  EXPECT_TRUE(first.cancelled);
  EXPECT_TRUE(cancelled.progress->failed());
  auto changed = std::make_shared<AdapterVersion>();
  changed->file = OpenAdapter(kDemo / "adapters/rot13", d.config).value();
  changed->file.digest = "another";
  changed->layout = d.version->layout;
  TransferJob broken = d.Job(2, Tier::kDevice);
  broken.adapter = changed;
  d.w.transfer->Submit(broken);
  const TransferCompletion second = d.w.Collect(1)[0];
  ASSERT_TRUE(second.error.has_value());
  EXPECT_NE(second.error->message.find("changed in place"), std::string::npos);
  EXPECT_TRUE(broken.progress->failed());
  d.w.device->FailCopyAfter(2);
  const TransferJob lost = d.Job(3, Tier::kDevice);
  d.w.transfer->Submit(lost);
  const TransferCompletion third = d.w.Collect(1)[0];
  ASSERT_TRUE(third.error.has_value());
  EXPECT_EQ(third.error->code, ErrorCode::kUnavailable);
}

TEST(DeviceTransfer, WithoutPinnedMemoryThereIsNone) {
  const auto device = gpu::MakeEmulatedDevice({});
  device->FailAllocationAfter(0);
  const auto transfer = DeviceTransfer::Create(*device, {}, [] {});
  ASSERT_FALSE(transfer.ok());
  EXPECT_EQ(transfer.error().code, ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace loramux::device_transfer_test
