#include "server/openai/adapter_fields.h"

#include <gmock/gmock.h>

namespace loramux::adapter_fields_test {
namespace {

using testing::HasSubstr;

// "field=name", "" for none, or the error's message.
std::string Read(const std::string& body) {
  const Json json = *ParseJson(body);
  FieldReader fields(json, "");
  const auto adapter = ReadAdapterFields(fields);
  if (!fields.ok()) return fields.error().message;
  return adapter ? adapter->field + "=" + adapter->name : "";
}

TEST(AdapterFields, EachFieldNamesOneAdapter) {
  EXPECT_EQ(Read(R"({"lora_path":"sql"})"), "lora_path=sql");
  EXPECT_EQ(Read(R"({"lora_path":["sql"]})"), "lora_path=sql");
  EXPECT_EQ(Read(R"({"adapter_id":"org/sql"})"), "adapter_id=org/sql");
  EXPECT_EQ(Read(R"({"lora":"sql"})"), "lora=sql");
  EXPECT_EQ(Read(R"({"lora":[{"id":"sql","scale":1.0}]})"), "lora=sql");
  EXPECT_EQ(Read(R"({"lora":[{"id":0,"scale":0},{"id":"sql"}]})"), "lora=sql");
  EXPECT_EQ(Read(R"({"merged_adapters":{"ids":["sql"],"weights":[1],"merge_strategy":"ties"}})"),
            "merged_adapters=sql");
  EXPECT_EQ(Read(R"({"lora_path":"sql","adapter_id":"sql"})"), "lora_path=sql");
}

TEST(AdapterFields, NothingAsksForNothing) {
  EXPECT_EQ(Read(R"({})"), "");
  EXPECT_EQ(Read(R"({"lora_path":null,"adapter_id":"","lora":[],"merged_adapters":{}})"), "");
  EXPECT_EQ(Read(R"({"lora":[{"id":0,"scale":0.0}]})"), "");
}

TEST(AdapterFields, WhateverElseIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"lora_path":["a","b"]})", "`lora_path`: expected the name of one adapter, found an array of 2"},
      {R"({"lora_path":3})", "`lora_path`: expected the name of one adapter, found 3"},
      {R"({"lora_path":[null]})", "`lora_path`: expected the name of one adapter, found null"},
      {R"({"adapter_id":{}})", "`adapter_id`: expected the name of one adapter, found an object"},
      {R"({"lora":[{"id":0,"scale":1}]})", "`lora`: expected one object {\"id\": NAME}; adapters have names"},
      {R"({"lora":[{"scale":1}]})", "`lora`: expected one object"},
      {R"({"lora":[7]})", "`lora`: expected one object"},
      {R"({"lora":7})", "`lora`: expected an array"},
      {R"({"lora":[{"id":"a"},{"id":"b"}]})", "`lora`: expected one adapter, found an array of 2"},
      {R"({"lora":[{"id":"a","scale":0.5}]})", "`lora`: expected scale 1"},
      {R"({"merged_adapters":{"ids":["a","b"],"weights":[1,1]}})", "merges no adapters: expected one name in `ids`"},
      {R"({"merged_adapters":{"weights":[1]}})", "found nothing"},
      {R"({"merged_adapters":{"ids":["a"],"weights":[0.5]}})", "expected the weight 1"},
      {R"({"merged_adapters":{"ids":[1]}})", "expected the name of one adapter, found 1"},
      {R"({"merged_adapters":"a"})", "`merged_adapters`: expected an object"},
      {R"({"lora_path":"a","adapter_id":"b"})",
       "`adapter_id`: expected the adapter that `lora_path` names, found \"b\""},
  };
  for (const auto& [body, message] : cases) EXPECT_THAT(Read(body), HasSubstr(message)) << body;
}

}  // namespace
}  // namespace loramux::adapter_fields_test
