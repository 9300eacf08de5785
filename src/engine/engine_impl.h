// The engine's state and its steps, for the files that hold its parts: engine.cc, engine_pins.cc, engine_versions.cc.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/drafter.h"
#include "engine/engine.h"
#include "engine/sequence.h"
#include "engine/step_batch_builder.h"
#include "engine/successors.h"

namespace loramux {

struct Engine::Impl {
  // A call of SetPinned.
  struct PinRequest {
    std::shared_ptr<const AdapterVersion> version;
    bool pinned = false;
    std::function<void(Status)> done;
  };

  // A call of Retarget that waits until no step is in flight.
  struct Retargeting {
    AdapterGeneration old;
    std::shared_ptr<const AdapterVersion> next;  // null: the requests end
    std::optional<Error> why;                    // with this error; nullopt: they are aborted
    bool next_retired = false;                   // as of the last CollectRetired
  };

  // What other threads have posted since the last step.
  struct Inbox {
    std::mutex mutex;
    std::vector<std::shared_ptr<const AdapterVersion>> registered;  // calls of Register
    std::vector<PinRequest> pins;
    std::map<AdapterGeneration, std::int64_t> kept_pages;  // pages of kept adapters; only the engine thread changes it
    std::vector<std::unique_ptr<Sequence>> submitted;
    std::vector<RequestId> cancelled;
    std::vector<std::function<void(Result<std::int64_t>)>> drops;  // calls of DropHistory
    std::vector<AdapterGeneration> retargeted;                     // generations that Retarget was called for
    Successors successors;                                         // those of these and of earlier ones
    std::optional<FinishReason> cancel_all;                        // all that were accepted end like this
    Hold hold = Hold::kNone;
    bool accepting = true;
    std::optional<Error> lost;  // why the executor computes no more; then nothing is accepted
    std::uint64_t next_id = 1;

    // The error of what is not accepted. REQUIRES: the mutex is held.
    Error Refusal() const { return lost.value_or(Unavailable("the server is shutting down")); }
  };

  // What a client is yet to be told.
  struct News {
    explicit News(Sequence& of) : sequence(&of) { event.id = of.id; }
    Sequence* sequence;
    GenerationEvent event;
  };

  const EngineOptions options;
  const EngineParts parts;
  EngineObserver& observer;
  ResidencyManager residency;
  KvTiers& tiers;
  Scheduler scheduler;

  Inbox inbox;
  // looked up by id, never iterated for decisions
  std::unordered_map<RequestId, std::unique_ptr<Sequence>> sequences;
  std::vector<std::unique_ptr<Sequence>> arriving;                 // swapped with inbox.submitted
  std::vector<std::shared_ptr<const AdapterVersion>> registering;  // swapped with inbox.registered
  std::vector<std::pair<RequestId, FinishReason>> cancelling, cancelled_now;
  std::vector<Retargeting> retargetings;                         // in order
  std::vector<std::function<void(Result<std::int64_t>)>> drops;  // calls of DropHistory that await the step's end
  // pinning: not decided yet; loading_pins: granted, but the adapter is not resident yet
  std::vector<PinRequest> pinning, loading_pins;
  std::vector<AdapterGeneration> retired;
  bool accepting = true;  // as of the last step
  Hold hold = Hold::kNone;
  std::optional<Error> lost;  // as in the inbox

  bool step_in_flight = false;
  bool step_computed = false;  // in flight and computed, but transfers that it used may still be arriving
  TimeNs step_began = 0, step_ended = 0;
  std::vector<PlannedChunk> in_flight;
  StepBatchBuilder builder;
  Drafter drafter;
  StepResult result;
  // What happened in the collected step. Delivered to the clients after the next step was submitted.
  std::vector<News> news;
  std::vector<ResidencyManager::LoadFailure> load_failures;
  std::vector<ResidencyManager::LoadFailure> failed_arrivals;  // failures of adapters that the step in flight uses

  mutable std::mutex stats_mutex;
  EngineStats stats;
  mutable SnapshotExchange snapshots;

  Impl(EngineOptions o, EngineParts p);

