#include "server/completion/adapter_text.h"

#include <fstream>
#include <sstream>

#include <gmock/gmock.h>

#include "http/json_reader.h"
#include "server/api/openai/model_listing.h"
#include "server/api/openai/openai_dialect.h"
#include "server/completion/completion_job.h"
#include "server/server_fixture.h"

namespace loramux::adapter_text_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kOwn = "{{ bos_token }}own:{% for m in messages %}{{ m.content }}{% endfor %}";

// A folder of an adapter whose base model is that of ServingFixture.
class AdapterTextTest : public testing::Test {
 protected:
  AdapterTextTest() : folder_(testing::TempDir() + "loramux_adapter_text") {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    model_.eos_token_ids = {kEosToken};
  }
  ~AdapterTextTest() override { fs::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  // The base model's tokenizer after `change`.
  void WriteTokenizer(const std::function<void(Json&)>& change = {}) {
    std::stringstream text;
    text << std::ifstream(LORAMUX_SOURCE_DIR "/src/server/testdata/tokenizer.json").rdbuf();
    Json json = *ParseJson(text.str());
    if (change) change(json);
    Write("tokenizer.json", DumpJson(json));
  }
  static std::function<void(Json&)> Added(const std::string& token) {
    return [token](Json& json) {
      Json added = json["added_tokens"][0];
      added["content"] = token;
      added["id"] = kEosToken + 1;
      json["added_tokens"].push_back(added);
    };
  }
  AdapterTextOptions Options() {
    return {.tokenizer = &fixture_.tokenizer,
            .directory = LORAMUX_SOURCE_DIR "/src/server/testdata",
            .chat_template = &fixture_.chat_template,
            .defaults = RequestDefaults()};
  }
  Result<std::shared_ptr<const AdapterText>> Read(AdapterTextReader& reader) {
    return reader.Read(model_, "own", folder_, {});
  }
  AdapterText Text() {
    AdapterTextReader reader(Options());
    const auto text = Read(reader);
    EXPECT_TRUE(text.ok()) << text.error().message;
    return text.ok() && *text != nullptr ? **text : AdapterText();
  }
  std::string Refusal() {
    AdapterTextReader reader(Options());
    const auto text = Read(reader);
    return text.ok() ? "served" : text.error().message;
  }

  ServingFixture fixture_;
  ModelConfig model_ = ServingFixture::Model();
  const fs::path folder_;
};

TEST_F(AdapterTextTest, AFolderWithWeightsAloneHasNone) {
  AdapterTextReader reader(Options());
  EXPECT_EQ(*Read(reader), nullptr);
  WriteTokenizer();
  const AdapterText text = Text();
  EXPECT_EQ(text.own, nullptr);
  EXPECT_THAT(text.end_tokens, IsEmpty());
  EXPECT_THAT(text.warning, IsEmpty());
  EXPECT_EQ(text.digest.size(), 64u);
}

TEST_F(AdapterTextTest, TheTemplateOfTheFolder) {
  Write("tokenizer_config.json", R"({"bos_token": "<s>"})");
  Write("chat_template.jinja", kOwn);
  const AdapterText text = Text();
  ASSERT_NE(text.own, nullptr);
  EXPECT_EQ(text.template_name, "chat_template.jinja");
  EXPECT_EQ(*text.own->chat_template.Render(R"({"messages":[{"role":"user","content":"x"}]})", {}), "<s>own:x");
  fs::remove(folder_ / "chat_template.jinja");
  Write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "in the configuration"})");
  EXPECT_EQ(Text().template_name, "tokenizer_config.json");
  EXPECT_NE(Text().digest, text.digest);
}

// Adapters by the thousand have few templates.
TEST_F(AdapterTextTest, EqualTemplatesAreKeptOnce) {
  Write("chat_template.jinja", kOwn);
  AdapterTextReader reader(Options());
  const auto first = *Read(reader), second = *Read(reader);
  EXPECT_EQ(first->own, second->own);
  AdapterTextOptions options = Options();
  options.chat_template = &first->own->chat_template;  // the base model has it too
  AdapterTextReader other(std::move(options));
  EXPECT_EQ((*Read(other))->own, nullptr);
}

TEST_F(AdapterTextTest, FlagsComeBeforeTheFolder) {
  Write("chat_template.jinja", kOwn);
  const auto given = MakeOwnTemplate(*ChatTemplate::Parse("given", "{}", "flag"));
  const auto for_one = MakeOwnTemplate(*ChatTemplate::Parse("for one", "{}", "flag"));
  AdapterTextOptions options = Options();
  options.for_all = given;
  AdapterTextReader all(options);
  EXPECT_EQ((*Read(all))->own, given);
  options.by_name["own"] = for_one;
  AdapterTextReader both(options);
  EXPECT_EQ((*Read(both))->own, for_one);
  EXPECT_EQ((*Read(both))->template_name, "--chat-template");
}

