#include "engine/engine_loop.h"

namespace loramux {

EngineLoop::EngineLoop(Engine* engine, Wakeup* wakeup) : engine_(engine), wakeup_(wakeup), thread_([this] { Run(); }) {}

EngineLoop::~EngineLoop() { Stop(); }

void EngineLoop::Run() {
  while (true) {
    while (engine_->Step()) {
    }
    if (stopping_.load(std::memory_order_acquire) && engine_->Idle()) return;
    const auto next_move = engine_->TimeToNextMove();
    next_move.has_value() ? wakeup_->WaitFor(*next_move) : wakeup_->Wait();
  }
}

void EngineLoop::Stop() {
  if (!thread_.joinable()) return;
  engine_->StopAccepting();
  stopping_.store(true, std::memory_order_release);
  engine_->CancelAll();  // signals the wakeup
  thread_.join();
}

}  // namespace loramux
