// A small world in which one part of the planner can be tested alone: requests that wait and run, adapters, pages, and
// a draft of a plan, without a scheduler.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "schedule/baselines/baselines.h"
#include "schedule/plan/admitter.h"
#include "schedule/plan/preemption.h"
#include "schedule/plan/step_draft.h"
#include "worth/eviction_policy.h"

namespace loramux {

// Pages hold 4 tokens; policies are LRU. Sizes are in pages. Owns everything.
class PlanningWorld {
 public:
  explicit PlanningWorld(std::int64_t device_pages, SystemSpec options = {}, std::int64_t host_pages = 256)
      : options_(WithPageTokens(std::move(options))),
        device_(std::move(PagePool::Create("device", device_pages * 64, 64)).value()),
        host_(std::move(PagePool::Create("host", host_pages * 64, 64)).value()),
        residency_(*device_, *host_, transfer_),
        tree_(4, device_.get(), host_.get()),
        tiers_(tree_, *device_, *host_, transfer_),
        order_(std::move(MakeQueueOrder(options_)).value()),
        queues_(options_, residency_, *order_, predictor_),
        pages_(options_, *device_, residency_, tree_, tiers_),
        expected_(options_.adapter_prefetch, residency_),
        worth_(*policy_, residency_, expected_, options_.page_tokens),
        view_{.options = options_,
              .device = *device_,
              .residency = residency_,
              .tree = tree_,
              .tiers = tiers_,
              .queues = queues_,
              .pages = pages_,
              .worth = worth_,
              .expected = expected_,
              .step_floor = step_floor_,
              .prompt_pace = prompt_pace_,
              .discardable = discardable_,
              .adapter_pages = AdapterPartPages(options_, device_pages, device_->page_bytes())},
        rules_(MakeStepRules(options_, *order_)),
        draft_(view_, residency_, tree_, *policy_, rules_) {}

  // Registers an adapter of so many pages; on the device if `resident`.
  AdapterGeneration AddAdapter(std::uint32_t generation, std::int64_t pages, bool resident = true) {
    auto version = std::make_shared<AdapterVersion>();
    version->generation = AdapterGeneration{generation};
    version->layout.pages = pages;
    residency_.Add(std::move(version));
    if (resident) Load(AdapterGeneration{generation});
    return AdapterGeneration{generation};
  }
  // A request begins to wait. Its prompt differs from those of all others in every token.
  Request* Wait(std::int64_t prompt, std::uint32_t adapter = 0, const std::string& tenant = "") {
    Request& request = requests_.emplace_back();
    request.id = RequestId{requests_.size()};
    request.arrival = clock_.Now();
    request.adapter = AdapterGeneration{adapter};
    request.tenant_name = tenant;
    request.tokens.assign(static_cast<std::size_t>(prompt), static_cast<TokenId>(requests_.size()));
    request.prompt_tokens = static_cast<std::int32_t>(prompt);
    request.max_total_tokens = request.prompt_tokens + 100;
    if (request.adapter != kBaseModel) residency_.Acquire(request.adapter);
    pages_.Enter(&request);
    queues_.Enter(&request, 0);
    return &request;
  }
  // A request that runs and has computed its prompt, so that it decodes. It has pages for its tokens and no more.
  Request* Run(std::int64_t prompt, std::uint32_t adapter = 0, const std::string& tenant = "") {
    Request* request = Wait(prompt, adapter, tenant);
    Admit(request);
    pages_.Allocate({.request = request, .new_pages = static_cast<std::int32_t>((prompt + 3) / 4)}, clock_.Now());
    request->computed = prompt;
    queues_.Charge(request, clock_.Now());
    request->tokens.push_back(1);
    return request;
  }
  // History of `pages` pages that no request uses. Returns the end of its path.
  NodeId Remember(std::int64_t pages, TokenId first) {
    NodeId tail = tree_.branches().Top(pages_.branches().base());
    for (; pages > 0; --pages) {
      PageHandle page;
      CHECK(device_->Allocate(PageCategory::kKv, std::span(&page, 1)));
      tail = tree_.Insert(tail, std::vector<TokenId>(4, first), page, clock_.Now()).node;
    }
    tree_.EndUse(tail, clock_.Now());
    return tail;
  }
  // Begins a plan, as StepPlanner does before it decides anything.
  StepDraft& Begin() {
    draft_.plan.Clear();
    draft_.Reset(clock_.Now());
    draft_.turns.Order(clock_.Now());
    draft_.runners.Rank(clock_.Now());
    rules_.Begin(draft_, preemption_);
    draft_.free_seats = options_.Seats() - static_cast<std::int64_t>(draft_.runners.size());
    return draft_;
  }

  StepDraft& draft() { return draft_; }
  StepRules& rules() { return rules_; }
  const PlanningView& view() const { return view_; }
  VirtualClock& clock() { return clock_; }
  PromptPace& prompt_pace() { return prompt_pace_; }
  PagePool& device() { return *device_; }
  ResidencyManager& residency() { return residency_; }
  RequestQueues& queues() { return queues_; }
  DependencyTree& tree() { return tree_; }
  KvTiers& tiers() { return tiers_; }
  ModeledTransfer& transfer() { return transfer_; }
  // Collects the transfers that have ended.
  void Poll() {
    std::vector<ResidencyManager::LoadFailure> failures;
    residency_.Poll(clock_.Now(), failures, [&](const TransferCompletion& done) { tiers_.End(done, clock_.Now()); });
    tiers_.Look();
  }
  void set_discardable(double tokens) { discardable_ = tokens; }

 private:
  static SystemSpec WithPageTokens(SystemSpec options) {
    options.page_tokens = 4;
    return options;
  }
  void Load(AdapterGeneration generation) {
    residency_.BeginLoad(generation, /*via_host=*/true, clock_.Now());
    for (int i = 0; i < 4; ++i) {
      clock_.Advance(2000);
      Poll();
    }
    CHECK(residency_.Get(generation).device == TierState::kResident);
  }
  void Admit(Request* request) {
    queues_.Admit(request, clock_.Now());
    pages_.Admit({.request = request, .tail = request->tail}, clock_.Now());
  }

  const SystemSpec options_;
  VirtualClock clock_;
  std::unique_ptr<PagePool> device_, host_;
  ModeledTransfer transfer_{&clock_, {.latency_ns = 1000}, {.latency_ns = 100}, {}};
  ResidencyManager residency_;
  std::unique_ptr<EvictionPolicy> policy_ = std::move(MakeEvictionPolicy("lru")).value();
  DependencyTree tree_;
  KvTiers tiers_;
  std::unique_ptr<QueueOrder> order_;
  NoPredictor predictor_;
  RequestQueues queues_;
  RequestPages pages_;
  ExpectedAdapters expected_;
  AdapterWorth worth_;
  StepFloor step_floor_;
  PromptPace prompt_pace_;
  double discardable_ = 0;
  const PlanningView view_;
  StepRules rules_;
  StepDraft draft_;
  Preemption preemption_{draft_};
  std::deque<Request> requests_;
};

// The requests of a list, by id.
inline std::vector<std::uint64_t> IdsOf(const std::vector<Request*>& requests) {
  std::vector<std::uint64_t> ids;
  for (const Request* request : requests) ids.push_back(request->id.value);
  return ids;
}

}  // namespace loramux
