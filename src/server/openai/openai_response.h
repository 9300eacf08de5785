// Builds response bodies: the JSON of OpenAI's protocol with vLLM's additions. Every function returns serialised text.
// None throws on text that is not UTF-8; it becomes U+FFFD.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "engine/generation.h"
#include "http/error_body.h"
#include "http/json_reader.h"
#include "server/openai/openai_request.h"
#include "server/output/output_parser.h"

namespace loramux {

// The fields that are the same in every part of one response.
struct ResponseHead {
  Endpoint endpoint = Endpoint::kChat;
  std::string id;            // "chatcmpl-..." or "cmpl-..."
  std::int64_t created = 0;  // Unix seconds
  std::string model;         // unix seconds
};

// Token counts of one choice or of a whole response.
struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t cached_tokens = 0;     // prompt tokens that came from the prefix cache
  std::int64_t reasoning_tokens = 0;  // of the completion, with the tags around the reasoning
};

// One token with its log-probability.
struct LogprobEntry {
  TokenId id = 0;
  std::string token;  // as text, with U+FFFD for a part of a character
  float logprob = 0;
  std::string bytes = {};  // if they are not those of `token`; empty: they are
  bool special = false;    // an added token that is no text
  bool by_id = false;      // the client wants "token_id:ID" as its name
  // Returns what the client sees as `token`.
  std::string Name() const;
  // Returns the characters that begin in this token.
  std::int64_t Characters() const;
};

// One generated token, with its alternatives.
struct TokenLogprobText {
  LogprobEntry chosen;
  std::vector<LogprobEntry> top;  // most likely first
  bool unknown = false;           // the first token of a prompt has no log-probability
  std::size_t text_end = 0;       // bytes of the output's text that were there once this token was added
};

// The stop string or the stop token id that ended a choice (vLLM's `stop_reason`); monostate: JSON null.
using StopReason = std::variant<std::monostate, std::string, TokenId>;

// A whole choice, or its new output in a stream.
struct ChoiceOutput {
  std::int32_t index = 0;
  std::string text;
  // Instead of `text`, if the answer was read as more than content.
  std::optional<std::vector<OutputEvent>> events = {};
  bool has_calls = false;     // of tools
  bool called_tools = false;  // the finish reason is "tool_calls" instead of "stop"
  bool wants_logprobs = false;
  std::vector<TokenLogprobText> logprobs;
  std::int64_t text_offset = 0;  // characters of text before the first token of `logprobs`
  std::string prompt_logprobs;   // JSON (PromptLogprobsJson); empty: not wanted
  FinishReason finish = FinishReason::kNone;
  StopReason stop_reason;
  TokenId stop_token = -1;      // the token that ended the choice; it is not in `logprobs`. -1: none did
  std::string stop_token_text;  // its stored form
  std::optional<TokenLogprobText> stop_logprob = {};  // of `stop_token`, if log-probabilities are wanted
  std::vector<float> embedding = {};                  // of requests for embeddings
};

// Returns the number that stands for a log-probability in JSON, which has no -infinity.
double LogprobNumber(float logprob);

// Returns the body of a response that is not streamed.
std::string CompletionBody(const ResponseHead& head, std::span<const ChoiceOutput> choices, const Usage& usage);

// Returns log-probabilities as a list of {"token", "logprob", "bytes", "top_logprobs"}, as chats have them.
Json ChatLogprobList(std::span<const TokenLogprobText> tokens);

// Builds the server-sent events of one streamed response. Caches their common beginning.
class EventWriter {
 public:
  // `null_usage` adds "usage":null to events without usage (OpenAI, with include_usage).
  EventWriter(const ResponseHead& head, bool null_usage);
  // Returns the first event of a chat choice: {"role":"assistant","content":""}. `usage` may be null: none is reported.
  std::string Role(std::int32_t index, const Usage* usage) const;
  // Returns the events with the new output of a choice: one, or, if it was read as more than content, one for each
  // change of kind; none if the parser waits for more text. `usage` may be null.
  std::string Delta(const ChoiceOutput& choice, const Usage* usage) const;
  // Returns the event that ends a stream with include_usage: no choices, and the usage.
  std::string FinalUsage(const Usage& usage) const;

 private:
  std::string Event(std::string_view choices, const Usage* usage) const;
  std::string ParsedDelta(const ChoiceOutput& choice, const Usage* usage) const;

  Endpoint endpoint_;
  bool null_usage_;
  std::string prefix_;  // up to and including `"choices":`
};

// Returns the event that reports an error within a stream.
std::string ErrorEvent(const Error& error);
// The event that ends every stream.
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";

}  // namespace loramux
