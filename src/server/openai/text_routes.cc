#include "server/openai/text_routes.h"

#include <malloc.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "http/run_on.h"
#include "server/openai/chat_prompt.h"
#include "server/openai/model_choice.h"
#include "server/openai/prompt_limit.h"
#include "server/openai/tokenize_request.h"

namespace loramux {
namespace {

namespace asio = boost::asio;

// The version that the model `name` stands for; null: the base model, as for an empty name.
Result<std::shared_ptr<const AdapterVersion>> VersionOf(const ServingContext& context, const std::string& name) {
  if (name.empty()) return std::shared_ptr<const AdapterVersion>();
  const ModelChoice choice{AdapterOf(*context.registry, name), "model"};
  return ResolveModel(*context.registry, context.finder, context.caller, choice);
}

// The prompt of a chat, by the version's own chat template.
Result<std::string> ChatText(const ServingContext& context, const AdapterVersion* version, const ChatPrompt& chat) {
  return RenderChatPrompt(TemplateOf(context.chat_template, version), chat, context.clock->UnixSeconds());
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
// Answers from this size on leave many small blocks behind, which the C library keeps for the thread unless it is
// asked.
constexpr std::size_t kLargeAnswer = std::size_t{256} << 10;
// A token id in JSON, with white space.
constexpr std::size_t kJsonCharactersPerId = 12;

Status CheckLength(const std::string& text, const std::string& field, const TextLimits& limits) {
  if (text.size() <= limits.max_bytes) return Ok{};
  return InvalidArgument("`" + field + "`: expected at most " + std::to_string(limits.max_bytes) +
                             " bytes of text (--max-tokenize-bytes), found " + std::to_string(text.size()),
                         field);
}

// An adapter that a chat needs and that is not loaded is loaded in between, on threads of its own.
asio::awaitable<void> AnswerOn(TextThreads threads, ServingContext context, const TextLimits& limits,
                               const TextAnswer& answer, HttpExchange& exchange) {
  const std::atomic<bool>& gone = exchange.WatchClient();
  context.caller = CallerOf(exchange.request());
  context.gone = &gone;
  AdapterFinder* finder = context.finder;
  MissingAdapter missing(finder);
  context.finder = &missing;
  std::optional<Result<std::string>> body;
  const auto work = [&] {
    body.emplace(answer(context, limits, exchange.request().body));
    if (body->ok() && (*body)->size() >= kLargeAnswer) malloc_trim(0);
  };
  co_await RunOn(threads.work, WorkTenant(exchange.request()), gone, work);
  if (finder != nullptr && missing.noted() && !gone) {
    Status found = Ok{};
    co_await RunOn(threads.finders, [&] { found = missing.Fetch(*finder); });
    if (found.ok()) {
      co_await RunOn(threads.work, WorkTenant(exchange.request()), gone, work);
    } else {
      body.emplace(std::move(found).error());
    }
  }
  exchange.ReleaseBody();
  if (!body) co_return;
  HttpReply reply;
  if (body->ok()) {
    reply.body = std::move(**body);
  } else {
    reply = ErrorReply(body->error());
  }
  co_await exchange.Send(std::move(reply));
}

void AddRoute(RouteTable& routes, std::string path, std::size_t characters, TextAnswer answer,
              const ServingContext& context, const TextLimits& limits, TextThreads threads, ErrorForm errors) {
  HttpRoute route;
  route.method = "POST";
  route.path = std::move(path);
  route.handler = [threads, context, limits, answer = std::move(answer)](HttpExchange& exchange) {
    return AnswerOn(threads, context, limits, answer, exchange);
  };
  route.max_body_bytes = BoundedProduct(limits.max_bytes, characters, kOtherBodyBytes);
  route.error_form = std::move(errors);
  routes.Add(std::move(route));
}

}  // namespace

TextLimits TextLimitsOf(std::int64_t max_model_len, std::size_t max_bytes) {
  const auto tokens = static_cast<std::size_t>(std::max<std::int64_t>(0, max_model_len));
  const std::size_t usual = std::max(kMinTokenizeBytes, BoundedProduct(tokens, kTokenizeBytesPerToken));
  return {max_model_len, max_bytes > 0 ? max_bytes : usual};
}

RequestLimits LimitsOfTextRequest(const ServingContext& context, const TextLimits& limits) {
  RequestLimits request;
  // Adapters may have tokens of their own.
  request.vocab_size = std::max(context.tokenizer->VocabSize(), context.registry->model().vocab_size);
  request.max_tokens = static_cast<std::int64_t>(limits.max_bytes);
  request.max_string = BoundedProduct(limits.max_bytes, kJsonCharactersPerByte);
  request.gone = context.gone;
  return request;
}

Result<std::int64_t> CountChatTokens(const ServingContext& context, const TextLimits& limits,
                                     const OpenAiRequest& request) {
  ASSIGN_OR_RETURN(const ModelChoice choice, ChooseModel(*context.registry, request.model, request.adapter));
  ASSIGN_OR_RETURN(const auto version, VersionOf(context, choice.name));
  ASSIGN_OR_RETURN(const std::string text, ChatText(context, version.get(), request.chat));
  RETURN_IF_ERROR(CheckLength(text, "messages", limits));
  const Tokenizer& tokenizer = TokenizerOf(*context.tokenizer, version.get());
  ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, tokenizer.Encode(text, request.add_special_tokens));
  return static_cast<std::int64_t>(tokens.size());
}

Result<std::string> Tokenize(const ServingContext& context, const TextLimits& limits, std::string_view body) {
  ASSIGN_OR_RETURN(const TokenizeRequest request, ParseTokenizeRequest(body, LimitsOfTextRequest(context, limits)));
  ASSIGN_OR_RETURN(const auto version, VersionOf(context, request.model));
  std::string text = request.prompt;
  if (request.chat) {
    ASSIGN_OR_RETURN(text, ChatText(context, version.get(), *request.chat));
  }
  RETURN_IF_ERROR(CheckLength(text, request.chat ? "messages" : "prompt", limits));
  const Tokenizer& tokenizer = TokenizerOf(*context.tokenizer, version.get());
  ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, tokenizer.Encode(text, request.add_special_tokens));
  std::optional<std::vector<std::string>> strings;
  if (request.return_token_strs) strings = TokenStrings(tokenizer, tokens);
  return TokenizeResponse(tokens, limits.max_model_len, strings);
}

