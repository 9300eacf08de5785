#include "server/openai/openai_response.h"

#include <algorithm>

#include "http/json_reader.h"

namespace loramux {
namespace {

constexpr float kLeastLogprob = -9999.0f;  // JSON has no -infinity; vLLM writes this value

Json UsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

double LogprobNumber(float logprob) { return std::max(logprob, kLeastLogprob); }

Json BytesOf(std::string_view text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

Json ChatLogprob(std::string_view token, float logprob) {
  return {{"token", token}, {"logprob", LogprobNumber(logprob)}, {"bytes", BytesOf(token)}};
}

Json ChatLogprobs(const ChoiceOutput& choice) {
  Json content = Json::array();
  for (const TokenLogprobText& token : choice.logprobs) {
    Json entry = ChatLogprob(token.token, token.logprob);
    Json& top = entry["top_logprobs"] = Json::array();
    for (const auto& [text, logprob] : token.top) top.push_back(ChatLogprob(text, logprob));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

std::int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](unsigned char c) { return (c & 0xC0) != 0x80; });
}

// The alternatives as an object, which always contains the chosen token. Of tokens with equal text the likelier counts.
Json CompletionTopLogprobs(const TokenLogprobText& token) {
  Json top = Json::object();
  for (const auto& [text, logprob] : token.top) {
    if (!top.contains(text)) top[text] = LogprobNumber(logprob);
  }
  if (!top.contains(token.token)) top[token.token] = LogprobNumber(token.logprob);
  return top;
}

Json CompletionLogprobs(const ChoiceOutput& choice) {
  Json offsets = Json::array(), logprobs = Json::array(), tokens = Json::array(), tops = Json::array();
  std::int64_t offset = choice.text_offset;
  for (const TokenLogprobText& token : choice.logprobs) {
    offsets.push_back(offset);
    offset += CountCharacters(token.token);
    logprobs.push_back(LogprobNumber(token.logprob));
    tokens.push_back(token.token);
    tops.push_back(CompletionTopLogprobs(token));
  }
  return {{"text_offset", std::move(offsets)},
          {"token_logprobs", std::move(logprobs)},
          {"tokens", std::move(tokens)},
          {"top_logprobs", std::move(tops)}};
}

Json LogprobsJson(const ChoiceOutput& choice, Endpoint endpoint) {
  if (!choice.wants_logprobs) return nullptr;
  if (endpoint == Endpoint::kCompletion) return CompletionLogprobs(choice);
  return ChatLogprobs(choice);
}

Json FinishJson(FinishReason finish) {
  switch (finish) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
    case FinishReason::kError:
    case FinishReason::kNone:
      break;
  }
  return nullptr;
}

Json StopReasonJson(const StopReason& reason) {
  if (const auto* text = std::get_if<std::string>(&reason)) return *text;
  if (const auto* id = std::get_if<TokenId>(&reason)) return *id;
  return nullptr;
}

// `content_key` is "text", "message" or "delta".
Json ChoiceJson(const ChoiceOutput& choice, Endpoint endpoint, const char* content_key, Json content) {
  return {{"index", choice.index},
          {content_key, std::move(content)},
          {"logprobs", LogprobsJson(choice, endpoint)},
          {"finish_reason", FinishJson(choice.finish)},
          {"stop_reason", StopReasonJson(choice.stop_reason)}};
}

const char* ObjectName(Endpoint endpoint, bool streamed) {
  if (endpoint == Endpoint::kCompletion) return "text_completion";
  return streamed ? "chat.completion.chunk" : "chat.completion";
}

Json HeadJson(const ResponseHead& head, bool streamed) {
  return {{"id", head.id},
          {"object", ObjectName(head.endpoint, streamed)},
          {"created", head.created},
          {"model", head.model}};
}

}  // namespace

// Serialises one choice after the other: a tree of all log-probabilities would take several times the answer's memory.
std::string CompletionBody(const ResponseHead& head, std::span<const ChoiceOutput> choices, const Usage& usage) {
  std::string body = DumpJson(HeadJson(head, false));
  body.pop_back();  // the closing brace
  body += ",\"choices\":[";
  for (const ChoiceOutput& choice : choices) {
    const bool chat = head.endpoint == Endpoint::kChat;
    Json content =
        chat ? Json{{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}} : Json(choice.text);
    if (&choice != &choices.front()) body += ',';
    body += DumpJson(ChoiceJson(choice, head.endpoint, chat ? "message" : "text", std::move(content)));
  }
  body += "],\"usage\":" + DumpJson(UsageJson(usage)) + "}";
  return body;
}

EventWriter::EventWriter(const ResponseHead& head, bool null_usage)
    : endpoint_(head.endpoint), null_usage_(null_usage), prefix_("data: " + DumpJson(HeadJson(head, true))) {
  prefix_.pop_back();  // the closing brace
  prefix_ += ",\"choices\":";
}

std::string EventWriter::Event(std::string_view choices, const Usage* usage) const {
  std::string event = prefix_;
  event += choices;
  if (usage != nullptr) event += ",\"usage\":" + DumpJson(UsageJson(*usage));
  if (usage == nullptr && null_usage_) event += ",\"usage\":null";
  event += "}\n\n";
  return event;
}

std::string EventWriter::Role(std::int32_t index, const Usage* usage) const {
  const Json choice = {{"index", index},
                       {"delta", {{"role", "assistant"}, {"content", ""}}},
                       {"logprobs", nullptr},
                       {"finish_reason", nullptr}};
  return Event("[" + DumpJson(choice) + "]", usage);
}

std::string EventWriter::Delta(const ChoiceOutput& choice, const Usage* usage) const {
  const bool chat = endpoint_ == Endpoint::kChat;
  Json content = chat ? Json{{"content", choice.text}} : Json(choice.text);
  return Event("[" + DumpJson(ChoiceJson(choice, endpoint_, chat ? "delta" : "text", std::move(content))) + "]", usage);
}

std::string EventWriter::FinalUsage(const Usage& usage) const { return Event("[]", &usage); }

std::string ErrorEvent(const Error& error) {
  return "data: " + ErrorBody(HttpStatus(error), error.message, error.param) + "\n\n";
}

}  // namespace loramux
