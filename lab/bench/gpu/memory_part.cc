// Parts of gpu_bench: memory, launches, and copies from and to the host.
#include <algorithm>
#include <numeric>
#include <utility>

#include "gpu/kernels/elementwise.h"
#include "gpu/kernels/read_all.h"
#include "lab/bench/gpu/gpu_bench.h"

namespace loramux {
namespace {

// Checks that every word is read, on the numbers that are timed.
void CheckReading(GpuBench& bench, const gpu::ReadAllArguments& arguments, std::uint32_t blocks) {
  gpu::ReadAll(bench.stream(), blocks, arguments);
  const auto sums = bench.Download(arguments.sums, blocks);
  const auto words = bench.Download(static_cast<const std::uint32_t*>(arguments.from), arguments.count * 4);
  const auto found = std::accumulate(sums.begin(), sums.end(), std::uint32_t{0});
  const auto expected = std::accumulate(words.begin(), words.end(), std::uint32_t{0});
  CheckClose("the sum of all words", found, expected, 1, 0);
}

}  // namespace

double BenchMemory(GpuBench& bench, GpuResults& results) {
  const std::int64_t bytes = bench.Size(std::int64_t{4} << 30, std::int64_t{1} << 20);
  const auto multiprocessors = static_cast<std::uint32_t>(std::max(1, bench.device().properties().multiprocessors));
  std::byte* memory = bench.AllocateRandom(bytes / 2);
  auto* sums = reinterpret_cast<std::uint32_t*>(bench.Allocate(std::int64_t{8} * multiprocessors * 4));
  CheckReading(bench, {memory, bytes / 16 / 16, sums}, 2 * multiprocessors);
  double best = 0;
  for (const std::uint32_t per_multiprocessor : {2u, 4u, 8u}) {
    const std::uint32_t blocks = per_multiprocessor * multiprocessors;
    const double seconds = bench.Seconds(4, [&](int) {
      gpu::ReadAll(bench.stream(), blocks, {memory, bytes / 16, sums});
    });
    const double rate = static_cast<double>(bytes) / seconds;
    best = std::max(best, rate);
    AddRow(results, "memory", {{"what", "read"}, {"blocks", blocks}, {"gb_per_s", rate / 1e9}});
  }
  // By the kernel that copies pages: what it reads and what it writes both count.
  gpu::CopyPagesArguments copy = {};
  copy.base = memory;
  copy.page_stride = copy.page_bytes = bench.Size(std::int64_t{512} << 10, std::int64_t{16} << 10);
  const auto copies = static_cast<std::uint32_t>(bytes / copy.page_bytes / 2);
  std::vector<std::uint32_t> pairs;
  for (std::uint32_t page = 0; page < copies; ++page) pairs.insert(pairs.end(), {page, page + copies});
  copy.pairs = bench.Upload(pairs);
  const double seconds = bench.Seconds(4, [&](int) { gpu::CopyPages(bench.stream(), copies, copy); });
  AddRow(results, "memory",
         {{"what", "copy, read and written"}, {"gb_per_s", 1e-9 * static_cast<double>(bytes) / seconds}});
  results["read_ceiling_gb_per_s"] = best / 1e9;
  return best;
}

void BenchLaunches(GpuBench& bench, GpuResults& results) {
  const auto* none = bench.Upload(std::vector<std::int32_t>{0});
  auto* row = reinterpret_cast<float*>(bench.Allocate(4096));
  gpu::AddRowsArguments nothing = {};
  nothing.x = nothing.y = row;
  nothing.rows = none;
  nothing.width = nothing.x_stride = nothing.y_stride = 512;
  // As many as a model of 32 layers has, on as many blocks as the GPU has multiprocessors: each reads `rows`, and
  // stops.
  constexpr int kLaunches = 320;
  const std::int64_t rows = std::max(1, bench.device().properties().multiprocessors);
  const auto enqueue = [&](int) { gpu::AddRows(bench.stream(), rows, nothing); };
  AddRow(results, "launches", {{"what", "in a graph"}, {"us", 1e6 * bench.Seconds(kLaunches, enqueue)}});
  AddRow(results, "launches", {{"what", "one by one"}, {"us", 1e6 * bench.SecondsEager(kLaunches, enqueue)}});
  AddRow(results, "launches", {{"what", "graph of one, and wait"}, {"us", 1e6 * bench.Seconds(1, enqueue)}});
}

void BenchTransfers(GpuBench& bench, GpuResults& results) {
  const std::int64_t bytes = bench.Size(std::int64_t{1} << 28, std::int64_t{1} << 20);
  auto pinned = bench.device().AllocatePinned("transfers", bytes);
  if (!pinned.ok()) return AddRow(results, "transfers", {{"problem", pinned.error().message}});
  std::byte* host = (*pinned)->base();
  std::byte* device = bench.Allocate(bytes);
  for (const std::int64_t piece : {std::int64_t{16} << 10, std::int64_t{64} << 10, std::int64_t{512} << 10,
                                   std::int64_t{8} << 20, std::int64_t{64} << 20}) {
    if (piece > bytes) continue;
    const auto pieces = static_cast<int>(std::min<std::int64_t>(bytes / piece, 4096));
    const auto size = static_cast<std::size_t>(piece);
    const double down = bench.SecondsEager(
        pieces, [&](int i) { bench.stream().CopyToDevice(device + i * piece, host + i * piece, size); });
    const double up = bench.SecondsEager(
        pieces, [&](int i) { bench.stream().CopyToHost(host + i * piece, device + i * piece, size); });
    AddRow(results, "transfers",
           {{"piece_kib", piece >> 10},
            {"to_device_gb_per_s", 1e-9 * static_cast<double>(piece) / down},
            {"to_host_gb_per_s", 1e-9 * static_cast<double>(piece) / up}});
  }
}

}  // namespace loramux
