#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "schedule/baselines/baselines.h"
#include "schedule/baselines/lanes.h"
#include "schedule/baselines/output_reservation.h"
#include "schedule/plan/admitter.h"

namespace loramux {
namespace {

bool IsLoadingForRequest(const AdapterResidency& adapter) {
  return adapter.device == TierState::kLoading && adapter.references > 0;
}

// Prompts are never split, and a step computes several only if they have at most `limit` tokens together.
class WholePrompts final : public StepRule {
 public:
  explicit WholePrompts(std::int64_t limit) : limit_(limit) {}
  bool MayCompute(const StepDraft& draft, std::int64_t prompt) const override {
    const std::int64_t planned = draft.plan.prefill_tokens;
    return planned == 0 || planned + prompt <= limit_;
  }

 private:
  const std::int64_t limit_;  // tokens
};

// An adapter that no request wants, and none is expected to want, is evicted at once. S-LoRA.
class NoIdleAdapters final : public StepRule {
 public:
  void Begin(StepDraft& draft, Preemption&) override {
    Draft& room = draft.room;
    for (const AdapterGeneration generation : draft.view.residency.Residents(Tier::kDevice)) {
      const AdapterResidency& adapter = draft.view.residency.Get(generation);
      if (adapter.references > 0 || draft.view.expected.IsExpected(adapter, room.now())) continue;
      if (room.Evictable(adapter) && !room.CarriesHistory(generation)) room.EvictAdapter(adapter);
    }
  }
};

// Later requests may pass one that would exceed the batch. vLLM-LoRA.
class SkippingBeyondBatch final : public StepRule {
 public:
  bool SkipsBeyondBatch() const override { return true; }
};

// S-LoRA's loop: steps of prompts and steps of decodes take turns, and a step of prompts waits for its adapters. Each
// of the two may be switched off.
class TakingTurns final : public StepRule {
 public:
  explicit TakingTurns(const SystemSpec& spec)
      : separates_(spec.separate_phases),
        holds_(spec.cold_start == ColdStart::kHold),
        decode_turns_(spec.decode_turns) {}

  // The batch of the next step was fixed when its loads began, and no request is admitted until they have ended. Loads
  // without a request do not hold the step.
  bool Waits(const ResidencyManager& residency) const override {
    if (!held_ || residency.Stats().loading == 0) return false;
    const auto& all = residency.All();
    return std::any_of(all.begin(), all.end(), [](const AdapterResidency& adapter) {
      return adapter.version != nullptr && IsLoadingForRequest(adapter);
    });
  }
  bool HoldsForLoads() const override { return holds_; }
  bool LoadsOnlyInSteps() const override { return holds_; }

  // After a step of prompts, the running requests get the decoding steps that are owed to them. No request is admitted,
  // but adapters of waiting requests load beside these steps.
  void BeforePrompts(StepDraft& draft) override {
    if (!separates_ || decodes_due_ == 0 || draft.plan.chunks.empty()) return;
    draft.free_seats = 0;
    const bool prefetches = decodes_due_ == kPrefetchTurns || decodes_due_ == decode_turns_ - decode_turns_ / 2;
    draft.loads_pause = decode_turns_ > kPrefetchTurns && !prefetches;
  }
  // Prompts go first; requests that only decode wait for the next step. If the step is to wait for loads, only the
  // loads begin, and the evictions for them. Once they have ended, the step also computes requests that arrived
  // meanwhile.
  void AfterPrompts(Admitter& admitter) override {
    StepDraft& draft = admitter.draft();
    if (separates_ && draft.plan.prefill_tokens > 0) {
      draft.plan.num_tokens -=
          static_cast<std::int64_t>(std::erase_if(draft.plan.chunks, std::mem_fn(&PlannedChunk::Decodes)));
    }
    if (!held_ && draft.awaits_load) draft.plan.DropComputation();
  }
  void Committed(const StepPlan& plan, const ResidencyManager& residency) override {
    if (!plan.chunks.empty()) {
      decodes_due_ = plan.prefill_tokens > 0 ? decode_turns_ : std::max<std::int64_t>(0, decodes_due_ - 1);
      held_ = false;
    } else if (!Waits(residency)) {
      held_ = plan.outlook.has_value() && plan.outlook->awaits_load;
    }
  }

