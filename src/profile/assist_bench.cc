#include "profile/assist_bench.h"

#include <algorithm>
#include <array>
#include <vector>

#include "assist/assist_pool.h"
#include "base/clock.h"
#include "gpu/kernels/assist.h"
#include "kernels/lora_sums.h"
#include "tensor/aligned_buffer.h"
#include "tensor/half_float.h"
#include "workload/statistics.h"

namespace loramux {
namespace {

constexpr std::array<std::int32_t, 5> kRanks = {8, 16, 32, 64, 128};
constexpr std::int64_t kRowsBytes = std::int64_t{96} << 20;  // larger than processor caches
constexpr int kFewestRepeats = 3, kMostRepeats = 64;
constexpr std::int64_t kHandOverLayers = 8;  // layers of a measured step

// As CpuAssist::kGroupNames.
constexpr std::size_t kHead = 4;
std::size_t IndexOf(LoraTarget target) {
  return target == LoraTarget::kLmHead ? kHead : static_cast<std::size_t>(AssistGroupOf(target));
}

double InSeconds(TimeNs time) { return static_cast<double>(time) / static_cast<double>(kNsPerSecond); }

// Rows of adapters in host memory: those of each call lie after those of the last.
class RowRing {
 public:
  RowRing(DType dtype, std::int64_t longest) : dtype_(dtype), row_bytes_(RowBytes(longest)), memory_(kRowsBytes / 4) {
    for (std::int64_t i = 0; i < kRowsBytes / static_cast<std::int64_t>(DTypeSize(dtype)); ++i)
      StoreFromF32(dtype, Bytes(), i, 0.01f);
  }
  LoraWeights Next(std::int32_t rank) {
    std::vector<const std::byte*>& rows = rows_.emplace_back();
    for (std::int32_t i = 0; i < 2 * rank; ++i) {
      if (at_ + row_bytes_ > kRowsBytes) at_ = 0;
      rows.push_back(Bytes() + at_);
      at_ += row_bytes_;
    }
    return {rank, 1, dtype_, rows.data(), rows.data() + rank};
  }
  // REQUIRES: nothing uses earlier weights.
  void Forget() { rows_.clear(); }

 private:
  std::int64_t RowBytes(std::int64_t elements) const {
    return (elements * static_cast<std::int64_t>(DTypeSize(dtype_)) + 63) / 64 * 64;
  }
  std::byte* Bytes() { return reinterpret_cast<std::byte*>(memory_.data()); }

  const DType dtype_;
  const std::int64_t row_bytes_;
  AlignedBuffer<float> memory_;
  std::int64_t at_ = 0;
  std::vector<std::vector<const std::byte*>> rows_;
};

class AssistBench {
 public:
  AssistBench(const PlacedModel& model, const AdapterLayout& adapter, std::set<LoraTarget> targets, double seconds)
      : device_(*model.device()),
        config_(model.config()),
        targets_(std::move(targets)),
        seconds_(seconds / static_cast<double>((kRanks.size() + 2) * CpuAssist::kGroupNames.size())) {
    layout_.layers = config_.num_layers;
    layout_.dtype = model.dtype();
    layout_.fused = device_.properties().major > 0;
    std::int64_t longest = 1;
    for (int i = 0; i < kNumLoraTargets; ++i) {
      LinearShape& shape = layout_.shapes[static_cast<std::size_t>(i)];
      shape = TargetShape(config_, static_cast<LoraTarget>(i));
      longest = std::max({longest, shape.in, shape.out});
    }
    ring_ = std::make_unique<RowRing>(adapter.dtype, longest);
  }

  Result<CpuAssist> Run(std::int64_t cores) {
    CpuAssist assist{.layers = layout_.layers, .cores = cores};
    RETURN_IF_ERROR(MakeArrays());
    for (std::size_t index = 0; index < assist.groups.size(); ++index) {
      const std::vector<LoraTarget> targets = TargetsOf(index);
      if (targets.empty()) continue;
      const double times = index == kHead ? 1 : static_cast<double>(layout_.layers);
      CpuAssist::Group& group = assist.groups[index];
      group.per_token_rank = times * SecondsOfTokenRank(targets);
      group.base_share = BaseShare(index);
      // lm_head has the same launches and words; its answers come in parts, which is left out.
      const AssistGroup kind = index == kHead ? AssistGroup::kDown : static_cast<AssistGroup>(index);
      ASSIGN_OR_RETURN(const double one, HandOver(kind, 1));
      ASSIGN_OR_RETURN(const double all, HandOver(kind, gpu::kAssistPieceRows));
      const double token = std::max(0.0, all - one) / (gpu::kAssistPieceRows - 1);
      group.hand_off = times * std::max(0.0, one - token);
      assist.per_token += times * token;
    }
    return assist;
  }

