#include "record/replay.h"

#include <algorithm>
#include <deque>
#include <limits>

#include "engine/control_plane.h"
#include "record/replayed_parts.h"
#include "record/world_samples.h"
#include "schedule/predict/hint_predictor.h"
#include "schedule/predict/history_predictor.h"

namespace loramux {
namespace {

// Maps a recording's generation numbers to consecutive ones, without the gaps of adapters that no request asked for.
// Keeps the recording's order, because some decisions depend on it.
class Generations {
 public:
  void Add(const RecordedAdapter& adapter) { adapters_.push_back(adapter); }
  // Assigns the numbers. Error: a generation occurs twice.
  Status Settle() {
    std::sort(adapters_.begin(), adapters_.end(),
              [](const auto& a, const auto& b) { return a.generation < b.generation; });
    original_ = {0};
    for (const RecordedAdapter& adapter : adapters_) {
      if (adapter.generation.value == original_.back())
        return InvalidArgument("recording: the same adapter generation occurs twice");
      original_.push_back(adapter.generation.value);
    }
    return Ok{};
  }
  std::span<const RecordedAdapter> adapters() const { return adapters_; }  // the first has number 1
  std::span<const std::uint32_t> original() const { return original_; }
  // The base model is 0. Nullopt: unknown.
  std::optional<AdapterGeneration> Find(std::uint32_t original) const {
    const auto found = std::lower_bound(original_.begin(), original_.end(), original);
    if (found == original_.end() || *found != original) return std::nullopt;
    return AdapterGeneration{static_cast<std::uint32_t>(found - original_.begin())};
  }

 private:
  std::vector<RecordedAdapter> adapters_;
  std::vector<std::uint32_t> original_;
};

class ReplayWorld final : private EngineObserver {
 public:
  ReplayWorld(RecordingReader& recording, bool allow_truncated, std::int64_t check_every)
      : recording_(recording),
        setup_(recording.setup()),
        allow_truncated_(allow_truncated),
        check_every_(check_every),
        hints_(&history_) {}

  Status Build() {
    RETURN_IF_ERROR(ReadAhead());
    ControlPlaneOptions plane;
    const auto pool = [this](std::string name, std::int64_t pages) {
      return PagePool::Create(std::move(name), ArenaWithoutBytes(pages * setup_.page_bytes), setup_.page_bytes);
    };
    ASSIGN_OR_RETURN(plane.device, pool("device", setup_.device_pages));
    if (setup_.host_pages > 0) {
      ASSIGN_OR_RETURN(plane.host, pool("host", setup_.host_pages));
    }
    plane.engine = {.spec = setup_.spec,
                    .max_model_len = setup_.max_model_len,
                    .eos_token_ids = {},
                    .vocab_size = kStopToken + 1,
                    .kv_slices = setup_.kv_slices};
    plane.kv_in_host_tier = setup_.moves_kv;
    ASSIGN_OR_RETURN(plane_, ControlPlane::Create(std::move(plane)));
    if (!setup_.history.empty()) RETURN_IF_ERROR(history_.Restore(setup_.history));
    LengthPredictor* predictor = nullptr;
    if (setup_.spec.length_predictor == "history") predictor = &history_;
    if (setup_.spec.length_predictor == "proxy") predictor = &hints_;
    engine_ = plane_->Connect({.clock = clock_,
                               .executor = executor_,
                               .transfer = transfer_,
                               .registry = registry_,
                               .wakeup = wakeup_,
                               .predictor = predictor,
                               .observer = this});
    return RegisterAdapters();
  }

  Result<ReplayReport> Run() {
    while (true) {
      ASSIGN_OR_RETURN(const bool more, Fill(1));
      if (!more) break;
      ASSIGN_OR_RETURN(const bool good, Step());
      if (!good) break;
      steps_.pop_front();
      ++result_.steps;
      const TimeNs passed = clock_.Now() - begun_;
      if (samples_.Wants(passed)) samples_.Add(SampleOf(engine_->Stats(), passed));
      if (check_every_ > 0 && result_.steps % check_every_ == 0) engine_->CheckIntegrity();
    }
    return Finish();
  }

