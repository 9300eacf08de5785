// The part of the engine that the server uses. The program passes the engine (engine_service.h); tests pass a script.
#pragma once

#include <cstdint>
#include <functional>

#include "base/ids.h"
#include "base/result.h"
#include "engine/generation.h"

namespace loramux {

// Numbers of sequences, and how full the device is.
struct GenerationLoad {
  std::int64_t running = 0;
  std::int64_t waiting = 0;
  std::int64_t max_running = 0;  // sequences in a batch at most
  // Of the device's pages: the share that cannot be evicted, and of the pages that adapters in use leave, the share
  // with keys and values of running sequences. 0 to 1.
  double memory_share = 0, kv_share = 0;
};

// Thread-safe: the server calls it from its own threads. No method may block for long.
class GenerationService {
 public:
  virtual ~GenerationService() = default;
  // Submits a request; see Engine::Submit. Its callback may run before this returns.
  virtual Result<RequestId> Submit(GenerationRequest request) = 0;
  // Cancels a request; see Engine::Cancel. Ignores unknown ids.
  virtual void Cancel(RequestId id) = 0;
  // See Engine::SetHold, Engine::AbortAll and Engine::DropHistory.
  virtual void SetHold(Hold hold) = 0;
  virtual void AbortAll() = 0;
  virtual void DropHistory(std::function<void(Result<std::int64_t>)> done) = 0;
  // The most tokens a sequence may have; see Engine::MaxSequenceTokens. Bounds the length where the client gives none.
  virtual std::int64_t MaxSequenceTokens(AdapterGeneration adapter) const = 0;
  // Not ok if nothing can be computed any more: the reason, for /health.
  virtual Status Health() const { return Ok{}; }
  // Returns the current load, for /health.
  virtual GenerationLoad Load() const = 0;
};

}  // namespace loramux
