#include "schedule/plan/first_tokens.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace loramux {
namespace {

constexpr double kToSpare = 0.5;  // share of the objective; see 1. in the header
constexpr double kMargin = 0.05;  // share of the objective that is kept for the step under way

bool AllFit(const std::vector<AwaitedToken>& prompts, const FirstTokens::Pace& pace, double spare) {
  double seconds = spare * pace.objective;
  for (const AwaitedToken& prompt : prompts) {
    seconds += prompt.tokens * pace.seconds_per_token;
    if (prompt.may_be_late && !prompt.given_up && seconds > prompt.seconds_left) return false;
  }
  return true;
}

void SortByUrgency(std::vector<AwaitedToken>& prompts) {
  std::sort(prompts.begin(), prompts.end(), [](const AwaitedToken& a, const AwaitedToken& b) {
    if (a.standing.overdue != b.standing.overdue) return a.standing.overdue;
    return a.urgency < b.urgency;
  });
}

void SortByQuantum(std::vector<AwaitedToken>& prompts, const FirstTokens::Pace& pace) {
  const double quantum = pace.objective / pace.seconds_per_token;
  double least = std::numeric_limits<double>::infinity();  // least service of the tenants whose service counts
  for (const AwaitedToken& prompt : prompts) {
    if (!prompt.standing.overdue) least = std::min(least, prompt.standing.service);
  }
  for (AwaitedToken& prompt : prompts) {
    if (!prompt.standing.overdue)
      prompt.quantum = static_cast<std::int64_t>((prompt.standing.service - least) / quantum);
  }
  std::sort(prompts.begin(), prompts.end(), [](const AwaitedToken& a, const AwaitedToken& b) {
    if (a.standing.overdue != b.standing.overdue) return a.standing.overdue;
    if (a.quantum != b.quantum) return a.quantum < b.quantum;
    return a.urgency < b.urgency;
  });
}

}  // namespace

// Both groups keep their order.
std::size_t FirstTokens::PutLateLast(std::vector<AwaitedToken>& prompts) {
  late_.clear();
  std::size_t on_time = 0;
  for (const AwaitedToken& prompt : prompts) {
    if (prompt.late)
      late_.push_back(prompt);
    else
      prompts[on_time++] = prompt;
  }
  std::copy(late_.begin(), late_.end(), prompts.begin() + static_cast<std::ptrdiff_t>(on_time));
  return on_time;
}

std::size_t FirstTokens::Arrange(const Pace& pace, std::vector<AwaitedToken>& prompts) {
  for (AwaitedToken& prompt : prompts) {
    prompt.late = false;
    prompt.quantum = 0;
    prompt.may_be_late = prompt.may_be_late && !prompt.standing.overdue;
  }
  if (prompts.empty() || pace.seconds_per_token <= 0 || AllFit(prompts, pace, kToSpare)) return prompts.size();
  SortByUrgency(prompts);
  if (AllFit(prompts, pace, kMargin)) return prompts.size();
  if (pace.fair) SortByQuantum(prompts, pace);
  MarkLate(pace, prompts);
  return PutLateLast(prompts);
}

// The largest prompt so far gives way to this one only if that suffices. It always does in the order of due times, if
// all prompts may be late. Otherwise it may not: then only this one is late, because the others fit without it.
void FirstTokens::MarkLate(const Pace& pace, std::vector<AwaitedToken>& prompts) {
  const auto smaller = [&prompts](std::size_t a, std::size_t b) {
    return std::pair(prompts[a].tokens, a) < std::pair(prompts[b].tokens, b);
  };
  largest_.clear();
  double seconds = kMargin * pace.objective;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    AwaitedToken& prompt = prompts[i];
    if (i > 0 && prompt.quantum != prompts[i - 1].quantum) largest_.clear();  // those tenants got less
    const double own = prompt.tokens * pace.seconds_per_token;
    prompt.late = prompt.may_be_late && (prompt.given_up || own + kMargin * pace.objective > prompt.seconds_left);
    if (prompt.late) continue;  // even as the only one
    seconds += own;
    if (!prompt.may_be_late) continue;
    if (seconds > prompt.seconds_left) {
      const bool any = !largest_.empty() && smaller(i, largest_.front());
      const double most = any ? prompts[largest_.front()].tokens * pace.seconds_per_token : 0;
      if (!any || seconds - most > prompt.seconds_left) {
        prompt.late = true;
        seconds -= own;
        continue;
      }
      prompts[largest_.front()].late = true;
      seconds -= most;
      std::pop_heap(largest_.begin(), largest_.end(), smaller);
      largest_.pop_back();
    }
    largest_.push_back(i);
    std::push_heap(largest_.begin(), largest_.end(), smaller);
  }
}

}  // namespace loramux
