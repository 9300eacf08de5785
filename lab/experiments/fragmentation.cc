#include "lab/experiments/fragmentation.h"

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <optional>

#include "base/check.h"
#include "base/prng.h"
#include "memory/page_pool.h"
#include "residency/adapter_residency.h"

namespace loramux {
namespace {

// A first-fit allocator of contiguous blocks, which joins neighbouring holes when a block is freed. Sizes in bytes.
class FirstFit {
 public:
  explicit FirstFit(std::int64_t size) : holes_{{0, size}}, free_(size) {}
  std::optional<std::int64_t> Allocate(std::int64_t size) {
    const auto hole = std::find_if(holes_.begin(), holes_.end(), [&](const auto& h) { return h.second >= size; });
    if (hole == holes_.end()) return std::nullopt;
    const auto [begin, length] = *hole;
    holes_.erase(hole);
    if (length > size) holes_[begin + size] = length - size;
    free_ -= size;
    return begin;
  }
  void Free(std::int64_t begin, std::int64_t size) {
    free_ += size;
    auto after = holes_.lower_bound(begin);
    if (after != holes_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second == begin) {
        begin = before->first;
        size += before->second;
        holes_.erase(before);
      }
    }
    if (after != holes_.end() && begin + size == after->first) {
      size += after->second;
      holes_.erase(after);
    }
    holes_[begin] = size;
  }
  std::int64_t free() const { return free_; }
  double External() const {
    std::int64_t largest = 0;
    for (const auto& [begin, length] : holes_) largest = std::max(largest, length);
    return free_ == 0 ? 0 : 1 - static_cast<double>(largest) / static_cast<double>(free_);
  }

 private:
  std::map<std::int64_t, std::int64_t> holes_;  // begin -> length
  std::int64_t free_;
};

// Adapters in order of use, the least recently used first.
class LruList {
 public:
  bool Has(std::uint32_t adapter) const { return places_.contains(adapter); }
  void Use(std::uint32_t adapter) {
    if (Has(adapter)) order_.erase(places_[adapter]);
    places_[adapter] = order_.insert(order_.end(), adapter);
  }
  std::uint32_t TakeOldest() {
    const std::uint32_t oldest = order_.front();
    order_.pop_front();
    places_.erase(oldest);
    return oldest;
  }
  std::size_t size() const { return order_.size(); }
  const std::list<std::uint32_t>& order() const { return order_; }

 private:
  std::list<std::uint32_t> order_;
  std::map<std::uint32_t, std::list<std::uint32_t>::iterator> places_;
};

class Run {
 public:
  explicit Run(const FragmentationOptions& options)
      : options_(options), prng_(options.seed), holes_(options.pool_bytes) {}

  Status Build() {
    ASSIGN_OR_RETURN(pool_, PagePool::Create("device", options_.pool_bytes, options_.page_bytes));
    no_host_ = PagePool::WithoutPages(options_.page_bytes);
    residency_.emplace(*pool_, *no_host_, transfer_);
    for (std::uint32_t i = 0; i < options_.adapters; ++i) {
      if (Layout(i).pages > pool_->capacity_pages()) return ResourceExhausted("an adapter is larger than the pool", "");
      auto version = std::make_shared<AdapterVersion>();
      version->generation = Generation(i);
      version->layout = Layout(i);
      residency_->Add(std::move(version));
    }
    return Ok{};
  }

  // Each cycle requests an adapter that the paged pool does not hold, so each is a load for that pool.
  FragmentationFigures Count() {
    const std::int64_t part = std::max<std::int64_t>(1, options_.cycles / 100);
    double in_part = 0;
    for (std::int64_t cycle = 1; cycle <= options_.cycles; ++cycle) {
      std::uint32_t adapter = 0;
      do {
        adapter = static_cast<std::uint32_t>(prng_.NextBelow(options_.adapters));
        in_pages_.Has(adapter) ? in_pages_.Use(adapter) : void();
      } while (in_pages_.Has(adapter));
      LoadIntoPages(adapter);
      LoadInOnePiece(adapter);
      Measure();
      in_part += holes_.External();
      if (cycle % part == 0) {
        figures_.contiguous.external_over_time.push_back(in_part / static_cast<double>(part));
        in_part = 0;
      }
    }
    residency_->CheckIntegrity();
    pool_->CheckIntegrity();
    return figures_;
  }

