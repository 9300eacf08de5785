// Speculation without a second model: what follows in an answer is guessed from what followed where its last tokens
// occurred before (prompt lookup). A step computes the guessed tokens beside the last known one and so verifies them.
//
// A draft is as long as it is worth: a row of it must be expected to give more of a token than the same time gives
// without it. That takes the time of a row, which is fitted to the last steps, and the chance that a token is right,
// which is learned for each adapter by how many tokens before it agree.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/ngram_index.h"
#include "engine/sequence.h"
#include "schedule/plan/step_plan.h"
#include "schedule/system_spec.h"

namespace loramux {

// What a row of a step takes, by the last steps that only decoded.
class RowPace {
 public:
  // Notes a step of so many rows, with which so many requests decoded. REQUIRES: both are > 0.
  void Add(std::int64_t rows, std::int64_t requests, TimeNs took);
  // The time of one more row, in tokens that the last step would have given in that time without drafts.
  double TokensPerRow() const { return tokens_per_row_; }

 private:
  double steps_ = 0;                  // weighted, as all below
  double rows_ = 0, seconds_ = 0;     // sums over steps
  double squares_ = 0, product_ = 0;  // sums of rows squared; of rows times seconds
  double tokens_per_row_ = 0.1;
};

// Not thread-safe. Takes memory for some answers of each of the adapters that were used last.
class Drafter {
 public:
  // `spec` must outlive it.
  explicit Drafter(const SystemSpec& spec) : spec_(spec) {}

  bool drafts() const { return spec_.speculation.method != Speculation::kNone; }
  // Sets Request::draft: tokens that may follow the known ones, or none. REQUIRES: it has generated a token, and goes
  // on.
  void Draft(Sequence& sequence);
  // A step has verified `drafted` tokens: the first `accepted` were right.
  void Verified(Sequence& sequence, std::int64_t drafted, std::int64_t accepted);
  // The request has ended. Later ones of its adapter and sharing domain may draft from its answer.
  void Ended(const Sequence& sequence);
  // Forgets all answers.
  void Forget() { answers_.clear(); }
  // A step took so long.
  void StepTook(std::span<const PlannedChunk> chunks, TimeNs took);

 private:
  // What the requests of one adapter in one sharing domain leave.
  struct Answers {
    static constexpr std::size_t kClasses = 16;

    Answers();
    // The chance that the token is right before which so many tokens beyond the fewest agree.
    double& Chance(std::size_t beyond) { return chances[std::min(beyond, kClasses - 1)]; }

    std::vector<TokenId> tokens;  // the last answers, the latest last, with kNoToken before each
    NgramIndex places;
    std::array<double, kClasses> chances;
    std::uint64_t used = 0;
  };
  // Generation and domain.
  struct Key {
    AdapterGeneration adapter;
    std::string domain;
  };
  struct Before {
    using is_transparent = void;
    bool operator()(const auto& a, const auto& b) const { return Place(a) < Place(b); }
    static auto Place(const Key& key) { return std::pair(key.adapter.value, std::string_view(key.domain)); }
    static auto Place(const Request& request) {
      return std::pair(request.adapter.value, std::string_view(request.prefix_domain));
    }
  };

  // What the request drafts from.
  Answers& AnswersFor(const Sequence& sequence);
  // How many of the next tokens are worth a row if so many before them agree.
  std::int64_t WorthWhile(Answers& answers, std::size_t agree, std::int64_t most);

  const SystemSpec& spec_;
  RowPace pace_;
  std::map<Key, Answers, Before> answers_;
  Answers none_;  // where requests share nothing: no answers
  std::uint64_t uses_ = 0;
};

}  // namespace loramux