 private:
  // Collects all adapters of the recording. Finds damage before anything is replayed.
  Status ReadAhead() {
    recording_.Rewind();
    while (true) {
      auto step = recording_.Next();
      if (!step.ok() && recording_.truncated() && allow_truncated_) {
        result_.truncated = true;
        break;
      }
      if (!step.ok()) return step.error();
      if (!step->has_value()) break;
      for (const RecordedAdapter& adapter : (*step)->adapters) generations_.Add(adapter);
    }
    result_.end = recording_.end();
    RETURN_IF_ERROR(generations_.Settle());
    recording_.Rewind();
    return Ok{};
  }

  Status RegisterAdapters() {
    // Where pages move whole, the setup does not say how many layers the model has.
    const std::int32_t layers = setup_.kv_slices.layer_bytes > 0 ? setup_.kv_slices.layers : kMostLayers;
    for (const RecordedAdapter& adapter : generations_.adapters()) {
      if (adapter.layers > layers + 1)
        return InvalidArgument("recording: an adapter has more layers than the model has");
      auto version = std::make_shared<AdapterVersion>();
      version->name = NameOf(adapter.generation.value);
      version->file.digest = adapter.digest;
      version->layout.max_rank = adapter.max_rank;
      version->layout.pages = adapter.pages;
      version->layout.layer_pages.assign(static_cast<std::size_t>(adapter.layers),
                                         static_cast<std::int32_t>(adapter.pages));
      ASSIGN_OR_RETURN(auto published, registry_.Commit(std::move(version)));
      versions_.push_back(std::move(published));
    }
    return Ok{};
  }
  static std::string NameOf(std::uint32_t generation) { return "adapter-" + std::to_string(generation); }

  // Reads until `count` steps are queued. False: there are not that many.
  Result<bool> Fill(std::size_t count) {
    while (steps_.size() < count && !at_end_) {
      auto step = recording_.Next();
      const bool cut = !step.ok() && recording_.truncated() && allow_truncated_;
      if (!step.ok() && !cut) return step.error();
      at_end_ = cut || !step->has_value();
      if (!at_end_) steps_.push_back(std::move(**step));
    }
    return steps_.size() >= count;
  }

  // ---- One step

  // False: the step differs from the recorded one.
  Result<bool> Step() {
    const RecordedStep& step = steps_.front();
    clock_.AdvanceTo(step.now);
    next_token_ = 0;
    planned_ = collected_ = false;
    moves_ = renamings_ = drafts_ = 0;
    pins_to_grant_ = 0;
    RETURN_IF_ERROR(ExpectOfTheExecutor());
    if (const std::string wrong = ExpectOfTransfers(steps_.front()); !wrong.empty()) return Differs(wrong);
    if (const std::string told = Tell(steps_.front()); !told.empty()) return Differs(told);
    engine_->Step();
    return result_.difference.empty() && NothingIsLeft(steps_.front());
  }

  bool Differs(const std::string& what) {
    if (result_.difference.empty()) {
      result_.difference =
          "step " + std::to_string(steps_.front().number) + ", " +
          std::to_string(static_cast<double>(clock_.Now() - begun_) / static_cast<double>(kNsPerSecond)) +
          " s after the first step: " + what;
    }
    return false;
  }

  // The tokens of a completed batch are taken in the same step or in a later one.
  Status ExpectOfTheExecutor() {
    if (!steps_.front().computed) return Ok{};
    for (std::size_t i = 0;; ++i) {
      ASSIGN_OR_RETURN(const bool there, Fill(i + 1));
      if (!there || steps_[i].collected || (i > 0 && steps_[i].computed)) {
        std::span<const RecordedToken> tokens;
        if (there && steps_[i].collected) tokens = steps_[i].tokens;
        executor_.Expect(*steps_.front().computed, tokens);
        return Ok{};
      }
    }
  }

