#include "server/completion/choice_stream.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "text/token_bytes.h"

namespace loramux {
namespace {

constexpr std::string_view kSentencePieceSpace = "\xE2\x96\x81";  // U+2581

std::int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](unsigned char c) { return (c & 0xC0) != 0x80; });
}

LogprobEntry Entry(const Tokenizer& tokenizer, TokenId id, float logprob, bool by_id) {
  LogprobEntry entry{.id = id,
                     .token = TokenText(tokenizer, id),
                     .logprob = logprob,
                     .special = tokenizer.IsSpecial(id),
                     .by_id = by_id};
  std::string bytes = TokenBytes(tokenizer, id, entry.token);
  if (bytes != entry.token) entry.bytes = std::move(bytes);
  return entry;
}

std::size_t BytesOf(const TokenLogprobText& token) { return sizeof(token) + token.top.size() * sizeof(token.top[0]); }

// The plan's tokens that the tokenizer has and treats as special.
std::vector<TokenId> SpecialTokens(const Tokenizer& tokenizer, const AnswerPlan& plan) {
  std::vector<TokenId> ids;
  if (!plan.parses()) return ids;
  for (const std::string_view token : plan.Tokens()) {
    const TokenId id = tokenizer.TokenToId(token);
    if (id >= 0 && tokenizer.IsSpecial(id)) ids.push_back(id);
  }
  return ids;
}

}  // namespace

std::string TokenText(const Tokenizer& tokenizer, TokenId id) {
  std::string piece = tokenizer.IdToToken(id);
  if (!piece.starts_with(kSentencePieceSpace)) {
    const TokenId ids[] = {id};
    auto text = tokenizer.Decode(ids, false);
    return text.ok() ? std::move(*text) : std::string();
  }
  std::string text;
  for (std::size_t from = 0; from <= piece.size();) {
    const std::size_t at = std::min(piece.find(kSentencePieceSpace, from), piece.size());
    text.append(piece, from, at - from);
    if (at < piece.size()) text += ' ';
    from = at + kSentencePieceSpace.size();
  }
  return text;
}

ChoiceStream::ChoiceStream(const Tokenizer& tokenizer, const CompletionRequest& request, const StopStringMatcher& stops,
                           std::int32_t index, const AnswerPlan& plan)
    : tokenizer_(&tokenizer),
      plan_(plan),
      parser_(plan.parses() ? plan.MakeParser() : nullptr),
      shown_tokens_(SpecialTokens(tokenizer, plan)),
      hides_special_tokens_(request.skip_special_tokens),
      detokenizer_(tokenizer, /*skip_special_tokens=*/false),  // it gets none that is hidden
      matcher_(stops),
      stop_token_ids_(request.stop_token_ids),
      keeps_stop_(request.include_stop),
      min_tokens_(request.stop.empty() ? 0 : request.min_tokens),
      wants_logprobs_(request.sampling.top_logprobs >= 0),
      echoes_(request.echo),
      tokens_as_ids_(request.tokens_as_ids),
      wants_token_ids_(request.token_ids),
      top_logprobs_(request.sampling.top_logprobs),
      prompt_logprobs_(request.prompt_logprobs),
      awaits_prompt_scores_(request.ScoredAlternatives() >= 0),
      index_(index),
      parallel_calls_(request.tools.parallel),
      include_reasoning_(request.tools.include_reasoning) {}

StopStringMatcher ChoiceStream::StopsOf(const Tokenizer& tokenizer, const CompletionRequest& request,
                                        const AnswerPlan& plan) {
  return {request.stop, request.include_stop, tokenizer, SpecialTokens(tokenizer, plan)};
}

void ChoiceStream::Prepend(std::string text) {
  text_offset_ += CountCharacters(text);
  echo_bytes_ = text.size();
  text_ = std::move(text) + text_;
}

void ChoiceStream::GivePromptScores(std::shared_ptr<const PromptScores> scores) {
  awaits_prompt_scores_ = false;
  prompt_scores_ = std::move(scores);
  if (!echoes_ || !wants_logprobs_) return;
  std::vector<TokenLogprobText> prompt;
  prompt.reserve(prompt_scores_->scores.size() + 1 + logprobs_.size());
  prompt.push_back(LogprobText(prompt_scores_->first, 0, {}));
  prompt.back().unknown = true;
  for (const ScoredToken& token : prompt_scores_->scores) {
    const auto wanted = std::min(token.top_logprobs.size(), static_cast<std::size_t>(top_logprobs_));
    prompt.push_back(LogprobText(token.id, token.logprob, std::span(token.top_logprobs).first(wanted)));
  }
  for (TokenLogprobText& token : prompt) {
    token.text_end = echo_bytes_;
    logprob_bytes_ += BytesOf(token);
  }
  prompt.insert(prompt.end(), std::make_move_iterator(logprobs_.begin()), std::make_move_iterator(logprobs_.end()));
  logprobs_ = std::move(prompt);
  text_offset_ = 0;
}

