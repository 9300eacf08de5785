// The file that `loramux serve --record` writes: how the engine is made, and for each of its steps everything that its
// decisions depend on, and the plan. No text, no token and no name of a client is in it: tokens are pseudonyms
// (Pseudonyms).
//
// "LORAMUXR", u32 version, then blocks: u8 kind, u32 bytes, u64 checksum (XXH3, with the number of the block), payload.
// One block of the setup (JSON), one of what the length predictor knew (HistoryPredictor::Serialise; may be empty),
// then blocks of steps, then one of the end. Steps are variable-length integers; each has its number, so that none can
// be missing unseen.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "cache/kv_tiers.h"
#include "schedule/plan.h"
#include "schedule/queue_order.h"
#include "schedule/scheduler.h"

namespace loramux {

// What the engine was made of.
struct RecordedSetup {
  std::string program;  // version
  std::string model;    // its directory's name
  std::int64_t started_unix_seconds = 0;
  SchedulerOptions scheduler;  // with the regime's options. Tenants in `fairness.weights` are called "0", "1", ...
  QueueOrderOptions queue;
  std::string cache = "lru";              // regime
  std::string length_predictor = "none";  // "history", "proxy", "none"
  std::string history;                    // HistoryPredictor::Serialise, where there is one
  std::int64_t max_model_len = 0;
  KvSlices kv_slices;
  std::int64_t page_bytes = 0, device_pages = 0, host_pages = 0;  // host_pages 0: no host tier
  bool tree = false, kv_transfer = false;
};

// An adapter's version that a request or a pin brings for the first time.
struct RecordedAdapter {
  AdapterGeneration generation;
  std::string digest;
  std::int64_t pages = 0;
  std::int32_t layers = 0, max_rank = 0;
  bool operator==(const RecordedAdapter&) const = default;
};

struct RecordedArrival {
  RequestId id;
  AdapterGeneration adapter;
  std::uint32_t tenant = 0;
  std::int32_t priority = 0, length_hint = 0, max_total_tokens = 0;
  TimeNs deadline = 0;
  std::vector<TokenId> prompt;  // pseudonyms
  bool operator==(const RecordedArrival&) const = default;
};

struct RecordedPin {
  AdapterGeneration adapter;
  bool pinned = false;
  bool operator==(const RecordedPin&) const = default;
};

enum class TransferOutcome : std::uint8_t { kGood, kFailed, kCancelled };
struct RecordedCompletion {
  bool kv = false;
  std::uint64_t transfer = 0;
  TransferOutcome outcome = TransferOutcome::kGood;
  bool operator==(const RecordedCompletion&) const = default;
};

struct RecordedLayers {
  bool kv = false;
  std::uint64_t transfer = 0;
  std::int32_t layers = 0;
  bool operator==(const RecordedLayers&) const = default;
};

struct RecordedToken {
  RequestId id;
  TokenId token = 0;  // a pseudonym, or kStopToken
  bool operator==(const RecordedToken&) const = default;
};

// A plan as far as it is told: what is rare by name, the rest counted; and a digest of all of it.
struct RecordedPlan {
  std::uint64_t digest = 0;
  std::uint64_t chunks = 0, tokens = 0, prefill_tokens = 0, history_evictions = 0;
  std::uint64_t free_device = 0, free_host = 0;                        // pages, before it is carried out
  std::vector<std::uint64_t> admissions, preemptions, fetches;         // requests
  std::vector<std::uint64_t> loads, device_evictions, host_evictions;  // generations
  bool operator==(const RecordedPlan&) const = default;
};

struct RecordedStep {
  std::uint64_t number = 0;
  TimeNs now = 0;
  std::vector<RecordedAdapter> adapters;
  std::vector<RecordedArrival> arrivals;
  std::vector<RecordedPin> pins;
  std::vector<std::uint64_t> cancellations;  // requests
  bool cancel_all = false, ending = false;   // from this step on
  std::vector<std::uint32_t> retired;        // generations
  std::vector<RecordedCompletion> completions;
  std::vector<RecordedLayers> layers;  // that differ from the last step's
  std::optional<TimeNs> computed;      // the batch in flight is done, and waited so long for layers
  bool collected = false;              // its results are taken
  std::vector<RecordedToken> tokens;   // of those, in order, that count
  std::optional<RecordedPlan> plan;
  bool operator==(const RecordedStep&) const = default;

