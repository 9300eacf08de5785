// Where other systems than loramux decide otherwise when a step is planned. The planner asks at fixed points and does
// not know which system it plans for. `--preset loramux` has no rule; the rules of the source papers' systems lie in
// schedule/baselines/.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "residency/adapter_residency.h"
#include "schedule/plan/step_plan.h"

namespace loramux {

class Admitter;
class Preemption;
struct StepDraft;

// What became of a waiting request. kAdmitted: it starts. kPassedOver: it does not, but later requests may. kBlocked:
// it does not, and ends the scan.
enum class AdmissionOutcome : std::uint8_t { kAdmitted, kPassedOver, kBlocked };

// One thing that a system does otherwise. A function that a rule does not override changes nothing. What a rule
// remembers from step to step changes only where a plan is committed; the rest is scratch memory of the plan that is
// being made. Not thread-safe.
class StepRule {
 public:
  virtual ~StepRule() = default;

  // True if the next step waits for loads, so that nothing is planned.
  virtual bool Waits(const ResidencyManager& residency) const { return false; }
  // True if a step is held back when a request lacks only its adapter to start (PlanOutlook::awaits_load).
  virtual bool HoldsForLoads() const { return false; }
  // True if no adapter may load beside a step for requests that arrive during it.
  virtual bool LoadsOnlyInSteps() const { return false; }
  // True if later requests may pass one that would exceed max_distinct_adapters or max_decode_step.
  virtual bool SkipsBeyondBatch() const { return false; }
  // True if memory is reserved for the whole output of running requests, so that none gives way to a waiting one.
  virtual bool ReservesOutput() const { return false; }

  // The requests are ranked, and nothing is planned.
  virtual void Begin(StepDraft& draft, Preemption& preemption) {}
  // The decodes are planned; prompts follow.
  virtual void BeforePrompts(StepDraft& draft) {}
  // Everything is planned.
  virtual void AfterPrompts(Admitter& admitter) {}
  // The plan is made, whether or not requests paused for it.
  virtual void Finish(StepPlan& plan) {}

  // False: the request may not begin with this step. Asked before anything else of it is looked at, if the step has a
  // seat.
  virtual bool Reserve(const StepDraft& draft, const Request& request) { return true; }
  // False: the step may not compute a prompt of so many tokens beside those that it has.
  virtual bool MayCompute(const StepDraft& draft, std::int64_t prompt) const { return true; }
  // False: running requests leave the request no quota.
  virtual bool HasQuota(const Request& request) const { return true; }
  // False: the step does not compute the request, which runs or waits.
  virtual bool Computes(const Request& request) const { return true; }
  // The request comes up, and its adapter is not usable. None: it is loaded as usual.
  virtual std::optional<AdmissionOutcome> AdmitCold(Admitter& admitter, Request* request) { return std::nullopt; }
  // Admits waiting requests in an order of its own. False: they are admitted in the order of service.
  virtual bool AdmitsWaiting() const { return false; }
  virtual void AdmitWaiting(Admitter& admitter) {}
  // The plan preempts the running request, or admits one that is overdue.
  virtual void Preempts(const Request& request) {}
  virtual void AdmitsOverdue(const Request& request) {}

  // The plan was committed, and its loads have begun.
  virtual void Committed(const StepPlan& plan, const ResidencyManager& residency) {}
  // A waiting request began to run. `overtakes`: the older request that it overtakes; 0: none.
  virtual void Began(const Request& request, RequestId overtakes) {}
  // A running request waits again. `begins_again`: its first step came to nothing. True if it was squashed: it had
  // overtaken an older request.
  virtual bool Preempted(const Request& request, bool begins_again) { return false; }
  // True if the request's last preemption was a squash.
  virtual bool WasSquashed(const Request& request) const { return false; }
  // The request leaves the scheduler.
  virtual void Left(const Request& request) {}
};

// The rules of a system, asked together.
class StepRules {
 public:
  StepRules() = default;
  explicit StepRules(std::vector<std::unique_ptr<StepRule>> rules) : rules_(std::move(rules)) {}

  bool Waits(const ResidencyManager& residency) const {
    return Any([&](const StepRule& rule) { return rule.Waits(residency); });
  }
  bool HoldsForLoads() const { return Any(&StepRule::HoldsForLoads); }
  bool LoadsOnlyInSteps() const { return Any(&StepRule::LoadsOnlyInSteps); }
  bool SkipsBeyondBatch() const { return Any(&StepRule::SkipsBeyondBatch); }
  bool ReservesOutput() const { return Any(&StepRule::ReservesOutput); }

  void Begin(StepDraft& draft, Preemption& preemption) {
    for (const auto& rule : rules_) rule->Begin(draft, preemption);
  }
  void BeforePrompts(StepDraft& draft) {
    for (const auto& rule : rules_) rule->BeforePrompts(draft);
  }
  void AfterPrompts(Admitter& admitter) {
    for (const auto& rule : rules_) rule->AfterPrompts(admitter);
  }
  void Finish(StepPlan& plan) {
    for (const auto& rule : rules_) rule->Finish(plan);
  }

  bool Reserve(const StepDraft& draft, const Request& request) {
    return std::all_of(rules_.begin(), rules_.end(), [&](const auto& rule) { return rule->Reserve(draft, request); });
  }
  bool MayCompute(const StepDraft& draft, std::int64_t prompt) const {
    return !Any([&](const StepRule& rule) { return !rule.MayCompute(draft, prompt); });
  }
  bool HasQuota(const Request& request) const {
    return !Any([&](const StepRule& rule) { return !rule.HasQuota(request); });
  }
  bool Computes(const Request& request) const {
    return !Any([&](const StepRule& rule) { return !rule.Computes(request); });
  }
  std::optional<AdmissionOutcome> AdmitCold(Admitter& admitter, Request* request) {
    for (const auto& rule : rules_) {
      if (const auto outcome = rule->AdmitCold(admitter, request)) return outcome;
    }
    return std::nullopt;
  }
  bool AdmitsWaiting() const { return Any(&StepRule::AdmitsWaiting); }
  void AdmitWaiting(Admitter& admitter) {
    for (const auto& rule : rules_) rule->AdmitWaiting(admitter);
  }
  void Preempts(const Request& request) {
    for (const auto& rule : rules_) rule->Preempts(request);
  }
  void AdmitsOverdue(const Request& request) {
    for (const auto& rule : rules_) rule->AdmitsOverdue(request);
  }

  void Committed(const StepPlan& plan, const ResidencyManager& residency) {
    for (const auto& rule : rules_) rule->Committed(plan, residency);
  }
  void Began(const Request& request, RequestId overtakes) {
    for (const auto& rule : rules_) rule->Began(request, overtakes);
  }
  bool Preempted(const Request& request, bool begins_again) {
    bool squashed = false;
    for (const auto& rule : rules_) squashed |= rule->Preempted(request, begins_again);
    return squashed;
  }
  bool WasSquashed(const Request& request) const {
    return Any([&](const StepRule& rule) { return rule.WasSquashed(request); });
  }
  void Left(const Request& request) {
    for (const auto& rule : rules_) rule->Left(request);
  }

 private:
  template <typename Asks>
  bool Any(Asks asks) const {
    return std::any_of(rules_.begin(), rules_.end(), [&](const auto& rule) { return std::invoke(asks, *rule); });
  }

  std::vector<std::unique_ptr<StepRule>> rules_;
};

}  // namespace loramux
