// What a recording (recording.h) holds: the engine's setup, and the inputs and decisions of each step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "engine/generation.h"
#include "residency/kv_tiers.h"
#include "residency/moves.h"
#include "schedule/system_spec.h"

namespace loramux {

inline constexpr std::int32_t kMostLayers = 1024;  // a recorded model has no more

// How the recorded engine was configured.
struct RecordedSetup {
  std::string program;  // version
  std::string model;    // name of the model's directory
  std::int64_t started_unix_seconds = 0;
  SystemSpec spec;      // complete; the tenants of `fairness.weights` are named "0", "1", ...
  std::string history;  // HistoryPredictor::Serialise; empty: no history predictor
  std::int64_t max_model_len = 0;
  KvSlices kv_slices;
  std::int64_t page_bytes = 0, device_pages = 0, host_pages = 0;  // host_pages 0: no host tier
  bool moves_kv = false;                                          // keys and values move between the tiers
};

// An adapter version at its first appearance: in a request, a registration or a pin.
struct RecordedAdapter {
  AdapterGeneration generation;
  std::string digest;
  std::int64_t pages = 0;
  std::int32_t layers = 0, max_rank = 0;
  bool operator==(const RecordedAdapter&) const = default;
};

// A request taken from the inbox. Numbers are as in Request.
struct RecordedArrival {
  RequestId id;
  AdapterGeneration adapter;
  std::uint32_t tenant = 0;
  std::uint32_t prefix_domain = 0;  // 0: the shared one
  std::int32_t priority = 0, length_hint = 0, max_total_tokens = 0;
  TimeNs deadline = 0;
  // The prompt's log-probabilities, or the mean of its hidden states, are wanted: both need all of it computed.
  bool scores_prompt = false;
  std::int32_t base_tokens = 0;
  bool keeps_version = false;
  std::vector<TokenId> prompt;  // pseudonyms
  bool operator==(const RecordedArrival&) const = default;
};

// A pin (`pinned`) or an unpin.
struct RecordedPin {
  AdapterGeneration adapter;
  bool pinned = false;
  bool operator==(const RecordedPin&) const = default;
};

// Requests on one adapter go on with another (Engine::Retarget), or end.
struct RecordedRetarget {
  AdapterGeneration old, next;  // next: kBaseModel: they end
  bool operator==(const RecordedRetarget&) const = default;
};

// A request that went on with another adapter, and its tokens: pseudonyms under that one.
struct RecordedRenaming {
  RequestId id;
  std::vector<TokenId> tokens;
  bool operator==(const RecordedRenaming&) const = default;
};

// How a transfer ended.
enum class TransferOutcome : std::uint8_t { kGood, kFailed, kCancelled };
// A completed transfer.
struct RecordedCompletion {
  std::uint64_t transfer = 0;  // TransferJob::id
  TransferOutcome outcome = TransferOutcome::kGood;
  bool operator==(const RecordedCompletion&) const = default;
};

// Layers of an arriving transfer that a step saw on the device (EngineObserver::SawLayers).
struct RecordedLayers {
  std::uint64_t transfer = 0;
  std::int32_t layers = 0;
  bool operator==(const RecordedLayers&) const = default;
};

// A sampled token.
struct RecordedToken {
  RequestId id;
  TokenId token = 0;  // a pseudonym, or kStopToken
  bool operator==(const RecordedToken&) const = default;
};

// Tokens that were guessed to follow those of a request (EngineObserver::Drafted); at least one.
struct RecordedDraft {
  RequestId id;
  std::uint64_t tokens = 0;  // how many
  bool operator==(const RecordedDraft&) const = default;
};

// The recorded part of a plan: rare decisions by name, frequent ones as counts, and a digest of the whole plan.
struct RecordedPlan {
  std::uint64_t digest = 0;
  std::uint64_t chunks = 0, tokens = 0, prefill_tokens = 0, history_evictions = 0;
  std::uint64_t free_device = 0, free_host = 0;                        // pages, before the plan is committed
  std::vector<std::uint64_t> admissions, preemptions, fetches;         // request ids
  std::vector<std::uint64_t> loads, device_evictions, host_evictions;  // generations
  bool operator==(const RecordedPlan&) const = default;
};

// Moves beside steps (MovePlan). A recording has only those that move something.
struct RecordedMoves {
  MoveReason reason = MoveReason::kReserve;
  std::uint64_t digest = 0;  // digest of all that it moves
  // Pages of history: that leave the device, that come from the host tier, that leave it, that are copied to it.
  std::uint64_t history_evictions = 0, fetched_pages = 0, dropped_pages = 0, backed_up_pages = 0;
  std::vector<std::uint64_t> loads, device_evictions, host_evictions;  // generations
  bool operator==(const RecordedMoves&) const = default;
};

// Everything recorded of one engine step.
struct RecordedStep {
  std::uint64_t number = 0;
  TimeNs now = 0;
  std::vector<RecordedAdapter> adapters;
  std::vector<std::uint32_t> registered;  // generations (Engine::Register)
  std::vector<RecordedArrival> arrivals;
  std::vector<RecordedPin> pins;
  std::vector<std::uint64_t> cancellations;  // request ids
  std::vector<RecordedRetarget> retargets;   // calls, in order
  std::vector<RecordedRenaming> renamings;   // what came of calls, in this step or before, in order
  bool cancel_all = false;
  bool ending = false;                 // set in the first step with it
  bool drop_history = false;           // Engine::DropHistory was called
  std::optional<Hold> hold;            // what requests are held from this step on; nullopt: as in the step before
  std::vector<std::uint32_t> retired;  // generations
  std::vector<RecordedCompletion> completions;
  std::vector<RecordedLayers> layers;  // only where the count differs from the last recorded one
  std::optional<TimeNs> computed;      // the batch in flight is done; the value is the time it waited for layers
  bool collected = false;              // the batch's results were taken
  std::vector<RecordedToken> tokens;   // sampled tokens that count, in order
  std::vector<RecordedDraft> drafts;   // in order
  std::optional<RecordedPlan> plan;
  std::vector<RecordedMoves> moves;  // in order
  bool operator==(const RecordedStep&) const = default;

  // Whether the step has nothing that a later decision could depend on.
  bool empty() const {
    return registered.empty() && arrivals.empty() && pins.empty() && cancellations.empty() && retargets.empty() &&
           renamings.empty() && !cancel_all && !ending && !drop_history && !hold && retired.empty() &&
           completions.empty() && layers.empty() && !computed && !collected && tokens.empty() && drafts.empty() &&
           !plan && moves.empty();
  }
};

// Pseudonyms are smaller than this value. This value stands for the token that stops a request.
inline constexpr TokenId kStopToken = TokenId{1} << 30;

}  // namespace loramux
