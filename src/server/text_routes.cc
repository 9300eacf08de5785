#include "server/text_routes.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "server/chat_prompt.h"
#include "server/model_listing.h"
#include "server/run_on.h"
#include "server/tokenize_request.h"

namespace loramux {
namespace {

namespace asio = boost::asio;

bool IsOffered(const ServingContext& context, const std::string& model) {
  if (context.finder == nullptr) return false;
  const std::vector<OfferedAdapter> offered = context.finder->Offered();
  return std::any_of(offered.begin(), offered.end(),
                     [&](const OfferedAdapter& adapter) { return adapter.name == model; });
}

// Checks only that the model name is served: adapters share the base model's tokenizer.
Status CheckModel(const ServingContext& context, const std::string& model) {
  if (!model.empty() && context.caller != nullptr && !context.caller->Allows(model)) return UnknownModel(model);
  if (model.empty() || context.registry->Resolve(model).ok() || IsOffered(context, model)) return Ok{};
  return UnknownModel(model);
}

Result<std::string> PromptText(const ServingContext& context, const TokenizeRequest& request) {
  if (!request.chat) return request.prompt;
  return RenderChatPrompt(context.chat_template, *request.chat, context.clock->UnixSeconds());
}

std::vector<std::string> TokenStrings(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens) {
  std::vector<std::string> strings;
  strings.reserve(tokens.size());
  for (const TokenId id : tokens) strings.push_back(tokenizer.IdToToken(id));
  return strings;
}

using Answer = std::function<Result<std::string>(const ServingContext& context, std::string_view body)>;

asio::awaitable<void> AnswerOn(asio::thread_pool& workers, ServingContext context, const Answer& answer,
                               HttpExchange& exchange) {
  context.caller = exchange.request().caller.get();
  std::optional<Result<std::string>> body;
  co_await RunOn(workers, [&] { body.emplace(answer(context, exchange.request().body)); });
  HttpReply reply;
  if (body->ok()) {
    reply.body = std::move(**body);
  } else {
    reply = ErrorReply(body->error());
  }
  co_await exchange.Send(std::move(reply));
}

}  // namespace

Result<std::string> Tokenize(const ServingContext& context, std::int64_t max_model_len, std::string_view body) {
  ASSIGN_OR_RETURN(const TokenizeRequest request, ParseTokenizeRequest(body));
  RETURN_IF_ERROR(CheckModel(context, request.model));
  ASSIGN_OR_RETURN(const std::string text, PromptText(context, request));
  ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, context.tokenizer->Encode(text, request.add_special_tokens));
  std::optional<std::vector<std::string>> strings;
  if (request.return_token_strs) strings = TokenStrings(*context.tokenizer, tokens);
  return TokenizeResponse(tokens, max_model_len, strings);
}

Result<std::string> Detokenize(const ServingContext& context, std::string_view body) {
  const RequestLimits limits{context.tokenizer->VocabSize()};
  ASSIGN_OR_RETURN(const DetokenizeRequest request, ParseDetokenizeRequest(body, limits));
  RETURN_IF_ERROR(CheckModel(context, request.model));
  const auto text = context.tokenizer->Decode(request.tokens, request.skip_special_tokens);
  if (!text.ok()) return Error{text.error().code, text.error().message, "tokens"};
  return DetokenizeResponse(*text);
}

void AddTextRoutes(RouteTable& routes, const ServingContext& context, std::int64_t max_model_len,
                   asio::thread_pool& workers) {
  const auto add = [&](const char* path, Answer answer) {
    routes.Add("POST", path, [&workers, context, answer = std::move(answer)](HttpExchange& exchange) {
      return AnswerOn(workers, context, answer, exchange);
    });
  };
  add("/tokenize", [max_model_len](const ServingContext& caller, std::string_view body) {
    return Tokenize(caller, max_model_len, body);
  });
  add("/detokenize", Detokenize);
}

}  // namespace loramux
