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
  const ModelConfig& config = r.model_->config();
  const DType base_dtype = r.model_->weights().lm_head.dtype();
  r.geometry_ = ChoosePageGeometry(config, options.kv_dtype.value_or(base_dtype), options.page_tokens);
  options.scheduler.page_tokens = r.geometry_.kv.page_tokens;
  ASSIGN_OR_RETURN(const CacheRegime regime, FindCacheRegime(options.cache));
  ApplyRegime(regime, options.scheduler);
  ASSIGN_OR_RETURN(options.scheduler.adapter_prefetch, FindAdapterPrefetch(options.adapter_prefetch));

  ASSIGN_OR_RETURN(r.device_, PagePool::Create("device", options.device_memory, r.geometry_.page_bytes));
  if (options.host_memory > 0) {
    ASSIGN_OR_RETURN(r.host_, PagePool::Create("host", options.host_memory, r.geometry_.page_bytes));
  }
  ASSIGN_OR_RETURN(r.eviction_, MakeEvictionPolicy(regime.policy));
  if (options.prefix_cache && regime.keep_history && config.rope.scaling != RopeConfig::Scaling::kDynamic) {
    r.tree_ = std::make_unique<DependencyTree>(r.geometry_.kv.page_tokens, r.device_.get(), r.host_.get(),
                                               kFrequencyHalfLife, RandomSeed());
  }
  RETURN_IF_ERROR(r.MakeQueue(options));
  r.registry_ = std::make_unique<AdapterRegistry>(
      config, options.base_names,
      AdapterRegistry::Options{
          .page_bytes = static_cast<std::size_t>(r.geometry_.page_bytes),
          .base_dtype = base_dtype,
          .forced_dtype = options.lora_dtype,
          .max_rank = options.max_lora_rank,
          .check = [model = r.model_.get()](const AdapterFile& file) { return CheckBaseCopy(*model, file); },
          .on_retire = [wakeup = &r.wakeup_] { wakeup->Signal(); }});
  r.max_model_len_ =
      options.max_model_len > 0 ? std::min(options.max_model_len, config.max_position) : config.max_position;

  const auto wake = [wakeup = &r.wakeup_] { wakeup->Signal(); };
  const auto new_transfer = [&](bool kv) {
    std::unique_ptr<PageTransfer> transfer = std::make_unique<ThreadedTransfer>(wake, r.tiers(), options.transfer);
    if (options.wrap_transfer) transfer = options.wrap_transfer(std::move(transfer));
    return options.recorder == nullptr ? std::move(transfer) : options.recorder->Watch(std::move(transfer), kv);
  };
  r.transfer_ = new_transfer(/*kv=*/false);
  if (r.tree_ != nullptr && r.host_ != nullptr) r.kv_transfer_ = new_transfer(/*kv=*/true);
  const std::int64_t pool_tokens = r.device_->capacity_pages() * r.geometry_.kv.page_tokens;
  // Prompts longer than the pool are refused, so activations for them need no memory.
  if (options.whole_prompts) ComputePromptsWhole(std::min(r.max_model_len_, pool_tokens), options.scheduler);
  CpuExecutorOptions executor{.threads = options.threads,
                              .backend = options.backend,
                              .lora_variant = options.lora_variant,
                              .max_batch_tokens = options.scheduler.max_batch_tokens,
                              .max_running = options.scheduler.max_running,
                              .max_positions = std::min(r.max_model_len_, pool_tokens)};
  r.executor_ = std::make_unique<CpuExecutor>(executor, r.model_.get(), r.geometry_.kv, r.device_.get(), wake);
  if (options.wrap_executor) r.executor_ = options.wrap_executor(std::move(r.executor_));
  EngineOptions engine{.scheduler = options.scheduler,
                       .max_model_len = r.max_model_len_,
                       .eos_token_ids = config.eos_token_ids,
                       .vocab_size = config.vocab_size,
                       .kv_slices = {.layers = static_cast<std::int32_t>(config.num_layers),
                                     .layer_bytes = r.geometry_.kv.KeyOffset(1, 0)}};
  LengthPredictor* predictor = r.history_.get();
  if (r.hints_ != nullptr) predictor = r.hints_.get();
  r.engine_ = std::make_unique<Engine>(std::move(engine), EngineParts{.clock = &r.clock_,
                                                                      .executor = r.executor_.get(),
                                                                      .transfer = r.transfer_.get(),
                                                                      .device = r.device_.get(),
                                                                      .host = r.host_.get(),
                                                                      .registry = r.registry_.get(),
                                                                      .eviction = r.eviction_.get(),
                                                                      .tree = r.tree_.get(),
                                                                      .kv_transfer = r.kv_transfer_.get(),
                                                                      .queue = r.queue_.get(),
                                                                      .predictor = predictor,
                                                                      .wakeup = &r.wakeup_,
                                                                      .observer = options.recorder});
  if (options.recorder != nullptr) {
    r.recorder_ = options.recorder;
    r.setup_ = r.DescribeSetup(options);
  }
  return runtime;
}

RecordedSetup Runtime::DescribeSetup(const RuntimeOptions& options) const {
  return {.model = options.base_names.empty() ? std::string() : options.base_names.front(),
          .started_unix_seconds = clock_.UnixSeconds(),
          .scheduler = options.scheduler,
          .queue = QueueOptions(options),
          .cache = options.cache,
          .length_predictor = options.length_predictor,
          .max_model_len = max_model_len_,
          .kv_slices = {.layers = static_cast<std::int32_t>(model_->config().num_layers),
                        .layer_bytes = geometry_.kv.KeyOffset(1, 0)},
          .page_bytes = geometry_.page_bytes,
          .device_pages = device_->capacity_pages(),
          .host_pages = host_ == nullptr ? 0 : host_->capacity_pages(),
          .tree = tree_ != nullptr,
          .kv_transfer = kv_transfer_ != nullptr};
}

QueueOrderOptions Runtime::QueueOptions(const RuntimeOptions& options) const {
  QueueOrderOptions queue = options.queue;
  queue.age_bound = options.scheduler.age_bound;
  queue.lanes.costs = options.scheduler.costs;
  queue.total_tokens = static_cast<double>(device_->capacity_pages() * geometry_.kv.page_tokens);
  return queue;
}

Status Runtime::MakeQueue(const RuntimeOptions& options) {
  ASSIGN_OR_RETURN(queue_, MakeQueueOrder(QueueOptions(options)));
  const std::string& name = options.length_predictor;
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
