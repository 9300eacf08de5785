#include "server/api/openai/model_listing.h"

#include <memory>

#include "auth/access.h"
#include "http/json_reader.h"

namespace loramux::model_listing_test {
namespace {

Json Parse(const std::string& text) {
  auto json = ParseJson(text);
  EXPECT_TRUE(json.ok()) << text;
  return json.ok() ? *json : Json();
}

TEST(WithoutPath, HidesWhereAnAdapterLies) {
  EXPECT_EQ(WithoutPath("'/srv/a/x/adapter_config.json': expected /srv/a/x", "/srv/a/x/", "x"),
            "'x/adapter_config.json': expected x");
  EXPECT_EQ(WithoutPath("the name in the name", "name", "a name"), "the a name in the a name");
  EXPECT_EQ(WithoutPath("/ and nothing", "/", "x"), "/ and nothing");
  EXPECT_EQ(WithoutPath("nothing", "", "x"), "nothing");
}

TEST(ModelListing, CardsOfBaseAndAdapters) {
  ModelConfig model;
  AdapterRegistry registry(model, {"base", "alias"}, {});
  auto adapter = std::make_shared<AdapterVersion>();
  adapter->name = "org/sql";
  adapter->path = "adapters/sql";
  adapter->created_unix_seconds = 12;
  ASSERT_TRUE(registry.Commit(std::move(adapter)).ok());
  const ModelListing listing{"models/base", 11, 2048};
  const Json list = Parse(ModelListBody(registry, listing));
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 3u);
  EXPECT_EQ(list["data"][0]["id"], "base");
  EXPECT_EQ(list["data"][0]["root"], "models/base");
  EXPECT_TRUE(list["data"][0]["parent"].is_null());
  EXPECT_EQ(list["data"][0]["max_model_len"], 2048);
  EXPECT_EQ(list["data"][2]["id"], "org/sql");
  EXPECT_EQ(list["data"][2]["root"], "adapters/sql");
  EXPECT_EQ(list["data"][2]["parent"], "base");
  EXPECT_EQ(list["data"][2]["created"], 12);
  ASSERT_TRUE(list["data"][2]["permission"].is_array());
  EXPECT_EQ(list["data"][2]["permission"][0]["object"], "model_permission");
  EXPECT_EQ(Parse(*ModelBody(registry, listing, "org/sql"))["id"], "org/sql");
  EXPECT_EQ(Parse(*ModelBody(registry, listing, "alias"))["id"], "alias");
  EXPECT_EQ(ModelBody(registry, listing, "nope").error().message, "The model `nope` does not exist.");
}

// Offers one adapter, and knows one that is broken.
class HalfBroken final : public AdapterFinder {
 public:
  Result<std::shared_ptr<const AdapterVersion>> Find(std::string_view name) override { return UnknownModel(name); }
  std::vector<OfferedAdapter> Offered() override {
    return {{"good", "dir/good", 1}, {"kinds", "dir/kinds", 1, 3}, {"reward", "dir/reward", 1, 1}};
  }
  std::vector<BrokenAdapter> Broken() override { return {{"bad", "dir/bad", "no tensors"}}; }
};

TEST(ModelListing, BrokenAdaptersAreApartAndHaveTheirReason) {
  AdapterRegistry registry(ModelConfig(), {"base"}, {});
  const ModelListing listing{"models/base", 11, 2048};
  HalfBroken finder;
  const Json list = Parse(ModelListBody(registry, listing, finder));
  ASSERT_EQ(list["data"].size(), 4u);
  EXPECT_EQ(list["data"][1]["id"], "good");
  EXPECT_EQ(DumpJson(list["broken"]), R"([{"id":"bad","root":"dir/bad","reason":"no tensors"}])");
  EXPECT_EQ(ModelBody(registry, listing, "bad", finder).error().message,
            "The adapter `bad` cannot be served: no tensors");
  const ApiKey other{.name = "k", .models = {"good"}};  // may not know of it
  EXPECT_FALSE(Parse(ModelListBody(registry, listing, finder, other)).contains("broken"));
  EXPECT_EQ(ModelBody(registry, listing, "bad", finder, other).error().message, UnknownModel("bad").message);
  EXPECT_FALSE(Parse(ModelListBody(registry, listing)).contains("broken"));
}

TEST(ModelListing, ACardSaysWhatRoundingDidToRowsIn8Bits) {
  AdapterRegistry registry(ModelConfig(), {"base"}, {});
  auto adapter = std::make_shared<AdapterVersion>();
  adapter->name = "rounded";
  adapter->layout.dtype = DType::kF8E4M3;
  adapter->rounding = RoundingError{0.25, 0.5};
  ASSERT_TRUE(registry.Commit(adapter).ok());
  EXPECT_EQ(Parse(*ModelBody(registry, {}, "rounded"))["rounding"],
            Json::parse(R"({"dtype":"fp8","error":0.25,"worst_row":0.5})"));
  EXPECT_FALSE(Parse(*ModelBody(registry, {}, "base")).contains("rounding"));
}

TEST(ModelListing, ACardSaysWhatAHeadMakesInThePlaceOfText) {
  AdapterRegistry registry(ModelConfig(), {"base"}, {});
  auto adapter = std::make_shared<AdapterVersion>();
  adapter->name = "loaded";
  const TensorEntry head{.shape = {2, 8}};
  adapter->file.head = ClassHead{.module = "score", .tensor = &head};
  ASSERT_TRUE(registry.Commit(std::move(adapter)).ok());
  HalfBroken finder;
  const auto capabilities = [&](std::string_view id) {
    return Parse(*ModelBody(registry, {}, id, finder)).value("capabilities", Json());
  };
  EXPECT_EQ(capabilities("loaded"), Json({"classify"}));
  EXPECT_EQ(capabilities("kinds"), Json({"classify"}));
  EXPECT_EQ(capabilities("reward"), Json({"classify", "score", "rerank"}));
  EXPECT_TRUE(capabilities("good").is_null());
  EXPECT_TRUE(capabilities("base").is_null());
}

TEST(ModelListing, AWarningIsInTheCard) {
  AdapterRegistry registry(ModelConfig(), {"base"}, {});
  auto adapter = std::make_shared<AdapterVersion>();
  adapter->name = "sql";
  adapter->warning = "of another model";
  ASSERT_TRUE(registry.Commit(std::move(adapter)).ok());
  EXPECT_EQ(Parse(*ModelBody(registry, {}, "sql"))["warning"], "of another model");
  EXPECT_EQ(Parse(ModelListBody(registry, {}))["data"][1]["warning"], "of another model");
  EXPECT_FALSE(Parse(*ModelBody(registry, {}, "base")).contains("warning"));
}

}  // namespace
}  // namespace loramux::model_listing_test