Result<std::string> Detokenize(const ServingContext& context, const TextLimits& limits, std::string_view body) {
  ASSIGN_OR_RETURN(const DetokenizeRequest request, ParseDetokenizeRequest(body, LimitsOfTextRequest(context, limits)));
  ASSIGN_OR_RETURN(const auto version, VersionOf(context, request.model));
  const Tokenizer& tokenizer = TokenizerOf(*context.tokenizer, version.get());
  for (std::size_t i = 0; i < request.tokens.size(); ++i) {
    if (request.tokens[i] < tokenizer.VocabSize()) continue;
    const std::string name = fmt::format("tokens[{}]", i);
    return InvalidArgument(fmt::format("`{}`: expected a token of the model's tokenizer, at most {}, found {}", name,
                                       tokenizer.VocabSize() - 1, request.tokens[i]),
                           name);
  }
  const auto text = tokenizer.Decode(request.tokens, request.skip_special_tokens);
  if (!text.ok()) return Error{text.error().code, text.error().message, "tokens"};
  return DetokenizeResponse(*text);
}

void AddTextRoutes(RouteTable& routes, const ServingContext& context, const TextLimits& limits, TextThreads threads) {
  AddTextRoute(routes, "/tokenize", Tokenize, context, limits, threads);
  AddRoute(routes, "/detokenize", kJsonCharactersPerId, Detokenize, context, limits, threads, nullptr);
}

void AddTextRoute(RouteTable& routes, std::string path, TextAnswer answer, const ServingContext& context,
                  const TextLimits& limits, TextThreads threads, ErrorForm errors) {
  AddRoute(routes, std::move(path), kJsonCharactersPerByte, std::move(answer), context, limits, threads,
           std::move(errors));
}

}  // namespace loramux
