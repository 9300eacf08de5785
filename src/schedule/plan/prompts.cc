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
  const bool by_rule = draft_.rules.AdmitsWaiting();
  Merge(/*with_waiting=*/!by_rule);
  const std::size_t on_time = by_rule ? prompts_.size() : ArrangeByObjective();
  for (std::size_t i = on_time; i < prompts_.size(); ++i) {
    const Candidate& late = candidates_[prompts_[i].at];
    if (!late.runs) draft_.plan.deferred.push_back(late.request);
  }
  for (const AwaitedToken& prompt : prompts_) {
    const Candidate& candidate = candidates_[prompt.at];
    if (candidate.runs)
      Continue(candidate);
    else if (open_)
      Admit(candidate.request);
  }
  if (open_) draft_.rules.AdmitWaiting(admitter_);
}

void Prompts::Merge(bool with_waiting) {
  candidates_.clear();
  prompts_.clear();
  const auto add = [this](Request* request, const Standing& standing, std::int64_t uncomputed) {
    prompts_.push_back({.standing = standing, .at = candidates_.size()});
    candidates_.push_back({.request = request, .uncomputed = uncomputed, .runs = uncomputed > 0});
  };
  const auto add_waiting = [&](const Turn& turn) {
    if (!draft_.turns.IsOverdue(*turn.request)) add(turn.request, turn.standing, 0);
  };
  const std::vector<Turn>& turns = draft_.turns.all();
  auto turn = with_waiting ? turns.begin() : turns.end();
  for (const Runner& prefill : prefills_) {
    for (; turn != turns.end() && turn->standing.Before(prefill.standing); ++turn) add_waiting(*turn);
    add(prefill.request, prefill.standing, prefill.uncomputed);
  }
  for (; turn != turns.end(); ++turn) add_waiting(*turn);
}

// Where requests were preempted, the order of service has said for whom. It stays, so that the room goes to that one.
// Beyond the age bound no prompt is passed over. That a tenant is overdue would not suffice: its turns may all go to
// younger requests, and a begun prompt would get a chunk in each.
std::size_t Prompts::ArrangeByObjective() {
  const SystemSpec& options = draft_.view.options;
  const TimeNs objective = draft_.view.queues.order().objective(), now = draft_.room.now();
  const bool applies =
      options.prompts_by_objective && objective > 0 && draft_.budget > 0 && draft_.plan.preemptions.empty();
  if (!applies || prompts_.size() <= 1) return prompts_.size();
  const std::optional<double> per_token = draft_.view.prompt_pace.SecondsPerToken(draft_.budget);
  if (!per_token.has_value()) return prompts_.size();
  const bool one_tenant = draft_.view.queues.tenants().active_tenants() <= 1;
  for (AwaitedToken& prompt : prompts_) {
    const Candidate& candidate = candidates_[prompt.at];
    const Request& request = *candidate.request;
    const bool whole = !candidate.runs && request.work_tokens >= 0;
    const TimeNs latest = request.deadline > 0 ? request.deadline : request.arrival + objective;
    const bool too_old = now - request.arrival > options.age_bound;
    prompt.urgency = UrgencyOf(request);
    prompt.tokens = static_cast<double>(whole ? request.work_tokens : request.uncomputed());
    prompt.seconds_left = static_cast<double>(latest - now) / kNsPerSecond;
    prompt.may_be_late = request.generated().empty() && !too_old;
    prompt.given_up = request.late;
  }
  return first_tokens_.Arrange({.seconds_per_token = *per_token,
                                .objective = static_cast<double>(objective) / kNsPerSecond,
                                .fair = !one_tenant},
                               prompts_);
}

void Prompts::Continue(const Candidate& prefill) {
  if (draft_.budget == 0) return;
  const std::int64_t tokens = draft_.ChunkTokens(*prefill.request, prefill.uncomputed);
  const std::int64_t positions = prefill.request->computed + tokens;
  draft_.AddChunk(prefill.request, prefill.uncomputed, tokens, draft_.view.MissingPages(*prefill.request, positions));
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
    if (draft_.plan.admissions.size() > admissions) draft_.rules.AdmitsOverdue(*overdue);
  }
}

}  // namespace loramux
