// The content of requests: models, words and answer lengths. With the same seed, session i is the same in every run,
// whenever it is sent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "loadgen/tasks.h"
#include "workload/distributions.h"
#include "workload/lengths.h"
#include "workload/trace.h"

namespace loramux::load {

// How sessions choose their adapter. ParseAdapterChoice returns the choice with that name; the error for an unknown
// name lists the valid ones.
enum class AdapterChoice { kUniform, kZipf, kDistinct, kTrace };
Result<AdapterChoice> ParseAdapterChoice(std::string_view name);

// Conversion from words to tokens. It is measured before the run, because tokenizers differ.
struct TokenScale {
  double per_word = 1.3;
  double overhead = 0;  // tokens of a prompt without words: the chat template's
};

// Settings of a SessionMaker.
struct SessionOptions {
  std::string base_model;
  std::vector<std::string> adapters;
  AdapterChoice choice = AdapterChoice::kUniform;
  double zipf_exponent = 1;
  double base_share = 0;  // share of the sessions that use the base model
  LengthDistribution input_tokens, output_tokens;
  std::int64_t max_input_tokens = 0, max_output_tokens = 0;  // upper bounds for lengths from traces; 0: none
  std::int64_t prefix_tokens = 0;  // length of a system message that all sessions of a model share
  int turns = 1;
  std::vector<Task> tasks;           // if not empty: questions instead of random words
  std::int64_t answer_tokens = 200;  // max_tokens of a question
  bool ignore_eos = true;
  std::uint64_t seed = 0;
};

// One request of a session.
struct Turn {
  std::string prompt;
  std::optional<std::string> answer;  // the only correct answer; absent: not checked
  std::int64_t max_tokens = 0;
  bool ignore_eos = false;
};

// A dialogue with one model.
struct Session {
  std::int64_t index = 0;
  int model = 0;       // index into SessionMaker::models()
  std::string prefix;  // system message; empty: none
  std::vector<Turn> turns;
};

// Immutable once the scale is set. Movable, not copyable.
class SessionMaker {
 public:
  SessionMaker(SessionMaker&&) = default;
  SessionMaker& operator=(SessionMaker&&) = default;
  // Errors: an adapter without a task, kTrace with a trace that has no clients, or no adapters where they are needed.
  // `trace` is null in a closed loop.
  static Result<SessionMaker> Make(SessionOptions options, const Trace* trace);
  // The adapters, then the base model.
  const std::vector<std::string>& models() const { return models_; }
  const SessionOptions& options() const { return options_; }
  void set_scale(TokenScale scale) { scale_ = scale; }
  // True if prompts are made of random words, which need a TokenScale.
  bool needs_scale() const { return options_.tasks.empty(); }
  // Returns session number `index`. `arrival` is null in a closed loop.
  Session MakeSession(std::int64_t index, const Arrival* arrival) const;

 private:
  SessionMaker() = default;
  int base() const { return static_cast<int>(models_.size()) - 1; }
  int PickModel(std::int64_t index, const Arrival* arrival, Prng& prng) const;
  Turn MakeQuestion(int model, Prng& prng) const;
  Turn MakeWords(const Arrival* arrival, bool first, Prng& prng) const;
  std::int64_t Words(std::int64_t tokens, bool first) const;

  SessionOptions options_;
  std::vector<std::string> models_;
  std::vector<const Task*> task_of_;  // by model: a pointer into options_.tasks; null: none
  std::optional<WeightedChoice> picker_;
  TokenScale scale_;
  std::int64_t block_tokens_ = 0;
};

// Returns `count` common English words, drawn with `prng`.
std::string RandomWords(std::int64_t count, Prng& prng);

}  // namespace loramux::load
