#include "server/dialects/dialect_routes.h"

#include <algorithm>
#include <string>
#include <vector>

#include "server/dialects/messages_dialect.h"
#include "server/dialects/responses_dialect.h"
#include "server/dialects/tgi_dialect.h"
#include "server/openai/embeddings_dialect.h"

namespace loramux {
namespace {

// The first paths of ApiPaths, which are OpenAiService's own.
constexpr std::size_t kOwnPaths = 4;

Result<std::string> CountMessages(const ServingContext& context, const TextLimits& limits, std::string_view body) {
  ASSIGN_OR_RETURN(const OpenAiRequest request, ParseMessagesCount(body, LimitsOfTextRequest(context, limits)));
  ASSIGN_OR_RETURN(const std::int64_t tokens, CountChatTokens(context, limits, request));
  return MessagesCountBody(tokens);
}

TgiInfo InfoOf(const OpenAiService& service) {
  return {service.listing().base_root, service.listing().max_model_len, LORAMUX_VERSION};
}

}  // namespace

std::span<const ApiPath> ApiPaths() {
  static const std::vector<ApiPath> paths = {
      {"/v1/chat/completions", &OpenAiDialect(Endpoint::kChat)},
      {"/v1/completions", &OpenAiDialect(Endpoint::kCompletion)},
      {"/tokenize", &OpenAiDialect(Endpoint::kChat), Tokenize},
      {"/detokenize", &OpenAiDialect(Endpoint::kChat), Detokenize},
      {"/v1/embeddings", &EmbeddingsDialect()},
      {"/classify", &ClassifyDialect()},
      {"/score", &ScoreDialect()},
      {"/v1/score", &ScoreDialect()},
      {"/rerank", &RerankDialect()},
      {"/v1/rerank", &RerankDialect()},
      {"/v2/rerank", &RerankDialect()},
      {"/v1/responses", &ResponsesDialect()},
      {"/v1/messages", &MessagesDialect()},
      {"/v1/messages/count_tokens", &MessagesDialect(), CountMessages},
      {"/generate", &TgiDialect(TgiPath::kGenerate)},
      {"/generate_stream", &TgiDialect(TgiPath::kGenerateStream)},
      {"/", &TgiDialect(TgiPath::kRoot)},
  };
  return paths;
}

const ApiPath* FindApiPath(std::string_view path) {
  const auto paths = ApiPaths();
  const auto found = std::find_if(paths.begin(), paths.end(), [&](const ApiPath& known) { return known.path == path; });
  return found == paths.end() ? nullptr : &*found;
}

void AddDialectRoutes(RouteTable& routes, OpenAiService& service) {
  for (const ApiPath& path : ApiPaths().subspan(kOwnPaths)) {
    if (path.text) {
      service.AddText(routes, std::string(path.path), path.text, *path.dialect);
    } else {
      service.AddDialect(routes, std::string(path.path), *path.dialect);
    }
  }
  routes.AddSimple("GET", "/info", [body = TgiInfoBody(InfoOf(service))](const HttpRequest&) {
    HttpReply reply;
    reply.body = body;
    return reply;
  });
}

}  // namespace loramux
