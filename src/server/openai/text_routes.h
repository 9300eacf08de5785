// POST /tokenize and /detokenize: convert text to token ids and back, as the completion endpoints do. Needs coroutines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <boost/asio/thread_pool.hpp>

#include "base/result.h"
#include "http/exchange.h"
#include "http/fair_work_queue.h"
#include "server/openai/completion_job.h"

namespace loramux {

// Limits of the two endpoints.
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

// Return the bodies of the two responses. The time grows with the body, so call them off the I/O threads. Errors are
// meant for the client. Thread-safe.
Result<std::string> Tokenize(const ServingContext& context, const TextLimits& limits, std::string_view body);
Result<std::string> Detokenize(const ServingContext& context, const TextLimits& limits, std::string_view body);

// Returns the limits for the parser of a chat request whose prompt is only tokenized.
RequestLimits LimitsOfTextRequest(const ServingContext& context, const TextLimits& limits);
// Returns the number of tokens of a chat request's prompt. Errors and threads as above.
Result<std::int64_t> CountChatTokens(const ServingContext& context, const TextLimits& limits,
                                     const OpenAiRequest& request);

// Returns the body of a response, like Tokenize.
using TextAnswer =
    std::function<Result<std::string>(const ServingContext& context, const TextLimits& limits, std::string_view body)>;

// The threads of the routes: `work` for the texts, and `finders` for adapters that are not loaded yet.
struct TextThreads {
  FairWorkQueue& work;
  boost::asio::thread_pool& finders;
};

// Adds the route POST `path` for a text of limits.max_bytes, with errors in the form `errors` (null: ErrorBody).
// `threads` and the context are as in AddTextRoutes.
void AddTextRoute(RouteTable& routes, std::string path, TextAnswer answer, const ServingContext& context,
                  const TextLimits& limits, TextThreads threads, ErrorForm errors = nullptr);

// Adds both routes. `threads` and what `context` points to must outlive the table's HTTP server.
void AddTextRoutes(RouteTable& routes, const ServingContext& context, const TextLimits& limits, TextThreads threads);

}  // namespace loramux