  // A recorded adapter transfer is numbered by its generation, which has another number here.
  std::string ExpectOfTransfers(const RecordedStep& step) {
    std::vector<RecordedCompletion> completions = step.completions;
    std::vector<RecordedLayers> layers = step.layers;
    for (RecordedCompletion& completion : completions) {
      if (!Renumber(completion.transfer)) return "the recording reports the end of a load for an unknown adapter";
    }
    for (RecordedLayers& seen : layers) {
      if (!Renumber(seen.transfer)) return "the recording reports arrived layers of an unknown adapter";
    }
    transfer_.Expect(std::move(completions), std::move(layers));
    return {};
  }

  bool Renumber(std::uint64_t& generation) const {
    if (IsOfHistory(generation)) return true;
    if (generation > std::numeric_limits<std::uint32_t>::max()) return false;
    const auto here = generations_.Find(static_cast<std::uint32_t>(generation));
    if (!here || *here == kBaseModel) return false;
    generation = here->value;
    return true;
  }

  // Posts the recorded inputs to the inbox. Returns what is wrong with them, or an empty string.
  std::string Tell(const RecordedStep& step) {
    if (begun_ < 0) begun_ = step.now;
    const bool done = step.computed.has_value();
    if (done && (!executor_.in_flight() || *step.computed > step.now - submitted_)) {
      return "the recording completes a batch that the replay has not computed for that long";
    }
    for (const std::uint32_t registered : step.registered) {
      const auto generation = generations_.Find(registered);
      if (!generation || *generation == kBaseModel) return "the recording registers an unknown adapter";
      engine_->Register(versions_[generation->value - 1]);
    }
    for (const RecordedArrival& arrival : step.arrivals) {
      if (std::string wrong = Submit(arrival); !wrong.empty()) return wrong;
    }
    for (const RecordedPin& pin : step.pins) {
      const auto generation = generations_.Find(pin.adapter.value);
      if (!generation || *generation == kBaseModel) return "the recording pins an unknown adapter";
      engine_->SetPinned(versions_[generation->value - 1], pin.pinned, [](const Status&) {});
      // The replay's registry already knows which generations are retired later in this step. The pin is then not
      // granted, which changes nothing.
      const bool gone = registry_.IsRetired(*generation) ||
                        std::count(step.retired.begin(), step.retired.end(), pin.adapter.value) > 0;
      pins_to_grant_ += pin.pinned && !gone;
    }
    for (const std::uint64_t id : step.cancellations) engine_->Cancel(RequestId{id});
    for (const RecordedRetarget& retarget : step.retargets) {
      if (std::string wrong = Retarget(retarget); !wrong.empty()) return wrong;
    }
    for (const std::uint32_t original : step.retired) {
      const auto generation = generations_.Find(original);
      if (generation && *generation != kBaseModel && !registry_.IsRetired(*generation))
        (void)registry_.Remove(NameOf(original));
    }
    if (step.cancel_all) engine_->CancelAll();
    if (step.hold) engine_->SetHold(*step.hold);
    if (step.drop_history) engine_->DropHistory([](const Result<std::int64_t>&) {});
    if (step.ending) engine_->StopAccepting();
    return {};
  }

  std::string Submit(const RecordedArrival& arrival) {
    const auto generation = generations_.Find(arrival.adapter.value);
    if (!generation) return "request " + std::to_string(arrival.id.value) + " asks for an unknown adapter";
    GenerationRequest request;
    request.prompt = arrival.prompt;
    request.adapter = *generation;
    request.base_tokens = arrival.base_tokens;
    request.keeps_version = arrival.keeps_version;
    request.tenant = std::to_string(arrival.tenant);
    if (arrival.prefix_domain > 0) request.prefix_domain = std::to_string(arrival.prefix_domain);
    request.max_tokens = arrival.max_total_tokens - static_cast<std::int32_t>(arrival.prompt.size());
    request.ignore_eos = true;
    request.priority = arrival.priority;
    request.deadline = arrival.deadline;
    request.length_hint = arrival.length_hint;
    if (arrival.scores_prompt) request.prompt_logprobs = 0;
    request.stop_token_ids = {kStopToken};
    request.on_event = [this, index = result_.run.requests.size()](const GenerationEvent& event) {
      Hear(index, event);
    };
    result_.run.requests.push_back({.adapter = static_cast<std::int32_t>(arrival.adapter.value) - 1,
                                    .prompt_tokens = static_cast<std::int32_t>(arrival.prompt.size())});
    if (arrival.id > last_id_) engine_->SetNextId(arrival.id);
    last_id_ = arrival.id;
    const auto id = engine_->Submit(std::move(request));
    if (!id.ok())
      return "request " + std::to_string(arrival.id.value) +
             " was accepted by the recorded engine, but the replayed one refuses it: " + id.error().message;
    ++result_.arrived;
    if (*id == arrival.id) return {};
    return "request " + std::to_string(id->value) + " is expected next, but the recording continues with request " +
           std::to_string(arrival.id.value);
  }