 private:
  // The targets of a group that the adapters change.
  std::vector<LoraTarget> TargetsOf(std::size_t index) const {
    std::vector<LoraTarget> found;
    std::copy_if(targets_.begin(), targets_.end(), std::back_inserter(found),
                 [&](LoraTarget target) { return IndexOf(target) == index; });
    return found;
  }

  // Elements of the base's weights of a group, in all layers.
  double BaseElements(std::size_t index) const {
    double elements = 0;
    for (int i = 0; i < kNumLoraTargets; ++i) {
      const auto target = static_cast<LoraTarget>(i);
      if (IndexOf(target) != index) continue;
      const LinearShape& shape = layout_.Shape(target);
      elements += static_cast<double>(shape.in) * static_cast<double>(shape.out);
    }
    return elements * (index == kHead ? 1 : static_cast<double>(layout_.layers));
  }
  double BaseShare(std::size_t index) const {
    double all = 0;
    for (std::size_t i = 0; i <= kHead; ++i) all += BaseElements(i);
    return BaseElements(index) / all;
  }

  // One core's seconds for a token and a unit of rank, in one layer: the mean over the ranks.
  double SecondsOfTokenRank(const std::vector<LoraTarget>& targets) {
    const std::int64_t in = layout_.Shape(targets.front()).in, rows = gpu::kAssistPieceRows;
    std::int64_t width = 0;
    for (const LoraTarget target : targets) width += layout_.Shape(target).out;
    std::vector<std::byte> x(static_cast<std::size_t>(rows * in) * DTypeSize(layout_.dtype));
    for (std::int64_t i = 0; i < rows * in; ++i) StoreFromF32(layout_.dtype, x.data(), i, 0.1f);
    AlignedBuffer<float> answer(rows * width), workspace(LoraSumsFloats(rows, in, kRanks.back()));
    double sum = 0;
    for (const std::int32_t rank : kRanks) {
      const double seconds = Repeat([&] {
        std::vector<LoraSumsOutput> outputs;
        std::int64_t column = 0;
        for (const LoraTarget target : targets) {
          const std::int64_t out = layout_.Shape(target).out;
          outputs.push_back({ring_->Next(rank), 0, out, answer.data() + column, width});
          column += out;
        }
        const TimeNs begin = clock_.Now();
        LoraSums({Backend::kCpu, &alone_},
                 {layout_.dtype, x.data(), in, rows, in, outputs, layout_.fused, workspace.data()});
        const double took = InSeconds(clock_.Now() - begin);
        ring_->Forget();
        return took;
      });
      sum += seconds / static_cast<double>(rows * rank);
    }
    return sum / static_cast<double>(kRanks.size());
  }

  // The median of what `run` returns.
  template <typename Run>
  double Repeat(Run run) {
    std::vector<double> times;
    const TimeNs begin = clock_.Now();
    for (int i = 0; i < kMostRepeats && (i < kFewestRepeats || InSeconds(clock_.Now() - begin) < seconds_); ++i)
      times.push_back(run());
    return UpperMedian(std::move(times));
  }

  Status MakeArrays() {
    ASSIGN_OR_RETURN(stream_, device_.CreateStream());
    const std::int64_t rows = gpu::kAssistPieceRows;
    ASSIGN_OR_RETURN(x_, device_.Allocate("activations", rows * layout_.MostIn() * 4));
    ASSIGN_OR_RETURN(y_, device_.Allocate("outputs", rows * layout_.MostWidth() * 4));
    stream_->Fill(x_->base(), 0, static_cast<std::size_t>(rows * layout_.MostIn() * 4));
    stream_->Fill(y_->base(), 0, static_cast<std::size_t>(rows * layout_.MostWidth() * 4));
    AssistOptions options{.layout = layout_, .workers = 1, .slots = 1};
    options.layout.layers = kHandOverLayers;
    ASSIGN_OR_RETURN(pool_, AssistPool::Create(device_, options));
    return stream_->Synchronize();
  }