 private:
  const bool separates_, holds_;
  const std::int64_t decode_turns_;
  std::int64_t decodes_due_ = 0;  // steps owed to decoding
  bool held_ = false;             // the next step waits for loads
};

// Loads the adapter of a request that the step would admit now. None: it is on its way.
std::optional<AdmissionOutcome> LoadForStep(Admitter& admitter, Request* request) {
  StepDraft& draft = admitter.draft();
  if (draft.full()) return AdmissionOutcome::kPassedOver;
  if (draft.ExceedsBatch(*request)) return admitter.BeyondBatch(*request);
  if (draft.room.IsLoading(*request) || draft.room.Is(request->adapter, Draft::kLoads)) return std::nullopt;
  const AdmissionOutcome outcome = admitter.TryLoadOf(request);
  return draft.room.Is(request->adapter, Draft::kLoads) ? std::nullopt : std::optional(outcome);
}

// Adapters are loaded for the requests that a step computes, and beside it for the first of those that wait. The
// request begins at once (Admitter::BeginsCold). vLLM-LoRA.
class Overlapping final : public StepRule {
 public:
  explicit Overlapping(const SystemSpec& spec) : prefetch_lookahead_(spec.prefetch_lookahead) {}

  bool LoadsOnlyInSteps() const override { return true; }
  std::optional<AdmissionOutcome> AdmitCold(Admitter& admitter, Request* request) override {
    return LoadForStep(admitter, request).value_or(AdmissionOutcome::kPassedOver);
  }
  void AfterPrompts(Admitter& admitter) override {
    if (!admitter.draft().closed()) admitter.LoadForFirst(prefetch_lookahead_);
  }

 private:
  const std::int64_t prefetch_lookahead_;
};

// A step computes at most so many adapters: the first ones of one queue of running and waiting requests. In it are
// first those that are overdue, then those whose adapter is on the device, by age, and then the others in the order of
// the plan. vLLM-LoRA's select_batch.
class BoundingSteps final : public StepRule {
 public:
  explicit BoundingSteps(const SystemSpec& spec) : most_(static_cast<std::size_t>(spec.max_distinct_adapters)) {}

  // If the waiting ones cannot begin, the plan is made again with the running ones first (StepDraft::may_pause).
  void Begin(StepDraft& draft, Preemption&) override {
    adapters_.clear();
    const auto& turns = draft.turns.all();
    auto turn = turns.begin();
    if (draft.may_pause) {
      for (const Request* overdue : draft.turns.overdue()) Take(*overdue);
      for (; turn != turns.end() && turn->standing.overdue; ++turn) Take(*turn->request);
    }
    const auto is_before = [&](const Turn& of, const Runner& runner) {
      const bool ready = !draft.room.IsLoading(*of.request) && !draft.view.MustLoad(*of.request);
      return draft.may_pause && ready && of.request->id < runner.request->id;
    };
    for (Runner& runner : draft.runners) {
      for (; turn != turns.end() && is_before(*turn, runner); ++turn) Take(*turn->request);
      Take(*runner.request);
      if (!Computes(*runner.request)) runner.paused = true;
    }
    for (const Request* overdue : draft.turns.overdue()) Take(*overdue);
    for (; turn != turns.end(); ++turn) Take(*turn->request);
  }
  bool Computes(const Request& request) const override { return request.adapter == kBaseModel || Has(request.adapter); }

 private:
  bool Has(AdapterGeneration adapter) const {
    return std::find(adapters_.begin(), adapters_.end(), adapter) != adapters_.end();
  }
  void Take(const Request& request) {
    if (adapters_.size() < most_ && !Computes(request)) adapters_.push_back(request.adapter);
  }

  const std::size_t most_;
  std::vector<AdapterGeneration> adapters_;  // those of the step
};

// The step waits for the adapters of the requests that it admits, and computes then. CaraServe's ONDMD.
class Stalling final : public StepRule {
 public:
  explicit Stalling(const SystemSpec& spec) : prefetch_lookahead_(spec.prefetch_lookahead) {}

