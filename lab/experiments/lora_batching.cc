#include "lab/experiments/lora_batching.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "base/clock.h"
#include "base/prng.h"
#include "kernels/lora.h"
#include "tensor/aligned_buffer.h"
#ifdef LORAMUX_EMULATED_DEVICE
#include "gpu/counting_stream.h"
#include "gpu/emulated/emulated_device.h"
#include "gpu/kernels/lora.h"
#endif

namespace loramux {
namespace {

constexpr std::int64_t kTargets = 4;  // q, k, v, o
constexpr int kRuns = 5;

// The rows of the batch that use adapter `a`: [RowOf(a), RowOf(a + 1)).
std::int64_t RowOf(const LoraBatchShape& shape, std::int64_t a) { return shape.rows * a / shape.adapters; }

}  // namespace

#ifdef LORAMUX_EMULATED_DEVICE
namespace {

// The layer in the memory of an emulated device. Weights and activations are arbitrary: only counts matter.
class DeviceLayer {
 public:
  explicit DeviceLayer(const LoraBatchShape& shape) : shape_(shape) {}

  Status Build() {
    gpu::EmulatedDeviceOptions options;
    options.memory = 2 * shape_.AdapterBytes() + (std::int64_t{1} << 30);
    device_ = gpu::MakeEmulatedDevice(options);
    ASSIGN_OR_RETURN(auto stream, device_->CreateStream());
    stream_ = std::make_unique<CountingStream>(std::move(stream), counts_);
    ASSIGN_OR_RETURN(x_, Allocate(shape_.rows * stride() * 2));
    ASSIGN_OR_RETURN(y_, Allocate(shape_.rows * kTargets * shape_.hidden * 4));
    const std::int64_t floats = gpu::LoraPartialFloats(shape_.rows, shape_.hidden, 3, Rank());
    ASSIGN_OR_RETURN(partial_, Allocate(floats * 4));
    for (std::int64_t a = 0; a < shape_.adapters; ++a) RETURN_IF_ERROR(AddAdapter());
    ASSIGN_OR_RETURN(all_, WorkOf(0, shape_.adapters));
    for (std::int64_t a = 0; a < shape_.adapters; ++a) {
      ASSIGN_OR_RETURN(single_.emplace_back(), WorkOf(a, a + 1));
    }
    return stream_->Synchronize();
  }

  Result<DeviceLoraCounts> Run(LoraBatching batching) {
    const std::int64_t before = counts_.launches;
    device_->ResetTraffic();
    if (batching == LoraBatching::kAtOnce) {
      Product(all_, 0, 3);
      Product(all_, 3, 1);
    }
    for (const gpu::LoraWork& work : single_) {
      if (batching == LoraBatching::kAtOnce) break;
      if (batching == LoraBatching::kByAdapter) {
        Product(work, 0, 3);
        Product(work, 3, 1);
        continue;
      }
      for (std::int32_t target = 0; target < kTargets; ++target) Product(work, target, 1);
    }
    RETURN_IF_ERROR(stream_->Synchronize());
    const std::int64_t adapters = device_->TrafficOf("adapters").load_bytes;
    return DeviceLoraCounts{.launches = counts_.launches - before,
                            .adapter_bytes = adapters,
                            .other_bytes = device_->Total().load_bytes - adapters};
  }

 private:
  std::int32_t Rank() const { return static_cast<std::int32_t>(shape_.rank); }
  std::int64_t stride() const { return (shape_.hidden + 7) / 8 * 8; }

  Result<std::byte*> Allocate(std::int64_t bytes) {
    ASSIGN_OR_RETURN(auto arena, device_->Allocate("layer", bytes));
    arenas_.push_back(std::move(arena));
    return arenas_.back()->base();
  }
  template <typename T>
  Result<const T*> Upload(const std::vector<T>& values) {
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
    ASSIGN_OR_RETURN(auto pinned, device_->AllocatePinned("upload", bytes));
    std::memcpy(pinned->base(), values.data(), static_cast<std::size_t>(bytes));
    ASSIGN_OR_RETURN(std::byte* const at, Allocate(bytes));
    stream_->CopyToDevice(at, pinned->base(), static_cast<std::size_t>(bytes));
    arenas_.push_back(std::move(pinned));
    return reinterpret_cast<const T*>(at);
  }

