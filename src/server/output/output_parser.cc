#include "server/output/output_parser.h"

#include <algorithm>
#include <utility>

namespace loramux {

void OutputEvents::Add(OutputEvent::Kind kind, std::string_view text, std::int32_t call) {
  const bool piece = kind == OutputEvent::Kind::kContent || kind == OutputEvent::Kind::kReasoning ||
                     kind == OutputEvent::Kind::kArguments;
  if (piece && text.empty()) return;
  bytes_ += text.size();
  if (kind == OutputEvent::Kind::kCallEnd) ++ended_calls_;
  if (piece && !list_.empty() && list_.back().kind == kind && list_.back().call == call) {
    list_.back().text += text;
    return;
  }
  list_.push_back({kind, call, std::string(text), 0, {}});
}

void OutputEvents::Break(std::int32_t call, std::string_view text, std::size_t sent) {
  bytes_ += text.size();
  list_.push_back({OutputEvent::Kind::kCallBroken, call, std::string(text), sent, {}});
}

void OutputEvents::CutAfterCall() {
  const auto end = std::ranges::find(list_, OutputEvent::Kind::kCallEnd, &OutputEvent::kind);
  if (end != list_.end()) list_.erase(end + 1, list_.end());
}

std::vector<OutputEvent> OutputEvents::Take() {
  bytes_ = 0;
  return std::exchange(list_, {});
}

}  // namespace loramux
