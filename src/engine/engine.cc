#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>

#include "base/check.h"
#include "costs/service_times.h"
#include "engine/make_sequence.h"
#include "engine/sequence.h"
#include "engine/step_batch_builder.h"
#include "engine/successors.h"
#include "schedule/plan/cold_start.h"

namespace loramux {
namespace {

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
  std::vector<PinRequest> pins;
  std::map<AdapterGeneration, std::int64_t> kept_pages;  // pages of kept adapters; only the engine thread changes it
  std::vector<std::unique_ptr<Sequence>> submitted;
  std::vector<RequestId> cancelled;
  std::vector<AdapterGeneration> retargeted;  // generations that Retarget was called for
  Successors successors;                      // those of these and of earlier ones
  std::optional<FinishReason> cancel_all;     // all that were accepted end like this
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

// Whether adapters that are read from disk are used layer by layer. They may go through the host tier, so steps must
// compute there.
bool ReadsByLayer(const SystemSpec& options) {
  return options.disk_by_layer && options.reads_host_tier && options.cold_start_policy != ColdStartPolicy::kWait;
}

}  // namespace

struct Engine::Impl {
  const EngineOptions options;
  const EngineParts parts;
  EngineObserver& observer;
  ResidencyManager residency;
  KvTiers& tiers;
  Scheduler scheduler;

  Inbox inbox;
  // looked up by id, never iterated for decisions
  std::unordered_map<RequestId, std::unique_ptr<Sequence>> sequences;
  std::vector<std::unique_ptr<Sequence>> arriving;  // swapped with inbox.submitted
  std::vector<std::pair<RequestId, FinishReason>> cancelling, cancelled_now;
  std::vector<Retargeting> retargetings;  // in order
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
  StepResult result;
  // What happened in the collected step. Delivered to the clients after the next step was submitted.
  std::vector<News> news;
  std::vector<ResidencyManager::LoadFailure> load_failures;
  std::vector<ResidencyManager::LoadFailure> failed_arrivals;  // failures of adapters that the step in flight uses

  mutable std::mutex stats_mutex;
  EngineStats stats;
  mutable SnapshotExchange snapshots;

  Impl(EngineOptions o, EngineParts p)
      : options(std::move(o)),
        parts(p),
        observer(*p.observer),
        residency(*p.device, *p.host, *p.transfer, ReadsByLayer(options.spec)),
        tiers(*p.tiers),
        scheduler(options.spec, {.device = *p.device,
                                 .residency = residency,
                                 .eviction = *p.eviction,
                                 .tree = *p.tree,
                                 .tiers = tiers,
                                 .queue = *p.queue,
                                 .predictor = *p.predictor}),
        builder(p.executor->reads_contents()) {
    CHECK_GT(options.max_model_len, 0);
    CHECK_GT(options.vocab_size, 0);
    scheduler.set_on_moves([this](const MovePlan& moves) { observer.Moving(moves); });
    stats.device = parts.device->Stats();
    stats.host = parts.host->Stats();
    const PerformanceModel* const costs = scheduler.options().costs.get();
    stats.profile_step_seconds = totals.profile_step_seconds = costs == nullptr ? 0 : ShortestStepSeconds(*costs);
  }

  // ---- The phases of a step, in order ----

  bool DrainInbox(TimeNs now) {
    std::optional<FinishReason> all;  // CancelAll or AbortAll was called
    {
      const std::lock_guard lock(inbox.mutex);
      accepting = inbox.accepting;
      hold = accepting ? inbox.hold : Hold::kNone;
      if (hold == Hold::kNone || inbox.cancel_all) arriving.swap(inbox.submitted);
      pinning.swap(inbox.pins);
      for (const RequestId id : inbox.cancelled) {
        if (EndHeld(id, now)) continue;
        observer.CancelAsked(id);
        cancelling.emplace_back(id, FinishReason::kCancelled);
      }
      inbox.cancelled.clear();
      TakeRetargeted(now);
      all = std::exchange(inbox.cancel_all, std::nullopt);
      totals.held = static_cast<std::int64_t>(inbox.submitted.size());
    }
    if (all) observer.CancelAllAsked();
    observer.Holding(hold);
    if (!accepting) observer.Ending();
    const bool any = !arriving.empty() || !pinning.empty();
    for (auto& sequence : arriving) {
      sequence->arrival = now;
      observer.Arrived(*sequence, sequence->version.get());
      if (sequence->adapter != kBaseModel) AcquireAdapter(std::move(sequence->version));
      scheduler.Add(sequence.get());
      sequences.emplace(sequence->id, std::move(sequence));
    }
    arriving.clear();
    for (PinRequest& pin : pinning) ApplyPin(std::move(pin));
    pinning.clear();
    if (all) CancelKnown(*all);
    return any;
  }

  // All requests that were taken from the inbox so far. One that comes while a step is in flight is not among them.
  void CancelKnown(FinishReason reason) {
    for (const auto& [id, sequence] : sequences) cancelling.emplace_back(id, reason);
    std::sort(cancelling.begin(), cancelling.end());
  }

  // Takes a request out of the inbox that is cancelled while it is held: the scheduler and recordings never see it.
  // False: it is not held. REQUIRES: the inbox's mutex is held.
  bool EndHeld(RequestId id, TimeNs now) {
    const auto found = std::ranges::find(inbox.submitted, id, [](const auto& sequence) { return sequence->id; });
    if (found == inbox.submitted.end()) return false;
    EndUnseen(std::move(*found), now).finish = FinishReason::kCancelled;
    inbox.submitted.erase(found);
    return true;
  }

