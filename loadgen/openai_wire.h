// The client's side of the OpenAI protocol: request bodies and parsed responses. Ignores unknown fields.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "http/url.h"

namespace loramux::load {

// The endpoint to send requests to.
enum class ApiEndpoint { kChat, kCompletions };

// Returns "/v1/chat/completions" or "/v1/completions".
std::string_view EndpointPath(ApiEndpoint endpoint);

// One completion request.
struct ApiRequest {
  ApiEndpoint endpoint = ApiEndpoint::kChat;
  bool stream = true;
  std::string model;
  // (role, text) pairs: sent as messages, or concatenated to the prompt of a completion.
  std::vector<std::pair<std::string, std::string>> dialogue;
  std::int64_t max_tokens = 128;
  bool ignore_eos = false;  // also sends min_tokens, so that servers that know both fields generate exactly max_tokens
  double temperature = 0;
};
// Returns the request's body.
std::string ToJson(const ApiRequest& request);

// Token counts as the server reports them.
struct ApiUsage {
  std::int64_t input_tokens = 0, output_tokens = 0, cached_tokens = 0;
};

// A chunk of a stream, or a whole answer.
struct ApiPiece {
  // True: not JSON of the expected form.
  bool malformed = false;
  std::string text;
  std::string finish_reason;  // empty: none yet
  std::optional<ApiUsage> usage;
  std::optional<std::string> error;  // message of the error object that came instead of an answer
};
// Parses a chunk (`stream`) or a whole response body.
ApiPiece ParsePiece(std::string_view json, ApiEndpoint endpoint, bool stream);

// Returns the message of an error body, or the beginning of a body of another form.
std::string ErrorText(std::string_view body);

// The ids in a response of /v1/models: models without a parent are base models, models with one are adapters. Models
// whose `capabilities` say that they generate no text are left out. Both lists are empty if the response has another
// form.
struct ModelNames {
  std::vector<std::string> bases, adapters;
};
// Parses a response of /v1/models.
ModelNames ParseModels(std::string_view json);

// Parses the address of a server, as ParseUrl of http/url.h. Drops a trailing /v1, which OpenAI clients write.
Result<Url> ParseServerUrl(std::string_view text, std::string_view flag);

}  // namespace loramux::load
