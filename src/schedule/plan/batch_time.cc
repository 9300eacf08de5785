#include "schedule/plan/batch_time.h"

#include <algorithm>

namespace loramux {

void BatchTime::Begin(const PlanningView& view, const Runners& runners) {
  if (view.options.max_decode_step == 0) return;
  load_ = {};
  in_batch_.assign(view.residency.All().size(), false);
  for (const Runner& runner : runners) Add(view, *runner.request);
}

void BatchTime::Add(const PlanningView& view, const Request& request) {
  if (view.options.max_decode_step == 0) return;
  AddTo(load_, view, request);
  if (request.adapter != kBaseModel) in_batch_[view.residency.SlotOf(request.adapter)] = true;
}

void BatchTime::AddTo(StepLoad& load, const PlanningView& view, const Request& request) const {
  ++load.decode_sequences;
  load.decode_context += static_cast<std::int64_t>(request.tokens.size());
  if (request.adapter == kBaseModel) return;
  const std::int64_t rank = view.residency.Get(request.adapter).version->layout.max_rank;
  ++load.adapter_tokens;
  load.token_ranks += rank;
  if (in_batch_[view.residency.SlotOf(request.adapter)]) return;
  ++load.distinct_adapters;
  load.rank_sum += rank;
  load.max_rank = std::max(load.max_rank, rank);
}

bool BatchTime::Exceeds(const PlanningView& view, const Request& request) const {
  const SystemSpec& options = view.options;
  if (options.max_decode_step == 0 || load_.decode_sequences == 0) return false;
  StepLoad with = load_;
  AddTo(with, view, request);
  return options.costs->SecondsOf(with) > static_cast<double>(options.max_decode_step) / kNsPerSecond;
}

}  // namespace loramux
