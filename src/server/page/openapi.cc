#include "server/page/openapi.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "http/json_reader.h"
#include "server/api/messages/messages_request.h"
#include "server/api/responses/responses_request.h"
#include "server/api/tgi/tgi_request.h"
#include "server/api/tokens/tokens_request.h"
#include "server/page/field_schemas.h"

namespace loramux {
namespace {

// What a route's request must bring.
enum class NeededKey { kOpen, kApiKey, kAdminKey, kFleetKey };

struct RouteText {
  std::string_view method, path, tag, summary;
  std::string_view body = {};  // a name in components/schemas; empty: none
  NeededKey access = NeededKey::kApiKey;
  std::string_view answer = "application/json";
};

constexpr std::string_view kGenerate = "Generate", kTexts = "Texts and models", kOther = "Other APIs",
                           kAdapters = "Adapters", kOperate = "Operate";
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kTags = {{
    {kGenerate, "OpenAI's API with vLLM's extras. `model` names the base model or an adapter."},
    {kTexts, "Models, token ids, and vectors."},
    {kOther, "Each request is translated to a chat or a completion."},
    {kAdapters, "Change adapters while the server runs (--enable-runtime-lora), and see where they are."},
    {kOperate, "Probes, metrics, and the live state."},
}};

constexpr std::string_view kStream = "text/event-stream", kPlain = "text/plain";

constexpr RouteText kTextOfRoutes[] = {
    {"POST", "/v1/chat/completions", kGenerate, "Answers a chat, whole or streamed", "ChatRequest"},
    {"POST", "/v1/completions", kGenerate, "Continues a text, whole or streamed", "CompletionRequest"},
    {"POST", "/v1/embeddings", kTexts, "Turns texts or token ids into vectors", "EmbeddingRequest"},
    {"POST", "/classify", kTexts, "Classifies texts or a chat by an adapter with a head", "ClassifyRequest"},
    {"POST", "/score", kTexts, "Says how well texts fit each other", "ScoreRequest"},
    {"POST", "/v1/score", kTexts, "The same", "ScoreRequest"},
    {"POST", "/rerank", kTexts, "Sorts documents by how well they fit a query", "RerankRequest"},
    {"POST", "/v1/rerank", kTexts, "The same", "RerankRequest"},
    {"POST", "/v2/rerank", kTexts, "The same", "RerankRequest"},
    {"GET", "/v1/models", kTexts, "Lists the base model and every adapter"},
    {"GET", "/v1/models/*", kTexts, "One model of the list"},
    {"POST", "/tokenize", kTexts, "Turns a text or messages into token ids", "TokenizeRequest"},
    {"POST", "/detokenize", kTexts, "Turns token ids into a text", "DetokenizeRequest"},
    {"GET", "/tokenizer_info", kTexts, "The model's tokenizer_config.json with its chat template"},
    {"POST", "/v1/responses", kOther, "OpenAI's Responses API", "ResponsesRequest"},
    {"POST", "/v1/messages", kOther, "Anthropic's messages", "MessagesRequest"},
    {"POST", "/v1/messages/count_tokens", kOther, "Counts the tokens of Anthropic's messages", "CountTokensRequest"},
    {"POST", "/generate", kOther, "Text Generation Inference: one answer", "GenerateRequest"},
    {"POST", "/generate_stream", kOther, "Text Generation Inference: a stream", "GenerateRequest", NeededKey::kApiKey,
     kStream},
    {"POST", "/", kOther, "Text Generation Inference: either of both", "GenerateRequest"},
    {"GET", "/info", kOther, "Text Generation Inference: the model"},
    {"POST", "/inference/v1/generate", kOther, "vLLM's tokens to tokens, whole or streamed", "TokensRequest"},
    {"POST", "/v1/load_lora_adapter", kAdapters, "Loads, reloads, pins or unpins an adapter", "LoadRequest",
     NeededKey::kAdminKey, kPlain},
    {"POST", "/v1/unload_lora_adapter", kAdapters, "Unloads an adapter", "UnloadRequest", NeededKey::kAdminKey, kPlain},
    {"POST", "/load_lora_adapter", kAdapters, "The same with SGLang's answers", "LoadRequest", NeededKey::kAdminKey},
    {"POST", "/unload_lora_adapter", kAdapters, "The same with SGLang's answers", "UnloadRequest",
     NeededKey::kAdminKey},
    {"POST", "/load_lora_adapter_from_tensors", kAdapters,
     "Loads an adapter of tensors in base64 or in shared memory, with SGLang's answers", "TensorsRequest",
     NeededKey::kAdminKey},
    {"PUT",
     "/v1/adapters/*",
     kAdapters,
     "Uploads the files of an adapter, as tar or as a form, and loads it",
     {},
     NeededKey::kAdminKey},
    {"DELETE", "/v1/adapters/*", kAdapters, "Unloads an adapter", {}, NeededKey::kAdminKey},
    {"POST", "/skyrl/v1/load_lora_adapter", kAdapters, "SkyRL's name of a load that replaces", "LoadRequest",
     NeededKey::kAdminKey},
    {"POST", "/adapters", kAdapters, "SageMaker's form of a load", "SageMakerRequest", NeededKey::kAdminKey},
    {"DELETE", "/adapters/*", kAdapters, "SageMaker's form of an unload", {}, NeededKey::kAdminKey},
    {"POST",
     "/pause",
     kAdapters,
     "Holds new requests: `mode` abort, wait (for those that run) or keep (holds all)",
     {},
     NeededKey::kAdminKey},
    {"POST", "/resume", kAdapters, "Lets held requests go", {}, NeededKey::kAdminKey},
    {"POST", "/abort_requests", kAdapters, "Ends all requests with what they have", {}, NeededKey::kAdminKey},
    {"POST",
     "/reset_prefix_cache",
     kAdapters,
     "Drops all keys and values that no request uses",
     {},
     NeededKey::kAdminKey},
    {"POST", "/flush_cache", kAdapters, "The same by SGLang's name", {}, NeededKey::kAdminKey},
    {"GET", "/is_paused", kAdapters, "Whether requests are held"},
    {"GET", "/server_info", kAdapters, "What trainers read of vLLM's configuration"},
    {"GET", "/get_world_size", kAdapters, "How many processes hold the model: 1"},
    {"GET", "/internal/adapters", kAdapters, "Every adapter: where it is, rank, size, and use"},
    {"GET", "/internal/live", kOperate, "The live state, an event a second", {}, NeededKey::kApiKey, kStream},
    {"GET", "/internal/snapshot", kOperate, "The state that routers read, by long poll", {}, NeededKey::kFleetKey},
    {"GET", "/internal/profile", kOperate, "The file of --profile", {}, NeededKey::kFleetKey},
    {"GET", "/health", kOperate, "Whether the server serves, and its load", {}, NeededKey::kOpen},
    {"GET", "/ping", kOperate, "Whether the server serves", {}, NeededKey::kOpen},
    {"POST", "/ping", kOperate, "Whether the server serves", {}, NeededKey::kOpen},
    {"GET", "/version", kOperate, "The program's version", {}, NeededKey::kOpen},
    {"GET", "/metrics", kOperate, "Prometheus' text format", {}, NeededKey::kOpen, kPlain},
    {"GET", "/openapi.json", kOperate, "This description", {}, NeededKey::kOpen},
};

bool IsOfPage(const HttpRoute& route) {
  return route.method == "GET" && (route.path == "/" || route.path == "/docs" || route.path.starts_with("/page/"));
}

const RouteText* TextOf(const HttpRoute& route) {
  const auto found = std::find_if(std::begin(kTextOfRoutes), std::end(kTextOfRoutes), [&](const RouteText& text) {
    return text.method == route.method && text.path == route.path;
  });
  return found == std::end(kTextOfRoutes) ? nullptr : &*found;
}

const char* UseName(FieldUse use) {
  switch (use) {
    case FieldUse::kServed:
      return "served";
    case FieldUse::kAccepted:
      return "accepted";
    default:
      return "refused";
  }
}

// The body of one endpoint, from the table of fields. What is refused stands beside the properties, because a client
// made from this description must not offer it.
Json BodySchema(FieldEndpoints endpoint, std::initializer_list<std::string_view> required) {
  Json properties = Json::object(), refused = Json::object();
  for (const RequestField& field : RequestFields()) {
    if ((field.endpoints & endpoint) == 0) continue;
    if (field.use == FieldUse::kRefused) {
      refused[std::string(field.name)] = field.hint.empty() ? "leave it out" : field.hint;
      continue;
    }
    const std::string_view schema = SchemaOf(field.name, endpoint);
    Json property = schema.empty() || field.use != FieldUse::kServed ? Json::object() : Json::parse(schema);
    if (!field.hint.empty()) property["description"] = field.hint;
    property["x-loramux-use"] = UseName(field.use);
    properties[std::string(field.name)] = std::move(property);
  }
  return {{"type", "object"},
          {"required", Json(required)},
          {"properties", std::move(properties)},
          {"x-loramux-refused", std::move(refused)}};
}

// The body of another API: the fields of its table, then those of the chat or completion that it becomes.
Json DialectSchema(std::span<const DialectField> table, std::optional<FieldEndpoints> becomes, Json required) {
  Json properties = Json::object(), refused = Json::object();
  for (const DialectField& field : table) {
    const std::string name(field.name);
    if (field.use == FieldUse::kRefused) {
      refused[name] = field.hint.empty() ? "leave it out" : field.hint;
      continue;
    }
    Json property = Json::parse(field.schema);
    if (!field.hint.empty()) property["description"] = field.hint;
    property["x-loramux-use"] = UseName(field.use);
    properties[name] = std::move(property);
  }
  if (becomes.has_value()) {
    const Json internal = BodySchema(*becomes, {});
    const auto add_others = [&](const char* part, Json& to) {
      for (const auto& [name, value] : internal[part].items()) {
        if (!properties.contains(name) && !refused.contains(name)) to[name] = value;
      }
    };
    add_others("properties", properties);
    add_others("x-loramux-refused", refused);
  }
  return {{"type", "object"},
          {"required", std::move(required)},
          {"properties", std::move(properties)},
          {"x-loramux-refused", std::move(refused)}};
}

Json Schemas() {
  constexpr std::string_view kOthers = R"({
    "TokenizeRequest": {"type": "object", "description": "With `prompt`, or with `messages` and the fields of a chat.",
      "properties": {"model": {"type": "string"}, "prompt": {"type": "string"},
                     "messages": {"type": "array", "items": {"type": "object"}},
                     "add_special_tokens": {"type": "boolean"}, "return_token_strs": {"type": "boolean"}}},
    "DetokenizeRequest": {"type": "object", "required": ["tokens"],
      "properties": {"model": {"type": "string"}, "tokens": {"type": "array", "items": {"type": "integer"}},
                     "skip_special_tokens": {"type": "boolean"}}},
    "LoadRequest": {"type": "object", "required": ["lora_name", "lora_path"],
      "properties": {"lora_name": {"type": "string"},
                     "lora_path": {"type": "string", "description": "a folder of the server's machine, or a source"},
                     "load_inplace": {"type": "boolean", "description": "reload a name that is loaded"},
                     "pinned": {"type": "boolean", "description": "keep it on the device"},
                     "lora_digest": {"type": "string", "description": "that the content must have",
                                     "pattern": "^[0-9a-f]{64}$"}}},
    "TensorsRequest": {"type": "object", "required": ["lora_name", "config_dict", "load_format"],
      "properties": {"lora_name": {"type": "string"},
                     "config_dict": {"type": "object", "description": "adapter_config.json"},
                     "load_format": {"type": "string", "enum": ["safetensors"]},
                     "serialized_tensors": {"type": "string", "description": "base64 of adapter_model.safetensors"},
                     "shared_memory": {"type": "object", "description": "the same file in this machine's shared memory",
                                       "properties": {"name": {"type": "string"}, "size": {"type": "integer"}}},
                     "load_inplace": {"type": "boolean", "description": "reload a name that is loaded"},
                     "pinned": {"type": "boolean", "description": "keep it on the device"}}},
    "SageMakerRequest": {"type": "object", "required": ["name", "src"],
      "properties": {"name": {"type": "string"}, "src": {"type": "string", "description": "a folder, or a source"},
                     "pin": {"type": "boolean", "description": "keep it on the device"}}},
    "UnloadRequest": {"type": "object", "required": ["lora_name"], "properties": {"lora_name": {"type": "string"}}},
    "Error": {"type": "object", "properties": {"error": {"type": "object",
      "properties": {"message": {"type": "string"}, "type": {"type": "string"},
                     "param": {"type": ["string", "null"]}, "code": {"type": "integer"}}}}}
  })";
  Json schemas = Json::parse(kOthers);
  schemas["ChatRequest"] = BodySchema(kChatBody, {"model", "messages"});
  schemas["CompletionRequest"] = BodySchema(kCompletionBody, {"model", "prompt"});
  schemas["EmbeddingRequest"] = BodySchema(kEmbeddingBody, {"model", "input"});
  schemas["ClassifyRequest"] = BodySchema(kClassifyBody, {"model"});
  schemas["ScoreRequest"] = BodySchema(kScoreBody, {"model", "text_1", "text_2"});
  schemas["RerankRequest"] = BodySchema(kRerankBody, {"model", "query", "documents"});
  schemas["ResponsesRequest"] = DialectSchema(ResponsesFields(), kChatBody, Json::array({"model", "input"}));
  schemas["MessagesRequest"] =
      DialectSchema(MessagesFields(), kChatBody, Json::array({"model", "messages", "max_tokens"}));
  schemas["CountTokensRequest"] = DialectSchema(MessagesFields(), kChatBody, Json::array({"model", "messages"}));
  schemas["GenerateRequest"] = DialectSchema(TgiFields(), std::nullopt, Json::array({"inputs"}));
  schemas["TokensRequest"] = DialectSchema(TokensFields(), std::nullopt, Json::array({"token_ids", "sampling_params"}));
  schemas["TokensParameters"] = DialectSchema(TokensParameters(), kCompletionBody, Json::array());
  schemas["GenerateParameters"] = DialectSchema(TgiParameters(), kCompletionBody, Json::array());
  return schemas;
}

