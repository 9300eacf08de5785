// What it costs that the processor computes the LoRA of an adapter that is not on the device yet: the dense products of
// a step (weights of one layer, used for all), and
//   base       no adapter
//   resident   the adapter on the device: shrink and expand
//   sync_free  the processor computes all layers; the device copies x to the slot, asks and waits for the answer in
//              stream order (assist/assist_pool.h)
//   explicit   the same, but the host waits for x with Synchronize, asks the worker, and waits for its answer before it
//              enqueues the addition: what others do
// It checks that the last two give the same bits, and counts launches and the host's waits of a step. On the emulated
// device, only the counts mean anything. The smallest case has next to no work: its time is that of the hand-off.
//
//   assist_handoff [--device cuda|emulated] [--layers N] [--hidden N] [--intermediate N] [--rows 1,16] [--ranks 8,64]
//                  [--repeat 20] [--json FILE] [--check]
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "assist/assist_pool.h"
#include "assist/assist_worker.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/must.h"
#include "base/prng.h"
#include "base/text_file.h"
#include "gpu/counting_stream.h"
#include "gpu/kernels/lora.h"
#include "gpu/open_device.h"
#include "tensor/half_float.h"
#include "tools/command_line/command_line.h"

namespace loramux {
namespace {

struct Flags {
  std::string device = "cuda", json;
  std::int64_t layers = 32, hidden = 4096, intermediate = 11008;
  std::vector<std::int32_t> rows = {1, 16}, ranks = {8, 64};
  int repeat = 20;
  bool check = false;
};

// The model, the batch and the adapter of one case; the adapter has the same rows in every layer.
class Case {
 public:
  Case(Device& device, const AssistLayout& layout, std::int32_t rows, std::int32_t rank)
      : device_(device), layout(layout), rows(rows), rank(rank), stream(Must(device.CreateStream()), counts) {
    for (int t = 0; t < 7; ++t) {
      const LinearShape& shape = layout.shapes[static_cast<std::size_t>(t)];
      widest_ = std::max({widest_, shape.in, shape.out});
      most_weights_ = std::max(most_weights_, shape.in * shape.out);
      AddRows(shape);
    }
    weights_ = Random(most_weights_);
    x = Random(rows * widest_);
    y = reinterpret_cast<float*>(Allocate(7 * rows * widest_ * 4));
    for (std::int64_t i = 0; i < layout.layers * 7; ++i) modules.push_back(layer_[static_cast<std::size_t>(i % 7)]);
    modules.push_back({});
    std::vector<gpu::LoraModule> table;
    for (std::size_t t = 0; t < 7; ++t) table.push_back(on_device_[t]);
    resident_ = Upload(table);
    MakeResidentWork();
  }

  // y of a target: [rows][out], one target beside the other.
  float* Y(LoraTarget target) const { return y + static_cast<int>(target) * rows * widest_; }

  // The dense product of a target, which overwrites y.
  void Multiply(LoraTarget target) {
    const LinearShape& shape = layout.Shape(target);
    stream.Multiply({.dtype = DType::kBF16,
                     .m = rows,
                     .n = shape.out,
                     .k = shape.in,
                     .x = x,
                     .x_stride = shape.in,
                     .w = weights_,
                     .y = Y(target),
                     .y_stride = shape.out});
  }
  void MultiplyGroup(AssistGroup group) {
    for (int i = 0; i < AssistLayout::TargetsOf(group); ++i) {
      Multiply(AssistLayout::Plus(AssistLayout::FirstOf(group), i));
    }
  }

  void AddResident(AssistGroup group) {
    const LoraTarget first = AssistLayout::FirstOf(group);
    const std::int64_t in = layout.Shape(first).in;
    gpu::LoraShrinkArguments shrink = {.x = x, .x_stride = in, .in = in, .work = resident_work_};
    gpu::LoraExpandArguments expand = {.work = resident_work_};
    shrink.slices = expand.slices = AssistLayout::TargetsOf(group);
    shrink.partial = partial_;
    expand.partial = partial_;
    shrink.partial_rows = expand.partial_rows = rows;
    expand.in = in;
    for (int i = 0; i < shrink.slices; ++i) {
      const LoraTarget target = AssistLayout::Plus(first, i);
      shrink.module[i] = expand.module[i] = static_cast<std::int32_t>(target);
      expand.y[i] = Y(target);
      expand.y_stride[i] = expand.out[i] = layout.Shape(target).out;
    }
    gpu::LoraShrink(stream, DType::kBF16, shrink);
    gpu::LoraExpand(stream, expand);
  }

