#include "profile/step_bench.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "base/prng.h"
#include "engine/step_load.h"
#include "tensor/half_float.h"

namespace loramux {

Result<std::unique_ptr<StepBench>> StepBench::Create(Model* model, const Options& options,
                                                     const std::vector<std::string>& adapters) {
  std::unique_ptr<StepBench> bench(new StepBench);
  StepBench& b = *bench;
  b.model_ = model;
  b.options_ = options;
  b.threads_ = options.threads > 0 ? options.threads : AvailableProcessors();
  const ModelConfig& config = model->config();
  const DType base_dtype = model->weights().lm_head.dtype();
  b.geometry_ = ChoosePageGeometry(config, options.kv_dtype.value_or(base_dtype), options.page_tokens);
  ASSIGN_OR_RETURN(b.device_, PagePool::Create("device", options.device_memory, b.geometry_.page_bytes));
  b.transfer_.emplace(TierMemory{{}, b.device_->View()});
  b.registry_ = std::make_unique<AdapterRegistry>(
      config, std::vector<std::string>{"base"},
      AdapterRegistry::Options{.page_bytes = static_cast<std::size_t>(b.geometry_.page_bytes),
                               .base_dtype = base_dtype,
                               .forced_dtype = options.lora_dtype});
  b.host_ = PagePool::WithoutPages(b.geometry_.page_bytes);
  b.residency_ = std::make_unique<ResidencyManager>(*b.device_, *b.host_, *b.transfer_);
  RETURN_IF_ERROR(b.LoadAdapters(adapters));

  b.space_.max_batch_tokens = options.max_batch_tokens;
  b.space_.max_running = options.max_running;
  b.space_.max_positions =
      options.max_positions > 0 ? std::min(options.max_positions, config.max_position) : config.max_position;
  b.space_.page_tokens = b.geometry_.kv.page_tokens;
  RETURN_IF_ERROR(b.FillPages());
  Prng prng(1);
  b.tokens_.resize(static_cast<std::size_t>(std::max(options.max_batch_tokens, options.max_running)));
  for (TokenId& token : b.tokens_) {
    token = static_cast<TokenId>(prng.NextBelow(static_cast<std::uint64_t>(config.vocab_size)));
  }
  b.greedy_.temperature = 0;
  return bench;
}

Status StepBench::LoadAdapters(const std::vector<std::string>& directories) {
  std::vector<ResidencyManager::LoadFailure> failures;
  for (std::size_t i = 0; i < directories.size(); ++i) {
    ASSIGN_OR_RETURN(const auto version, registry_->Register("adapter-" + std::to_string(i), directories[i], 0));
    if (version->layout.pages > device_->free_pages()) {
      return ResourceExhausted("--device-memory: " + FormatBytes(options_.device_memory) + " holds only " +
                                   std::to_string(i) + " of " + std::to_string(directories.size()) +
                                   " adapters: raise it, or measure fewer adapters",
                               "--device-memory");
    }
    residency_->Add(version);
    residency_->BeginLoad(version->generation, /*via_host=*/false, clock_.Now());
    while (residency_->loads_in_flight() > 0) residency_->Poll(clock_.Now(), failures);
    if (!failures.empty()) return failures.front().error;
    adapters_.push_back(&residency_->Get(version->generation));
  }
  std::stable_sort(adapters_.begin(), adapters_.end(), [](const AdapterResidency* a, const AdapterResidency* b) {
    return a->version->layout.max_rank < b->version->layout.max_rank;
  });
  for (const AdapterResidency* adapter : adapters_) space_.ranks.push_back(adapter->version->layout.max_rank);
  return Ok{};
}

std::vector<std::shared_ptr<const AdapterVersion>> StepBench::Adapters() const {
  std::vector<std::shared_ptr<const AdapterVersion>> versions;
  for (const AdapterResidency* adapter : adapters_) versions.push_back(adapter->version);
  return versions;
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
  std::vector<std::byte> content(static_cast<std::size_t>(geometry_.page_bytes));
  Prng prng(2);
  const auto values = static_cast<std::int64_t>(kv.PageBytes() / DTypeSize(kv.dtype));
  for (std::int64_t i = 0; i < values; ++i) {
    StoreFromF32(kv.dtype, content.data(), i, static_cast<float>(prng.NextDouble() - 0.5));
  }
  for (const PageHandle handle : handles) {
    std::memcpy(device_->Data(handle), content.data(), content.size());
    kv_pages_.push_back(handle.index);
  }
  return Ok{};
}

void StepBench::UseVariant(LoraVariant variant) {
  executor_.reset();  // ends its threads before the new executor starts
  builder_ = {};      // the new one knows no adapters
  CpuExecutorOptions options{.threads = threads_,
                             .lora_variant = variant,
                             .max_batch_tokens = space_.max_batch_tokens,
                             .max_running = space_.max_running,
                             .max_positions = space_.max_positions,
                             .max_rank = space_.ranks.empty() ? 0 : space_.ranks.back()};
  executor_ = std::make_unique<CpuExecutor>(options, model_, geometry_.kv, TierMemory{.device = device_->View()},
                                            [this] { wakeup_.Signal(); });
}

void StepBench::MakeBatch(const StepPoint& point, StepBatchBuilder& builder) const {
  std::int64_t next_page = 0, next_token = 0;
  std::uint64_t next_id = 1;
  for (const PointSequence& sequence : point.sequences) {
    SequencePart part;
    part.id = RequestId{next_id++};
    part.tokens =
        std::span(tokens_).subspan(static_cast<std::size_t>(next_token), static_cast<std::size_t>(sequence.tokens));
    part.position = sequence.position;
    part.pages = std::span(kv_pages_).subspan(static_cast<std::size_t>(next_page));
    part.page_tokens = geometry_.kv.page_tokens;
    part.adapter = sequence.adapter < 0 ? nullptr : adapters_[static_cast<std::size_t>(sequence.adapter)];
    part.sampling = sequence.sample ? &greedy_ : nullptr;
    part.prompt_tokens = sequence.position + sequence.tokens;
    next_token += sequence.tokens;
    next_page += geometry_.kv.PagesFor(sequence.position + sequence.tokens);
    CHECK_LE(next_page, static_cast<std::int64_t>(kv_pages_.size()));
    builder.Add(part);
  }
}

StepLoad StepBench::Load(const StepPoint& point) {
  StepBatchBuilder builder;  // the batch is not submitted
  MakeBatch(point, builder);
  return LoadOf(builder.Take());
}

double StepBench::Run(const StepPoint& point) {
  builder_.Recycle(std::move(result_.batch));
  MakeBatch(point, builder_);
  StepBatch batch = builder_.Take();
  const TimeNs begin = clock_.Now();
  executor_->Submit(std::move(batch));
  while (!executor_->Poll(result_)) wakeup_.Wait();
  return static_cast<double>(clock_.Now() - begin) / static_cast<double>(kNsPerSecond);
}

}  // namespace loramux