  // Returns what is wrong with it, or an empty string.
  std::string Retarget(const RecordedRetarget& retarget) {
    const auto old = generations_.Find(retarget.old.value), next = generations_.Find(retarget.next.value);
    if (!old || *old == kBaseModel || !next) return "the recording moves requests from or to an unknown adapter";
    engine_->Retarget(*versions_[old->value - 1], *next == kBaseModel ? nullptr : versions_[next->value - 1]);
    return {};
  }

  bool NothingIsLeft(const RecordedStep& step) {
    if (transfer_.diverged()) {
      return Differs(
          "the recording reports progress of a transfer that the replay has not begun, or a cancellation that the "
          "replay "
          "has not requested");
    }
    if (executor_.expected())
      return Differs("the recording completes a batch, but the replayed engine did not wait for one");
    if (collected_ != step.collected) {
      return Differs(step.collected ? "the recorded engine took a step's results, but the replayed one did not"
                                    : "the replayed engine took a step's results, but the recorded one did not");
    }
    if (next_token_ != step.tokens.size()) return Differs("the recorded engine took more tokens than the replayed one");
    if (drafts_ < step.drafts.size())
      return Differs("the recorded engine drafted tokens, but the replayed one did not");
    if (pins_to_grant_ > 0)
      return Differs("the recorded engine pinned an adapter, but the replayed one has no room for it");
    if (step.plan && !planned_)
      return Differs("the recorded engine planned a step, but the replayed one did not: " + ShowPlan(*step.plan));
    if (renamings_ < step.renamings.size())
      return Differs("the recorded engine moved a request to another adapter, but the replayed one did not");
    if (moves_ < step.moves.size())
      return Differs("the recorded engine moved pages, but the replayed one did not: " + ShowMoves(step.moves[moves_]));
    return true;
  }

  // ---- The engine's thread, which is this one

  void Pinned(const AdapterVersion&, bool pinned) override { pins_to_grant_ -= pinned; }
  void Collected() override { collected_ = true; }

  void Sampled(RequestId id, TokenId token, bool) override {
    const auto& tokens = steps_.front().tokens;
    if (next_token_ < tokens.size() && tokens[next_token_] == RecordedToken{id, token}) {
      ++next_token_;
      return;
    }
    Differs("the replayed engine took a token that was not recorded, of request " + std::to_string(id.value));
  }

  void Drafted(RequestId id, std::vector<TokenId>& draft) override {
    const std::vector<RecordedDraft>& drafts = steps_.front().drafts;
    const bool recorded = drafts_ < drafts.size() && drafts[drafts_].id == id;
    draft.assign(recorded ? drafts[drafts_++].tokens : 0, 0);
  }

  void Retargeted(const Request& request, const AdapterVersion&, std::span<TokenId> tokens) override {
    const std::vector<RecordedRenaming>& renamings = steps_.front().renamings;
    if (renamings_ < renamings.size() && renamings[renamings_].id == request.id &&
        renamings[renamings_].tokens.size() == tokens.size()) {
      std::ranges::copy(renamings[renamings_++].tokens, tokens.begin());
      return;
    }
    Differs("the replayed engine moved request " + std::to_string(request.id.value) +
            " to another adapter, but the recorded one did not");
  }

