// What goes back to clients: the JSON of OpenAI's protocol with vLLM's additions. Every function returns serialised
// text; none throws on text that is not UTF-8 (it comes out as U+FFFD).
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
#include "server/openai_request.h"

namespace loramux {

// What is the same in every piece of one response.
struct ResponseHead {
  Endpoint endpoint = Endpoint::kChat;
  std::string id;            // "chatcmpl-..." or "cmpl-..."
  std::int64_t created = 0;  // Unix seconds
  std::string model;         // as the client named it
};

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t cached_tokens = 0;  // of the prompt tokens
};

// One generated token, as text.
struct TokenLogprobText {
  std::string token;
  float logprob = 0;
  std::vector<std::pair<std::string, float>> top;  // descending
};

// null, the stop string or the stop token id that ended a choice (vLLM's `stop_reason`).
using StopReason = std::variant<std::monostate, std::string, TokenId>;

// A whole choice, or what is new of it in a stream.
struct ChoiceOutput {
  std::int32_t index = 0;
  std::string text;
  bool wants_logprobs = false;
  std::vector<TokenLogprobText> logprobs;
  std::int64_t text_offset = 0;  // characters before the first token of `logprobs`
  FinishReason finish = FinishReason::kNone;
  StopReason stop_reason;
};

// The body of a response that is not streamed.
std::string CompletionBody(const ResponseHead& head, std::span<const ChoiceOutput> choices, const Usage& usage);

// The server-sent events of one streamed response. Holds what all of them begin with.
class EventWriter {
 public:
  // `null_usage` puts "usage":null in events that carry none (OpenAI, with include_usage).
  EventWriter(const ResponseHead& head, bool null_usage);
  // The first event of a chat choice: {"role":"assistant","content":""}.
  std::string Role(std::int32_t index, const Usage* usage) const;
  std::string Delta(const ChoiceOutput& choice, const Usage* usage) const;
  // choices: [], usage.
  std::string FinalUsage(const Usage& usage) const;

 private:
  std::string Event(std::string_view choices, const Usage* usage) const;

  Endpoint endpoint_;
  bool null_usage_;
  std::string prefix_;  // up to and including `"choices":`
};

std::string ErrorEvent(const Error& error);
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";

// The HTTP status of an error: 400, 404, 429, 500 or 503.
int HttpStatus(const Error& error);
// "BadRequestError" and the like.
const char* ErrorType(int status);
// {"error":{"message","type","param","code"}}; the type follows from the status.
std::string ErrorBody(int status, std::string_view message, std::string_view param);

}  // namespace loramux
