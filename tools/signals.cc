#include "tools/signals.h"

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <pthread.h>

#include "base/log.h"

namespace loramux {

struct Signals::State {
  void Take(int signal) {
    const std::lock_guard lock(mutex);
    if (signal != SIGHUP && (!ready || stop != 0)) std::_Exit(128 + signal);
    if (signal == SIGHUP) {
      reload = true;
    } else {
      stop = signal;
    }
    came.notify_all();
  }
  std::mutex mutex;
  std::condition_variable came;
  bool ready = false, reload = false;
  int stop = 0;
};

Signals::Signals() : state_(std::make_shared<State>()) {
  std::signal(SIGPIPE, SIG_IGN);  // a client that went away is an error code, not a death
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread([state = state_, set] {
    while (true) {
      int signal = 0;
      sigwait(&set, &signal);
      state->Take(signal);
    }
  }).detach();
}

void Signals::MarkReady() {
  const std::lock_guard lock(state_->mutex);
  state_->ready = true;
}

void Signals::Stop() {
  const std::lock_guard lock(state_->mutex);
  if (state_->stop == 0) state_->stop = SIGTERM;
  state_->came.notify_all();
}

int Signals::Wait() {
  std::unique_lock lock(state_->mutex);
  state_->came.wait(lock, [this] { return state_->reload || state_->stop != 0; });
  if (state_->stop != 0) return state_->stop;
  state_->reload = false;
  return SIGHUP;
}

void LogDrained(const DrainReport& report) {
  for (const std::string& request : report.dropped) spdlog::warn("dropped at shutdown: {}", request);
  if (report.in_flight == 0) return spdlog::info("no requests were running");
  spdlog::info("{} requests were running; {} ended in time, {} were dropped", report.in_flight,
               report.in_flight - std::min(report.in_flight, static_cast<std::int64_t>(report.dropped.size())),
               report.dropped.size());
}

}  // namespace loramux
