#include "server/api/openai/adapter_fields.h"

#include <fmt/format.h>
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
  if (!adapter) return "";
  std::string parts;
  for (const NamedWeight& part : adapter->parts) parts += fmt::format(" {}*{}", part.name, part.weight);
  return adapter->field + "=" + adapter->name + parts;
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

TEST(AdapterFields, SeveralAdaptersHaveWeights) {
  EXPECT_EQ(Read(R"({"lora":[{"id":"a","scale":0.5},{"name":"b"}]})"), "lora=a+b a*0.5 b*1");
  EXPECT_EQ(Read(R"({"lora":[{"id":"a"},{"id":"c","scale":0},{"id":"b","scale":-2}]})"), "lora=a+b a*1 b*-2");
  EXPECT_EQ(Read(R"({"lora":[{"id":"a","scale":0.5}]})"), "lora=a a*0.5");
  EXPECT_EQ(Read(R"({"lora":[{"id":"a","scale":0},{"id":"b","scale":0}]})"), "");
  EXPECT_EQ(Read(R"({"lora":[{"id":"a"},{"id":"b","scale":0}]})"), "lora=a");
  EXPECT_EQ(Read(R"({"merged_adapters":{"ids":["a","b"],"weights":[1,0.25],"merge_strategy":"linear","density":0.0}})"),
            "merged_adapters=a+b a*1 b*0.25");
  EXPECT_EQ(Read(R"({"merged_adapters":{"ids":["a","b"]}})"), "merged_adapters=a+b a*1 b*1");
  EXPECT_EQ(Read(R"({"merged_adapters":{"ids":["a"],"weights":[0.5]}})"), "merged_adapters=a a*0.5");
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
      {R"({"lora":[{"id":0,"scale":1}]})",
       "expected objects {\"id\": NAME, \"scale\": NUMBER}; adapters have names here"},
      {R"({"lora":[{"scale":1}]})", "`lora`: expected objects"},
      {R"({"lora":[7]})", "`lora`: expected objects"},
      {R"({"lora":7})", "`lora`: expected an array"},
      {R"({"lora":[{"id":"a"},{"id":""}]})", "`lora`: expected names of adapters"},
      {R"({"lora":[{"id":"a"},{"id":"a","scale":2}]})", "`lora`: expected each adapter once, found \"a\" twice"},
      {R"({"lora":[{"id":"a","scale":"x"}]})", "`lora`: expected a scale or weight from -1000000 to 1000000"},
      {R"({"lora":[{"id":"a","scale":1e7}]})", "`lora`: expected a scale or weight"},
      {R"({"lora":[{"id":"1"},{"id":"2"},{"id":"3"},{"id":"4"},{"id":"5"},{"id":"6"},{"id":"7"},{"id":"8"},{"id":"9"}]})",
       "`lora`: expected at most 8 adapters in a request, found an array of 9"},
      {R"({"merged_adapters":{"ids":["a","b"],"weights":[1]}})", "expected as many `weights` as `ids`"},
      {R"({"merged_adapters":{"ids":["a","b"],"merge_strategy":"ties"}})", "expected the merge_strategy \"linear\""},
      {R"({"merged_adapters":{"weights":[1]}})", "expected names of adapters in `ids`"},
      {R"({"merged_adapters":{"ids":[1]}})", "expected names of adapters in `ids`, found 1"},
      {R"({"lora_path":"a","lora":[{"id":"a","scale":0.5}]})", "`lora`: expected the adapter that `lora_path` names"},
      {R"({"merged_adapters":"a"})", "`merged_adapters`: expected an object"},
      {R"({"lora_path":"a","adapter_id":"b"})",
       "`adapter_id`: expected the adapter that `lora_path` names, found \"b\""},
  };
  for (const auto& [body, message] : cases) EXPECT_THAT(Read(body), HasSubstr(message)) << body;
}

}  // namespace
}  // namespace loramux::adapter_fields_test
