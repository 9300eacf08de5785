// What batching adapters saves: the LoRA products of one decode step, launched in three ways.
//   per_product  one launch pair for each adapter, layer and target
//   grouped      one for each adapter, layer and group of targets that share an input (q, k, v; o)
//   batched      one for each layer and group, for all adapters
// each of them at the adapters' true ranks (mbgmv: the cost is the sum of ranks) and, for `batched`, padded to the
// largest rank of the batch (bgmv: adapters x largest rank). All give the same bits, which is checked first. On a GPU
// the program times them, launched one by one and as a recorded graph; on the emulated device it counts launches and
// the bytes of adapters that kernels read, and no time is meant.
//
//   lora_strategies [--device cuda|emulated] [--json FILE] [--rows 128] [--adapters 40] [--ranks 16] [--layers N]
//                   [--hidden N] [--kv-width N] [--repeat 20]
//
// The defaults on a GPU are those of a Llama 70B. Rows are spread evenly; adapter i has rank ranks[i % size].
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/clock.h"
#include "base/must.h"
#include "base/prng.h"
#include "gpu/emulated/emulated_device.h"
#include "gpu/kernels/lora.h"
#include "gpu/open_device.h"
#include "tensor/half_float.h"
#include "tools/command_line/command_line.h"

namespace loramux::gpu {
namespace {

struct Flags {
  std::string device = "cuda", json;
  std::int32_t rows = 128, adapters = 40, repeat = 20;
  std::int64_t layers = 0, hidden = 0, kv_width = 0;  // 0: by the device
  std::vector<std::int32_t> ranks = {16};
};

constexpr int kTargets = 4;  // q, k, v, o

// Lists of items in device memory.
struct WorkLists {
  std::unique_ptr<Arena> memory;
  LoraWork work;
};

// The adapters of the benchmark in device memory, and the launches of a step.
class Step {
 public:
  Step(Device& device, const Flags& flags) : device_(device), flags_(flags), stream_(Must(device.CreateStream())) {
    largest_ = *std::max_element(flags.ranks.begin(), flags.ranks.end());
    const std::int64_t values = std::int64_t{1} << 20;
    random_ = Must(device.AllocatePinned("random values", values * 2));
    Prng prng(1);
    for (std::int64_t i = 0; i < values; ++i)
      StoreFromF32(DType::kBF16, random_->base(), i, static_cast<float>(prng.NextDouble() - 0.5));
    for (std::int32_t adapter = 0; adapter < flags.adapters; ++adapter) AddAdapter(adapter);
    UploadTables();
    x_ = Must(device.Allocate("x", flags.rows * flags.hidden * 2));
    FillRandom(x_->base(), flags.rows * flags.hidden * 2, 0);
    y_width_ = 2 * flags.hidden + 2 * flags.kv_width;
    y_ = Must(device.Allocate("y", flags.rows * y_width_ * 4));
    const std::int64_t partial = LoraPartialFloats(flags.rows, flags.hidden, kMaxLoraSlices, largest_);
    partial_ = Must(device.Allocate("partial", partial * 4));
    std::vector<int> everyone;
    for (int adapter = 0; adapter < flags.adapters; ++adapter) everyone.push_back(adapter);
    true_ranks_ = MakeLists(everyone, false);
    padded_ = MakeLists(everyone, true);
    for (int adapter = 0; adapter < flags.adapters; ++adapter) alone_.push_back(MakeLists({adapter}, false));
    Must(stream_->Synchronize());
  }

  DeviceStream& stream() { return *stream_; }
  std::int64_t launches() const { return launches_; }
  void ResetLaunches() { launches_ = 0; }

  void PerProduct() {
    for (const WorkLists& lists : alone_)
      for (std::int64_t layer = 0; layer < flags_.layers; ++layer)
        for (int target = 0; target < kTargets; ++target) LaunchPair(lists, layer, target, 1);
  }
  void Grouped() {
    for (const WorkLists& lists : alone_) LaunchGroups(lists);
  }
  void Batched() { LaunchGroups(true_ranks_); }
  void BatchedPadded() { LaunchGroups(padded_); }

