// The prompts of a step: chunks of running ones, and admissions of waiting ones.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "schedule/plan/admitter.h"
#include "schedule/plan/first_tokens.h"
#include "schedule/plan/step_draft.h"

namespace loramux {

// Plans prompts in the order of their tenants' counters, or so that first tokens are on time. Owns none of its
// arguments.
class Prompts {
 public:
  Prompts(StepDraft& draft, Admitter& admitter) : draft_(draft), admitter_(admitter) {}

  // Lowers the token budget for prompts (SystemSpec::spread_prompts). Up to ridge_tokens, a step takes constant
  // time, because it is bound by reading all weights. If memory admits only as many requests as finish, steps that only
  // decode stay below that, and only prompts can fill them. To compute all prompts in one step would make that step
  // longer and the others no shorter. So the prompts are spread, but over at most about eight steps, so that the
  // backlog does not grow.
  void Spread();
  // Plans the next chunk of each running prompt (or of a preempted sequence that is computed again), and admits waiting
  // requests. The pages of running prompts were allocated at their admission.
  void Plan();

 private:
  // A prompt of prompts_.
  struct Candidate {
    Request* request = nullptr;
    std::int64_t uncomputed = 0;  // tokens, if it runs
    bool runs = false;            // false: it waits
  };
  // Tokens of the running prompts, and of waiting prompts that memory has room for. None: it has room for all of them.
  std::optional<std::int64_t> BoundByMemory() const;
  // Fills prefills_ with the runners in prefill, in the order of service.
  void FindPrefills();
  // Fills candidates_ and prompts_ with prefills_ and, if asked, the waiting requests, in the order of service. Those
  // that AdmitOverdue has admitted are left out.
  void Merge(bool with_waiting);
  // Puts prompts_ into the order of FirstTokens, if options and objective ask for it. Returns the number of those that
  // are not late, which are first.
  std::size_t ArrangeByObjective();
  // Plans the next chunk of a running prompt.
  void Continue(const Candidate& prefill);
  // Admits the request and notes whether the scan goes on.
  void Admit(Request* request);
  // Admits the requests that go before all others.
  void AdmitOverdue();

  StepDraft& draft_;
  Admitter& admitter_;
  FirstTokens first_tokens_;
  std::vector<Runner> prefills_;
  std::vector<Candidate> candidates_;
  std::vector<AwaitedToken> prompts_;  // `at`: index in candidates_
  bool open_ = false;                  // more requests may be admitted
};

}  // namespace loramux