  std::vector<float> Result() {
    const std::int64_t floats = 7 * rows * widest_;
    const auto pinned = Must(device_.AllocatePinned("result", floats * 4));
    stream.CopyToHost(pinned->base(), y, static_cast<std::size_t>(floats * 4));
    Must(stream.Synchronize());
    const auto* begin = reinterpret_cast<const float*>(pinned->base());
    std::vector<float> result;
    for (int t = 0; t < 7; ++t) {
      const std::int64_t at = t * rows * widest_, count = rows * layout.shapes[static_cast<std::size_t>(t)].out;
      result.insert(result.end(), begin + at, begin + at + count);
    }
    return result;
  }

  template <typename T>
  T* Upload(const std::vector<T>& values) {
    std::byte* to = Allocate(static_cast<std::int64_t>(values.size() * sizeof(T)));
    const auto pinned = Must(device_.AllocatePinned("upload", static_cast<std::int64_t>(values.size() * sizeof(T))));
    std::memcpy(pinned->base(), values.data(), values.size() * sizeof(T));
    stream.CopyToDevice(to, pinned->base(), values.size() * sizeof(T));
    Must(stream.Synchronize());
    return reinterpret_cast<T*>(to);
  }
  std::byte* Allocate(std::int64_t bytes) {
    arenas_.push_back(Must(device_.Allocate("hand-off benchmark", bytes)));
    return arenas_.back()->base();
  }

 private:
  Device& device_;

 public:
  const AssistLayout layout;
  const std::int32_t rows, rank;
  StreamCounts counts;
  CountingStream stream;
  std::vector<LoraWeights> modules;  // in host memory
  const std::byte* x = nullptr;
  float* y = nullptr;

 private:
  std::byte* Random(std::int64_t elements) {
    std::vector<std::uint16_t> values(static_cast<std::size_t>(elements));
    for (auto& value : values) value = F32ToBF16(static_cast<float>(prng_.NextDouble() * 0.2 - 0.1));
    return reinterpret_cast<std::byte*>(Upload(values));
  }

  void AddRows(const LinearShape& shape) {
    std::vector<const void*> on_device[2];
    const std::byte* const* on_host[2];
    for (int side = 0; side < 2; ++side) {
      const std::int64_t length = side == 0 ? shape.in : shape.out, stride = CeilDivide(length, 32) * 32;
      std::vector<std::uint16_t> values(static_cast<std::size_t>(rank * stride));
      for (auto& value : values) value = F32ToBF16(static_cast<float>(prng_.NextDouble() * 0.2 - 0.1));
      const auto* copy = Upload(values);
      rows_.push_back(std::move(values));
      addresses_.emplace_back();
      for (std::int32_t j = 0; j < rank; ++j) {
        addresses_.back().push_back(reinterpret_cast<const std::byte*>(rows_.back().data() + j * stride));
        on_device[side].push_back(copy + j * stride);
      }
      on_host[side] = addresses_.back().data();
    }
    layer_.push_back({rank, 0.5f, DType::kBF16, on_host[0], on_host[1]});
    on_device_.push_back({Upload(on_device[0]), Upload(on_device[1]), rank, 0.5f});
  }

  void MakeResidentWork() {
    std::vector<gpu::LoraItem> shrink, expand;
    gpu::AppendLoraItems(resident_, DType::kBF16, rank, 0, rows, shrink, expand);
    resident_work_.shrink = Upload(shrink);
    resident_work_.expand = Upload(expand);
    resident_work_.max_shrink = static_cast<std::int32_t>(shrink.size());
    resident_work_.max_expand = static_cast<std::int32_t>(expand.size());
    resident_work_.shrink_count = Upload(std::vector<std::int32_t>{resident_work_.max_shrink});
    resident_work_.expand_count = Upload(std::vector<std::int32_t>{resident_work_.max_expand});
    resident_work_.max_rank = rank;
    partial_ = reinterpret_cast<float*>(Allocate(gpu::LoraPartialFloats(rows, widest_, 3, rank) * 4));
  }

