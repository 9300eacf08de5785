// Every path that answers requests with a body, in whatever API: the table from which the server makes its routes, and
// an offline batch finds what a line asks for.
#pragma once

#include <span>
#include <string_view>

#include "http/exchange.h"
#include "server/api/openai/model_listing.h"
#include "server/completion/completion_service.h"
#include "server/completion/dialect.h"
#include "server/completion/prompt_limit.h"
#include "server/completion/text_answers.h"

namespace loramux {

// One of POST's paths.
struct ApiPath {
  std::string_view path;
  const Dialect* dialect = nullptr;                 // dialect of its requests, or at least of its errors
  TextParser text = nullptr;                        // null: the model answers
  std::size_t characters = kJsonCharactersPerByte;  // most characters of the body for each byte of such a text
};

// Returns all paths.
std::span<const ApiPath> ApiPaths();
// Returns the one with this path; null: there is none.
const ApiPath* FindApiPath(std::string_view path);

// Adds the routes of all of them, and GET /info. The service must outlive the table's HTTP server.
void AddApiRoutes(RouteTable& routes, CompletionService& service, const ModelListing& listing);

}  // namespace loramux
