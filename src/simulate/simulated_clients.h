// The clients of a simulation: what they ask, when, and what they were told. They do not know whether one server
// answers them or a fleet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "engine/generation.h"
#include "record/run_result.h"
#include "workload/workload.h"

namespace loramux {

// Keeps a record of each request of a workload. Not thread-safe.
class SimulatedClients {
 public:
  // `seed`: of the answers. The workload must outlive the clients.
  SimulatedClients(const Workload& workload, std::uint64_t seed);

  // The n-th token of the answer to `request`.
  static TokenId AnsweredToken(std::uint64_t seed, std::size_t request, std::size_t n);

  // Requests that begin a session, in the order of arrival.
  const std::vector<std::size_t>& first_turns() const { return first_turns_; }
  // The next one; -1: none is left. Ask takes it.
  std::int64_t next_first_turn() const {
    return asked_first_ < first_turns_.size() ? static_cast<std::int64_t>(first_turns_[asked_first_]) : -1;
  }

  // A client sends this request at `at`. The result lacks the adapter and the callback. REQUIRES: called once a
  // request; first turns in their order.
  GenerationRequest Ask(std::size_t index, TimeNs at);
  // What a server said of a request: of its tokens, `now` of the event is the time. Returns the session's next turn, if
  // this answer is complete and there is one; otherwise -1.
  std::int64_t Hear(std::size_t index, const GenerationEvent& event);
  // The request was refused, or its answer ended early. Later turns of its session are never asked.
  void Refuse(std::size_t index, const std::string& message);
  void Drop(std::size_t index);

  RequestRecord& record(std::size_t index) { return result_.requests[index]; }
  const RequestRecord& record(std::size_t index) const { return result_.requests[index]; }
  // The requests, refusals and times between tokens of the run so far.
  RunResult& result() { return result_; }

 private:
  void DropSession(std::size_t index);

  const Workload& workload_;
  const std::uint64_t seed_;
  RunResult result_;
  std::vector<std::size_t> first_turns_;
  std::size_t asked_first_ = 0;
  // by the turn with a prompt that begins with it; never iterated
  std::unordered_map<std::size_t, std::vector<TokenId>> histories_;
};

}  // namespace loramux