// True if the id has text. Models pad their vocabulary beyond the tokenizer's; padding ids have no text.
bool ChoiceStream::Knows(TokenId id) const {
  return id < tokenizer_->VocabSize() && !tokenizer_->IdToToken(id).empty();
}

Status ChoiceStream::Apply(const GenerationEvent& event) {
  if (event.finish != FinishReason::kNone) engine_done_ = true;
  if (finished()) return Ok{};
  has_news_ = true;
  usage_.prompt_tokens = event.prompt_tokens;
  usage_.cached_tokens = event.cached_prompt_tokens;
  if (event.finish == FinishReason::kError) {
    return event.error ? *event.error : Internal("The engine could not continue this request.");
  }
  if (event.finish == FinishReason::kCancelled) return Unavailable("The server is shutting down.");
  if (!std::ranges::all_of(event.embedding, [](float value) { return std::isfinite(value); })) {
    return Internal("The model's hidden states are not finite numbers for this input.");
  }
  embedding_ = event.embedding;
  if (event.token) RETURN_IF_ERROR(AddToken(*event.token));
  if (event.finish == FinishReason::kNone || finished()) return Ok{};
  if (event.stop) {
    stop_token_ = event.stop->id;
    if (wants_token_ids_) token_ids_.push_back(stop_token_);
  }
  const bool by_id =
      event.stop && std::find(stop_token_ids_.begin(), stop_token_ids_.end(), event.stop->id) != stop_token_ids_.end();
  if (by_id && keeps_stop_) RETURN_IF_ERROR(AddTextOf(event.stop->id));
  if (finished()) return Ok{};
  RETURN_IF_ERROR(FinishText(event.stop && !by_id ? event.stop->id : -1));
  if (finished()) return Ok{};  // a stop string in the text that was held back, or one that ends with the last token
  if (event.stop && wants_logprobs_) {
    stop_logprob_ = LogprobText(event.stop->id, event.stop->logprob, event.stop->top_logprobs);
    logprob_bytes_ += BytesOf(*stop_logprob_);
  }
  Finish(event.finish, by_id ? StopReason(event.stop->id) : StopReason(), event.finish != FinishReason::kStop);
  return Ok{};
}

Status ChoiceStream::AddToken(const SampledToken& token) {
  ++usage_.completion_tokens;
  if (wants_token_ids_) token_ids_.push_back(token.id);
  if (wants_logprobs_) AddLogprob(token);
  ++unplaced_tokens_;
  const bool reasons = Reasons();
  RETURN_IF_ERROR(AddTextOf(token.id));
  if (reasons || Reasons()) ++usage_.reasoning_tokens;
  PlaceTokens();
  if (wants_logprobs_) logprobs_.back().text_end = text_.size();
  return Ok{};
}

Status ChoiceStream::AddTextOf(TokenId id) {
  if (!Knows(id)) return Ok{};
  if (Hides(id)) return AddHidden(id);
  ASSIGN_OR_RETURN(const std::string piece, detokenizer_.Push(id));
  AddText(piece);
  return Ok{};
}

// Tokens belong to the events that their text became, even where the parser had to wait for more text first.
void ChoiceStream::PlaceTokens() {
  if (events_.Attribute(unplaced_tokens_)) unplaced_tokens_ = 0;
}

void ChoiceStream::AddText(std::string_view text) {
  if (usage_.completion_tokens <= min_tokens_) {  // stop strings may not end the output yet, as in vLLM
    Emit(text);
    return;
  }
  Take(matcher_.Push(text), /*cut=*/true);
}

// Clients do not see the token, but may name it in a stop string.
Status ChoiceStream::AddHidden(TokenId id) {
  if (usage_.completion_tokens <= min_tokens_) return Ok{};
  std::string before;
  if (matcher_.HasSpecial(id)) {
    ASSIGN_OR_RETURN(before, detokenizer_.Held());
  }
  Take(matcher_.PushSpecial(id, before), /*cut=*/false);
  return Ok{};
}

// `cut`: a stop string in `output` cuts what the model would have written, which special tokens end.
void ChoiceStream::Take(StopStringMatcher::Output output, bool cut) {
  Emit(output.text);
  if (output.stopped && !finished()) Finish(FinishReason::kStop, std::move(output.matched), cut);
}

