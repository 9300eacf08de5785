// What the server needs of the engine, and no more. The engine implements it in the program; tests script it.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "base/result.h"
#include "engine/generation.h"

namespace loramux {

struct GenerationLoad {
  std::int64_t running = 0;
  std::int64_t waiting = 0;
};

// Thread-safe: the server calls it from its own threads. Nothing here may block for long.
class GenerationService {
 public:
  virtual ~GenerationService() = default;
  // Engine::Submit. The callback may come before this returns.
  virtual Result<RequestId> Submit(GenerationRequest request) = 0;
  // Engine::Cancel: unknown ids are ignored.
  virtual void Cancel(RequestId id) = 0;
  // Engine::MaxSequenceTokens: bounds the length where the client gives none.
  virtual std::int64_t MaxSequenceTokens(AdapterGeneration adapter) const = 0;
  // For /health.
  virtual GenerationLoad Load() const = 0;
};

}  // namespace loramux
