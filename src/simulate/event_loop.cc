#include "simulate/event_loop.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loramux {

EventLoop::EventLoop(const SimulationOptions& options, const Workload& workload)
    : options_(options),
      workload_(workload),
      clients_(workload, options.seed),
      misses_(options.give_up, clients_.result().requests),
      submit_latency_(static_cast<TimeNs>(options.device.model.submit_latency * kNsPerSecond)) {}

Status EventLoop::RunFrom(TimeNs begin) {
  begin_ = begin;
  PushFirstTurn();
  while (!events_.empty()) {
    clock_.AdvanceTo(std::max(events_.first().at, clock_.Now()));
    while (!events_.empty() && events_.first().at <= clock_.Now()) RETURN_IF_ERROR(Handle(events_.Pop()));
    RETURN_IF_ERROR(RunServers());
    if (misses_.Hopeless(clock_.Now())) {
      GiveUp();
      break;
    }
    EndRound();
  }
  return Ok{};
}

Status EventLoop::Handle(const Event& event) {
  switch (event.kind) {
    case EventKind::kArrival:
      Arrive(static_cast<std::size_t>(event.subject));
      return Ok{};
    case EventKind::kCancel:
      Cancel(static_cast<std::size_t>(event.subject));
      return Ok{};
    case EventKind::kSample:
      TakeSample();
      sample_pending_ = false;
      sample_pending_ = GoesOn();
      if (sample_pending_) events_.Push(clock_.Now() + sample_gap_, EventKind::kSample);
      return Ok{};
    default:
      return HandleOther(event);
  }
}

// Only the next first turn is an event, so that the queue stays small.
void EventLoop::PushFirstTurn() {
  const std::int64_t next = clients_.next_first_turn();
  if (next < 0) return;
  events_.Push(SeenAt(begin_ + workload_.requests[static_cast<std::size_t>(next)].arrival), EventKind::kArrival, next);
}

void EventLoop::Arrive(std::size_t index) {
  const TimeNs sent = clock_.Now() - submit_latency_;
  GenerationRequest request = clients_.Ask(index, sent);
  if (!workload_.requests[index].follows) PushFirstTurn();
  request.on_event = [this, index](const GenerationEvent& event) { Hear(index, event); };
  Send(index, sent, std::move(request));
}

void EventLoop::Await(std::size_t index, TimeNs sent) {
  const TimeNs after = workload_.requests[index].cancel_after;
  if (after <= 0) return misses_.Asked(index);
  events_.Push(sent + after, EventKind::kCancel, static_cast<std::int64_t>(index));
}

void EventLoop::Hear(std::size_t index, const GenerationEvent& event) {
  RequestRecord& record = clients_.record(index);
  const bool begins = event.token.has_value() && record.first_token < 0;
  if (begins) Began(index, event.now);
  const std::int64_t next = clients_.Hear(index, event);
  if (begins && record.adapter >= 0) {
    const SimulatedServer& server = ServerOf(index);
    record.adapter_load =
        server.LoadedBetween(server.adapters().GenerationOf(record.adapter), record.arrival, record.first_scheduled);
  }
  if (begins) misses_.Began(index);
  if (event.finish != FinishReason::kNone) Ended(index, event.finish);
  if (next < 0) return;
  events_.Push(SeenAt(event.now + workload_.requests[static_cast<std::size_t>(next)].arrival), EventKind::kArrival,
               next);
}

void EventLoop::ScheduleSamples(std::int64_t samples, TimeNs begin) {
  if (samples <= 0 || clients_.first_turns().empty()) return;
  const TimeNs last = workload_.requests[clients_.first_turns().back()].arrival;
  sample_gap_ = std::max<TimeNs>(kNsPerMs, last / samples);
  events_.Push(begin, EventKind::kSample);
  sample_pending_ = true;
}

void EventLoop::ScheduleMove(const Engine& engine, bool& pending, std::int32_t server) {
  if (pending || !GoesOn()) return;
  const auto wait = engine.TimeToNextMove();
  if (!wait.has_value()) return;
  pending = true;
  events_.Push(clock_.Now() + std::max<TimeNs>(1, wait->count()), EventKind::kMove, 0, server);
}

void EventLoop::ShowProgress(std::int64_t& done, const std::function<void(double share)>& progress) const {
  const auto all = static_cast<std::int64_t>(workload_.requests.size());
  if (progress && ++done % std::max<std::int64_t>(1, all / 100) == 0)
    progress(static_cast<double>(done) / static_cast<double>(all));
}

// Ends the run where it is. What had not ended is over.
void EventLoop::GiveUp() {
  clients_.result().given_up = true;
  for (std::size_t i = 0; i < workload_.requests.size(); ++i) clients_.record(i).cancelled |= IsOpen(i);
}

RunResult EventLoop::TakeResult() {
  RunResult result = std::move(clients_.result());
  result.FindEnd();
  return result;
}

}  // namespace loramux
