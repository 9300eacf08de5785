// A scheduler with pools, adapters and a clock, for tests that go step by step.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "schedule/scheduler.h"

namespace loramux {

// Pages hold 4 tokens. Pool sizes are in pages. Keeps no history. Owns everything; requests stay valid until the end.
struct SchedulerWorld {
  VirtualClock clock;
  std::unique_ptr<PagePool> device;
  std::unique_ptr<PagePool> host;
  ModeledTransfer transfer{&clock, {.latency_ns = 1000}, {.latency_ns = 100}};
  ResidencyManager residency;
  std::unique_ptr<EvictionPolicy> policy;
  DependencyTree nothing{4};
  KvTiers unmoving{nothing};
  std::unique_ptr<QueueOrder> queue;
  NoPredictor predictor;
  Scheduler scheduler;
  std::deque<Request> requests;
  std::uint64_t next_id = 1;

  explicit SchedulerWorld(std::int64_t device_pages, SystemSpec options = {}, std::int64_t host_pages = 64,
                          std::string_view eviction = "lru")
      : device(std::move(PagePool::Create("device", device_pages * 64, 64)).value()),
        host(std::move(PagePool::Create("host", host_pages * 64, 64)).value()),
        residency(*device, *host, transfer),
        policy(std::move(MakeEvictionPolicy(eviction)).value()),
        queue(std::move(MakeQueueOrder(options)).value()),
        scheduler(WithPageTokens(options), Parts(*policy, nothing, unmoving)) {}

  // What a scheduler in this world works with.
  SchedulerParts Parts(const EvictionPolicy& eviction, DependencyTree& tree, KvTiers& tiers) {
    return {.device = *device,
            .residency = residency,
            .eviction = eviction,
            .tree = tree,
            .tiers = tiers,
            .queue = *queue,
            .predictor = predictor};
  }
  // The options with pages of 4 tokens.
  static SystemSpec WithPageTokens(SystemSpec options) {
    options.page_tokens = 4;
    return options;
  }

  // Registers an adapter of so many pages.
  void AddAdapter(std::uint32_t generation, std::int64_t pages) {
    auto version = std::make_shared<AdapterVersion>();
    version->generation = AdapterGeneration{generation};
    version->layout.pages = pages;
    residency.Add(std::move(version));
  }
  // Registers an adapter of so many pages that the host tier has.
  void AddInHost(std::uint32_t generation, std::int64_t pages) {
    auto version = std::make_shared<AdapterVersion>();
    version->generation = AdapterGeneration{generation};
    version->layout.pages = pages;
    residency.Add(std::move(version), /*in_host=*/true);
  }
  // Loads the adapter to the device, beside all steps.
  void LoadNow(std::uint32_t generation) {
    residency.BeginLoad(AdapterGeneration{generation}, /*via_host=*/true, clock.Now());
    std::vector<ResidencyManager::LoadFailure> failures;
    while (residency.Stats().loading > 0) {
      clock.Advance(10 * kNsPerUs);
      residency.Poll(clock.Now(), failures);
    }
  }
  // Adds a request of `tenant` for the base model. Lengths in tokens.
  Request* AddFor(const std::string& tenant, std::int64_t prompt, std::int32_t output) {
    return Add(prompt, 0, output, tenant);
  }
  // Adds a request with a prompt of `prompt` equal tokens.
  Request* Add(std::int64_t prompt, std::uint32_t adapter = 0, std::int32_t output = 4,
               const std::string& tenant = "") {
    Request& request = NewRequest(std::vector<TokenId>(static_cast<std::size_t>(prompt), 1), adapter, output);
    request.tenant_name = tenant;
    scheduler.Add(&request);
    return &request;
  }
  // Makes a request that holds a reference to its adapter. Does not add it to the scheduler.
  Request& NewRequest(std::vector<TokenId> prompt, std::uint32_t adapter, std::int32_t output) {
    Request& request = requests.emplace_back();
    request.arrival = clock.Now();
    request.id = RequestId{next_id++};
    request.adapter = AdapterGeneration{adapter};
    request.prompt_tokens = static_cast<std::int32_t>(prompt.size());
    request.max_total_tokens = request.prompt_tokens + output;
    request.tokens = std::move(prompt);
    if (request.adapter != kBaseModel) residency.Acquire(request.adapter);
    return request;
  }
  // Runs one engine step: plans, commits, computes, samples, and removes finished requests. Checks integrity. Returns
  // the plan.
  StepPlan Step() {
    std::vector<ResidencyManager::LoadFailure> failures;
    residency.Poll(clock.Now(), failures);
    const StepPlan plan = scheduler.Plan(clock.Now());
    scheduler.Commit(plan, clock.Now());
    for (const PlannedChunk& chunk : plan.chunks) {
      scheduler.Advance(chunk.request, chunk.num_tokens, clock.Now());
      if (!chunk.samples) continue;
      chunk.request->tokens.push_back(2);
      if (static_cast<std::int32_t>(chunk.request->tokens.size()) == chunk.request->max_total_tokens) {
        scheduler.Remove(chunk.request, clock.Now());
        if (chunk.request->adapter != kBaseModel) residency.Release(chunk.request->adapter);
      }
    }
    scheduler.CheckIntegrity();
    residency.CheckIntegrity();
    device->CheckIntegrity();
    clock.Advance(500);
    return plan;
  }
  // Runs steps until no request is left.
  void RunToEnd(int max_steps = 10000) {
    while (!(scheduler.running().empty() && scheduler.waiting().empty())) {
      ASSERT_GT(max_steps--, 0) << "no end in sight";
      Step();
    }
  }
};

}  // namespace loramux
