// Predicts the output length of a request from the outputs of similar requests: same adapter content, and a prompt of
// about the same length. Learns while serving. The state can be kept across restarts (Serialise, Restore;
// runtime/history_keeper.h).
//
// There are four levels, from general to special: all requests; all requests with such a prompt; the adapter's
// requests; the adapter's requests with such a prompt. Each level keeps a mean of the logarithm of output lengths.
// Old observations fade, and once a level has a few, a new one counts as at most a factor of e^2 away from the mean.
// In a prediction, a level counts with its number of observations and the level above it with `prior` observations,
// so that a new adapter begins with the usual length. The prediction is the geometric mean of the most special level.
//
// An output that ended at the client's max_tokens is a lower bound of the length: it may raise a mean, but never
// lowers one.
//
// Thread-safe. The engine thread waits at most for Serialise, which copies about 1 MB. Predict and Observe take
// constant time. They allocate nothing for a known adapter, nor for any adapter once `max_adapters` are known.
// Deterministic. Reads no clock.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "schedule/predict/length_predictor.h"
#include "schedule/queue/index_chain.h"

namespace loramux {

// The predictor "history".
class HistoryPredictor final : public LengthPredictor {
 public:
  // Buckets of prompt lengths. They are half octaves and begin at 1, 2, 3, 4, 6, 8, 12, ... tokens; the last has no
  // end.
  static constexpr std::size_t kPromptBuckets = 34;
  // The bucket of a prompt of so many tokens, below kPromptBuckets.
  static std::size_t BucketOf(std::int32_t prompt_tokens);

  // `max_adapters`: adapter contents to remember; the least recently observed is forgotten.
  explicit HistoryPredictor(std::size_t max_adapters = 4096);

  std::string_view name() const override { return "history"; }
  // Without any observation it predicts 256 tokens.
  std::int32_t Predict(const LengthQuery& query) override;
  void Observe(const LengthQuery& query, std::int32_t output_tokens) override;

  // Returns the learned state as bytes: "LORAMUXH", version, count of adapters, checksum, then the levels, with
  // adapters from the least to the most recently used. Little-endian.
  std::string Serialise() const;
  // Replaces the learned state. Of more than max_adapters, the most recently used are kept. Errors, which leave the
  // state unchanged: other content, another version, a wrong size or checksum, or impossible values.
  Status Restore(std::string_view bytes);

  // Adapter contents known.
  std::size_t adapters() const;

 private:
  // A mean of log lengths.
  struct Level {
    float log_mean = 0;  // mean of the natural logarithm of output tokens
    float weight = 0;    // observations, at most options.memory
  };
  // Levels of a set of requests: with any prompt, and by prompt length.
  struct Group {
    Level all;
    std::array<Level, kPromptBuckets> by_prompt;
  };
  // Adds an observation to the level. `at_least`: the length is a lower bound.
  void Learn(Level& level, float log_length, bool at_least) const;
  // The mean of the level, with `general` as `prior` more observations.
  float Blend(const Level& level, float general) const;
  // The group of the adapter content, which becomes the most recently used. REQUIRES: mutex_ is held.
  Group& GroupOf(std::string_view digest);
  // A slot for an unknown key; the least recently used one if all are taken. REQUIRES: mutex_ is held.
  std::uint32_t SlotFor(std::uint64_t key);
  // Checks what Restore is given.
  Status Check(std::string_view bytes) const;
  // Checks the levels, behind the header.
  Status CheckGroups(std::string_view bytes, std::size_t count) const;
  // True if a history can have such a level.
  bool Plausible(const Level& level) const;

  const std::size_t max_adapters_;
  mutable std::mutex mutex_;
  Group base_;                                              // all requests
  std::vector<Group> groups_;                               // by slot: the requests of one adapter content
  std::vector<std::uint64_t> keys_;                         // by slot: hash of the digest
  std::unordered_map<std::uint64_t, std::uint32_t> slots_;  // by key; never iterated
  IndexChain used_;                                         // slots, the least recently used first
};

}  // namespace loramux
