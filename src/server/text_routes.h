// POST /tokenize and /detokenize: convert text to token ids and back, as the completion endpoints do. Needs coroutines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <boost/asio/thread_pool.hpp>

#include "base/result.h"
#include "server/completion_job.h"
#include "server/http_exchange.h"

namespace loramux {

// Return the bodies of the two responses. The time grows with the body, so call them off the I/O threads. Errors are
// meant for the client. Thread-safe.
Result<std::string> Tokenize(const ServingContext& context, std::int64_t max_model_len, std::string_view body);
Result<std::string> Detokenize(const ServingContext& context, std::string_view body);

// Adds both routes. `workers` run the work. `workers` and what `context` points to must outlive the table's HTTP
// server.
void AddTextRoutes(RouteTable& routes, const ServingContext& context, std::int64_t max_model_len,
                   boost::asio::thread_pool& workers);

}  // namespace loramux
