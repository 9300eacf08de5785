#include "server/openai/model_listing.h"

#include <memory>

#include "http/json_reader.h"

namespace loramux::model_listing_test {
namespace {

Json Parse(const std::string& text) {
  auto json = ParseJson(text);
  EXPECT_TRUE(json.ok()) << text;
  return json.ok() ? *json : Json();
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

}  // namespace
}  // namespace loramux::model_listing_test
