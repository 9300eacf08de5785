#include "schedule/baselines/output_reservation.h"

#include <algorithm>
#include <utility>

#include "schedule/plan/step_draft.h"

namespace loramux {

// While the k requests with the most tokens left run, the others have ended: the k-th ends when all k have generated
// its tokens.
std::int64_t PeakTokens(std::span<const ReservedTokens> requests) {
  std::int64_t peak = 0, held = 0, count = 0;
  for (const ReservedTokens& request : requests) {
    held += request.held;
    peak = std::max(peak, held + ++count * request.left);
  }
  return peak;
}

void OutputReservation::Begin(StepDraft&, Preemption&) { looked_ = false; }

void OutputReservation::Look(const PlanningView& view) {
  if (std::exchange(looked_, true)) return;
  requests_.clear();
  adapters_.clear();
  adapter_pages_ = prompt_tokens_ = 0;
  for (const Request* request : view.queues.running()) {
    requests_.push_back(TokensOf(view, *request));
    AddAdapter(view, *request);
  }
  std::sort(requests_.begin(), requests_.end(), ReservedTokens::LeavesLater);
}

// Tokens take whole pages: each request may leave a page but for one token unused. States count as tokens.
ReservedTokens OutputReservation::TokensOf(const PlanningView& view, const Request& request) {
  const auto tokens = static_cast<std::int64_t>(request.tokens.size());
  const std::int64_t states = view.options.state_pages * view.options.page_tokens;
  return {states + tokens + view.options.page_tokens - 1, std::max<std::int64_t>(0, request.max_total_tokens - tokens)};
}

void OutputReservation::AddAdapter(const PlanningView& view, const Request& request) {
  if (request.adapter == kBaseModel) return;
  const std::uint32_t adapter = request.adapter.value;
  if (std::find(adapters_.begin(), adapters_.end(), adapter) != adapters_.end()) return;
  adapters_.push_back(adapter);
  adapter_pages_ += view.residency.Get(request.adapter).version->layout.pages;
}

bool OutputReservation::Reserve(const StepDraft& draft, const Request& request) {
  const PlanningView& view = draft.view;
  Look(view);
  const bool first = requests_.empty();
  const std::int64_t prompts = prompt_tokens_ + request.uncomputed(), limit = view.options.whole_prompt_tokens;
  if (limit > 0 && prompt_tokens_ > 0 && prompts > limit) return false;
  const std::size_t adapters = adapters_.size();
  const std::int64_t adapter_pages = adapter_pages_;
  AddAdapter(view, request);
  const ReservedTokens tokens = TokensOf(view, request);
  const auto place = std::upper_bound(requests_.begin(), requests_.end(), tokens, ReservedTokens::LeavesLater);
  const auto added = requests_.insert(place, tokens);
  const std::int64_t capacity = (view.device.capacity_pages() - adapter_pages_) * view.options.page_tokens;
  if (first || PeakTokens(requests_) <= capacity) {
    prompt_tokens_ = prompts;
    return true;
  }
  requests_.erase(added);
  adapters_.resize(adapters);
  adapter_pages_ = adapter_pages;
  return false;
}

}  // namespace loramux