  // Ends a request that the scheduler has not seen.
  GenerationEvent& EndUnseen(std::unique_ptr<Sequence> unseen, TimeNs now) {
    const RequestId id = unseen->id;
    Sequence& sequence = *sequences.emplace(id, std::move(unseen)).first->second;
    sequence.arrival = now;
    sequence.state = RequestState::kFinished;
    return AddNews(sequence);
  }

  // ---- Versions that take the place of others (Retarget) ----

  // Takes the calls of Retarget. What the scheduler has not seen moves at once; the rest waits for ApplyRetargetings.
  // REQUIRES: the inbox's mutex is held; what arrives was taken.
  void TakeRetargeted(TimeNs now) {
    for (const AdapterGeneration old : inbox.retargeted) {
      const Successor* const successor = inbox.successors.Of(old);
      if (successor == nullptr) continue;  // nothing can be on it any more
      Retargeting taken{.old = old, .next = successor->next.lock(), .why = successor->why};
      if (successor->ends) taken.next = nullptr;
      if (!successor->ends && taken.next == nullptr) continue;
      taken.next_retired = taken.next != nullptr && parts.registry->IsRetired(taken.next->generation);
      const bool aborts = successor->ends && !successor->why;
      AddRetargeting(taken);
      if (!aborts) continue;
      for (const AdapterGeneration composite : CompositesWith(old)) {
        taken.old = composite;
        AddRetargeting(taken);
      }
    }
    if (!inbox.successors.empty()) MoveUnseen(arriving, now);
    if (!std::exchange(inbox.retargeted, {}).empty()) MoveUnseen(inbox.submitted, now);
  }

  void AddRetargeting(const Retargeting& added) {
    for (Retargeting& earlier : retargetings) {
      if (earlier.next == nullptr || earlier.next->generation != added.old) continue;
      const AdapterGeneration old = earlier.old;
      earlier = added;
      earlier.old = old;
    }
    observer.RetargetAsked(added.old, added.next.get());
    retargetings.push_back(added);
  }

  // The composites that have the part, of the requests that the scheduler knows.
  std::vector<AdapterGeneration> CompositesWith(AdapterGeneration part) const {
    std::vector<AdapterGeneration> composites;
    for (const auto& [id, sequence] : sequences) {
      if (sequence->state == RequestState::kFinished || sequence->adapter == kBaseModel) continue;
      const auto& of = residency.Get(sequence->adapter).version->parts;
      if (std::ranges::any_of(of, [&](const auto& one) { return one->generation == part; }))
        composites.push_back(sequence->adapter);
    }
    std::ranges::sort(composites);
    const auto same = std::ranges::unique(composites);
    composites.erase(same.begin(), same.end());
    return composites;
  }

  // Requests that the scheduler has not seen go to the successor of their version, or end. Recordings have what becomes
  // of them alone. REQUIRES: the inbox's mutex is held.
  void MoveUnseen(std::vector<std::unique_ptr<Sequence>>& unseen, TimeNs now) {
    for (std::unique_ptr<Sequence>& sequence : unseen) {
      if (sequence->version == nullptr || sequence->keeps_version) continue;
      const Successor* const successor = inbox.successors.Of(*sequence->version);
      if (successor == nullptr) continue;
      std::shared_ptr<const AdapterVersion> next = successor->next.lock();
      if (!successor->ends && next == nullptr) {
        sequence->keeps_version = true;  // a replay knows no version that is gone
        continue;
      }
      std::optional<Error> why = successor->ends ? successor->why : WhyNotOn(*next, *sequence);
      if (!successor->ends && !why) {
        sequence->adapter = next->generation;
        sequence->version = std::move(next);
        ++totals.retargeted.moved;
        continue;
      }
      End(EndUnseen(std::move(sequence), now), std::move(why));
    }
    std::erase(unseen, nullptr);
  }

  // The error of a request that memory or embeddings keep from going on with a version; nullopt: it can. REQUIRES: the
  // inbox's mutex is held.
  std::optional<Error> WhyNotOn(const AdapterVersion& next, const Sequence& sequence) const {
    const std::string begun =
        "The adapter `" + next.name + "` was loaded anew, and this request cannot go on with it: ";
    if (PagesOf(sequence.max_total_tokens) > PagesBesideAdapter(next.generation)) {
      return ResourceExhausted(begun + "the device memory does not hold its " +
                               std::to_string(sequence.max_total_tokens) + " tokens beside the new version (" +
                               std::to_string(next.layout.pages) + " pages). Shorten it, or raise --device-memory.");
    }
    const auto unknown = FindUnknownToken(sequence.tokens, options.vocab_size, &next);
    if (!unknown) return std::nullopt;
    return Unavailable(begun + "the new version does not embed its token " + std::to_string(*unknown) + ".");
  }

  // The event of a request that ends because of Retarget.
  void End(GenerationEvent& event, std::optional<Error> why) {
    ++(why ? totals.retargeted.failed : totals.retargeted.aborted);
    event.finish = why ? FinishReason::kError : FinishReason::kAborted;
    event.error = std::move(why);
  }

  // Between steps: the requests that the scheduler knows go to their successors, in the order of arrival, or end. Those
  // that end do so first.
  bool ApplyRetargetings(TimeNs now) {
    bool any = false;
    for (const Retargeting& retargeting : std::exchange(retargetings, {})) {
      std::vector<Sequence*> moving;
      for (const auto& [id, sequence] : sequences) {
        if (sequence->state == RequestState::kFinished || sequence->keeps_version) continue;
        if (sequence->adapter == retargeting.old) moving.push_back(sequence.get());
      }
      std::ranges::sort(moving, {}, [](const Sequence* sequence) { return sequence->id; });
      any |= !moving.empty();
      std::erase_if(moving, [&](Sequence* sequence) { return EndsBy(retargeting, *sequence, now); });
      for (Sequence* const sequence : moving) MoveTo(*sequence, retargeting, now);
    }
    return any;
  }

