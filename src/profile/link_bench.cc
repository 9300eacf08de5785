#include "profile/link_bench.h"

#include <algorithm>
#include <cmath>

#include <fcntl.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/wakeup.h"
#include "memory/page_pool.h"
#include "residency/transfer.h"
#include "workload/statistics.h"

namespace loramux {
namespace {

constexpr int kLeastRepetitions = 3, kMostRepetitions = 15;
constexpr std::int64_t kArenaBytes = std::int64_t{160} << 20;  // larger than CPU caches
constexpr std::int64_t kLargestMove = std::int64_t{64} << 20;

double Seconds(TimeNs duration) { return static_cast<double>(duration) / static_cast<double>(kNsPerSecond); }

class TransferTimer {
 public:
  static Result<std::unique_ptr<TransferTimer>> Create(const PlacedModel& model, const TierMemory& memory) {
    std::unique_ptr<TransferTimer> timer(new TransferTimer);
    ASSIGN_OR_RETURN(timer->transfer_,
                     model.MakeTransfer(memory, {}, [wakeup = &timer->wakeup_] { wakeup->Signal(); }));
    return timer;
  }
  Result<double> Run(TransferJob job) {
    const TimeNs begin = clock_.Now();
    transfer_->Submit(std::move(job));
    while (true) {
      if (auto completion = transfer_->Poll()) {
        if (completion->error) return *completion->error;
        return Seconds(clock_.Now() - begin);
      }
      wakeup_.Wait();
    }
  }
  TimeNs Now() const { return clock_.Now(); }

 private:
  TransferTimer() = default;
  OsClock clock_;
  Wakeup wakeup_;
  std::unique_ptr<PageTransfer> transfer_;
};

// All pages of one tier, handed out in turn.
class PageRing {
 public:
  // The bytes of a ring of at least `least` pages.
  static std::int64_t BytesFor(std::int64_t page_bytes, std::int64_t least) {
    return std::max(kArenaBytes, least * page_bytes);
  }
  explicit PageRing(std::unique_ptr<PagePool> pool) : pool_(std::move(pool)) {
    std::vector<PageHandle> handles(static_cast<std::size_t>(pool_->capacity_pages()));
    CHECK(pool_->Allocate(PageCategory::kAdapter, handles));
    for (const PageHandle handle : handles) {
      pages_.push_back(handle.index);
      if (pool_->memory_kind() == MemoryKind::kDevice) continue;            // physical memory already
      std::fill_n(pool_->Data(handle), pool_->page_bytes(), std::byte{1});  // gives each page its own
    }
  }
  PageSet Next(Tier tier, std::int64_t count) {
    PageSet set{.tier = tier, .pages = {}};
    for (std::int64_t i = 0; i < count; ++i) set.pages.push_back(pages_[next_++ % pages_.size()]);
    return set;
  }
  PageArena View() const { return pool_->View(); }
  std::int64_t size() const { return static_cast<std::int64_t>(pages_.size()); }

 private:
  std::unique_ptr<PagePool> pool_;
  std::vector<std::uint32_t> pages_;
  std::size_t next_ = 0;
};

// Makes the next read come from the disk, if the file is on one.
void DropFromPageCache(const std::filesystem::path& directory) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    const int file = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    static_cast<void>(fdatasync(file));  // only clean pages can be dropped
    static_cast<void>(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED));
    close(file);
  }
}

class LinkBench {
 public:
  // `timer` moves pages of the two rings.
  LinkBench(PageRing& device, PageRing& host, TransferTimer& timer, std::int64_t page_bytes, double seconds, Prng& prng)
      : device_(device), host_(host), timer_(timer), page_bytes_(page_bytes), seconds_(seconds), prng_(prng) {}

