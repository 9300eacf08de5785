// S-LoRA's admission (its ReqQueue): a request begins only if memory can hold all running requests until each has
// ended, if every request generates as many tokens as it may.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/plan/planning_view.h"
#include "schedule/plan/step_rules.h"

namespace loramux {

// What a request has and may still generate, in tokens.
struct ReservedTokens {
  std::int64_t held = 0, left = 0;
  static bool LeavesLater(const ReservedTokens& a, const ReservedTokens& b) { return a.left > b.left; }
};
// The most tokens that the requests hold at one time, if each generates a token a step until it ends. REQUIRES: sorted
// by LeavesLater.
std::int64_t PeakTokens(std::span<const ReservedTokens> requests);

// The requests for which a plan has reserved memory.
class OutputReservation final : public StepRule {
 public:
  bool ReservesOutput() const override { return true; }
  // The running requests and their adapters have their memory.
  void Begin(StepDraft& draft, Preemption& preemption) override;
  // Reserves memory for a waiting request, its adapter included. False: memory may not suffice, or the prompts of the
  // plan are more tokens than whole_prompt_tokens; nothing is reserved. The first request of an empty server is not
  // refused. Beside decodes S-LoRA loads ahead for waiting requests without asking. REQUIRES: one pool for adapters and
  // for keys and values.
  bool Reserve(const StepDraft& draft, const Request& request) override;

 private:
  // Counts the running requests. In most steps nothing is reserved, so it waits until something is.
  void Look(const PlanningView& view);
  static ReservedTokens TokensOf(const PlanningView& view, const Request& request);
  void AddAdapter(const PlanningView& view, const Request& request);

  bool looked_ = false;                   // in this plan
  std::vector<ReservedTokens> requests_;  // sorted by LeavesLater
  std::vector<std::uint32_t> adapters_;   // generations
  std::int64_t adapter_pages_ = 0, prompt_tokens_ = 0;
};

}  // namespace loramux
