// The event loop of every simulation, of one server or a fleet: clients ask, servers run, time goes on to the next
// event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/clock.h"
#include "base/result.h"
#include "engine/generation.h"
#include "record/run_result.h"
#include "simulate/event_queue.h"
#include "simulate/objective.h"
#include "simulate/simulated_clients.h"
#include "simulate/simulated_server.h"
#include "workload/workload.h"

namespace loramux {

// What is common to one server and a fleet. Not thread-safe.
class EventLoop {
 public:
  virtual ~EventLoop() = default;

 protected:
  // `options` are those of each server; they and the workload must outlive the loop.
  EventLoop(const SimulationOptions& options, const Workload& workload);

  // Runs until no event is left, or the objective is out of reach. The first client asks at `begin` plus its arrival.
  // Error: of HandleOther or RunServers.
  Status RunFrom(TimeNs begin);
  // Lets TakeSample be called at `begin` and then about `samples` times while clients begin their sessions.
  void ScheduleSamples(std::int64_t samples, TimeNs begin);
  // Pages that move ahead of demand (swaps, expected adapters) need a step even if nothing else happens. `pending`:
  // such an event of this server has not come yet.
  void ScheduleMove(const Engine& engine, bool& pending, std::int32_t server);
  // A request is on its way: its client will take it back, or wait for its end.
  void Await(std::size_t index, TimeNs sent);
  // Tells `progress`, unless it is empty, every hundredth of the requests that one more of them is `done`.
  void ShowProgress(std::int64_t& done, const std::function<void(double share)>& progress) const;
  // The records of all requests, and the time of the last end.
  RunResult TakeResult();

  // ---- What one server and a fleet do in ways of their own

  // A client sends the request, whose adapter is not set yet.
  virtual void Send(std::size_t index, TimeNs sent, GenerationRequest request) = 0;
  // A client takes its request back. It may have ended.
  virtual void Cancel(std::size_t index) = 0;
  // The server that executes the request.
  virtual SimulatedServer& ServerOf(std::size_t index) = 0;
  // The first token of a request is there, or its end.
  virtual void Began(std::size_t index, TimeNs now) = 0;
  virtual void Ended(std::size_t index, FinishReason reason) = 0;
  // Whether the request had not ended when the run was given up.
  virtual bool IsOpen(std::size_t index) const = 0;
  // Events but those of clients and samples.
  virtual Status HandleOther(const Event& event) = 0;
  // All events of this time are handled: servers do all that can be done now.
  virtual Status RunServers() = 0;
  // The servers have run.
  virtual void EndRound() = 0;
  virtual void TakeSample() = 0;
  // Whether anything may still happen but samples and moves ahead of demand, which alone keep no simulation running.
  virtual bool GoesOn() const = 0;

  const SimulationOptions& options_;
  const Workload& workload_;
  VirtualClock clock_;
  EventQueue events_;
  SimulatedClients clients_;
  MissCount misses_;
  bool sample_pending_ = false;  // in `events_`

 private:
  Status Handle(const Event& event);
  void PushFirstTurn();
  void Arrive(std::size_t index);
  void Hear(std::size_t index, const GenerationEvent& event);
  void GiveUp();
  // When a server that is idle notices a request. One that computes looks between steps anyway.
  TimeNs SeenAt(TimeNs sent) const { return sent + submit_latency_; }

  const TimeNs submit_latency_;
  TimeNs begin_ = 0, sample_gap_ = kNsPerMs;  // begin_: of the workload
};

}  // namespace loramux
