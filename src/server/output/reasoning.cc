#include "server/output/reasoning.h"

#include <utility>

#include "server/output/json_scanner.h"

namespace loramux {

ReasoningParser::ReasoningParser(Start start, std::unique_ptr<OutputParser> answer, ReasoningTags tags)
    : tags_(tags), start_(start), answer_(std::move(answer)) {}

void ReasoningParser::Push(std::string_view text, OutputEvents& events) {
  while (!text.empty() && state_ != State::kAnswer) {
    const char c = text.front();
    text.remove_prefix(1);
    if (state_ == State::kStart) {
      StepStart(c, events);
    } else if (state_ == State::kReasoning) {
      StepReasoning(c, events);
    } else if (c != '\n') {
      state_ = State::kAnswer;
      answer_->Push({&c, 1}, events);
    }
  }
  if (!text.empty()) answer_->Push(text, events);
}

void ReasoningParser::StepStart(char c, OutputEvents& events) {
  held_ += c;
  const std::size_t tag = held_.find_first_not_of(" \t\r\n");
  const std::string_view begun = tag == std::string::npos ? std::string_view() : std::string_view(held_).substr(tag);
  if (tags_.open.starts_with(begun) && begun.size() < tags_.open.size()) return;
  std::string held = std::exchange(held_, {});
  if (begun.size() == tags_.open.size() && held.ends_with(tags_.open)) {
    state_ = State::kReasoning;
    return;
  }
  state_ = start_ == Start::kInside ? State::kReasoning : State::kAnswer;
  Push(held, events);
}

void ReasoningParser::StepReasoning(char c, OutputEvents& events) {
  held_ += c;
  while (!held_.empty() && !tags_.close.starts_with(held_)) {
    const char first = held_.front();
    held_.erase(0, 1);
    if (first == '\n') {
      if (any_) space_ += first;
      continue;
    }
    any_ = true;
    events.Add(OutputEvent::Kind::kReasoning, std::exchange(space_, {}) + first);
  }
  if (held_ != tags_.close) return;
  held_.clear();
  state_ = State::kGap;
}

void ReasoningParser::Finish(OutputEvents& events, bool cut) {
  if (state_ == State::kStart && start_ == Start::kPerhaps) answer_->Push(held_, events);
  if (reasons()) events.Add(OutputEvent::Kind::kReasoning, space_ + held_);
  answer_->Finish(events, cut);
}

}  // namespace loramux
