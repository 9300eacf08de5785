#include "runtime/placed_model.h"

#include <algorithm>
#include <string>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/bytes.h"
#include "base/message.h"
#include "runtime/device_transfer.h"
#include "runtime/gpu_executor.h"

namespace loramux {

std::int64_t DeviceReserve(std::int64_t memory) {
  return std::clamp<std::int64_t>(memory / 50, std::int64_t{256} << 20, std::int64_t{1} << 30);
}

namespace {

// What the files have quantised and the device cannot keep so.
void LogWidened(const DeviceWeights& weights) {
  if (weights.widened.empty()) return;
  std::string names;
  constexpr std::size_t kMost = 3;
  for (std::size_t i = 0; i < std::min(kMost, weights.widened.size()); ++i)
    names += (i > 0 ? ", " : "") + Quote(weights.widened[i]);
  if (weights.widened.size() > kMost) names += ", ...";
  spdlog::info(
      "{} quantised matrices become {} on the device ({}): it does not keep their form, or what shares a product with "
      "them has another; --weights q8 or q4 rounds all to one",
      weights.widened.size(), WeightFormatName(FormatOf(weights.dtype)), names);
}

}  // namespace

Result<std::unique_ptr<PlacedModel>> PlacedModel::Load(const std::filesystem::path& directory,
                                                       std::shared_ptr<Device> device, const WeightOptions& weights,
                                                       const Progress& progress) {
  std::unique_ptr<PlacedModel> placed(new PlacedModel);
  placed->device_ = std::move(device);
  if (placed->device_ == nullptr) {
    ASSIGN_OR_RETURN(placed->host_, Model::Load(directory, weights, progress));
  } else {
    ASSIGN_OR_RETURN(placed->on_device_, DeviceModel::Load(directory, *placed->device_, weights, progress));
    LogWidened(placed->on_device_->weights());
  }
  return placed;
}

Result<std::unique_ptr<PlacedModel>> PlacedModel::Place(std::unique_ptr<Model> model, std::shared_ptr<Device> device) {
  std::unique_ptr<PlacedModel> placed(new PlacedModel);
  placed->device_ = std::move(device);
  if (placed->device_ == nullptr) {
    placed->host_ = std::move(model);
  } else {
    ASSIGN_OR_RETURN(placed->on_device_, DeviceModel::Upload(*model, *placed->device_));
  }
  return placed;
}

DType PlacedModel::dtype() const {
  if (device_ != nullptr) return on_device_->dtype();
  const PackedMatrix& head = host_->weights().lm_head;
  if (!head.quantised()) return head.dtype();
  return IsQuantised(format()) ? DType::kBF16 : DTypeOf(format());
}

WeightFormat PlacedModel::format() const {
  if (device_ != nullptr) return on_device_->format();
  const LayerWeights& layer = host_->weights().layers.front();
  return layer.down.n() > 0 ? layer.down.format() : layer.expert_down.front().format();
}

std::int64_t PlacedModel::weight_bytes() const {
  return device_ == nullptr ? WeightBytes(host_->weights()) : on_device_->WeightBytes();
}

BaseMatrices PlacedModel::base_matrices() const {
  return device_ == nullptr ? BaseMatricesOf(*host_) : BaseMatricesOf(*on_device_, *device_);
}

bool PlacedModel::generates() const {
  return device_ == nullptr ? host_->weights().generates : on_device_->weights().generates;
}

Status PlacedModel::Reserve(const ExecutorOptions& options, const KvLayout& layout) {
  if (device_ == nullptr) return Ok{};
  return on_device_->Reserve({.max_tokens = options.max_batch_tokens,
                              .max_sequences = options.max_running,
                              .max_logit_rows = options.max_running,
                              .max_positions = options.max_positions,
                              .max_rank = options.max_rank,
                              .page_tokens = layout.page_tokens,
                              .state_pages = layout.state_pages,
                              .threads = options.threads > 0 ? options.threads : AvailableProcessors()});
}

Result<std::unique_ptr<PagePool>> PlacedModel::MakeDevicePool(std::int64_t bytes, std::int64_t page_bytes) const {
  if (device_ == nullptr) return PagePool::Create("device", bytes, page_bytes);
  const std::int64_t free = device_->FreeMemory(), most = free - DeviceReserve(device_->properties().memory);
  const std::int64_t taken = bytes > 0 ? bytes : most;
  if (taken > free || taken < page_bytes) {
    const std::string found = bytes > 0 ? ", found " + FormatBytes(bytes) : "";
    const std::string room = most < page_bytes
                                 ? "too little for a single page of " + FormatBytes(page_bytes) +
                                       ": serve a smaller model, or lower --max-num-batched-tokens or --max-num-seqs"
                                 : "expected at most " + FormatBytes(most);
    return ResourceExhausted("--device-memory: the device " + device_->properties().name + " has " + FormatBytes(free) +
                                 " of " + FormatBytes(device_->properties().memory) + " free beside weights of " +
                                 FormatBytes(on_device_->WeightBytes()) + " and activations of " +
                                 FormatBytes(on_device_->WorkspaceBytes()) + "; " + room + found,
                             "--device-memory");
  }
  ASSIGN_OR_RETURN(auto pages, device_->Allocate("page pool (--device-memory)", taken));
  return PagePool::Create("device", std::move(pages), page_bytes);
}

Result<std::unique_ptr<PagePool>> PlacedModel::MakeHostPool(std::int64_t bytes, std::int64_t page_bytes) const {
  if (device_ == nullptr) return PagePool::Create("host", bytes, page_bytes);
  ASSIGN_OR_RETURN(auto pinned, device_->AllocatePinned("host tier (--host-memory)", bytes));
  return PagePool::Create("host", std::move(pinned), page_bytes);
}

Result<std::unique_ptr<PageTransfer>> PlacedModel::MakeTransfer(const TierMemory& memory,
                                                                const TransferOptions& options,
                                                                std::function<void()> on_completion) const {
  if (device_ == nullptr) {
    std::unique_ptr<PageTransfer> transfer =
        std::make_unique<ThreadedTransfer>(std::move(on_completion), memory, options.on_threads);
    return transfer;
  }
  DeviceTransferOptions on_device;
  on_device.arrived_words = options.assisted;
  ASSIGN_OR_RETURN(std::unique_ptr<PageTransfer> transfer,
                   DeviceTransfer::Create(*device_, memory, std::move(on_completion), on_device));
  return transfer;
}

Result<std::unique_ptr<Executor>> PlacedModel::MakeExecutor(const ExecutorOptions& options, const KvLayout& layout,
                                                            const PagePool& pages, const PageArena& host,
                                                            std::function<void()> on_completion) {
  if (device_ == nullptr) {
    std::unique_ptr<Executor> executor = std::make_unique<CpuExecutor>(
        options, host_.get(), layout, TierMemory{host, pages.View()}, std::move(on_completion));
    return executor;
  }
  const GpuExecutorOptions on_device{
      // A request begins with one page and its states at most, and leaves as many.
      .max_copies = static_cast<std::size_t>(options.max_running * (1 + 2 * layout.state_pages)),
      .max_batch_tokens = options.max_batch_tokens,
      .assist = options.assist};
  ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor, GpuExecutor::Create(*device_, *on_device_, layout, pages, host,
                                                                           on_device, std::move(on_completion)));
  return executor;
}

}  // namespace loramux
