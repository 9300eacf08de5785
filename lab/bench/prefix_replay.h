// Recorded prompts against the dependency tree alone: which share of their tokens is found, by policy and device size.
// One request at a time, in the trace's order and at its times; each ends at once.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "workload/trace.h"

namespace loramux {

// One prompt of the trace.
struct RecordedPrompt {
  TimeNs at = 0;
  std::int64_t tokens = 0;
  // content ids of its full pages, without the last token's page, which is always computed
  std::vector<TokenId> pages;
};

// All prompts of a trace.
struct RecordedPrompts {
  std::vector<RecordedPrompt> prompts;
  std::int64_t page_tokens = 0;        // in the trace's own tokens
  std::int64_t pages = 0, tokens = 0;  // sums over all prompts
  std::int64_t distinct_pages = 0;
  std::int64_t most_pages = 0;  // pages of the longest prompt
};

// Divides each block of the trace into `pages_per_block` pages. Errors: the trace has no block ids, or they do not fit.
Result<RecordedPrompts> PromptsOf(const Trace& trace, std::int64_t pages_per_block);

// What a replay found, over all prompts.
struct ReplayResult {
  std::int64_t found_tokens = 0;
  std::int64_t found_pages = 0, evicted_pages = 0;
};

// Replays through DependencyTree and KvEvictionPlan, as the scheduler uses them. Calls `progress` after each prompt.
// Error: an unknown policy. REQUIRES: capacity_pages >= most_pages.
Result<ReplayResult> Replay(const RecordedPrompts& recorded, const std::string& policy, std::int64_t capacity_pages,
                            const std::function<void()>& progress);

// The most that any policy could find that keeps the pages of each prompt until its end. Always evicts the page with
// the latest next use (Belady 1966), and of those the deepest. REQUIRES: as above.
ReplayResult ReplayKnowingTheFuture(const RecordedPrompts& recorded, std::int64_t capacity_pages);

}  // namespace loramux
