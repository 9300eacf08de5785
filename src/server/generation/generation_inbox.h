// The queue of events between the engine thread and a connection's thread, for the sequences of one HTTP request.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "engine/generation.h"

namespace loramux {

// A copy of a GenerationEvent that can outlive the callback.
struct TokenEvent {
  std::size_t choice = 0;  // index of the choice in the HTTP request
  std::optional<SampledToken> token;
  std::vector<ScoredToken> prompt_scores;
  std::vector<float> embedding;
  FinishReason finish = FinishReason::kNone;
  std::optional<SampledToken> stop;
  std::optional<Error> error;
  std::int32_t prompt_tokens = 0;
  std::int32_t cached_prompt_tokens = 0;
  TimeNs arrival = 0, first_scheduled = 0, adapter_wait = 0, now = 0;

  TokenEvent() = default;
  TokenEvent(std::size_t choice_index, const GenerationEvent& event);
};

// Thread-safe. Bounded: if the connection does not keep up, the inbox overflows instead of using more memory.
class GenerationInbox {
 public:
  // `wake` is called on the pushing thread, with the lock held, when the first event arrives after a Take and when the
  // inbox overflows. It may only post work to another thread. `max_bytes` bounds the events that are held.
  GenerationInbox(std::size_t max_bytes, std::function<void()> wake);

  // Adds an event. Drops it once the inbox is closed or has overflowed.
  void Push(TokenEvent event);
  // Removes and returns all events, in order of arrival.
  std::vector<TokenEvent> Take();
  // True if events were dropped for lack of space: the response cannot be completed.
  bool overflowed() const;
  // Drops the events held and all later ones. `wake` is not called again after this returns.
  void Close();

 private:
  mutable std::mutex mutex_;
  std::vector<TokenEvent> events_;
  std::size_t bytes_ = 0;
  const std::size_t max_bytes_;
  bool overflowed_ = false;
  std::function<void()> wake_;  // empty once closed
};

}  // namespace loramux