  bool EndsBy(const Retargeting& retargeting, Sequence& sequence, TimeNs now) {
    std::optional<Error> why = retargeting.why;
    if (retargeting.next != nullptr) {
      const std::lock_guard lock(inbox.mutex);
      why = WhyNotOn(*retargeting.next, sequence);
      if (!why) return false;
      observer.CancelAsked(sequence.id);  // a replay does not know each reason
    }
    End(Finish(sequence, FinishReason::kAborted, now), std::move(why));
    return true;
  }

  void MoveTo(Sequence& sequence, const Retargeting& retargeting, TimeNs now) {
    const AdapterGeneration old = sequence.adapter, next = retargeting.next->generation;
    residency.Add(retargeting.next);
    residency.Acquire(next);
    if (retargeting.next_retired) residency.Retire(next);
    if (sequence.generated().empty()) sequence.BeginPrompt();  // else the scores come with the first token
    observer.Retargeted(sequence, *retargeting.next, sequence.tokens);
    scheduler.ChangeAdapter(&sequence, next, now);
    residency.Release(old);
    ++totals.retargeted.moved;
  }

  // Takes over retired generations. They are dropped at once, or with their last request.
  bool CollectRetired() {
    retired.clear();
    parts.registry->TakeRetired(retired);
    for (const AdapterGeneration generation : retired) {
      observer.Retired(generation);
      for (Retargeting& retargeting : retargetings) {
        const bool gone = retargeting.next != nullptr && retargeting.next->generation == generation;
        retargeting.next_retired |= gone;
      }
      LetGo(generation);
      residency.Retire(generation);
    }
    return !retired.empty();
  }

  bool CollectTransfers(TimeNs now) {
    load_failures.clear();
    const bool changed =
        residency.Poll(now, load_failures, [&](const TransferCompletion& done) { tiers.End(done, now); });
    tiers.Look();
    TellOfArrivals();
    for (const auto& failure : load_failures) {
      EndPin(failure.generation, failure.error);
      // A generation that was unloaded meanwhile and has no references is unknown by now.
      if (residency.Knows(failure.generation) && residency.Get(failure.generation).failed)
        failed_arrivals.push_back(failure);
      Fail(scheduler.waiting(), failure, now);
    }
    if (changed) EndPinsThatAreLoaded();
    return changed;
  }

  // The error of the chunk's part of the step, if that failed alone. `next`: of StepResult::failures.
  std::optional<Error> TakeFailure(const PlannedChunk& chunk, std::size_t& next) {
    if (next == result.failures.size()) return std::nullopt;
    SequenceFailure& failure = result.failures[next];
    if (&in_flight[static_cast<std::size_t>(failure.sequence)] != &chunk) return std::nullopt;
    ++next;
    return std::move(failure.error);
  }

  // True if no step is in flight, so that the next one can be planned.
  bool CollectStep(TimeNs now) {
    if (!step_in_flight) {
      if (!failed_arrivals.empty()) EndFailures(now);
      return true;
    }
    if (!step_computed && !parts.executor->Poll(result)) return false;
    if (!step_computed) {
      // `now` is older than the Poll. If the engine's thread was held up in between, the executor has seen more time
      // pass.
      result.waited = std::min(result.waited, now - step_began);
      observer.Computed(result.waited);
      builder.Recycle(std::move(result.batch));
      step_computed = true;
      step_ended = now;
    }
    if (UsesWhatIsArriving()) return false;  // no result may be used before it is known to be valid
    observer.Collected();
    step_in_flight = false;
    residency.EndHostReads();
    scheduler.StepTook(step_ended - step_began - result.waited);
    totals.replayed_steps += result.replayed ? 1 : 0;
    totals.step_wait_total += result.waited + (now - step_ended);
    if (result.error.has_value()) {
      FailStep(*std::exchange(result.error, std::nullopt), now);
      return true;
    }
    const bool any_failed = !failed_arrivals.empty() || tiers.AnyFailed();
    std::size_t sampled = 0, scored = 0, pooled = 0;
    const std::size_t width = PoolWidth();
    std::size_t failures = 0;  // failures that were told
    for (const PlannedChunk& chunk : in_flight) {
      Sequence& sequence = SequenceOf(chunk.request);
      SampledToken* token = Samples(chunk) ? &result.tokens[sampled++] : nullptr;
      const std::size_t count = sequence.ScoredBy(chunk.num_tokens).size();
      const std::span<ScoredToken> scores = std::span(result.scores).subspan(scored, count);
      scored += count;
      const std::int64_t positions = sequence.PooledBy(chunk.num_tokens).count;
      const std::span<const double> sum = std::span(result.pooled).subspan(pooled, positions > 0 ? width : 0);
      pooled += sum.size();
      std::optional<Error> failed = TakeFailure(chunk, failures);
      if (any_failed && Discard(sequence, now)) continue;
      if (failed.has_value()) {
        Finish(sequence, FinishReason::kError, now).error = *std::move(failed);
        continue;
      }
      if (!scores.empty()) sequence.AddScores(scores);
      if (positions > 0) sequence.TakeSum(positions, sum);
      scheduler.Advance(&sequence, chunk.num_tokens, now);
      if (token != nullptr) TakeToken(sequence, *token, now);
      if (sequence.asked.pooling && chunk.samples) {
        sequence.MakeEmbedding();
        Finish(sequence, FinishReason::kLength, now, /*by_itself=*/true);
      }
    }
    CHECK_EQ(sampled, result.tokens.size());
    CHECK_EQ(scored, result.scores.size());
    CHECK_EQ(pooled, result.pooled.size());
    if (any_failed) EndFailures(now);
    return true;
  }