  // Nothing happened that a later decision could depend on.
  bool empty() const {
    return arrivals.empty() && pins.empty() && cancellations.empty() && !cancel_all && !ending && retired.empty() &&
           completions.empty() && layers.empty() && !computed && !collected && tokens.empty() && !plan;
  }
};

// Pseudonyms of tokens are below; a request ends by the one that follows.
inline constexpr TokenId kStopToken = TokenId{1} << 30;

// Names a token by all tokens before it, under a key that nobody else has: two sequences of one adapter have the same
// pseudonyms as far as their tokens are the same, and nothing else can be told from them (but for a chance of 2^-30 a
// token).
class Pseudonyms {
 public:
  explicit Pseudonyms(std::array<std::uint64_t, 2> key) : key_(key) {}
  // Of a sequence's beginning.
  std::uint64_t Begin(std::string_view adapter_digest) const;
  // Goes on by a token, and returns its name.
  TokenId Name(std::uint64_t& sequence, TokenId token) const;

 private:
  const std::array<std::uint64_t, 2> key_;
};

// `original`: generations by the number that they have in the plan; empty: they have their own.
RecordedPlan DescribePlan(const StepPlan& plan, std::int64_t free_device, std::int64_t free_host,
                          std::span<const std::uint32_t> original = {});
// In words, for people.
std::string ShowPlan(const RecordedPlan& plan);

// ---- The file

enum class RecordingEnd : std::uint8_t { kStopped, kLimit };  // with the server; at its largest size

// Makes the file's pieces, to be written one after the other.
class RecordingEncoder {
 public:
  std::string Head(const RecordedSetup& setup);
  // REQUIRES: numbers and times ascend.
  std::string Steps(std::span<const RecordedStep> steps);
  std::string End(RecordingEnd end);

 private:
  std::string Block(std::uint8_t kind, std::string_view payload);
  std::uint64_t blocks_ = 0;
};

// Reads a file of untrusted content that is in memory as a whole.
class RecordingReader {
 public:
  // Errors: not such a file, another version, damaged, values that no server has.
  static Result<RecordingReader> Open(std::string bytes);
  const RecordedSetup& setup() const { return setup_; }
  // Back to the first step.
  void Rewind();
  // The next step; nullopt at the end. Errors: damaged, or it ends in the middle (`truncated` then).
  Result<std::optional<RecordedStep>> Next();
  bool truncated() const { return truncated_; }  // after Next's error
  std::optional<RecordingEnd> end() const { return end_; }

 private:
  struct Block {
    std::uint8_t kind = 0;
    std::string_view payload;
  };
  explicit RecordingReader(std::string bytes) : bytes_(std::move(bytes)) {}
  Result<Block> NextBlock();
  Result<Block> BlockOf(std::uint8_t kind, const char* what);
  Status ReadSteps(std::string_view payload);
  Status Check(const RecordedStep& step);

  std::string bytes_;
  std::size_t position_ = 0;
  std::uint64_t blocks_ = 0;
  std::size_t steps_begin_ = 0;  // byte
  RecordedSetup setup_;
  std::vector<RecordedStep> steps_;  // of the block that was read last
  std::size_t next_step_ = 0;
  std::uint64_t next_number_ = 0;
  TimeNs last_now_ = 0;
  bool truncated_ = false;
  std::optional<RecordingEnd> end_;
};

}  // namespace loramux