  Prng prng_{17};
  std::int64_t widest_ = 0, most_weights_ = 0;
  const std::byte* weights_ = nullptr;
  std::vector<std::vector<std::uint16_t>> rows_;
  std::vector<std::vector<const std::byte*>> addresses_;
  std::vector<LoraWeights> layer_;
  std::vector<gpu::LoraModule> on_device_;
  const gpu::LoraModule* resident_ = nullptr;
  gpu::LoraWork resident_work_ = {};
  float* partial_ = nullptr;
  std::vector<std::unique_ptr<Arena>> arenas_;
};

void ForEachGroup(const AssistLayout& layout, const std::function<void(std::int64_t, AssistGroup)>& run) {
  for (std::int64_t layer = 0; layer < layout.layers; ++layer) {
    for (int group = 0; group < kNumAssistGroups; ++group) run(layer, static_cast<AssistGroup>(group));
  }
}

// One step in stream order.
void StepSyncFree(Case& of, AssistPool& pool) {
  pool.Begin();
  CHECK(pool.AddSegment({.first_row = 0, .rows = of.rows, .modules = of.modules}) != nullptr);
  Must(pool.Upload(of.stream));
  ForEachGroup(of.layout, [&](std::int64_t layer, AssistGroup group) {
    if (group == AssistGroup::kQkv) pool.BeginLayer(of.stream, layer);
    pool.Send(of.stream, group, layer, of.x, of.layout.Shape(AssistLayout::FirstOf(group)).in);
    of.MultiplyGroup(group);
    std::array<AssistOutput, gpu::kMaxAssistSlices> outputs;
    const int count = AssistLayout::TargetsOf(group);
    for (int i = 0; i < count; ++i) {
      const LoraTarget target = AssistLayout::Plus(AssistLayout::FirstOf(group), i);
      outputs[static_cast<std::size_t>(i)] = {target, of.Y(target), of.layout.Shape(target).out};
    }
    pool.Add(of.stream, group, layer, std::span(outputs).first(static_cast<std::size_t>(count)));
  });
}

// The worker and the slot of the explicit variant.
class ExplicitSide {
 public:
  ExplicitSide(Device& device, Case& of)
      : of_(of), memory_(Must(device.AllocatePinned("slot", of.layout.SlotBytes()))) {
    std::memset(memory_->base(), 0, static_cast<std::size_t>(of.layout.SlotBytes()));
    job_.slot = AssistSlot::At(of.layout, memory_->base());
    job_.rows = of.rows;
    job_.modules = of.modules;
    job_.first_ticket = 1;
    ticket_ = of.Upload(std::vector<std::uint32_t>{1});
    gate_ = of.Upload(std::vector<std::uint32_t>{gpu::kAssistOnHost});
    const auto* targets = of.Upload(std::vector<std::uint8_t>(static_cast<std::size_t>(of.layout.layers + 1), 0x7f));
    work_.segments = of.Upload(std::vector<gpu::AssistSegment>{{nullptr, targets}});
    work_.pieces =
        of.Upload(std::vector<gpu::AssistPiece>{{job_.slot.x, job_.slot.answer, job_.slot.words, 0, of.rows, 0, 0}});
    work_.gates = gate_;
    work_.piece_count = work_.segment_count = of.Upload(std::vector<std::int32_t>{1});
    work_.first_ticket = ticket_;
    work_.timeout_ns = 5 * kNsPerSecond;
    work_.max_pieces = work_.max_segments = 1;
    worker_ = std::thread([this] { Work(); });
  }
  ~ExplicitSide() {
    stopping_ = true;
    worker_.join();
  }
  ExplicitSide(const ExplicitSide&) = delete;
  ExplicitSide& operator=(const ExplicitSide&) = delete;

  std::int64_t waits = 0;  // for answers, by the host

  void Step() {
    std::atomic_ref(job_.slot.words->answered).store(0);
    ForEachGroup(of_.layout, [&](std::int64_t layer, AssistGroup group) {
      const std::int64_t in = of_.layout.Shape(AssistLayout::FirstOf(group)).in;
      of_.stream.CopyToHost(job_.slot.x, of_.x, static_cast<std::size_t>(of_.rows * in * 2));
      Must(of_.stream.Synchronize());
      const std::uint32_t ticket = 1 + of_.layout.GroupOf(layer, group);
      std::atomic_ref(job_.slot.words->request).store(ticket, std::memory_order_release);
      of_.MultiplyGroup(group);
      ++waits;
      while (std::atomic_ref(job_.slot.words->answered).load(std::memory_order_acquire) != ticket)
        std::this_thread::yield();
      Add(layer, group);
    });
  }

