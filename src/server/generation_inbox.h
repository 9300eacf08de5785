// Where the engine thread leaves the news of one HTTP request's sequences until the connection's thread takes them.
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

// A GenerationEvent that outlives the callback.
struct TokenEvent {
  std::size_t choice = 0;  // of the HTTP request
  std::optional<SampledToken> token;
  FinishReason finish = FinishReason::kNone;
  TokenId stop_token = -1;
  std::optional<Error> error;
  std::int32_t prompt_tokens = 0;
  std::int32_t cached_prompt_tokens = 0;
  TimeNs arrival = 0, first_scheduled = 0, now = 0;

  TokenEvent() = default;
  TokenEvent(std::size_t choice_index, const GenerationEvent& event);
};

// Thread-safe. Bounded: a connection that does not keep up overflows it instead of filling the memory.
class GenerationInbox {
 public:
  // `wake` is called on the pushing thread, under the lock, when the first event arrives after a Take, and at overflow.
  // It may only post.
  GenerationInbox(std::size_t max_bytes, std::function<void()> wake);

  void Push(TokenEvent event);
  // Everything that arrived, in order.
  std::vector<TokenEvent> Take();
  bool HasEvents() const;
  // Events were dropped: the response cannot be completed.
  bool overflowed() const;
  // Drops what is there and all that comes; `wake` is not called again after this returns.
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