  // ---- The phases of a step, in order ----
  bool DrainInbox(TimeNs now);

  // All requests that were taken from the inbox so far. One that comes while a step is in flight is not among them.
  void CancelKnown(FinishReason reason);

  // Takes a request out of the inbox that is cancelled while it is held: the scheduler and recordings never see it.
  // False: it is not held. REQUIRES: the inbox's mutex is held.
  bool EndHeld(RequestId id, TimeNs now);

  // Ends a request that the scheduler has not seen.
  GenerationEvent& EndUnseen(std::unique_ptr<Sequence> unseen, TimeNs now);

  // ---- Versions that take the place of others (Retarget) ----
  // Takes the calls of Retarget. What the scheduler has not seen moves at once; the rest waits for ApplyRetargetings.
  // REQUIRES: the inbox's mutex is held; what arrives was taken.
  void TakeRetargeted(TimeNs now);

  void AddRetargeting(const Retargeting& added);

  // The composites that have the part, of the requests that the scheduler knows.
  std::vector<AdapterGeneration> CompositesWith(AdapterGeneration part) const;

  // Requests that the scheduler has not seen go to the successor of their version, or end. Recordings have what becomes
  // of them alone. REQUIRES: the inbox's mutex is held.
  void MoveUnseen(std::vector<std::unique_ptr<Sequence>>& unseen, TimeNs now);

  // The error of a request that memory or embeddings keep from going on with a version; nullopt: it can. REQUIRES: the
  // inbox's mutex is held.
  std::optional<Error> WhyNotOn(const AdapterVersion& next, const Sequence& sequence) const;

  // The event of a request that ends because of Retarget.
  void End(GenerationEvent& event, std::optional<Error> why);

  // Between steps: the requests that the scheduler knows go to their successors, in the order of arrival, or end. Those
  // that end do so first.
  bool ApplyRetargetings(TimeNs now);

  bool EndsBy(const Retargeting& retargeting, Sequence& sequence, TimeNs now);

  void MoveTo(Sequence& sequence, const Retargeting& retargeting, TimeNs now);

  // Takes over retired generations. They are dropped at once, or with their last request.
  bool CollectRetired();

  // Takes over registered generations. After CollectRetired, so that a replay, whose registry knows before the step
  // what is retired in it, decides alike.
  bool AddRegistered();

  bool CollectTransfers(TimeNs now);

  // The error of the chunk's part of the step, if that failed alone. `next`: of StepResult::failures.
  std::optional<Error> TakeFailure(const PlannedChunk& chunk, std::size_t& next);

  // What a collected step gives for one chunk.
  struct ChunkResult {
    std::span<SampledToken> tokens;  // the sampled ones: the first, and those behind the draft
    std::span<ScoredToken> scores;
    std::int64_t positions = 0;  // that were pooled
    std::span<const double> sum;
  };

  // A request goes on by what a chunk of it gave.
  void TakeChunk(const PlannedChunk& chunk, const ChunkResult& given, TimeNs now);

  // True if no step is in flight, so that the next one can be planned.
  bool CollectStep(TimeNs now);

  // Between steps no kernel reads any page, so cancelled requests return theirs here.
  bool ApplyCancellations(TimeNs now);

  // Between steps: what DropHistory was called for.
  bool ApplyDrops(TimeNs now);

  // In place of a plan, once the executor computes no more: ends all requests.
  bool EndAllRequests(TimeNs now);

  bool PlanAndSubmit(TimeNs now);

  // Callbacks run while the executor computes.
  void Publish(TimeNs now);

  // Asks for the end of all accepted requests. On any thread.
  void EndAll(FinishReason reason);

  // ---- Transfers that a step uses while they arrive ----
  // Calls visit(transfer, progress, used) for each transfer that may be used while it arrives. `used`: a step computes
  // with it, and the result is valid only if it arrives. What was computed from a whole copy in the host tier is valid
  // whatever becomes of its load.
  template <typename Visit>
  void ForArrivals(const Visit& visit) const;

