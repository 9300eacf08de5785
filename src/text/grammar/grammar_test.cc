#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/prng.h"
#include "text/grammar/grammar_compiler.h"
#include "text/grammar/matching_for_test.h"

namespace loramux::grammar_test {
namespace {

using ::testing::HasSubstr;

constexpr TokenId kEos[] = {kByteEos};

std::unique_ptr<GrammarCompiler> MakeCompiler(const Tokenizer& tokenizer, GrammarCompilerOptions options = {},
                                              std::span<const TokenId> eos = kEos) {
  auto compiler = GrammarCompiler::Create(tokenizer, eos, options);
  EXPECT_TRUE(compiler.ok());
  return std::move(*compiler);
}

std::vector<TokenId> TokensOf(std::span<const std::uint32_t> allowed) {
  std::vector<TokenId> tokens;
  for (TokenId id = 0; static_cast<std::size_t>(id) < allowed.size() * 32; ++id) {
    if (Allows(allowed, id)) tokens.push_back(id);
  }
  return tokens;
}

// Tests over a tokenizer of single bytes: a text is allowed or not, whatever its tokens are.
class Language : public ::testing::Test {
 protected:
  std::shared_ptr<const Grammar> Compile(GrammarKind kind, const std::string& text) {
    auto grammar = compiler_->Compile({kind, text, "field"});
    EXPECT_TRUE(grammar.ok()) << text << "\n" << (grammar.ok() ? "" : grammar.error().message);
    return grammar.ok() ? *grammar : nullptr;
  }
  std::string ErrorOf(GrammarKind kind, const std::string& text) {
    auto grammar = compiler_->Compile({kind, text, "field"});
    EXPECT_FALSE(grammar.ok()) << text;
    if (grammar.ok()) return {};
    EXPECT_EQ(grammar.error().param, "field");
    EXPECT_THAT(grammar.error().message, HasSubstr("`field`"));
    return grammar.error().message;
  }
  void ExpectLanguage(GrammarKind kind, const std::string& text, const std::vector<std::string>& inside,
                      const std::vector<std::string>& outside) {
    const auto grammar = Compile(kind, text);
    ASSERT_NE(grammar, nullptr);
    for (const std::string& one : inside) EXPECT_TRUE(Matches(*grammar, one)) << text << "\n" << one;
    for (const std::string& one : outside) EXPECT_FALSE(Matches(*grammar, one)) << text << "\n" << one;
  }

  const Tokenizer tokenizer_ = MakeByteTokenizer();
  const std::unique_ptr<GrammarCompiler> compiler_ = MakeCompiler(tokenizer_);
};

TEST_F(Language, JsonSchema) {
  const std::string schema = R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"enum":["x",null]}},
                                 "required":["a"],"additionalProperties":false})";
  ExpectLanguage(GrammarKind::kJsonSchema, schema, {R"({"a":1})", "{ \"a\" :\n-5 , \"b\":null }"},
                 {"{}", R"({"a":1.5})", R"({"a":1,"c":2})", R"({"a":1,"b":"y"})", "[]", "", R"({"a":1} )"});
  ExpectLanguage(GrammarKind::kCompactJsonSchema, schema, {R"({"a":1,"b":"x"})"}, {R"({"a": 1})"});
  ExpectLanguage(GrammarKind::kJsonSchema, "true", {"1", "[{}]"}, {"x"});
  const std::string spaces(41, ' ');
  ExpectLanguage(GrammarKind::kJsonSchema, schema, {"{" + spaces.substr(1) + R"("a":1})"},
                 {"{" + spaces + R"("a":1})"});
}

// `make` gives part number i.
std::string List(int count, const std::function<std::string(int)>& make) {
  std::string list;
  for (int i = 0; i < count; ++i) list += (i == 0 ? "" : ",") + make(i);
  return list;
}

std::string Pattern(int i) {
  const std::string letter(1, static_cast<char>('a' + i));
  return R"({"type":"string","pattern":".*)" + letter + "." + letter + R"(.*"})";
}

