// Parses the bodies of POST /tokenize and /detokenize (vLLM's formats), from untrusted JSON to typed, checked fields,
// and builds the bodies of their responses.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "server/completion/completion_request.h"

namespace loramux {

// A parsed request to tokenize a prompt or a chat.
struct TokenizeRequest {
  std::string model;   // empty: the base model
  std::string prompt;  // used unless `chat` is set
  std::optional<ChatPrompt> chat;
  bool add_special_tokens = true;  // default: true for `prompt`, false for `messages` (the template adds them)
  bool return_token_strs = false;
};

// A parsed request to detokenize.
struct DetokenizeRequest {
  std::string model;            // empty: the base model
  std::vector<TokenId> tokens;  // may be empty
  bool skip_special_tokens = false;
};

// Parse and check a body. Errors name the field (`param`), what was expected and what was found. Thread-safe; never
// throw.
// RequestLimits::max_tokens bounds the messages of a chat, and the ids to detokenize.
Result<TokenizeRequest> ParseTokenizeRequest(std::string_view body, const RequestLimits& limits);
Result<DetokenizeRequest> ParseDetokenizeRequest(std::string_view body, const RequestLimits& limits);

// Returns {"count","max_model_len","tokens","token_strs"}; token_strs is null unless `token_strs` is given.
std::string TokenizeResponse(std::span<const TokenId> tokens, std::int64_t max_model_len,
                             const std::optional<std::vector<std::string>>& token_strs);
// Returns {"prompt"}.
std::string DetokenizeResponse(std::string_view prompt);

}  // namespace loramux