Json AnswersOf(const RouteText& text) {
  const Json error = {{"description", "An error; the message says what was expected and what was found"},
                      {"content", {{"application/json", {{"schema", {{"$ref", "#/components/schemas/Error"}}}}}}}};
  Json content = {{text.answer, Json::object()}};
  const bool streams = text.body == "ChatRequest" || text.body == "CompletionRequest" || text.body == "TokensRequest";
  if (streams) content[std::string(kStream)] = Json::object();
  Json responses = {{"200", {{"description", "The answer"}, {"content", std::move(content)}}}};
  responses["default"] = error;
  return responses;
}

Json Security(NeededKey access) {
  switch (access) {
    case NeededKey::kOpen:
      return Json::array();
    case NeededKey::kAdminKey:
      return Json::array({{{"adminKey", Json::array()}}, Json::object()});
    case NeededKey::kFleetKey:
      return Json::array({{{"fleetKey", Json::array()}}, Json::object()});
    default:
      return Json::array({{{"apiKey", Json::array()}}, {{"apiKeyHeader", Json::array()}}, Json::object()});
  }
}

Json Operation(const RouteText& text, bool has_tail) {
  Json operation = {{"tags", {text.tag}}, {"summary", text.summary}, {"security", Security(text.access)}};
  if (has_tail) {
    operation["parameters"] =
        Json::array({{{"name", "name"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}});
  }
  if (!text.body.empty()) {
    const Json schema = {{"$ref", "#/components/schemas/" + std::string(text.body)}};
    operation["requestBody"] = {{"required", true}, {"content", {{"application/json", {{"schema", schema}}}}}};
  }
  operation["responses"] = AnswersOf(text);
  return operation;
}

Json SecuritySchemes() {
  const auto bearer = [](const char* description) {
    return Json{{"type", "http"}, {"scheme", "bearer"}, {"description", description}};
  };
  return {{"apiKey", bearer("Needed if the server has API keys")},
          {"apiKeyHeader", {{"type", "apiKey"}, {"in", "header"}, {"name", "x-api-key"}}},
          {"adminKey", bearer("The key of --admin-key-file")},
          {"fleetKey", bearer("The key of --fleet-key-file")}};
}

}  // namespace

