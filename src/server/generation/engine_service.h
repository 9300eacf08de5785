// The engine as a GenerationService.
#pragma once

#include <algorithm>
#include <cstdint>
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
  void SetHold(Hold hold) override { engine_->SetHold(hold); }
  void AbortAll() override { engine_->AbortAll(); }
  void DropHistory(std::function<void(Result<std::int64_t>)> done) override { engine_->DropHistory(std::move(done)); }
  std::int64_t MaxSequenceTokens(AdapterGeneration adapter) const override {
    return engine_->MaxSequenceTokens(adapter);
  }
  Status Health() const override { return engine_->Health(); }
  GenerationLoad Load() const override {
    const EngineStats stats = engine_->Stats();
    const std::int64_t pages = stats.device.capacity_pages;
    const std::int64_t adapters = stats.device.used(PageCategory::kAdapter) - stats.idle_adapter_pages;
    const std::int64_t kv = stats.device.used(PageCategory::kKv) - stats.history_pages;
    return {.running = stats.running,
            .waiting = stats.waiting,
            .max_running = stats.max_running,
            .memory_share = Share(adapters + kv, pages),
            .kv_share = Share(kv, pages - adapters)};
  }

 private:
  static double Share(std::int64_t part, std::int64_t whole) {
    if (whole <= 0) return 1;
    return std::clamp(static_cast<double>(part) / static_cast<double>(whole), 0.0, 1.0);
  }

  Engine* engine_;
};

}  // namespace loramux
