// Fuzzes the parsers of request bodies: for any input they must return, and their errors must be valid response bodies.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "auth/error_body.h"
#include "base/check.h"
#include "base/fuzz_limits.h"
#include "http/error_status.h"
#include "http/json_reader.h"
#include "server/api/openai/openai_request.h"
#include "server/api/openai/openai_response.h"
#include "server/api/openai/tokenize_request.h"

namespace loramux {
namespace {

void CheckError(const Error& error) {
  CHECK(!error.message.empty());
  CHECK_LT(error.message.size(), 2000u);  // errors must not echo the client's data
  CHECK(ParseJson(ErrorBody(HttpStatus(error), error.message, error.param)).ok());
}

// What is reported goes into a header.
void CheckMistakes(const CompletionRequest& request) {
  CHECK_LE(request.mistakes.size(), 8u);
  for (const LikelyMistake& mistake : request.mistakes) {
    for (const char c : mistake.name) CHECK(c > ' ' && c <= '~' && c != ',' && c != ';');
  }
}

void CheckRequest(const CompletionRequest& request, const RequestLimits& limits) {
  CHECK(!request.model.empty());
  CHECK(request.n >= 1 && request.n <= kMaxChoicesPerPrompt);
  CHECK(!request.max_tokens || *request.max_tokens >= request.min_tokens);
  CHECK(request.sampling.temperature >= 0 && request.sampling.top_p > 0 && request.sampling.repetition_penalty > 0);
  CheckMistakes(request);
  for (const auto& [id, bias] : request.logit_bias) CHECK(id >= 0 && id < limits.vocab_size);
  for (const Prompt& prompt : request.prompts) {
    const auto* ids = std::get_if<std::vector<TokenId>>(&prompt);
    if (ids == nullptr) continue;
    for (const TokenId id : *ids) CHECK(id >= 0 && id < limits.vocab_size);
  }
}

void CheckChat(const ChatPrompt& prompt) {
  JsonLimits deeper;
  deeper.max_depth = 200;  // parsed tool-call arguments are nested below the message
  CHECK(ParseJson(prompt.template_context, deeper).ok());
}

void CheckPooled(const Result<CompletionRequest>& request, const RequestLimits& limits) {
  if (!request.ok()) return CheckError(request.error());
  const bool chat = request->endpoint == Endpoint::kChat;
  CHECK(request->prompts.empty() == chat);
  CHECK(request->embedding && request->embedding->dimensions >= 0);
  CHECK(!request->truncate_prompt_tokens || *request->truncate_prompt_tokens != 0);
  if (request->embedding->use == PooledUse::kScores) {
    const std::size_t first = request->embedding->first;
    CHECK(first == 1 ? request->prompts.size() > 1 : request->prompts.size() == 2 * first);
  }
  CheckRequest(*request, limits);
  if (chat) CheckChat(request->chat);
}

}  // namespace
}  // namespace loramux

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const loramux::FuzzLimits cost;
  using namespace loramux;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const RequestLimits limits{.vocab_size = 1000, .max_tokens = 200, .max_string = 2000};
  const auto chat = ParseChatRequest(body, limits);
  if (chat.ok()) {
    CheckRequest(*chat, limits);
    CheckChat(chat->chat);
  } else {
    CheckError(chat.error());
  }
  const auto completion = ParseCompletionRequest(body, limits);
  if (completion.ok()) {
    CHECK(!completion->prompts.empty());
    CheckRequest(*completion, limits);
  } else {
    CheckError(completion.error());
  }
  const auto embedding = ParseEmbeddingRequest(body, limits);
  const auto classes = ParseClassifyRequest(body, limits);
  const auto scores = ParseScoreRequest(body, limits);
  RerankReply reply;
  const auto rerank = ParseRerankRequest(body, limits, reply);
  for (const auto* pooled : {&embedding, &classes, &scores, &rerank}) CheckPooled(*pooled, limits);
  if (rerank.ok()) CHECK(reply.documents.empty() || reply.documents.size() + 1 == rerank->prompts.size());
  const auto tokenize = ParseTokenizeRequest(body, limits);
  if (!tokenize.ok()) CheckError(tokenize.error());
  if (tokenize.ok() && tokenize->chat) CheckChat(*tokenize->chat);
  const auto detokenize = ParseDetokenizeRequest(body, limits);
  if (detokenize.ok()) {
    for (const TokenId id : detokenize->tokens) CHECK(id >= 0 && id < limits.vocab_size);
  } else {
    CheckError(detokenize.error());
  }
  return 0;
}