// What a stop string finds that ends with the token that ended the answer. Its text is no part of the answer.
StopStringMatcher::Output ChoiceStream::MatchEnd(TokenId id) const {
  if (id < 0 || !Knows(id) || usage_.completion_tokens < min_tokens_) return {};
  StopStringMatcher matcher = matcher_;
  if (Hides(id)) return matcher.PushSpecial(id, {});
  const std::string text = TokenText(*tokenizer_, id);
  StopStringMatcher::Output output = matcher.Push(text);
  return output.matched.ends_with(text) ? output : StopStringMatcher::Output();
}

// `end` is the token that ended the answer; -1: there is none.
Status ChoiceStream::FinishText(TokenId end) {
  ASSIGN_OR_RETURN(const std::string rest, detokenizer_.Finish());
  AddText(rest);
  if (finished()) return Ok{};
  StopStringMatcher::Output last = MatchEnd(end);
  if (last.stopped) {
    Take(std::move(last), /*cut=*/false);
  } else {
    Emit(matcher_.Finish());
  }
  return Ok{};
}

void ChoiceStream::Finish(FinishReason reason, StopReason stop_reason, bool cut) {
  finish_ = reason;
  stop_reason_ = std::move(stop_reason);
  if (parser_ == nullptr) return;
  parser_->Finish(events_, cut);
  PlaceTokens();
}

// True if clients that skip special tokens do not see it and the parser has no use for it.
bool ChoiceStream::Hides(TokenId id) const {
  return hides_special_tokens_ && tokenizer_->IsSpecial(id) &&
         std::find(shown_tokens_.begin(), shown_tokens_.end(), id) == shown_tokens_.end();
}

void ChoiceStream::Emit(std::string_view text) {
  if (parser_ == nullptr) {
    text_ += text;
    return;
  }
  parser_->Push(text, events_);
  if (!parallel_calls_ && events_.ended_calls() > 0) EndAfterFirstCall();
}

void ChoiceStream::EndAfterFirstCall() {
  events_.CutAfterCall();
  parser_ = std::make_unique<ContentParser>();
  Finish(FinishReason::kStop, StopReason(), /*cut=*/false);
}

void ChoiceStream::AddLogprob(const SampledToken& token) {
  logprobs_.push_back(LogprobText(token.id, token.logprob, token.top_logprobs));
  logprob_bytes_ += BytesOf(logprobs_.back());
}

TokenLogprobText ChoiceStream::LogprobText(TokenId id, float logprob, std::span<const TokenLogprob> top) const {
  TokenLogprobText text{Entry(*tokenizer_, id, logprob, tokens_as_ids_), {}};
  text.top.reserve(top.size());
  for (const TokenLogprob& other : top) {
    text.top.push_back(Entry(*tokenizer_, other.id, other.logprob, tokens_as_ids_));
  }
  return text;
}

ChoiceOutput ChoiceStream::TakeOutput() {
  ChoiceOutput output;
  output.index = index_;
  output.text = std::exchange(text_, {});
  if (parser_ != nullptr) TakeEvents(output);
  output.wants_logprobs = wants_logprobs_;
  output.logprobs = std::exchange(logprobs_, {});
  logprob_bytes_ = 0;
  output.text_offset = text_offset_;
  for (const TokenLogprobText& token : output.logprobs) text_offset_ += token.chosen.Characters();
  if (prompt_logprobs_ >= 0 && prompt_scores_ != nullptr) {
    output.prompt_logprobs = PromptLogprobsJson(*tokenizer_, *prompt_scores_, std::exchange(prompt_logprobs_, -1));
  }
  if (wants_token_ids_) {
    output.token_ids = std::exchange(token_ids_, {});
    output.prompt_token_ids = std::exchange(prompt_ids_, nullptr);
  }
  output.version_changes = std::exchange(version_changes_, {});
  output.embedding = std::exchange(embedding_, {});
  output.finish = finish_;
  output.stop_reason = stop_reason_;
  output.stop_token = stop_token_;
  output.stop_logprob = std::exchange(stop_logprob_, {});
  if (stop_token_ >= 0) output.stop_token_text = tokenizer_->IdToToken(stop_token_);
  has_news_ = false;
  return output;
}

void ChoiceStream::TakeEvents(ChoiceOutput& output) {
  output.has_calls = events_.ended_calls() > 0;
  output.called_tools = output.has_calls && !plan_.named;
  output.events = events_.Take();
  for (OutputEvent& event : *output.events) {
    if (event.kind == OutputEvent::Kind::kCallStart) event.id = plan_.NewCallId();
  }
  if (include_reasoning_) return;
  std::erase_if(*output.events, [](const OutputEvent& event) { return event.kind == OutputEvent::Kind::kReasoning; });
}

}  // namespace loramux
