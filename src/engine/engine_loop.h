// The thread that drives an engine.
#pragma once

#include <atomic>
#include <thread>

#include "engine/engine.h"

namespace loramux {

// Steps the engine on its own thread from construction until Stop. Sleeps on the wakeup while there is nothing to do.
// Does not own `engine` and `wakeup`; both must outlive it.
class EngineLoop {
 public:
  // Starts the thread.
  EngineLoop(Engine* engine, Wakeup* wakeup);
  ~EngineLoop();  // calls Stop()

  // Refuses new requests, cancels accepted ones, waits until the engine is idle and joins the thread. Idempotent.
  void Stop();

 private:
  void Run();
  Engine* engine_;
  Wakeup* wakeup_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace loramux
