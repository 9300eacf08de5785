#include "engine/engine.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "costs/service_times.h"
#include "engine/engine_impl.h"
#include "engine/make_sequence.h"
#include "schedule/plan/cold_start.h"

namespace loramux {
namespace {

// Whether adapters that are read from disk are used layer by layer. They may go through the host tier, so steps must
// compute there.
bool ReadsByLayer(const SystemSpec& options) {
  return options.disk_by_layer && options.reads_host_tier && options.cold_start_policy != ColdStartPolicy::kWait;
}

}  // namespace

Engine::Impl::Impl(EngineOptions o, EngineParts p)
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
      builder(p.executor->reads_contents()),
      drafter(options.spec) {
  CHECK_GT(options.max_model_len, 0);
  CHECK_GT(options.vocab_size, 0);
  scheduler.set_on_moves([this](const MovePlan& moves) { observer.Moving(moves); });
  stats.device = parts.device->Stats();
  stats.host = parts.host->Stats();
  const PerformanceModel* const costs = scheduler.options().costs.get();
  stats.profile_step_seconds = totals.profile_step_seconds = costs == nullptr ? 0 : ShortestStepSeconds(*costs);
}

bool Engine::Impl::DrainInbox(TimeNs now) {
  std::optional<FinishReason> all;  // CancelAll or AbortAll was called
  {
    const std::lock_guard lock(inbox.mutex);
    accepting = inbox.accepting;
    hold = accepting ? inbox.hold : Hold::kNone;
    if (hold == Hold::kNone || inbox.cancel_all) arriving.swap(inbox.submitted);
    registering.swap(inbox.registered);
    pinning.swap(inbox.pins);
    for (const RequestId id : inbox.cancelled) {
      if (EndHeld(id, now)) continue;
      observer.CancelAsked(id);
      cancelling.emplace_back(id, FinishReason::kCancelled);
    }
    inbox.cancelled.clear();
    TakeRetargeted(now);
    if (!inbox.drops.empty()) observer.DropHistoryAsked();
    std::ranges::move(std::exchange(inbox.drops, {}), std::back_inserter(drops));
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

void Engine::Impl::CancelKnown(FinishReason reason) {
  for (const auto& [id, sequence] : sequences) cancelling.emplace_back(id, reason);
  std::sort(cancelling.begin(), cancelling.end());
}

bool Engine::Impl::EndHeld(RequestId id, TimeNs now) {
  const auto found = std::ranges::find(inbox.submitted, id, [](const auto& sequence) { return sequence->id; });
  if (found == inbox.submitted.end()) return false;
  EndUnseen(std::move(*found), now).finish = FinishReason::kCancelled;
  inbox.submitted.erase(found);
  return true;
}

bool Engine::Impl::ApplyDrops(TimeNs now) {
  if (drops.empty()) return false;
  const std::int64_t pages = scheduler.DropHistory(now);
  drafter.Forget();
  for (const auto& done : std::exchange(drops, {})) done(pages);
  return true;
}

GenerationEvent& Engine::Impl::EndUnseen(std::unique_ptr<Sequence> unseen, TimeNs now) {
  const RequestId id = unseen->id;
  Sequence& sequence = *sequences.emplace(id, std::move(unseen)).first->second;
  sequence.arrival = now;
  sequence.state = RequestState::kFinished;
  return AddNews(sequence);
}

bool Engine::Impl::CollectRetired() {
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

bool Engine::Impl::AddRegistered() {
  const bool any = !registering.empty();
  for (auto& version : registering) {
    if (parts.registry->IsRetired(version->generation)) continue;  // that may have been collected before
    observer.Registered(*version);
    Register(std::move(version));
  }
  registering.clear();
  return any;
}

bool Engine::Impl::CollectTransfers(TimeNs now) {
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

std::optional<Error> Engine::Impl::TakeFailure(const PlannedChunk& chunk, std::size_t& next) {
  if (next == result.failures.size()) return std::nullopt;
  SequenceFailure& failure = result.failures[next];
  if (&in_flight[static_cast<std::size_t>(failure.sequence)] != &chunk) return std::nullopt;
  ++next;
  return std::move(failure.error);
}

bool Engine::Impl::CollectStep(TimeNs now) {
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
  drafter.StepTook(in_flight, step_ended - step_began - result.waited);
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
    const std::size_t tokens = Samples(chunk) ? 1 + static_cast<std::size_t>(chunk.drafted) : 0;
    const std::size_t scores = sequence.ScoredBy(chunk.num_tokens).size();
    const std::int64_t positions = sequence.PooledBy(chunk.num_tokens).count;
    const ChunkResult given = {.tokens = std::span(result.tokens).subspan(sampled, tokens),
                               .scores = std::span(result.scores).subspan(scored, scores),
                               .positions = positions,
                               .sum = std::span(result.pooled).subspan(pooled, positions > 0 ? width : 0)};
    sampled += tokens;
    scored += scores;
    pooled += given.sum.size();
    std::optional<Error> failed = TakeFailure(chunk, failures);
    if (any_failed && Discard(sequence, now)) continue;
    if (failed.has_value()) {
      Finish(sequence, FinishReason::kError, now).error = *std::move(failed);
      continue;
    }
    TakeChunk(chunk, given, now);
  }
  CHECK_EQ(sampled, result.tokens.size());
  CHECK_EQ(scored, result.scores.size());
  CHECK_EQ(pooled, result.pooled.size());
  if (any_failed) EndFailures(now);
  return true;
}

void Engine::Impl::TakeChunk(const PlannedChunk& chunk, const ChunkResult& given, TimeNs now) {
  Sequence& sequence = SequenceOf(chunk.request);
  if (!given.scores.empty()) sequence.AddScores(given.scores);
  if (given.positions > 0) sequence.TakeSum(given.positions, given.sum);
  const std::int64_t accepted = chunk.drafted > 0 ? TakeDraft(sequence, given.tokens) : 0;
  scheduler.Advance(&sequence, chunk.num_tokens + accepted, now);
  if (!given.tokens.empty()) TakeToken(sequence, given.tokens[static_cast<std::size_t>(accepted)], now);
  if (sequence.asked.pooling && chunk.samples) {
    sequence.MakeEmbedding();
    Finish(sequence, FinishReason::kLength, now, /*by_itself=*/true);
  }
}

bool Engine::Impl::ApplyCancellations(TimeNs now) {
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

bool Engine::Impl::EndAllRequests(TimeNs now) {
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

bool Engine::Impl::PlanAndSubmit(TimeNs now) {
  if (hold == Hold::kAll) {
    UpdateStats(StepPlan{});
    return false;
  }
  const StepPlan& plan = scheduler.Plan(now);
  observer.Planned({plan, scheduler, residency, *parts.device, *parts.host, now});
  const bool changes = !plan.ChangesNothing();
  scheduler.Commit(plan, now);
  if (!plan.chunks.empty()) SubmitBatch(plan, now);
  for (Request* request : plan.exhausted) {
    Finish(SequenceOf(request), FinishReason::kError, now).error = Unavailable(
        "AdapterPoolExhausted: running requests use every adapter on the device, and there is no room for another; try "
        "again later, or raise --adapter-memory or --device-memory",
        "model");
  }
  UpdateStats(plan);
  return scheduler.Prepare(now, /*ending=*/!accepting) || changes;
}

void Engine::Impl::Publish(TimeNs now) {
  for (News& told : news) Tell(*told.sequence, told.event, now);
  news.clear();
}

template <typename Visit>
void Engine::Impl::ForArrivals(const Visit& visit) const {
  for (const AdapterGeneration generation : residency.Arriving()) {
    const AdapterResidency& adapter = residency.Get(generation);
    const bool whole = ComputesFromHost(options.spec, adapter) && adapter.host == TierState::kResident;
    visit(std::uint64_t{generation.value}, *adapter.progress, adapter.users > 0 && !whole);
  }
  for (const KvTiers::Job& fetch : tiers.fetches()) visit(fetch.id, *fetch.progress, fetch.users > 0 && !fetch.failed);
}

bool Engine::Impl::UsesWhatIsArriving() const {
  bool any = false;
  ForArrivals([&any](std::uint64_t, const LayerProgress&, bool used) { any |= used; });
  return any;
}

void Engine::Impl::TellOfArrivals() {
  ForArrivals([this](std::uint64_t transfer, const LayerProgress& progress, bool) {
    observer.SawLayers(transfer, progress.seen());
  });
}

bool Engine::Impl::Discard(Request& request, TimeNs now) {
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

void Engine::Impl::FailStep(Error error, TimeNs now) {
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

void Engine::Impl::EndFailures(TimeNs now) {
  for (const ResidencyManager::LoadFailure& failed : failed_arrivals) Fail(scheduler.running(), failed, now);
  failed_arrivals.clear();
  residency.EndFailedLoads();
  tiers.EndFailedFetches();
}

void Engine::Impl::Fail(std::span<Request* const> requests, const ResidencyManager::LoadFailure& failure, TimeNs now) {
  std::vector<Request*> concerned;
  std::copy_if(requests.begin(), requests.end(), std::back_inserter(concerned),
               [&](const Request* request) { return request->adapter == failure.generation; });
  for (Request* request : concerned) Finish(SequenceOf(request), FinishReason::kError, now).error = failure.error;
}

void Engine::Impl::AwaitAdapter(const AdapterResidency& adapter, StepSequence& part, AdapterSegment& segment) {
  segment.in_host = ComputesFromHost(options.spec, adapter);
  CHECK(segment.in_host || adapter.host != TierState::kLoading);  // else the device's pages are empty
  if (segment.in_host) residency.ReadInHost(adapter.version->generation);
  if (segment.in_host && adapter.host == TierState::kResident)
    segment.to_device = adapter.progress;
  else
    part.adapter_arrival = builder.batch().Await(adapter.progress);
}

void Engine::Impl::AwaitHistory(const Request& request, StepSequence& part) {
  if (parts.tree->tiers().OnDevice(request.tail)) return;
  const KvTiers::Job* fetch = tiers.FetchOf(request.tail);
  CHECK(fetch != nullptr);
  part.kv_arrival = builder.batch().Await(fetch->progress);
}

GenerationEvent& Engine::Impl::AddNews(Sequence& sequence) {
  GenerationEvent& event = news.emplace_back(sequence).event;
  event.adapter = sequence.adapter;
  event.generated_tokens = static_cast<std::int32_t>(sequence.generated().size());
  return event;
}

std::size_t Engine::Impl::PoolWidth() const {
  if (result.pooled.empty()) return 0;
  const auto pools = std::count_if(in_flight.begin(), in_flight.end(), [](const PlannedChunk& chunk) {
    return SequenceOf(chunk.request).PooledBy(chunk.num_tokens).count > 0;
  });
  return pools == 0 ? 0 : result.pooled.size() / static_cast<std::size_t>(pools);
}

void Engine::Impl::EndStuck(Sequence& sequence, TokenId token, TimeNs now) {
  observer.Sampled(sequence.id, token, /*stops=*/true);
  Finish(sequence, FinishReason::kError, now, /*by_itself=*/true).error = *sequence.asked.constraint->failure();
}

// A token behind which a row counts was sampled, so its constraint has not failed, and has advanced by it.
std::int64_t Engine::Impl::TakeDraft(Sequence& sequence, std::span<SampledToken> tokens) {
  const std::int64_t drafted = std::ssize(tokens) - 1;
  std::int64_t accepted = 0;
  for (; accepted < drafted && tokens[static_cast<std::size_t>(accepted + 1)].id != kNoToken; ++accepted) {
    SampledToken& token = tokens[static_cast<std::size_t>(accepted)];
    observer.Sampled(sequence.id, token.id, /*stops=*/false);
    sequence.tokens.push_back(token.id);
    ++totals.tokens_generated;
    AddNews(sequence).token = std::move(token);
  }
  drafter.Verified(sequence, drafted, accepted);
  ++totals.drafts;
  totals.drafted_tokens += drafted;
  totals.accepted_tokens += accepted;
  return accepted;
}

void Engine::Impl::DraftNext(Sequence& sequence) {
  drafter.Draft(sequence);
  observer.Drafted(sequence.id, sequence.draft);
  // A recording may say anything.
  const std::int64_t most = sequence.max_total_tokens - std::ssize(sequence.tokens) - 1;
  if (std::ssize(sequence.draft) > most)
    sequence.draft.resize(static_cast<std::size_t>(std::max<std::int64_t>(0, most)));
}

void Engine::Impl::TakeToken(Sequence& sequence, SampledToken& token, TimeNs now) {
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
  if (!full && drafter.drafts()) DraftNext(sequence);
  (full ? Finish(sequence, FinishReason::kLength, now, /*by_itself=*/true) : AddNews(sequence)).token =
      std::move(token);
}

void Engine::Impl::AcquireAdapter(std::shared_ptr<const AdapterVersion> version) {
  const AdapterGeneration generation = version->generation;
  residency.Add(std::move(version));
  residency.Acquire(generation);
  if (parts.registry->IsRetired(generation)) residency.Retire(generation);
}

void Engine::Impl::Register(std::shared_ptr<const AdapterVersion> version) {
  const AdapterGeneration generation = version->generation;
  residency.Add(std::move(version));
  residency.Register(generation);
}

GenerationEvent& Engine::Impl::Finish(Sequence& sequence, FinishReason reason, TimeNs now, bool by_itself) {
  // A stop string ends its request by a cancellation.
  if (by_itself || reason == FinishReason::kCancelled) drafter.Ended(sequence);
  scheduler.Remove(&sequence, now, by_itself);
  if (sequence.adapter != kBaseModel) residency.Release(sequence.adapter);
  ++totals.finished;
  observer.Ended(sequence.id);
  GenerationEvent& event = AddNews(sequence);
  event.finish = reason;
  return event;
}

void Engine::Impl::SubmitBatch(const StepPlan& plan, TimeNs now) {
  in_flight.assign(plan.chunks.begin(), plan.chunks.end());
  for (const PlannedAdmission& admission : plan.admissions) {
    if (admission.in_page.tokens == 0) continue;
    const Request& request = *admission.request;  // its own pages follow those of the tree
    const std::size_t own = request.states.size() + static_cast<std::size_t>(request.tree_pages);
    builder.batch().copies.push_back({parts.tree->tiers().Page(admission.in_page.node).index, request.page_table[own]});
  }
  for (const PlannedChunk& chunk : plan.chunks) {
    if (chunk.admits || chunk.takes_snapshot) CopyStates(*chunk.request);
    AddToBatch(chunk);
  }
  parts.executor->Submit(builder.Take());
  step_in_flight = true;
  step_computed = false;
  step_began = now;
}

void Engine::Impl::CopyStates(const Request& request) {
  if (request.states.empty() || !request.copied_from.has_value()) return;
  const DependencyTree& tree = *parts.tree;
  for (NodeId at = *request.copied_from; at != request.tail; at = tree.nodes().Parent(at)) {
    const auto page = static_cast<std::size_t>(tree.nodes().At(at).state - 1);
    builder.batch().copies.push_back({tree.tiers().Page(at).index, request.states[page].index});
  }
}

void Engine::Impl::AddToBatch(const PlannedChunk& chunk) {
  const Sequence& request = SequenceOf(chunk.request);
  StepBatch& batch = builder.batch();
  const auto pages = static_cast<std::size_t>(PagesOf(request.computed + chunk.num_tokens + chunk.drafted));
  CHECK_LE(pages, request.page_table.size());
  const auto first = static_cast<std::size_t>(request.computed), count = static_cast<std::size_t>(chunk.num_tokens);
  StepSequence& part = builder.Add(request.id, std::span(request.tokens).subspan(first, count), request.computed,
                                   std::span(request.page_table).first(pages));
  part.prompt_tokens = request.prompt_tokens;
  const std::span<const TokenId> draft = std::span(request.draft).first(static_cast<std::size_t>(chunk.drafted));
  if (!draft.empty()) builder.AddDraft(part, draft);
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
  if (Samples(chunk)) AddSample(request, draft, part);
}

void Engine::Impl::AddSample(const Sequence& request, std::span<const TokenId> draft, StepSequence& part) {
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
  builder.batch().Sample(part, asked.sampling, context, asked.constraint, draft);
}

void Engine::Impl::Tell(Sequence& sequence, GenerationEvent& event, TimeNs now) {
  event.arrival = sequence.arrival;
  event.first_scheduled = sequence.first_scheduled;
  event.adapter_wait = sequence.adapter_wait;
  event.now = now;
  event.prompt_tokens = sequence.prompt_tokens;
  event.cached_prompt_tokens = std::max(0, sequence.cached_tokens);
  if (sequence.asked.prompt_logprobs >= 0 && sequence.all_scored() && !std::exchange(sequence.scores_told, true))
    event.prompt_scores = sequence.prompt_scores;
  event.embedding = std::move(sequence.embedding);
  const bool ended = event.finish != FinishReason::kNone;
  if (sequence.asked.on_event) sequence.asked.on_event(event);
  if (ended) sequences.erase(sequence.id);
}

void Engine::Impl::UpdateStats(const StepPlan& plan) {
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

void Engine::Impl::DeliverSnapshot(TimeNs now) {
  if (!snapshots.wanted()) return;
  snapshots.Deliver(MakeSnapshot(now, totals, options.spec.page_tokens, residency, scheduler));
}
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
  progress |= e.AddRegistered();
  progress |= e.CollectTransfers(now);
  if (!e.CollectStep(now)) {
    progress |= e.scheduler.LoadForNewcomer(now);
    e.Publish(now);  // load failures are reported without waiting for the step
    e.DeliverSnapshot(now);
    return progress;
  }
  progress |= e.ApplyCancellations(now);
  progress |= e.ApplyRetargetings(now);
  progress |= e.ApplyDrops(now);
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

void Engine::Register(std::shared_ptr<const AdapterVersion> version) {
  if (impl_->options.spec.host_copies == HostCopies::kLoaded || impl_->parts.host->capacity_pages() == 0) return;
  {
    const std::lock_guard lock(impl_->inbox.mutex);
    impl_->inbox.registered.push_back(std::move(version));
  }
  impl_->parts.wakeup->Signal();
}

bool Engine::PlaceInHost(std::shared_ptr<const AdapterVersion> version) {
  CHECK(!impl_->step_in_flight);
  const bool placed = impl_->residency.Add(version, /*in_host=*/true);
  impl_->Register(std::move(version));
  return placed;
}

bool Engine::Idle() const {
  const std::lock_guard lock(impl_->inbox.mutex);
  return impl_->inbox.submitted.empty() && impl_->inbox.registered.empty() && impl_->inbox.pins.empty() &&
         impl_->loading_pins.empty() && !impl_->residency.reading_ahead() && impl_->inbox.drops.empty() &&
         impl_->drops.empty() && impl_->sequences.empty() && !impl_->step_in_flight &&
         impl_->residency.Stats().loading == 0 && impl_->tiers.idle();
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

void Engine::DropHistory(std::function<void(Result<std::int64_t>)> done) {
  std::optional<Error> refusal;
  {
    const std::lock_guard lock(impl_->inbox.mutex);
    if (!impl_->inbox.accepting) refusal = impl_->inbox.Refusal();
    if (!refusal) impl_->inbox.drops.push_back(std::move(done));
  }
  if (refusal) return done(*std::move(refusal));
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
