#include "server/output/channels.h"

#include <algorithm>
#include <array>
#include <utility>

#include "http/json_reader.h"
#include "server/output/call_parser.h"

namespace loramux {
namespace {

constexpr std::string_view kChannelTag = "<|channel|>", kStartTag = "<|start|>", kMessageTag = "<|message|>",
                           kRecipient = "to=functions.";
constexpr std::array<std::string_view, 5> kEnds = {"<|end|>", "<|return|>", "<|call|>", kStartTag, kChannelTag};
constexpr std::size_t kMaxHeaderBytes = 512;
constexpr std::size_t kMaxArgumentBytes = std::size_t{1} << 20;

// What a header begins with. <|start|>assistant may stand in the prompt, so a recipient may be first.
constexpr std::array<std::string_view, 4> kOpenings = {kChannelTag, kStartTag, " to=functions.", kRecipient};

bool BeginsHeader(std::string_view text) {
  return std::ranges::any_of(kOpenings, [text](std::string_view opening) { return text.starts_with(opening); });
}

// The word that follows `before` in the header; empty: there is none.
std::string WordAfter(std::string_view header, std::string_view before) {
  const std::size_t at = header.rfind(before);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = header.substr(at + before.size());
  return std::string(rest.substr(0, rest.find_first_of(" <\n\t")));
}

}  // namespace

void ChannelParser::Push(std::string_view text, OutputEvents& events) {
  for (const char c : text) {
    if (state_ == State::kStart) {
      StepStart(c, events);
    } else if (state_ == State::kHeader) {
      StepHeader(c, events);
    } else {
      StepBody(c, events);
    }
  }
}

void ChannelParser::StepStart(char c, OutputEvents& events) {
  held_ += c;
  if (BeginsHeader(held_)) {
    state_ = State::kHeader;
  } else if (std::ranges::none_of(kOpenings, [this](std::string_view text) { return text.starts_with(held_); })) {
    state_ = State::kContent;
    const std::string read = std::exchange(held_, {});
    for (const char again : read) StepBody(again, events);
  }
}

void ChannelParser::StepHeader(char c, OutputEvents& events) {
  held_ += c;
  if (held_.ends_with(kMessageTag)) return BeginMessage();
  if (held_.size() <= kMaxHeaderBytes) return;
  state_ = State::kContent;
  events.Add(OutputEvent::Kind::kContent, std::exchange(held_, {}));
}

void ChannelParser::BeginMessage() {
  const std::string header = std::exchange(held_, {});
  function_ = tools_ == nullptr ? std::string() : WordAfter(header, kRecipient);
  arguments_.clear();
  const bool calls = !function_.empty() && function_.size() <= kMaxFunctionNameBytes;
  const bool reasons = WordAfter(header, kChannelTag) == "analysis";
  state_ = calls ? State::kCall : reasons ? State::kReasoning : State::kContent;
}

void ChannelParser::StepBody(char c, OutputEvents& events) {
  held_ += c;
  const auto begins = [this](std::string_view end) { return end.starts_with(held_); };
  while (!held_.empty() && std::ranges::none_of(kEnds, begins)) {
    Body(std::string_view(held_).substr(0, 1), events);
    held_.erase(0, 1);
  }
  if (std::ranges::find(kEnds, held_) == kEnds.end()) return;
  if (state_ == State::kCall) EndCall(events);
  state_ = State::kHeader;
  if (!BeginsHeader(held_)) held_.clear();
}

void ChannelParser::Body(std::string_view text, OutputEvents& events) {
  if (state_ == State::kReasoning) return events.Add(OutputEvent::Kind::kReasoning, text);
  if (state_ == State::kContent) return events.Add(OutputEvent::Kind::kContent, text);
  arguments_ += text;
  if (arguments_.size() <= kMaxArgumentBytes) return;
  events.Add(OutputEvent::Kind::kContent, std::exchange(arguments_, {}));
  state_ = State::kContent;
}

void ChannelParser::EndCall(OutputEvents& events) {
  const std::string text = arguments_.empty() ? "{}" : std::exchange(arguments_, {});
  // The text is passed on as it is: a number keeps all of its digits.
  const auto object = ParseJson(text);
  if (!object.ok() || !object->is_object()) return events.Add(OutputEvent::Kind::kContent, text);
  events.Add(OutputEvent::Kind::kCallStart, function_, calls_);
  events.Add(OutputEvent::Kind::kArguments, text, calls_);
  events.Add(OutputEvent::Kind::kCallEnd, {}, calls_++);
}

void ChannelParser::Finish(OutputEvents& events, bool cut) {
  if (state_ == State::kStart || (state_ == State::kHeader && !BeginsHeader(held_))) {
    events.Add(OutputEvent::Kind::kContent, held_);
  } else if (state_ != State::kHeader) {
    Body(held_, events);
  }
  held_.clear();
  if (state_ != State::kCall) return;
  if (!cut) return EndCall(events);
  events.Add(OutputEvent::Kind::kContent, arguments_);
}

bool ChannelParser::reasons() const {
  if (state_ == State::kHeader) return WordAfter(held_, kChannelTag) == "analysis";
  return state_ == State::kReasoning;
}

}  // namespace loramux