  void Planned(const PlannedStep& step) override {
    planned_ = true;
    if (!step.plan.chunks.empty()) submitted_ = clock_.Now();
    const RecordedPlan replayed =
        DescribePlan(step.plan, step.device.free_pages(), step.host.free_pages(), generations_.original());
    const std::optional<RecordedPlan>& recorded = steps_.front().plan;
    if (!recorded) {
      Differs("the replayed engine planned a step, but the recorded one did not: " + ShowPlan(replayed));
      return;
    }
    ++result_.plans;
    if (replayed == *recorded) {
      ++result_.equal_plans;
    } else {
      Differs("plan " + std::to_string(result_.plans) + "\n  recorded: " + ShowPlan(*recorded) +
              "\n  replayed: " + ShowPlan(replayed) +
              (ShowPlan(*recorded) == ShowPlan(replayed) ? "\n  (they differ in details that are not shown)" : ""));
    }
  }

  void Moving(const MovePlan& moves) override {
    if (!recording_.has_moves()) return;
    const RecordedMoves replayed = DescribeMoves(moves, generations_.original());
    const std::vector<RecordedMoves>& recorded = steps_.front().moves;
    if (moves_ == recorded.size()) {
      Differs("the replayed engine moved pages, but the recorded one did not: " + ShowMoves(replayed));
      return;
    }
    const RecordedMoves& expected = recorded[moves_++];
    if (replayed != expected)
      Differs("moves\n  recorded: " + ShowMoves(expected) + "\n  replayed: " + ShowMoves(replayed));
  }

  void Hear(std::size_t index, const GenerationEvent& event) {
    result_.run.requests[index].arrival = event.arrival;
    result_.run.Hear(index, event);
    result_.ended += event.finish == FinishReason::kStop || event.finish == FinishReason::kLength;
    result_.cancelled += event.finish == FinishReason::kCancelled || event.finish == FinishReason::kAborted;
    result_.failed += event.finish == FinishReason::kError;
  }

  Result<ReplayReport> Finish() {
    if (result_.difference.empty() && engine_->Idle()) engine_->CheckIntegrity();
    RunResult& run = result_.run;
    std::erase_if(run.requests, [](const RequestRecord& record) { return record.first_token < 0; });
    run.FindEnd();
    run.stats = engine_->Stats();
    run.samples = samples_.Take();
    run.bytes_to_device = transfer_.bytes_to_device();
    run.bytes_to_host = transfer_.bytes_to_host();
    return std::move(result_);
  }

  RecordingReader& recording_;
  const RecordedSetup& setup_;
  const bool allow_truncated_;
  const std::int64_t check_every_;
  VirtualClock clock_;
  Wakeup wakeup_;
  ReplayedTransfer transfer_;
  ReplayedExecutor executor_;
  HistoryPredictor history_;
  HintPredictor hints_;
  AdapterRegistry registry_{ModelConfig{}, {"base"}, {}};
  Generations generations_;
  std::vector<std::shared_ptr<const AdapterVersion>> versions_;
  std::unique_ptr<ControlPlane> plane_;
  std::unique_ptr<Engine> engine_;
  std::deque<RecordedStep> steps_;  // the first is being replayed
  bool at_end_ = false;             // the recording has ended
  bool planned_ = false, collected_ = false;
  std::size_t moves_ = 0;           // moves of this step so far
  std::size_t renamings_ = 0;       // renamings of this step so far
  std::size_t drafts_ = 0;          // drafts of this step so far
  std::int64_t pins_to_grant_ = 0;  // pins that this step still grants
  std::size_t next_token_ = 0;      // index into the step's tokens
  RequestId last_id_{0};            // id of the last arrival
  TimeNs begun_ = -1, submitted_ = 0;
  WorldSamples samples_;
  ReplayReport result_;
};

}  // namespace

Result<ReplayReport> Replay(RecordingReader& recording, bool allow_truncated, std::int64_t check_every) {
  ReplayWorld world(recording, allow_truncated, check_every);
  RETURN_IF_ERROR(world.Build());
  return world.Run();
}

}  // namespace loramux