  // Bytes of rows that a step needs, once for each item, at the adapters' true ranks, or padded.
  std::int64_t BytesNeeded(bool padded) const {
    std::int64_t bytes = 0;
    for (std::int32_t adapter = 0; adapter < flags_.adapters; ++adapter) {
      const std::int64_t items = (EndOf(adapter) - EndOf(adapter - 1) + kLoraItemRows - 1) / kLoraItemRows;
      for (int target = 0; target < kTargets; ++target)
        bytes += items * flags_.layers * (padded ? largest_ : RankOf(adapter)) * (flags_.hidden + OutOf(target)) * 2;
    }
    return bytes;
  }
  void WatchRows(EmulatedDevice& device) const {
    for (const std::unique_ptr<Arena>& rows : rows_)
      device.Watch("rows of adapters", rows->base(), static_cast<std::size_t>(rows->size()));
  }

  // y of a step that starts with y = 0.
  std::vector<std::byte> YAfter(const std::function<void()>& strategy) {
    const std::size_t bytes = static_cast<std::size_t>(y_->size());
    stream_->Fill(y_->base(), 0, bytes);
    strategy();
    const std::unique_ptr<Arena> pinned = Must(device_.AllocatePinned("y", y_->size()));
    stream_->CopyToHost(pinned->base(), y_->base(), bytes);
    Must(stream_->Synchronize());
    return {pinned->base(), pinned->base() + bytes};
  }

 private:
  std::int32_t RankOf(std::int32_t adapter) const {
    return flags_.ranks[static_cast<std::size_t>(adapter) % flags_.ranks.size()];
  }
  // The row after an adapter's last.
  std::int32_t EndOf(std::int32_t adapter) const { return (adapter + 1) * flags_.rows / flags_.adapters; }
  std::int64_t OutOf(int target) const { return target == 1 || target == 2 ? flags_.kv_width : flags_.hidden; }

  void FillRandom(std::byte* to, std::int64_t bytes, std::int64_t skip) {
    for (std::int64_t at = 0; at < bytes;) {
      const std::int64_t piece = std::min(bytes - at, random_->size() - skip);
      stream_->CopyToDevice(to + at, random_->base() + skip, static_cast<std::size_t>(piece));
      at += piece;
      skip = 0;
    }
  }

  // Room for the largest rank for each adapter; ranks beyond its own are zeros, as padding kernels store them.
  void AddAdapter(std::int32_t adapter) {
    const std::int64_t true_rank = RankOf(adapter);
    std::int64_t bytes = 0;
    for (int target = 0; target < kTargets; ++target) bytes += largest_ * (flags_.hidden + OutOf(target)) * 2;
    rows_.push_back(Must(device_.Allocate("an adapter", bytes * flags_.layers)));
    std::byte* at = rows_.back()->base();
    for (std::int64_t layer = 0; layer < flags_.layers; ++layer)
      for (int target = 0; target < kTargets; ++target)
        for (const std::int64_t width : {flags_.hidden, OutOf(target)}) {
          FillRandom(at, true_rank * width * 2, (adapter * 64 + layer * 1024) % (random_->size() / 2));
          if (true_rank < largest_)
            stream_->Fill(at + true_rank * width * 2, 0, static_cast<std::size_t>((largest_ - true_rank) * width * 2));
          for (std::int64_t j = 0; j < largest_; ++j) addresses_.push_back(at + j * width * 2);
          at += largest_ * width * 2;
        }
  }

  // [adapter][true or padded][layer][target] modules, then the addresses of all rows.
  void UploadTables() {
    const std::int64_t modules_of_one = flags_.layers * kTargets;
    const std::int64_t modules_bytes =
        2 * flags_.adapters * modules_of_one * static_cast<std::int64_t>(sizeof(LoraModule));
    tables_ = Must(device_.Allocate("tables", modules_bytes + static_cast<std::int64_t>(addresses_.size() * 8)));
    const auto* rows = reinterpret_cast<const void* const*>(tables_->base() + modules_bytes);
    const std::unique_ptr<Arena> image = Must(device_.AllocatePinned("tables", tables_->size()));
    auto* module = reinterpret_cast<LoraModule*>(image->base());
    for (std::int32_t adapter = 0; adapter < flags_.adapters; ++adapter)
      for (const bool padded : {false, true})
        for (std::int64_t i = 0; i < modules_of_one; ++i, ++module) {
          module->a_rows = rows + (adapter * modules_of_one + i) * 2 * largest_;
          module->b_rows = module->a_rows + largest_;
          module->rank = padded ? largest_ : RankOf(adapter);
          module->scale = 0.5f;
        }
    std::memcpy(image->base() + modules_bytes, addresses_.data(), addresses_.size() * 8);
    stream_->CopyToDevice(tables_->base(), image->base(), static_cast<std::size_t>(tables_->size()));
    Must(stream_->Synchronize());
  }