  // Seconds that the device takes for one group of a layer, with nothing else to do, beyond the worker's arithmetic.
  Result<double> HandOver(AssistGroup kind, std::int32_t rows) {
    std::vector<LoraWeights> modules(static_cast<std::size_t>(kHandOverLayers * 7 + 1));
    for (std::int64_t layer = 0; layer < kHandOverLayers; ++layer) {
      for (int i = 0; i < AssistLayout::TargetsOf(kind); ++i) {
        const LoraTarget target = AssistLayout::Plus(AssistLayout::FirstOf(kind), i);
        if (targets_.contains(target)) modules[layout_.ModuleOf(layer, target)] = ring_->Next(kRanks.front());
      }
    }
    Status status = Ok{};
    const double seconds = Repeat([&] {
      const Result<double> took = AssistedStep(kind, rows, modules);
      if (!took.ok()) status = took.error();
      return took.ok() ? *took : 0;
    });
    ring_->Forget();
    RETURN_IF_ERROR(status);
    return seconds / static_cast<double>(kHandOverLayers);
  }

  Result<double> AssistedStep(AssistGroup kind, std::int32_t rows, std::span<const LoraWeights> modules) {
    const LoraTarget first = AssistLayout::FirstOf(kind);
    std::vector<AssistOutput> outputs;
    std::int64_t column = 0;
    for (int i = 0; i < AssistLayout::TargetsOf(kind); ++i) {
      const LoraTarget target = AssistLayout::Plus(first, i);
      outputs.push_back({target, reinterpret_cast<float*>(y_->base()) + column, layout_.Width(kind)});
      column += AssistLayout::SliceWidth(layout_.Shape(target).out);
    }
    const std::int64_t busy = pool_->counts().busy_ns;
    pool_->Begin();
    CHECK(pool_->AddSegment({.first_row = 0, .rows = rows, .modules = modules}) != nullptr);
    RETURN_IF_ERROR(pool_->Upload(*stream_));
    RETURN_IF_ERROR(stream_->Synchronize());  // the workers are awake
    const TimeNs begin = clock_.Now();
    for (std::int64_t layer = 0; layer < kHandOverLayers; ++layer) {
      pool_->BeginLayer(*stream_, layer);
      pool_->Send(*stream_, kind, layer, x_->base(), layout_.Shape(first).in);
      pool_->Add(*stream_, kind, layer, outputs);
    }
    const Status done = stream_->Synchronize();
    const double took = InSeconds(clock_.Now() - begin);
    std::vector<AssistFailure> failures;
    pool_->End(failures);
    RETURN_IF_ERROR(done);
    if (!failures.empty()) return Internal("a worker did not answer while CPU assistance was measured");
    return std::max(0.0, took - InSeconds(pool_->counts().busy_ns - busy));
  }

  Device& device_;
  const ModelConfig& config_;
  const std::set<LoraTarget> targets_;
  const double seconds_;  // seconds that one measurement may take
  AssistLayout layout_;
  OsClock clock_;
  std::unique_ptr<RowRing> ring_;
  ThreadPool alone_{1};  // in which LoraSums computes
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<Arena> x_, y_;
  std::unique_ptr<AssistPool> pool_;  // goes first
};

}  // namespace

Result<CpuAssist> MeasureAssist(const PlacedModel& model,
                                std::span<const std::shared_ptr<const AdapterVersion>> adapters, std::int64_t cores,
                                double seconds) {
  std::set<LoraTarget> targets;
  for (const auto& adapter : adapters) {
    for (const ModulePlace& module : adapter->layout.modules) targets.insert(module.target);
  }
  if (targets.empty()) return CpuAssist{};
  if (model.device() == nullptr) return CpuAssist{.layers = model.config().num_layers};
  return AssistBench(model, adapters.front()->layout, std::move(targets), seconds).Run(cores);
}

}  // namespace loramux