// Schemas of a few hundred bytes would cost the compiler seconds or hours. They are refused at once, and remembered.
TEST_F(Language, ManyPatternsForOneTextAreRefused) {
  const std::string twenty = List(20, Pattern);
  const std::string reference = R"({"$ref":"#/$defs/p0"})";
  const auto chained = [](int i) {
    return "\"p" + std::to_string(i) + R"(":{"pattern":"a.)" + std::to_string(i) + R"(b","$ref":"#/$defs/p)" +
           std::to_string(i + 1) + "\"}";
  };
  const auto property = [](int i) { return R"({"properties":{"x":)" + Pattern(i) + "}}"; };
  const auto choice = [](int i) { return R"({"anyOf":[{"type":"null"},)" + Pattern(i) + "]}"; };
  const auto name = [](int i) { return "\"^n" + std::to_string(i) + "$\":{}"; };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"allOf":[)" + twenty + "]}", "at most 6 that one string must match"},
      {R"({"properties":{"deep":{"items":{"allOf":[)" + twenty + "]}}}}", "at most 6"},
      {R"({"$ref":"#/$defs/p0","$defs":{)" + List(20, chained) + R"(,"p20":{"type":"string"}}})", "at most 6"},
      {R"({"allOf":[)" + List(20, property) + "]}", "at most 6"},
      {R"({"allOf":[)" + List(12, choice) + "]}", "at most 6"},
      {R"({"type":"object","patternProperties":{)" + List(17, name) + "}}", "`patternProperties`: expected at most 16"},
      {R"({"allOf":[{"anyOf":[)" + List(26, Pattern) + R"(]},{"anyOf":[)" + List(26, Pattern) + "]}]}",
       "at most 200 strings that several schemas limit"},
  };
  for (const auto& [schema, expected] : cases) {
    EXPECT_FALSE(compiler_->Has({GrammarKind::kJsonSchema, schema, "field"}));
    EXPECT_THAT(ErrorOf(GrammarKind::kJsonSchema, schema), HasSubstr(expected)) << schema.substr(0, 200);
    EXPECT_TRUE(compiler_->Has({GrammarKind::kJsonSchema, schema, "other"}));
    ErrorOf(GrammarKind::kJsonSchema, schema);
  }
  EXPECT_EQ(compiler_->stats().misses, static_cast<std::int64_t>(cases.size()));
  EXPECT_EQ(compiler_->stats().hits, static_cast<std::int64_t>(cases.size()));
  std::string lark = "start: A\nA: /.*a.a.*/";
  for (const char c : std::string("bcdefghijk")) lark += std::string(" & /.*") + c + "." + c + ".*/";
  EXPECT_THAT(ErrorOf(GrammarKind::kLark, lark), HasSubstr("`&` and `~`: expected at most 5"));
  EXPECT_THAT(ErrorOf(GrammarKind::kLark, R"(start: %json {"allOf":[)" + twenty + "]}"), HasSubstr("at most 6"));
}

TEST_F(Language, PatternsThatPeopleCombineAreServed) {
  ExpectLanguage(GrammarKind::kJsonSchema,
                 R"({"type":"string","minLength":8,"allOf":[{"pattern":"[A-Z]"},{"pattern":"[a-z]"},{"pattern":"[0-9]"},
                     {"pattern":"^.{8,20}$"}]})",
                 {"\"Passw0rd\""}, {"\"password\"", "\"Pass0\""});
  const auto variant = [](int i) {
    return R"({"type":"object","properties":{"kind":{"const":"k)" + std::to_string(i) +
           R"("},"id":{"type":"string","pattern":"^[a-z]+-[0-9]{4}$"}},"required":["kind","id"]})";
  };
  ExpectLanguage(GrammarKind::kJsonSchema, R"({"anyOf":[)" + List(40, variant) + "]}",
                 {R"({"kind":"k7","id":"ab-1234"})"}, {R"({"kind":"k7","id":"ab-12"})"});
  ExpectLanguage(
      GrammarKind::kJsonSchema,
      R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"v":{"type":"string","pattern":"^a+$"},
                     "next":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/n"}]}},"required":["v"]}}})",
      {R"({"v":"aa","next":{"v":"a","next":null}})"}, {R"({"v":"aa","next":{"v":"b"}})"});
  std::string operators = "start: ";  // & and ~ in texts are no operators
  for (int i = 0; i < 20; ++i) operators += std::string(i == 0 ? "" : " | ") + "\"&~" + std::to_string(i) + "\"";
  ExpectLanguage(GrammarKind::kLark, operators, {"&~7"}, {"&"});
}

TEST_F(Language, RegexAndLark) {
  ExpectLanguage(GrammarKind::kRegex, "(foo|b/r)[0-9]{2}", {"foo12", "b/r99"}, {"foo1", "foo123", "xfoo12", ""});
  ExpectLanguage(GrammarKind::kRegex, "(?:\\xC3\\x84|a\\x0Ab)", {"a\nb"}, {"ab"});
  ExpectLanguage(GrammarKind::kLark, "start: \"(\" start \")\" | \"x\"", {"x", "((x))"}, {"((x)", "", "()"});
}

