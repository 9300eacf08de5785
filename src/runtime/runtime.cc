#include "runtime/runtime.h"

#include <algorithm>

#include <spdlog/spdlog.h>
#include <sys/random.h>

#include "base/bytes.h"
#include "base/check.h"
#include "model/base_copy.h"
#include "model/output_vectors.h"
#include "schedule/plan_by_model.h"
#include "schedule/presets.h"

namespace loramux {

namespace {

// A secret of this process; no result depends on it.
std::uint64_t RandomSeed() {
  std::uint64_t seed = 0;
  CHECK_EQ(getrandom(&seed, sizeof(seed), 0), static_cast<ssize_t>(sizeof(seed)));
  return seed;
}

// The positions that a sequence may have. Error: more were asked for than the model's positions allow.
Result<std::int64_t> ChooseMaxModelLen(const ModelConfig& config, std::int64_t asked) {
  const std::int64_t most = config.MostPositions();
  if (asked <= most) return asked > 0 ? asked : config.max_position;
  const char* const why = most == config.max_position
                              ? ", the model's own length (max_position_embeddings in its config.json), found "
                              : ", max_position_embeddings times the factor of its dynamic rope scaling, found ";
  return InvalidArgument("--max-model-len: expected at most " + std::to_string(most) + why + std::to_string(asked) +
                             "; 0 takes the model's",
                         "--max-model-len");
}

// Compares the adapter with the base model, and computes what it needs of it.
Status MeetBase(const BaseMatrices& base, LengthCache* lengths, const Clock& clock, AdapterFile& file) {
  RETURN_IF_ERROR(CheckBaseCopies(base, file));
  RETURN_IF_ERROR(SelectOwnRows(base, file));
  const TimeNs begin = clock.Now();
  ASSIGN_OR_RETURN(const std::int64_t kept, ComputeVectors(base, file, lengths));
  const auto dora = std::ranges::count_if(file.modules, [](const LoraModule& m) { return m.magnitude != nullptr; });
  if (dora > 0) {
    spdlog::info("{}: the rows' lengths of {} modules with DoRA took {:.1f} ms: {} were computed, {} were kept",
                 file.directory.string(), dora, static_cast<double>(clock.Now() - begin) / 1e6, dora - kept, kept);
  }
  return Ok{};
}

}  // namespace

Result<std::unique_ptr<Runtime>> Runtime::Load(const std::filesystem::path& model_directory, RuntimeOptions options,
                                               const Progress& progress) {
  ASSIGN_OR_RETURN(std::unique_ptr<PlacedModel> model,
                   PlacedModel::Load(model_directory, options.device, options.weights, progress));
  return Create(std::move(model), std::move(options));
}

Result<std::unique_ptr<Runtime>> Runtime::Create(std::unique_ptr<Model> model, RuntimeOptions options) {
  ASSIGN_OR_RETURN(std::unique_ptr<PlacedModel> placed, PlacedModel::Place(std::move(model), options.device));
  return Create(std::move(placed), std::move(options));
}

Result<std::unique_ptr<Runtime>> Runtime::Create(std::unique_ptr<PlacedModel> model, RuntimeOptions options) {
  CHECK(options.device.get() == model->device());
  CHECK_EQ(options.group == nullptr, model->part().whole());
  std::unique_ptr<Runtime> runtime(new Runtime);
  Runtime& r = *runtime;
  r.model_ = std::move(model);
  RETURN_IF_ERROR(r.MakePredictor(options.spec.length_predictor));
  RETURN_IF_ERROR(r.MakePlane(options));
  RETURN_IF_ERROR(r.StartGroup(options));
  r.MakeRegistry(options);
  RETURN_IF_ERROR(r.MakeTransfer(options));
  RETURN_IF_ERROR(r.MakeExecutor(options));
  LengthPredictor* predictor = r.history_.get();
  if (r.hints_ != nullptr) predictor = r.hints_.get();
  r.engine_ = r.plane_->Connect({.clock = r.clock_,
                                 .executor = *r.executor_,
                                 .transfer = *r.transfer_,
                                 .registry = *r.registry_,
                                 .wakeup = r.wakeup_,
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
  const DType kv_dtype = options.kv_dtype.value_or(base_dtype()), row_dtype = options.lora_dtype.value_or(base_dtype());
  geometry_ = ChoosePageGeometry(config, kv_dtype, options.page_tokens, row_dtype);
  if (!model_->part().whole()) {
    // As many positions as one process has, because attention's sums depend on it.
    geometry_ = ChoosePageGeometry(model_->own_config(), kv_dtype, geometry_.kv.page_tokens, row_dtype);
  }
  SystemSpec& spec = options.spec;
  spec.page_tokens = geometry_.kv.page_tokens;
  spec.state_pages = geometry_.kv.state_pages;
  const bool on_cpu = model_->device() == nullptr;
  spec.reads_host_tier = on_cpu;
  spec.disk_by_layer = on_cpu && !options.verify_before_use;
  if (!on_cpu && options.host_memory == 0) spec.cold_start_policy = ColdStartPolicy::kWait;
  PlanSpeculation(spec.speculation);
  speculates_ = spec.speculation.method != Speculation::kNone;
  PlanAssist(options);
  ASSIGN_OR_RETURN(max_model_len_, ChooseMaxModelLen(config, options.max_model_len));
  // Prompts longer than the pool are refused, so activations for them need no memory.
  max_positions_ = max_model_len_;
  if (options.device_memory > 0)
    max_positions_ = std::min(max_positions_, options.device_memory / geometry_.page_bytes * geometry_.kv.page_tokens);
  RETURN_IF_ERROR(Complete(spec, max_positions_));
  // Beyond that length, keys of equal prefixes differ between prompts of different lengths. Without snapshots, states
  // are not kept by prefix.
  spec.keep_history =
      spec.keep_history && config.TurnsAlike(max_model_len_) && (!config.recurrent || spec.state_snapshot_tokens > 0);
  // A page of states has no layers, so pages move whole.
  if (!config.recurrent) {
    kv_slices_ = {.layers = static_cast<std::int32_t>(geometry_.kv.num_layers),
                  .layer_bytes = geometry_.kv.KeyOffset(1, 0)};
  }
  ControlPlaneOptions plane;
  RETURN_IF_ERROR(MakePools(options, plane));
  spec.total_tokens = static_cast<double>(plane.device->capacity_pages() * spec.page_tokens);
  plane.engine = {.spec = spec,
                  .max_model_len = max_model_len_,
                  .eos_token_ids = config.eos_token_ids,
                  .vocab_size = config.BaseTokens(),
                  .generates = model_->generates(),
                  .kv_slices = kv_slices_};
  plane.hash_seed = RandomSeed();
  ASSIGN_OR_RETURN(plane_, ControlPlane::Create(std::move(plane)));
  return Ok{};
}

void Runtime::PlanSpeculation(SpeculationOptions& speculation) const {
  if (speculation.method == Speculation::kNone) return;
  CHECK(model_->device() == nullptr);
  if (!config().recurrent) return;
  spdlog::warn("--speculate: this model has recurrent layers, whose states cannot be taken back; nothing is drafted");
  speculation.method = Speculation::kNone;
}

ExecutorOptions Runtime::ExecutorOptionsOf(const RuntimeOptions& options) const {
  return {.threads = options.threads,
          .backend = options.backend,
          .lora_variant = options.lora_variant,
          .max_batch_tokens = options.spec.max_batch_tokens,
          .max_running = options.spec.max_running,
          .max_positions = max_positions_,
          .max_rank = std::min(options.max_lora_rank, ExecutorOptions{}.max_rank),
          .max_drafted_tokens = options.spec.DraftedTokens(),
          .assist = AssistOf(options),
          .group = options.group.get()};
}

AssistSetup Runtime::AssistOf(const RuntimeOptions& options) const {
  AssistSetup assist = options.assist;
  // The processor takes the blocks' products in their order, one after the other, with a gate, no expert's and no
  // recurrent layer's.
  const ModelConfig& model = model_->config();
  const bool as_expected =
      model.block_order == BlockOrder::kSequential && model.gated && !model.experts && !model.recurrent;
  if (!as_expected || model_->device() == nullptr || options.spec.cold_start_policy == ColdStartPolicy::kWait)
    assist.cores = 0;
  else if (assist.cores < 0)
    assist.cores = std::max(1, AvailableProcessors() / 2);
  return assist;
}

void Runtime::PlanAssist(RuntimeOptions& options) const {
  const int cores = AssistOf(options).cores;
  if (cores == 0 || options.spec.costs == nullptr || options.spec.costs->assist.cores == 0) return;
  PerformanceModel model = *options.spec.costs;
  model.assist.cores = cores;
  options.assist.row_ranks_per_core = TokensPerCore(model, 1);
  PlanByModel(std::make_shared<const PerformanceModel>(std::move(model)), options.spec);
}

Status Runtime::MakePools(const RuntimeOptions& options, ControlPlaneOptions& plane) {
  RETURN_IF_ERROR(model_->Reserve(ExecutorOptionsOf(options), geometry_.kv));
  ASSIGN_OR_RETURN(plane.device, model_->MakeDevicePool(options.device_memory, geometry_.page_bytes));
  if (plane.device->capacity_pages() <= geometry_.kv.state_pages) {
    return ResourceExhausted("--device-memory: expected more than " +
                                 FormatBytes(geometry_.kv.state_pages * geometry_.page_bytes) +
                                 ", which the states of one sequence take, found " + FormatBytes(options.device_memory),
                             "--device-memory");
  }
  if (options.host_memory == 0) return Ok{};
  ASSIGN_OR_RETURN(plane.host, model_->MakeHostPool(options.host_memory, geometry_.page_bytes));
  return Ok{};
}

void Runtime::TellOf(const std::shared_ptr<const AdapterVersion>& version) {
  if (leader_ != nullptr) leader_->Announce(version);
  engine_->Register(version);
}

void Runtime::MakeRegistry(const RuntimeOptions& options) {
  std::shared_ptr<LengthCache> lengths;
  if (!options.length_directory.empty()) lengths = std::make_shared<LengthCache>(options.length_directory);
  AdapterRegistry::Options offered{
      .page_bytes = static_cast<std::size_t>(geometry_.page_bytes),
      .base_dtype = base_dtype(),
      .forced_dtype = options.lora_dtype,
      .max_rank = options.max_lora_rank,
      .part = model_->part(),
      .model_names = options.model_names,
      .meet_base = [matrices = model_->base_matrices(), lengths,
                    clock = &clock_](AdapterFile& file) { return MeetBase(matrices, lengths.get(), *clock, file); },
      .complete = options.complete_adapter,
      .on_publish = [this](const auto& version) { TellOf(version); },
      .on_retire = [wakeup = &wakeup_] { wakeup->Signal(); }};
  registry_ = std::make_unique<AdapterRegistry>(config(), options.base_names, std::move(offered));
}

Status Runtime::StartGroup(const RuntimeOptions& options) {
  if (options.group == nullptr) return Ok{};
  const ExecutorOptions executor = ExecutorOptionsOf(options);
  const GroupSetup setup{.page_tokens = geometry_.kv.page_tokens,
                         .page_bytes = geometry_.page_bytes,
                         .device_pages = plane_->device().capacity_pages(),
                         .host_pages = plane_->host().capacity_pages(),
                         .kv_dtype = geometry_.kv.dtype,
                         .backend = executor.backend,
                         .lora_variant = executor.lora_variant,
                         .max_batch_tokens = executor.max_batch_tokens,
                         .max_running = executor.max_running,
                         .max_positions = executor.max_positions,
                         .max_rank = executor.max_rank,
                         .max_drafted_tokens = executor.max_drafted_tokens,
                         .bytes_per_second = options.transfer.bytes_per_second};
  ASSIGN_OR_RETURN(leader_, GroupLeader::Start(
                                options.group, setup, [wakeup = &wakeup_] { wakeup->Signal(); }, options.on_group_end));
  return Ok{};
}

Status Runtime::MakeTransfer(const RuntimeOptions& options) {
  const TransferOptions made{.assisted = AssistOf(options).cores > 0, .on_threads = options.transfer};
  ASSIGN_OR_RETURN(transfer_, model_->MakeTransfer(tiers(), made, [wakeup = &wakeup_] { wakeup->Signal(); }));
  if (leader_ != nullptr) transfer_ = leader_->Lead(std::move(transfer_));
  if (options.wrap_transfer) transfer_ = options.wrap_transfer(std::move(transfer_));
  if (options.recorder != nullptr) transfer_ = options.recorder->Watch(std::move(transfer_));
  return Ok{};
}

Status Runtime::MakeExecutor(const RuntimeOptions& options) {
  ASSIGN_OR_RETURN(executor_, model_->MakeExecutor(ExecutorOptionsOf(options), geometry_.kv, plane_->device(),
                                                   tiers().host, [wakeup = &wakeup_] { wakeup->Signal(); }));
  if (leader_ != nullptr) executor_ = leader_->Lead(std::move(executor_));
  if (options.wrap_executor) executor_ = options.wrap_executor(std::move(executor_));
  return Ok{};
}

RecordedSetup Runtime::DescribeSetup(const RuntimeOptions& options) const {
  return {.model = options.base_names.empty() ? std::string() : options.base_names.front(),
          .started_unix_seconds = clock_.UnixSeconds(),
          .spec = options.spec,
          .max_model_len = max_model_len_,
          .kv_slices = kv_slices_,
          .page_bytes = geometry_.page_bytes,
          .device_pages = plane_->device().capacity_pages(),
          .host_pages = plane_->host().capacity_pages(),
          .moves_kv = plane_->moves_kv()};
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
  leader_.reset();
  engine_.reset();
}

}  // namespace loramux
