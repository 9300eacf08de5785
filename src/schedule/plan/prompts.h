// The prompts of a step: chunks of running ones, and admissions of waiting ones.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "schedule/plan/admitter.h"
#include "schedule/plan/lanes.h"
#include "schedule/plan/step_draft.h"

namespace loramux {

// Plans prompts in the order of their tenants' counters. Owns none of its arguments.
class Prompts {
 public:
  Prompts(StepDraft& draft, Admitter& admitter) : draft_(draft), admitter_(admitter), lanes_(draft, admitter) {}

  // Lowers the token budget for prompts (SchedulerOptions::spread_prompts). Up to ridge_tokens, a step takes constant
  // time, because it is bound by reading all weights. If memory admits only as many requests as finish, steps that only
  // decode stay below that, and only prompts can fill them. To compute all prompts in one step would make that step
  // longer and the others no shorter. So the prompts are spread, but over at most about eight steps, so that the
  // backlog does not grow.
  void Spread();
  // Plans the next chunk of each running prompt (or of a preempted sequence that is computed again), and admits waiting
  // requests. The pages of running prompts were allocated at their admission.
  void Plan();

 private:
  // Tokens of the running prompts, and of waiting prompts that memory has room for. None: it has room for all of them.
  std::optional<std::int64_t> BoundByMemory() const;
  // Fills prefills_ with the runners in prefill, in the order of service.
  void FindPrefills();
  // Admits the request and notes whether the scan goes on.
  void Admit(Request* request);
  // Admits the requests that go before all others.
  void AdmitOverdue();

  StepDraft& draft_;
  Admitter& admitter_;
  Lanes lanes_;
  std::vector<Runner> prefills_;
  bool open_ = false;  // more requests may be admitted
};

}  // namespace loramux
