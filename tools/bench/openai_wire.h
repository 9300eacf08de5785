// What a client of an OpenAI-compatible server sends and reads. Tolerant of fields that it does not know.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace loramux::load {

enum class ApiEndpoint { kChat, kCompletions };

// "/v1/chat/completions" or "/v1/completions".
std::string_view EndpointPath(ApiEndpoint endpoint);

struct ApiRequest {
  ApiEndpoint endpoint = ApiEndpoint::kChat;
  bool stream = true;
  std::string model;
  // (role, text): sent as messages, or run together as the prompt of a completion.
  std::vector<std::pair<std::string, std::string>> dialogue;
  std::int64_t max_tokens = 128;
  bool ignore_eos = false;  // with min_tokens: exactly max_tokens, where the server knows these fields
  double temperature = 0;
};
std::string ToJson(const ApiRequest& request);

struct ApiUsage {
  std::int64_t input_tokens = 0, output_tokens = 0, cached_tokens = 0;
};

// A chunk of a stream, or a whole answer.
struct ApiPiece {
  bool malformed = false;
  std::string text;
  std::string finish_reason;  // empty: none yet
  std::optional<ApiUsage> usage;
  std::optional<std::string> error;  // an error object's message instead of an answer
};
ApiPiece ParsePiece(std::string_view json, ApiEndpoint endpoint, bool stream);

// The message of an error body, or the start of the body if it is not one.
std::string ErrorText(std::string_view body);

// The ids of a /v1/models answer: first those without a parent, then those with one. Empty lists if it is not one.
struct ModelNames {
  std::vector<std::string> bases, adapters;
};
ModelNames ParseModels(std::string_view json);

}  // namespace loramux::load
