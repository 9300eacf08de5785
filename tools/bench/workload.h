// What is asked: which model, which words, how long an answer. Session i is the same in every run with the same seed,
// whenever it is sent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tools/bench/sampling.h"
#include "tools/bench/tasks.h"
#include "tools/bench/trace.h"

namespace loramux::load {

// One table from name to choice of adapter; an unknown name lists the valid ones.
enum class AdapterChoice { kUniform, kZipf, kDistinct, kTrace };
Result<AdapterChoice> ParseAdapterChoice(std::string_view name);

// How many tokens a server makes of our words; measured before the run, because tokenizers differ.
struct TokenScale {
  double per_word = 1.3;
  double overhead = 0;  // of a prompt without words: the chat template's
};

struct WorkloadOptions {
  std::string base_model;
  std::vector<std::string> adapters;
  AdapterChoice choice = AdapterChoice::kUniform;
  double zipf_exponent = 1;
  double base_share = 0;  // of the sessions
  LengthDistribution input_tokens, output_tokens;
  std::int64_t max_input_tokens = 0, max_output_tokens = 0;  // bounds on what traces ask; 0: none
  std::int64_t prefix_tokens = 0;                            // the same system message for all sessions of a model
  int turns = 1;
  std::vector<Task> tasks;           // if any: questions instead of random words
  std::int64_t answer_tokens = 200;  // max_tokens of a question
  bool ignore_eos = true;
  std::uint64_t seed = 0;
};

struct Turn {
  std::string prompt;
  std::optional<std::string> answer;  // what exactly must come back
  std::int64_t max_tokens = 0;
  bool ignore_eos = false;
};

struct Session {
  std::int64_t index = 0;
  int model = 0;       // index into Workload::models()
  std::string prefix;  // system message; empty: none
  std::vector<Turn> turns;
};

// Immutable once the scale is set. Moves, but does not copy.
class Workload {
 public:
  Workload(Workload&&) = default;
  Workload& operator=(Workload&&) = default;
  // Errors: an adapter without a task, kTrace with a trace that knows no clients, no adapters where they are needed.
  static Result<Workload> Make(WorkloadOptions options, const Trace* trace);
  // The adapters, then the base model.
  const std::vector<std::string>& models() const { return models_; }
  const WorkloadOptions& options() const { return options_; }
  void set_scale(TokenScale scale) { scale_ = scale; }
  // Whether prompts are made of words, so that a TokenScale is needed.
  bool needs_scale() const { return options_.tasks.empty(); }
  // `arrival` may be null (closed loop).
  Session MakeSession(std::int64_t index, const Arrival* arrival) const;

 private:
  Workload() = default;
  int base() const { return static_cast<int>(models_.size()) - 1; }
  int PickModel(std::int64_t index, const Arrival* arrival, Prng& prng) const;
  Turn MakeQuestion(int model, Prng& prng) const;
  Turn MakeWords(const Arrival* arrival, bool first, Prng& prng) const;
  std::int64_t Words(std::int64_t tokens, bool first) const;

  WorkloadOptions options_;
  std::vector<std::string> models_;
  std::vector<const Task*> task_of_;  // by model, into options_.tasks; null: none
  std::optional<ZipfPicker> picker_;
  TokenScale scale_;
  std::int64_t block_tokens_ = 0;
};

// `count` common English words, drawn by `prng`.
std::string RandomWords(std::int64_t count, Prng& prng);

}  // namespace loramux::load
