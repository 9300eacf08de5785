// How S-LoRA's loop fills a step, for the systems that are based on it (SchedulerOptions::separate_phases,
// ColdStart::kHold).
#include <algorithm>

#include "schedule/scheduler.h"

namespace loramux {

// The batch of the next step was fixed when its loads began, and no request is admitted until they have ended. Loads
// without a request do not hold the step.
bool Scheduler::LoadsHoldStep() const {
  if (!held_for_loads_ || residency_->loads_in_flight() == 0) return false;
  const auto& all = residency_->All();
  return std::any_of(all.begin(), all.end(), [](const AdapterResidency& adapter) {
    return adapter.version != nullptr && adapter.device == TierState::kLoading && adapter.references > 0;
  });
}

// After a step of prompts, the running requests get the decoding steps that are owed to them. No request is admitted,
// but adapters of waiting requests load beside these steps.
void Scheduler::GiveTurnToDecodes() {
  if (!options_.separate_phases || decodes_due_ == 0 || plan_.chunks.empty()) return;
  scratch_.free_seats = 0;
  const bool prefetches =
      decodes_due_ == kPrefetchTurns || decodes_due_ == options_.decode_turns - options_.decode_turns / 2;
  scratch_.loads_pause = options_.decode_turns > kPrefetchTurns && !prefetches;
}

// Prompts go first; requests that only decode wait for the next step.
void Scheduler::SeparatePhases() {
  if (!options_.separate_phases || plan_.prefill_tokens == 0) return;
  const auto decodes = [](const PlannedChunk& chunk) {
    return !chunk.admits && chunk.num_tokens == 1 && chunk.samples;
  };
  plan_.num_tokens -= static_cast<std::int64_t>(std::erase_if(plan_.chunks, decodes));
}

// Only the loads begin, and the evictions for them. Once they have ended, the step also computes requests that
// arrived meanwhile.
void Scheduler::HoldForLoads() {
  if (held_for_loads_ || !scratch_.awaits_load) return;
  plan_.admissions.clear();
  plan_.chunks.clear();
  plan_.num_tokens = plan_.prefill_tokens = 0;
}

void Scheduler::NotePhase() {
  if (!plan_.chunks.empty()) {
    decodes_due_ = plan_.prefill_tokens > 0 ? options_.decode_turns : std::max<std::int64_t>(0, decodes_due_ - 1);
    held_for_loads_ = false;
  } else if (!LoadsHoldStep()) {
    held_for_loads_ = scratch_.awaits_load;
  }
}

}  // namespace loramux
