// The signals of a program that serves: end, and read files again.
#pragma once

#include <memory>

#include "http/activity.h"

namespace loramux {

// SIGINT, SIGTERM and SIGHUP are blocked in every thread (so this comes before any other thread is made) and waited for
// on one of their own. The first two end the process before the server is ready; the first one afterwards begins the
// shutdown, and a second one ends the process without waiting for it.
class Signals {
 public:
  Signals();
  // From now on a signal asks for a shutdown instead of ending the process.
  void MarkReady();
  // Asks for the shutdown as SIGTERM does. Thread-safe.
  void Stop();
  // Blocks until the next signal after MarkReady: SIGHUP, or the one that asks for the shutdown.
  int Wait();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Logs how a shutdown went.
void LogDrained(const DrainReport& report);

}  // namespace loramux
