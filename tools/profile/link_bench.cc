#include "tools/profile/link_bench.h"

#include <algorithm>
#include <cmath>

#include <fcntl.h>
#include <unistd.h>

#include "adapter/transfer.h"
#include "base/clock.h"
#include "engine/wakeup.h"
#include "memory/page_pool.h"

namespace loramux {
namespace {

constexpr int kLeastRepetitions = 3, kMostRepetitions = 15;
constexpr std::int64_t kArenaBytes = std::int64_t{160} << 20;  // larger than CPU caches
constexpr std::int64_t kLargestMove = std::int64_t{64} << 20;

double Seconds(TimeNs duration) { return static_cast<double>(duration) / static_cast<double>(kNsPerSecond); }

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class TransferTimer {
 public:
  Result<double> Run(TransferJob job) {
    const TimeNs begin = clock_.Now();
    transfer_.Submit(std::move(job));
    while (true) {
      if (auto completion = transfer_.Poll()) {
        if (completion->error) return *completion->error;
        return Seconds(clock_.Now() - begin);
      }
      wakeup_.Wait();
    }
  }
  TimeNs Now() const { return clock_.Now(); }

 private:
  OsClock clock_;
  Wakeup wakeup_;
  ThreadedTransfer transfer_{[this] { wakeup_.Signal(); }};
};

// All pages of one tier, handed out in turn.
class PageRing {
 public:
  // Allocates at least `least` pages.
  static Result<PageRing> Create(const char* name, std::int64_t page_bytes, std::int64_t least) {
    PageRing ring;
    ASSIGN_OR_RETURN(ring.pool_, PagePool::Create(name, std::max(kArenaBytes, least * page_bytes), page_bytes));
    std::vector<PageHandle> handles(static_cast<std::size_t>(ring.pool_->capacity_pages()));
    CHECK(ring.pool_->Allocate(PageCategory::kAdapter, handles));
    for (const PageHandle handle : handles) {
      ring.pages_.push_back(ring.pool_->Data(handle));
      std::fill_n(ring.pages_.back(), page_bytes, std::byte{1});  // gives each page physical memory of its own
    }
    return ring;
  }
  std::vector<std::byte*> Next(std::int64_t count) {
    std::vector<std::byte*> result;
    for (std::int64_t i = 0; i < count; ++i) result.push_back(pages_[next_++ % pages_.size()]);
    return result;
  }
  std::int64_t size() const { return static_cast<std::int64_t>(pages_.size()); }

 private:
  std::unique_ptr<PagePool> pool_;
  std::vector<std::byte*> pages_;
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
  LinkBench(PageRing device, PageRing host, std::int64_t page_bytes, double seconds, Prng& prng)
      : device_(std::move(device)), host_(std::move(host)), page_bytes_(page_bytes), seconds_(seconds), prng_(prng) {}

  // Measures about 24 random sizes, uniform over their orders of magnitude.
  Status Move(TransferKind kind, LinkMeasurements& measured) {
    constexpr int kSizes = 24;
    const std::int64_t most = std::clamp<std::int64_t>(kLargestMove / page_bytes_, 1, device_.size() / 2 + 1);
    const double from = std::log(1.0), to = std::log(static_cast<double>(most));
    for (int i = 0; i < kSizes; ++i) {
      const auto pages = static_cast<std::int64_t>(std::llround(std::exp(from + (to - from) * prng_.NextDouble())));
      RETURN_IF_ERROR(Repeat(measured, static_cast<double>(pages * page_bytes_), seconds_ / kSizes, [&] {
        const bool to_device = kind == TransferKind::kHostToDevice;
        TransferJob job{.id = 1, .kind = kind, .page_bytes = static_cast<std::size_t>(page_bytes_)};
        job.source = (to_device ? host_ : device_).Next(pages);
        job.destination = (to_device ? device_ : host_).Next(pages);
        return timer_.Run(std::move(job));
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
                               TransferJob job{.id = 1,
                                               .kind = TransferKind::kDiskToHost,
                                               .adapter = adapter,
                                               .page_bytes = static_cast<std::size_t>(page_bytes_)};
                               job.destination = host_.Next(pages);
                               return timer_.Run(std::move(job));
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
    measured.seconds.push_back(Median(std::move(times)));
    return Ok{};
  }

  TransferTimer timer_;
  PageRing device_, host_;
  const std::int64_t page_bytes_;
  const double seconds_;  // for each link
  Prng& prng_;
};

}  // namespace

Result<LinkMeasurementsOfAll> MeasureLinks(const std::vector<std::shared_ptr<const AdapterVersion>>& adapters,
                                           std::int64_t page_bytes, double seconds, Prng& prng) {
  std::int64_t largest = 1;  // the largest adapter, in pages
  for (const auto& adapter : adapters) largest = std::max(largest, adapter->layout.pages);
  ASSIGN_OR_RETURN(PageRing device, PageRing::Create("device", page_bytes, 1));
  ASSIGN_OR_RETURN(PageRing host, PageRing::Create("host", page_bytes, largest));
  LinkBench bench(std::move(device), std::move(host), page_bytes, seconds / 3, prng);
  LinkMeasurementsOfAll measured;
  RETURN_IF_ERROR(bench.Move(TransferKind::kHostToDevice, measured.host_to_device));
  RETURN_IF_ERROR(bench.Move(TransferKind::kDeviceToHost, measured.device_to_host));
  RETURN_IF_ERROR(bench.Read(adapters, measured.disk));
  return measured;
}

}  // namespace loramux
