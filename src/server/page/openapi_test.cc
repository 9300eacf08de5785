#include "server/page/openapi.h"

#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "http/json_reader.h"
#include "server/api/messages/messages_request.h"
#include "server/api/openai/openai_request.h"
#include "server/api/responses/responses_request.h"
#include "server/api/tgi/tgi_request.h"
#include "server/api/tokens/tokens_request.h"
#include "server/page/field_schemas.h"

namespace loramux::openapi_test {
namespace {

constexpr std::pair<FieldEndpoints, const char*> kBodies[] = {
    {kChatBody, "ChatRequest"},         {kCompletionBody, "CompletionRequest"}, {kEmbeddingBody, "EmbeddingRequest"},
    {kClassifyBody, "ClassifyRequest"}, {kScoreBody, "ScoreRequest"},           {kRerankBody, "RerankRequest"}};

Json Document() {
  std::vector<HttpRoute> routes(2);
  routes[0].method = "POST";
  routes[0].path = "/v1/chat/completions";
  routes[1].method = "GET";
  routes[1].path = "/v1/models/*";
  return Json::parse(OpenApiDocument(routes, "1.2.3"));
}

TEST(OpenApi, HasTheRoutesOfTheServerAndNoOthers) {
  const Json document = Document();
  EXPECT_EQ(document["info"]["version"], "1.2.3");
  std::set<std::string> paths;
  for (const auto& [path, item] : document["paths"].items()) paths.insert(path);
  EXPECT_THAT(paths, testing::UnorderedElementsAre("/v1/chat/completions", "/v1/models/{name}", "/openapi.json"));
  EXPECT_EQ(document["paths"]["/v1/models/{name}"]["get"]["parameters"][0]["in"], "path");
}

void CheckReferences(const Json& document, const Json& value) {
  if (value.is_object() && value.contains("$ref")) {
    const std::string target = value["$ref"].get<std::string>().substr(1);
    EXPECT_TRUE(document.contains(Json::json_pointer(target))) << target;
  }
  for (const Json& part : value) {
    if (part.is_structured()) CheckReferences(document, part);
  }
}

TEST(OpenApi, ReferencesLeadSomewhere) {
  const Json document = Document();
  CheckReferences(document, document);
}

TEST(OpenApi, ARouteWithoutATextIsFound) {
  std::vector<HttpRoute> routes(3);
  routes[0].method = routes[1].method = routes[2].method = "GET";
  routes[0].path = "/new";
  routes[1].path = "/page/app.js";
  routes[2].path = "/health";
  EXPECT_THAT(RoutesWithoutText(routes), testing::ElementsAre("GET /new"));
}

TEST(OpenApi, EachServedFieldHasOneTypeAndNothingElseHas) {
  for (const auto& [endpoint, name] : kBodies) {
    for (const RequestField& field : RequestFields()) {
      if ((field.endpoints & endpoint) == 0) continue;
      const bool served = field.use == FieldUse::kServed;
      if (served) EXPECT_FALSE(SchemaOf(field.name, endpoint).empty()) << field.name << " in " << name;
    }
  }
  std::map<std::string_view, int> seen;
  for (const FieldSchema& schema : FieldSchemas()) {
    EXPECT_TRUE(Json::accept(schema.schema)) << schema.name;
    EXPECT_EQ(seen[schema.name] & schema.endpoints, 0) << schema.name;
    seen[schema.name] |= schema.endpoints;
    bool served = false;
    for (const RequestField& field : RequestFields()) {
      served = served || (field.name == schema.name && field.use == FieldUse::kServed &&
                          (field.endpoints & schema.endpoints) != 0);
    }
    EXPECT_TRUE(served) << schema.name;
  }
}

TEST(OpenApi, BodiesHaveTheFieldsOfTheTable) {
  const Json document = Document();
  for (const auto& [endpoint, name] : kBodies) {
    const Json& body = document["components"]["schemas"][name];
    std::set<std::string> served, refused, properties, refusals;
    for (const RequestField& field : RequestFields()) {
      if ((field.endpoints & endpoint) == 0) continue;
      (field.use == FieldUse::kRefused ? refused : served).insert(std::string(field.name));
    }
    for (const auto& [field, schema] : body["properties"].items()) properties.insert(field);
    for (const auto& [field, hint] : body["x-loramux-refused"].items()) refusals.insert(field);
    EXPECT_EQ(properties, served) << name;
    EXPECT_EQ(refusals, refused) << name;
  }
}

// Each refuses a value of some wrong type, and names the field.
TEST(OpenApi, AParserReadsEachServedFieldByItsName) {
  const RequestLimits limits{.max_tokens = 1000};
  const Json wrong[] = {Json::array({Json::array({Json::object()}), 1.5}), 1.5, "?", false};
  const auto check = [&](const RequestField& field, FieldEndpoints endpoint, const std::string& base, auto parse) {
    if (field.use != FieldUse::kServed || (field.endpoints & endpoint) == 0) return;
    bool refused = false;
    for (const Json& value : wrong) {
      Json body = Json::parse(base);
      body[std::string(field.name)] = value;
      const auto parsed = parse(body.dump(), limits);
      refused = refused || (!parsed.ok() && parsed.error().param.starts_with(field.name));
    }
    EXPECT_TRUE(refused) << field.name;
  };
  for (const RequestField& field : RequestFields()) {
    check(field, kChatBody, R"({"model":"m","messages":[{"role":"user","content":"x"}]})", ParseChatRequest);
    check(field, kCompletionBody, R"({"model":"m","prompt":"x"})", ParseCompletionRequest);
    check(field, kEmbeddingBody, R"({"model":"m","input":"x"})", ParseEmbeddingRequest);
    check(field, kClassifyBody, R"({"model":"m","messages":[{"role":"user","content":"x"}]})", ParseClassifyRequest);
    check(field, kScoreBody, R"({"model":"m","text_1":"x","text_2":"y"})", ParseScoreRequest);
    check(field, kRerankBody, R"({"model":"m","query":"x","documents":["y"]})",
          [](std::string_view body, const RequestLimits& given) {
            RerankReply reply;
            return ParseRerankRequest(body, given, reply);
          });
  }
}

// What the parsers ask of a body, by the names in their source.
TEST(OpenApi, EachFieldThatAParserReadsIsInTheTable) {
  std::set<std::string_view> known;
  for (const RequestField& field : RequestFields()) known.insert(field.name);
  const std::regex read(R"re(\bfields\.(?:Find|String|Boolean|Integer|Integers|Number|Array|Object)\("([^"]+)")re");
  const std::regex helper(R"re(\b(?:ReadInt32|ReadPrompts)\(fields, "([^"]+)")re");
  std::set<std::string> found;
  for (const char* file : {"adapter_fields", "chat_fields", "openai_request", "output_fields", "tool_fields"}) {
    std::ifstream in(std::string(LORAMUX_SOURCE_DIR "/src/server/api/openai/") + file + ".cc");
    const std::string source{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    ASSERT_FALSE(source.empty()) << file;
    for (const std::regex& pattern : {read, helper}) {
      for (std::sregex_iterator at(source.begin(), source.end(), pattern), end; at != end; ++at) found.insert((*at)[1]);
    }
  }
  EXPECT_GT(found.size(), 40u);
  for (const std::string& name : found) EXPECT_TRUE(known.contains(name)) << name;
}

// ---------------------------------------------------------------- Other APIs

// A table of another API: its schema, a smallest body, and what the server says to a body with a field more.
struct OtherApi {
  const char *schema, *file, *prefix, *smallest;
  std::span<const DialectField> table;
  std::optional<Error> (*error_of)(const Json& body);
};

template <typename Request>
std::optional<Error> ErrorOf(const Result<Request>& parsed) {
  return parsed.ok() ? std::nullopt : std::optional<Error>(parsed.error());
}

std::optional<Error> ChatError(const Result<Json>& chat) {
  if (!chat.ok()) return chat.error();
  return ErrorOf(ParseChatRequest(chat->dump(), {.max_tokens = 1000}));
}

std::optional<Error> TgiError(const Json& body) {
  const auto translated = CompletionOfTgi(body, TgiPath::kRoot, "m");
  if (!translated.ok()) return translated.error();
  return ErrorOf(ParseCompletionRequest(translated->completion.dump(), {.max_tokens = 1000}));
}

std::optional<Error> TokensError(const Json& body) {
  const auto translated = CompletionOfTokens(body, "m");
  if (!translated.ok()) return translated.error();
  return ErrorOf(ParseCompletionRequest(translated->completion.dump(), {.max_tokens = 1000}));
}

std::vector<OtherApi> OtherApis() {
  return {{"ResponsesRequest", "responses/responses_request", "", R"({"model": "m", "input": "x"})", ResponsesFields(),
           [](const Json& body) {
             const auto chat = ChatOfResponses(body);
             return chat.ok() ? ChatError(chat->chat) : chat.error();
           }},
          {"MessagesRequest", "messages/messages_request", "",
           R"({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]})", MessagesFields(),
           [](const Json& body) { return ChatError(ChatOfMessages(body, /*needs_length=*/true)); }},
          {"GenerateRequest", "tgi/tgi_request", "", R"({"inputs": "x"})", TgiFields(), TgiError},
          {"GenerateParameters", "tgi/tgi_request", "parameters.", "{}", TgiParameters(),
           [](const Json& parameters) {
             return TgiError({{"inputs", "x"}, {"parameters", parameters}});
           }},
          {"TokensRequest", "tokens/tokens_request", "", R"({"token_ids": [1], "sampling_params": {}})", TokensFields(),
           TokensError},
          {"TokensParameters", "tokens/tokens_request", "sampling_params.", "{}", TokensParameters(),
           [](const Json& parameters) {
             return TokensError({{"token_ids", {1}}, {"sampling_params", parameters}});
           }}};
}

TEST(OpenApi, OtherApisHaveTheFieldsOfTheirTables) {
  const Json document = Document();
  for (const OtherApi& api : OtherApis()) {
    const Json& schema = document["components"]["schemas"][api.schema];
    EXPECT_EQ(api.error_of(Json::parse(api.smallest)), std::nullopt) << api.schema;
    std::set<std::string_view> names;
    for (const DialectField& field : api.table) {
      EXPECT_TRUE(names.insert(field.name).second) << field.name;
      ASSERT_TRUE(Json::accept(field.schema)) << field.name;
      const bool refused = field.use == FieldUse::kRefused;
      EXPECT_EQ(schema["properties"].contains(field.name), !refused) << field.name;
      EXPECT_EQ(schema["x-loramux-refused"].contains(field.name), refused) << field.name;
    }
  }
  const Json& schemas = document["components"]["schemas"];
  EXPECT_EQ(schemas["MessagesRequest"]["properties"]["temperature"]["type"], "number");  // as in the chat
  EXPECT_EQ(schemas["GenerateParameters"]["properties"]["top_k"]["type"], "integer");    // as in the completion
  EXPECT_FALSE(schemas["GenerateRequest"]["properties"].contains("temperature"));
}

// Some wrong value of each served field is refused; so is every value of a refused field but those that ask for
// nothing; and no value of an ignored field.
TEST(OpenApi, ATranslationDoesWhatItsTableSays) {
  const Json wrong[] = {Json::array({Json::array({Json::object()}), 1.5}), 1.5, "?", false, Json{{"?", 1}}};
  for (const OtherApi& api : OtherApis()) {
    for (const DialectField& field : api.table) {
      const std::string name(field.name), where = std::string(api.schema) + ": " + name;
      Json body = Json::parse(api.smallest);
      int refused = 0;
      for (const Json& value : wrong) {
        body[name] = value;
        const auto error = api.error_of(body);
        refused += error.has_value();
        if (field.use != FieldUse::kRefused || value == false) continue;
        ASSERT_TRUE(error.has_value()) << where;
        EXPECT_EQ(error->param, api.prefix + name);
        EXPECT_EQ(error->code, ErrorCode::kUnsupported) << where;
      }
      if (field.use == FieldUse::kServed) EXPECT_GT(refused, 0) << where;
      if (field.neutral.empty()) continue;
      body[name] = Json::parse(field.neutral);
      EXPECT_EQ(api.error_of(body), std::nullopt) << where;
    }
  }
}

// What the translations ask of a body, by the names in their source.
TEST(OpenApi, EachFieldThatATranslationReadsIsInATable) {
  const std::regex read(
      R"re(\b(?:fields_?|parameters)\.(?:Find|String|Boolean|Integer|Number|Array|Object)\("([^"]+)")re");
  for (const OtherApi& api : OtherApis()) {
    std::set<std::string_view> known;
    for (const RequestField& field : RequestFields()) known.insert(field.name);
    for (const OtherApi& other : OtherApis()) {
      if (std::string_view(other.file) != api.file) continue;
      for (const DialectField& field : other.table) known.insert(field.name);
    }
    std::ifstream in(std::string(LORAMUX_SOURCE_DIR "/src/server/api/") + api.file + ".cc");
    const std::string source{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    std::size_t found = 0;
    for (std::sregex_iterator at(source.begin(), source.end(), read), end; at != end; ++at, ++found)
      EXPECT_TRUE(known.contains((*at)[1].str())) << (*at)[1].str();
    EXPECT_GT(found, 4u) << api.file;
  }
}

}  // namespace
}  // namespace loramux::openapi_test