  // Between steps no kernel reads any page, so cancelled requests return theirs here.
  bool ApplyCancellations(TimeNs now) {
    cancelled_now.swap(cancelling);
    bool any = false;
    for (const auto& [id, reason] : cancelled_now) {
      const auto found = sequences.find(id);
      if (found == sequences.end() || found->second->state == RequestState::kFinished) continue;
      Finish(*found->second, reason, now);
      any = true;
    }
    cancelled_now.clear();
    return any;
  }

  // In place of a plan, once the executor computes no more: ends all requests.
  bool EndAllRequests(TimeNs now) {
    std::vector<Sequence*> ending;
    for (const auto& [id, sequence] : sequences) {
      if (sequence->state != RequestState::kFinished) ending.push_back(sequence.get());
    }
    std::sort(ending.begin(), ending.end(), [](const Sequence* a, const Sequence* b) { return a->id < b->id; });
    for (Sequence* sequence : ending) Finish(*sequence, FinishReason::kError, now).error = *lost;
    while (!loading_pins.empty()) EndPin(loading_pins.back().version->generation, *lost);
    UpdateStats(StepPlan{});
    return !ending.empty();
  }

  bool PlanAndSubmit(TimeNs now) {
    if (hold == Hold::kAll) {
      UpdateStats(StepPlan{});
      return false;
    }
    const StepPlan& plan = scheduler.Plan(now);
    observer.Planned({plan, scheduler, residency, *parts.device, *parts.host, now});
    const bool changes = !plan.ChangesNothing();
    scheduler.Commit(plan, now);
    if (!plan.chunks.empty()) SubmitBatch(plan, now);
    UpdateStats(plan);
    return scheduler.Prepare(now, /*ending=*/!accepting) || changes;
  }

  // Callbacks run while the executor computes.
  void Publish(TimeNs now) {
    for (News& told : news) Tell(*told.sequence, told.event, now);
    news.clear();
  }

  // Asks for the end of all accepted requests. On any thread.
  void EndAll(FinishReason reason);

  // ---- Transfers that a step uses while they arrive ----

  // Calls visit(transfer, progress, used) for each transfer that may be used while it arrives. `used`: a step computes
  // with it, and the result is valid only if it arrives. What was computed from a whole copy in the host tier is valid
  // whatever becomes of its load.
  template <typename Visit>
  void ForArrivals(const Visit& visit) const {
    for (const AdapterGeneration generation : residency.Arriving()) {
      const AdapterResidency& adapter = residency.Get(generation);
      const bool whole = ComputesFromHost(options.spec, adapter) && adapter.host == TierState::kResident;
      visit(std::uint64_t{generation.value}, *adapter.progress, adapter.users > 0 && !whole);
    }
    for (const KvTiers::Job& fetch : tiers.fetches())
      visit(fetch.id, *fetch.progress, fetch.users > 0 && !fetch.failed);
  }

  // Whether the step in flight uses a transfer that is still arriving. A request is admitted with such a transfer only
  // for the step that is submitted next. That step is not collected before the whole transfer has arrived or failed. So
  // a failure discards only a request's first chunk since its admission.
  bool UsesWhatIsArriving() const {
    bool any = false;
    ForArrivals([&any](std::uint64_t, const LayerProgress&, bool used) { any |= used; });
    return any;
  }

  void TellOfArrivals() {
    ForArrivals([this](std::uint64_t transfer, const LayerProgress& progress, bool) {
      observer.SawLayers(transfer, progress.seen());
    });
  }

  // Discards a request's part of the step if its adapter or history failed to arrive, and returns true. Without its
  // adapter the request ends; missing history is recomputed.
  bool Discard(Request& request, TimeNs now) {
    const auto failure = std::find_if(failed_arrivals.begin(), failed_arrivals.end(),
                                      [&](const auto& failed) { return failed.generation == request.adapter; });
    if (failure != failed_arrivals.end()) {
      Finish(SequenceOf(&request), FinishReason::kError, now).error = failure->error;
      return true;
    }
    if (!scheduler.BeganOnFailedFetch(request)) return false;
    scheduler.BeginAgain(&request, now);
    return true;
  }

  // The executor could not compute the step: its sequences end. If the executor is lost, no later step is planned.
  void FailStep(Error error, TimeNs now) {
    for (const PlannedChunk& chunk : in_flight) {
      Sequence& sequence = SequenceOf(chunk.request);
      if (scheduler.BeganOnFailedFetch(sequence)) scheduler.BeginAgain(&sequence, now);
      Finish(sequence, FinishReason::kError, now).error = error;
    }
    EndFailures(now);
    if (error.code != ErrorCode::kUnavailable) return;
    const std::lock_guard lock(inbox.mutex);
    inbox.accepting = false;
    inbox.lost = lost = std::move(error);
  }

  // Ends failed transfers. Requests outside the step that still use them end first: they ran with the copy in the host
  // tier.
  void EndFailures(TimeNs now) {
    for (const ResidencyManager::LoadFailure& failed : failed_arrivals) Fail(scheduler.running(), failed, now);
    failed_arrivals.clear();
    residency.EndFailedLoads();
    tiers.EndFailedFetches();
  }

  // Ends those of `requests` that use, or wait for, the adapter of a failed load. Later requests try the load again.
  void Fail(std::span<Request* const> requests, const ResidencyManager::LoadFailure& failure, TimeNs now) {
    std::vector<Request*> concerned;
    std::copy_if(requests.begin(), requests.end(), std::back_inserter(concerned),
                 [&](const Request* request) { return request->adapter == failure.generation; });
    for (Request* request : concerned) Finish(SequenceOf(request), FinishReason::kError, now).error = failure.error;
  }