  WorkLists MakeLists(const std::vector<int>& adapters, bool padded) {
    std::vector<LoraItem> shrink, expand;
    const auto* modules = reinterpret_cast<const LoraModule*>(tables_->base());
    for (const int adapter : adapters) {
      const std::int32_t begin = EndOf(adapter - 1), end = EndOf(adapter);
      AppendLoraItems(modules + (adapter * 2 + (padded ? 1 : 0)) * flags_.layers * kTargets, DType::kBF16,
                      padded ? largest_ : RankOf(adapter), begin, end - begin, shrink, expand);
    }
    const std::size_t header = 64, shrink_bytes = shrink.size() * sizeof(LoraItem);
    const std::size_t bytes = header + shrink_bytes + expand.size() * sizeof(LoraItem);
    const std::unique_ptr<Arena> image = Must(device_.AllocatePinned("items", static_cast<std::int64_t>(bytes)));
    const std::int32_t counts[2] = {static_cast<std::int32_t>(shrink.size()), static_cast<std::int32_t>(expand.size())};
    std::memcpy(image->base(), counts, sizeof(counts));
    std::memcpy(image->base() + header, shrink.data(), shrink_bytes);
    std::memcpy(image->base() + header + shrink_bytes, expand.data(), expand.size() * sizeof(LoraItem));
    WorkLists lists;
    lists.memory = Must(device_.Allocate("items", static_cast<std::int64_t>(bytes)));
    stream_->CopyToDevice(lists.memory->base(), image->base(), bytes);
    Must(stream_->Synchronize());
    const std::byte* base = lists.memory->base();
    lists.work.shrink_count = reinterpret_cast<const std::int32_t*>(base);
    lists.work.expand_count = lists.work.shrink_count + 1;
    lists.work.shrink = reinterpret_cast<const LoraItem*>(base + header);
    lists.work.expand = reinterpret_cast<const LoraItem*>(base + header + shrink_bytes);
    lists.work.max_shrink = counts[0];
    lists.work.max_expand = counts[1];
    lists.work.max_rank = largest_;
    return lists;
  }

  // Shrink and expand of `slices` targets from `target` on.
  void LaunchPair(const WorkLists& lists, std::int64_t layer, int target, std::int32_t slices) {
    LoraShrinkArguments shrink = {};
    shrink.x = x_->base();
    shrink.x_stride = shrink.in = flags_.hidden;
    shrink.work = lists.work;
    shrink.slices = slices;
    shrink.partial = reinterpret_cast<float*>(partial_->base());
    shrink.partial_rows = flags_.rows;
    LoraExpandArguments expand = {};
    expand.work = lists.work;
    expand.slices = slices;
    expand.partial = shrink.partial;
    expand.partial_rows = flags_.rows;
    expand.in = flags_.hidden;
    for (int slice = 0; slice < slices; ++slice) {
      std::int64_t column = 0;
      for (int before = 0; before < target + slice; ++before) column += OutOf(before);
      shrink.module[slice] = expand.module[slice] = static_cast<std::int32_t>(layer * kTargets + target + slice);
      expand.y[slice] = reinterpret_cast<float*>(y_->base()) + column;
      expand.y_stride[slice] = y_width_;
      expand.out[slice] = OutOf(target + slice);
    }
    LoraShrink(*stream_, DType::kBF16, shrink);
    LoraExpand(*stream_, expand);
    launches_ += 2;
  }
  void LaunchGroups(const WorkLists& lists) {
    for (std::int64_t layer = 0; layer < flags_.layers; ++layer) {
      LaunchPair(lists, layer, 0, 3);
      LaunchPair(lists, layer, 3, 1);
    }
  }

