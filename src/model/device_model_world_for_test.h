// A small model on the CPU and on the device of the tests, for comparisons of what they compute.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "gpu/device_for_test.h"
#include "gpu/emulated/emulated_device.h"
#include "gpu/open_device.h"
#include "memory/page_geometry.h"
#include "model/device_adapters_for_test.h"
#include "model/device_model.h"
#include "model/model.h"
#include "model/rounded_ops_for_test.h"
#include "model/small_models_for_test.h"
#include "model/step_for_test.h"
#include "model/step_graphs.h"
#include "tensor/aligned_buffer.h"
#include "tensor/half_float.h"

namespace loramux::device_model_test {

using Tokens = std::vector<TokenId>;
using Floats = std::vector<float>;

// Random pairs for some targets of all layers, and of two thirds of the experts.
class HostAdapter {
 public:
  HostAdapter(const ModelConfig& config, std::int32_t rank, std::span<const LoraTarget> targets, DType dtype,
              std::uint64_t seed)
      : prng_(seed), dtype_(dtype) {
    const std::int64_t experts = config.experts ? config.experts->route.experts : 0;
    view_.Clear(config.num_layers, experts, /*of_routers=*/experts > 0, /*of_rare=*/config.recurrent.has_value());
    for (const LoraTarget of_attention : targets) {
      for (std::int64_t layer = 0; layer < (of_attention == LoraTarget::kLmHead ? 1 : config.num_layers); ++layer) {
        const LoraTarget target = TargetOf(config, layer, of_attention);
        // Ranks may differ between layers, and between experts.
        const std::int32_t own = layer == 1 ? std::max(1, rank / 2) : rank;
        view_.PlaceOf(layer, target, -1, config.num_layers) = Pair(own, TargetShape(config, target, layer));
        const bool of_block = target == LoraTarget::kGate || target == LoraTarget::kUp || target == LoraTarget::kDown;
        for (std::int32_t e = 0; of_block && config.HasExperts(layer) && e < experts; ++e) {
          if (e % 3 == 2) continue;
          view_.PlaceOf(layer, target, e, config.num_layers) =
              Pair(std::max(1, own - e), TargetShape(config, target, layer, e));
        }
      }
    }
  }

  const LoraView& view() const { return view_; }

 private:
  // What stands in a recurrent layer for a target of attention.
  static LoraTarget TargetOf(const ModelConfig& config, std::int64_t layer, LoraTarget target) {
    if (!config.IsRecurrent(layer) || target > LoraTarget::kO) return target;
    if (target == LoraTarget::kO) return LoraTarget::kOut;
    if (config.recurrent->mamba) return LoraTarget::kInAll;
    constexpr LoraTarget kInputs[] = {LoraTarget::kInQkv, LoraTarget::kInZ, LoraTarget::kInA};
    return kInputs[static_cast<int>(target)];
  }

  LoraWeights Pair(std::int32_t rank, const LinearShape& shape) {
    const float a_size = std::sqrt(3.0f / static_cast<float>(shape.in)),
                b_size = std::sqrt(3.0f / static_cast<float>(rank));
    const std::byte* const* a = Rows(rank, shape.in, a_size);
    const std::byte* const* b = Rows(rank, shape.out, b_size);
    return {rank, 0.5f, dtype_, a, b};
  }

  const std::byte* const* Rows(std::int32_t rank, std::int64_t count, float size) {
    std::vector<const std::byte*>& rows = rows_.emplace_back();
    for (std::int32_t j = 0; j < rank; ++j) {
      AlignedBuffer<std::byte>& row = memory_.emplace_back(count * static_cast<std::int64_t>(DTypeSize(dtype_)));
      for (std::int64_t i = 0; i < count; ++i) {
        StoreFromF32(dtype_, row.data(), i, static_cast<float>(2 * prng_.NextDouble() - 1) * size);
      }
      rows.push_back(row.data());
    }
    return rows.data();
  }

