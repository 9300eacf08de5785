#include "lab/bench/prefix_replay.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>
#include <unordered_map>

#include "base/check.h"
#include "prefix/dependency_tree.h"
#include "residency/kv_eviction_plan.h"

namespace loramux {

Result<RecordedPrompts> PromptsOf(const Trace& trace, std::int64_t pages_per_block) {
  if (trace.block_tokens <= 0) return InvalidArgument("expected a trace with prefix hashes, found one without");
  if (pages_per_block < 1 || trace.block_tokens % pages_per_block != 0) {
    return InvalidArgument("--pages-per-block: expected a divisor of the trace's " +
                           std::to_string(trace.block_tokens) + " tokens per block, found " +
                           std::to_string(pages_per_block));
  }
  RecordedPrompts recorded{.page_tokens = trace.block_tokens / pages_per_block};
  const std::int64_t most_blocks = std::numeric_limits<TokenId>::max() / pages_per_block;
  std::unordered_map<TokenId, bool> seen;
  for (const Arrival& arrival : trace.arrivals) {
    RecordedPrompt prompt{.at = arrival.at, .tokens = arrival.input_tokens};
    const std::int64_t in_blocks = static_cast<std::int64_t>(arrival.blocks.size()) * pages_per_block;
    const std::int64_t pages = std::min((arrival.input_tokens - 1) / recorded.page_tokens, in_blocks);
    for (std::int64_t i = 0; i < pages; ++i) {
      const std::int64_t block = arrival.blocks[static_cast<std::size_t>(i / pages_per_block)];
      if (block < 0 || block >= most_blocks)
        return InvalidArgument("block id " + std::to_string(block) + " is too large");
      prompt.pages.push_back(static_cast<TokenId>(block * pages_per_block + i % pages_per_block));
      seen[prompt.pages.back()] = true;
    }
    recorded.pages += pages;
    recorded.tokens += prompt.tokens;
    recorded.most_pages = std::max(recorded.most_pages, pages);
    recorded.prompts.push_back(std::move(prompt));
  }
  recorded.distinct_pages = static_cast<std::int64_t>(seen.size());
  return recorded;
}

// The context that policies get of all candidates (AdapterWorth::Refresh), with prompts but without adapters.
class PromptContext {
 public:
  EvictionContext At(TimeNs now, const KvEvictionPlan& plan) {
    visits_ = visits_ * std::exp2(-static_cast<double>(now - at_) / static_cast<double>(kFrequencyHalfLife)) + 1;
    at_ = now;
    return {.now = now, .total_visits = visits_, .oldest_use = plan.oldest_use().value_or(now), .made_at = now};
  }

 private:
  double visits_ = 0;  // decaying, as of at_
  TimeNs at_ = 0;
};

// A page of the tree holds a single token here: the id of the page's content.
Result<ReplayResult> Replay(const RecordedPrompts& recorded, const std::string& policy_name,
                            std::int64_t capacity_pages, const std::function<void()>& progress) {
  CHECK_GE(capacity_pages, recorded.most_pages);
  ASSIGN_OR_RETURN(const std::unique_ptr<EvictionPolicy> policy, MakeEvictionPolicy(policy_name));
  ASSIGN_OR_RETURN(const std::unique_ptr<PagePool> device, PagePool::Create("device", capacity_pages * 64, 64));
  DependencyTree tree(1, device.get());
  KvEvictionPlan plan(tree, *policy);
  const BranchId base = tree.Hold("");
  ReplayResult result;
  PromptContext context;
  std::vector<NodeId> victims;
  std::vector<PageHandle> pages;
  for (const RecordedPrompt& prompt : recorded.prompts) {
    plan.set_context(context.At(prompt.at, plan));
    plan.Refresh(prompt.at);
    plan.Reset(prompt.at);
    const auto total = static_cast<std::int64_t>(prompt.pages.size());
    NodeId tail = tree.index().Match(tree.branches().Top(base), prompt.pages, total);
    const std::int64_t found = tree.nodes().Depth(tail);
    plan.Use(tail);
    victims.clear();
    while (device->free_pages() + static_cast<std::int64_t>(victims.size()) < total - found) {
      const auto victim = plan.Next(prompt.at);
      CHECK(victim.has_value());
      plan.Evict(*victim, prompt.at);
      victims.push_back(victim->node);
    }
    for (const NodeId victim : victims) tree.Evict(victim);
    tree.Use(tail, prompt.at);
    pages.resize(static_cast<std::size_t>(total - found));
    CHECK(device->Allocate(PageCategory::kKv, pages));
    for (std::int64_t i = found; i < total; ++i) {
      const auto token = std::span(prompt.pages).subspan(static_cast<std::size_t>(i), 1);
      tail = tree.Insert(tail, token, pages[static_cast<std::size_t>(i - found)], prompt.at).node;
    }
    tree.EndUse(tail, prompt.at);
    result.found_pages += found;
    result.evicted_pages += static_cast<std::int64_t>(victims.size());
    progress();
  }
  tree.CheckIntegrity();
  result.found_tokens = result.found_pages * recorded.page_tokens;
  return result;
}

// The next user of each page, by prompt and page; a number past the last prompt: none.
std::vector<std::vector<std::size_t>> NextUses(const RecordedPrompts& recorded) {
  std::vector<std::vector<std::size_t>> next(recorded.prompts.size());
  std::unordered_map<TokenId, std::size_t> user;
  for (std::size_t i = recorded.prompts.size(); i-- > 0;) {
    for (const TokenId page : recorded.prompts[i].pages) {
      const auto [at, first] = user.try_emplace(page, recorded.prompts.size());
      next[i].push_back(at->second);
      at->second = i;
    }
  }
  return next;
}

// A page's next use is no later than that of the pages below it, so whole paths stay without further care.
ReplayResult ReplayKnowingTheFuture(const RecordedPrompts& recorded, std::int64_t capacity_pages) {
  CHECK_GE(capacity_pages, recorded.most_pages);
  using Entry = std::tuple<std::size_t, std::size_t, TokenId>;  // next use, depth, page
  std::set<Entry> idle;
  std::unordered_map<TokenId, Entry> entry_of;
  const std::vector<std::vector<std::size_t>> next_uses = NextUses(recorded);
  ReplayResult result;
  for (std::size_t i = 0; i < recorded.prompts.size(); ++i) {
    const std::vector<TokenId>& pages = recorded.prompts[i].pages;
    std::size_t found = 0;
    for (; found < pages.size(); ++found) {
      const auto at = entry_of.find(pages[found]);
      if (at == entry_of.end()) break;
      idle.erase(at->second);
    }
    while (static_cast<std::int64_t>(idle.size() + pages.size()) > capacity_pages) {
      const auto last = std::prev(idle.end());
      entry_of.erase(std::get<TokenId>(*last));
      idle.erase(last);
      ++result.evicted_pages;
    }
    for (std::size_t depth = 0; depth < pages.size(); ++depth) {
      const Entry entry{next_uses[i][depth], depth, pages[depth]};
      idle.insert(entry);
      entry_of[pages[depth]] = entry;
    }
    result.found_pages += static_cast<std::int64_t>(found);
  }
  result.found_tokens = result.found_pages * recorded.page_tokens;
  return result;
}

}  // namespace loramux
