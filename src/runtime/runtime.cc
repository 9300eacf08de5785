#include "runtime/runtime.h"

#include <algorithm>

#include <sys/random.h>

#include "base/bytes.h"
#include "runtime/base_copy.h"
#include "runtime/cpu_executor.h"
#include "runtime/device_transfer.h"
#include "runtime/gpu_executor.h"
#include "schedule/presets.h"

namespace loramux {

namespace {

// A secret of this process; no result depends on it.
std::uint64_t RandomSeed() {
  std::uint64_t seed = 0;
  CHECK_EQ(getrandom(&seed, sizeof(seed), 0), static_cast<ssize_t>(sizeof(seed)));
  return seed;
}

// What an automatic size of the device's pool leaves free, for batches that are larger than expected and for the
// driver.
std::int64_t ReserveOf(const Device& device) {
  return std::clamp<std::int64_t>(device.properties().memory / 50, std::int64_t{256} << 20, std::int64_t{1} << 30);
}

}  // namespace

Result<std::unique_ptr<Runtime>> Runtime::Load(const std::filesystem::path& model_directory, RuntimeOptions options,
                                               const Progress& progress) {
  std::unique_ptr<Runtime> runtime(new Runtime);
  if (options.device == nullptr) {
    ASSIGN_OR_RETURN(runtime->model_, Model::Load(model_directory, progress));
  } else {
    ASSIGN_OR_RETURN(runtime->device_model_, DeviceModel::Load(model_directory, *options.device, progress));
  }
  return Assemble(std::move(runtime), std::move(options));
}

Result<std::unique_ptr<Runtime>> Runtime::Create(std::unique_ptr<Model> model, RuntimeOptions options) {
  std::unique_ptr<Runtime> runtime(new Runtime);
  if (options.device == nullptr) {
    runtime->model_ = std::move(model);
  } else {
    ASSIGN_OR_RETURN(runtime->device_model_, DeviceModel::Upload(*model, *options.device));
  }
  return Assemble(std::move(runtime), std::move(options));
}

Result<std::unique_ptr<Runtime>> Runtime::Assemble(std::unique_ptr<Runtime> runtime, RuntimeOptions options) {
  Runtime& r = *runtime;
  r.device_ = options.device;
  RETURN_IF_ERROR(r.MakePredictor(options.length_predictor));
  RETURN_IF_ERROR(r.MakePlane(options));
  r.MakeRegistry(options);
  RETURN_IF_ERROR(r.MakeTransfers(options));
  RETURN_IF_ERROR(r.MakeExecutor(options));
  LengthPredictor* predictor = r.history_.get();
  if (r.hints_ != nullptr) predictor = r.hints_.get();
  r.engine_ = r.plane_->Connect({.clock = r.clock_,
                                 .executor = *r.executor_,
                                 .transfer = *r.transfer_,
                                 .registry = *r.registry_,
                                 .wakeup = r.wakeup_,
                                 .kv_transfer = r.kv_transfer_.get(),
                                 .predictor = predictor,
                                 .observer = options.recorder});
  if (options.recorder != nullptr) {
    r.recorder_ = options.recorder;
    r.setup_ = r.DescribeSetup(options);
  }
  return runtime;
}

// Completes the options of the scheduler.
Status Runtime::MakePlane(RuntimeOptions& options) {
  const ModelConfig& config = this->config();
  geometry_ = ChoosePageGeometry(config, options.kv_dtype.value_or(base_dtype()), options.page_tokens);
  options.scheduler.page_tokens = geometry_.kv.page_tokens;
  ASSIGN_OR_RETURN(const CacheRegime regime, FindCacheRegime(options.cache));
  ApplyRegime(regime, options.scheduler);
  ASSIGN_OR_RETURN(options.scheduler.adapter_prefetch, FindAdapterPrefetch(options.adapter_prefetch));
  options.scheduler.reads_host_tier = device_ == nullptr;
  options.scheduler.disk_by_layer = device_ == nullptr && !options.verify_before_use;
  if (device_ != nullptr) options.scheduler.cold_start_policy = ColdStartPolicy::kWait;
  if (options.max_model_len > config.max_position) {
    return InvalidArgument("--max-model-len: expected at most " + std::to_string(config.max_position) +
                               ", the model's own length (max_position_embeddings in its config.json), found " +
                               std::to_string(options.max_model_len) + "; 0 takes the model's",
                           "--max-model-len");
  }
  max_model_len_ = options.max_model_len > 0 ? options.max_model_len : config.max_position;
  // Prompts longer than the pool are refused, so activations for them need no memory.
  max_positions_ = max_model_len_;
  if (options.device_memory > 0)
    max_positions_ = std::min(max_positions_, options.device_memory / geometry_.page_bytes * geometry_.kv.page_tokens);
  if (options.whole_prompts) ComputePromptsWhole(max_positions_, options.scheduler);
  ControlPlaneOptions plane;
  RETURN_IF_ERROR(device_ == nullptr ? MakePools(options, plane) : MakeDevicePools(options, plane));
  plane.engine = {.scheduler = options.scheduler,
                  .max_model_len = max_model_len_,
                  .eos_token_ids = config.eos_token_ids,
                  .vocab_size = config.vocab_size,
                  .kv_slices = {.layers = static_cast<std::int32_t>(config.num_layers),
                                .layer_bytes = geometry_.kv.KeyOffset(1, 0)}};
  plane.eviction = regime.policy;
  plane.queue = QueueOptions(options, plane.device->capacity_pages());
  plane.prefix_cache =
      options.prefix_cache && regime.keep_history && config.rope.scaling != RopeConfig::Scaling::kDynamic;
  plane.hash_seed = RandomSeed();
  ASSIGN_OR_RETURN(plane_, ControlPlane::Create(std::move(plane)));
  return Ok{};
}

Status Runtime::MakePools(const RuntimeOptions& options, ControlPlaneOptions& plane) const {
  ASSIGN_OR_RETURN(plane.device, PagePool::Create("device", options.device_memory, geometry_.page_bytes));
  if (options.host_memory > 0) {
    ASSIGN_OR_RETURN(plane.host, PagePool::Create("host", options.host_memory, geometry_.page_bytes));
  }
  return Ok{};
}

// The workspace comes first, so that the pool may take what is left.
Status Runtime::MakeDevicePools(const RuntimeOptions& options, ControlPlaneOptions& plane) const {
  RETURN_IF_ERROR(device_model_->Reserve({.max_tokens = options.scheduler.max_batch_tokens,
                                          .max_sequences = options.scheduler.max_running,
                                          .max_logit_rows = options.scheduler.max_running,
                                          .max_positions = max_positions_,
                                          .max_rank = std::min(options.max_lora_rank, CpuExecutorOptions{}.max_rank),
                                          .page_tokens = geometry_.kv.page_tokens,
                                          .threads = options.threads > 0 ? options.threads : AvailableProcessors()}));
  const std::int64_t free = device_->FreeMemory(), most = free - ReserveOf(*device_);
  const std::int64_t bytes = options.device_memory > 0 ? options.device_memory : most;
  if (bytes > free || bytes < geometry_.page_bytes) {
    const std::string found = options.device_memory > 0 ? ", found " + FormatBytes(options.device_memory) : "";
    const std::string room = most < geometry_.page_bytes
                                 ? "too little for a single page of " + FormatBytes(geometry_.page_bytes) +
                                       ": serve a smaller model, or lower --max-num-batched-tokens or --max-num-seqs"
                                 : "expected at most " + FormatBytes(most);
    return ResourceExhausted("--device-memory: the device " + device_->properties().name + " has " + FormatBytes(free) +
                                 " of " + FormatBytes(device_->properties().memory) + " free beside weights of " +
                                 FormatBytes(device_model_->WeightBytes()) + " and activations of " +
                                 FormatBytes(device_model_->WorkspaceBytes()) + "; " + room + found,
                             "--device-memory");
  }
  ASSIGN_OR_RETURN(auto pages, device_->Allocate("page pool (--device-memory)", bytes));
  ASSIGN_OR_RETURN(plane.device, PagePool::Create("device", std::move(pages), geometry_.page_bytes));
  if (options.host_memory == 0) return Ok{};
  ASSIGN_OR_RETURN(auto pinned, device_->AllocatePinned("host tier (--host-memory)", options.host_memory));
  ASSIGN_OR_RETURN(plane.host, PagePool::Create("host", std::move(pinned), geometry_.page_bytes));
  return Ok{};
}

void Runtime::MakeRegistry(const RuntimeOptions& options) {
  registry_ = std::make_unique<AdapterRegistry>(
      config(), options.base_names,
      AdapterRegistry::Options{
          .page_bytes = static_cast<std::size_t>(geometry_.page_bytes),
          .base_dtype = base_dtype(),
          .forced_dtype = options.lora_dtype,
          .max_rank = options.max_lora_rank,
          .model_names = options.model_names,
          .check = [matrix = device_ == nullptr ? OutputMatrixOf(*model_) : OutputMatrixOf(*device_model_, *device_)](
                       const AdapterFile& file) { return CheckBaseCopy(matrix, file); },
          .on_retire = [wakeup = &wakeup_] { wakeup->Signal(); }});
}

Result<std::unique_ptr<PageTransfer>> Runtime::MakeTransfer(const RuntimeOptions& options, bool kv) {
  const auto wake = [wakeup = &wakeup_] { wakeup->Signal(); };
  std::unique_ptr<PageTransfer> transfer;
  if (device_ == nullptr) {
    transfer = std::make_unique<ThreadedTransfer>(wake, tiers(), options.transfer);
  } else {
    DeviceTransferOptions device;
    if (kv) device.staging_bytes = 0;  // keys and values are never on disk
    ASSIGN_OR_RETURN(transfer, DeviceTransfer::Create(*device_, tiers(), wake, device));
  }
  if (options.wrap_transfer) transfer = options.wrap_transfer(std::move(transfer));
  return options.recorder == nullptr ? std::move(transfer) : options.recorder->Watch(std::move(transfer), kv);
}

Status Runtime::MakeTransfers(const RuntimeOptions& options) {
  ASSIGN_OR_RETURN(transfer_, MakeTransfer(options, /*kv=*/false));
  if (plane_->moves_kv()) {
    ASSIGN_OR_RETURN(kv_transfer_, MakeTransfer(options, /*kv=*/true));
  }
  return Ok{};
}

Status Runtime::MakeExecutor(const RuntimeOptions& options) {
  const auto wake = [wakeup = &wakeup_] { wakeup->Signal(); };
  if (device_ == nullptr) {
    CpuExecutorOptions executor{.threads = options.threads,
                                .backend = options.backend,
                                .lora_variant = options.lora_variant,
                                .max_batch_tokens = options.scheduler.max_batch_tokens,
                                .max_running = options.scheduler.max_running,
                                .max_positions = max_positions_};
    executor_ = std::make_unique<CpuExecutor>(executor, model_.get(), geometry_.kv, tiers(), wake);
  } else {
    const auto copies = static_cast<std::size_t>(options.scheduler.max_running);  // a request begins with one at most
    ASSIGN_OR_RETURN(executor_,
                     GpuExecutor::Create(*device_, *device_model_, geometry_.kv, plane_->device(), copies, wake));
  }
  if (options.wrap_executor) executor_ = options.wrap_executor(std::move(executor_));
  return Ok{};
}

std::int64_t Runtime::weight_bytes() const {
  return device_model_ == nullptr ? WeightBytes(model_->weights()) : device_model_->WeightBytes();
}

RecordedSetup Runtime::DescribeSetup(const RuntimeOptions& options) const {
  return {.model = options.base_names.empty() ? std::string() : options.base_names.front(),
          .started_unix_seconds = clock_.UnixSeconds(),
          .scheduler = options.scheduler,
          .queue = QueueOptions(options, plane_->device().capacity_pages()),
          .cache = options.cache,
          .length_predictor = options.length_predictor,
          .max_model_len = max_model_len_,
          .kv_slices = {.layers = static_cast<std::int32_t>(config().num_layers),
                        .layer_bytes = geometry_.kv.KeyOffset(1, 0)},
          .page_bytes = geometry_.page_bytes,
          .device_pages = plane_->device().capacity_pages(),
          .host_pages = plane_->host().capacity_pages(),
          .tree = plane_->tree().keeps_history(),
          .kv_transfer = kv_transfer_ != nullptr};
}

QueueOrderOptions Runtime::QueueOptions(const RuntimeOptions& options, std::int64_t device_pages) const {
  QueueOrderOptions queue = options.queue;
  queue.age_bound = options.scheduler.age_bound;
  queue.lanes.costs = options.scheduler.costs;
  queue.total_tokens = static_cast<double>(device_pages * geometry_.kv.page_tokens);
  return queue;
}

Status Runtime::MakePredictor(const std::string& name) {
  if (name == "none") return Ok{};
  if (name != "history" && name != "proxy") {
    return InvalidArgument("--length-predictor: expected history, proxy or none, found '" + name + "'",
                           "--length-predictor");
  }
  history_ = std::make_unique<HistoryPredictor>();
  if (name == "proxy") hints_ = std::make_unique<HintPredictor>(history_.get());
  return Ok{};
}

void Runtime::Start() {
  CHECK(loop_ == nullptr);
  if (recorder_ != nullptr) {
    if (history_ != nullptr) setup_.history = history_->Serialise();
    recorder_->Begin(setup_);
  }
  loop_ = std::make_unique<EngineLoop>(engine_.get(), &wakeup_);
}

void Runtime::Stop() {
  if (loop_ == nullptr) return;
  loop_->Stop();
  engine_->CheckIntegrity();  // nothing is in flight: pages, pins and queues must agree
}

Runtime::~Runtime() {
  Stop();
  // Their threads read data of the engine and the pools, so they end first.
  executor_.reset();
  transfer_.reset();
  kv_transfer_.reset();
  engine_.reset();
}

}  // namespace loramux