TEST_F(Language, GbnfWithoutRecursionMeansTheSame) {
  ExpectLanguage(GrammarKind::kGbnf, "root ::= [a-z]+ \"end\" | \"\"", {"", "xend", "endend", "enend"}, {"end", "xen"});
  ExpectLanguage(GrammarKind::kGbnf, "root ::= item{2,3} # two or three\nitem ::= \"- \" [^\\n]* \"\\n\"\n",
                 {"- a\n- \n", "- a\n- b\n- c\n"}, {"- a\n", "- a\n- b\n- c\n- d\n", "- a"});
  ExpectLanguage(GrammarKind::kGbnf, "root ::= (\"a\" |\n \"b\")? last\nlast ::= . \"\\x41\\u00e4\\\"\\]\" [\\]\\\\^-]",
                 {"axAä\"]]", "bxAä\"]\\", "\nAä\"]-", "äAä\"]^"}, {"cxAä\"]]", "xAä\"]"});
  ExpectLanguage(GrammarKind::kGbnf, "root ::= \"/*\" [a-z_.+-]* \"*/\"", {"/*a.b-c*/", "/**/"}, {"/*", "/*A*/"});
}

TEST_F(Language, GbnfWithRecursion) {
  ExpectLanguage(GrammarKind::kGbnf, "root ::= \"(\" root \")\" | \"x\" |", {"", "x", "(x)", "(())"},
                 {"(x", ")", "xx"});
  ExpectLanguage(GrammarKind::kGbnf, "root ::= root \"+\" root | [0-9]+", {"1", "12+3", "1+2+3"}, {"+", "1+", ""});
  const std::string json = R"(root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
)";
  ExpectLanguage(GrammarKind::kGbnf, json,
                 {R"({"a":[1,-2.5e3,{"b":null}], "ü\n":"x\u00e9"})", "{\n  \"a\":true\n}", "{}"},
                 {"", "[]", R"({"a":01})", R"({"a" 1})", R"({"a":1,})", "{\"a\":\"\t\"}"});
}

TEST_F(Language, ErrorsNameWhatIsWrong) {
  std::string panics = R"({"type":"integer","minimum":")";  // llguidance cuts this text within a character
  for (int i = 0; i < 120; ++i) panics += "ä";
  panics += "\"}";
  const std::tuple<GrammarKind, const char*, const char*> cases[] = {
      {GrammarKind::kJsonSchema, R"({"uniqueItems":true,"type":"array"})", "uniqueItems"},
      {GrammarKind::kJsonSchema, R"({"x-guidance":{}})", "x-guidance"},
      {GrammarKind::kJsonSchema, R"({"type":"string","pattern":"^\\cC$"})", "`pattern`"},
      {GrammarKind::kJsonSchema, R"({"maximum":18446744073709551615})", "`maximum`"},
      {GrammarKind::kJsonSchema, R"({"enum":[]})", "`enum`"},
      {GrammarKind::kJsonSchema, "{", "JSON"},
      {GrammarKind::kJsonSchema, "[]", "object"},
      {GrammarKind::kJsonSchema, panics.c_str(), "the compiler of grammars failed"},
      {GrammarKind::kRegex, "a(?=b)", "look-around"},
      {GrammarKind::kLark, "start: thing", "thing"},
      {GrammarKind::kLark, "start: start", "no text can follow"},
      {GrammarKind::kGbnf, "root ::= a\nb ::= \"\"", "'a' is not defined"},
      {GrammarKind::kGbnf, "b ::= \"x\"", "root"},
      {GrammarKind::kGbnf, "root ::= \"x\"\nroot ::= \"y\"", "twice"},
      {GrammarKind::kGbnf, "root ::= \"x\"\n\n <[1]>", "line 3"},
      {GrammarKind::kGbnf, "root ::= \"x", "the end"},
      {GrammarKind::kGbnf, "root ::= [z-a]", "ascending"},
      {GrammarKind::kGbnf, "root ::= \"\\q\"", "escape"},
      {GrammarKind::kGbnf, "root ::= \"x\"{9999}", "2000 repetitions"},
      {GrammarKind::kGbnf, "root ::= (\"x\"", ")"},
      {GrammarKind::kGbnf, "root = \"x\"", "::="},
  };
  for (const auto& [kind, text, part] : cases) EXPECT_THAT(ErrorOf(kind, text), HasSubstr(part)) << text;
}

