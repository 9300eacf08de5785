// Tests of transfers that move layer by layer: when data arrives, and how transfers end.
#include "residency/transfer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "formats/adapter_config.h"

namespace loramux::transfer_test {
namespace {

constexpr std::size_t kPageBytes = 64;
constexpr std::size_t kPages = 6;
constexpr std::int32_t kLayers = 4;

// Pages with known bytes in one tier, empty ones in the other.
struct Tiers {
  std::array<std::array<std::byte, kPageBytes>, kPages> host = {}, device = {};
  TierMemory Memory() { return {{host[0].data(), kPageBytes}, {device[0].data(), kPageBytes}}; }

  Tiers() {
    for (std::size_t p = 0; p < kPages; ++p) {
      for (std::size_t b = 0; b < kPageBytes; ++b) host[p][b] = static_cast<std::byte>(1 + p * 31 + b);
    }
  }
  TransferJob Job(std::uint64_t id = 7) {
    TransferJob job;
    job.id = id;
    job.from = {Tier::kHost, {}};
    job.to = {Tier::kDevice, {}};
    job.page_bytes = kPageBytes;
    for (std::uint32_t p = 0; p < kPages; ++p) {
      job.from.pages.push_back(p);
      job.to.pages.push_back(p);
    }
    job.progress = std::make_shared<LayerProgress>(kLayers);
    return job;
  }
  // Each layer has 12 of the 64 bytes; the rest of the page moves with the last layer.
  TransferJob KvJob(std::uint64_t id = 7) {
    TransferJob job = Job(id);
    job.layer_bytes = 12;
    return job;
  }
  // Layer 1 needs no page of its own.
  TransferJob AdapterJob(std::uint64_t id = 7) {
    TransferJob job = Job(id);
    auto version = std::make_shared<AdapterVersion>();
    version->layout.pages = kPages;
    version->layout.layer_pages = {2, 2, 5, 6};
    job.adapter = version;
    return job;
  }
  bool Same(std::size_t page, std::size_t first, std::size_t end) const {
    return std::equal(host[page].begin() + static_cast<std::ptrdiff_t>(first),
                      host[page].begin() + static_cast<std::ptrdiff_t>(end),
                      device[page].begin() + static_cast<std::ptrdiff_t>(first));
  }
  bool Empty(std::size_t page, std::size_t first) const {
    return std::all_of(device[page].begin() + static_cast<std::ptrdiff_t>(first), device[page].end(),
                       [](std::byte b) { return b == std::byte{}; });
  }
};

TEST(Transfer, KeysAndValuesMoveALayerOfAllPagesAtATime) {
  Tiers tiers;
  const TransferJob job = tiers.KvJob();
  std::int32_t done = 0;
  const TransferCompletion completion = RunTransfer(job, tiers.Memory(), [&](std::size_t bytes) {
    EXPECT_EQ(job.progress->arrived(), done) << "the layer was published before its progress callback";
    ++done;
    const std::size_t end = done == kLayers ? kPageBytes : static_cast<std::size_t>(done) * 12;
    for (std::size_t p = 0; p < kPages; ++p) {
      EXPECT_TRUE(tiers.Same(p, 0, end)) << "page " << p << " after layer " << done;
      EXPECT_TRUE(tiers.Empty(p, end)) << "page " << p << " after layer " << done;
    }
    EXPECT_EQ(bytes, kPages * (done == kLayers ? kPageBytes - 36 : 12));
  });
  EXPECT_EQ(done, kLayers);
  EXPECT_FALSE(completion.error || completion.cancelled);
  EXPECT_EQ(job.progress->arrived(), kLayers);
  EXPECT_EQ(tiers.host, tiers.device);
}

TEST(Transfer, AnAdapterMovesThePagesThatItsLayersNeed) {
  Tiers tiers;
  const TransferJob job = tiers.AdapterJob();
  std::vector<std::size_t> pages;  // pages present after each layer
  RunTransfer(job, tiers.Memory(), [&](std::size_t) {
    pages.push_back(0);
    for (std::size_t p = 0; p < kPages; ++p) pages.back() += tiers.Same(p, 0, kPageBytes);
  });
  EXPECT_EQ(pages, (std::vector<std::size_t>{2, 2, 5, 6}));
  EXPECT_EQ(tiers.host, tiers.device);
}

// A job names pages by their index in each tier; the pages of one job may lie anywhere.
TEST(Transfer, PagesGoWhereTheJobSays) {
  for (const bool adapter : {false, true}) {
    Tiers tiers;
    TransferJob job = adapter ? tiers.AdapterJob() : tiers.KvJob();
    job.from.pages = {4, 0, 2, 1, 5, 3};
    job.to.pages = {1, 5, 0, 4, 2, 3};
    EXPECT_FALSE(RunTransfer(job, tiers.Memory()).error);
    for (std::size_t i = 0; i < kPages; ++i) EXPECT_EQ(tiers.device[job.to.pages[i]], tiers.host[job.from.pages[i]]);
    std::swap(job.from, job.to);  // and back
    EXPECT_EQ(job.kind(), TransferKind::kDeviceToHost);
    tiers.host = {};
    job.progress = nullptr;
    EXPECT_FALSE(RunTransfer(job, tiers.Memory()).error);
    for (std::size_t i = 0; i < kPages; ++i) EXPECT_EQ(tiers.host[job.to.pages[i]], tiers.device[job.from.pages[i]]);
  }
}

TEST(Transfer, WithoutLayersItIsAllOrNothing) {
  Tiers tiers;
  TransferJob job = tiers.Job();  // no layer_bytes
  std::vector<std::int32_t> arrived;
  RunTransfer(job, tiers.Memory(), [&](std::size_t) { arrived.push_back(job.progress->arrived()); });
  EXPECT_EQ(arrived, (std::vector<std::int32_t>{0}));
  EXPECT_EQ(job.progress->arrived(), kLayers);
  job.progress = nullptr;  // no progress
  EXPECT_FALSE(RunTransfer(job, tiers.Memory()).error);
}

TEST(Transfer, ACancelledOneEndsBetweenLayers) {
  for (std::int32_t cancel_after = 0; cancel_after < kLayers; ++cancel_after) {
    Tiers tiers;
    const TransferJob job = tiers.KvJob();
    if (cancel_after == 0) job.progress->Cancel();
    std::int32_t done = 0;
    const TransferCompletion completion = RunTransfer(job, tiers.Memory(), [&](std::size_t) {
      if (++done == cancel_after) job.progress->Cancel();
    });
    EXPECT_EQ(done, cancel_after);
    EXPECT_TRUE(completion.cancelled);
    EXPECT_FALSE(completion.error);
    EXPECT_TRUE(job.progress->failed());
    EXPECT_FALSE(job.progress->Wait(0));  // does not block
    for (std::size_t p = 0; p < kPages; ++p) EXPECT_TRUE(tiers.Empty(p, static_cast<std::size_t>(cancel_after) * 12));
  }
}

TEST(LayerProgress, WaitingEndsWithTheLayerOrWithFailure) {
  for (std::int32_t fail_at = 0; fail_at <= kLayers; ++fail_at) {  // kLayers: no failure
    LayerProgress progress(kLayers);
    std::vector<int> data(kLayers, 0);  // not atomic: Publish makes it visible
    std::vector<std::int32_t> seen;
    bool failed = false;
    std::thread reader([&] {
      for (std::int32_t layer = 0; layer < kLayers + 2 && !failed; ++layer) {  // layers beyond the last come with it
        failed = !progress.Wait(layer);
        if (!failed) seen.push_back(data[static_cast<std::size_t>(std::min(layer, kLayers - 1))]);
      }
    });
    for (std::int32_t layer = 0; layer < fail_at; ++layer) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      data[static_cast<std::size_t>(layer)] = layer + 1;
      progress.Publish(layer + 1);
    }
    if (fail_at < kLayers) progress.Fail();
    reader.join();
    EXPECT_EQ(failed, fail_at < kLayers);
    EXPECT_LE(seen.size(), static_cast<std::size_t>(fail_at == kLayers ? kLayers + 2 : fail_at));
    if (!failed) EXPECT_EQ(seen, (std::vector<std::int32_t>{1, 2, 3, 4, 4, 4}));
    EXPECT_TRUE(progress.ended());
    EXPECT_EQ(progress.arrived(), failed ? 0 : kLayers);
  }
}

TEST(LayerProgress, TheLeadIsAQuarterAndAtLeastOne) {
  EXPECT_EQ(LayerProgress(0).layers(), 1);  // an unknown number of layers counts as one
  EXPECT_EQ(LayerProgress(1).lead(), 1);
  EXPECT_EQ(LayerProgress(4).lead(), 1);
  EXPECT_EQ(LayerProgress(5).lead(), 2);
  EXPECT_EQ(LayerProgress(32).lead(), 8);
}

// ---------------------------------------------------------------- Threads

std::vector<TransferCompletion> Collect(PageTransfer& transfer, std::size_t count) {
  std::vector<TransferCompletion> done;
  while (done.size() < count) {
    if (auto completion = transfer.Poll())
      done.push_back(std::move(*completion));
    else
      std::this_thread::yield();
  }
  return done;
}

TEST(ThreadedTransfer, LayersCanBeReadWhileLaterOnesArrive) {
  Tiers tiers;
  std::atomic<int> wakes{0};
  ThreadedTransfer transfer([&] { ++wakes; }, tiers.Memory(),
                            {.bytes_per_second = kPages * kPageBytes / 0.05});  // 50 milliseconds
  const TransferJob job = tiers.KvJob();
  transfer.Submit(job);
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    ASSERT_TRUE(job.progress->Wait(layer));
    const auto begin = static_cast<std::size_t>(layer) * 12;
    for (std::size_t p = 0; p < kPages; ++p) EXPECT_TRUE(tiers.Same(p, begin, begin + 12));
  }
  const auto done = Collect(transfer, 1);
  EXPECT_EQ(done[0].id, 7u);
  EXPECT_FALSE(done[0].error || done[0].cancelled);
  while (wakes < 2) std::this_thread::yield();  // one for the lead, one for the end
  EXPECT_EQ(tiers.host, tiers.device);
}

