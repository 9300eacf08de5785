#include "server/api/openai/openai_response.h"

#include <algorithm>
#include <utility>

#include "auth/error_body.h"
#include "http/error_status.h"
#include "http/json_reader.h"
#include "server/api/openai/chat_message.h"

namespace loramux {
namespace {

Json BytesOf(std::string_view text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

Json ChatLogprob(const LogprobEntry& entry) {
  return {{"token", entry.Name()},
          {"logprob", LogprobNumber(entry.logprob)},
          {"bytes", BytesOf(entry.bytes.empty() ? entry.token : entry.bytes)}};
}

// A client that asks for ids pairs them with the log-probabilities, so those have the token that ended the answer too.
Json ChatLogprobs(const ChoiceOutput& choice) {
  Json content = ChatLogprobList(choice.logprobs);
  if (choice.token_ids && choice.stop_logprob) {
    content.push_back(std::move(ChatLogprobList(std::span(&*choice.stop_logprob, 1)).front()));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// The name of a token in a completion's log-probabilities. A part of a character is named by its bytes, as in OpenAI's
// legacy format: "bytes:\xe2\x80".
std::string CompletionName(const LogprobEntry& entry) {
  if (entry.bytes.empty() || entry.by_id) return entry.Name();
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name = "bytes:";
  for (const char c : entry.bytes) {
    const auto byte = static_cast<unsigned char>(c);
    name += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return name;
}

// Adds a token to an object of alternatives under a name that no other token has, and returns that name. Tokens of
// equal text are told apart by their ids.
std::string AddAlternative(Json& top, const LogprobEntry& entry) {
  std::string name = CompletionName(entry);
  if (top.contains(name)) name = "token_id:" + std::to_string(entry.id);
  while (top.contains(name)) name += '_';  // the text of another token was this name
  top[name] = LogprobNumber(entry.logprob);
  return name;
}

// The alternatives as an object, which always contains the chosen token, and the name of that one in it.
struct NamedAlternatives {
  Json top = Json::object();
  std::string chosen;
};

NamedAlternatives NameAlternatives(const TokenLogprobText& token) {
  NamedAlternatives named;
  for (const LogprobEntry& entry : token.top) {
    std::string name = AddAlternative(named.top, entry);
    if (entry.id == token.chosen.id) named.chosen = std::move(name);
  }
  const bool listed = std::any_of(token.top.begin(), token.top.end(),
                                  [&](const LogprobEntry& entry) { return entry.id == token.chosen.id; });
  if (!listed) named.chosen = AddAlternative(named.top, token.chosen);
  return named;
}

Json CompletionLogprobs(const ChoiceOutput& choice) {
  Json offsets = Json::array(), logprobs = Json::array(), tokens = Json::array(), tops = Json::array();
  std::int64_t offset = choice.text_offset;
  const auto add = [&](const TokenLogprobText& token) {
    offsets.push_back(offset);
    offset += token.chosen.Characters();
    NamedAlternatives named = NameAlternatives(token);
    tokens.push_back(std::move(named.chosen));
    logprobs.push_back(token.unknown ? Json(nullptr) : Json(LogprobNumber(token.chosen.logprob)));
    tops.push_back(token.unknown ? Json(nullptr) : std::move(named.top));
  };
  for (const TokenLogprobText& token : choice.logprobs) add(token);
  // As in OpenAI's legacy API and vLLM: a client that asks for one token after an echo counts on it.
  if (choice.stop_logprob) add(*choice.stop_logprob);
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

// `content_key` is "text", "message" or "delta".
Json ChoiceJson(const ChoiceOutput& choice, Endpoint endpoint, const char* content_key, Json content) {
  Json json = {{"index", choice.index},
               {content_key, std::move(content)},
               {"logprobs", LogprobsJson(choice, endpoint)},
               {"finish_reason", FinishJson(choice)},
               {"stop_reason", StopReasonJson(choice.stop_reason)}};
  if (choice.token_ids) json["token_ids"] = *choice.token_ids;
  if (choice.prompt_token_ids != nullptr && endpoint == Endpoint::kCompletion) {
    json["prompt_token_ids"] = *choice.prompt_token_ids;
  }
  AddVersionChanges(choice, json);
  return json;
}

// A chat has one prompt, so its ids stand beside the choices, as in vLLM.
std::string ChatPromptIds(const ChoiceOutput& choice, Endpoint endpoint) {
  if (choice.prompt_token_ids == nullptr || endpoint != Endpoint::kChat) return {};
  return ",\"prompt_token_ids\":" + DumpJson(*choice.prompt_token_ids);
}

Json ChatMessage(const ChoiceOutput& choice) {
  if (choice.events) return MessageOf(*choice.events);
  return {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
}

const char* ObjectName(Endpoint endpoint, bool streamed) {
  if (endpoint == Endpoint::kCompletion) return "text_completion";
  return streamed ? "chat.completion.chunk" : "chat.completion";
}

Json HeadJson(const ResponseHead& head, bool streamed) {
  return {{"id", head.id},
          {"object", ObjectName(head.endpoint, streamed)},
          {"created", head.created},
          {"model", head.served.name}};
}

}  // namespace

Json UsageJson(const Usage& usage) {
  Json json = {{"prompt_tokens", usage.prompt_tokens},
               {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
               {"completion_tokens", usage.completion_tokens},
               {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
  if (usage.reasoning_tokens > 0) {
    json["completion_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  }
  return json;
}

Json FinishJson(const ChoiceOutput& choice) {
  switch (choice.finish) {
    case FinishReason::kStop:
      return choice.called_tools ? "tool_calls" : "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAborted:
      return "abort";
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

void AddVersionChanges(const ChoiceOutput& choice, Json& json) {
  for (const VersionChange& change : choice.version_changes) {
    json["weight_versions"].push_back({{"from", change.from}, {"weight_version", change.weight_version}});
  }
}

Json ChatLogprobList(std::span<const TokenLogprobText> tokens) {
  Json list = Json::array();
  for (const TokenLogprobText& token : tokens) {
    Json entry = ChatLogprob(token.chosen);
    Json& top = entry["top_logprobs"] = Json::array();
    for (const LogprobEntry& other : token.top) top.push_back(ChatLogprob(other));
    list.push_back(std::move(entry));
  }
  return list;
}

// Serialises one choice after the other: a tree of all log-probabilities would take several times the answer's memory.
std::string CompletionBody(const ResponseHead& head, std::span<const ChoiceOutput> choices, const Usage& usage) {
  std::string body = DumpJson(HeadJson(head, false));
  body.pop_back();  // the closing brace
  body += WeightVersionField(head.served) + ",\"choices\":[";
  for (const ChoiceOutput& choice : choices) {
    const bool chat = head.endpoint == Endpoint::kChat;
    Json content = chat ? ChatMessage(choice) : Json(choice.text);
    if (&choice != &choices.front()) body += ',';
    body += DumpJson(ChoiceJson(choice, head.endpoint, chat ? "message" : "text", std::move(content)));
    if (!chat && !choice.prompt_logprobs.empty()) {
      body.pop_back();
      body += ",\"prompt_logprobs\":" + choice.prompt_logprobs + "}";
    }
  }
  body += "],\"usage\":" + DumpJson(UsageJson(usage));
  const std::string& prompt = choices.front().prompt_logprobs;  // a chat has one prompt
  if (head.endpoint == Endpoint::kChat && !prompt.empty()) body += ",\"prompt_logprobs\":" + prompt;
  body += ChatPromptIds(choices.front(), head.endpoint);
  body += "}";
  return body;
}

EventWriter::EventWriter(const ResponseHead& head, bool null_usage)
    : endpoint_(head.endpoint),
      null_usage_(null_usage),
      prefix_("data: " + DumpJson(HeadJson(head, true))),
      version_(WeightVersionField(head.served)) {
  prefix_.pop_back();  // the closing brace
  prefix_ += ",\"choices\":";
}

std::string EventWriter::Event(std::string_view choices, const Usage* usage, std::string_view more) {
  std::string event = prefix_;
  event += choices;
  event += std::exchange(version_, {});
  event += more;
  if (usage != nullptr) event += ",\"usage\":" + DumpJson(UsageJson(*usage));
  if (usage == nullptr && null_usage_) event += ",\"usage\":null";
  event += "}\n\n";
  return event;
}

std::string EventWriter::Role(const ChoiceOutput& first, const Usage* usage) {
  const Json choice = {{"index", first.index},
                       {"delta", {{"role", "assistant"}, {"content", ""}}},
                       {"logprobs", nullptr},
                       {"finish_reason", nullptr}};
  return Event("[" + DumpJson(choice) + "]", usage, ChatPromptIds(first, endpoint_));
}

std::string EventWriter::Delta(const ChoiceOutput& choice, const Usage* usage) {
  if (choice.events) return ParsedDelta(choice, usage);
  const bool chat = endpoint_ == Endpoint::kChat;
  Json content = chat ? Json{{"content", choice.text}} : Json(choice.text);
  return Event("[" + DumpJson(ChoiceJson(choice, endpoint_, chat ? "delta" : "text", std::move(content))) + "]", usage);
}

// The log-probabilities and ids come with the first delta, the end with the last one.
std::string EventWriter::ParsedDelta(const ChoiceOutput& choice, const Usage* usage) {
  std::vector<Json> deltas = DeltasOf(*choice.events);
  const bool silent = choice.finish == FinishReason::kNone && choice.logprobs.empty() &&
                      (!choice.token_ids || choice.token_ids->empty()) && choice.version_changes.empty() &&
                      usage == nullptr;
  if (deltas.empty() && !silent) deltas.push_back(Json::object());
  std::string text;
  ChoiceOutput part;
  part.index = choice.index;
  part.wants_logprobs = choice.wants_logprobs;
  part.logprobs = choice.logprobs;
  part.stop_logprob = choice.stop_logprob;
  part.token_ids = choice.token_ids;
  part.version_changes = choice.version_changes;
  for (Json& delta : deltas) {
    if (&delta == &deltas.back()) {
      part.finish = choice.finish;
      part.stop_reason = choice.stop_reason;
      part.called_tools = choice.called_tools;
    }
    text += Event("[" + DumpJson(ChoiceJson(part, endpoint_, "delta", std::move(delta))) + "]", usage);
    part.wants_logprobs = false;
    part.logprobs.clear();
    part.token_ids.reset();
    part.version_changes.clear();
  }
  return text;
}

std::string EventWriter::FinalUsage(const Usage& usage) { return Event("[]", &usage); }

std::string ErrorEvent(const Error& error) {
  return "data: " + ErrorBody(HttpStatus(error), error.message, error.param) + "\n\n";
}

}  // namespace loramux
