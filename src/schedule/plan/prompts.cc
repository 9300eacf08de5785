#include "schedule/plan/prompts.h"

#include <algorithm>

namespace loramux {

void Prompts::Spread() {
  constexpr std::int64_t kSteps = 8;
  const std::int64_t unused = draft_.view.options.ridge_tokens - draft_.plan.num_tokens;
  if (unused <= 0 || unused >= draft_.budget || draft_.plan.num_tokens == 0) return;
  const std::optional<std::int64_t> tokens = BoundByMemory();
  if (tokens.has_value()) draft_.budget = std::min(draft_.budget, std::max(unused, *tokens / kSteps));
}

std::optional<std::int64_t> Prompts::BoundByMemory() const {
  std::int64_t tokens = 0;
  for (const Runner& runner : draft_.runners) {
    if (!runner.paused && runner.uncomputed > 1) tokens += runner.uncomputed;
  }
  if (draft_.memory_short) return tokens;
  std::int64_t pages = draft_.room.free_kv() + draft_.room.evictable(PageCategory::kKv, /*even_wanted=*/false) -
                       draft_.view.GrowthReserve();
  for (const Turn& turn : draft_.turns.all()) {
    const Request& request = *turn.request;
    if (draft_.IsArriving(request)) continue;
    pages -= draft_.view.PagesToStart(request) + draft_.PagesOfIdleAdapter(request);
    if (pages < 0) return tokens;
    tokens += request.uncomputed();
  }
  return std::nullopt;
}

void Prompts::Plan() {
  FindPrefills();
  open_ = !draft_.closed();
  AdmitOverdue();
  const std::vector<Turn>& turns = draft_.turns.all();
  const bool by_lanes = draft_.view.queues.order().has_quotas();
  auto turn = turns.begin();
  const auto end = by_lanes ? turn : turns.end();
  const auto admit_next = [&] {
    Request* const request = (turn++)->request;
    if (!draft_.turns.IsOverdue(*request)) Admit(request);
  };
  for (const Runner& prefill : prefills_) {
    while (open_ && turn != end && turn->standing.Before(prefill.standing)) admit_next();
    if (draft_.budget == 0) continue;
    const std::int64_t tokens = draft_.ChunkTokens(prefill.uncomputed);
    const Request& request = *prefill.request;
    draft_.AddChunk(prefill.request, tokens, draft_.view.MissingPages(request, request.computed + tokens));
  }
  while (open_ && turn != end) admit_next();
  if (open_ && by_lanes) lanes_.Admit();
}

void Prompts::FindPrefills() {
  prefills_.clear();
  for (const Runner& runner : draft_.runners) {
    if (!runner.paused && runner.uncomputed > 1) prefills_.push_back(runner);
  }
  std::sort(prefills_.begin(), prefills_.end(), [](const Runner& a, const Runner& b) {
    if (a.standing.Before(b.standing)) return true;
    return !b.standing.Before(a.standing) && a.rank.id < b.rank.id;
  });
}

void Prompts::Admit(Request* request) {
  open_ = admitter_.TryAdmit(request) != AdmissionOutcome::kBlocked;
  if (!open_) draft_.blocked = request;
}

void Prompts::AdmitOverdue() {
  for (Request* const overdue : draft_.turns.overdue()) {
    if (!open_) return;
    const std::size_t admissions = draft_.plan.admissions.size();
    Admit(overdue);
    if (draft_.plan.admissions.size() > admissions)
      draft_.LaneUse(*overdue) += static_cast<double>(ExtentOf(*overdue).total());
  }
}

}  // namespace loramux
