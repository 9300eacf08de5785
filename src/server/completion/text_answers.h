// Answers about a text that the model need not compute, such as the number of its tokens. Needs coroutines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>

#include "auth/fair_work_queue.h"
#include "base/result.h"
#include "http/exchange.h"
#include "server/completion/completion_job.h"

namespace loramux {

// Limits of a text.
struct TextLimits {
  std::int64_t max_model_len = 0;  // tokens, for the response
  // Bytes of the text to tokenize (of a chat: of the rendered text). Also the largest number of ids to detokenize, and
  // of messages.
  std::size_t max_bytes = std::size_t{1} << 20;
};

// Bytes that TextLimits::max_bytes allows by default for each token of the model's length, and at least.
inline constexpr std::size_t kTokenizeBytesPerToken = 16, kMinTokenizeBytes = std::size_t{64} << 10;

// Returns the limits for a model of this length; `max_bytes` 0: the usual ones.
TextLimits TextLimitsOf(std::int64_t max_model_len, std::size_t max_bytes = 0);

// Returns the limits for the parser of a request whose prompt is only tokenized.
RequestLimits LimitsOfTextRequest(const ServingContext& context, const TextLimits& limits);

// Returns the tokens of a text, which `field` holds. Error: it is longer than `limits` allow.
Result<std::vector<TokenId>> EncodeText(const ServingContext& context, const TextLimits& limits,
                                        const AdapterVersion* version, const std::string& text,
                                        const std::string& field, bool add_special_tokens);
// The same of a chat, by the version's own chat template.
Result<std::vector<TokenId>> EncodeChat(const ServingContext& context, const TextLimits& limits,
                                        const AdapterVersion* version, const ChatPrompt& chat, bool add_special_tokens);

// A question that is parsed: for which model, and what answers it once that is found.
struct TextQuestion {
  std::string model;  // empty: the base model
  // Returns the body of the response; `version` is null for the base model. The context and the limits of the parse
  // must live.
  std::function<Result<std::string>(const AdapterVersion* version)> answer;
};

// Parses the body of a question. Time of it and of the answer grows with the body, so they are called off the I/O
// threads. Errors are meant for the client. Thread-safe.
using TextParser =
    std::function<Result<TextQuestion>(const ServingContext& context, const TextLimits& limits, std::string_view body)>;

// Parses and answers a question on this thread, where the context's finder may block.
Result<std::string> AnswerNow(const TextParser& parse, const ServingContext& context, const TextLimits& limits,
                              std::string_view body);

// The threads of such answers: `work` for the texts, and `finders` for adapters that are not loaded yet.
struct TextThreads {
  FairWorkQueue& work;
  boost::asio::thread_pool& finders;
};

// Answers the exchange's request. The arguments must outlive the exchange.
boost::asio::awaitable<void> AnswerText(TextThreads threads, ServingContext context, const TextLimits& limits,
                                        const TextParser& parse, HttpExchange& exchange);

}  // namespace loramux