 private:
  const AdapterLayout& Layout(std::uint32_t adapter) const {
    return options_.layouts[adapter % options_.layouts.size()];
  }
  static AdapterGeneration Generation(std::uint32_t adapter) { return AdapterGeneration{adapter + 1}; }

  void LoadIntoPages(std::uint32_t adapter) {
    while (pool_->free_pages() < Layout(adapter).pages) {
      residency_->Evict(Generation(in_pages_.TakeOldest()), Tier::kDevice);
      ++figures_.paged.evictions;
    }
    residency_->BeginLoad(Generation(adapter), /*via_host=*/false, clock_.Now());  // aborts if the pool refuses
    std::vector<ResidencyManager::LoadFailure> failures;
    while (transfer_.next_end() >= 0) {
      clock_.AdvanceTo(std::max(clock_.Now(), transfer_.next_end()));
      residency_->Poll(clock_.Now(), failures);
    }
    figures_.paged.failures += residency_->Get(Generation(adapter)).device != TierState::kResident;
    in_pages_.Use(adapter);
  }

  void LoadInOnePiece(std::uint32_t adapter) {
    if (in_one_piece_.Has(adapter)) return in_one_piece_.Use(adapter);
    const std::int64_t size = Layout(adapter).payload_bytes;
    while (holes_.free() < size) EvictPiece();
    std::optional<std::int64_t> begin = holes_.Allocate(size);
    figures_.contiguous.failures += !begin.has_value();
    for (; !begin.has_value(); begin = holes_.Allocate(size)) EvictPiece();
    begins_[adapter] = *begin;
    in_one_piece_.Use(adapter);
  }

  void EvictPiece() {
    const std::uint32_t oldest = in_one_piece_.TakeOldest();
    holes_.Free(begins_[oldest], Layout(oldest).payload_bytes);
    ++figures_.contiguous.evictions;
  }

  void Measure() {
    const double share = 1.0 / static_cast<double>(options_.cycles);
    std::int64_t payload = 0;
    for (const std::uint32_t adapter : in_pages_.order()) payload += Layout(adapter).payload_bytes;
    const std::int64_t pages = pool_->Stats().used(PageCategory::kAdapter);
    figures_.paged.internal +=
        share * (1 - static_cast<double>(payload) / static_cast<double>(pages * options_.page_bytes));
    figures_.paged.held += share * static_cast<double>(in_pages_.size());
    figures_.contiguous.held += share * static_cast<double>(in_one_piece_.size());
    figures_.contiguous.external += share * holes_.External();
    figures_.contiguous.unused += share * static_cast<double>(holes_.free()) / static_cast<double>(options_.pool_bytes);
    figures_.paged.unused +=
        share * static_cast<double>(pool_->free_pages()) / static_cast<double>(pool_->capacity_pages());
  }

  const FragmentationOptions& options_;
  Prng prng_;
  VirtualClock clock_;
  ModeledTransfer transfer_{&clock_, {.latency_ns = 1000}, {.latency_ns = 1000}};
  std::unique_ptr<PagePool> pool_, no_host_;
  std::optional<ResidencyManager> residency_;
  FirstFit holes_;
  LruList in_pages_, in_one_piece_;
  std::map<std::uint32_t, std::int64_t> begins_;
  FragmentationFigures figures_;
};

}  // namespace

Result<FragmentationFigures> CountFragmentation(const FragmentationOptions& options) {
  Run run(options);
  RETURN_IF_ERROR(run.Build());
  return run.Count();
}

}  // namespace loramux