  Prng prng_;
  DType dtype_;
  LoraView view_;
  std::vector<AlignedBuffer<std::byte>> memory_;
  std::vector<std::vector<const std::byte*>> rows_;
};

inline constexpr LoraTarget kAll[] = {LoraTarget::kQ,    LoraTarget::kK,  LoraTarget::kV,    LoraTarget::kO,
                                      LoraTarget::kGate, LoraTarget::kUp, LoraTarget::kDown, LoraTarget::kLmHead};
inline constexpr LoraTarget kSome[] = {LoraTarget::kQ, LoraTarget::kV, LoraTarget::kDown};

struct Sequence {
  Tokens tokens;
  int adapter = -1;
  std::int64_t position = 0;  // tokens that were computed
  std::vector<std::uint32_t> pages;
};

// What a step computes of a sequence.
struct Part {
  std::size_t sequence;
  std::int64_t tokens;
};

// A model on the CPU and its copy on the device, with adapters, sequences and pages on both sides. Free pages are NaN.
class Twins {
 public:
  Twins(const ModelConfig& config, DType dtype, DType kv_dtype, bool batch_invariant = false)
      : Twins(config, RandomWeights(config, dtype), kv_dtype, batch_invariant) {}
  Twins(const ModelConfig& config, ModelWeights weights, DType kv_dtype, bool batch_invariant = false)
      : config_(config),
        layout_(KvLayoutOf(config, 8, kv_dtype)),
        host_(config, std::move(weights)),
        workspace_(config_),
        host_pages_(static_cast<std::int64_t>(layout_.PageBytes()) * kPages),
        rounded_pages_(host_pages_.capacity()) {
    device_ = gpu::OpenDeviceForTest({.memory = std::int64_t{256} << 20, .batch_invariant = batch_invariant});
    stream_ = device_->CreateStream().value();
    model_ = DeviceModel::Upload(host_, *device_).value();
    pages_ = device_->Allocate("pages", static_cast<std::int64_t>(layout_.PageBytes()) * kPages).value();
    stream_->Fill(pages_->base(), 0xff, static_cast<std::size_t>(pages_->size()));
    std::memset(host_pages_.data(), 0xff, static_cast<std::size_t>(host_pages_.capacity()));
    std::memset(rounded_pages_.data(), 0xff, static_cast<std::size_t>(rounded_pages_.capacity()));
    adapters_ = std::make_unique<DeviceAdaptersForTest>(*device_, *stream_, config_);
  }

  const ModelConfig& config() const { return config_; }
  const KvLayout& layout() const { return layout_; }
  Device& device() { return *device_; }
  DeviceStream& stream() { return *stream_; }
  DeviceModel& model() { return *model_; }
  // Records and replays from now on.
  void Record() { graphs_ = std::make_unique<StepGraphs>(); }
  StepGraphs& graphs() { return *graphs_; }
  Sequence& sequence(std::size_t index) { return sequences_[index]; }

  int AddAdapter(std::int32_t rank, std::span<const LoraTarget> targets, DType dtype) {
    host_adapters_.push_back(std::make_unique<HostAdapter>(config_, rank, targets, dtype, 10 + host_adapters_.size()));
    device_adapters_.push_back(adapters_->Copy(host_adapters_.back()->view()));
    return static_cast<int>(host_adapters_.size()) - 1;
  }

  std::size_t AddSequence(std::int64_t tokens, int adapter) {
    Sequence& sequence = sequences_.emplace_back();
    sequence.adapter = adapter;
    for (std::int64_t i = 0; i < tokens; ++i) {
      sequence.tokens.push_back(static_cast<TokenId>(prng_.NextBelow(static_cast<std::uint64_t>(config_.vocab_size))));
    }
    return sequences_.size() - 1;
  }

