// What planning reads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "memory/page_pool.h"
#include "prefix/dependency_tree.h"
#include "residency/adapter_residency.h"
#include "residency/kv_tiers.h"
#include "schedule/plan/arrival.h"
#include "schedule/plan/prompt_pace.h"
#include "schedule/predict/adapter_worth.h"
#include "schedule/predict/expected_adapters.h"
#include "schedule/queue/request_queues.h"
#include "schedule/request_pages.h"
#include "schedule/system_spec.h"

namespace loramux {

// Everything that a plan is a function of, besides the time. Planning changes none of it, except that a request notes
// where it was last found in the tree (Request::found). All that is referred to outlives the view.
struct PlanningView {
  const SystemSpec& options;
  const PagePool& device;
  const ResidencyManager& residency;
  const DependencyTree& tree;
  const KvTiers& tiers;
  const RequestQueues& queues;
  const RequestPages& pages;
  const AdapterWorth& worth;
  const ExpectedAdapters& expected;
  const StepFloor& step_floor;
  const PromptPace& prompt_pace;
  const double& discardable;   // computed tokens that preemptions for waiting requests may discard
  std::int64_t adapter_pages;  // pages of the device for adapters; 0: one pool for all

  // True if adapters have a share of the device.
  bool partitioned() const { return adapter_pages > 0; }
  // Pages that hold so many positions of the request, and its states, beyond those that it has. Avoids the division in
  // the usual case that none is missing.
  std::int64_t MissingPages(const Request& request, std::int64_t positions) const {
    const std::int64_t states = options.state_pages > 0 && request.states.empty() ? options.state_pages : 0;
    const std::int64_t missing = Beyond(request, positions, 0);
    return missing == 0 ? states : states + (missing + options.page_tokens - 1) / options.page_tokens;
  }
  // How many of so many positions the request has no page for, with `more` pages beside its own.
  std::int64_t Beyond(const Request& request, std::int64_t positions, std::int64_t more) const {
    const std::int64_t has = static_cast<std::int64_t>(request.pages.size()) + more;
    return std::max<std::int64_t>(0, positions - has * options.page_tokens);
  }
  // The first position after `from` at which the request's states become a snapshot, after full pages: after each
  // SnapshotInterval, before the last token of the prompt, where it parts from what the tree has, and, so that the
  // end of the answer is not far from one, in the answer after each SnapshotInterval::least. Each saves that many
  // tokens. kAllTokens: there is none.
  std::int64_t NextSnapshot(const Request& request, std::int64_t from) const {
    const SnapshotInterval& interval = pages.snapshot_interval();
    if (tree.state_pages() == 0 || interval.tokens() == 0) return Request::kAllTokens;
    const auto multiple = [](std::int64_t of, std::int64_t least) { return (least + of - 1) / of * of; };
    const std::int64_t last = request.state == RequestState::kRunning ? request.snapshot_at : from;
    const std::int64_t first = std::max(from + 1, last + interval.least()), size = options.page_tokens;
    std::int64_t next = std::min(multiple(interval.tokens(), first),
                                 multiple(interval.least(), std::max<std::int64_t>(first, request.prompt_tokens)));
    for (const std::int64_t at : {(request.prompt_tokens - 1) / size * size, std::int64_t{request.branches_at}}) {
      if (at >= first) next = std::min(next, at);
    }
    return next <= request.treelike_tokens() ? next : Request::kAllTokens;
  }
  // Pages that a waiting request lacks for all known tokens and for the next one, if there will be a next one: one that
  // fills its last page with its prompt alone needs no more.
  std::int64_t PagesToCompute(const Request& request) const {
    return MissingPages(request, std::min<std::int64_t>(static_cast<std::int64_t>(request.tokens.size()) + 1,
                                                        request.max_total_tokens));
  }
  // True if its adapter is absent from the device and not loading.
  bool MustLoad(const Request& request) const {
    return request.adapter != kBaseModel && residency.Get(request.adapter).device == TierState::kAbsent;
  }
  // Pages that a request needs next. Without its adapter: the pages of the adapter. Otherwise: pages for all known
  // tokens and for the next one, at once, so that a request that began its prefill can finish it.
  std::int64_t PagesToStart(const Request& request) const {
    if (MustLoad(request)) return residency.Get(request.adapter).pages;
    return PagesToCompute(request);
  }
  // Pages that admissions and loads leave free: one for each running request, so that the next decoding step does not
  // have to preempt right away. 0 if no request runs, so that a request that fits alone is admitted.
  std::int64_t GrowthReserve() const { return static_cast<std::int64_t>(queues.running().size()); }
  // Pages that are kept free beside the computation: room for new requests, and for the pages that those must leave
  // free.
  std::int64_t NewcomersReserve() const {
    constexpr std::int64_t kNewcomers = 64;  // pages
    return std::min(GrowthReserve() + kNewcomers, device.capacity_pages() / 32);
  }
};

}  // namespace loramux
