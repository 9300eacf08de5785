#include "engine/step_batch_builder.h"

#include <algorithm>

#include "base/check.h"

namespace loramux {
namespace {

template <typename T>
FlatRange AppendTo(std::vector<T>& array, std::span<const T> more) {
  const FlatRange range{static_cast<std::uint32_t>(array.size()), static_cast<std::uint32_t>(more.size())};
  array.insert(array.end(), more.begin(), more.end());
  return range;
}

}  // namespace

void StepBatchBuilder::Add(const SequencePart& part) {
  const auto count = static_cast<std::int64_t>(part.tokens.size());
  const auto pages =
      static_cast<std::size_t>(part.state_pages + (part.position + count + part.page_tokens - 1) / part.page_tokens);
  CHECK_LE(pages, part.pages.size());
  StepSequence& sequence = batch_.sequences.emplace_back();
  sequence.id = part.id;
  sequence.position = part.position;
  sequence.prompt_tokens = part.prompt_tokens;
  sequence.tokens = AppendTo(batch_.tokens, part.tokens);
  sequence.pages = AppendTo(batch_.pages, part.pages.first(pages));
  if (part.adapter != nullptr) {
    sequence.segment = SegmentOf(part, static_cast<std::int32_t>(sequence.tokens.first));
  }
  sequence.adapter_arrival = ArrivalOf(part.adapter_arrival);
  sequence.kv_arrival = ArrivalOf(part.kv_arrival);
  sequence.first_scored = part.first_scored;
  sequence.scores = {static_cast<std::uint32_t>(batch_.scores.size()), static_cast<std::uint32_t>(part.scored.size())};
  for (const TokenId token : part.scored) batch_.scores.push_back({token, part.top_logprobs});
  if (part.pooled > 0) {
    batch_.pools.Add(static_cast<std::int64_t>(sequence.tokens.first) + part.first_pooled, part.pooled, part.pool_sum);
  }
  if (part.sampling == nullptr) return;
  sequence.sample = static_cast<std::int32_t>(batch_.samples.rows.size());
  batch_.samples.Add(*part.sampling, part.context, part.constraint);
}

std::int32_t StepBatchBuilder::SegmentOf(const SequencePart& part, std::int32_t first_token) {
  const AdapterResidency& adapter = *part.adapter;
  const AdapterRef ref{adapter.slot, adapter.load_sequence};
  auto& segments = batch_.segments;
  if (segments.empty() || segments.back().adapter != ref) {
    Place(adapter);
    AdapterSegment& segment = segments.emplace_back();
    segment.adapter = ref;
    segment.generation = adapter.version->generation;
    segment.rank = adapter.version->layout.max_rank;
    segment.first_token = first_token;
    segment.in_host = part.in_host;
    segment.to_device = part.to_device;
  }
  segments.back().num_tokens += static_cast<std::int32_t>(part.tokens.size());
  return static_cast<std::int32_t>(segments.size()) - 1;
}

void StepBatchBuilder::Place(const AdapterResidency& adapter) {
  if (adapter.slot >= placed_.size()) placed_.resize(adapter.slot + 1, 0);
  if (placed_[adapter.slot] == adapter.load_sequence) return;
  placed_[adapter.slot] = adapter.load_sequence;
  AdapterPlacement& placement = batch_.placements.emplace_back();
  placement.adapter = {adapter.slot, adapter.load_sequence};
  placement.version = adapter.version;
  placement.pages.tier = Tier::kDevice;
  for (const PageHandle page : adapter.device_pages) placement.pages.pages.push_back(page.index);
  placement.host_pages.tier = Tier::kHost;
  for (const PageHandle page : adapter.host_pages) placement.host_pages.pages.push_back(page.index);
}

std::int32_t StepBatchBuilder::ArrivalOf(const std::shared_ptr<const LayerProgress>& progress) {
  if (progress == nullptr) return -1;
  auto& arrivals = batch_.arrivals;
  const auto found = std::find(arrivals.begin(), arrivals.end(), progress);
  if (found == arrivals.end()) {
    arrivals.push_back(progress);
    return static_cast<std::int32_t>(arrivals.size()) - 1;
  }
  return static_cast<std::int32_t>(found - arrivals.begin());
}

StepBatch StepBatchBuilder::Take() {
  StepBatch batch = std::move(batch_);
  batch_ = std::move(spare_);
  spare_ = {};
  return batch;
}

void StepBatchBuilder::Recycle(StepBatch&& used) {
  spare_ = std::move(used);
  spare_.Clear();
}

}  // namespace loramux