  Device& device_;
  const Flags& flags_;
  std::unique_ptr<DeviceStream> stream_;
  std::int32_t largest_ = 0;
  std::int64_t y_width_ = 0, launches_ = 0;
  std::unique_ptr<Arena> random_, tables_, x_, y_, partial_;
  std::vector<std::unique_ptr<Arena>> rows_;
  std::vector<const void*> addresses_;
  WorkLists true_ranks_, padded_;
  std::vector<WorkLists> alone_;
};

// Milliseconds of one run, the best of a few rounds.
double Milliseconds(Step& step, std::int32_t repeat, const std::function<void()>& run) {
  const OsClock clock;
  run();
  Must(step.stream().Synchronize());
  TimeNs best = 0;
  for (int round = 0; round < 3; ++round) {
    const TimeNs start = clock.Now();
    for (std::int32_t i = 0; i < repeat; ++i) run();
    Must(step.stream().Synchronize());
    const TimeNs took = clock.Now() - start;
    if (round == 0 || took < best) best = took;
  }
  return static_cast<double>(best) / static_cast<double>(repeat) / kNsPerMs;
}

// One way to launch a step.
struct Strategy {
  const char *row, *name, *cost;  // row: of the document's table
  std::function<void()> run;
  bool padded;
  double reported_ms;  // by the document; 0: none
};

void PrintHeader(const Device& device, bool counts, const Flags& flags) {
  std::printf("%s: %d rows, %d adapters, %lld layers, hidden %lld\n", device.properties().name.c_str(), flags.rows,
              flags.adapters, static_cast<long long>(flags.layers), static_cast<long long>(flags.hidden));
  std::printf("%-6s %-12s %-6s %9s %12s", "row", "strategy", "cost", "launches", "bytes needed");
  if (counts)
    std::printf(" %12s %6s\n", "bytes read", "ratio");
  else
    std::printf(" %9s %9s %9s %11s\n", "ms", "graph ms", "GB/s", "reported ms");
}

// Runs a strategy, prints its line and returns it. `emulated` is null on a GPU.
nlohmann::ordered_json Measure(Step& step, const Strategy& strategy, const Flags& flags, const Device& device,
                               EmulatedDevice* emulated) {
  step.ResetLaunches();
  if (emulated != nullptr) emulated->ResetTraffic();
  strategy.run();
  Must(step.stream().Synchronize());
  const std::int64_t launches = step.launches(), needed = step.BytesNeeded(strategy.padded);
  nlohmann::ordered_json line = {{"row", strategy.row},
                                 {"strategy", strategy.name},
                                 {"cost", strategy.cost},
                                 {"launches", launches},
                                 {"bytes_needed", needed}};
  std::printf("%-6s %-12s %-6s %9lld %12lld", strategy.row, strategy.name, strategy.cost,
              static_cast<long long>(launches), static_cast<long long>(needed));
  if (emulated != nullptr) {
    const std::int64_t read = emulated->TrafficOf("rows of adapters").load_bytes;
    line["bytes_read"] = read;
    std::printf(" %12lld %6.3f\n", static_cast<long long>(read),
                static_cast<double>(read) / static_cast<double>(needed));
    return line;
  }
  const double eager = Milliseconds(step, flags.repeat, strategy.run);
  const std::unique_ptr<DeviceGraph> graph = Must(step.stream().Capture(strategy.run));
  const double replayed = Milliseconds(step, flags.repeat, [&] { step.stream().Replay(*graph); });
  const double rate = static_cast<double>(needed) / replayed * 1e3;
  line["ms"] = eager;
  line["graph_ms"] = replayed;
  line["bytes_per_second"] = rate;
  line["memory_bytes_per_second"] = device.properties().memory_bytes_per_second;
  if (strategy.reported_ms > 0) line["reported_ms"] = strategy.reported_ms;
  std::printf(" %9.3f %9.3f %9.1f", eager, replayed, rate / 1e9);
  if (strategy.reported_ms > 0) std::printf(" %11.1f", strategy.reported_ms);
  std::printf("\n");
  return line;
}

// Whether all strategies give the same bits.
bool Run(Device& device, const Flags& flags) {
  Step step(device, flags);
  auto* emulated = dynamic_cast<EmulatedDevice*>(&device);
  const Strategy strategies[] = {
      {"vl-k1", "per_product", "mbgmv", [&] { step.PerProduct(); }, false, 48.2},
      {"vl-k2", "grouped", "mbgmv", [&] { step.Grouped(); }, false, 8.6},
      {"vl-k3", "batched", "mbgmv", [&] { step.Batched(); }, false, 3.1},
      {"", "batched", "bgmv", [&] { step.BatchedPadded(); }, true, 0},
  };
  const std::vector<std::byte> expected = step.YAfter(strategies[0].run);
  if (emulated != nullptr) step.WatchRows(*emulated);
  nlohmann::ordered_json report = {{"device", device.properties().name},
                                   {"rows", flags.rows},
                                   {"adapters", flags.adapters},
                                   {"ranks", flags.ranks},
                                   {"layers", flags.layers},
                                   {"hidden", flags.hidden},
                                   {"kv_width", flags.kv_width},
                                   {"targets", "q, k, v, o"}};
  report["strategies"] = nlohmann::ordered_json::array();
  PrintHeader(device, emulated != nullptr, flags);
  bool right = true;
  for (const Strategy& strategy : strategies) {
    if (step.YAfter(strategy.run) != expected) {
      std::printf("%s %s: the result has other bits than per_product's\n", strategy.name, strategy.cost);
      right = false;
      continue;
    }
    report["strategies"].push_back(Measure(step, strategy, flags, device, emulated));
  }
  if (!flags.json.empty()) std::ofstream(flags.json) << report.dump(2) << "\n";
  return right;
}

int Main(Flags flags) {
  const Result<std::unique_ptr<Device>> device = OpenDevice(flags.device, {});
  if (!device.ok()) {
    std::fprintf(stderr, "lora_strategies: %s\n", device.error().message.c_str());
    return 1;
  }
  const bool emulated = flags.device == "emulated";
  if (flags.layers == 0) flags.layers = emulated ? 1 : 80;
  if (flags.hidden == 0) flags.hidden = emulated ? 1024 : 8192;
  if (flags.kv_width == 0) flags.kv_width = flags.hidden / 8;
  if (flags.hidden % 32 != 0 || flags.kv_width % 32 != 0 || flags.adapters > flags.rows) {
    std::fprintf(stderr, "lora_strategies: widths must be multiples of 32, and each adapter needs a row\n");
    return 1;
  }
  return Run(*device.value(), flags) ? 0 : 1;
}

}  // namespace
}  // namespace loramux::gpu

