// The bodies of POST /v1/chat/completions and /v1/completions, from untrusted JSON to typed, checked fields.
// OpenAI's fields and vLLM's extras; unknown fields are accepted, and what would change the output but is not served
// is refused by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "model/sampler.h"
#include "server/chat_fields.h"

namespace loramux {

enum class Endpoint { kChat, kCompletion };

inline constexpr std::int64_t kMaxChoicesPerPrompt = 128;     // `n`
inline constexpr std::int64_t kMaxChoicesPerRequest = 1024;   // prompts * n
inline constexpr std::int32_t kMaxPriority = 10;              // `priority` is from -10 to 10
inline constexpr std::int32_t kMaxDeadlineMs = 86'400'000;    // `deadline_ms`: a day
inline constexpr std::int32_t kDefaultCompletionTokens = 16;  // OpenAI's, for /v1/completions

struct RequestLimits {
  std::int64_t vocab_size = std::int64_t{1} << 31;  // token ids of the request lie below
};

using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct OpenAiRequest {
  Endpoint endpoint = Endpoint::kChat;
  std::string model;
  std::int32_t n = 1;
  std::optional<std::int32_t> max_tokens;
  std::int32_t min_tokens = 0;
  bool ignore_eos = false;
  SamplingParams sampling;  // its seed is not set here
  std::optional<std::uint64_t> seed;
  std::int32_t priority = 0;     // vLLM's: lower is sooner
  std::int32_t deadline_ms = 0;  // from arrival, by which the client wants the first token; 0: no wish

  std::vector<std::string> stop;
  std::vector<TokenId> stop_token_ids;
  bool include_stop = false;  // include_stop_str_in_output
  bool skip_special_tokens = true;
  bool add_special_tokens = true;  // default: true for completions, false for chat (the template has them)

  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;  // only with include_usage, as vLLM

  ChatPrompt chat;  // only of chat requests

  // Completions.
  std::vector<Prompt> prompts;  // not empty
  bool echo = false;
};

// Errors name the field (`param`), what was expected and what was found. Thread-safe; never throws.
Result<OpenAiRequest> ParseChatRequest(std::string_view body, const RequestLimits& limits);
Result<OpenAiRequest> ParseCompletionRequest(std::string_view body, const RequestLimits& limits);

}  // namespace loramux