// What llguidance would refuse although it forbids nothing, or forbids what no client means.
TEST_F(Language, KeywordsThatForbidNothingAreLeftOut) {
  const auto kind = GrammarKind::kJsonSchema;
  for (const char* idle : {R"("uniqueItems":false)",
                           R"("required":null)",
                           R"("enum":null)",
                           R"("properties":null)",
                           R"("pattern":null)",
                           R"("additionalProperties":null)",
                           R"("minLength":null)",
                           R"("not":false)",
                           R"("propertyNames":{"type":"string"})",
                           R"("propertyNames":true)",
                           R"("dependentRequired":{})",
                           R"("dependentSchemas":{})",
                           R"("dependencies":{})",
                           R"("unevaluatedProperties":true)",
                           R"("unevaluatedItems":{})",
                           R"("if":{"type":"object"})",
                           R"("then":false)",
                           R"("else":false)",
                           R"("minContains":2)",
                           R"("format":"int64")",
                           R"("format":"no-such-format")",
                           R"("$dynamicAnchor":"x")"}) {
    ExpectLanguage(kind, std::string(R"({"type":["array","string"],)") + idle + "}", {"[]", R"(["a","a"])", "\"x\""},
                   {"1"});
    ExpectLanguage(kind,
                   std::string(R"({"type":"object","properties":{"a":{"items":{"type":"string",)") + idle +
                       R"(}}},"required":["a"],"additionalProperties":false})",
                   {R"({"a":["x"]})"}, {R"({"a":[1]})", "{}"});
  }
  for (const char* demand :
       {R"("uniqueItems":true)", R"("not":{})", R"("propertyNames":{"maxLength":3})",
        R"("dependentRequired":{"a":["b"]})", R"("unevaluatedProperties":false)",
        R"("if":{"type":"object"},"then":{"minProperties":1})", R"("contains":{},"minContains":2)"}) {
    ErrorOf(kind, std::string("{") + demand + "}");
  }
  ErrorOf(kind, R"({"type":null})");
  ExpectLanguage(kind, R"({"const":null})", {"null"}, {"1"});
}

TEST_F(Language, KnownFormatsAreDemands) {
  const std::pair<const char*, const char*> cases[] = {{"date", "2024-02-29"},
                                                       {"date-time", "2024-02-29T10:00:00Z"},
                                                       {"duration", "P3D"},
                                                       {"email", "a@b.c"},
                                                       {"hostname", "a.example"},
                                                       {"ipv4", "127.0.0.1"},
                                                       {"ipv6", "::1"},
                                                       {"time", "10:00:00Z"},
                                                       {"uri", "https://a.b/c?d"},
                                                       {"uuid", "01234567-89ab-cdef-0123-456789abcdef"}};
  for (const auto& [format, text] : cases) {
    ExpectLanguage(GrammarKind::kJsonSchema, std::string(R"({"type":"string","format":")") + format + "\"}",
                   {"\"" + std::string(text) + "\""}, {"\"? ?\""});
  }
}

// Texts for people may be long and have many question marks, and names of properties may be words of schemas.
TEST_F(Language, TextsForPeopleAreLeftOut) {
  const std::string text = std::string(3000, '?') + std::string(150'000, 'x');
  const std::string texts = R"("description":")" + text + R"(","title":"t(((","default":{"type":1},"examples":[")" +
                            text + R"("],"$comment":"c")";
  ExpectLanguage(GrammarKind::kJsonSchema,
                 R"({"type":"object",)" + texts +
                     R"(,"required":["title","enum"],"properties":{"title":{"type":"integer",)" + texts +
                     R"(},"enum":{"enum":[{"title":"t"}]}}})",
                 {R"({"title":1,"enum":{"title":"t"}})"}, {R"({"title":"t","enum":{}})", R"({"title":1,"enum":{}})"});
  EXPECT_THAT(ErrorOf(GrammarKind::kJsonSchema, R"({"description":")" + std::string(2 << 20, 'x') + "\"}"),
              HasSubstr("bytes"));
}

