// Runs the whole engine (its thread, executor and transfers) with requests that arrive at given times, and records the
// times of its steps and transfers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "profile/engine_load.h"
#include "profile/step_recorder.h"
#include "profile/transfer_recorder.h"
#include "runtime/runtime.h"

namespace loramux {

// One request, in the order of the load. Times are nanoseconds since the start of the run.
struct ServedRequest {
  TimeNs sent = 0;  // when it was submitted to the engine
  TimeNs seen = 0;  // when the engine took it from its inbox
  TimeNs first_token = 0, last_token = 0;
  std::int32_t tokens = 0;
};

// The outcome of a run.
struct EngineRun {
  std::vector<ServedRequest> requests;
  std::vector<ObservedStep> steps;
  std::vector<ObservedTransfer> transfers;
  TimeNs end = 0;  // end of the last answer
};

// Owns an engine that lives as long as the session: a run finds in memory what the previous run left there. Not
// thread-safe.
class EngineSession {
 public:
  // `adapters` are directories. Replaces `options.wrap_executor` and `wrap_transfer`. Errors: those of Runtime::Create
  // and of registering the adapters.
  static Result<std::unique_ptr<EngineSession>> Create(std::unique_ptr<PlacedModel> model, RuntimeOptions options,
                                                       const std::vector<std::string>& adapters);
  // Stops the engine.
  ~EngineSession();

  // Submits each request when it is due, whatever the state of earlier ones, and waits for all. Errors: the engine
  // refuses a request, or a request fails.
  Result<EngineRun> Run(const std::vector<EngineRequest>& requests);

  Runtime& runtime() { return *runtime_; }
  const std::vector<std::shared_ptr<const AdapterVersion>>& adapters() const { return adapters_; }

 private:
  EngineSession() = default;
  std::vector<ObservedStep> steps_;  // written by the engine's thread while requests run
  std::vector<ObservedTransfer> transfers_;
  std::unique_ptr<Runtime> runtime_;
  std::vector<std::shared_ptr<const AdapterVersion>> adapters_;
};

}  // namespace loramux
