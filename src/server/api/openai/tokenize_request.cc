#include "server/api/openai/tokenize_request.h"

#include <algorithm>

#include "http/json_reader.h"
#include "server/api/openai/chat_fields.h"
#include "server/api/openai/openai_request.h"

namespace loramux {
namespace {

// Reads the prompt or the messages, whichever the request has.
void ReadText(Json& body, FieldReader& fields, const RequestLimits& limits, TokenizeRequest& request) {
  const bool has_messages = fields.Find("messages") != nullptr;
  const Json* prompt = fields.Find("prompt");
  if (has_messages && prompt != nullptr) {
    return fields.Fail(ErrorCode::kInvalidArgument, "prompt", "expected `prompt` or `messages`, found both");
  }
  if (has_messages) return ReadChatPrompt(body, fields, limits.max_tokens, request.chat.emplace());
  if (!fields.String("prompt", request.prompt)) {
    fields.Expect("prompt", "a string (or an array of messages in `messages`)", prompt);
  }
}

}  // namespace

Result<TokenizeRequest> ParseTokenizeRequest(std::string_view body, const RequestLimits& limits) {
  JsonLimits body_limits = BodyLimits(limits);
  body_limits.why_strings_are_short = "; --max-tokenize-bytes sets this limit";
  ASSIGN_OR_RETURN(Json json, ParseRequestBody(body, body_limits));
  TokenizeRequest request;
  FieldReader fields(json, "");
  fields.String("model", request.model);
  request.add_special_tokens = fields.Find("messages") == nullptr;
  fields.Boolean("add_special_tokens", request.add_special_tokens);
  fields.Boolean("return_token_strs", request.return_token_strs);
  ReadText(json, fields, limits, request);  // last, because it moves the messages out of `json`
  if (!fields.ok()) return fields.error();
  return request;
}

Result<DetokenizeRequest> ParseDetokenizeRequest(std::string_view body, const RequestLimits& limits) {
  ASSIGN_OR_RETURN(const Json json, ParseRequestBody(body));
  DetokenizeRequest request;
  FieldReader fields(json, "");
  fields.String("model", request.model);
  fields.Boolean("skip_special_tokens", request.skip_special_tokens);
  const auto max_count = static_cast<std::size_t>(std::max<std::int64_t>(0, limits.max_tokens));
  if (!fields.Integers("tokens", 0, limits.vocab_size - 1, max_count, request.tokens)) {
    fields.Expect("tokens", "an array of token ids", fields.Find("tokens"));
  }
  if (!fields.ok()) return fields.error();
  return request;
}

std::string TokenizeResponse(std::span<const TokenId> tokens, std::int64_t max_model_len,
                             const std::optional<std::vector<std::string>>& token_strs) {
  return DumpJson({{"count", tokens.size()},
                   {"max_model_len", max_model_len},
                   {"tokens", Json(std::vector<TokenId>(tokens.begin(), tokens.end()))},
                   {"token_strs", token_strs ? Json(*token_strs) : Json()}});
}

std::string DetokenizeResponse(std::string_view prompt) { return DumpJson({{"prompt", prompt}}); }

}  // namespace loramux
