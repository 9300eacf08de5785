#include "profile/step_bench.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/prng.h"
#include "engine/step_load.h"
#include "tensor/half_float.h"

namespace loramux {

namespace {

constexpr std::size_t kPagesOfJob = 256;

// Random keys and values. In 8 bits, each byte is one of four that are small positive numbers as integers and as halves
// of a scale.
void FillRandomly(const KvLayout& kv, std::byte* page) {
  Prng prng(2);
  const auto values = static_cast<std::int64_t>(kv.PageBytes() / DTypeSize(kv.dtype));
  for (std::int64_t i = 0; i < values; ++i) {
    if (kv.has_scales()) {
      page[i] = static_cast<std::byte>(0x3a + prng.NextBelow(4));
    } else {
      StoreFromF32(kv.dtype, page, i, static_cast<float>(prng.NextDouble() - 0.5));
    }
  }
}

}  // namespace

Result<std::unique_ptr<StepBench>> StepBench::Create(PlacedModel& model, const RuntimeOptions& options,
                                                     const std::vector<std::string>& adapters) {
  std::unique_ptr<StepBench> bench(new StepBench(model, options));
  StepBench& b = *bench;
  b.threads_ = options.threads > 0 ? options.threads : AvailableProcessors();
  const ModelConfig& config = model.config();
  if (config.recurrent) {
    return Unsupported(std::string("models of family ") + ModelFamilyName(config.family) +
                       " are not measured: a performance profile knows no states of linear attention");
  }
  b.geometry_ = ChoosePageGeometry(config, options.kv_dtype.value_or(model.dtype()), options.page_tokens,
                                   options.lora_dtype.value_or(model.dtype()));
  b.space_.max_batch_tokens = options.spec.max_batch_tokens;
  b.space_.max_running = options.spec.max_running;
  b.space_.max_positions =
      options.max_model_len > 0 ? std::min(options.max_model_len, config.max_position) : config.max_position;
  b.space_.page_tokens = b.geometry_.kv.page_tokens;
  RETURN_IF_ERROR(b.Register(adapters));
  RETURN_IF_ERROR(b.MakeMemory());
  RETURN_IF_ERROR(b.LoadAdapters());
  RETURN_IF_ERROR(b.FillPages());
  Prng prng(1);
  b.tokens_.resize(static_cast<std::size_t>(std::max(options.spec.max_batch_tokens, options.spec.max_running)));
  for (TokenId& token : b.tokens_) {
    token = static_cast<TokenId>(prng.NextBelow(static_cast<std::uint64_t>(config.vocab_size)));
  }
  b.greedy_.temperature = 0;
  return bench;
}

Status StepBench::Register(const std::vector<std::string>& directories) {
  registry_ = std::make_unique<AdapterRegistry>(
      model_.config(), std::vector<std::string>{"base"},
      AdapterRegistry::Options{.page_bytes = static_cast<std::size_t>(geometry_.page_bytes),
                               .base_dtype = model_.dtype(),
                               .forced_dtype = options_.lora_dtype});
  for (std::size_t i = 0; i < directories.size(); ++i) {
    ASSIGN_OR_RETURN(auto version, registry_->Register("adapter-" + std::to_string(i), directories[i], 0));
    versions_.push_back(std::move(version));
  }
  std::stable_sort(versions_.begin(), versions_.end(),
                   [](const auto& a, const auto& b) { return a->layout.max_rank < b->layout.max_rank; });
  for (const auto& version : versions_) space_.ranks.push_back(version->layout.max_rank);
  return Ok{};
}

// The memory of batches first, so that the pool may take what is left.
Status StepBench::MakeMemory() {
  RETURN_IF_ERROR(model_.Reserve(ExecutorOptionsOf(LoraVariant::kMbgmv), geometry_.kv));
  ASSIGN_OR_RETURN(device_, model_.MakeDevicePool(options_.device_memory, geometry_.page_bytes));
  ASSIGN_OR_RETURN(host_, model_.MakeHostPool(geometry_.page_bytes, geometry_.page_bytes));
  ASSIGN_OR_RETURN(transfer_, model_.MakeTransfer({host_->View(), device_->View()}, {}, [this] { wakeup_.Signal(); }));
  return Ok{};
}

Status StepBench::LoadAdapters() {
  residency_ = std::make_unique<ResidencyManager>(*device_, *host_, *transfer_);
  std::vector<ResidencyManager::LoadFailure> failures;
  for (const auto& version : versions_) {
    if (version->layout.pages > device_->free_pages()) {
      return ResourceExhausted("--device-memory: " + FormatBytes(device_->capacity_pages() * geometry_.page_bytes) +
                                   " holds only " + std::to_string(adapters_.size()) + " of " +
                                   std::to_string(versions_.size()) + " adapters: raise it, or measure fewer adapters",
                               "--device-memory");
    }
    residency_->Add(version);
    residency_->BeginLoad(version->generation, /*via_host=*/false, clock_.Now());
    for (residency_->Poll(clock_.Now(), failures); residency_->Stats().loading > 0;) {
      wakeup_.Wait();
      residency_->Poll(clock_.Now(), failures);
    }
    if (!failures.empty()) return failures.front().error;
    adapters_.push_back(&residency_->Get(version->generation));
  }
  return Ok{};
}

// Gives every page physical memory of its own with random content. Untouched pages would all map to one page of zeros,
// which is always in the cache.
Status StepBench::FillPages() {
  const KvLayout& kv = geometry_.kv;
  const std::int64_t longest = kv.PagesFor(space_.max_positions);
  const std::int64_t wanted = kv.PagesFor(space_.max_positions) * space_.max_running;
  space_.kv_pages = std::min(device_->free_pages(), wanted);
  if (space_.kv_pages < longest) {
    return ResourceExhausted("--device-memory: a sequence of " + std::to_string(space_.max_positions) +
                                 " positions does not fit beside the adapters: raise it, or lower --max-model-len",
                             "--device-memory");
  }
  std::vector<PageHandle> handles(static_cast<std::size_t>(space_.kv_pages));
  CHECK(device_->Allocate(PageCategory::kKv, handles));
  for (const PageHandle handle : handles) kv_pages_.push_back(handle.index);
  PageHandle source;
  CHECK(host_->Allocate(PageCategory::kKv, std::span(&source, 1)));
  FillRandomly(kv, host_->Data(source));
  const std::span<const std::uint32_t> pages(kv_pages_);
  for (std::size_t first = 0; first < pages.size(); first += kPagesOfJob) {
    RETURN_IF_ERROR(CopyToPages(pages.subspan(first, std::min(kPagesOfJob, pages.size() - first))));
  }
  return Ok{};
}

// Copies the host's page to each of them.
Status StepBench::CopyToPages(std::span<const std::uint32_t> pages) {
  transfer_->Submit({.id = 1,
                     .from = {.tier = Tier::kHost, .pages = std::vector<std::uint32_t>(pages.size(), 0)},
                     .to = {.tier = Tier::kDevice, .pages = {pages.begin(), pages.end()}},
                     .page_bytes = static_cast<std::size_t>(geometry_.page_bytes)});
  while (true) {
    if (const auto completion = transfer_->Poll()) {
      if (completion->error.has_value()) return *completion->error;
      return Ok{};
    }
    wakeup_.Wait();
  }
}

ExecutorOptions StepBench::ExecutorOptionsOf(LoraVariant variant) const {
  return {.threads = threads_,
          .lora_variant = variant,
          .max_batch_tokens = space_.max_batch_tokens,
          .max_running = space_.max_running,
          .max_positions = space_.max_positions,
          .max_rank = space_.ranks.empty() ? 0 : space_.ranks.back()};
}

Status StepBench::UseVariant(LoraVariant variant) {
  if (executor_ != nullptr && !variants_differ()) return Ok{};
  executor_.reset();              // ends its threads before the new executor starts
  builder_ = StepBatchBuilder();  // the new one knows no adapters
  ASSIGN_OR_RETURN(executor_, model_.MakeExecutor(ExecutorOptionsOf(variant), geometry_.kv, *device_, /*host=*/{},
                                                  [this] { wakeup_.Signal(); }));
  return Ok{};
}

void StepBench::MakeBatch(const StepPoint& point, StepBatchBuilder& builder) const {
  std::int64_t next_page = 0, next_token = 0;
  std::uint64_t next_id = 1;
  for (const PointSequence& sequence : point.sequences) {
    const std::int64_t end = sequence.position + sequence.tokens, pages = geometry_.kv.PagesFor(end);
    CHECK_LE(next_page + pages, static_cast<std::int64_t>(kv_pages_.size()));
    StepSequence& part = builder.batch().Add(
        RequestId{next_id++},
        std::span(tokens_).subspan(static_cast<std::size_t>(next_token), static_cast<std::size_t>(sequence.tokens)),
        sequence.position,
        std::span(kv_pages_).subspan(static_cast<std::size_t>(next_page), static_cast<std::size_t>(pages)));
    part.prompt_tokens = end;
    if (sequence.adapter >= 0) builder.UseAdapter(part, *adapters_[static_cast<std::size_t>(sequence.adapter)]);
    if (sequence.sample) builder.batch().Sample(part, greedy_, {});
    next_token += sequence.tokens;
    next_page += pages;
  }
}

StepLoad StepBench::Load(const StepPoint& point) {
  StepBatchBuilder builder;  // the batch is not submitted
  MakeBatch(point, builder);
  return LoadOf(builder.Take());
}

Result<double> StepBench::Run(const StepPoint& point) {
  builder_.Recycle(std::move(result_.batch));
  MakeBatch(point, builder_);
  StepBatch batch = builder_.Take();
  const TimeNs begin = clock_.Now();
  executor_->Submit(std::move(batch));
  while (!executor_->Poll(result_)) wakeup_.Wait();
  if (result_.error.has_value()) return *result_.error;
  return static_cast<double>(clock_.Now() - begin) / static_cast<double>(kNsPerSecond);
}

}  // namespace loramux