std::vector<std::string> RoutesWithoutText(std::span<const HttpRoute> routes) {
  std::vector<std::string> without;
  for (const HttpRoute& route : routes) {
    if (!IsOfPage(route) && TextOf(route) == nullptr) without.push_back(route.method + " " + route.path);
  }
  return without;
}

std::string OpenApiDocument(std::span<const HttpRoute> routes, std::string_view version) {
  Json paths = Json::object();
  for (const RouteText& text : kTextOfRoutes) {
    const bool served = std::any_of(routes.begin(), routes.end(), [&](const HttpRoute& route) {
      return route.method == text.method && route.path == text.path;
    });
    if (!served && text.path != "/openapi.json") continue;  // that route is added with this document
    std::string path(text.path), method(text.method == "GET" ? "get" : "post");
    const bool has_tail = path.ends_with("/*");
    if (has_tail) path.replace(path.size() - 1, 1, "{name}");
    paths[path][method] = Operation(text, has_tail);
  }
  Json tags = Json::array();
  for (const auto& [name, description] : kTags) tags.push_back({{"name", name}, {"description", description}});
  return DumpJson({{"openapi", "3.1.0"},
                   {"info",
                    {{"title", "loramux"},
                     {"version", version},
                     {"description", "A server for one base model and many LoRA adapters."}}},
                   {"servers", Json::array({{{"url", "."}}})},
                   {"tags", std::move(tags)},
                   {"paths", std::move(paths)},
                   {"components", {{"schemas", Schemas()}, {"securitySchemes", SecuritySchemes()}}}});
}

}  // namespace loramux
