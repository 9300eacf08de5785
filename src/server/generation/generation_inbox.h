// The queue of events between the engine thread and a connection's thread, for the sequences of one HTTP request.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

#include "engine/generation.h"

namespace loramux {

// Thread-safe. Bounded: if the connection does not keep up, the inbox overflows instead of using more memory.
class GenerationInbox {
 public:
  // `wake` is called on the pushing thread, with the lock held, when the first event arrives after a Take and when the
  // inbox overflows. It may only post work to another thread. `max_bytes` bounds the events that are held.
  GenerationInbox(std::size_t max_bytes, std::function<void()> wake);

  // Adds an event, whose `choice` is the index of the choice in the HTTP request. Drops it once the inbox is closed or
  // has overflowed.
  void Push(GenerationEvent event);
  // Removes and returns all events, in order of arrival.
  std::vector<GenerationEvent> Take();
  // True if events were dropped for lack of space: the response cannot be completed.
  bool overflowed() const;
  // Drops the events held and all later ones. `wake` is not called again after this returns.
  void Close();

 private:
  mutable std::mutex mutex_;
  std::vector<GenerationEvent> events_;
  std::size_t bytes_ = 0;
  const std::size_t max_bytes_;
  bool overflowed_ = false;
  std::function<void()> wake_;  // empty once closed
};

}  // namespace loramux
