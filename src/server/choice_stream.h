// One choice of a response: from token events to text, stop strings, logprobs and a finish reason.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/generation_inbox.h"
#include "server/openai_request.h"
#include "server/openai_response.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace loramux {

// Not thread-safe; the tokenizer must outlive it.
class ChoiceStream {
 public:
  ChoiceStream(const Tokenizer& tokenizer, const OpenAiRequest& request, std::int32_t index);

  // Text that comes before everything generated (echo).
  void Prepend(std::string text);

  // Applies the next event of this sequence. Events after the end are ignored. Error: the generation failed or was
  // cancelled by someone else than us, and the response cannot be completed.
  Status Apply(const TokenEvent& event);

  // The choice is complete: the engine said so, or a stop string was found.
  bool finished() const { return finish_ != FinishReason::kNone; }
  FinishReason finish() const { return finish_; }
  // The engine has delivered its last event.
  bool engine_done() const { return engine_done_; }
  // Something arrived since the last TakeOutput.
  bool HasOutput() const { return has_news_; }
  // What is new since the last call (all of it, if this is the first).
  ChoiceOutput TakeOutput();

  Usage usage() const { return usage_; }

 private:
  Status AddToken(const SampledToken& token);
  void AddText(std::string_view text);
  void AddLogprob(const SampledToken& token);
  Status FinishText();
  void Finish(FinishReason reason, StopReason stop_reason);
  bool Knows(TokenId id) const;

  const Tokenizer* tokenizer_;
  IncrementalDetokenizer detokenizer_;
  StopStringMatcher matcher_;
  std::vector<TokenId> stop_token_ids_;
  std::int32_t min_tokens_;
  bool wants_logprobs_;
  std::int32_t index_;

  Usage usage_;
  std::string text_;
  std::vector<TokenLogprobText> logprobs_;
  std::int64_t text_offset_ = 0;
  bool has_news_ = false;
  bool engine_done_ = false;
  FinishReason finish_ = FinishReason::kNone;
  StopReason stop_reason_;
};

// One token's text as clients see it in logprobs: with the leading space that a decoder would drop at the start of a
// text; U+FFFD where it is part of a character.
std::string TokenText(const Tokenizer& tokenizer, TokenId id);

}  // namespace loramux
