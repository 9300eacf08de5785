// Builds response bodies: the JSON of OpenAI's protocol with vLLM's additions. Every function returns serialised text.
// None throws on text that is not UTF-8; it becomes U+FFFD.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "http/json_reader.h"
#include "server/completion/choice_output.h"
#include "server/completion/completion_request.h"
#include "server/completion/dialect.h"

namespace loramux {

// The fields that are the same in every part of one response.
struct ResponseHead {
  Endpoint endpoint = Endpoint::kChat;
  std::string id;            // "chatcmpl-..." or "cmpl-..."
  std::int64_t created = 0;  // Unix seconds
  ServedModel served;
};

// Returns the body of a response that is not streamed.
std::string CompletionBody(const ResponseHead& head, std::span<const ChoiceOutput> choices, const Usage& usage);

// Return what vLLM's other bodies share with these: `usage`, `finish_reason` and `stop_reason`.
Json UsageJson(const Usage& usage);
Json FinishJson(const ChoiceOutput& choice);
Json StopReasonJson(const StopReason& reason);

// Returns log-probabilities as a list of {"token", "logprob", "bytes", "top_logprobs"}, as chats have them.
Json ChatLogprobList(std::span<const TokenLogprobText> tokens);

// Adds `weight_versions`, if the choice goes on with another version of its adapter: [{"from", "weight_version"}].
void AddVersionChanges(const ChoiceOutput& choice, Json& json);

// Builds the server-sent events of one streamed response. Caches their common beginning.
class EventWriter {
 public:
  // `null_usage` adds "usage":null to events without usage (OpenAI, with include_usage). The first event has the
  // weight version.
  EventWriter(const ResponseHead& head, bool null_usage);
  // Returns the first event of a chat choice: {"role":"assistant","content":""}. `usage` may be null: none is reported.
  // `first` is the choice's first output.
  std::string Role(const ChoiceOutput& first, const Usage* usage);
  // Returns the events with the new output of a choice: one, or, if it was read as more than content, one for each
  // change of kind; none if the parser waits for more text. `usage` may be null.
  std::string Delta(const ChoiceOutput& choice, const Usage* usage);
  // Returns the event that ends a stream with include_usage: no choices, and the usage.
  std::string FinalUsage(const Usage& usage);

 private:
  // `more`: further fields of the event, each after a comma.
  std::string Event(std::string_view choices, const Usage* usage, std::string_view more = {});
  std::string ParsedDelta(const ChoiceOutput& choice, const Usage* usage);

  Endpoint endpoint_;
  bool null_usage_;
  std::string prefix_;   // up to and including `"choices":`
  std::string version_;  // the field that the next event has, with a comma before it; empty: none
};

// Returns the event that reports an error within a stream.
std::string ErrorEvent(const Error& error);
// The event that ends every stream.
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";

}  // namespace loramux