  void AwaitAdapter(const AdapterResidency& adapter, StepSequence& part, AdapterSegment& segment) {
    segment.in_host = ComputesFromHost(options.spec, adapter);
    CHECK(segment.in_host || adapter.host != TierState::kLoading);  // else the device's pages are empty
    if (segment.in_host) residency.ReadInHost(adapter.version->generation);
    if (segment.in_host && adapter.host == TierState::kResident)
      segment.to_device = adapter.progress;
    else
      part.adapter_arrival = builder.batch().Await(adapter.progress);
  }

  void AwaitHistory(const Request& request, StepSequence& part) {
    if (parts.tree->tiers().OnDevice(request.tail)) return;
    const KvTiers::Job* fetch = tiers.FetchOf(request.tail);
    CHECK(fetch != nullptr);
    part.kv_arrival = builder.batch().Await(fetch->progress);
  }

  // ---- Details ----

  // Every request that the scheduler knows is the base of a Sequence.
  static Sequence& SequenceOf(Request* request) { return static_cast<Sequence&>(*request); }

  GenerationEvent& AddNews(Sequence& sequence) {
    GenerationEvent& event = news.emplace_back(sequence).event;
    event.adapter = sequence.adapter;
    return event;
  }

  // A chunk that ends what is known. After it comes a token, unless an embedding is all that is wanted.
  static bool Samples(const PlannedChunk& chunk) { return chunk.samples && !SequenceOf(chunk.request).asked.pooling; }

  // The length of each sum of the step in flight.
  std::size_t PoolWidth() const {
    if (result.pooled.empty()) return 0;
    const auto pools = std::count_if(in_flight.begin(), in_flight.end(), [](const PlannedChunk& chunk) {
      return SequenceOf(chunk.request).PooledBy(chunk.num_tokens).count > 0;
    });
    return pools == 0 ? 0 : result.pooled.size() / static_cast<std::size_t>(pools);
  }

  // To everything else it is a request that has stopped, so a recording needs no other event.
  void EndStuck(Sequence& sequence, TokenId token, TimeNs now) {
    observer.Sampled(sequence.id, token, /*stops=*/true);
    Finish(sequence, FinishReason::kError, now, /*by_itself=*/true).error = *sequence.asked.constraint->failure();
  }

  void TakeToken(Sequence& sequence, SampledToken& token, TimeNs now) {
    if (sequence.max_total_tokens == sequence.prompt_tokens) {  // only the prompt was wanted
      Finish(sequence, FinishReason::kLength, now, /*by_itself=*/true);
      return;
    }
    TokenConstraint* const constraint = sequence.asked.constraint.get();
    if (constraint != nullptr && constraint->failure() != nullptr) return EndStuck(sequence, token.id, now);
    const auto& stop_ids = sequence.asked.stop_token_ids;
    const bool stops = std::find(stop_ids.begin(), stop_ids.end(), token.id) != stop_ids.end();
    observer.Sampled(sequence.id, token.id, stops);
    if (stops) {
      Finish(sequence, FinishReason::kStop, now, /*by_itself=*/true).stop = std::move(token);
      return;
    }
    sequence.tokens.push_back(token.id);
    ++totals.tokens_generated;
    const bool full = static_cast<std::int32_t>(sequence.tokens.size()) >= sequence.max_total_tokens;
    if (!full && constraint != nullptr) constraint->Advance(token.id);
    (full ? Finish(sequence, FinishReason::kLength, now, /*by_itself=*/true) : AddNews(sequence)).token =
        std::move(token);
  }

  // A generation that was retired after the request was resolved is still served.
  void AcquireAdapter(std::shared_ptr<const AdapterVersion> version) {
    const AdapterGeneration generation = version->generation;
    residency.Add(std::move(version));
    residency.Acquire(generation);
    if (parts.registry->IsRetired(generation)) residency.Retire(generation);
  }

  // ---- Pinned adapters ----

  void ApplyPin(PinRequest pin) {
    if (lost.has_value()) return pin.done(*lost);
    const AdapterGeneration generation = pin.version->generation;
    if (!pin.pinned) {
      observer.Pinned(*pin.version, false);
      LetGo(generation);
      EndPin(generation, InvalidArgument("the adapter was unpinned before its load ended", "pinned"));
      return pin.done(Ok{});
    }
    const Status kept = TryKeep(*pin.version);
    if (!kept.ok()) return pin.done(kept);
    observer.Pinned(*pin.version, true);
    residency.Add(pin.version);
    residency.Keep(generation, true);
    loading_pins.push_back(std::move(pin));
    EndPinsThatAreLoaded();
  }

  // Reserves the adapter's pages if all accepted requests can still run. Holds the inbox's lock, so that no request can
  // be accepted for the same memory in between.
  Status TryKeep(const AdapterVersion& version) {
    if (parts.registry->IsRetired(version.generation))
      return Unavailable("the adapter was unloaded while it was pinned");
    const std::lock_guard lock(inbox.mutex);
    if (inbox.kept_pages.contains(version.generation)) return Ok{};
    const std::int64_t share = AdapterShare();
    const std::int64_t capacity = share > 0 ? share : parts.device->capacity_pages();
    const std::int64_t kept = KeptPages() + version.layout.pages;
    const std::int64_t one_sequence = PagesOf(options.max_model_len);
    const std::int64_t reserve = share > 0 ? 0 : std::min(one_sequence, capacity / 2);
    if (kept + reserve > capacity) {
      const std::string room =
          share > 0 ? "it does not fit the " + std::to_string(share) + " pages that this cache has for adapters"
                    : "fewer than " + std::to_string(reserve) + " of the device's " + std::to_string(capacity) +
                          " pages would stay free for requests";
      return ResourceExhausted("adapter '" + version.name + "' takes " + std::to_string(version.layout.pages) +
                                   " pages; with " + std::to_string(kept - version.layout.pages) +
                                   " pages pinned already, " + room +
                                   ". Unload a pinned adapter, or raise --device-memory.",
                               "pinned");
    }
    std::int64_t needed = 0;
    for (const auto& [id, sequence] : sequences) needed = std::max(needed, PagesNeeded(*sequence, version.generation));
    for (const auto& sequence : inbox.submitted) needed = std::max(needed, PagesNeeded(*sequence, version.generation));
    if (kept + needed > capacity) {
      return Unavailable(
          "adapter '" + version.name +
              "' cannot be pinned now: a running or waiting request may need the memory; try again later",
          "pinned");
    }
    inbox.kept_pages.emplace(version.generation, version.layout.pages);
    return Ok{};
  }

