#include "schedule/baselines/output_reservation.h"

#include <algorithm>

#include "schedule/plan/step_draft.h"

namespace loramux {

// While the k requests with the most tokens left run, the others have ended: the k-th ends when all k have generated
// its tokens.
std::int64_t PeakTokens(std::span<ReservedTokens> requests) {
  std::sort(requests.begin(), requests.end(),
            [](const ReservedTokens& a, const ReservedTokens& b) { return a.left > b.left; });
  std::int64_t peak = 0, held = 0, count = 0;
  for (const ReservedTokens& request : requests) {
    held += request.held;
    peak = std::max(peak, held + ++count * request.left);
  }
  return peak;
}

void OutputReservation::Begin(StepDraft& draft, Preemption&) {
  requests_.clear();
  adapters_.clear();
  adapter_pages_ = prompt_tokens_ = 0;
  for (const Request* request : draft.view.queues.running()) Add(draft.view, *request);
}

// Tokens take whole pages: each request may leave a page but for one token unused. States count as tokens.
void OutputReservation::Add(const PlanningView& view, const Request& request) {
  const auto tokens = static_cast<std::int64_t>(request.tokens.size());
  const std::int64_t states = view.options.state_pages * view.options.page_tokens;
  requests_.push_back(
      {states + tokens + view.options.page_tokens - 1, std::max<std::int64_t>(0, request.max_total_tokens - tokens)});
  if (request.adapter == kBaseModel) return;
  const std::uint32_t adapter = request.adapter.value;
  if (std::find(adapters_.begin(), adapters_.end(), adapter) != adapters_.end()) return;
  adapters_.push_back(adapter);
  adapter_pages_ += view.residency.Get(request.adapter).version->layout.pages;
}

bool OutputReservation::Reserve(const StepDraft& draft, const Request& request) {
  const PlanningView& view = draft.view;
  const bool first = requests_.empty();
  const std::int64_t prompts = prompt_tokens_ + request.uncomputed(), limit = view.options.whole_prompt_tokens;
  if (limit > 0 && prompt_tokens_ > 0 && prompts > limit) return false;
  const std::size_t adapters = adapters_.size();
  const std::int64_t adapter_pages = adapter_pages_;
  Add(view, request);
  tried_ = requests_;
  const std::int64_t capacity = (view.device.capacity_pages() - adapter_pages_) * view.options.page_tokens;
  if (first || PeakTokens(tried_) <= capacity) {
    prompt_tokens_ = prompts;
    return true;
  }
  requests_.pop_back();
  adapters_.resize(adapters);
  adapter_pages_ = adapter_pages;
  return false;
}

}  // namespace loramux