int main(int argc, char** argv) {
  loramux::gpu::Flags flags;
  loramux::Command command{.name = "lora_strategies", .summary = "LoRA products of a decode step by batching strategy"};
  command.line.Add({.names = "--device",
                    .target = &flags.device,
                    .unit = "NAME",
                    .help = "Device to measure",
                    .choices = {"cuda", "emulated"}});
  command.line.Add({.names = "--json", .target = &flags.json, .unit = "FILE", .help = "File for the results"});
  command.line.Add(
      {.names = "--rows", .target = &flags.rows, .unit = "N", .help = "Rows of the step", .range = {{1, 1 << 20}}});
  command.line.Add({.names = "--adapters",
                    .target = &flags.adapters,
                    .unit = "N",
                    .help = "Adapters of the step",
                    .range = {{1, 1 << 20}}});
  command.line.Add({.names = "--ranks",
                    .target = &flags.ranks,
                    .unit = "N",
                    .help = "Ranks of the adapters, in turn",
                    .range = {{1, 1 << 20}},
                    .comma_list = true});
  command.line.Add({.names = "--layers", .target = &flags.layers, .unit = "N", .help = "Layers; 0: by the device"});
  command.line.Add({.names = "--hidden",
                    .target = &flags.hidden,
                    .unit = "N",
                    .help = "Width of the model, a multiple of 32; 0: by the device"});
  command.line.Add({.names = "--kv-width",
                    .target = &flags.kv_width,
                    .unit = "N",
                    .help = "Width of keys and of values, a multiple of 32; 0: by the device"});
  command.line.Add({.names = "--repeat",
                    .target = &flags.repeat,
                    .unit = "N",
                    .help = "Steps that are timed",
                    .range = {{1, 1 << 20}}});
  command.run = [&flags] { return loramux::gpu::Main(flags); };
  return loramux::RunCommand(command, argc, argv);
}
