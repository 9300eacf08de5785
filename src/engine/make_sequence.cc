#include "engine/make_sequence.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

namespace loramux {
namespace {

Error TooLong(const GenerationRequest& request, std::int64_t limit, std::int64_t max_model_len) {
  const std::string asked =
      std::to_string(request.prompt.size()) + " in the prompt" +
      (request.max_tokens > 0 ? " and " + std::to_string(request.max_tokens) + " to generate" : "");
  if (limit < max_model_len) {
    return ResourceExhausted("This server's device memory holds at most " + std::to_string(limit) +
                                 " tokens beside this adapter; the request has " + asked +
                                 ". Shorten it, or raise --device-memory.",
                             "max_tokens");
  }
  return InvalidArgument("This model's maximum context length is " + std::to_string(limit) +
                             " tokens. However, you requested " + asked + ". Please reduce the length.",
                         "max_tokens");
}

// Whether the adapter brings the embedding of a token.
bool Embeds(const AdapterVersion* version, TokenId id) {
  if (version == nullptr) return false;
  return std::ranges::any_of(version->layout.own, [id](const OwnPlace& own) {
    return own.kind == OwnKind::kEmbedding && std::ranges::binary_search(own.tokens, id);
  });
}

Status CheckPrompt(std::span<const TokenId> prompt, std::int64_t vocab_size, const AdapterVersion* version) {
  if (prompt.empty()) return InvalidArgument("prompt: expected at least one token, found none", "prompt");
  const std::optional<TokenId> id = FindUnknownToken(prompt, vocab_size, version);
  if (!id) return Ok{};
  return InvalidArgument(
      "prompt: expected token ids from 0 to " + std::to_string(vocab_size - 1) + ", found " + std::to_string(*id),
      "prompt");
}

// A sequence without an output layer has neither tokens nor log-probabilities.
Status CheckOutput(const EngineOptions& options, const GenerationRequest& input) {
  if (options.generates || input.pooling) return Ok{};
  return InvalidArgument(
      "This model makes embeddings only: its files hold no output layer (lm_head.weight). Send the request to "
      "/v1/embeddings, or serve a model that generates text.",
      "model");
}

// Where an activated LoRA begins to act: at the last occurrence of its invocation tokens, as in PEFT. nullopt: nowhere.
std::optional<std::int32_t> InvokedAt(std::span<const TokenId> prompt, std::span<const TokenId> invocation) {
  if (invocation.empty()) return 0;
  const auto found = std::find_end(prompt.begin(), prompt.end(), invocation.begin(), invocation.end());
  if (found == prompt.end()) return std::nullopt;
  return static_cast<std::int32_t>(found - prompt.begin());
}

}  // namespace

std::optional<TokenId> FindUnknownToken(std::span<const TokenId> tokens, std::int64_t vocab_size,
                                        const AdapterVersion* version) {
  // Most prompts have none, so whole blocks are looked at first, without an end in between.
  constexpr std::size_t kBlock = 64;
  const auto unknown = [vocab_size](TokenId id) { return id < 0 || id >= vocab_size; };
  while (tokens.size() > kBlock) {
    std::size_t found = 0;
    for (const TokenId id : tokens.first(kBlock)) found += unknown(id);
    if (found > 0) break;
    tokens = tokens.subspan(kBlock);
  }
  for (const TokenId id : tokens) {
    if ((id < 0 || id >= vocab_size) && !Embeds(version, id)) return id;
  }
  return std::nullopt;
}

Result<std::unique_ptr<Sequence>> MakeSequence(const EngineOptions& options, GenerationRequest input,
                                               std::shared_ptr<const AdapterVersion> version, std::int64_t limit) {
  RETURN_IF_ERROR(CheckOutput(options, input));
  RETURN_IF_ERROR(CheckPrompt(input.prompt, options.vocab_size, version.get()));
  const std::int64_t prompt = static_cast<std::int64_t>(input.prompt.size());
  const std::int64_t wanted = input.max_tokens < 0 ? 1 : input.max_tokens;
  if (prompt + wanted > limit) return TooLong(input, limit, options.max_model_len);

  auto sequence = std::make_unique<Sequence>();
  Sequence& request = *sequence;
  request.adapter = input.adapter;
  std::optional<std::int32_t> base_tokens = input.base_tokens;
  if (version != nullptr && !base_tokens) base_tokens = InvokedAt(input.prompt, version->file.config.invocation_tokens);
  request.base_tokens = base_tokens.value_or(0);
  request.tenant_name = input.tenant.empty() && version != nullptr ? version->account() : std::move(input.tenant);
  request.prefix_domain = std::move(input.prefix_domain);
  // The server reads an embedding by the head of the version that it asked for.
  request.keeps_version = input.keeps_version || (version != nullptr && version->file.head.has_value());
  const bool acts = base_tokens.has_value();
  if (!acts) request.adapter = kBaseModel;
  sequence->version = acts ? std::move(version) : nullptr;
  request.prompt_tokens = static_cast<std::int32_t>(prompt);
  request.priority = input.priority;
  request.deadline = input.deadline;
  request.length_hint = input.length_hint;
  request.max_total_tokens = static_cast<std::int32_t>(input.max_tokens < 0 ? limit : prompt + input.max_tokens);
  request.tokens = std::move(input.prompt);
  request.tokens.reserve(static_cast<std::size_t>(request.max_total_tokens));
  const std::size_t pages =
      static_cast<std::size_t>(options.spec.state_pages + 2 + request.max_total_tokens / options.spec.page_tokens);
  request.pages.reserve(pages);
  request.page_table.reserve(pages);
  request.states.reserve(static_cast<std::size_t>(options.spec.state_pages));
  CHECK(!input.pooling || (input.max_tokens == 0 && input.prompt_logprobs < 0));
  if (!input.ignore_eos || input.constraint != nullptr) {
    std::vector<TokenId>& stops = input.stop_token_ids;
    stops.insert(stops.end(), options.eos_token_ids.begin(), options.eos_token_ids.end());
    stops.insert(stops.end(), input.eos_token_ids.begin(), input.eos_token_ids.end());
  }
  sequence->asked = std::move(input);
  sequence->BeginPrompt();
  return sequence;
}

}  // namespace loramux
