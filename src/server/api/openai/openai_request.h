// Parses the bodies of POST /v1/chat/completions, /v1/completions and /v1/embeddings, /classify, /score and /rerank:
// from untrusted JSON to typed, checked fields. Supports OpenAI's fields and vLLM's additions. request_fields.h says
// which fields are refused; unknown ones are accepted.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "http/json_reader.h"
#include "server/completion/completion_request.h"

namespace loramux {

// Returns the limits of a body whose strings and values count as parts of a prompt of the model's length.
JsonLimits BodyLimits(const RequestLimits& limits);
// Parses a body, which must be an object, within `json`, and shows it to limits.on_body.
Result<Json> ParseBody(std::string_view body, const JsonLimits& json, const RequestLimits& limits);

// Parse and check a body. Errors name the field (`param`), what was expected and what was found. Thread-safe; never
// throw.
Result<CompletionRequest> ParseChatRequest(std::string_view body, const RequestLimits& limits);
// The same, of a body that is parsed already. REQUIRES: `body` is an object.
Result<CompletionRequest> ParseChatJson(Json body, const RequestLimits& limits);
Result<CompletionRequest> ParseCompletionRequest(std::string_view body, const RequestLimits& limits);
Result<CompletionRequest> ParseCompletionJson(const Json& body, const RequestLimits& limits);
Result<CompletionRequest> ParseEmbeddingRequest(std::string_view body, const RequestLimits& limits);
Result<CompletionRequest> ParseClassifyRequest(std::string_view body, const RequestLimits& limits);
Result<CompletionRequest> ParseScoreRequest(std::string_view body, const RequestLimits& limits);
// `reply` receives what the answer depends on.
struct RerankReply {
  std::size_t top_n = 0;               // 0: all
  std::vector<std::string> documents;  // empty: they are not wanted
};
Result<CompletionRequest> ParseRerankRequest(std::string_view body, const RequestLimits& limits, RerankReply& reply);

}  // namespace loramux