TEST_F(Language, ReferencesMayBeEscaped) {
  const auto kind = GrammarKind::kJsonSchema;
  const auto schema = [](std::string_view name, std::string_view reference) {
    return R"({"$defs":{")" + std::string(name) +
           R"(":{"type":"integer","format":"int32"}},"items":{"$ref":"#/$defs/)" + std::string(reference) +
           R"("},"type":"array"})";
  };
  const std::pair<const char*, const char*> cases[] = {{"a/b", "a~1b"},
                                                       {"a~b", "a~0b"},
                                                       {"List[int]", "List%5Bint%5D"},
                                                       {"List[int]", "List[int]"},
                                                       {"a%b", "a%25b"},
                                                       {"~1", "~01"},
                                                       {"a b", "a%20b"},
                                                       {"ä", "%C3%A4"},
                                                       {"a/b~c%d", "a~1b~0c%25d"},
                                                       {"a%5Bb", "a%5Bb"},
                                                       {"100%", "100%"}};
  for (const auto& [name, reference] : cases) {
    ExpectLanguage(kind, schema(name, reference), {"[1,2]"}, {"[\"x\"]"});
  }
  EXPECT_THAT(ErrorOf(kind, schema("a", "b~1c")), HasSubstr("b~1c"));
  // Targets that are moved, within each other and in places that no keyword names.
  ExpectLanguage(
      kind,
      R"({"components":{"a/b":{"type":"object","required":["c/d"],"uniqueItems":false,"additionalProperties":false,
                    "properties":{"c/d":{"anyOf":[{"type":"null"},{"$ref":"#/components/a~1b"}]}}}},"moved":1,
                    "type":"array","prefixItems":[{"$ref":"#/components/a~1b"},
                    {"$ref":"#/components/a~1b/properties/c~1d"}],"items":false})",
      {R"([{"c/d":{"c/d":null}},null])", R"([{"c/d":null},{"c/d":null}])"}, {R"([null])", R"([{"c/d":1}])"});
}

// As vLLM takes it: several branches may match.
TEST_F(Language, OneOfIsAnyOf) {
  ExpectLanguage(GrammarKind::kJsonSchema,
                 R"({"oneOf":[{"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":false},
                    {"type":"object","properties":{"b":{"type":"integer"}},"additionalProperties":false}]})",
                 {R"({"a":1})", R"({"b":1})", "{}"}, {R"({"a":1,"b":1})", "1"});
}

// An answer that must call tools. Arguments are objects, whatever else the schema allows.
TEST_F(Language, ToolCalls) {
  const auto demand = [](const std::string& schema, const std::string& more = R"(,"between":null)") {
    return R"({"calls":[{"name":"f","before":"<f>","schema":)" + schema +
           R"(,"after":"</f>"}],"first":"[","last":"]")" + more + "}";
  };
  const char* schemas[] = {"null",
                           "{}",
                           R"({"description":"d"})",
                           R"({"$ref":"#/$defs/A","$defs":{"A":{}}})",
                           R"({"$ref":"#/$defs/A~1B","$defs":{"A/B":{"type":["object","array"]}}})",
                           R"({"anyOf":[{"type":"string"},{"type":"object"}]})",
                           R"({"oneOf":[{"type":"object"},{"type":"object","minProperties":1},{"type":"null"}]})",
                           R"({"allOf":[{"properties":{"a":{"type":"integer"}}},{}]})",
                           R"({"additionalProperties":{"type":"integer"}})",
                           R"({"properties":{"a":{"type":"integer"}}})",
                           R"({"type":["object","null"]})",
                           R"({"type":["string","object"],"title":"t"})",
                           R"({"required":null})",
                           R"({"enum":["f",{},{"a":1}]})"};
  for (const char* schema : schemas) {
    ExpectLanguage(
        GrammarKind::kToolCalls, demand(schema), {R"([<f>{"a":1}</f>])", "[<f>{}</f>]"},
        {"[<f>\"f\"</f>]", "[<f>null</f>]", "[<f>1</f>]", "[<f>[]</f>]", "[<f>{}</f><f>{}</f>]", "[]", "{}"});
  }
  ExpectLanguage(GrammarKind::kToolCalls, demand("{}", R"(,"between":";")"),
                 {"[<f>{}</f>]", "[<f>{}</f>;<f>{\"x\":[]}</f>]"}, {"[<f>{}</f><f>{}</f>]"});
}

