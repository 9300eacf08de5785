#include "engine/step_batch_builder.h"

#include <utility>

namespace loramux {

AdapterSegment& StepBatchBuilder::UseAdapter(StepSequence& sequence, const AdapterResidency& adapter) {
  if (contents_) Place(adapter);
  AdapterSegment& segment = batch_.UseAdapter(sequence, {adapter.slot, adapter.load_sequence});
  segment.generation = adapter.version->generation;
  segment.rank = adapter.version->layout.max_rank;
  return segment;
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