// Pages of so many layers that each takes ten minutes on a link of kBytesPerSecond: no test sees its end, however slow
// the machine is. A layer takes a millisecond, so it can be cancelled at any time.
struct LongMoves {
  static constexpr double kBytesPerSecond = 1000;
  static constexpr std::int32_t kBytes = 600'000;
  static constexpr std::size_t kMoves = 4;
  std::vector<std::byte> host = std::vector<std::byte>(kMoves * kBytes, std::byte{1}),
                         device = std::vector<std::byte>(kMoves * kBytes, std::byte{0});

  TierMemory Memory() { return {{host.data(), kBytes}, {device.data(), kBytes}}; }
  // Moves page `page`, and has its number as id.
  static TransferJob Job(std::uint32_t page) {
    TransferJob job;
    job.id = page;
    job.from = {Tier::kHost, {page}};
    job.to = {Tier::kDevice, {page}};
    job.page_bytes = kBytes;
    job.layer_bytes = 1;
    job.progress = std::make_shared<LayerProgress>(kBytes);
    return job;
  }
  std::int64_t Moved(std::size_t page) const {
    const auto first = device.begin() + static_cast<std::ptrdiff_t>(page * kBytes);
    return std::count(first, first + kBytes, std::byte{1});
  }
};

TEST(ThreadedTransfer, CancelledJobsMakeWayForOthers) {
  LongMoves moves;
  ThreadedTransfer transfer([] {}, moves.Memory(), {.bytes_per_second = LongMoves::kBytesPerSecond});
  std::vector<TransferJob> jobs = {LongMoves::Job(0), LongMoves::Job(1), LongMoves::Job(2), LongMoves::Job(3)};
  jobs[3].page_bytes = 64;  // a quick one
  jobs[3].progress = nullptr;
  for (const TransferJob& job : jobs) transfer.Submit(job);
  ASSERT_TRUE(jobs[0].progress->Wait(0));
  for (std::size_t i = 0; i < 3; ++i) jobs[i].progress->Cancel();
  const auto done = Collect(transfer, 4);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(done[i].id, i);
    EXPECT_EQ(done[i].cancelled, i < 3);
  }
  EXPECT_LT(moves.Moved(0), LongMoves::kBytes);
  EXPECT_EQ(moves.Moved(1) + moves.Moved(2), 0);
  EXPECT_EQ(moves.Moved(3), 64);
}