  // Measures about 24 random sizes, uniform over their orders of magnitude.
  Status Move(Tier from, Tier to, LinkMeasurements& measured) {
    constexpr int kSizes = 24;
    const std::int64_t most = std::clamp<std::int64_t>(kLargestMove / page_bytes_, 1, device_.size() / 2 + 1);
    const double least_log = std::log(1.0), most_log = std::log(static_cast<double>(most));
    for (int i = 0; i < kSizes; ++i) {
      const auto pages =
          static_cast<std::int64_t>(std::llround(std::exp(least_log + (most_log - least_log) * prng_.NextDouble())));
      RETURN_IF_ERROR(Repeat(measured, static_cast<double>(pages * page_bytes_), seconds_ / kSizes, [&] {
        return timer_.Run({.id = 1,
                           .from = Ring(from).Next(from, pages),
                           .to = Ring(to).Next(to, pages),
                           .page_bytes = static_cast<std::size_t>(page_bytes_)});
      }));
    }
    return Ok{};
  }

  Status Read(const std::vector<std::shared_ptr<const AdapterVersion>>& adapters, LinkMeasurements& measured) {
    for (const auto& adapter : adapters) {
      const std::int64_t pages = adapter->layout.pages;
      CHECK(pages <= host_.size());
      RETURN_IF_ERROR(Repeat(measured, static_cast<double>(pages * page_bytes_),
                             seconds_ / static_cast<double>(adapters.size()), [&] {
                               DropFromPageCache(adapter->path);
                               return timer_.Run({.id = 1,
                                                  .from = {.tier = Tier::kDisk, .pages = {}},
                                                  .to = host_.Next(Tier::kHost, pages),
                                                  .adapter = adapter,
                                                  .page_bytes = static_cast<std::size_t>(page_bytes_)});
                             }));
    }
    return Ok{};
  }

 private:
  template <typename Run>
  Status Repeat(LinkMeasurements& measured, double bytes, double budget, Run run) {
    std::vector<double> times;
    const TimeNs begin = timer_.Now();
    while (times.size() < kLeastRepetitions ||
           (times.size() < kMostRepetitions && Seconds(timer_.Now() - begin) < budget)) {
      ASSIGN_OR_RETURN(const double seconds, run());
      times.push_back(seconds);
    }
    measured.bytes.push_back(bytes);
    measured.seconds.push_back(UpperMedian(std::move(times)));
    return Ok{};
  }

  PageRing& Ring(Tier tier) { return tier == Tier::kHost ? host_ : device_; }

  PageRing &device_, &host_;
  TransferTimer& timer_;
  const std::int64_t page_bytes_;
  const double seconds_;  // for each link
  Prng& prng_;
};

}  // namespace

Result<LinkMeasurementsOfAll> MeasureLinks(const PlacedModel& model,
                                           const std::vector<std::shared_ptr<const AdapterVersion>>& adapters,
                                           std::int64_t page_bytes, double seconds, Prng& prng) {
  std::int64_t largest = 1;  // the largest adapter, in pages
  for (const auto& adapter : adapters) largest = std::max(largest, adapter->layout.pages);
  ASSIGN_OR_RETURN(auto device_pool, model.MakeDevicePool(PageRing::BytesFor(page_bytes, 1), page_bytes));
  ASSIGN_OR_RETURN(auto host_pool, model.MakeHostPool(PageRing::BytesFor(page_bytes, largest), page_bytes));
  PageRing device(std::move(device_pool)), host(std::move(host_pool));
  ASSIGN_OR_RETURN(const auto timer, TransferTimer::Create(model, {host.View(), device.View()}));
  LinkBench bench(device, host, *timer, page_bytes, seconds / 3, prng);
  LinkMeasurementsOfAll measured;
  RETURN_IF_ERROR(bench.Move(Tier::kHost, Tier::kDevice, measured.host_to_device));
  RETURN_IF_ERROR(bench.Move(Tier::kDevice, Tier::kHost, measured.device_to_host));
  RETURN_IF_ERROR(bench.Read(adapters, measured.disk));
  return measured;
}

}  // namespace loramux
