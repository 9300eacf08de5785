#include "server/api/api_routes.h"

#include <algorithm>
#include <string>
#include <vector>

#include "server/api/messages/messages_dialect.h"
#include "server/api/openai/embeddings_dialect.h"
#include "server/api/openai/openai_dialect.h"
#include "server/api/openai/tokenize.h"
#include "server/api/responses/responses_dialect.h"
#include "server/api/tgi/tgi_dialect.h"
#include "server/api/tokens/tokens_dialect.h"
#include "server/completion/model_choice.h"

namespace loramux {
namespace {

Result<TextQuestion> CountMessages(const ServingContext& context, const TextLimits& limits, std::string_view body) {
  ASSIGN_OR_RETURN(CompletionRequest parsed, ParseMessagesCount(body, LimitsOfTextRequest(context, limits)));
  ASSIGN_OR_RETURN(ModelChoice choice, ChooseModel(*context.registry, parsed.model, parsed.adapter));
  TextQuestion question{.model = std::move(choice.name)};
  question.answer = [&context, &limits,
                     request = std::move(parsed)](const AdapterVersion* version) -> Result<std::string> {
    ASSIGN_OR_RETURN(const std::vector<TokenId> tokens,
                     EncodeChat(context, limits, version, request.chat, request.add_special_tokens));
    return MessagesCountBody(static_cast<std::int64_t>(tokens.size()));
  };
  return question;
}

}  // namespace

std::span<const ApiPath> ApiPaths() {
  static const std::vector<ApiPath> paths = {
      {"/v1/chat/completions", &OpenAiDialect(Endpoint::kChat)},
      {"/v1/completions", &OpenAiDialect(Endpoint::kCompletion)},
      {"/tokenize", &OpenAiDialect(Endpoint::kChat), Tokenize},
      {"/detokenize", &OpenAiDialect(Endpoint::kChat), Detokenize, kJsonCharactersPerId},
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
      {"/inference/v1/generate", &TokensDialect()},
  };
  return paths;
}

const ApiPath* FindApiPath(std::string_view path) {
  const auto paths = ApiPaths();
  const auto found = std::find_if(paths.begin(), paths.end(), [&](const ApiPath& known) { return known.path == path; });
  return found == paths.end() ? nullptr : &*found;
}

void AddApiRoutes(RouteTable& routes, CompletionService& service, const ModelListing& listing) {
  for (const ApiPath& path : ApiPaths()) {
    if (path.text) {
      service.AddText(routes, std::string(path.path), path.text, *path.dialect, path.characters);
    } else {
      service.AddDialect(routes, std::string(path.path), *path.dialect);
    }
  }
  const TgiInfo info{listing.base_root, listing.max_model_len, LORAMUX_VERSION};
  routes.AddSimple("GET", "/info", [body = TgiInfoBody(info)](const HttpRequest&) {
    HttpReply reply;
    reply.body = body;
    return reply;
  });
}

}  // namespace loramux