TEST_F(AdapterTextTest, EndTokensBesideTheModels) {
  Write("generation_config.json", R"({"eos_token_id": [257, 65], "temperature": 0.5, "max_new_tokens": 9})");
  AdapterText text = Text();
  EXPECT_THAT(text.end_tokens, ElementsAre(65));
  EXPECT_EQ(text.defaults->sampling.temperature, 0.5f);
  EXPECT_EQ(text.defaults->max_output_tokens, 9);
  Write("generation_config.json", R"({"eos_token_id": 257})");
  Write("special_tokens_map.json", R"({"eos_token": {"content": "<s>"}})");
  text = Text();
  EXPECT_THAT(text.end_tokens, ElementsAre(kBosToken));
  EXPECT_EQ(text.defaults, nullptr);
  Write("generation_config.json", R"({"eos_token_id": 300})");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("generation_config.json"), HasSubstr("300")));
  Write("generation_config.json", R"({"temperature": -1})");
  EXPECT_THAT(Refusal(), HasSubstr("temperature"));
}

TEST_F(AdapterTextTest, TokensWithoutRowsAreRefusedOrNamed) {
  model_.vocab_size = kEosToken + 1;
  Write("chat_template.jinja", "{{ bos_token }}<|im|>");
  WriteTokenizer(Added("<|im|>"));  // the template needs it
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("chat template"), HasSubstr("'<|im|>'"), HasSubstr("save_embedding_layers")));
  WriteTokenizer(Added("<|pad|>"));  // no prompt of a chat has it
  EXPECT_THAT(Text().warning, AllOf(HasSubstr("'<|pad|>'"), HasSubstr("a prompt with one is refused")));
  EXPECT_NE(Text().own, nullptr);
  Write("tokenizer_config.json", R"({"eos_token": "<|pad|>"})");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("end of its answers"), HasSubstr("'<|pad|>'")));
  fs::remove(folder_ / "tokenizer_config.json");
  WriteTokenizer([](Json& json) { std::swap(json["model"]["vocab"]["a"], json["model"]["vocab"]["b"]); });
  EXPECT_THAT(Refusal(), HasSubstr("'b' has the id 97, and 98 in the base model's"));
  Write("tokenizer.json", "{}");
  EXPECT_THAT(Refusal(), HasSubstr("tokenizer.json"));
}

// The same prompts in the same words, with the tokens that the adapter was trained with.
TEST_F(AdapterTextTest, TheTokenizerOfTheFolderReadsPrompts) {
  WriteTokenizer();
  EXPECT_EQ(Text().tokenizer, nullptr);  // it agrees with the base model's
  WriteTokenizer(Added("<|im|>"));
  AdapterTextReader reader(Options());
  const auto first = *Read(reader), second = *Read(reader);
  ASSERT_NE(first->tokenizer, nullptr);
  EXPECT_EQ(first->tokenizer, second->tokenizer);  // kept once
  EXPECT_EQ(first->tokenizer->tokenizer().TokenToId("<|im|>"), kEosToken + 1);
  EXPECT_EQ(&TokenizerOf(fixture_.tokenizer, nullptr), &fixture_.tokenizer);
  AdapterVersion version;
  version.text = first;
  EXPECT_EQ(&TokenizerOf(fixture_.tokenizer, &version), &first->tokenizer->tokenizer());
  WriteTokenizer([](Json& json) { json["pre_tokenizer"]["add_prefix_space"] = true; });
  AdapterText text = Text();
  ASSERT_NE(text.tokenizer, nullptr);
  EXPECT_THAT(text.warning, IsEmpty());
  EXPECT_NE(*text.tokenizer->tokenizer().Encode("a", false), *fixture_.tokenizer.Encode("a", false));
  WriteTokenizer([](Json& json) { json["post_processor"] = nullptr; });
  text = Text();
  ASSERT_NE(text.tokenizer, nullptr);
  EXPECT_THAT(text.warning, IsEmpty());
}

// A token has rows if the base model has them, or if the adapter brings its row of the embedding.
TEST_F(AdapterTextTest, RowsOfTheAdapterMakeItsTokensWhole) {
  model_.vocab_size = kEosToken + 1;
  model_.AddTokens(2);
  Write("chat_template.jinja", "{{ bos_token }}<|im|>");
  WriteTokenizer(Added("<|im|>"));
  EXPECT_THAT(Refusal(), HasSubstr("'<|im|>'"));
  OwnPart rows{.kind = OwnKind::kEmbedding};
  rows.rows.push_back({.token = kEosToken + 1});
  AdapterTextReader reader(Options());
  const auto text = reader.Read(model_, "own", folder_, {}, {&rows, 1});
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_THAT((*text)->warning, IsEmpty());
  Write("tokenizer_config.json", R"({"eos_token": "<|im|>"})");
  const auto ended = reader.Read(model_, "own", folder_, {}, {&rows, 1});
  ASSERT_TRUE(ended.ok()) << ended.error().message;
  EXPECT_THAT((*ended)->end_tokens, ElementsAre(kEosToken + 1));
}

