#include "loadgen/openai_wire.h"

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "base/json_text.h"

namespace loramux::load {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxModelName = 1024;  // a longer one is no model that could be asked for

// The document, or a discarded one if the text is not JSON or nests too deep.
Json Parse(std::string_view text) {
  if (JsonTextProblem(text)) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::string Text(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

// A count of tokens; 0 if it is no number. Counts of a run are added, so one is bounded.
std::int64_t Count(const Json& object, const char* key) {
  constexpr double kMaxCount = 1e9;
  const auto it = object.find(key);
  const double count = it != object.end() && it->is_number() ? it->get<double>() : 0;
  return static_cast<std::int64_t>(std::clamp(count, 0.0, kMaxCount));
}

std::optional<ApiUsage> ReadUsage(const Json& json) {
  const auto usage = json.find("usage");
  if (usage == json.end() || !usage->is_object()) return std::nullopt;
  ApiUsage result{.input_tokens = Count(*usage, "prompt_tokens"), .output_tokens = Count(*usage, "completion_tokens")};
  const auto details = usage->find("prompt_tokens_details");
  if (details != usage->end() && details->is_object()) result.cached_tokens = Count(*details, "cached_tokens");
  return result;
}

std::string MessageOf(const Json& error) {
  if (error.is_string()) return error.get<std::string>();
  const std::string message = error.is_object() ? Text(error, "message") : std::string();
  return message.empty() ? error.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 300) : message;
}

// Adds the content of choice 0 to `piece`. False: the JSON is not a choice.
bool ReadChoice(const Json& choice, ApiEndpoint endpoint, bool stream, ApiPiece& piece) {
  if (!choice.is_object()) return false;
  piece.finish_reason = Text(choice, "finish_reason");
  if (endpoint == ApiEndpoint::kCompletions) {
    piece.text = Text(choice, "text");
    return choice.contains("text");
  }
  const auto message = choice.find(stream ? "delta" : "message");
  if (message == choice.end() || !message->is_object()) return false;
  piece.text = Text(*message, "reasoning_content") + Text(*message, "content");
  return true;
}

// Whether all that the card says of the model's capabilities is something else than text.
bool GeneratesNoText(const Json& card) {
  constexpr std::array<std::string_view, 5> kOthers = {"classify", "score", "rerank", "embed", "embedding"};
  const auto found = card.find("capabilities");
  if (found == card.end() || !found->is_array() || found->empty()) return false;
  return std::ranges::all_of(*found, [&](const Json& capability) {
    return capability.is_string() &&
           std::ranges::find(kOthers, capability.get_ref<const std::string&>()) != kOthers.end();
  });
}

}  // namespace

std::string_view EndpointPath(ApiEndpoint endpoint) {
  return endpoint == ApiEndpoint::kChat ? "/v1/chat/completions" : "/v1/completions";
}

std::string ToJson(const ApiRequest& request) {
  Json json{{"model", request.model},
            {"max_tokens", request.max_tokens},
            {"temperature", request.temperature},
            {"stream", request.stream}};
  if (request.stream) json["stream_options"] = {{"include_usage", true}};
  if (request.ignore_eos) {
    json["ignore_eos"] = true;
    json["min_tokens"] = request.max_tokens;
  }
  if (request.endpoint == ApiEndpoint::kChat) {
    for (const auto& [role, text] : request.dialogue) json["messages"].push_back({{"role", role}, {"content", text}});
  } else {
    std::string prompt;
    for (const auto& [role, text] : request.dialogue) prompt += text;
    json["prompt"] = std::move(prompt);
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ApiPiece ParsePiece(std::string_view text, ApiEndpoint endpoint, bool stream) {
  ApiPiece piece;
  const Json json = Parse(text);
  if (!json.is_object()) return {.malformed = true};
  const auto error = json.find("error");
  if (error != json.end() && !error->is_null()) {
    piece.error = MessageOf(*error);
    return piece;
  }
  piece.usage = ReadUsage(json);
  const auto choices = json.find("choices");
  if (choices == json.end() || !choices->is_array()) return {.malformed = true};
  if (choices->empty()) {
    piece.malformed = !stream;  // in a stream, this is the chunk with the usage
  } else {
    piece.malformed = !ReadChoice(choices->front(), endpoint, stream, piece);
  }
  return piece;
}

std::string ErrorText(std::string_view body) {
  const Json json = Parse(body);
  if (json.is_object() && json.contains("error")) return MessageOf(json["error"]);
  return std::string(body.substr(0, 300));
}

ModelNames ParseModels(std::string_view text) {
  ModelNames names;
  const Json json = Parse(text);
  if (!json.is_object() || !json.contains("data") || !json["data"].is_array()) return names;
  for (const Json& card : json["data"]) {
    if (!card.is_object() || GeneratesNoText(card)) continue;
    const std::string id = Text(card, "id");
    if (!id.empty() && id.size() <= kMaxModelName)
      (Text(card, "parent").empty() ? names.bases : names.adapters).push_back(id);
  }
  return names;
}

Result<Url> ParseServerUrl(std::string_view text, std::string_view flag) {
  ASSIGN_OR_RETURN(Url url, ParseUrl(text, flag));
  if (url.prefix.ends_with("/v1")) url.prefix.resize(url.prefix.size() - 3);
  return url;
}

}  // namespace loramux::load
