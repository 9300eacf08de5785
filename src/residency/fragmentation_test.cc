// Fragmentation (figures vl-f1 to vl-f3 of the sources): 10,000 loads and evictions of adapters of mixed ranks, while
// KV pages are allocated and freed in the same pools. The test uses the residency manager on both tiers, real layouts
// and real page sizes. The transfers move nothing, so no page is touched. A contiguous allocator gets the same sequence
// and fails, which shows that the sequence is hard enough.
#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include "adapter/layout.h"
#include "base/prng.h"
#include "memory/page_geometry.h"
#include "residency/adapter_residency.h"

namespace loramux::fragmentation_test {
namespace {

constexpr int kCycles = 10'000;
constexpr std::uint32_t kAdapters = 200;

ModelConfig Llama(std::int64_t kv_heads, std::int64_t ffn, std::int64_t vocabulary) {
  ModelConfig config;
  config.hidden_size = 4096;
  config.num_layers = 32;
  config.num_heads = 32;
  config.num_kv_heads = kv_heads;
  config.head_dim = 128;
  config.intermediate_size = ffn;
  config.vocab_size = vocabulary;
  return config;
}
const ModelConfig kLlama2_7B = Llama(32, 11008, 32000), kLlama3_8B = Llama(8, 14336, 128256);

AdapterLayout AnyLayout(const ModelConfig& model, std::size_t page_bytes, Prng& prng) {
  using enum LoraTarget;
  const std::vector<LoraTarget> targets[] = {{kQ, kV}, {kQ, kK, kV, kO}, {kQ, kK, kV, kO, kGate, kUp, kDown}};
  constexpr std::int32_t kUsual[] = {8, 16, 32, 64, 128};
  const bool usual = prng.NextBelow(4) > 0;
  const auto rank = usual ? kUsual[prng.NextBelow(5)] : 8 + static_cast<std::int32_t>(prng.NextBelow(121));
  const auto& chosen = targets[prng.NextBelow(3)];
  std::vector<ModuleShape> modules;
  for (std::int32_t layer = 0; layer < model.num_layers; ++layer) {
    for (const LoraTarget target : chosen) {
      const LinearShape shape = TargetShape(model, target);
      modules.push_back({layer, target, rank, 1.0f, shape.in, shape.out});
    }
  }
  return LayoutAdapter(modules, DType::kBF16, page_bytes).value();
}

// First fit in contiguous blocks; adjacent free blocks are merged.
class ContiguousAllocator {
 public:
  explicit ContiguousAllocator(std::int64_t size) : free_{{0, size}}, free_total_(size) {}
  std::optional<std::int64_t> Allocate(std::int64_t size) {
    for (auto at = free_.begin(); at != free_.end(); ++at) {
      const auto [begin, length] = *at;
      if (length < size) continue;
      free_.erase(at);
      if (length > size) free_[begin + size] = length - size;
      free_total_ -= size;
      return begin;
    }
    return std::nullopt;
  }
  void Free(std::int64_t begin, std::int64_t size) {
    free_total_ += size;
    auto after = free_.lower_bound(begin);
    if (after != free_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second == begin) {
        begin = before->first;
        size += before->second;
        free_.erase(before);
      }
    }
    if (after != free_.end() && begin + size == after->first) {
      size += after->second;
      free_.erase(after);
    }
    free_[begin] = size;
  }
  std::int64_t free_total() const { return free_total_; }

 private:
  std::map<std::int64_t, std::int64_t> free_;  // begin -> length
  std::int64_t free_total_;
};

struct Figures {
  std::int64_t loads = 0, failures = 0, contiguous_failures = 0;
  // waste: the part of the adapters' pages that is not payload
  double largest_waste = 0, mean_waste = 0, mean_held = 0;
};

struct World {
  VirtualClock clock;
  PageGeometry geometry;
  std::unique_ptr<PagePool> device, host;
  ModeledTransfer transfer{&clock, {.latency_ns = 1000}, {.latency_ns = 100}};
  std::optional<ResidencyManager> residency;
  std::vector<ResidencyManager::LoadFailure> load_failures;
  Prng prng{1};
  std::vector<PageHandle> kv;
  ContiguousAllocator contiguous;                             // in pages of the device
  std::map<std::uint32_t, std::int64_t> contiguous_adapters;  // generation -> begin
  std::vector<std::int64_t> contiguous_kv;
  Figures figures;

  World(const ModelConfig& model, std::int64_t device_bytes, std::int64_t host_bytes)
      : geometry(ChoosePageGeometry(model, DType::kBF16)), contiguous(device_bytes / geometry.page_bytes) {
    device = std::move(PagePool::Create("device", device_bytes, geometry.page_bytes)).value();
    host = std::move(PagePool::Create("host", host_bytes, geometry.page_bytes)).value();
    residency.emplace(*device, *host, transfer);
    for (std::uint32_t g = 1; g <= kAdapters; ++g) {
      auto version = std::make_shared<AdapterVersion>();
      version->generation = AdapterGeneration{g};
      version->layout = AnyLayout(model, static_cast<std::size_t>(geometry.page_bytes), prng);
      residency->Add(std::move(version));
    }
  }

  const AdapterLayout& Layout(AdapterGeneration g) const { return residency->Get(g).version->layout; }
  AdapterGeneration AnyOf(std::span<const AdapterGeneration> some) { return some[prng.NextBelow(some.size())]; }