// Slow tokenizers have no tokenizer.json: their added tokens stand in other files.
TEST_F(AdapterTextTest, AddedTokensWithoutATokenizer) {
  Write("added_tokens.json", R"({"<s>": 256, "<|im|>": 290})");
  EXPECT_THAT(Text().warning, HasSubstr("'<|im|>'"));
  Write("added_tokens.json", R"({"</s>": 256})");
  EXPECT_THAT(Refusal(), HasSubstr("'</s>' has the id 256, and 257 in the base model's"));
  fs::remove(folder_ / "added_tokens.json");
  Write("tokenizer_config.json", R"({"added_tokens_decoder": {"257": {"content": "<s>"}, "x": 1, "9": []}})");
  EXPECT_THAT(Refusal(), HasSubstr("'<s>' has the id 257"));
}

TEST_F(AdapterTextTest, HostileFilesAreErrors) {
  Write("chat_template.jinja", "{% if %}");
  EXPECT_THAT(Refusal(), HasSubstr("chat_template.jinja"));
  Write("chat_template.jinja", std::string(kMaxAdapterTextBytes + 1, 'x'));
  EXPECT_THAT(Refusal(), HasSubstr("chat_template.jinja"));
  fs::remove(folder_ / "chat_template.jinja");
  Write("tokenizer_config.json", std::string(100'000, '['));
  EXPECT_THAT(Refusal(), HasSubstr("tokenizer_config.json"));
  fs::remove(folder_ / "tokenizer_config.json");
  Write("chat_template.jinja", "x");
  AdapterTextReader reader(Options());
  const auto outside = [](const fs::path& path) -> Status { return InvalidArgument(path.string() + " is outside"); };
  EXPECT_THAT(reader.Read(model_, "own", folder_, outside).error().message, HasSubstr("is outside"));
}

// From the body to the engine, and to the list of models.
TEST_F(AdapterTextTest, RequestsAndCardsGoByIt) {
  Write("chat_template.jinja", kOwn);
  Write("generation_config.json", R"({"eos_token_id": 65, "temperature": 0.25, "max_new_tokens": 9})");
  AdapterTextReader reader(Options());
  auto adapter = std::make_shared<AdapterVersion>();
  adapter->name = "own";
  ASSERT_TRUE(reader.Hook()(model_, *adapter, folder_, {}).ok());
  ASSERT_TRUE(fixture_.registry.Commit(std::move(adapter)).ok());
  GenerationRequest seen;
  ScriptedService service([&](const GenerationRequest& request) {
    seen.prompt = request.prompt;
    seen.sampling = request.sampling;
    seen.eos_token_ids = request.eos_token_ids;
    seen.max_tokens = request.max_tokens;
    return Say("");
  });
  const auto ask = [&](const std::string& fields) {
    auto job = CompletionJob::Prepare(fixture_.Context(service), OpenAiDialect(Endpoint::kChat),
                                      R"({"messages":[{"role":"user","content":"x"}],)" + fields + "}");
    ASSERT_TRUE(job.ok()) << job.error().message;
    const auto inbox = std::make_shared<GenerationInbox>(std::size_t{1} << 20, [] {});
    ASSERT_TRUE(job->Submit(inbox).ok());
  };
  const auto prompt = [&] { return *fixture_.tokenizer.Decode(seen.prompt, /*skip_special_tokens=*/false); };
  for (const char* model : {R"("model":"own")", R"("model":"base","adapter_id":"own")", R"("model":"base:own")"}) {
    ask(model);
    EXPECT_EQ(prompt(), "own:x");
    EXPECT_THAT(seen.eos_token_ids, ElementsAre(65));
    EXPECT_EQ(seen.sampling.temperature, 0.25f);
    EXPECT_EQ(seen.max_tokens, 9);
  }
  ask(R"("model":"own","temperature":1,"max_tokens":3)");
  EXPECT_EQ(seen.sampling.temperature, 1.0f);
  EXPECT_EQ(seen.max_tokens, 3);
  ask(R"("model":"sql")");
  EXPECT_EQ(prompt(), "<s>[user]x[assistant]");
  EXPECT_THAT(seen.eos_token_ids, IsEmpty());
  EXPECT_EQ(seen.sampling.temperature, SamplingParams().temperature);
  const Json card = *ParseJson(*ModelBody(fixture_.registry, {}, "own"));
  EXPECT_EQ(card["chat_template"], "chat_template.jinja");
  EXPECT_EQ(DumpJson(card["eos_token_ids"]), "[65]");
  EXPECT_EQ(DumpJson(card["generation_config"]), R"({"temperature":0.25,"max_new_tokens":9})");
}

}  // namespace
}  // namespace loramux::adapter_text_test