  Status AddAdapter() {
    const std::int64_t row_bytes = (shape_.hidden * 2 + 63) / 64 * 64, rows = kTargets * 2 * shape_.rank;
    ASSIGN_OR_RETURN(std::byte* const base, Allocate(rows * row_bytes));
    device_->Watch("adapters", base, static_cast<std::size_t>(rows * row_bytes));
    std::vector<const void*> addresses;
    for (std::int64_t row = 0; row < rows; ++row) addresses.push_back(base + row * row_bytes);
    ASSIGN_OR_RETURN(const void* const* table, Upload(addresses));
    std::vector<gpu::LoraModule> modules;
    for (std::int64_t target = 0; target < kTargets; ++target) {
      const void* const* a = table + target * 2 * shape_.rank;
      modules.push_back({a, a + shape_.rank, Rank(), 1.0f});
    }
    ASSIGN_OR_RETURN(modules_.emplace_back(), Upload(modules));
    return Ok{};
  }

  // The work of the adapters [begin, end).
  Result<gpu::LoraWork> WorkOf(std::int64_t begin, std::int64_t end) {
    std::vector<gpu::LoraItem> shrink, expand;
    for (std::int64_t a = begin; a < end; ++a) {
      const std::int64_t row = RowOf(shape_, a), rows = RowOf(shape_, a + 1) - row;
      gpu::AppendLoraItems(modules_[static_cast<std::size_t>(a)], DType::kBF16, Rank(), static_cast<std::int32_t>(row),
                           static_cast<std::int32_t>(rows), shrink, expand);
    }
    gpu::LoraWork work = {};
    work.max_shrink = static_cast<std::int32_t>(shrink.size());
    work.max_expand = static_cast<std::int32_t>(expand.size());
    work.max_rank = Rank();
    ASSIGN_OR_RETURN(work.shrink, Upload(shrink));
    ASSIGN_OR_RETURN(work.expand, Upload(expand));
    ASSIGN_OR_RETURN(work.shrink_count, Upload(std::vector<std::int32_t>{work.max_shrink}));
    ASSIGN_OR_RETURN(work.expand_count, Upload(std::vector<std::int32_t>{work.max_expand}));
    return work;
  }

  // Targets [first, first + slices), which share x.
  void Product(const gpu::LoraWork& work, std::int32_t first, std::int32_t slices) {
    gpu::LoraShrinkArguments shrink = {};
    gpu::LoraExpandArguments expand = {};
    shrink.x = x_;
    shrink.x_stride = stride();
    shrink.in = expand.in = shape_.hidden;
    shrink.work = expand.work = work;
    shrink.slices = expand.slices = slices;
    shrink.partial = reinterpret_cast<float*>(partial_);
    expand.partial = shrink.partial;
    shrink.partial_rows = expand.partial_rows = shape_.rows;
    for (std::int32_t slice = 0; slice < slices; ++slice) {
      shrink.module[slice] = expand.module[slice] = first + slice;
      expand.y[slice] = reinterpret_cast<float*>(y_) + (first + slice) * shape_.hidden;
      expand.y_stride[slice] = kTargets * shape_.hidden;
      expand.out[slice] = shape_.hidden;
    }
    gpu::LoraShrink(*stream_, DType::kBF16, shrink);
    gpu::LoraExpand(*stream_, expand);
  }

  const LoraBatchShape shape_;
  std::unique_ptr<gpu::EmulatedDevice> device_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  StreamCounts counts_;
  std::unique_ptr<CountingStream> stream_;
  std::byte *x_ = nullptr, *y_ = nullptr, *partial_ = nullptr;
  std::vector<const gpu::LoraModule*> modules_;  // by adapter
  gpu::LoraWork all_ = {};
  std::vector<gpu::LoraWork> single_;  // by adapter
};

}  // namespace

Result<DeviceLoraCounts> CountLoraOnDevice(const LoraBatchShape& shape, LoraBatching batching) {
  DeviceLayer layer(shape);
  RETURN_IF_ERROR(layer.Build());
  return layer.Run(batching);
}
#else
Result<DeviceLoraCounts> CountLoraOnDevice(const LoraBatchShape&, LoraBatching) {
  return Unavailable("this program was built without the emulated device; build with LORAMUX_BUILD_EMULATED_DEVICE=ON");
}
#endif

namespace {

// The layer in the host's memory.
class HostLayer {
 public:
  HostLayer(const LoraBatchShape& shape, Prng& prng)
      : shape_(shape), weights_(shape.AdapterBytes()), rows_(static_cast<std::size_t>(shape.adapters * kTargets)) {
    for (std::int64_t i = 0; i < weights_.capacity(); ++i)
      weights_.data()[i] = static_cast<std::byte>(prng.NextBelow(64));
    const std::int64_t row_bytes = shape.hidden * 2;
    for (std::int64_t a = 0; a < shape.adapters; ++a) {
      for (std::int64_t target = 0; target < kTargets; ++target) {
        auto& rows = rows_[static_cast<std::size_t>(a * kTargets + target)];
        for (std::int64_t j = 0; j < 2 * shape.rank; ++j)
          rows.push_back(weights_.data() + ((a * kTargets + target) * 2 * shape.rank + j) * row_bytes);
        segments_[static_cast<std::size_t>(target)].push_back(
            {RowOf(shape, a),
             RowOf(shape, a + 1),
             {static_cast<std::int32_t>(shape.rank), 1.0f, DType::kBF16, rows.data(), rows.data() + shape.rank}});
      }
    }
  }

