#include "engine/drafter.h"

#include <algorithm>

#include "step/sample_batch.h"

namespace loramux {
namespace {

// What RowPace goes by.
constexpr double kKept = 63.0 / 64;     // weight of a step relative to the next one: some 64 steps count
constexpr double kPriorRows = 10;       // rows that take as long as a step of one row, as long as little is known
constexpr double kPriorWeight = 0.5;    // weight of that, in squares of rows
constexpr double kLongest = 2;          // a step counts as at most so many times the mean
constexpr double kCheapest = 1.0 / 64;  // a row takes at least so much of a step

// What the chance that a drafted token is right goes by.
constexpr double kChance = 0.6;           // before anything is known of an adapter
constexpr double kLearnt = 1.0 / 12;      // weight of a token that was verified
constexpr double kForgotten = 1.0 / 256;  // share of the way back to kChance, for each token that was not drafted
constexpr double kMargin = 1.35;          // a row must be expected to give so many times what its time gives otherwise

constexpr std::size_t kAnswerTokens = 4096;  // that are kept for an adapter
constexpr std::size_t kAdapters = 512;       // that have answers

// The most tokens that may be drafted: the last token of a step may end the request, or be the first that a stop token
// may follow, and no token before it.
std::int64_t MostFor(const Sequence& sequence, std::int64_t most) {
  const auto known = static_cast<std::int64_t>(sequence.tokens.size());
  most = std::min(most, sequence.max_total_tokens - known - 1);
  const std::int64_t generated = known - sequence.prompt_tokens, before_stop = sequence.asked.min_tokens - generated;
  return before_stop > 0 ? std::min(most, before_stop - 1) : most;
}

}  // namespace

void RowPace::Add(std::int64_t rows, std::int64_t requests, TimeNs took) {
  if (took <= 0) return;
  const double mean = steps_ > 0 ? seconds_ / steps_ : 0;
  double seconds = static_cast<double>(took) / kNsPerSecond;
  if (mean > 0) seconds = std::min(seconds, kLongest * mean);
  const auto count = static_cast<double>(rows);
  steps_ = steps_ * kKept + 1;
  rows_ = rows_ * kKept + count;
  seconds_ = seconds_ * kKept + seconds;
  squares_ = squares_ * kKept + count * count;
  product_ = product_ * kKept + count * seconds;

  const double mean_rows = rows_ / steps_, mean_seconds = seconds_ / steps_;
  const double spread = squares_ / steps_ - mean_rows * mean_rows;
  const double together = product_ / steps_ - mean_rows * mean_seconds;
  const double prior = mean_seconds / (mean_rows + kPriorRows - 1);
  const double of_row =
      std::max((together + kPriorWeight * prior) / (spread + kPriorWeight), kCheapest * mean_seconds / mean_rows);
  const auto tokens = static_cast<double>(requests);
  const double without_drafts = std::max(mean_seconds + of_row * (tokens - mean_rows), of_row * tokens);
  tokens_per_row_ = of_row * tokens / without_drafts;
}

Drafter::Answers::Answers() { chances.fill(kChance); }

Drafter::Answers& Drafter::AnswersFor(const Sequence& sequence) {
  if (!spec_.keep_history) return none_;
  auto found = answers_.find(static_cast<const Request&>(sequence));
  if (found == answers_.end()) {
    if (answers_.size() == kAdapters)
      answers_.erase(std::ranges::min_element(answers_, {}, [](const auto& entry) { return entry.second.used; }));
    found = answers_.try_emplace(Key{sequence.adapter, sequence.prefix_domain}).first;
  }
  found->second.used = ++uses_;
  return found->second;
}

// A token that is right makes one more token agree before the next.
std::int64_t Drafter::WorthWhile(Answers& answers, std::size_t agree, std::int64_t most) {
  const std::size_t beyond = agree - static_cast<std::size_t>(spec_.speculation.least_ngram);
  double all_right = 1;
  std::int64_t count = 0;
  for (; count < most; ++count) {
    double& chance = answers.Chance(beyond + static_cast<std::size_t>(count));
    all_right *= chance;
    if (all_right > kMargin * pace_.TokensPerRow()) continue;
    if (count == 0) chance += (kChance - chance) * kForgotten;
    break;
  }
  return count;
}

void Drafter::Draft(Sequence& sequence) {
  sequence.draft.clear();
  if (!sequence.asked.speculates) return;
  const SpeculationOptions& options = spec_.speculation;
  const std::int64_t most = MostFor(sequence, options.draft_tokens);
  if (most <= 0) return;
  const auto least = static_cast<std::size_t>(options.least_ngram);
  const auto longest = std::max(least, static_cast<std::size_t>(options.most_ngram));
  const std::span<const TokenId> known = sequence.tokens;
  sequence.places.Grow(known, least);
  NgramIndex::Match match = sequence.places.Find(known, known, least, longest);
  Answers& answers = AnswersFor(sequence);
  if (match.tokens < longest) {
    const NgramIndex::Match elsewhere = answers.places.Find(answers.tokens, known, least, longest);
    if (elsewhere.tokens > match.tokens) match = elsewhere;
  }
  if (match.tokens == 0) return;
  sequence.draft_agrees = match.tokens;
  const std::int64_t worth = WorthWhile(answers, match.tokens, most);
  const std::vector<TokenId>& stops = sequence.asked.stop_token_ids;
  for (const TokenId token : match.next) {
    const bool ends = token == kNoToken || std::ranges::find(stops, token) != stops.end();
    if (ends || std::ssize(sequence.draft) >= worth) return;
    sequence.draft.push_back(token);
  }
}

void Drafter::Verified(Sequence& sequence, std::int64_t drafted, std::int64_t accepted) {
  Answers& answers = AnswersFor(sequence);
  const auto least = static_cast<std::size_t>(spec_.speculation.least_ngram);
  std::size_t beyond = std::max(sequence.draft_agrees, least) - least;
  for (std::int64_t i = 0; i < std::min(drafted, accepted + 1); ++i) {
    double& chance = answers.Chance(beyond++);
    chance += ((i < accepted ? 1 : 0) - chance) * kLearnt;
  }
}

void Drafter::Ended(const Sequence& sequence) {
  if (!drafts() || !spec_.keep_history || !sequence.asked.speculates || sequence.generated().empty()) return;
  Answers& answers = AnswersFor(sequence);
  // With the end of the prompt, so that the first tokens of an answer can be drafted.
  std::span<const TokenId> answer = sequence.tokens;
  const auto before = static_cast<std::size_t>(spec_.speculation.most_ngram);
  answer = answer.last(std::min(sequence.generated().size() + before, answer.size()));
  answer = answer.last(std::min(answer.size(), kAnswerTokens / 2));
  std::vector<TokenId>& tokens = answers.tokens;
  if (tokens.size() + answer.size() >= kAnswerTokens) {
    tokens.erase(tokens.begin(), tokens.begin() + std::ssize(tokens) / 2);
    answers.places.Clear();
  }
  tokens.push_back(kNoToken);
  tokens.insert(tokens.end(), answer.begin(), answer.end());
  answers.places.Grow(tokens, static_cast<std::size_t>(spec_.speculation.least_ngram));
}

void Drafter::StepTook(std::span<const PlannedChunk> chunks, TimeNs took) {
  if (!drafts()) return;
  std::int64_t rows = 0;
  for (const PlannedChunk& chunk : chunks) {
    if (!chunk.Decodes()) return;
    rows += 1 + chunk.drafted;
  }
  if (rows > 0) pace_.Add(rows, std::ssize(chunks), took);
}

}  // namespace loramux
