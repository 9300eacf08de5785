// The engine as a GenerationService.
#pragma once

#include <utility>

#include "engine/engine.h"
#include "server/generation/generation_service.h"

namespace loramux {

// Forwards every call to the engine. Thread-safe. Does not own the engine, which must outlive it.
class EngineService final : public GenerationService {
 public:
  explicit EngineService(Engine* engine) : engine_(engine) {}
  Result<RequestId> Submit(GenerationRequest request) override { return engine_->Submit(std::move(request)); }
  void Cancel(RequestId id) override { engine_->Cancel(id); }
  std::int64_t MaxSequenceTokens(AdapterGeneration adapter) const override {
    return engine_->MaxSequenceTokens(adapter);
  }
  Status Health() const override { return engine_->Health(); }
  GenerationLoad Load() const override {
    const EngineStats stats = engine_->Stats();
    return {.running = stats.running, .waiting = stats.waiting};
  }

 private:
  Engine* engine_;
};

}  // namespace loramux