  // All rows need logits but the last ones of each part, which are scored: as many as `what.scores` has for it. `what`:
  // what else the step does.
  template <typename View>
  StepForTest<View> StepOf(std::span<const Part> parts, const std::vector<const View*>& adapters,
                           const StepBatch& what) {
    StepForTest<View> step;
    step.batch.samples = what.samples;
    step.batch.scores = what.scores;
    step.batch.pools = what.pools;
    step.batch.arrivals = what.arrivals;
    const auto scored = static_cast<std::uint32_t>(what.scores.size() / parts.size());
    for (const Part& part : parts) {
      Sequence& s = sequences_[part.sequence];
      while (static_cast<std::int64_t>(s.pages.size()) < layout_.PagesFor(s.position + part.tokens)) {
        // Scattered over the arena.
        s.pages.push_back(next_page_ * 37 % kPages);
        CHECK(++next_page_ <= kPages);
      }
      const View* const adapter = s.adapter < 0 ? nullptr : adapters[static_cast<std::size_t>(s.adapter)];
      step.Add(std::span(s.tokens).subspan(static_cast<std::size_t>(s.position), static_cast<std::size_t>(part.tokens)),
               s.position, s.pages, adapter, part.tokens - scored, static_cast<std::int64_t>(s.tokens.size()))
          .scores.size = scored;
    }
    return step;
  }

  // Returns no logits if rows are scored.
  Floats ForwardOnHost(std::span<const Part> parts, const StepBatch& what = {}) {
    const auto step = StepOf<LoraView>(parts, HostViews(), what);
    host_.Forward({{Backend::kCpu, &threads_}, layout_, {host_pages_.data(), layout_.PageBytes()}}, step.batch,
                  step.adapters, host_result);
    if (!what.scores.empty()) return {};
    return {host_.logits().begin(), host_.logits().end()};
  }

  // As a device rounds.
  Floats ForwardRounded(std::span<const Part> parts, DType dtype) {
    const auto step = StepOf<LoraView>(parts, HostViews(), {});
    workspace_.batch.Describe(step.batch, step.adapters);
    const CpuPlace place{{Backend::kCpu, &threads_}, layout_, {rounded_pages_.data(), layout_.PageBytes()}};
    RoundedOps ops(config_, workspace_, place, host_result, dtype);
    ForwardPass<RoundedOps>(config_, host_.weights(), ops).Run(workspace_.batch);
    const auto count = static_cast<std::ptrdiff_t>(workspace_.batch.num_logit_rows * config_.vocab_size);
    return {workspace_.logits.data(), workspace_.logits.data() + count};
  }

  Status TryOnDevice(std::span<const Part> parts, const StepBatch& what = {}) {
    const auto step = StepOf<DeviceLoraView>(parts, device_adapters_, what);
    return model_->Forward({*stream_, layout_, {pages_->base(), layout_.PageBytes()}, graphs_.get()}, step.batch,
                           step.adapters, device_result);
  }

  Floats ForwardOnDevice(std::span<const Part> parts, const StepBatch& what = {}) {
    const Status done = TryOnDevice(parts, what);
    EXPECT_TRUE(done.ok()) << done.error().message;
    Floats logits;
    if (!what.scores.empty()) return {};
    EXPECT_TRUE(model_->CopyLogits(*stream_, logits).ok());
    return logits;
  }

  StepResult host_result, device_result;  // results of the last step on each side

  void Advance(std::span<const Part> parts) {
    for (const Part& part : parts) sequences_[part.sequence].position += part.tokens;
  }

 private:
  static constexpr std::uint32_t kPages = 128;

  std::vector<const LoraView*> HostViews() const {
    std::vector<const LoraView*> views;
    for (const auto& adapter : host_adapters_) views.push_back(&adapter->view());
    return views;
  }

  ModelConfig config_;
  KvLayout layout_;
  Model host_;
  CpuWorkspace workspace_;  // memory of ForwardRounded
  AlignedBuffer<std::byte> host_pages_, rounded_pages_;
  ThreadPool threads_{2};
  Prng prng_{3};
  std::vector<std::unique_ptr<HostAdapter>> host_adapters_;
  std::vector<Sequence> sequences_;
  std::uint32_t next_page_ = 0;
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<StepGraphs> graphs_;
  std::unique_ptr<DeviceModel> model_;
  std::unique_ptr<Arena> pages_;
  std::unique_ptr<DeviceAdaptersForTest> adapters_;
  std::vector<const DeviceLoraView*> device_adapters_;
};

}  // namespace loramux::device_model_test