  void Evict(AdapterGeneration g) {
    residency->Evict(g, Tier::kDevice);
    const auto found = contiguous_adapters.find(g.value);
    if (found == contiguous_adapters.end()) return;  // the contiguous allocator had no room for it
    contiguous.Free(found->second, Layout(g).pages);
    contiguous_adapters.erase(found);
  }

  // Changes the number of KV pages at random, up to a fifth of the device.
  void MoveKv() {
    std::int64_t wanted =
        static_cast<std::int64_t>(prng.NextBelow(static_cast<std::uint64_t>(device->capacity_pages() / 5)));
    while (static_cast<std::int64_t>(kv.size()) > wanted) {
      const auto any = static_cast<std::ptrdiff_t>(prng.NextBelow(kv.size()));
      device->Free(PageCategory::kKv, std::span(&kv[static_cast<std::size_t>(any)], 1));
      contiguous.Free(contiguous_kv[static_cast<std::size_t>(any)], 1);
      std::swap(kv[static_cast<std::size_t>(any)], kv.back());
      std::swap(contiguous_kv[static_cast<std::size_t>(any)], contiguous_kv.back());
      kv.pop_back();
      contiguous_kv.pop_back();
    }
    wanted = std::min(wanted, static_cast<std::int64_t>(kv.size()) + device->free_pages());
    while (static_cast<std::int64_t>(kv.size()) < wanted) {
      figures.failures += !device->Allocate(PageCategory::kKv, std::span(&kv.emplace_back(), 1));
      contiguous_kv.push_back(contiguous.Allocate(1).value());
    }
  }

  void Load(AdapterGeneration g) {
    const std::int64_t pages = Layout(g).pages;
    while (device->free_pages() < pages) Evict(AnyOf(residency->Residents(Tier::kDevice)));
    bool via_host = residency->Get(g).host == TierState::kAbsent;
    while (via_host && host->free_pages() < pages)
      residency->Evict(AnyOf(residency->Residents(Tier::kHost)), Tier::kHost);
    residency->BeginLoad(g, via_host, clock.Now());  // aborts if the pool has no room
    while (transfer.next_end() >= 0) {
      clock.AdvanceTo(std::max(clock.Now(), transfer.next_end()));
      residency->Poll(clock.Now(), load_failures);
    }
    ++figures.loads;
    figures.failures += residency->Get(g).device != TierState::kResident;
    const bool enough = contiguous.free_total() >= pages;
    const auto begin = contiguous.Allocate(pages);
    if (begin) contiguous_adapters[g.value] = *begin;
    figures.contiguous_failures += enough && !begin;
  }

  void Measure() {
    std::int64_t pages = 0, payload = 0;
    for (const AdapterGeneration g : residency->Residents(Tier::kDevice)) {
      pages += Layout(g).pages;
      payload += Layout(g).payload_bytes;
    }
    ASSERT_EQ(pages, device->Stats().used(PageCategory::kAdapter));
    const double waste = 1 - static_cast<double>(payload) / static_cast<double>(pages * geometry.page_bytes);
    figures.largest_waste = std::max(figures.largest_waste, waste);
    figures.mean_waste += waste / kCycles;
    figures.mean_held += static_cast<double>(residency->Residents(Tier::kDevice).size()) / kCycles;
  }

  void Run() {
    while (figures.loads < kCycles) {
      const AdapterGeneration g{1 + static_cast<std::uint32_t>(prng.NextBelow(kAdapters))};
      if (residency->Get(g).device == TierState::kResident) continue;
      MoveKv();
      Load(g);
      Measure();
      if (figures.loads % 500 != 0) continue;
      residency->CheckIntegrity();
      device->CheckIntegrity();
      host->CheckIntegrity();
    }
  }
};

void RunCycles(const char* name, const ModelConfig& model) {
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  World w(model, 16 * kGiB, 12 * kGiB);
  w.Run();
  const Figures& f = w.figures;
  std::printf(
      "%s, pages of %ld bytes, 16 GiB, %ld loads of %u adapters: %ld allocation failures (contiguous first fit: %ld)\n"
      "  internal waste: mean %.2f %%, at most %.2f %%; on average %.1f adapters on the device\n",
      name, static_cast<long>(w.geometry.page_bytes), static_cast<long>(f.loads), kAdapters,
      static_cast<long>(f.failures), static_cast<long>(f.contiguous_failures), 100 * f.mean_waste,
      100 * f.largest_waste, f.mean_held);
  EXPECT_EQ(f.failures, 0);
  EXPECT_TRUE(w.load_failures.empty());
  EXPECT_LE(f.largest_waste, 0.05);
  EXPECT_GT(f.contiguous_failures, 0) << "the sequence of operations causes no fragmentation";
  const AdapterStats stats = w.residency->Stats();
  EXPECT_EQ(stats.device_loads, kCycles);
  EXPECT_GT(stats.device_evictions, kCycles / 2);
  EXPECT_GT(stats.host_evictions, kCycles / 10);
}

TEST(Fragmentation, TenThousandLoadsFailNeverAndWasteLittleOnLlama2_7B) { RunCycles("Llama-2-7B", kLlama2_7B); }
TEST(Fragmentation, TenThousandLoadsFailNeverAndWasteLittleOnLlama3_8B) { RunCycles("Llama-3-8B", kLlama3_8B); }

}  // namespace
}  // namespace loramux::fragmentation_test