// A copy to the host does not wait for one to the device.
TEST(ThreadedTransfer, QueuesRunSideBySide) {
  LongMoves moves;
  ThreadedTransfer transfer([] {}, moves.Memory(), {.bytes_per_second = LongMoves::kBytesPerSecond});
  const TransferJob slow = LongMoves::Job(0);
  TransferJob back = LongMoves::Job(1);
  std::swap(back.from, back.to);
  back.page_bytes = 64;  // a quick one
  back.progress = nullptr;
  EXPECT_NE(slow.queue(), back.queue());
  transfer.Submit(slow);
  ASSERT_TRUE(slow.progress->Wait(0));
  transfer.Submit(back);
  EXPECT_EQ(Collect(transfer, 1)[0].id, 1u);
  EXPECT_FALSE(slow.progress->ended());
}

// A waiting thread must be released when the transfer drops its job.
TEST(ThreadedTransfer, ItsEndEndsTheWaiting) {
  LongMoves moves;
  auto transfer = std::make_unique<ThreadedTransfer>(
      [] {}, moves.Memory(), ThreadedTransferOptions{.bytes_per_second = LongMoves::kBytesPerSecond});
  const TransferJob first = LongMoves::Job(0), second = LongMoves::Job(1);
  transfer->Submit(first);
  transfer->Submit(second);
  ASSERT_TRUE(first.progress->Wait(0));
  std::thread waiter([&] {
    EXPECT_FALSE(first.progress->Wait(LongMoves::kBytes - 1));
    EXPECT_FALSE(second.progress->Wait(0));
  });
  transfer.reset();
  waiter.join();
}

