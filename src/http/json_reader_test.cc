#include "http/json_reader.h"

#include <gmock/gmock.h>

namespace loramux::json_reader_test {
namespace {

using testing::HasSubstr;

std::string Repeat(std::string_view piece, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += piece;
  return text;
}

TEST(ParseJson, KeepsOrderAndValues) {
  const auto json = ParseJson(R"({"b":[1,-2,3.5,true,null,"ä\u0000\ud83d\ude00"],"a":{"z":{},"y":[]}})");
  ASSERT_TRUE(json.ok()) << json.error().message;
  EXPECT_EQ(DumpJson(*json), "{\"b\":[1,-2,3.5,true,null,\"ä\\u0000😀\"],\"a\":{\"z\":{},\"y\":[]}}");
}

struct Bad {
  std::string text;
  std::string expected;
};

TEST(ParseJson, RefusesWithThePlace) {
  const Bad cases[] = {
      {"", "byte"},
      {"{", "byte"},
      {"{} {}", "byte"},
      {std::string("{}\0garbage", 10), "a NUL byte at byte 2"},
      {"{\"a\":1,}", "byte"},
      {"{\"a\":NaN}", "byte"},
      {"{\"a\":Infinity}", "byte"},
      {"{\"a\":1e999}", "number overflow"},
      {"\"\xff\xfe\"", "byte"},
      {"\"\xc3\"", "byte"},
      {"\"\\ud800\"", "byte"},
      {"[1,2", "byte"},
      {R"({"a":1,"b":2,"a":3})", "`a`: expected each key once"},
      {R"([{"x":{"k":1,"k":1}}])", "`k`"},
      {Repeat("[", 100000), "at most 64 levels"},
      {Repeat("{\"a\":", 100000), "at most 64 levels"},
      {"\"" + Repeat("x", 1 << 20) + "\n\"", "..."},
  };
  for (const Bad& bad : cases) {
    const auto json = ParseJson(bad.text);
    ASSERT_FALSE(json.ok()) << bad.text.substr(0, 80);
    EXPECT_THAT(json.error().message, HasSubstr(bad.expected));
    EXPECT_EQ(json.error().code, ErrorCode::kInvalidArgument);
    EXPECT_LT(json.error().message.size(), 400u);
    EXPECT_FALSE(DumpJson(json.error().message).empty());
  }
}

TEST(ParseJson, RepeatedKeysAreFoundBeforeTheEndOfTheObject) {
  const std::string keys = "{" + Repeat("\"k\":0,", 100) + "an error behind them";
  EXPECT_THAT(ParseJson(keys).error().message, HasSubstr("`k`: expected each key once"));
  EXPECT_TRUE(ParseJson("{" + Repeat("\"k\":0,", 100) + "\"k\":0}", {.last_key_wins = true}).ok());
}

TEST(ParseJson, StopsOnceTheClientIsGone) {
  std::atomic<bool> gone = false;
  const std::string text = "[" + Repeat("0,", 10'000) + "0]";
  EXPECT_TRUE(ParseJson(text, {.gone = &gone}).ok());
  gone = true;
  EXPECT_EQ(ParseJson(text, {.gone = &gone}).error().code, ErrorCode::kUnavailable);
}

TEST(ParseModelObject, TakesTheLastOfEqualKeys) {
  const auto text = [](std::string_view object) {
    const auto parsed = ParseModelObject(object);
    return parsed.ok() ? DumpJson(*parsed) : parsed.error().message;
  };
  EXPECT_EQ(text(R"({"a":1,"b":{"c":1,"c":[2]},"a":3})"), R"({"a":3,"b":{"c":[2]}})");
  EXPECT_EQ(text(""), "{}");
  EXPECT_THAT(text("[1]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(text(R"({"a":1)"), HasSubstr("byte"));
}

TEST(ParseJson, BoundsDepthAndValuesExactly) {
  EXPECT_TRUE(ParseJson(Repeat("[", 64) + Repeat("]", 64)).ok());
  EXPECT_FALSE(ParseJson(Repeat("[", 65) + Repeat("]", 65)).ok());
  JsonLimits limits;
  limits.max_values = 4;
  EXPECT_TRUE(ParseJson("[1,2,3]", limits).ok());
  EXPECT_FALSE(ParseJson("[1,2,3,4]", limits).ok());
}

TEST(ParseJson, BoundsStringsBeforeItParses) {
  JsonLimits limits;
  limits.max_string = 6;
  limits.why_strings_are_short = "; because";
  for (const char* good : {R"(["123456","",[]])", R"(["\"\"\""])", R"({"abcdef":"abcdef"})", R"(["\\\\\\"])"}) {
    EXPECT_TRUE(ParseJson(good, limits).ok()) << good;
  }
  for (const char* bad : {R"(["1234567"])", R"(["\"\"\"1"])", R"(["", "\u0041\u0041"])", R"({"abcdefg":1})",
                          R"(["1234567)", R"("123456\)"}) {
    EXPECT_THAT(ParseJson(bad, limits).error().message,
                HasSubstr("expected strings of at most 6 characters, found one of "))
        << bad;
    EXPECT_THAT(ParseJson(bad, limits).error().message, HasSubstr("; because"));
  }
}

TEST(ParseJson, ManyKeysTakeNoQuadraticTime) {
  std::string text = "{";
  for (int i = 0; i < 300000; ++i) text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":0";
  const auto json = ParseJson(text + "}");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->size(), 300000u);
}

TEST(DescribeJson, IsShort) {
  EXPECT_EQ(DescribeJson(Json("hot")), "\"hot\"");
  EXPECT_EQ(DescribeJson(Json(Repeat("ä", 100))), "\"" + Repeat("ä", 20) + "...\"");
  EXPECT_EQ(DescribeJson(Json::array({1, 2})), "an array of 2");
  EXPECT_EQ(DescribeJson(Json(nullptr)), "null");
  EXPECT_EQ(DescribeJson(Json(-1.5)), "-1.5");
}

TEST(AsInteger, TakesWholeNumbersOnly) {
  EXPECT_EQ(AsInteger(Json(5)), 5);
  EXPECT_EQ(AsInteger(Json(5.0)), 5);
  EXPECT_EQ(AsInteger(Json(INT64_MIN)), INT64_MIN);
  EXPECT_EQ(AsInteger(Json(5.5)), std::nullopt);
  EXPECT_EQ(AsInteger(Json("5")), std::nullopt);
  EXPECT_EQ(AsInteger(Json(true)), std::nullopt);
  EXPECT_EQ(AsInteger(Json(UINT64_MAX)), std::nullopt);
  EXPECT_EQ(AsInteger(Json(1e300)), std::nullopt);
}

TEST(FieldReader, TheFirstErrorSticksAndNullIsAbsent) {
  const Json object = Json::parse(R"({"a":null,"b":"x","c":7})");
  FieldReader fields(object, "outer.");
  std::int64_t value = 3;
  EXPECT_FALSE(fields.Integer("a", 0, 9, value));
  EXPECT_FALSE(fields.Integer("missing", 0, 9, value));
  EXPECT_TRUE(fields.ok());
  EXPECT_FALSE(fields.Integer("b", 0, 9, value));
  EXPECT_FALSE(fields.Integer("c", 0, 5, value));
  EXPECT_EQ(value, 3);
  EXPECT_TRUE(fields.Integer("c", 0, 9, value));
  EXPECT_EQ(value, 7);
  ASSERT_FALSE(fields.ok());
  EXPECT_EQ(fields.error().message, "`outer.b`: expected an integer from 0 to 9, found \"x\"");
  EXPECT_EQ(fields.error().param, "outer.b");
}

}  // namespace
}  // namespace loramux::json_reader_test