  // Whether the step in flight uses a transfer that is still arriving. A request is admitted with such a transfer only
  // for the step that is submitted next. That step is not collected before the whole transfer has arrived or failed. So
  // a failure discards only a request's first chunk since its admission.
  bool UsesWhatIsArriving() const;

  void TellOfArrivals();

  // Discards a request's part of the step if its adapter or history failed to arrive, and returns true. Without its
  // adapter the request ends; missing history is recomputed.
  bool Discard(Request& request, TimeNs now);

  // The executor could not compute the step: its sequences end. If the executor is lost, no later step is planned.
  void FailStep(Error error, TimeNs now);

  // Ends failed transfers. Requests outside the step that still use them end first: they ran with the copy in the host
  // tier.
  void EndFailures(TimeNs now);

  // Ends those of `requests` that use, or wait for, the adapter of a failed load. Later requests try the load again.
  void Fail(std::span<Request* const> requests, const ResidencyManager::LoadFailure& failure, TimeNs now);

  void AwaitAdapter(const AdapterResidency& adapter, StepSequence& part, AdapterSegment& segment);

  void AwaitHistory(const Request& request, StepSequence& part);

  // ---- Details ----
  // Every request that the scheduler knows is the base of a Sequence.
  static Sequence& SequenceOf(Request* request) { return static_cast<Sequence&>(*request); }

  GenerationEvent& AddNews(Sequence& sequence);

  // A chunk that ends what is known. After it comes a token, unless an embedding is all that is wanted.
  static bool Samples(const PlannedChunk& chunk) { return chunk.samples && !SequenceOf(chunk.request).asked.pooling; }

  // The length of each sum of the step in flight.
  std::size_t PoolWidth() const;

  // To everything else it is a request that has stopped, so a recording needs no other event.
  void EndStuck(Sequence& sequence, TokenId token, TimeNs now);

  // Takes the tokens of the draft that turned out right. Returns how many. None of them ends the request.
  std::int64_t TakeDraft(Sequence& sequence, std::span<SampledToken> tokens);

  void TakeToken(Sequence& sequence, SampledToken& token, TimeNs now);

  // Guesses what follows, for a later step.
  void DraftNext(Sequence& sequence);

  // A generation that was retired after the request was resolved is still served.
  void AcquireAdapter(std::shared_ptr<const AdapterVersion> version);

  void Register(std::shared_ptr<const AdapterVersion> version);

  // ---- Pinned adapters ----
  void ApplyPin(PinRequest pin);

  // Reserves the adapter's pages if all accepted requests can still run. Holds the inbox's lock, so that no request can
  // be accepted for the same memory in between.
  Status TryKeep(const AdapterVersion& version);

  // Device pages that a request may need beside kept adapters, assuming that `kept_too` is kept.
  std::int64_t PagesNeeded(const Sequence& sequence, AdapterGeneration kept_too) const;
  std::int64_t PagesOf(std::int64_t tokens) const;
  // Device pages reserved for adapters; 0: adapters share the pool with keys and values.
  std::int64_t AdapterShare() const;
  // Pages of all kept adapters. REQUIRES: inbox.mutex is held.
  std::int64_t KeptPages() const;

  void LetGo(AdapterGeneration generation);

  void EndPin(AdapterGeneration generation, Status status);

  void EndPinsThatAreLoaded();

  // `by_itself`: it generated its whole output.
  GenerationEvent& Finish(Sequence& sequence, FinishReason reason, TimeNs now, bool by_itself = false);

  void SubmitBatch(const StepPlan& plan, TimeNs now);

  // Copies the snapshot from which the request's states are, if there is one.
  void CopyStates(const Request& request);

  void AddToBatch(const PlannedChunk& chunk);

  void AddSample(const Sequence& request, std::span<const TokenId> draft, StepSequence& part);

  void Tell(Sequence& sequence, GenerationEvent& event, TimeNs now);

  void UpdateStats(const StepPlan& plan);
  EngineStats totals;

  void DeliverSnapshot(TimeNs now);

  // Device pages for keys and values beside this adapter. REQUIRES: inbox.mutex is held.
  std::int64_t PagesBesideAdapter(AdapterGeneration adapter) const;
};

}  // namespace loramux
