// The engine: the deterministic core that turns requests into tokens. README.md in this folder is its contract.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "adapter/registry.h"
#include "adapter/residency.h"
#include "base/clock.h"
#include "cache/eviction_policy.h"
#include "engine/engine_observer.h"
#include "engine/executor.h"
#include "engine/generation.h"
#include "engine/snapshot.h"
#include "engine/wakeup.h"
#include "memory/page_pool.h"
#include "schedule/scheduler.h"

namespace loramux {

struct EngineOptions {
  SchedulerOptions scheduler;
  std::int64_t max_model_len = 0;  // positions that a sequence may have; > 0
  std::vector<TokenId> eos_token_ids;
  std::int64_t vocab_size = 0;
  KvSlices kv_slices;  // of a page; by default history is fetched as a whole
};

// What the engine is made of. It owns none of it.
struct EngineParts {
  const Clock* clock = nullptr;
  Executor* executor = nullptr;
  AdapterTransfer* transfer = nullptr;
  PagePool* device = nullptr;
  PagePool* host = nullptr;  // null: no host tier
  AdapterRegistry* registry = nullptr;
  const EvictionPolicy* eviction = nullptr;
  DependencyTree* tree = nullptr;          // null: no prefix is used again
  AdapterTransfer* kv_transfer = nullptr;  // for keys and values; null: they never go to the host tier
  QueueOrder* queue = nullptr;             // null: first come, first served
  LengthPredictor* predictor = nullptr;    // null: no predictions
  Wakeup* wakeup = nullptr;                // signalled when there is something to do
  EngineObserver* observer = nullptr;      // null: nobody watches
};

// Thread safety: Submit, Cancel, SetPinned, StopAccepting, CancelAll, Stats, Snapshot and MaxSequenceTokens from any
// thread; Step, TimeToNextMove, Idle and CheckIntegrity from one thread, the engine's.
class Engine {
 public:
  Engine(EngineOptions options, EngineParts parts);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Validates and posts a request. Errors: empty prompt, token id out of range, prompt (plus max_tokens, if given)
  // longer than a sequence may be, or larger than memory could ever hold (kResourceExhausted, saying which flag to
  // raise), unknown adapter, shutting down (kUnavailable).
  Result<RequestId> Submit(GenerationRequest request);

  // Ends a request at the next step: its pages are freed and its callback gets kCancelled. Unknown ids are ignored.
  void Cancel(RequestId id);

  // Keeps an adapter on the device from now on ("pinned"), or no longer. `done` is called once, on the engine thread
  // (or at once, if shutting down): when the adapter is there, or when it may be evicted again. Errors: it would leave
  // too little device memory for requests (kResourceExhausted), requests that are in need the memory (kUnavailable: try
  // again), its load failed, its generation was retired meanwhile. A retired generation is no longer pinned.
  void SetPinned(std::shared_ptr<const AdapterVersion> version, bool pinned, std::function<void(Status)> done);

  // One iteration: drain inbox, collect completions, plan, submit, publish. False if nothing was done: nothing can be
  // until the wakeup is signalled.
  bool Step();
  // How long to wait for the wakeup before the next Step, which may move something between the tiers that nobody asked
  // for; none: as long as it takes.
  std::optional<std::chrono::nanoseconds> TimeToNextMove() const;
  // No request anywhere and no transfer in flight.
  bool Idle() const;

  // Refuses new requests from now on; those that are in go on.
  void StopAccepting();
  // Cancels everything that is in, at the next step.
  void CancelAll();

  EngineStats Stats() const;
  // What only the engine's thread knows, made by it on request at the end of a step, at most every 100 ms. Waits for it
  // up to `patience`, then returns the last one (null if there never was one). Not for the engine's own thread.
  std::shared_ptr<const EngineSnapshot> Snapshot(std::chrono::milliseconds patience) const;
  // The most tokens that a request of this adapter can have in all (prompt and output): the model's length, or what
  // fits the device memory beside the adapter.
  std::int64_t MaxSequenceTokens(AdapterGeneration adapter) const;

  // REQUIRES: no step in flight (Idle, or tests that know). Aborts if pool, residency and schedule disagree.
  void CheckIntegrity() const;

 private:
  struct Impl;
  bool StepAt(TimeNs now);
  std::unique_ptr<Impl> impl_;
};

}  // namespace loramux
