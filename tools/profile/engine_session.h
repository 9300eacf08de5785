// The whole engine (its thread, its executor, its transfers) under requests that come when they are due, and what its
// steps took.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/runtime.h"
#include "tools/profile/engine_load.h"
#include "tools/profile/step_recorder.h"
#include "tools/profile/transfer_recorder.h"

namespace loramux {

// Of one request, in the order of the load; ns since the start of the run.
struct ServedRequest {
  TimeNs sent = 0;  // when the engine was given it
  TimeNs seen = 0;  // when it drained its inbox
  TimeNs first_token = 0, last_token = 0;
  std::int32_t tokens = 0;
};

struct EngineRun {
  std::vector<ServedRequest> requests;
  std::vector<ObservedStep> steps;
  std::vector<ObservedTransfer> transfers;
  TimeNs end = 0;  // the last answer's
};

// Not thread-safe. An engine of its own for as long as it lives: what one run leaves in memory, the next one finds.
class EngineSession {
 public:
  // `adapters`: directories. `options.wrap_executor` and `wrap_transfer` are replaced. Errors: Runtime::Create's and
  // the registry's.
  static Result<std::unique_ptr<EngineSession>> Create(std::unique_ptr<Model> model, RuntimeOptions options,
                                                       const std::vector<std::string>& adapters);
  ~EngineSession();

  // Sends each request when it is due, whatever became of those before, and waits for all. Errors: a request that the
  // engine does not take, or that fails.
  Result<EngineRun> Run(const std::vector<EngineRequest>& requests);

  Runtime& runtime() { return *runtime_; }
  const std::vector<std::shared_ptr<const AdapterVersion>>& adapters() const { return adapters_; }

 private:
  EngineSession() = default;
  std::vector<ObservedStep> steps_;  // these are written by the engine's thread while requests run
  std::vector<ObservedTransfer> transfers_;
  std::unique_ptr<Runtime> runtime_;
  std::vector<std::shared_ptr<const AdapterVersion>> adapters_;
};

}  // namespace loramux
