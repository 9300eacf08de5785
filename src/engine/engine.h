// The engine: the deterministic core that turns requests into tokens. README.md in this folder is its contract.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "adapter/registry.h"
#include "base/clock.h"
#include "engine/engine_observer.h"
#include "engine/executor.h"
#include "engine/generation.h"
#include "engine/snapshot.h"
#include "engine/wakeup.h"
#include "memory/page_pool.h"
#include "residency/adapter_residency.h"
#include "schedule/scheduler.h"
#include "worth/eviction_policy.h"

namespace loramux {

// Options of an Engine.
struct EngineOptions {
  SystemSpec spec;
  std::int64_t max_model_len = 0;  // the most positions a sequence may have; > 0
  std::vector<TokenId> eos_token_ids;
  std::int64_t vocab_size = 0;
  bool generates = true;  // false: the model has no output layer, so it only makes embeddings
  KvSlices kv_slices;     // how a page divides into layers; by default history is fetched as a whole
};

// The parts an engine works with, as ControlPlane::Connect joins them. The engine owns none of them; all must outlive
// it. All are required: a part that is not needed does nothing (SchedulerParts).
struct EngineParts {
  const Clock* clock = nullptr;
  Executor* executor = nullptr;
  PageTransfer* transfer = nullptr;
  PagePool* device = nullptr;
  PagePool* host = nullptr;
  AdapterRegistry* registry = nullptr;
  const EvictionPolicy* eviction = nullptr;
  DependencyTree* tree = nullptr;
  KvTiers* tiers = nullptr;
  QueueOrder* queue = nullptr;
  LengthPredictor* predictor = nullptr;
  Wakeup* wakeup = nullptr;  // signalled when there is work
  EngineObserver* observer = nullptr;
};

// Turns requests into tokens, one step at a time.
// Thread safety: Submit, Cancel, SetPinned, Register, SetHold, SetNextId, AbortAll, Retarget, DropHistory, Health,
// StopAccepting, CancelAll, Stats, Snapshot and MaxSequenceTokens may be called on any thread; Step, TimeToNextMove,
// Idle and CheckIntegrity only on one thread, the engine thread.
class Engine {
 public:
  // REQUIRES: max_model_len > 0, vocab_size > 0, and all parts.
  Engine(EngineOptions options, EngineParts parts);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Validates a request, posts it to the inbox and returns its id. Errors: empty prompt; token id out of range;
  // prompt (plus max_tokens, if given) longer than the model's maximum; prompt and output larger than
  // memory could ever hold (kResourceExhausted, naming the flag to raise); unknown adapter; shutting down, the
  // executor's device is lost, or an adapter pinned meanwhile took the memory (kUnavailable).
  Result<RequestId> Submit(GenerationRequest request);

  // Ends a request at the next step: its pages are freed and its callback receives kCancelled. Unknown ids are ignored.
  void Cancel(RequestId id);

  // Pins an adapter to the device (`pinned`), or unpins it. Calls `done` once on the engine thread (on the calling
  // thread if the engine is shutting down): when a pinned adapter is resident, or when an unpinned one may be evicted
  // again. Errors: too little device memory would remain for requests (kResourceExhausted); accepted requests need the
  // memory (kUnavailable, may be retried); the load failed; the generation was retired meanwhile. Retiring a generation
  // unpins it.
  void SetPinned(std::shared_ptr<const AdapterVersion> version, bool pinned, std::function<void(Status)> done);

  // The adapter has a name. With SystemSpec::host_copies it is read into the host tier beside the steps; with
  // HostCopies::kLoaded, or without a host tier, nothing happens. May be called for a generation that is retired
  // meanwhile.
  void Register(std::shared_ptr<const AdapterVersion> version);

  // Registers the adapter, and puts a whole copy of it into the host tier, as if it had been read before. For
  // simulations: the content is arbitrary. Call it on the engine thread, without a step in flight. False: the tier has
  // no room, or the adapter is in a tier already.
  bool PlaceInHost(std::shared_ptr<const AdapterVersion> version);

  // Runs one iteration: drains the inbox, collects completions, plans, submits, publishes. Returns false if it did
  // nothing; then nothing can be done until the wakeup is signalled or TimeToNextMove has passed.
  bool Step();
  // How long to wait for the wakeup before the next Step, which may then move pages between the tiers ahead of demand.
  // No value: wait until signalled.
  std::optional<std::chrono::nanoseconds> TimeToNextMove() const;
  // Whether there are no requests, no pin requests, no adapters that Register was just called for, and no transfers in
  // flight.
  bool Idle() const;

  // Not ok once the executor has lost its device: the reason. Then all requests have ended with it, or are about to,
  // and Submit and SetPinned return it.
  Status Health() const;

  // Holds requests back from the next step on, or lets them go. While all are held, a pin is refused (kUnavailable).
  // StopAccepting ends every hold.
  void SetHold(Hold hold);
  // For replays: the next request has this id. Ids between were of requests that ended while they were held, which
  // recordings leave out. REQUIRES: no request had this id or a later one.
  void SetNextId(RequestId id);
  // Ends all accepted requests at the next step with kAborted.
  void AbortAll();

  // `next` has taken the name of `old`. From the next step on, requests that run, wait or are held on `old` go on with
  // `next` from their tokens: their keys and values are computed anew, and nothing else changes, neither places nor
  // limits, seeds or constraints. What their prompts' log-probabilities or embeddings have so far begins anew with
  // them. Requests that come later on `old` begin on `next`. Null: they end with kAborted instead, as do those on
  // composites that have `old` as a part; with a version, those end on their composite. A request that cannot go on
  // with `next` ends with an error that says why. GenerationRequest::keeps_version excepts a request. REQUIRES: they
  // are different.
  void Retarget(const AdapterVersion& old, const std::shared_ptr<const AdapterVersion>& next);

  // Drops the history that no running request uses, in all tiers, once no step is in flight. Calls `done` once with the
  // number of pages, on the engine thread; if the engine accepts nothing any more, on the calling thread with the
  // reason. Pages in transfer stay.
  void DropHistory(std::function<void(Result<std::int64_t>)> done);

  // Refuses new requests from this call on; accepted ones continue.
  void StopAccepting();
  // Cancels all accepted requests at the next step.
  void CancelAll();

  // The counters as of the last completed step.
  EngineStats Stats() const;
  // Returns a snapshot of state that only the engine thread can read. The engine thread makes it on request at the end
  // of a step. A snapshot up to 100 milliseconds old is returned at once. Otherwise waits up to `patience` and returns
  // the last snapshot (null if there is none). Not for the engine thread.
  std::shared_ptr<const EngineSnapshot> Snapshot(std::chrono::milliseconds patience) const;
  // The most tokens (prompt and output together) that a request with this adapter can have: the model's length limit,
  // or what fits the device memory beside the adapter, whichever is smaller. Unit: tokens.
  std::int64_t MaxSequenceTokens(AdapterGeneration adapter) const;

  // Aborts if pools, residency and scheduler disagree. REQUIRES: no step in flight (Idle, or a test that ensures it).
  void CheckIntegrity() const;

 private:
  struct Impl;
  bool StepAt(TimeNs now);
  std::unique_ptr<Impl> impl_;
};

}  // namespace loramux
