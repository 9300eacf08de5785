// Recorded prompts against the dependency tree alone: what share of their tokens is found, by policy and size of the
// device. One request at a time, in the order of the trace, at its times; each comes and goes at once.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "tools/bench/trace.h"

namespace loramux {

struct RecordedPrompt {
  TimeNs at = 0;
  std::int64_t tokens = 0;
  // content ids of its full pages, the last token's page left out: that one is computed anyway
  std::vector<TokenId> pages;
};

struct RecordedPrompts {
  std::vector<RecordedPrompt> prompts;
  std::int64_t page_tokens = 0;        // of the trace's own tokens
  std::int64_t pages = 0, tokens = 0;  // of all prompts
  std::int64_t distinct_pages = 0;
  std::int64_t most_pages = 0;  // of one prompt
};

// Each block of the trace becomes that many pages. Errors: the trace has no block ids, or they do not fit.
Result<RecordedPrompts> PromptsOf(const load::Trace& trace, std::int64_t pages_per_block);

struct ReplayResult {
  std::int64_t found_tokens = 0;
  std::int64_t found_pages = 0, evicted_pages = 0;
};

// Through DependencyTree and KvEvictionPlan, as the scheduler uses them. Error: an unknown policy. Calls `progress`
// after each prompt. REQUIRES: capacity_pages >= most_pages.
Result<ReplayResult> Replay(const RecordedPrompts& recorded, const std::string& policy, std::int64_t capacity_pages,
                            const std::function<void()>& progress);

// The most that any policy could find that keeps the pages of each prompt until it ends: always evicts what is needed
// again last (Belady 1966), and of those the deepest. REQUIRES: as above.
ReplayResult ReplayKnowingTheFuture(const RecordedPrompts& recorded, std::int64_t capacity_pages);

}  // namespace loramux
