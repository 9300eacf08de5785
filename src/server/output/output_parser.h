// What a model's text means: an answer, reasoning, or calls of tools. A parser takes the text in pieces of any size and
// gives events. The joined events depend on the text alone, not on how it was cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace loramux {

// One thing that a piece of text added to the answer.
struct OutputEvent {
  enum class Kind {
    kContent,
    kReasoning,
    kCallStart,   // `text` is the function's name; `call` counts the calls of the answer from 0
    kArguments,   // a piece of the JSON object with the arguments of the call that started last
    kCallEnd,     // the call is complete: the joined arguments are one valid JSON object
    kCallBroken,  // the call that started last does not go on as a call; `text` is all that the model wrote of it
  };
  Kind kind = Kind::kContent;
  std::int32_t call = 0;
  std::string text;
  std::size_t sent = 0;    // kCallBroken: the bytes of `text` before its unsent rest, which is content in a stream
  std::string id;          // kCallStart: what the client answers to; parsers leave it empty
  std::size_t tokens = 0;  // tokens of the answer whose text this is
};

// Events in order. Pieces of the same kind that follow each other become one event.
class OutputEvents {
 public:
  void Add(OutputEvent::Kind kind, std::string_view text, std::int32_t call = 0);
  void Break(std::int32_t call, std::string_view text, std::size_t sent);

  // Says that `tokens` tokens of the answer made what was added since the last such call: they belong to the first
  // content in it or else to its last event. Returns false if nothing was added.
  bool Attribute(std::size_t tokens);

  std::vector<OutputEvent>& list() { return list_; }
  const std::vector<OutputEvent>& list() const { return list_; }
  // Returns the events and forgets them.
  std::vector<OutputEvent> Take();
  // Forgets what follows the first end of a call.
  void CutAfterCall();
  // Calls that have ended, taken or not.
  std::int32_t ended_calls() const { return ended_calls_; }
  // Bytes of text in all events.
  std::size_t bytes() const { return bytes_; }

 private:
  std::vector<OutputEvent> list_;
  std::size_t bytes_ = 0;
  std::int32_t ended_calls_ = 0;
  std::optional<std::size_t> news_;  // the first event that grew since the last call of Attribute
};

// Reads the text of one answer. Takes constant time a byte and keeps only what it cannot decide yet, and the call that
// it is in. Text that is no call is content: nothing is lost, and no text is an error. Not thread-safe.
class OutputParser {
 public:
  virtual ~OutputParser() = default;
  // Reads the next piece.
  virtual void Push(std::string_view text, OutputEvents& events) = 0;
  // Ends the text. No Push may follow. `cut`: not the model ended it, but a limit.
  virtual void Finish(OutputEvents& events, bool cut) = 0;
  // True if the next byte is part of the reasoning, as far as can be said.
  virtual bool reasons() const { return false; }
};

// All text is content.
class ContentParser final : public OutputParser {
 public:
  void Push(std::string_view text, OutputEvents& events) override { events.Add(OutputEvent::Kind::kContent, text); }
  void Finish(OutputEvents&, bool) override {}
};

}  // namespace loramux
