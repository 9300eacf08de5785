#include "runtime/runtime.h"

#include <algorithm>

#include <sys/random.h>

#include "schedule/presets.h"
#include "tensor/half_float.h"

namespace loramux {

namespace {

// A secret of this process; no result depends on it.
std::uint64_t RandomSeed() {
  std::uint64_t seed = 0;
  CHECK_EQ(getrandom(&seed, sizeof(seed), 0), static_cast<ssize_t>(sizeof(seed)));
  return seed;
}

// Rejects an adapter that was saved with a different output matrix than the model's. It was trained on another base and
// would give wrong answers.
Status CheckBaseCopy(const Model& model, const AdapterFile& file) {
  const TensorEntry* copy = file.lm_head_base_copy;
  if (copy == nullptr) return Ok{};
  const PackedMatrix& lm_head = model.weights().lm_head;
  std::vector<float> row(static_cast<std::size_t>(lm_head.k()));
  std::vector<std::byte> stored(static_cast<std::size_t>(lm_head.k()) * DTypeSize(copy->dtype));
  for (std::int64_t i = 0; i < lm_head.n(); ++i) {
    lm_head.UnpackRow(i, row.data());
    RETURN_IF_ERROR(file.tensors->Read(*copy, static_cast<std::uint64_t>(i) * stored.size(), stored));
    for (std::int64_t j = 0; j < lm_head.k(); ++j) {
      // A copy in a narrower type than the base equals the rounded base.
      std::byte rounded[sizeof(float)];
      StoreFromF32(copy->dtype, rounded, 0, row[static_cast<std::size_t>(j)]);
      if (LoadAsF32(copy->dtype, rounded, 0) == LoadAsF32(copy->dtype, stored.data(), j)) continue;
      return InvalidArgument(file.directory.string() + ": tensor " + copy->name + " differs from the base model's " +
                                 "output matrix at [" + std::to_string(i) + ", " + std::to_string(j) +
                                 "]: the adapter belongs to another base model",
                             "lora_path");
    }
  }
  return Ok{};
}

}  // namespace

Result<std::unique_ptr<Runtime>> Runtime::Load(const std::filesystem::path& model_directory, RuntimeOptions options,
                                               const Progress& progress) {
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Model::Load(model_directory, progress));
  return Create(std::move(model), std::move(options));
}

Result<std::unique_ptr<Runtime>> Runtime::Create(std::unique_ptr<Model> model, RuntimeOptions options) {
  std::unique_ptr<Runtime> runtime(new Runtime);
  Runtime& r = *runtime;
  r.model_ = std::move(model);
  RETURN_IF_ERROR(r.MakePredictor(options.length_predictor));
  RETURN_IF_ERROR(r.MakePlane(options));
  r.MakeRegistry(options);
  r.MakeTransfers(options);
  r.MakeExecutor(options);
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
  const ModelConfig& config = model_->config();
  geometry_ = ChoosePageGeometry(config, options.kv_dtype.value_or(BaseDType()), options.page_tokens);
  options.scheduler.page_tokens = geometry_.kv.page_tokens;
  ASSIGN_OR_RETURN(const CacheRegime regime, FindCacheRegime(options.cache));
  ApplyRegime(regime, options.scheduler);
  ASSIGN_OR_RETURN(options.scheduler.adapter_prefetch, FindAdapterPrefetch(options.adapter_prefetch));
  ControlPlaneOptions plane;
  ASSIGN_OR_RETURN(plane.device, PagePool::Create("device", options.device_memory, geometry_.page_bytes));
  if (options.host_memory > 0) {
    ASSIGN_OR_RETURN(plane.host, PagePool::Create("host", options.host_memory, geometry_.page_bytes));
  }
  if (options.max_model_len > config.max_position) {
    return InvalidArgument("--max-model-len: expected at most " + std::to_string(config.max_position) +
                               ", the model's own length (max_position_embeddings in its config.json), found " +
                               std::to_string(options.max_model_len) + "; 0 takes the model's",
                           "--max-model-len");
  }
  max_model_len_ = options.max_model_len > 0 ? options.max_model_len : config.max_position;
  max_positions_ = std::min(max_model_len_, plane.device->capacity_pages() * geometry_.kv.page_tokens);
  // Prompts longer than the pool are refused, so activations for them need no memory.
  if (options.whole_prompts) ComputePromptsWhole(max_positions_, options.scheduler);
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

void Runtime::MakeRegistry(const RuntimeOptions& options) {
  registry_ = std::make_unique<AdapterRegistry>(
      model_->config(), options.base_names,
      AdapterRegistry::Options{
          .page_bytes = static_cast<std::size_t>(geometry_.page_bytes),
          .base_dtype = BaseDType(),
          .forced_dtype = options.lora_dtype,
          .max_rank = options.max_lora_rank,
          .model_names = options.model_names,
          .check = [model = model_.get()](const AdapterFile& file) { return CheckBaseCopy(*model, file); },
          .on_retire = [wakeup = &wakeup_] { wakeup->Signal(); }});
}

void Runtime::MakeTransfers(const RuntimeOptions& options) {
  const auto make = [&](bool kv) {
    std::unique_ptr<PageTransfer> transfer =
        std::make_unique<ThreadedTransfer>([wakeup = &wakeup_] { wakeup->Signal(); }, tiers(), options.transfer);
    if (options.wrap_transfer) transfer = options.wrap_transfer(std::move(transfer));
    return options.recorder == nullptr ? std::move(transfer) : options.recorder->Watch(std::move(transfer), kv);
  };
  transfer_ = make(/*kv=*/false);
  if (plane_->moves_kv()) kv_transfer_ = make(/*kv=*/true);
}

void Runtime::MakeExecutor(const RuntimeOptions& options) {
  CpuExecutorOptions executor{.threads = options.threads,
                              .backend = options.backend,
                              .lora_variant = options.lora_variant,
                              .max_batch_tokens = options.scheduler.max_batch_tokens,
                              .max_running = options.scheduler.max_running,
                              .max_positions = max_positions_};
  executor_ = std::make_unique<CpuExecutor>(executor, model_.get(), geometry_.kv, &plane_->device(),
                                            [wakeup = &wakeup_] { wakeup->Signal(); });
  if (options.wrap_executor) executor_ = options.wrap_executor(std::move(executor_));
}

RecordedSetup Runtime::DescribeSetup(const RuntimeOptions& options) const {
  return {.model = options.base_names.empty() ? std::string() : options.base_names.front(),
          .started_unix_seconds = clock_.UnixSeconds(),
          .scheduler = options.scheduler,
          .queue = QueueOptions(options, plane_->device().capacity_pages()),
          .cache = options.cache,
          .length_predictor = options.length_predictor,
          .max_model_len = max_model_len_,
          .kv_slices = {.layers = static_cast<std::int32_t>(model_->config().num_layers),
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