 private:
  void Add(std::int64_t layer, AssistGroup group) {
    gpu::AddAnswersArguments add = {.work = work_,
                                    .group = of_.layout.GroupOf(layer, group),
                                    .layer = static_cast<std::int32_t>(layer),
                                    .mask = AssistLayout::MaskOf(group),
                                    .slices = AssistLayout::TargetsOf(group),
                                    .width = of_.layout.Width(group)};
    for (int i = 0; i < add.slices; ++i) {
      const LoraTarget target = AssistLayout::Plus(AssistLayout::FirstOf(group), i);
      add.scale[i] = i;
      add.first[i] = of_.layout.ColumnOf(group, i);
      add.y[i] = of_.Y(target);
      add.y_stride[i] = add.out[i] = of_.layout.Shape(target).out;
    }
    gpu::AddAnswers(of_.stream, add);
  }

  void Work() {
    AlignedBuffer<float> scratch;
    std::int64_t idle = 0;
    while (!stopping_) {
      const std::uint32_t ticket = FindRequest(job_);
      if (ticket == 0) {
        PauseBetweenLooks(++idle);
        continue;
      }
      idle = 0;
      AnswerRequest(of_.layout, ticket, job_, scratch);
    }
  }

  Case& of_;
  std::unique_ptr<Arena> memory_;
  AssistJob job_;
  std::uint32_t *ticket_ = nullptr, *gate_ = nullptr;
  gpu::AssistWork work_ = {};
  std::atomic<bool> stopping_{false};
  std::thread worker_;
};

// Median seconds of a step, and what the host did in one.
struct Measured {
  double seconds = 0;
  StreamCounts counts;
  std::vector<float> result;
};

Measured Measure(Case& of, int repeat, const std::function<void()>& step, const std::function<void()>& end) {
  const OsClock clock;
  Measured measured;
  std::vector<double> seconds;
  for (int i = 0; i <= repeat; ++i) {
    of.counts = {};
    const TimeNs begin = clock.Now();
    step();
    measured.counts = of.counts;
    Must(of.stream.Synchronize());  // the one at the step's end
    if (i > 0) seconds.push_back(1e-9 * static_cast<double>(clock.Now() - begin));
    end();
  }
  std::sort(seconds.begin(), seconds.end());
  measured.seconds = seconds[seconds.size() / 2];
  measured.result = of.Result();
  return measured;
}

using Json = nlohmann::ordered_json;

void Report(Json& results, const Case& of, const char* way, const Measured& measured, std::int64_t host_waits,
            double base) {
  const auto layers = static_cast<double>(of.layout.layers);
  Json row = {{"way", way},
              {"rows", of.rows},
              {"rank", of.rank},
              {"layers", of.layout.layers},
              {"hidden", of.layout.Shape(LoraTarget::kQ).in},
              {"step_ms", 1e3 * measured.seconds},
              {"added_us_per_layer", 1e6 * (measured.seconds - base) / layers},
              {"launches", std::int64_t{measured.counts.launches}},
              {"copies", std::int64_t{measured.counts.copies}},
              {"host_waits", host_waits}};
  std::printf("%s\n", row.dump().c_str());
  std::fflush(stdout);
  results["cases"].push_back(std::move(row));
}

void RunCase(Device& device, const Flags& flags, const AssistLayout& layout, std::int32_t rows, std::int32_t rank,
             Json& results) {
  Case of(device, layout, rows, rank);
  const auto nothing = [] {};
  const Measured base = Measure(
      of, flags.repeat, [&] { ForEachGroup(layout, [&](std::int64_t, AssistGroup g) { of.MultiplyGroup(g); }); },
      nothing);
  Report(results, of, "base", base, base.counts.synchronisations, base.seconds);
  const Measured resident = Measure(
      of, flags.repeat,
      [&] {
        ForEachGroup(layout, [&](std::int64_t, AssistGroup group) {
          of.MultiplyGroup(group);
          of.AddResident(group);
        });
      },
      nothing);
  Report(results, of, "resident", resident, resident.counts.synchronisations, base.seconds);
  const auto pool = Must(AssistPool::Create(device, {.layout = layout, .workers = 1, .slots = 1}));
  std::vector<AssistFailure> failures;
  const Measured sync_free = Measure(
      of, flags.repeat, [&] { StepSyncFree(of, *pool); }, [&] { pool->End(failures); });
  CHECK(failures.empty());
  CHECK_EQ(std::int64_t{sync_free.counts.synchronisations}, 0);
  Report(results, of, "sync_free", sync_free, sync_free.counts.synchronisations, base.seconds);
  AssistLayout with_device = layout;
  with_device.fused = device.properties().major > 0;
  Case other(device, with_device, rows, rank);
  ExplicitSide side(device, other);
  const Measured waiting = Measure(
      other, flags.repeat,
      [&] {
        side.waits = 0;
        side.Step();
      },
      nothing);
  Report(results, other, "explicit", waiting, waiting.counts.synchronisations + side.waits, base.seconds);
  CHECK(sync_free.result == waiting.result);
  for (std::size_t i = 0; i < resident.result.size(); ++i) {
    CHECK(std::abs(sync_free.result[i] - resident.result[i]) < 0.01f * (1 + std::abs(resident.result[i])));
  }
  CHECK(sync_free.result != base.result);
}

AssistLayout LayoutOf(std::int64_t layers, std::int64_t hidden, std::int64_t intermediate) {
  AssistLayout layout;
  layout.layers = layers;
  for (LinearShape& shape : layout.shapes) shape = {hidden, hidden};
  layout.shapes[static_cast<std::size_t>(LoraTarget::kGate)].out = intermediate;
  layout.shapes[static_cast<std::size_t>(LoraTarget::kUp)].out = intermediate;
  layout.shapes[static_cast<std::size_t>(LoraTarget::kDown)].in = intermediate;
  return layout;
}

void Run(Flags flags) {
  const auto device = Must(gpu::OpenDevice(flags.device, {}));
  if (flags.check) {
    flags.repeat = 1;
    flags.layers = 2;
    flags.hidden = 128;
    flags.intermediate = 192;
    flags.rows = {3};
    flags.ranks = {8};
  }
  Json results = {{"device", device->properties().name}, {"check_only", flags.check}};
  RunCase(*device, flags, LayoutOf(flags.layers, 64, 64), 1, 1, results);  // the hand-off alone
  const AssistLayout layout = LayoutOf(flags.layers, flags.hidden, flags.intermediate);
  for (const std::int32_t rows : flags.rows) {
    CHECK(rows >= 1 && rows <= gpu::kAssistPieceRows);
    for (const std::int32_t rank : flags.ranks) RunCase(*device, flags, layout, rows, rank, results);
  }
  if (!flags.json.empty()) Must(WriteTextFile(flags.json, results.dump(1) + "\n"));
}

}  // namespace
}  // namespace loramux

