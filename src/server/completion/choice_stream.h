// One choice of a response: turns token events into text, stop strings, logprobs and a finish reason.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/completion/answer_plan.h"
#include "server/completion/choice_output.h"
#include "server/completion/completion_request.h"
#include "server/completion/prompt_scores.h"
#include "server/generation/generation_inbox.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace loramux {

// Not thread-safe. The tokenizer must outlive it.
class ChoiceStream {
 public:
  // `stops` has the request's stop strings (StopsOf) and has seen no text. `index` is the position of the choice in the
  // response. `plan` says how its text is read; the default: all of it is content.
  ChoiceStream(const Tokenizer& tokenizer, const CompletionRequest& request, const StopStringMatcher& stops,
               std::int32_t index, const AnswerPlan& plan = {});

  // The stop strings of a request whose answers are read by `plan`.
  static StopStringMatcher StopsOf(const Tokenizer& tokenizer, const CompletionRequest& request,
                                   const AnswerPlan& plan);

  // Puts `text` before all generated text, for `echo`.
  void Prepend(std::string text);

  // Gives the prompt's ids, for answers that have them.
  void GivePrompt(std::shared_ptr<const std::vector<TokenId>> ids) { prompt_ids_ = std::move(ids); }

  // The tokens that come now are those of another version of the adapter.
  void ChangeVersion(std::string weight_version) {
    version_changes_.push_back({usage_.completion_tokens, std::move(weight_version)});
  }

  // Gives what the model thinks of the prompt, if the request asks for it. Until then there is no output.
  void GivePromptScores(std::shared_ptr<const PromptScores> scores);

  // Applies the next event of this sequence. Ignores events after the end. Error: the generation failed or was
  // cancelled by another party, so the response cannot be completed.
  Status Apply(const GenerationEvent& event);

  // True if the choice is complete: the engine ended it, or a stop string was found.
  bool finished() const { return finish_ != FinishReason::kNone; }
  // Why the choice ended; kNone while it runs.
  FinishReason finish() const { return finish_; }
  // True if the engine has delivered its last event.
  bool engine_done() const { return engine_done_; }
  // True if an event arrived since the last TakeOutput.
  bool HasOutput() const { return has_news_ && !awaits_prompt_scores_; }
  // Returns about how many bytes of text, log-probabilities and numbers TakeOutput would return.
  std::size_t held_bytes() const {
    return text_.size() + events_.bytes() + logprob_bytes_ + embedding_.size() * sizeof(float) +
           token_ids_.size() * kTokenIdBytes;
  }
  // Returns the output since the last call (everything, on the first call).
  ChoiceOutput TakeOutput();

  // Tokens so far.
  Usage usage() const { return usage_; }

 private:
  static constexpr std::size_t kTokenIdBytes = 8;  // bytes of one id as JSON, roughly

  Status AddToken(const SampledToken& token);
  Status AddTextOf(TokenId id);
  void AddText(std::string_view text);
  Status AddHidden(TokenId id);
  void Take(StopStringMatcher::Output output, bool cut);
  StopStringMatcher::Output MatchEnd(TokenId id) const;
  void Emit(std::string_view text);
  void EndAfterFirstCall();
  void PlaceTokens();
  bool Hides(TokenId id) const;
  bool Reasons() const { return parser_ != nullptr && parser_->reasons(); }
  void TakeEvents(ChoiceOutput& output);
  void AddLogprob(const SampledToken& token);
  TokenLogprobText LogprobText(TokenId id, float logprob, std::span<const TokenLogprob> top) const;
  Status FinishText(TokenId end);
  void Finish(FinishReason reason, StopReason stop_reason, bool cut);
  bool Knows(TokenId id) const;

  const Tokenizer* tokenizer_;
  AnswerPlan plan_;
  std::unique_ptr<OutputParser> parser_;  // null: all text is content
  std::vector<TokenId> shown_tokens_;     // special tokens that the parser sees although clients do not
  bool hides_special_tokens_;             // but shown_tokens_
  IncrementalDetokenizer detokenizer_;
  StopStringMatcher matcher_;
  std::vector<TokenId> stop_token_ids_;
  bool keeps_stop_;  // the text of the stop token stays
  std::int32_t min_tokens_;
  bool wants_logprobs_, echoes_;
  bool tokens_as_ids_, wants_token_ids_;
  std::size_t echo_bytes_ = 0;
  std::int32_t top_logprobs_;
  std::int32_t prompt_logprobs_;  // -1: not wanted, or taken
  bool awaits_prompt_scores_;
  std::shared_ptr<const PromptScores> prompt_scores_;
  std::int32_t index_;

  Usage usage_;
  std::string text_;
  OutputEvents events_;              // instead of text_, if there is a parser
  std::size_t unplaced_tokens_ = 0;  // tokens whose text the parser has not made an event of
  bool parallel_calls_;
  bool include_reasoning_;
  std::vector<TokenLogprobText> logprobs_;
  std::size_t logprob_bytes_ = 0;
  std::int64_t text_offset_ = 0;
  std::shared_ptr<const std::vector<TokenId>> prompt_ids_;  // null: not wanted, or taken
  std::vector<TokenId> token_ids_;
  std::vector<VersionChange> version_changes_;
  std::vector<float> embedding_;
  bool has_news_ = false;
  bool engine_done_ = false;
  FinishReason finish_ = FinishReason::kNone;
  StopReason stop_reason_;
  TokenId stop_token_ = -1;
  std::optional<TokenLogprobText> stop_logprob_;
};

// Returns the text of one token for logprobs: with the leading space that a decoder drops at the start of a text, and
// with U+FFFD where the token is part of a character.
std::string TokenText(const Tokenizer& tokenizer, TokenId id);

}  // namespace loramux