  // Device pages that a request may need beside kept adapters, assuming that `kept_too` is kept.
  std::int64_t PagesNeeded(const Sequence& sequence, AdapterGeneration kept_too) const {
    if (sequence.state == RequestState::kFinished) return 0;
    const std::int64_t own = AdapterShare() > 0 ? 0 : PagesOf(sequence.max_total_tokens);
    if (sequence.adapter == kBaseModel || sequence.adapter == kept_too || inbox.kept_pages.contains(sequence.adapter)) {
      return own;
    }
    const auto version = sequence.version != nullptr ? sequence.version : residency.Get(sequence.adapter).version;
    return own + version->layout.pages;
  }
  std::int64_t PagesOf(std::int64_t tokens) const {
    return options.spec.state_pages + (tokens + options.spec.page_tokens - 1) / options.spec.page_tokens;
  }
  // Device pages reserved for adapters; 0: adapters share the pool with keys and values.
  std::int64_t AdapterShare() const {
    return AdapterSharePages(options.spec.adapter_share, parts.device->capacity_pages());
  }
  // Pages of all kept adapters. REQUIRES: inbox.mutex is held.
  std::int64_t KeptPages() const {
    std::int64_t pages = 0;
    for (const auto& [generation, kept] : inbox.kept_pages) pages += kept;
    return pages;
  }

  void LetGo(AdapterGeneration generation) {
    {
      const std::lock_guard lock(inbox.mutex);
      inbox.kept_pages.erase(generation);
    }
    if (residency.Knows(generation)) residency.Keep(generation, false);
    EndPin(generation, Unavailable("the adapter was unloaded while it was pinned"));
  }

  void EndPin(AdapterGeneration generation, Status status) {
    for (std::size_t i = 0; i < loading_pins.size();) {
      if (loading_pins[i].version->generation != generation) {
        ++i;
        continue;
      }
      PinRequest pin = std::move(loading_pins[i]);
      loading_pins.erase(loading_pins.begin() + static_cast<std::ptrdiff_t>(i));
      if (!status.ok()) LetGo(generation);
      pin.done(status);
    }
  }

  void EndPinsThatAreLoaded() {
    for (std::size_t i = loading_pins.size(); i-- > 0;) {
      const AdapterGeneration generation = loading_pins[i].version->generation;
      if (residency.Get(generation).device == TierState::kResident) EndPin(generation, Ok{});
      i = std::min(i, loading_pins.size());
    }
  }

  // `by_itself`: it generated its whole output.
  GenerationEvent& Finish(Sequence& sequence, FinishReason reason, TimeNs now, bool by_itself = false) {
    scheduler.Remove(&sequence, now, by_itself);
    if (sequence.adapter != kBaseModel) residency.Release(sequence.adapter);
    ++totals.finished;
    observer.Ended(sequence.id);
    GenerationEvent& event = AddNews(sequence);
    event.finish = reason;
    return event;
  }

  void SubmitBatch(const StepPlan& plan, TimeNs now) {
    in_flight.assign(plan.chunks.begin(), plan.chunks.end());
    for (const PlannedAdmission& admission : plan.admissions) {
      if (admission.in_page.tokens == 0) continue;
      const Request& request = *admission.request;  // its own pages follow those of the tree
      const std::uint32_t destination = request.page_table[static_cast<std::size_t>(request.tree_pages)];
      builder.batch().copies.push_back({parts.tree->tiers().Page(admission.in_page.node).index, destination});
    }
    for (const PlannedChunk& chunk : plan.chunks) AddToBatch(chunk);
    parts.executor->Submit(builder.Take());
    step_in_flight = true;
    step_computed = false;
    step_began = now;
  }

  void AddToBatch(const PlannedChunk& chunk) {
    const Sequence& request = SequenceOf(chunk.request);
    StepBatch& batch = builder.batch();
    const auto pages = static_cast<std::size_t>(PagesOf(request.computed + chunk.num_tokens));
    CHECK_LE(pages, request.page_table.size());
    const auto first = static_cast<std::size_t>(request.computed), count = static_cast<std::size_t>(chunk.num_tokens);
    StepSequence& part = builder.Add(request.id, std::span(request.tokens).subspan(first, count), request.computed,
                                     std::span(request.page_table).first(pages));
    part.prompt_tokens = request.prompt_tokens;
    if (request.adapter != kBaseModel && !chunk.by_base) {
      const AdapterResidency& adapter = residency.Get(request.adapter);
      AdapterSegment& segment = builder.UseAdapter(part, adapter);
      if (adapter.arriving()) AwaitAdapter(adapter, part, segment);
    }
    if (chunk.admits) AwaitHistory(request, part);
    const std::span<const TokenId> scored = request.ScoredBy(chunk.num_tokens);
    if (!scored.empty()) {
      const auto known = static_cast<std::int64_t>(request.prompt_scores.size());
      batch.Score(part, scored, known - request.computed, request.asked.prompt_logprobs);
    }
    const Sequence::Positions pooled = request.PooledBy(chunk.num_tokens);
    if (pooled.count > 0) {
      batch.pools.Add(part.tokens.first + pooled.first - request.computed, pooled.count, request.pool_sum);
    }
    if (Samples(chunk)) AddSample(request, batch, part);
  }

