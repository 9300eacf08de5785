// The thread that drives an engine.
#pragma once

#include <atomic>
#include <thread>

#include "engine/engine.h"

namespace loramux {

// Steps the engine on its own thread from construction until Stop; sleeps on the wakeup while there is nothing to do.
// Does not own engine and wakeup.
class EngineLoop {
 public:
  EngineLoop(Engine* engine, Wakeup* wakeup);
  ~EngineLoop();  // Stop()

  // Refuses new requests, cancels what is still in, waits for the engine to be idle, ends the thread. Idempotent.
  void Stop();

 private:
  void Run();
  Engine* engine_;
  Wakeup* wakeup_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace loramux