  void Run(const KernelContext& context, LoraBatching batching, const float* x, float* y, float* workspace) const {
    const auto product = [&](std::int64_t a, std::int64_t count, std::size_t first, std::size_t targets) {
      std::vector<LoraProjection> projections;
      for (std::size_t target = first; target < first + targets; ++target) {
        const auto segments =
            std::span(segments_[target]).subspan(static_cast<std::size_t>(a), static_cast<std::size_t>(count));
        const Rows all = {y, kTargets * shape_.hidden};
        projections.push_back({segments, all.From(static_cast<std::int64_t>(target) * shape_.hidden), shape_.hidden});
      }
      LoraMatMul(context,
                 {.projections = projections, .x = {x, shape_.hidden}, .in = shape_.hidden, .workspace = workspace});
    };
    const std::int64_t step = batching == LoraBatching::kAtOnce ? shape_.adapters : 1;
    for (std::int64_t a = 0; a < shape_.adapters; a += step) {
      if (batching != LoraBatching::kEach) {
        product(a, step, 0, 3);
        product(a, step, 3, 1);
        continue;
      }
      for (std::size_t target = 0; target < kTargets; ++target) product(a, 1, target, 1);
    }
  }

 private:
  const LoraBatchShape shape_;
  AlignedBuffer<std::byte> weights_;
  std::vector<std::vector<const std::byte*>> rows_;  // by adapter and target
  std::array<std::vector<LoraSegment>, kTargets> segments_;
};

template <typename F>
double BestOfRuns(const F& run) {
  const OsClock clock;
  TimeNs best = 0;
  for (int i = 0; i < kRuns; ++i) {
    const TimeNs begin = clock.Now();
    run();
    const TimeNs took = clock.Now() - begin;
    if (i == 0 || took < best) best = took;
  }
  return static_cast<double>(best) / static_cast<double>(kNsPerSecond);
}

}  // namespace

double SecondsOfLoraOnHost(const LoraBatchShape& shape, LoraBatching batching, int threads) {
  Prng prng(1);
  std::vector<std::unique_ptr<HostLayer>> layers;  // more than the caches hold
  for (std::int64_t bytes = 0; bytes < (std::int64_t{128} << 20); bytes += shape.AdapterBytes())
    layers.push_back(std::make_unique<HostLayer>(shape, prng));
  ThreadPool pool(threads);
  const KernelContext context{Backend::kCpu, &pool};
  AlignedBuffer<float> x(shape.rows * shape.hidden), y(shape.rows * kTargets * shape.hidden),
      workspace(kTargets * shape.rows * shape.rank);
  std::fill_n(x.data(), x.capacity(), 0.5f);
  std::fill_n(y.data(), y.capacity(), 0.0f);
  const double seconds = BestOfRuns([&] {
    for (const auto& layer : layers) layer->Run(context, batching, x.data(), y.data(), workspace.data());
  });
  return seconds / static_cast<double>(layers.size());
}

double SecondsOfCopy(std::int64_t bytes, std::int64_t piece_bytes) {
  AlignedBuffer<std::byte> from(bytes), to(bytes);
  std::memset(from.data(), 1, static_cast<std::size_t>(bytes));
  std::memset(to.data(), 0, static_cast<std::size_t>(bytes));
  std::vector<std::int64_t> order(static_cast<std::size_t>(bytes / piece_bytes));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  Prng prng(1);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[prng.NextBelow(i)]);
  return BestOfRuns([&] {
    for (std::size_t i = 0; i < order.size(); ++i) {
      std::memcpy(to.data() + order[i] * piece_bytes, from.data() + static_cast<std::int64_t>(i) * piece_bytes,
                  static_cast<std::size_t>(piece_bytes));
    }
  });
}

}  // namespace loramux