  void AddSample(const Sequence& request, StepBatch& batch, StepSequence& part) const {
    const GenerationRequest& asked = request.asked;
    SamplerContext context = {.prompt = request.prompt(),
                              .generated = request.generated(),
                              .logit_bias = asked.logit_bias,
                              .logprob_ids = asked.logprob_token_ids};
    if (static_cast<std::int32_t>(context.generated.size()) < asked.min_tokens) {
      context.banned = asked.stop_token_ids;
    } else if (asked.ignore_eos && asked.constraint != nullptr) {
      context.banned = options.eos_token_ids;
    }
    batch.Sample(part, asked.sampling, context, asked.constraint);
  }

  void Tell(Sequence& sequence, GenerationEvent& event, TimeNs now) {
    event.arrival = sequence.arrival;
    event.first_scheduled = sequence.first_scheduled;
    event.adapter_wait = sequence.adapter_wait;
    event.now = now;
    event.prompt_tokens = sequence.prompt_tokens;
    event.cached_prompt_tokens = std::max(0, sequence.cached_tokens);
    event.generated_tokens = static_cast<std::int32_t>(sequence.generated().size());
    if (sequence.asked.prompt_logprobs >= 0 && sequence.all_scored() && !std::exchange(sequence.scores_told, true))
      event.prompt_scores = sequence.prompt_scores;
    event.embedding = std::move(sequence.embedding);
    const bool ended = event.finish != FinishReason::kNone;
    if (sequence.asked.on_event) sequence.asked.on_event(event);
    if (ended) sequences.erase(sequence.id);
  }

  void UpdateStats(const StepPlan& plan) {
    totals.steps += !plan.chunks.empty();
    totals.tokens_prefilled += plan.prefill_tokens;
    static_cast<SchedulerStats&>(totals) = scheduler.stats();
    totals.running = static_cast<std::int64_t>(scheduler.running().size());
    totals.waiting = static_cast<std::int64_t>(scheduler.waiting().size());
    totals.kv_tiers = tiers.stats();
    totals.history_pages = scheduler.history_pages();
    totals.invalid_history_pages = scheduler.CountInvalidHistory();
    totals.idle_adapter_pages = residency.idle_pages();
    totals.max_running = scheduler.options().Seats();
    totals.device = parts.device->Stats();
    totals.host = parts.host->Stats();
    totals.adapters = residency.Stats();
    totals.reload_costs = scheduler.worth().reload_costs();
    const std::lock_guard lock(stats_mutex);
    stats = totals;
  }
  EngineStats totals;

  void DeliverSnapshot(TimeNs now) {
    if (!snapshots.wanted()) return;
    snapshots.Deliver(MakeSnapshot(now, totals, options.spec.page_tokens, residency, scheduler));
  }

