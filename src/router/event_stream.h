// Server-sent events that a router passes on: where an event ends, and what ends a stream whose server died.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace loramux {

// True for text/event-stream, with or without parameters.
bool IsEventStream(std::string_view content_type);

// Holds an event back until all of it has arrived, so that a client never sees half of one: what follows a half event
// would otherwise become a part of it. Pieces that end where an event does, as servers send them, pass unchanged.
class WholeEvents {
 public:
  // An event that is longer is passed on in pieces.
  static constexpr std::size_t kMostHeld = std::size_t{1} << 20;

  // Takes the next bytes of a stream and returns those that may be passed on.
  std::string Take(std::string piece);
  // What is still held: an event whose end has not come.
  const std::string& held() const { return held_; }
  // Whether the client has all that it needs to take an error event: false in the middle of an event.
  bool between_events() const { return between_events_; }
  std::int64_t events() const { return events_; }

 private:
  std::string held_;
  bool between_events_ = true;
  std::int64_t events_ = 0;
};

// What an answer, or a part of one, says of its tokens.
struct AnswerUsage {
  bool known = false;
  std::int64_t prompt = 0, output = 0;
};
// Finds the last `usage` in a JSON text or in whole events, in the words of any API: prompt_tokens and
// completion_tokens, input_tokens and output_tokens. An object that has neither is not known.
AnswerUsage UsageIn(std::string_view text);

// What ends a stream whose server died, in the form of the API at `path`: an error event, and [DONE] where streams end
// with it.
std::string StreamEnd(std::string_view path, int status, std::string_view message);

// The body of an error, in the form of the API at `path`.
std::string ErrorBodyOf(std::string_view path, int status, std::string_view message);

}  // namespace loramux