  // A load counts only while a request holds a reference to its adapter.
  bool Waits(const ResidencyManager& residency) const override {
    return std::any_of(stalls_.begin(), stalls_.end(), [&](AdapterGeneration generation) {
      return residency.Knows(generation) && IsLoadingForRequest(residency.Get(generation));
    });
  }
  bool LoadsOnlyInSteps() const override { return true; }

  // The request would be admitted now. Its seat and its tokens are taken, so that no more adapters are loaded than the
  // step has room for. After steps have waited once, one must compute before the next may wait. Otherwise clients that
  // connect and leave could starve all other requests.
  std::optional<AdmissionOutcome> AdmitCold(Admitter& admitter, Request* request) override {
    StepDraft& draft = admitter.draft();
    const AdapterGeneration adapter = request->adapter;
    if (const auto outcome = LoadForStep(admitter, request)) return *outcome;
    if (stalled_since_step_) return AdmissionOutcome::kPassedOver;
    std::vector<AdapterGeneration>& stalls = draft.plan.stalls;
    if (std::find(stalls.begin(), stalls.end(), adapter) == stalls.end()) stalls.push_back(adapter);
    --draft.free_seats;
    draft.budget -= draft.ChunkTokens(*request, request->uncomputed());
    draft.room.Use(adapter);
    draft.batch_time.Add(draft.view, *request);
    return AdmissionOutcome::kPassedOver;
  }
  // Does nothing if the step waits anyway.
  void AfterPrompts(Admitter& admitter) override {
    StepDraft& draft = admitter.draft();
    if (draft.plan.stalls.empty() && !draft.closed()) admitter.LoadForFirst(prefetch_lookahead_);
  }
  // Adapters of requests that would be admitted are loaded first; the computation is planned again after that.
  // Evictions stay in the plan, because the loads may need their room. Preemptions stay too, because evictions may
  // depend on them.
  void Finish(StepPlan& plan) override {
    if (plan.stalls.empty()) return;
    plan.DropComputation();
    std::erase_if(plan.moves, [](const Move& move) { return move.is_fetch(); });
  }
  void Committed(const StepPlan& plan, const ResidencyManager& residency) override {
    if (!Waits(residency)) stalls_.assign(plan.stalls.begin(), plan.stalls.end());
    stalled_since_step_ = plan.chunks.empty() && (stalled_since_step_ || !stalls_.empty());
  }

 private:
  const std::int64_t prefetch_lookahead_;
  std::vector<AdapterGeneration> stalls_;  // adapters that steps wait for
  bool stalled_since_step_ = false;        // a step has waited, and none has computed since
};

}  // namespace

StepRules MakeStepRules(const SystemSpec& spec, const QueueOrder& order) {
  std::vector<std::unique_ptr<StepRule>> rules;
  if (spec.whole_prompt_tokens > 0) rules.push_back(std::make_unique<WholePrompts>(spec.whole_prompt_tokens));
  if (!spec.keep_idle_adapters) rules.push_back(std::make_unique<NoIdleAdapters>());
  if (spec.reserve_output) rules.push_back(std::make_unique<OutputReservation>());
  if (spec.skip_beyond_distinct) rules.push_back(std::make_unique<SkippingBeyondBatch>());
  const bool by_step = spec.adapter_bound == AdapterBound::kStep && spec.max_distinct_adapters > 0;
  if (by_step) rules.push_back(std::make_unique<BoundingSteps>(spec));
  if (spec.cold_start == ColdStart::kStall) rules.push_back(std::make_unique<Stalling>(spec));
  if (spec.cold_start == ColdStart::kOverlap) rules.push_back(std::make_unique<Overlapping>(spec));
  if (spec.cold_start == ColdStart::kHold || spec.separate_phases) rules.push_back(std::make_unique<TakingTurns>(spec));
  if (order.has_quotas()) rules.push_back(std::make_unique<Lanes>(order, spec.prefetch_lookahead));
  return StepRules(std::move(rules));
}

}  // namespace loramux
