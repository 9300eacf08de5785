#include "server/openai/text_routes.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "http/run_on.h"
#include "server/guard/prompt_limit.h"
#include "server/openai/chat_prompt.h"
#include "server/openai/model_choice.h"
#include "server/openai/tokenize_request.h"

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
Status CheckModel(const ServingContext& context, const std::string& name) {
  const std::string model = AdapterOf(*context.registry, name);
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

// A body with more bytes is refused before it is received. Tools and other variables of a template may take this much
// besides the text.
constexpr std::size_t kOtherBodyBytes = std::size_t{1} << 20;
// A token id in JSON, with white space.
constexpr std::size_t kJsonCharactersPerId = 12;

RequestLimits LimitsOf(const ServingContext& context, const TextLimits& limits) {
  RequestLimits request;
  request.vocab_size = context.tokenizer->VocabSize();
  request.max_tokens = static_cast<std::int64_t>(limits.max_bytes);
  request.max_string = BoundedProduct(limits.max_bytes, kJsonCharactersPerByte);
  return request;
}

Status CheckLength(const std::string& text, const TokenizeRequest& request, const TextLimits& limits) {
  if (text.size() <= limits.max_bytes) return Ok{};
  const std::string field = request.chat ? "messages" : "prompt";
  return InvalidArgument("`" + field + "`: expected at most " + std::to_string(limits.max_bytes) +
                             " bytes of text (--max-tokenize-bytes), found " + std::to_string(text.size()),
                         field);
}

using Answer =
    std::function<Result<std::string>(const ServingContext& context, const TextLimits& limits, std::string_view body)>;

asio::awaitable<void> AnswerOn(FairWorkQueue& workers, ServingContext context, const TextLimits& limits,
                               const Answer& answer, HttpExchange& exchange) {
  context.caller = CallerOf(exchange.request());
  std::optional<Result<std::string>> body;
  co_await RunOn(workers, WorkTenant(exchange.request()),
                 [&] { body.emplace(answer(context, limits, exchange.request().body)); });
  exchange.ReleaseBody();
  HttpReply reply;
  if (body->ok()) {
    reply.body = std::move(**body);
  } else {
    reply = ErrorReply(body->error());
  }
  co_await exchange.Send(std::move(reply));
}

}  // namespace

Result<std::string> Tokenize(const ServingContext& context, const TextLimits& limits, std::string_view body) {
  ASSIGN_OR_RETURN(const TokenizeRequest request, ParseTokenizeRequest(body, LimitsOf(context, limits)));
  RETURN_IF_ERROR(CheckModel(context, request.model));
  ASSIGN_OR_RETURN(const std::string text, PromptText(context, request));
  RETURN_IF_ERROR(CheckLength(text, request, limits));
  ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, context.tokenizer->Encode(text, request.add_special_tokens));
  std::optional<std::vector<std::string>> strings;
  if (request.return_token_strs) strings = TokenStrings(*context.tokenizer, tokens);
  return TokenizeResponse(tokens, limits.max_model_len, strings);
}

Result<std::string> Detokenize(const ServingContext& context, const TextLimits& limits, std::string_view body) {
  ASSIGN_OR_RETURN(const DetokenizeRequest request, ParseDetokenizeRequest(body, LimitsOf(context, limits)));
  RETURN_IF_ERROR(CheckModel(context, request.model));
  const auto text = context.tokenizer->Decode(request.tokens, request.skip_special_tokens);
  if (!text.ok()) return Error{text.error().code, text.error().message, "tokens"};
  return DetokenizeResponse(*text);
}

void AddTextRoutes(RouteTable& routes, const ServingContext& context, const TextLimits& limits,
                   FairWorkQueue& workers) {
  const auto add = [&](const char* path, std::size_t characters, Answer answer) {
    const auto handler = [&workers, context, limits, answer = std::move(answer)](HttpExchange& exchange) {
      return AnswerOn(workers, context, limits, answer, exchange);
    };
    routes.Add("POST", path, handler, RouteAccess::kGated,
               BoundedProduct(limits.max_bytes, characters, kOtherBodyBytes));
  };
  add("/tokenize", kJsonCharactersPerByte, Tokenize);
  add("/detokenize", kJsonCharactersPerId, Detokenize);
}

}  // namespace loramux
