#include "server/output/call_parser.h"

#include <algorithm>
#include <utility>

#include "server/output/json_scanner.h"

namespace loramux {

void CallWriter::Start(std::string_view function) {
  events_->Add(OutputEvent::Kind::kCallStart, function, started_);
  open_ = true;
  sent_ = text_.size();
}

void CallWriter::Arguments(std::string_view piece, std::size_t held) {
  events_->Add(OutputEvent::Kind::kArguments, piece, started_);
  sent_ = text_.size() - std::min(held, text_.size());
}

void CallWriter::End() {
  events_->Add(OutputEvent::Kind::kCallEnd, {}, started_);
  open_ = false;
  ++started_;
  ++ended_;
  text_.clear();
}

std::string CallWriter::Break(std::size_t unread) {
  const std::size_t kept = text_.size() - std::min(unread, text_.size());
  std::string rest = text_.substr(kept);
  text_.resize(kept);
  if (open_) {
    events_->Break(started_++, text_, std::min(sent_, kept));
  } else {
    events_->Add(OutputEvent::Kind::kContent, text_);
  }
  open_ = false;
  text_.clear();
  return rest;
}

void CallParser::Push(std::string_view text, OutputEvents& events) {
  events_ = &events;
  calls_.Bind(events);
  for (const char c : text) Step(c);
}

void CallParser::Finish(OutputEvents& events, bool cut) {
  events_ = &events;
  calls_.Bind(events);
  if (body_ != nullptr && !body_->Finish(calls_, cut)) calls_.Break(0);
  body_.reset();
  if (!held_.empty()) Content(std::exchange(held_, {}));
  if (!fresh_ || calls_.ended() == 0) events.Add(OutputEvent::Kind::kContent, gap_);
  gap_.clear();
}

void CallParser::Step(char c) {
  if (body_ != nullptr) return StepBody(c);
  StepText(c);
}

void CallParser::StepBody(char c) {
  calls_.Read({&c, 1});
  const CallBody::State state = body_->Step(c, calls_);
  if (state == CallBody::State::kMore) return;
  fresh_ = state == CallBody::State::kDone;
  const std::string again = fresh_ ? std::string(body_->ahead()) : calls_.Break(body_->unread());
  body_.reset();
  calls_.Accept();
  for (const char next : again) Step(next);
}

void CallParser::StepText(char c) {
  if (fresh_ && held_.empty()) {
    if (IsGap(c)) {
      gap_ += c;
      return;
    }
    if (grammar_->bare != nullptr && c == grammar_->bare_first) {
      Open(grammar_->bare);
      return StepBody(c);
    }
  }
  held_ += c;
  ScanHeld();
}

bool CallParser::IsGap(char c) const {
  if (IsJsonSpace(c)) return true;
  return calls_.ended() > 0 && grammar_->separators.find(c) != std::string_view::npos;
}

// Gives back what cannot become a marker any more.
void CallParser::ScanHeld() {
  while (!held_.empty()) {
    const auto candidate = std::ranges::find_if(
        grammar_->markers, [this](const CallMarker& marker) { return marker.text.starts_with(held_); });
    if (candidate != grammar_->markers.end()) {
      if (candidate->text.size() == held_.size()) Meet(*candidate);
      return;
    }
    Content(held_.substr(0, 1));
    held_.erase(0, 1);
  }
}

void CallParser::Meet(const CallMarker& marker) {
  held_.clear();
  if (marker.open != nullptr) {
    Open(marker.open);
    return calls_.Read(marker.text);
  }
  if (!fresh_ || calls_.ended() == 0) return Content(marker.text);
  gap_.clear();
}

void CallParser::Open(OpenBody open) {
  calls_.Read(std::exchange(gap_, {}));
  body_ = open(tools_);
}

void CallParser::Content(std::string_view text) {
  for (const char c : text) {
    if (IsJsonSpace(c)) {
      gap_ += c;
      continue;
    }
    events_->Add(OutputEvent::Kind::kContent, std::exchange(gap_, {}) + c);
    fresh_ = false;
  }
}

}  // namespace loramux