int main(int argc, char** argv) {
  loramux::Flags flags;
  loramux::Command command{.name = "assist_handoff",
                           .summary = "What the hand-off between a device and the processor costs"};
  command.line.Add({.names = "--device",
                    .target = &flags.device,
                    .unit = "NAME",
                    .help = "Device to measure",
                    .choices = {"cuda", "emulated"}});
  command.line.Add({.names = "--layers", .target = &flags.layers, .unit = "N", .help = "Layers of the model"});
  command.line.Add(
      {.names = "--hidden", .target = &flags.hidden, .unit = "N", .help = "Width of the model; a multiple of 8"});
  command.line.Add({.names = "--intermediate",
                    .target = &flags.intermediate,
                    .unit = "N",
                    .help = "Width of gate and up; a multiple of 8"});
  command.line.Add({.names = "--rows",
                    .target = &flags.rows,
                    .unit = "N",
                    .help = "Rows of the assisted segment",
                    .range = {{1, 16}},
                    .comma_list = true});
  command.line.Add(
      {.names = "--ranks", .target = &flags.ranks, .unit = "N", .help = "Ranks of the adapter", .comma_list = true});
  command.line.Add({.names = "--repeat", .target = &flags.repeat, .unit = "N", .help = "Steps that are timed"});
  command.line.Add({.names = "--json", .target = &flags.json, .unit = "FILE", .help = "File for the results"});
  command.line.Add({.names = "--check", .target = &flags.check, .help = "Tiny sizes, one repetition"});
  command.run = [&flags] {
    loramux::Run(flags);
    return 0;
  };
  return loramux::RunCommand(command, argc, argv);
}