// ---------------------------------------------------------------- On a virtual clock

TEST(ModeledTransfer, LayersArriveEvenlyAndAreAFunctionOfTheClock) {
  Tiers tiers;
  VirtualClock clock;
  // 400 nanoseconds.
  const ModeledTransfer::Link link{.latency_ns = 10, .bytes_per_second = kPages * kPageBytes / 400e-9};
  ModeledTransfer transfer(&clock, {}, link, link, tiers.Memory());
  const TransferJob job = tiers.KvJob();
  transfer.Submit(job);
  EXPECT_EQ(transfer.next_end(), 110);  // the lead: one layer of four
  std::vector<std::int32_t> arrived;
  for (const TimeNs now : {109, 110, 210, 300, 310, 409}) {
    clock.AdvanceTo(now);
    EXPECT_FALSE(transfer.Poll());
    arrived.push_back(job.progress->arrived());
    for (std::size_t p = 0; p < kPages; ++p) EXPECT_TRUE(tiers.Empty(p, static_cast<std::size_t>(arrived.back()) * 12));
  }
  EXPECT_EQ(arrived, (std::vector<std::int32_t>{0, 1, 2, 2, 3, 3}));
  EXPECT_EQ(transfer.next_end(), 410);
  clock.AdvanceTo(410);
  ASSERT_TRUE(transfer.Poll());
  EXPECT_EQ(job.progress->arrived(), kLayers);
  EXPECT_EQ(tiers.host, tiers.device);
}

TEST(ModeledTransfer, AFaultAndACancellationFailTheProgress) {
  Tiers tiers;
  VirtualClock clock;
  ModeledTransfer transfer(&clock, {}, {.latency_ns = 0, .bytes_per_second = kPages * kPageBytes / 400e-9});
  transfer.set_fault(
      [](const TransferJob& job) { return job.id == 1 ? std::optional<Error>(IoError("injected")) : std::nullopt; });
  const TransferJob broken = tiers.KvJob(1), unwanted = tiers.KvJob(2);
  transfer.Submit(broken);
  transfer.Submit(unwanted);
  clock.AdvanceTo(300);
  EXPECT_FALSE(transfer.Poll());
  EXPECT_EQ(broken.progress->arrived(), 3);
  unwanted.progress->Cancel();
  const auto cancelled = transfer.Poll();  // at once
  ASSERT_TRUE(cancelled && cancelled->cancelled);
  EXPECT_EQ(cancelled->id, 2u);
  EXPECT_TRUE(unwanted.progress->failed());
  clock.AdvanceTo(400);
  const auto failed = transfer.Poll();
  ASSERT_TRUE(failed && failed->error);
  EXPECT_TRUE(broken.progress->failed());
  EXPECT_EQ(transfer.next_end(), -1);
}

// ---------------------------------------------------------------- Layers of an adapter

TEST(AdapterLayout, LayerPagesHoldAllRowsOfTheLayers) {
  const auto layer = [](std::int32_t l, LoraTarget target, std::int32_t rank) {
    return ModuleShape{l, target, rank, 1.0f, 64, 64};
  };
  // Layer 1 is not adapted; the pages of the last layer and of lm_head come together.
  const auto layout =
      LayoutAdapter({layer(0, LoraTarget::kQ, 3), layer(0, LoraTarget::kV, 2), layer(2, LoraTarget::kQ, 4),
                     layer(3, LoraTarget::kDown, 1), layer(0, LoraTarget::kLmHead, 2)},
                    DType::kF32, 1024);  // 4 rows a page
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->pages, 6);
  EXPECT_EQ(layout->layer_pages, (std::vector<std::int32_t>{3, 3, 5, 6}));
  for (const ModulePlace& module : layout->modules) {
    const std::int32_t pages = module.target == LoraTarget::kLmHead
                                   ? layout->layer_pages.back()
                                   : layout->layer_pages[static_cast<std::size_t>(module.layer)];
    for (const auto* rows : {&module.a_rows, &module.b_rows}) {
      for (const RowPlace row : *rows) EXPECT_LT(static_cast<std::int32_t>(row.page), pages);
    }
  }
}

}  // namespace
}  // namespace loramux::transfer_test
