#include "model/step_graphs.h"

#include <algorithm>

namespace loramux {

StepRoom* StepGraphs::RoomOf(const StepRows<DeviceLoraView>& batch) {
  const bool decodes = batch.num_rows <= kMaxRecordedRows &&
                       batch.num_rows == static_cast<std::int64_t>(batch.step->sequences.size()) &&
                       batch.num_logit_rows > 0 && batch.scored.empty() && batch.step->pools.ranges.empty();
  if (!decodes) return nullptr;
  std::int32_t max_rank = 0;
  for (const auto& group : batch.adapters) {
    if (group.adapter->own != nullptr) return nullptr;  // their launches are not recorded
    if (group.adapter->MostRank() == 0) continue;
    max_rank = std::max(max_rank, group.adapter->MostRank());
    NoteTargets(*group.adapter);
  }
  room_ = {.rows = RowRoom(batch.num_rows),
           .logit_rows = RowRoom(batch.num_logit_rows),
           .max_rank = max_rank,
           .lora_targets = targets_};
  return &room_;
}

// Graphs launch nothing for targets that no adapter changed when they were recorded.
void StepGraphs::NoteTargets(const DeviceLoraView& adapter) {
  targets_.resize(adapter.targets.size());
  bool more = false;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    more = more || (adapter.targets[i] & ~targets_[i]) != 0;
    targets_[i] |= adapter.targets[i];
  }
  if (more) entries_.remove_if([](const Entry& entry) { return entry.shape.max_rank > 0; });
}

Status StepGraphs::Run(DeviceStream& stream, const GraphShape& shape, std::uint64_t generation, bool waits,
                       const std::function<void()>& enqueue) {
  if (generation != generation_) entries_.clear();
  generation_ = generation;
  if (waits) {
    RunEagerly(enqueue);
    return Ok{};
  }
  const auto seen = std::ranges::find(entries_, shape, &Entry::shape);
  if (seen == entries_.end()) {
    if (entries_.size() == kMaxGraphs) entries_.pop_back();
    entries_.push_front({shape, nullptr});
    RunEagerly(enqueue);
    return Ok{};
  }
  entries_.splice(entries_.begin(), entries_, seen);
  std::unique_ptr<DeviceGraph>& graph = entries_.front().graph;
  if (graph == nullptr) {
    ASSIGN_OR_RETURN(graph, stream.Capture(enqueue));
    ++recorded_;
  } else {
    ++replayed_;
  }
  stream.Replay(*graph);
  return Ok{};
}

void StepGraphs::RunEagerly(const std::function<void()>& enqueue) {
  enqueue();
  ++eager_;
}

std::size_t StepGraphs::size() const {
  return static_cast<std::size_t>(std::ranges::count_if(entries_, [](const Entry& e) { return e.graph != nullptr; }));
}

bool AwaitsArrivals(const StepBatch& step) {
  return std::ranges::any_of(step.arrivals, [](const auto& arrival) { return arrival->arrived() < arrival->layers(); });
}

}  // namespace loramux
