// The bodies of POST /tokenize and /detokenize (vLLM's shapes), from untrusted JSON to typed, checked fields, and the
// bodies of their responses.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "server/chat_fields.h"
#include "server/openai_request.h"

namespace loramux {

struct TokenizeRequest {
  std::string model;   // empty: the base model
  std::string prompt;  // if `chat` is empty
  std::optional<ChatPrompt> chat;
  bool add_special_tokens = true;  // default: true for `prompt`, false for `messages` (the template has them)
  bool return_token_strs = false;
};

struct DetokenizeRequest {
  std::string model;            // empty: the base model
  std::vector<TokenId> tokens;  // may be empty
  bool skip_special_tokens = false;
};

// Errors name the field (`param`), what was expected and what was found. Thread-safe; never throws.
Result<TokenizeRequest> ParseTokenizeRequest(std::string_view body);
Result<DetokenizeRequest> ParseDetokenizeRequest(std::string_view body, const RequestLimits& limits);

// {"count","max_model_len","tokens","token_strs"}; the last is null unless `token_strs` is given.
std::string TokenizeResponse(std::span<const TokenId> tokens, std::int64_t max_model_len,
                             const std::optional<std::vector<std::string>>& token_strs);
// {"prompt"}
std::string DetokenizeResponse(std::string_view prompt);

}  // namespace loramux
