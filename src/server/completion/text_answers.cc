#include "server/completion/text_answers.h"

#include <malloc.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "http/run_on.h"
#include "server/completion/chat_prompt.h"
#include "server/completion/model_choice.h"
#include "server/completion/prompt_limit.h"

namespace loramux {
namespace {

namespace asio = boost::asio;

// Answers from this size on leave many small blocks behind, which the C library keeps for the thread unless it is
// asked.
constexpr std::size_t kLargeAnswer = std::size_t{256} << 10;

ModelChoice ChoiceFor(const ServingContext& context, const TextQuestion& question) {
  return {
      question.model.empty() ? context.registry->base_names().front() : AdapterOf(*context.registry, question.model),
      "model"};
}

Result<std::shared_ptr<const AdapterVersion>> VersionFor(const ServingContext& context, const TextQuestion& question) {
  if (question.model.empty()) return std::shared_ptr<const AdapterVersion>();
  return ResolveModel(*context.registry, *context.finder, *context.caller, ChoiceFor(context, question));
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

Result<std::vector<TokenId>> EncodeText(const ServingContext& context, const TextLimits& limits,
                                        const AdapterVersion* version, const std::string& text,
                                        const std::string& field, bool add_special_tokens) {
  if (text.size() > limits.max_bytes) {
    return InvalidArgument("`" + field + "`: expected at most " + std::to_string(limits.max_bytes) +
                               " bytes of text (--max-tokenize-bytes), found " + std::to_string(text.size()),
                           field);
  }
  return TokenizerOf(*context.tokenizer, version).Encode(text, add_special_tokens);
}

Result<std::vector<TokenId>> EncodeChat(const ServingContext& context, const TextLimits& limits,
                                        const AdapterVersion* version, const ChatPrompt& chat,
                                        bool add_special_tokens) {
  ASSIGN_OR_RETURN(const std::string text,
                   RenderChatPrompt(*TemplateOf(context.chat_template, version), chat, context.clock->UnixSeconds()));
  return EncodeText(context, limits, version, text, "messages", add_special_tokens);
}

Result<std::string> AnswerNow(const TextParser& parse, const ServingContext& context, const TextLimits& limits,
                              std::string_view body) {
  ASSIGN_OR_RETURN(const TextQuestion question, parse(context, limits, body));
  ASSIGN_OR_RETURN(const auto version, VersionFor(context, question));
  return question.answer(version.get());
}

// An adapter that is not loaded is loaded on a thread of its own, between the parse and the answer.
asio::awaitable<void> AnswerText(TextThreads threads, ServingContext context, const TextLimits& limits,
                                 const TextParser& parse, HttpExchange& exchange) {
  const std::atomic<bool>& gone = exchange.WatchClient();
  const std::string tenant = WorkTenant(exchange.request());
  context.caller = &CallerOf(exchange.request());
  context.gone = &gone;
  std::optional<TextQuestion> waiting;  // until its adapter is found
  std::optional<Result<std::string>> body;
  const auto answer = [&](const TextQuestion& question, const Result<std::shared_ptr<const AdapterVersion>>& version) {
    if (!version.ok()) return body.emplace(version.error()), void();
    body.emplace(question.answer(version->get()));
    if (body->ok() && (*body)->size() >= kLargeAnswer) malloc_trim(0);
  };
  co_await RunOn(threads.work, tenant, gone, [&] {
    auto question = parse(context, limits, exchange.request().body);
    if (!question.ok()) return body.emplace(question.error()), void();
    const bool known = IsRegistered(*context.registry, *context.caller, ChoiceFor(context, *question));
    if (known) return answer(*question, VersionFor(context, *question));
    waiting = std::move(*question);
  });
  if (waiting && !gone) {
    std::optional<Result<std::shared_ptr<const AdapterVersion>>> version;
    co_await RunOn(threads.finders, [&] { version.emplace(VersionFor(context, *waiting)); });
    co_await RunOn(threads.work, tenant, gone, [&] { answer(*waiting, *version); });
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

}  // namespace loramux