// Errors speak of the tool, not of the grammar around its schema.
TEST_F(Language, ErrorsOfToolCallsNameTheTool) {
  const auto error = [this](std::initializer_list<const char*> schemas) {
    std::string calls;
    char name = 'a';
    for (const char* schema : schemas) {
      calls += calls.empty() ? "" : ",";
      calls += std::string(R"({"name":"tool )") + name++ + R"(","before":"b","after":"a","schema":)" + schema + "}";
    }
    return ErrorOf(GrammarKind::kToolCalls, R"({"calls":[)" + calls + R"(],"first":"","between":"","last":""})");
  };
  const std::pair<const char*, const char*> cases[] = {
      {R"({"not":{}})", "not"},
      {R"x({"properties":{"x":{"pattern":"^(?=a)"}}})x", "`pattern` or `patternProperties`: "},
      {R"({"properties":{"x":{"type":"integer","minimum":"1"}}})", "minimum"},
      {R"({"$ref":"#/$defs/none"})", "none"},
      {R"({"type":"string"})", "expected the type \"object\", found \"string\""},
      {R"({"type":["string","null"]})", "expected the type \"object\""},
      {R"({"x-guidance":{}})", "x-guidance"},
      {"[]", "expected a JSON schema"}};
  for (const auto& [schema, part] : cases) {
    for (const std::string& message : {error({schema}), error({"{}", "{}", schema, "{}"})}) {
      EXPECT_THAT(message, HasSubstr(part));
      EXPECT_THAT(message, HasSubstr("the parameters of the tool \"tool "));
      for (const char* inner : {"call_", "arguments_", "%json", "at ", " | ", "compile"}) {
        EXPECT_THAT(message, testing::Not(HasSubstr(inner))) << schema;
      }
    }
    EXPECT_THAT(error({"{}", "{}", schema, "{}"}), HasSubstr("tool c"));
  }
}

// An automaton of remainders has a state for each: one of a million took seconds, and one of four million a gigabyte.
TEST_F(Language, LargeDivisorsAreRefused) {
  const auto number = [](std::string_view divisor) {
    return R"({"type":"number","multipleOf":)" + std::string(divisor) + "}";
  };
  for (const std::string_view divisor : {"7", "0.25", "10000", "1e3", "0.0010"}) {
    EXPECT_TRUE(compiler_->Compile({GrammarKind::kJsonSchema, number(divisor), ""}).ok()) << divisor;
  }
  for (const std::string_view divisor :
       {"10007", "1999993", "1e5", "4294967295", "123456789012345678901234567890", "1e999"}) {
    EXPECT_THAT(ErrorOf(GrammarKind::kJsonSchema, number(divisor)), HasSubstr("multipleOf")) << divisor;
  }
  EXPECT_THAT(ErrorOf(GrammarKind::kJsonSchema, R"({"allOf":[{"multipleOf":997},{"multipleOf" : 991}]})"),
              HasSubstr("least common multiple"));
  EXPECT_THAT(ErrorOf(GrammarKind::kJsonSchema, R"({"multiple\u004ff":99991})"), HasSubstr("multipleOf"));
  EXPECT_THAT(ErrorOf(GrammarKind::kLark, R"(start: %json {"type":"integer","multipleOf":99991})"),
              HasSubstr("multipleOf"));
}

// Neither objects of JSON nor escaped characters are repetitions.
TEST_F(Language, ManyBracesAreNoRepetitions) {
  std::string words = "root ::= ";
  for (int i = 0; i < 260; ++i) words += (i == 0 ? "\"w" : " | \"w") + std::to_string(i) + " is a b c d e f\"";
  EXPECT_NE(Compile(GrammarKind::kGbnf, words), nullptr);
  std::string properties;
  for (int i = 0; i < 2100; ++i) properties += (i == 0 ? "\"p" : ",\"p") + std::to_string(i) + "\":{}";
  EXPECT_NE(Compile(GrammarKind::kLark, "start: %json {\"type\":\"object\",\"properties\":{" + properties + "}}"),
            nullptr);
  std::string hidden;
  for (int i = 0; i < 2100; ++i) hidden += R"(\\x{1,2})";  // a backslash, and one or two letters
  EXPECT_THAT(ErrorOf(GrammarKind::kRegex, hidden), HasSubstr("repetitions"));
}

// A chain of rules, each of which is the one before: none may be kept for each of them.
TEST_F(Language, RulesThatRepeatALongOneAreRefused) {
  std::string text = "r0 ::= \"" + std::string(30'000, '!') + "\"\n";
  for (int i = 1; i < 400; ++i) text += "r" + std::to_string(i) + " ::= r" + std::to_string(i - 1) + "\n";
  EXPECT_THAT(ErrorOf(GrammarKind::kGbnf, text + "root ::= r399"), HasSubstr("written out"));
}

TEST_F(Language, HostileTextsAreRefused) {
  std::string doubling = "root ::= r0\n";
  for (int i = 0; i < 60; ++i) {
    const std::string next = "r" + std::to_string(i + 1);
    doubling += "r" + std::to_string(i) + " ::= " + next + " " + next + "\n";
  }
  EXPECT_THAT(ErrorOf(GrammarKind::kGbnf, doubling + "r60 ::= \"a\"?\n"), HasSubstr("written out"));
  EXPECT_THAT(ErrorOf(GrammarKind::kRegex, std::string(300, '(') + "a" + std::string(300, ')')), HasSubstr("nested"));
  std::string optional;
  for (int i = 0; i < 3000; ++i) optional += "a?";
  EXPECT_THAT(ErrorOf(GrammarKind::kRegex, optional), HasSubstr("repetitions"));
  EXPECT_THAT(ErrorOf(GrammarKind::kRegex, std::string(200'000, 'a')), HasSubstr("bytes"));
  std::string deep;
  for (int i = 0; i < 500; ++i) deep += R"({"items":)";
  EXPECT_THAT(ErrorOf(GrammarKind::kJsonSchema, deep + "true" + std::string(500, '}')), HasSubstr("recursion limit"));
}

TEST_F(Language, AfterTheEndOnlyTheEndIsAllowed) {
  const auto matcher = *Compile(GrammarKind::kRegex, "ab")->Begin();
  matcher->Advance(TokenOfByte('a'));
  matcher->Advance(TokenOfByte('b'));
  EXPECT_THAT(TokensOf(matcher->Allowed()), ::testing::ElementsAre(kByteEos));
  EXPECT_EQ(matcher->failure(), nullptr);
}

TEST_F(Language, ATokenThatIsNotAllowedFailsTheMatcherAlone) {
  const auto grammar = Compile(GrammarKind::kRegex, "ab");
  const auto wrong = *grammar->Begin(), right = *grammar->Begin();
  wrong->Advance(TokenOfByte('x'));
  EXPECT_TRUE(wrong->Allowed().empty());
  ASSERT_NE(wrong->failure(), nullptr);
  EXPECT_EQ(wrong->failure()->code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(TokensOf(right->Allowed()), ::testing::ElementsAre(TokenOfByte('a')));
}

TEST_F(Language, MatchersOfManyThreadsDoNotDisturbEachOther) {
  const auto grammar = Compile(GrammarKind::kRegex, "(a[0-9]{3}|b[x-z]{2})*");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&grammar] {
      for (int round = 0; round < 20; ++round) EXPECT_TRUE(Matches(*grammar, "a123bxya000bzz"));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GrammarCompiler, KeepsTheGrammarsUsedLast) {
  const Tokenizer tokenizer = MakeByteTokenizer();
  const auto compiler = MakeCompiler(tokenizer, {.max_grammars = 2});
  const auto compile = [&](const char* regex) { return *compiler->Compile({GrammarKind::kRegex, regex, "f"}); };
  const auto first = compile("a");
  compile("b");
  EXPECT_EQ(compile("a"), first);
  compile("c");  // "b" goes
  EXPECT_EQ(compile("a"), first);
  compile("b");
  EXPECT_EQ(compiler->stats().hits, 2);
  EXPECT_EQ(compiler->stats().misses, 4);
  EXPECT_EQ(compiler->stats().grammars, 2u);
  EXPECT_FALSE(compiler->Compile({GrammarKind::kLark, "a", "f"}).ok());  // the kind is part of the key
}

TEST(GrammarCompiler, IsBoundedByTheClock) {
  const Tokenizer tokenizer = MakeByteTokenizer();
  const auto compiler = MakeCompiler(tokenizer, {.max_time = std::chrono::milliseconds(1)});
  const std::string ranges = List(1000, [](int i) {
    return R"({"type":"integer","minimum":)" + std::to_string(37 * i) + R"(,"maximum":)" +
           std::to_string(100'003 * i + 50) + "}";
  });
  const OutputConstraint slow{GrammarKind::kJsonSchema, R"({"items":{"anyOf":[)" + ranges + "]}}", "f"};
  const auto refused = compiler->Compile(slow);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("compiling it takes more than 1 ms"));
  EXPECT_TRUE(compiler->Has(slow));
  EXPECT_EQ(compiler->Compile(slow).error().message, refused.error().message);
  EXPECT_EQ(compiler->stats().misses, 1);
  const auto patient = MakeCompiler(tokenizer);  // the thread that sleeps disturbs no other
  EXPECT_TRUE(patient->Compile({GrammarKind::kRegex, "a*", "f"}).ok());
}

TEST(GrammarCompiler, IsBoundedByBytes) {
  const Tokenizer tokenizer = MakeByteTokenizer();
  const auto unbounded = MakeCompiler(tokenizer);
  ASSERT_TRUE(unbounded->Compile({GrammarKind::kRegex, "abc", "f"}).ok());
  const std::size_t bytes = unbounded->stats().bytes;
  ASSERT_GT(bytes, 0u);
  for (const GrammarCompilerOptions options :
       {GrammarCompilerOptions{.max_bytes = 2 * bytes + 100}, GrammarCompilerOptions{.max_text_bytes = 8}}) {
    const auto compiler = MakeCompiler(tokenizer, options);
    for (const char* regex : {"abc", "abd", "abe", "abf"}) {
      ASSERT_TRUE(compiler->Compile({GrammarKind::kRegex, regex, "f"}).ok());
    }
    EXPECT_EQ(compiler->stats().grammars, 2u);
  }
}

TEST(GrammarCompiler, GrammarsAndMatchersOutliveIt) {
  const Tokenizer tokenizer = MakeByteTokenizer();
  auto compiler = MakeCompiler(tokenizer);
  const auto grammar = *compiler->Compile({GrammarKind::kRegex, "ab", "f"});
  const auto matcher = *grammar->Begin();
  compiler = nullptr;
  matcher->Advance(TokenOfByte('a'));
  EXPECT_THAT(TokensOf(matcher->Allowed()), ::testing::ElementsAre(TokenOfByte('b')));
  EXPECT_THAT(TokensOf((*grammar->Begin())->Allowed()), ::testing::ElementsAre(TokenOfByte('a')));
}

TEST(GrammarCompiler, NeedsAnEnd) {
  const Tokenizer tokenizer = MakeByteTokenizer();
  EXPECT_FALSE(GrammarCompiler::Create(tokenizer, {}).ok());
  constexpr TokenId kTwo[] = {0, kByteEos};
  const auto compiler = MakeCompiler(tokenizer, {}, kTwo);
  const auto matcher = *(*compiler->Compile({GrammarKind::kRegex, "a?", "f"}))->Begin();
  EXPECT_THAT(TokensOf(matcher->Allowed()), ::testing::ElementsAre(0, kByteEos, TokenOfByte('a')));
}

// Tokenizers as models have them: whatever is sampled, the decoded text is a document.
class RealTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(RealTokenizer, DecodesToDocuments) {
  const std::string path = std::string(LORAMUX_SOURCE_DIR) + "/src/text/testdata/" + GetParam();
  std::ifstream in(path);
  const std::string json((std::istreambuf_iterator<char>(in)), {});
  const auto tokenizer = Tokenizer::Parse(json, path);
  ASSERT_TRUE(tokenizer.ok());
  const TokenId eos[] = {static_cast<TokenId>(tokenizer->VocabSize())};  // beyond the tokenizer, as some models have it
  const auto compiler = MakeCompiler(*tokenizer, {}, eos);
  const auto grammar = *compiler->Compile(
      {GrammarKind::kJsonSchema,
       R"({"type":"array","items":{"type":"string","maxLength":6},"minItems":1,"maxItems":3})", "f"});
  Prng random(7);
  for (int round = 0; round < 20; ++round) {
    const auto matcher = *grammar->Begin();
    std::vector<TokenId> output;
    while (true) {
      const std::vector<TokenId> allowed = TokensOf(matcher->Allowed());
      ASSERT_FALSE(allowed.empty());
      ASSERT_LT(output.size(), 2000u);
      const TokenId token = allowed[random.NextBelow(allowed.size())];
      if (token == eos[0]) break;
      output.push_back(token);
      matcher->Advance(token);
    }
    const auto text = tokenizer->Decode(output, /*skip_special_tokens=*/true);
    ASSERT_TRUE(text.ok());
    const auto document = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(document.is_array()) << *text;
    EXPECT_GE(document.size(), 1u);
    EXPECT_LE(document.size(), 3u);
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, RealTokenizer, ::testing::Values("byte_level.json", "sentencepiece.json"));

}  // namespace
}  // namespace loramux::grammar_test
