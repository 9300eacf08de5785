#include "server/completion/model_choice.h"

#include <gmock/gmock.h>

namespace loramux::model_choice_test {
namespace {

using testing::HasSubstr;

class ModelChoiceTest : public testing::Test {
 protected:
  ModelChoiceTest() : registry_(ModelConfig(), {"org/base", "base"}, {}) {
    for (const char* name : {"sql", "base:odd"}) {
      auto adapter = std::make_shared<AdapterVersion>();
      adapter->name = name;
      EXPECT_TRUE(registry_.Commit(std::move(adapter)).ok());
    }
  }
  // The name of the version that serves it ("" for the base model), or "param: message".
  std::string Serves(const std::string& model, std::optional<AdapterField> adapter = {},
                     const ApiKey& caller = NoKey()) const {
    const auto choice = ChooseModel(registry_, model, adapter);
    if (!choice.ok()) return choice.error().param + ": " + choice.error().message;
    const auto version = ResolveModel(registry_, NoFinder(), caller, *choice);
    if (!version.ok()) return version.error().param + ": " + version.error().message;
    return *version == nullptr ? "" : (*version)->name;
  }

  AdapterRegistry registry_;
};

TEST_F(ModelChoiceTest, ANameOfTheBaseModelMayStandBeforeTheAdapters) {
  EXPECT_EQ(Serves("base"), "");
  EXPECT_EQ(Serves("sql"), "sql");
  EXPECT_EQ(Serves("base:sql"), "sql");
  EXPECT_EQ(Serves("org/base:sql"), "sql");
  EXPECT_EQ(Serves("base:odd"), "base:odd");
  for (const char* unknown : {"base:", "base:none", "other:sql", ":sql", "basesql", "base:sql:sql"}) {
    EXPECT_THAT(Serves(unknown), HasSubstr("model: The model `")) << unknown;
  }
}

// Only a whole digest is one: names may have an @ of their own.
TEST_F(ModelChoiceTest, ADigestBehindTheNamePinsTheContent) {
  const std::string digest(64, 'a'), other(63, 'a');
  for (const char* name : {"pinned", "odd@name"}) {
    auto adapter = std::make_shared<AdapterVersion>();
    adapter->name = name;
    adapter->file.digest = digest;
    ASSERT_TRUE(registry_.Commit(std::move(adapter)).ok());
  }
  EXPECT_EQ(Serves("pinned@" + digest), "pinned");
  EXPECT_EQ(Serves("base:pinned@" + digest), "pinned");
  EXPECT_EQ(Serves("odd@name"), "odd@name");
  EXPECT_EQ(Serves("odd@name@" + digest), "odd@name");
  EXPECT_EQ(Serves("base", AdapterField{"lora_path", "pinned@" + digest}), "pinned");
  EXPECT_EQ(Serves("pinned@" + other + "b"),
            "model: The model 'pinned' has other content on this server: expected the digest " + other + "b, found " +
                digest);
  EXPECT_THAT(Serves("base@" + digest), HasSubstr("found none"));
  EXPECT_THAT(Serves("base", AdapterField{"lora_path", "pinned@" + other + "b"}), HasSubstr("lora_path: `lora_path`"));
  for (const std::string& unknown :
       std::vector<std::string>{"pinned@" + other, "pinned@" + other + "A", "pinned@", "@" + digest}) {
    EXPECT_THAT(Serves(unknown), HasSubstr("model: The model `")) << unknown;
  }
}

TEST_F(ModelChoiceTest, AFieldNamesAnAdapterOfTheBaseModel) {
  EXPECT_EQ(Serves("base", AdapterField{"lora_path", "sql"}), "sql");
  EXPECT_EQ(Serves("sql", AdapterField{"lora_path", "sql"}), "sql");
  EXPECT_EQ(Serves("base:sql", AdapterField{"lora_path", "sql"}), "sql");
  EXPECT_THAT(Serves("sql", AdapterField{"adapter_id", "base:odd"}),
              HasSubstr("adapter_id: `adapter_id`: expected the adapter that `model` names (\"sql\")"));
}

TEST_F(ModelChoiceTest, AFieldWithAnUnknownAdapterIsABadRequest) {
  for (const char* name : {"none", "base", "org/base"}) {
    const auto choice = ChooseModel(registry_, "base", AdapterField{"lora_path", name});
    if (std::string(name) == "base") {  // the model itself: no adapter is asked for
      EXPECT_EQ(Serves("base", AdapterField{"lora_path", name}), "");
      continue;
    }
    const auto version = ResolveModel(registry_, NoFinder(), NoKey(), *choice);
    ASSERT_FALSE(version.ok()) << name;
    EXPECT_EQ(version.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(version.error().param, "lora_path");
    EXPECT_THAT(version.error().message, HasSubstr("`lora_path`: expected the name of an adapter that is served"));
  }
  EXPECT_EQ(ResolveModel(registry_, NoFinder(), NoKey(), *ChooseModel(registry_, "base:none", {})).error().code,
            ErrorCode::kNotFound);
}

TEST_F(ModelChoiceTest, ASumIsOfTheBaseModelsAdapters) {
  const AdapterField sum{"lora", "sql+base:odd", {{"sql", 0.5}, {"base:odd", 1}}};
  EXPECT_THAT(Serves("base", sum), HasSubstr("lora: `lora`: This server takes one adapter in a request"));
  EXPECT_THAT(Serves("sql", sum), HasSubstr("lora: `lora`: expected the adapter that `model` names"));
  EXPECT_THAT(Serves("base", AdapterField{"lora", "sql+none", {{"sql", 0.5}, {"none", 1}}}),
              HasSubstr("lora: `lora`: expected the name of an adapter that is served. The model `none`"));
  const ApiKey one{.name = "b", .models = {"base", "sql"}};
  EXPECT_THAT(Serves("base", sum, one), HasSubstr("The model `base:odd` does not exist"));
}

// A key that may not use an adapter learns nothing of it, whatever names it.
TEST_F(ModelChoiceTest, TheKeyMustPermitTheAdapter) {
  const ApiKey base_only{.name = "a", .models = {"base"}}, sql_only{.name = "b", .models = {"sql"}};
  EXPECT_EQ(Serves("base:sql", {}, base_only), "model: " + UnknownModel("sql").message);
  EXPECT_THAT(Serves("base", AdapterField{"lora_path", "sql"}, base_only),
              HasSubstr("lora_path: `lora_path`: expected"));
  EXPECT_EQ(Serves("base", AdapterField{"lora_path", "sql"}, sql_only), "sql");
  EXPECT_EQ(Serves("base:sql", {}, sql_only), "sql");
  EXPECT_THAT(Serves("base", {}, sql_only), HasSubstr("model: "));
}

}  // namespace
}  // namespace loramux::model_choice_test
