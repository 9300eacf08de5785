// The file format of `loramux serve --record`. A recording holds the engine's setup and, for each step, every input of
// its decisions and its plan. It contains no text, no token ids and no client names: tokens are pseudonyms
// (Pseudonyms), tenants and sharing domains are numbers.
//
// Layout: "LORAMUXR", u32 version, then blocks. A block is: u8 kind, u32 payload bytes, u64 checksum (XXH3, over kind,
// payload and the block's number), payload. The blocks are, in order: one with the setup (JSON), one with the state of
// the length predictor (HistoryPredictor::Serialise; may be empty), any number with steps, and one that marks the end.
// Steps are coded as variable-length integers. Each step carries its number, so that a missing step is detected.
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
#include "record/recorded_step.h"
#include "schedule/plan/move_plan.h"
#include "schedule/plan/step_plan.h"

namespace loramux {

// Names a token by all tokens before it, under a secret key. Two sequences with the same adapter content and sharing
// domain have the same pseudonyms exactly as far as their tokens are the same, up to collisions with a probability of
// 2^-30 per token. Nothing else about the tokens can be derived.
class Pseudonyms {
 public:
  // `key`: secret, 128 random bits.
  explicit Pseudonyms(std::array<std::uint64_t, 2> key) : key_(key) {}
  // The state at the start of a sequence. `content` names the adapter's content and the sharing domain; empty: the base
  // model in the shared domain.
  std::uint64_t Begin(std::string_view content) const;
  // Advances `sequence` by `token` and returns the pseudonym of `token`.
  TokenId Name(std::uint64_t& sequence, TokenId token) const;

 private:
  const std::array<std::uint64_t, 2> key_;
};

// Summarises a plan for a recording. `free_device` and `free_host`: free pages before the commit. `original` maps the
// plan's generation numbers to the recorded ones; empty: they are the same.
RecordedPlan DescribePlan(const StepPlan& plan, std::int64_t free_device, std::int64_t free_host,
                          std::span<const std::uint32_t> original = {});
// Summarises moves for a recording. `original`: as in DescribePlan.
RecordedMoves DescribeMoves(const MovePlan& plan, std::span<const std::uint32_t> original = {});
// Renders a plan as human-readable text.
std::string ShowPlan(const RecordedPlan& plan);
std::string ShowMoves(const RecordedMoves& moves);

// ---- The file

// Why a recording ended: with the server, or at its size limit.
enum class RecordingEnd : std::uint8_t { kStopped, kLimit };

// Makes the pieces of a recording, to be written one after the other.
class RecordingEncoder {
 public:
  // The magic, the version, and the blocks of setup and history.
  std::string Head(const RecordedSetup& setup);
  // One block of steps. REQUIRES: numbers and times ascend.
  std::string Steps(std::span<const RecordedStep> steps);
  // The block that marks the end.
  std::string End(RecordingEnd end);

 private:
  std::string Block(std::uint8_t kind, std::string_view payload);
  std::uint64_t blocks_ = 0;
};

// Reads a recording of untrusted content that is entirely in memory.
class RecordingReader {
 public:
  // Errors: not a recording, another version, damaged, or values that no server writes.
  static Result<RecordingReader> Open(std::string bytes);
  // Whether steps have all their moves: from version 9 on.
  bool has_moves() const;
  // The setup, including the history block.
  const RecordedSetup& setup() const { return setup_; }
  // Returns to the first step.
  void Rewind();
  // Returns the next step, or nullopt at the end. Errors: damaged, or cut off (then `truncated` is true).
  Result<std::optional<RecordedStep>> Next();
  bool truncated() const { return truncated_; }  // valid after Next returned an error
  // Why the recording ended; set once Next has returned nullopt.
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
  std::size_t steps_begin_ = 0;  // byte offset
  std::uint32_t version_ = 0;
  RecordedSetup setup_;
  std::vector<RecordedStep> steps_;  // steps of the block that was read last
  std::size_t next_step_ = 0;
  std::uint64_t next_number_ = 0;
  TimeNs last_now_ = 0;
  bool truncated_ = false;
  std::optional<RecordingEnd> end_;
};

}  // namespace loramux
