// A line of the log every few seconds while the server is busy.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "engine/snapshot.h"

namespace loramux {

// What happened between two looks at the engine, `seconds` apart; empty if nothing did and nothing runs.
std::vector<LogField> ThroughputFields(const EngineStats& before, const EngineStats& now, double seconds);

// Logs ThroughputFields at each interval, on a thread of its own, until it is destroyed.
class ThroughputLog {
 public:
  using Source = std::function<EngineStats()>;
  // `interval` 0: never. `clock` and what `stats` reads must outlive the log.
  ThroughputLog(std::chrono::milliseconds interval, const Clock* clock, Source stats);
  ~ThroughputLog();
  ThroughputLog(const ThroughputLog&) = delete;
  ThroughputLog& operator=(const ThroughputLog&) = delete;

 private:
  void Run();

  const std::chrono::milliseconds interval_;
  const Clock* clock_;
  const Source stats_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace loramux
