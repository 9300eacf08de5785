// vLLM-LoRA, "Request Grouping for Batched GEMM" and "S-LoRA Unified Paging": the cost of adapters' products by the way
// they are batched, and what pages cost a load.
#include <array>

#include <fmt/format.h>

#include "lab/experiments/lora_batching.h"
#include "lab/experiments/machine_text.h"

namespace loramux {
namespace {

// The source's batch and model: 128 requests of 40 adapters of rank 16, on q, k, v and o of 80 layers of width 8,192.
constexpr std::int64_t kKernelLayers = 80, kKernelWidth = 8192;
constexpr LoraBatchShape kSourceShape{.hidden = kKernelWidth, .rank = 16, .adapters = 40, .rows = 128};
constexpr double kBaseMs = 28.5, kEachMs = 48.2, kGroupedMs = 8.6, kAtOnceMs = 3.1;  // as reported
// Measured on an H200 (gpu.md): a launch without work, by itself and in a graph. Bandwidth: its data sheet x 0.8, as in
// the simulator.
constexpr double kLaunchSeconds = 4.55e-6, kGraphLaunchSeconds = 1.02e-6, kBytesPerSecond = 3350e9 * 0.8;
// Narrower, so that it takes seconds: the emulated device, and the processor.
constexpr std::int64_t kEmulatedWidth = 1024, kHostWidth = 2048;
constexpr std::int64_t kLoadPage = 2 << 20;

struct Way {
  LoraBatching batching;
  const char *id, *name;
  double reported_ms;
};
constexpr std::array kWays = std::to_array<Way>({{LoraBatching::kEach, "vl-k1", "each adapter and target", kEachMs},
                                                 {LoraBatching::kByAdapter, "vl-k2", "by adapter", kGroupedMs},
                                                 {LoraBatching::kAtOnce, "vl-k3", "all adapters at once", kAtOnceMs}});

struct WayResult {
  DeviceLoraCounts counts;         // counts of a layer of kEmulatedWidth
  double bytes = 0, launches = 0;  // bytes and launches of a forward pass of the source's model
  double ms = 0, graph_ms = 0;     // predicted from both
  double host_ms = 0;              // time of a layer of kHostWidth
};

Result<std::array<WayResult, kWays.size()>> MeasureWays(const ExperimentContext& context) {
  std::array<WayResult, kWays.size()> results;
  for (std::size_t i = 0; i < kWays.size(); ++i) {
    LoraBatchShape shape = kSourceShape;
    shape.hidden = kEmulatedWidth;
    WayResult& way = results[i];
    ASSIGN_OR_RETURN(way.counts, CountLoraOnDevice(shape, kWays[i].batching));
    // What is read grows with the width but for the lists of work, which are small.
    const auto wider = static_cast<double>(kKernelWidth) / kEmulatedWidth;
    way.bytes = kKernelLayers * wider * static_cast<double>(way.counts.adapter_bytes + way.counts.other_bytes);
    way.launches = static_cast<double>(kKernelLayers * way.counts.launches);
    way.ms = 1e3 * (way.launches * kLaunchSeconds + way.bytes / kBytesPerSecond);
    way.graph_ms = 1e3 * (way.launches * kGraphLaunchSeconds + way.bytes / kBytesPerSecond);
    shape.hidden = kHostWidth;
    way.host_ms = 1e3 * SecondsOfLoraOnHost(shape, kWays[i].batching, context.threads > 0 ? context.threads : 2);
  }
  return results;
}

void CompareWays(const std::array<WayResult, kWays.size()>& results, ExperimentResult& result) {
  const WayResult& best = results.back();
  const auto row = [&](const char* id, std::string what, std::string reported, std::string ours, Verdict verdict,
                       const char* origin) {
    result.comparison.push_back({.id = id,
                                 .what = std::move(what),
                                 .reported = std::move(reported),
                                 .ours = std::move(ours),
                                 .verdict = verdict,
                                 .origin = origin});
  };
  row("vl-k1", "products of a forward pass, one for each adapter, layer and target", "12,800",
      fmt::format("{:.0f} (of two launches each)", results[0].launches / 2),
      VerdictOfClaim(results[0].launches / 2 == 12'800), "counted");
  row("vl-k3", "a kernel for all adapters reads no more of the adapters", "the pool is read in place",
      fmt::format("{:.2f} times the adapters' bytes; {:.2f} times for each adapter and target",
                  static_cast<double>(best.counts.adapter_bytes) / static_cast<double>(kSourceShape.AdapterBytes()) *
                      (static_cast<double>(kKernelWidth) / kEmulatedWidth),
                  static_cast<double>(results[0].counts.adapter_bytes) /
                      static_cast<double>(kSourceShape.AdapterBytes()) *
                      (static_cast<double>(kKernelWidth) / kEmulatedWidth)),
      VerdictOfClaim(best.counts.adapter_bytes <= results[0].counts.adapter_bytes), "counted");
  for (std::size_t i = 0; i + 1 < kWays.size(); ++i) {
    const double reported = kWays[i].reported_ms / kAtOnceMs;
    const double ours = results[i].ms / best.ms, host = results[i].host_ms / best.host_ms;
    const auto factor = [&](const char* by, double value, const char* origin) {
      ComparisonRow row =
          FactorRow(kWays[i].id, fmt::format("{}, against all at once: {}", kWays[i].name, by), reported, value);
      row.origin = origin;
      result.comparison.push_back(std::move(row));
    };
    factor("by launches and bytes", ours, "counted");
    factor("time on the processor", host, "measured");
  }
  row("vl-k3", "all adapters at once, on top of the base forward pass: by launches and bytes", "+10.9 %",
      ShowChange(best.ms / kBaseMs), CompareEffects(kAtOnceMs / kBaseMs, best.ms / kBaseMs), "counted");
}

// The source's loads are copies over PCIe; what is measured here are copies of those sizes in the host's memory. So the
// rows have no verdict.
void MeasureLoads(ExperimentResult& result) {
  constexpr std::int64_t kMb = 1 << 20;
  for (const auto& [megabytes, reported] :
       {std::pair<std::int64_t, const char*>{160, "5.7 ms over PCIe, 6.1 ms in pages"}, {1280, "45.7 ms over PCIe"}}) {
    const double whole = SecondsOfCopy(megabytes * kMb, megabytes * kMb),
                 paged = SecondsOfCopy(megabytes * kMb, kLoadPage);
    result.comparison.push_back(
        {.id = "vl-f4",
         .what = fmt::format("copy of {} MB between two places in the host's memory, in one piece and in pages of 2 MB",
                             megabytes),
         .reported = reported,
         .ours = fmt::format("{:.1f} and {:.1f} ms ({:.1f} GB/s)", 1e3 * whole, 1e3 * paged,
                             static_cast<double>(megabytes * kMb) / whole / 1e9),
         .origin = "measured"});
  }
}

}  // namespace

Result<ExperimentResult> RunVllmKernels(ExperimentContext& context) {
  ASSIGN_OR_RETURN(const auto results, MeasureWays(context));
  ExperimentResult result;
  result.setting = fmt::format(
      "The source's batch: {} requests of {} adapters of rank {}, on square q, k, v and o of {} layers of width {}. "
      "Launches and loaded bytes are counted on the emulated device, for a layer of width {}, with this project's "
      "kernels; bytes are scaled to the source's width. Their time: {:g} us a launch, as measured on an H200 (in a "
      "graph "
      "{:g} us; [GPU](gpu.md)), and the bytes at 80 % of its bandwidth. On the processor: a layer of width {}, best of "
      "several runs, on {}; these figures differ between machines. Copies: between two places in the memory of that "
      "host.",
      kSourceShape.rows, kSourceShape.adapters, kSourceShape.rank, kKernelLayers, kKernelWidth, kEmulatedWidth,
      1e6 * kLaunchSeconds, 1e6 * kGraphLaunchSeconds, kHostWidth, Machine());
  CompareWays(results, result);
  MeasureLoads(result);
  ExperimentTable table{.title = "A forward pass by the way of batching",
                        .header = {"way", "reported ms", "launches", "GB read", "ms by both", "ms in a graph",
                                   "ms a layer on the processor"},
                        .rows = {}};
  for (std::size_t i = 0; i < kWays.size(); ++i) {
    const WayResult& way = results[i];
    table.rows.push_back({kWays[i].name, fmt::format("{:.1f}", kWays[i].reported_ms),
                          fmt::format("{:.0f}", way.launches), fmt::format("{:.2f}", way.bytes / 1e9),
                          fmt::format("{:.1f}", way.ms), fmt::format("{:.1f}", way.graph_ms),
                          fmt::format("{:.2f}", way.host_ms)});
  }
  result.tables.push_back(std::move(table));
  const double adapters_gb = kKernelLayers * static_cast<double>(kSourceShape.AdapterBytes()) / 1e9;
  const WayResult& best = results.back();
  result.remarks = {
      "The source's figures fit no cost of a launch: 48.2 ms for 12,800 products are 3.8 us each, while its grouping "
      "by adapter, whose code has the "
      "same 12,800 pairs of products, takes 8.6 ms. Here both pay for the launches that their code has.",
      fmt::format(
          "All adapters at once: the adapters are {:.1f} GB, which are {:.1f} ms of one H100's bandwidth. This "
          "project's kernels read {:.1f} GB with the activations, which each block loads again, and have {:.0f} "
          "launches.",
          adapters_gb, 1e3 * adapters_gb * 1e9 / kBytesPerSecond, best.bytes / 1e9, best.launches),
      fmt::format("On the processor a launch is a meeting of its threads: a layer takes {:.2f} ms for each adapter and "
                  "target, {:.2f} ms by adapter and {:.2f} ms for all at once.",
                  results[0].host_ms, results[1].host_ms, best.host_ms)};
  return result;
}

}  // namespace loramux