  // Device pages for keys and values beside this adapter. REQUIRES: inbox.mutex is held.
  std::int64_t PagesBesideAdapter(AdapterGeneration adapter) const {
    const std::int64_t share = AdapterShare(), kept = KeptPages();
    const std::int64_t pages = parts.device->capacity_pages() - (share > 0 ? share : kept);
    if (adapter == kBaseModel || inbox.kept_pages.contains(adapter)) return pages;
    const auto version = parts.registry->Find(adapter);
    if (version == nullptr) return 0;
    if (share == 0) return pages - version->layout.pages;
    return version->layout.pages + kept <= share ? pages : 0;
  }
};

Engine::Engine(EngineOptions options, EngineParts parts) : impl_(std::make_unique<Impl>(std::move(options), parts)) {}

Engine::~Engine() = default;

bool Engine::Step() {
  const TimeNs now = impl_->parts.clock->Now();
  impl_->observer.StepBegan(now);
  const bool progress = StepAt(now);
  impl_->observer.StepEnded();
  return progress;
}

bool Engine::StepAt(TimeNs now) {
  Impl& e = *impl_;
  bool progress = e.DrainInbox(now);
  progress |= e.CollectRetired();
  progress |= e.CollectTransfers(now);
  if (!e.CollectStep(now)) {
    progress |= e.scheduler.LoadForNewcomer(now);
    e.Publish(now);  // load failures are reported without waiting for the step
    e.DeliverSnapshot(now);
    return progress;
  }
  progress |= e.ApplyCancellations(now);
  progress |= e.ApplyRetargetings(now);
  progress |= !e.news.empty();
  progress |= e.lost.has_value() ? e.EndAllRequests(now) : e.PlanAndSubmit(now);
  e.Publish(now);
  e.DeliverSnapshot(now);
  return progress;
}

std::optional<std::chrono::nanoseconds> Engine::TimeToNextMove() const {
  const std::optional<TimeNs> at = impl_->scheduler.NextMove();
  // The end of the step signals the wakeup; so does the end of the hold.
  if (!at.has_value() || impl_->step_in_flight || impl_->hold == Hold::kAll) return std::nullopt;
  return std::chrono::nanoseconds(std::max<TimeNs>(0, *at - impl_->parts.clock->Now()));
}

bool Engine::PlaceInHost(std::shared_ptr<const AdapterVersion> version) {
  CHECK(!impl_->step_in_flight);
  return impl_->residency.Add(std::move(version), /*in_host=*/true);
}

bool Engine::Idle() const {
  const std::lock_guard lock(impl_->inbox.mutex);
  return impl_->inbox.submitted.empty() && impl_->inbox.pins.empty() && impl_->loading_pins.empty() &&
         impl_->sequences.empty() && !impl_->step_in_flight && impl_->residency.Stats().loading == 0 &&
         impl_->tiers.idle();
}

void Engine::Cancel(RequestId id) {
  {
    const std::lock_guard lock(impl_->inbox.mutex);
    impl_->inbox.cancelled.push_back(id);
  }
  impl_->parts.wakeup->Signal();
}

void Engine::SetPinned(std::shared_ptr<const AdapterVersion> version, bool pinned, std::function<void(Status)> done) {
  CHECK(version != nullptr);
  std::optional<Error> refusal;
  {
    const std::lock_guard lock(impl_->inbox.mutex);
    if (!impl_->inbox.accepting)
      refusal = impl_->inbox.Refusal();
    else if (pinned && impl_->inbox.hold == Hold::kAll)
      refusal = Unavailable("all requests are held, so nothing can be pinned: pin it once they go on", "pinned");
    else
      impl_->inbox.pins.push_back({std::move(version), pinned, std::move(done)});
  }
  if (refusal.has_value()) return done(*std::move(refusal));
  impl_->parts.wakeup->Signal();
}

Status Engine::Health() const {
  const std::lock_guard lock(impl_->inbox.mutex);
  if (impl_->inbox.lost.has_value()) return *impl_->inbox.lost;
  return Ok{};
}

void Engine::StopAccepting() {
  const std::lock_guard lock(impl_->inbox.mutex);
  impl_->inbox.accepting = false;
}

void Engine::SetHold(Hold hold) {
  {
    const std::lock_guard lock(impl_->inbox.mutex);
    impl_->inbox.hold = hold;
  }
  impl_->parts.wakeup->Signal();
}

void Engine::SetNextId(RequestId id) {
  const std::lock_guard lock(impl_->inbox.mutex);
  CHECK_GE(id.value, impl_->inbox.next_id);
  impl_->inbox.next_id = id.value;
}

void Engine::Retarget(const AdapterVersion& old, const std::shared_ptr<const AdapterVersion>& next) {
  {
    const std::lock_guard lock(impl_->inbox.mutex);
    impl_->inbox.successors.Set(old, next, *impl_->parts.registry);
    impl_->inbox.retargeted.push_back(old.generation);
  }
  impl_->parts.wakeup->Signal();
}

void Engine::CancelAll() { impl_->EndAll(FinishReason::kCancelled); }

void Engine::AbortAll() { impl_->EndAll(FinishReason::kAborted); }

void Engine::Impl::EndAll(FinishReason reason) {
  {
    const std::lock_guard lock(inbox.mutex);
    inbox.cancel_all = reason;
  }
  parts.wakeup->Signal();
}

EngineStats Engine::Stats() const {
  const std::lock_guard lock(impl_->stats_mutex);
  return impl_->stats;
}

std::shared_ptr<const EngineSnapshot> Engine::Snapshot(std::chrono::milliseconds patience) const {
  constexpr TimeNs kMaxAge = 100 * kNsPerMs;
  return impl_->snapshots.Ask(impl_->parts.clock->Now() - kMaxAge, patience, [this] { impl_->parts.wakeup->Signal(); });
}

std::int64_t Engine::MaxSequenceTokens(AdapterGeneration adapter) const {
  const std::lock_guard lock(impl_->inbox.mutex);
  const SystemSpec& scheduler = impl_->options.spec;
  const std::int64_t fitting = (impl_->PagesBesideAdapter(adapter) - scheduler.state_pages) * scheduler.page_tokens;
  return std::min(impl_->options.max_model_len, std::max<std::int64_t>(0, fitting));
}

Result<RequestId> Engine::Submit(GenerationRequest input) {
  Impl& e = *impl_;
  auto version = input.adapter == kBaseModel ? nullptr : e.parts.registry->Find(input.adapter);
  if (input.adapter != kBaseModel && version == nullptr) {
    return NotFound("adapter generation " + std::to_string(input.adapter.value) + " is not registered", "model");
  }
  const std::int64_t limit = MaxSequenceTokens(input.adapter);
  ASSIGN_OR_RETURN(std::unique_ptr<Sequence> sequence,
                   MakeSequence(e.options, std::move(input), std::move(version), limit));
  Sequence& request = *sequence;

  RequestId id;
  {
    const std::lock_guard lock(e.inbox.mutex);
    if (!e.inbox.accepting) return e.inbox.Refusal();
    if (e.PagesOf(request.max_total_tokens) > e.PagesBesideAdapter(request.adapter)) {
      return Unavailable("an adapter was pinned in the memory that the request needs; send the request again");
    }
    id = RequestId{e.inbox.next_id++};
    request.id = id;
    e.inbox.submitted.push_back(std::move(sequence));
  }
  e.parts.wakeup->Signal();
  return id;
}

void Engine::CheckIntegrity() const {
  impl_->parts.device->CheckIntegrity();
  impl_->parts.host->CheckIntegrity();
  impl_->residency.CheckIntegrity();
  impl_->scheduler.CheckIntegrity();
  std::int64_t references = 0, held = 0;
  for (const auto& [id, sequence] : impl_->sequences) {
    references += sequence->adapter != kBaseModel && sequence->state != RequestState::kFinished;
  }
  for (const AdapterResidency& adapter : impl_->residency.All()) held += adapter.references;
  CHECK_EQ(references, held);
  const std::lock_guard lock(impl_->inbox.mutex);
  CHECK_EQ(impl_->inbox.kept_pages.size(), impl_->residency.Kept().size());
}

}  // namespace loramux
