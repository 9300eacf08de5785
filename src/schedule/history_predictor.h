// Guesses a request's output length from what requests like it have generated: those of the same adapter content with a
// prompt of about the same length. Learned while serving; kept over restarts (Serialise, Restore; history_file.h).
//
// Four levels, from the general to the special: all requests; all with such a prompt; the adapter's; the adapter's with
// such a prompt. Each keeps a mean of the logarithm of lengths, in which old observations fade, and none moves it by
// more than kReach. A level is trusted as far as it has observations: it counts as many as it has, and the level above
// it `prior` of them, so that a new adapter begins with what is usual. The guess is the special level's geometric mean.
//
// What the client's max_tokens cut off says only "at least so many": it raises a mean, and never lowers one.
//
// Thread-safe. The engine thread waits at most for Serialise, which copies about 1 MB. Predict and Observe take
// constant time and allocate nothing once `max_adapters` are known, or for an adapter that is known. Deterministic;
// reads no clock.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "schedule/index_chain.h"
#include "schedule/length_predictor.h"

namespace loramux {

struct HistoryOptions {
  std::size_t max_adapters = 4096;  // contents; beyond, the one that was not observed for longest is forgotten
  float memory = 256;               // observations after which old ones fade
  float prior = 4;                  // observations that the more general level counts as
};

class HistoryPredictor final : public LengthPredictor {
 public:
  // Half octaves: 1, 2, 3..., 4..., 6..., 8..., 12... tokens; the last is open.
  static constexpr std::size_t kPromptBuckets = 34;
  static std::size_t BucketOf(std::int32_t prompt_tokens);

  explicit HistoryPredictor(HistoryOptions options = {});

  std::string_view name() const override { return "history"; }
  // Without any observation: 256 tokens.
  std::int32_t Predict(const LengthQuery& query) override;
  void Observe(const LengthQuery& query, std::int32_t output_tokens) override;

  // All that was learned, as bytes: "LORAMUXH", version, count, checksum, then the levels, adapters in order of use;
  // little-endian.
  std::string Serialise() const;
  // Takes the place of what was learned. Errors (then nothing has changed): not such bytes, another version, damaged,
  // or values that no history has. Of more than max_adapters the most recently used are kept.
  Status Restore(std::string_view bytes);

  std::size_t adapters() const;

 private:
  struct Level {
    float log_mean = 0;  // of output tokens
    float weight = 0;    // observations, at most options.memory
  };
  struct Group {  // of requests: with any prompt, and by the prompt's length
    Level all;
    std::array<Level, kPromptBuckets> by_prompt;
  };
  void Learn(Level& level, float log_length, bool at_least) const;
  float Blend(const Level& level, float general) const;
  Group& GroupOf(std::string_view digest);
  std::uint32_t SlotFor(std::uint64_t key);
  Status Check(std::string_view bytes) const;
  Status CheckGroups(std::string_view bytes, std::size_t count) const;
  bool Plausible(const Level& level) const;

  const HistoryOptions options_;
  mutable std::mutex mutex_;
  Group base_;                                              // all requests
  std::vector<Group> groups_;                               // of adapters, by slot
  std::vector<std::uint64_t> keys_;                         // by slot: a hash of the digest
  std::unordered_map<std::uint64_t, std::uint32_t> slots_;  // by key; never iterated
  IndexChain used_;                                         // slots, the longest unused first
};

}  // namespace loramux
