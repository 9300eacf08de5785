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
    news_ = news_.value_or(list_.size() - 1);
    list_.back().text += text;
    return;
  }
  news_ = news_.value_or(list_.size());
  list_.push_back({.kind = kind, .call = call, .text = std::string(text)});
}

void OutputEvents::Break(std::int32_t call, std::string_view text, std::size_t sent) {
  bytes_ += text.size();
  news_ = news_.value_or(list_.size());
  list_.push_back({.kind = OutputEvent::Kind::kCallBroken, .call = call, .text = std::string(text), .sent = sent});
}

bool OutputEvents::Attribute(std::size_t tokens) {
  if (!news_ || *news_ >= list_.size()) return false;
  const auto content = std::find_if(list_.begin() + static_cast<std::ptrdiff_t>(*news_), list_.end(),
                                    [](const OutputEvent& event) { return event.kind == OutputEvent::Kind::kContent; });
  (content == list_.end() ? list_.back() : *content).tokens += tokens;
  news_.reset();
  return true;
}

void OutputEvents::CutAfterCall() {
  const auto end = std::ranges::find(list_, OutputEvent::Kind::kCallEnd, &OutputEvent::kind);
  if (end != list_.end()) list_.erase(end + 1, list_.end());
}

std::vector<OutputEvent> OutputEvents::Take() {
  bytes_ = 0;
  news_.reset();
  return std::exchange(list_, {});
}

}  // namespace loramux
