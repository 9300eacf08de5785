#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "server/output/channels.h"
#include "server/output/formats.h"
#include "server/output/json_scanner.h"
#include "server/output/python_call.h"
#include "server/output/reasoning.h"

namespace loramux::output_parser_test {
namespace {

using Kind = OutputEvent::Kind;

std::shared_ptr<const ToolSet> Tools() {
  auto tools = std::make_shared<ToolSet>();
  tools->Add("weather", Json::parse(R"({"type":"object","properties":{"city":{"type":"string"},
      "days":{"type":"integer"},"exact":{"type":"boolean"},"tags":{"type":"array"},
      "unit":{"enum":["C","F"]},"note":{"type":["string","null"]}}})"));
  tools->Add("ping", Json());
  return tools;
}

std::unique_ptr<OutputParser> Make(const std::string& format) {
  if (format == "plain") return std::make_unique<ContentParser>();
  return std::make_unique<CallParser>(*FindToolFormat(format)->grammar, Tools());
}

std::unique_ptr<OutputParser> MakeThinking(const std::string& format, ReasoningParser::Start start) {
  return std::make_unique<ReasoningParser>(start, Make(format));
}

// Writes events briefly: content as it is, (reasoning), #name{arguments}. for a complete call, ! for a broken one.
std::string Written(const std::vector<OutputEvent>& events) {
  std::string text;
  for (const OutputEvent& event : events) {
    if (event.kind == Kind::kContent || event.kind == Kind::kArguments) text += event.text;
    if (event.kind == Kind::kReasoning) text += "(" + event.text + ")";
    if (event.kind == Kind::kCallStart) text += "#" + event.text;
    if (event.kind == Kind::kCallEnd) text += ".";
    if (event.kind == Kind::kCallBroken) {
      text += "!" + event.text.substr(0, event.sent) + "|" + event.text.substr(event.sent) + "!";
    }
  }
  return text;
}

// Every piece that comes between two others of its kind joins them, as a client does.
std::string Read(std::unique_ptr<OutputParser> parser, const std::vector<std::string>& pieces, bool cut = false) {
  OutputEvents all;
  const auto take = [&all](OutputEvents& events) {
    for (const OutputEvent& event : events.Take()) {
      if (event.kind == Kind::kCallBroken) {
        all.Break(event.call, event.text, event.sent);
      } else {
        all.Add(event.kind, event.text, event.call);
      }
    }
  };
  OutputEvents events;
  for (const std::string& piece : pieces) {
    parser->Push(piece, events);
    take(events);
  }
  parser->Finish(events, cut);
  take(events);
  return Written(all.list());
}

std::vector<std::string> Bytewise(const std::string& text) {
  std::vector<std::string> pieces;
  for (const char c : text) pieces.emplace_back(1, c);
  return pieces;
}

struct Case {
  const char* text;
  const char* expected;
};

void Check(const std::string& format, const std::vector<Case>& cases) {
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(Read(Make(format), {text}), expected) << format << ": " << text;
  }
}

TEST(OutputParser, Hermes) {
  Check("hermes",
        {{"Just text.\n", "Just text.\n"},
         {"", ""},
         {R"(<tool_call>{"name": "weather", "arguments": {"city": "Zürich"}}</tool_call>)",
          R"(#weather{"city": "Zürich"}.)"},
         {"Let me see.\n\n<tool_call>\n{\"name\":\"ping\",\"arguments\":{}}\n</tool_call>\n", "Let me see.#ping{}."},
         {"<tool_call>{\"name\":\"ping\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"name\":\"weather\","
          "\"arguments\":{\"days\":1}}\n</tool_call>",
          "#ping{}.#weather{\"days\":1}."},
         {R"(<tool_call>{"arguments": {"a": [1, 2.5e3, {"b": "}"}]}, "name": "x"}</tool_call> So.)",
          R"(#x{"a": [1, 2.5e3, {"b": "}"}]}. So.)"},
         {R"(<tool_call>{"name": "x"}</tool_call>)", "#x{}."},
         {R"(<tool_call>{"name": "x", "arguments": null}</tool_call>)", "#x{}."},
         {R"(<tool_call>{"name": "x", "id": 12, "arguments": " {\"a\": 1}\n"})", R"(#x{"a": 1}.)"},
         {R"(<tool_call>{"name": "\u0078", "parameters": {}})", "#x{}."}});
}

TEST(OutputParser, WhatIsNoCallIsContent) {
  Check(
      "hermes",
      {{"a < b, <tool and <tool_call", "a < b, <tool and <tool_call"},
       {"</tool_call>", "</tool_call>"},
       {"<tool_call>nothing</tool_call>", "<tool_call>nothing</tool_call>"},
       {"<tool_call>", "<tool_call>"},
       {" \n<tool_call> x", " \n<tool_call> x"},
       {"<tool_call><tool_call>{\"name\":\"x\"}</tool_call>", "<tool_call>#x{}."},
       {R"(<tool_call>{"name": 5}</tool_call>)", R"(<tool_call>{"name": 5}</tool_call>)"},
       {R"(<tool_call>{"name": "x", "name": "y"}</tool_call>)", R"(<tool_call>{"name": "x", "name": "y"}</tool_call>)"},
       {R"(<tool_call>{"name": "x", "arguments": [1]})", R"(<tool_call>{"name": "x", "arguments": [1]})"},
       {R"(<tool_call>{"name": "x", "arguments": "[1]"})", R"(<tool_call>{"name": "x", "arguments": "[1]"})"},
       {R"(<tool_call>{"arguments": {}}</tool_call>)", R"(<tool_call>{"arguments": {}}</tool_call>)"},
       {R"(<tool_call>{"name": "")", R"(<tool_call>{"name": "")"},
       {R"(<tool_call>{"name": ""}x)", R"(<tool_call>{"name": ""}x)"}});
}

TEST(OutputParser, ABrokenCallGivesItsTextBack) {
  Check("hermes", {{R"(<tool_call>{"name": "x", "arguments": {"a": tru)",
                    R"(#x{"a": tru!<tool_call>{"name": "x", "arguments": {"a": tru|!)"},
                   {R"(<tool_call>{"name": "x", "arguments": {"a": 01}})",
                    R"(#x{"a": 0!<tool_call>{"name": "x", "arguments": {"a": 0|!1}})"},
                   {R"(<tool_call>{"name": "x", "arguments": {"a": 1} oh)",
                    R"(#x{"a": 1!<tool_call>{"name": "x", "arguments": {"a": 1|} !oh)"},
                   {R"(<tool_call>{"name": "x", "arguments": {]<tool_call>{"name": "y"})",
                    R"(#x{!<tool_call>{"name": "x", "arguments": {|!]#y{}.)"}});
}

TEST(OutputParser, Llama) {
  Check(
      "llama3_json",
      {{R"({"name": "weather", "parameters": {"city": "Bern"}})", R"(#weather{"city": "Bern"}.)"},
       {"\n {\"type\": \"function\", \"name\": \"ping\", \"parameters\": {}}\n", "#ping{}."},
       {R"({"name": "a", "parameters": {}}; {"name": "b", "arguments": {"x": 1}})", R"(#a{}.#b{"x": 1}.)"},
       {R"({"name": "a", "parameters": {}}; well)", "#a{}.; well"},
       {R"(<|python_tag|>{"name": "a", "parameters": {}})", "#a{}."},
       {R"(I look. <|python_tag|>weather.call(city="Bern", days=2))", R"(I look.#weather{"city": "Bern", "days": 2}.)"},
       {R"(<|python_tag|>print("x"))", R"(<|python_tag|>print("x"))"},
       {R"({"name": "Bob", "age": 3})", R"({"name": "Bob", "age": 3})"},
       {R"({"name": "Bob"})", R"({"name": "Bob"})"},
       {R"({"answer": {"name": "x", "parameters": {}}})", R"({"answer": {"name": "x", "parameters": {}}})"},
       {R"(See {"name": "x", "parameters": {}})", R"(See {"name": "x", "parameters": {}})"},
       {"{", "{"},
       {" {} ", " {} "}});
}

TEST(OutputParser, LlamaRunsCodeIfThereIsAnInterpreter) {
  auto tools = std::make_shared<ToolSet>();
  tools->Add("code_interpreter", Json());
  const auto parser = [&] { return std::make_unique<CallParser>(kLlamaCalls, tools); };
  EXPECT_EQ(Read(parser(), {"<|python_tag|>import os\nprint(\"x\")"}),
            R"x(#code_interpreter{"code": "import os\nprint(\"x\")"}.)x");
  EXPECT_EQ(Read(parser(), {"<|python_tag|>"}), "<|python_tag|>");
}

TEST(OutputParser, Mistral) {
  Check(
      "mistral",
      {{R"([TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Bern"}}])", R"(#weather{"city": "Bern"}.)"},
       {R"([TOOL_CALLS][{"name": "a", "arguments": {}}, {"name": "b", "arguments": {"x": []}, "id": "123456789"}] ok)",
        R"(#a{}.#b{"x": []}. ok)"},
       {R"([TOOL_CALLS]weather{"city": "Bern"})", R"(#weather{"city": "Bern"}.)"},
       {R"(Hm. [TOOL_CALLS]a{"x": 1}[TOOL_CALLS]b[ARGS]{}[TOOL_CALLS]c[CALL_ID]abc123[ARGS]{"y": 2})",
        R"(Hm.#a{"x": 1}.#b{}.#c{"y": 2}.)"},
       {"[TOOL_CALLS]", "[TOOL_CALLS]"},
       {"[TOOL_CALLS] nothing here", "[TOOL_CALLS] nothing here"},
       {"[TOOL_CALLS] [{\"name\": \"a\", \"arguments\": {}}, oops", "#a{}., oops"},
       {"[TOOL_CALLS]a[ARG]{}", "[TOOL_CALLS]a[ARG]{}"},
       {"[TOOL_CALLS]a[TOOL_CALLS]b{}", "[TOOL_CALLS]a#b{}."},
       {"[TOOL] [TOOL_CALL", "[TOOL] [TOOL_CALL"}});
}

TEST(OutputParser, Granite) {
  Check(
      "granite",
      {{R"(<|tool_call|>[{"name": "weather", "arguments": {"city": "Bern"}}])", R"(#weather{"city": "Bern"}.)"},
       {R"(<tool_call>[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {"x": 1}}])", R"(#a{}.#b{"x": 1}.)"},
       {R"(Well. <|tool_call|> {"name": "a", "arguments": {}})", "Well.#a{}."},
       {"<|tool_call|>[]", "<|tool_call|>[]"},
       {"<|tool_call|> nothing", "<|tool_call|> nothing"},
       {"<|tool_call|>[{\"name\": \"a\", \"arguments\": {}}, oops", "#a{}., oops"}});
}

TEST(OutputParser, PhiMini) {
  Check("phi4_mini_json",
        {{R"(functools[{"name": "weather", "arguments": {"city": "Bern"}}])", R"(#weather{"city": "Bern"}.)"},
         {R"(functools[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {"x": 1}}])", R"(#a{}.#b{"x": 1}.)"},
         {R"(<|tool_call|>[{"name": "a", "arguments": {}}]<|/tool_call|>)", "#a{}."},
         {"import functools", "import functools"},
         {"functools[0] is no call", "functools[0] is no call"}});
}

TEST(OutputParser, QwenCoder) {
  Check("qwen3_coder",
        {{"<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
          "</function>\n</tool_call>",
          R"(#weather{"city": "Bern", "days": 3}.)"},
         {"Well.\n<function=ping>\n</function>", "Well.#ping{}."},
         {"<tool_call><function=weather><parameter=city>a \"b\"\n\n</p></parameter><parameter=exact>True</parameter>"
          "<parameter=tags>[1, "
          "\"x\"]</parameter></function></tool_call><tool_call><function=ping></function></tool_call>",
          R"(#weather{"city": "a \"b\"\n\n</p>", "exact": true, "tags": [1,"x"]}.#ping{}.)"},
         {"<function=weather><parameter=city>5</parameter><parameter=days>five</parameter><parameter=note>null</"
          "parameter>"
          "<parameter=unit>C</parameter><parameter=other>7</parameter></function>",
          R"(#weather{"city": "5", "days": "five", "note": null, "unit": "C", "other": "7"}.)"},
         {"<function=weather><parameter=city></parameter></function>", R"(#weather{"city": ""}.)"},
         {"<function=ping>\n</tool_call>", "#ping{}."},
         {"<tool_call>{}</tool_call>", "<tool_call>{}</tool_call>"},
         {"<function=>", "<function=>"},
         {"<function=ping>text", "<function=ping>text"},
         {"<tool_call><tool_call><function=ping></function>", "<tool_call>#ping{}."},
         {"<function=weather><parameter=city>5</parameter><parameter=city>6</parameter></function>",
          R"(#weather{"city": "6"}.)"},
         {"<function=weather><parameter=city>a </parameter> b</function>",
          "<function=weather><parameter=city>a </parameter> b</function>"}});
}

// What a model meant is clear without some of its tags.
TEST(OutputParser, QwenCoderWithoutTags) {
  const std::string both = R"(#weather{"city": "Bern", "days": 3}.)";
  const std::string city = "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n", days = "<parameter=days>\n3\n";
  const std::string end = "</parameter>\n", end_function = "</function>\n", end_call = "</tool_call>";
  for (const std::string& first : {std::string(), end}) {
    for (const std::string& last : {std::string(), end}) {
      for (const std::string& tail : {end_function + end_call, end_function, end_call, std::string()}) {
        const std::string text = city + first + days + last + tail;
        EXPECT_EQ(Read(Make("qwen3_coder"), {text}), both) << text;
        EXPECT_EQ(Read(Make("qwen3_coder"), Bytewise(text)), both) << text;
        EXPECT_EQ(Read(Make("qwen3_coder"), {text + "\n"}), both) << text;
        EXPECT_EQ(Read(Make("qwen3_coder"), {text + "\n<tool_call>\n<function=ping></function></tool_call>"}),
                  both + "#ping{}.")
            << text;
      }
      EXPECT_EQ(Read(Make("qwen3_coder"), {city + first + days + last + end_function + end_call + "\nSo."}),
                both + "\nSo.");
    }
  }
  Check("qwen3_coder",
        {{"<function=weather><parameter=city>Bern<parameter=days>3</function>",
          R"(#weather{"city": "Bern", "days": 3}.)"},
         {"<function=weather><parameter=city>Bern</function><function=ping></function>",
          R"(#weather{"city": "Bern"}.#ping{}.)"},
         {"<function=other><parameter=a>1<parameter=b>2</function>", R"(#other{"a": "1", "b": "2"}.)"},
         {"<function=ping>", "#ping{}."},
         {"<function=ping><tool_call><function=ping>", "#ping{}.#ping{}."},
         {"<function=weather><parameter=city>x</parameter></parameter></function>", R"(#weather{"city": "x"}.)"},
         {"<function=\"weather\"><parameter='city'>x</parameter><parameter= days >2</parameter></function>",
          R"(#weather{"city": "x", "days": 2}.)"}});
}

// Tags may be text, too.
TEST(OutputParser, QwenCoderWithTagsInValues) {
  Check("qwen3_coder", {{"<function=weather><parameter=city>a</function>b</parameter></function>",
                         R"(#weather{"city": "a</function>b"}.)"},
                        {"<function=weather><parameter=city>a</tool_call> b</parameter></function>",
                         R"(#weather{"city": "a</tool_call> b"}.)"},
                        {"<function=weather><parameter=city>a</function> </parameter></function>",
                         R"(#weather{"city": "a</function> "}.)"},
                        {"<function=weather><parameter=city>a</function></tool</parameter></function>",
                         R"(#weather{"city": "a</function></tool"}.)"},
                        {"<function=weather><parameter=city><parameter=city>a<parameter=x>b</parameter></function>",
                         R"(#weather{"city": "<parameter=city>a<parameter=x>b"}.)"},
                        {"<function=weather><parameter=city>a<parameter=days</parameter></function>",
                         R"(#weather{"city": "a<parameter=days"}.)"},
                        {"<function=weather><parameter=city>a<tool_call>b</parameter></function>",
                         R"(#weather{"city": "a<tool_call>b"}.)"}});
}

// Nothing of a call that breaks was passed on before.
TEST(OutputParser, QwenCoderGivesAllOfItsTextBack) {
  for (const char* text :
       {"<function=weather><parameter=city>Bern</parameter>text</function></tool_call>",
        "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n<parameter>\n3\n</parameter>",
        "<function=weather><parameter=city>Bern</param", "<function=weather><parameter=ci",
        "<function=weather>\n</func"}) {
    EXPECT_EQ(Read(Make("qwen3_coder"), Bytewise(text)), text);
  }
  // A limit cut what the model would have written.
  for (const char* text :
       {"<function=weather><parameter=city>Ber", "<function=weather><parameter=city>Bern</parameter>\n",
        "<function=weather>", "<function=weather><parameter=city>Bern</function>\n</tool"}) {
    EXPECT_EQ(Read(Make("qwen3_coder"), {text}, /*cut=*/true), text);
  }
  EXPECT_EQ(Read(Make("qwen3_coder"), {"<function=weather><parameter=city>x</parameter></function>"}, true),
            R"(#weather{"city": "x"}.)");
}

// The schema says what a value may be.
TEST(OutputParser, QwenCoderTypes) {
  const std::pair<const char*, std::pair<const char*, const char*>> cases[] = {
      {R"({"type":"object"})", {R"({'a': 1, "b": [True, None, 'it\'s']})", R"({"a":1,"b":[true,null,"it's"]})"}},
      {R"({"type":"object"})", {"\n{\"a\": 1.0}\n ", R"({"a":1.0})"}},
      {R"({"type":"object"})", {"{'a': f()}", R"("{'a': f()}")"}},
      {R"({"type":"array"})", {"['a', 'b']", R"(["a","b"])"}},
      {R"({"type":"string"})", {"{'a': 1}", R"("{'a': 1}")"}},
      {R"({"anyOf":[{"type":"string"},{"type":"null"}]})", {"123", R"("123")"}},
      {R"({"anyOf":[{"type":"string"},{"type":"null"}]})", {"None", "null"}},
      {R"({"anyOf":[{"type":"integer"},{"type":"string"}]})", {"123", "123"}},
      {R"({"oneOf":[{"type":"object"},{"type":"string"}]})", {"true", R"("true")"}},
      {R"({"enum":["1","2"]})", {"1", R"("1")"}},
      {R"({"enum":["1",2]})", {"2", "2"}},
      {R"({"const":"7"})", {"7", R"("7")"}},
      {R"({"type":"boolean"})", {"False", "false"}},
      {R"({"type":"integer"})", {" 12 ", "12"}},
      {R"({})", {"[1]", "[1]"}},
      {R"({"type":["integer","null"]})", {"", R"("")"}}};
  for (const auto& [schema, value] : cases) {
    auto tools = std::make_shared<ToolSet>();
    tools->Add("f", Json::parse(R"({"properties":{"x":)" + std::string(schema) + "}}"));
    const std::string text = "<function=f><parameter=x>" + std::string(value.first) + "</parameter></function>";
    EXPECT_EQ(Read(std::make_unique<CallParser>(kQwenCoderCalls, tools), {text}),
              "#f{\"x\": " + std::string(value.second) + "}.")
        << schema;
  }
}

TEST(OutputParser, Reasoning) {
  using Start = ReasoningParser::Start;
  const auto read = [](Start start, const std::string& text) { return Read(MakeThinking("hermes", start), {text}); };
  EXPECT_EQ(read(Start::kInside, "Hm.\n\nSo.\n</think>\n\nYes.\n"), "(Hm.\n\nSo.)Yes.\n");
  EXPECT_EQ(read(Start::kInside, "<think>\nHm.\n</think>\nYes."), "(Hm.)Yes.");
  EXPECT_EQ(read(Start::kInside, "never ends </th"), "(never ends </th)");
  EXPECT_EQ(read(Start::kInside, ""), "");
  EXPECT_EQ(read(Start::kPerhaps, "\n<think>Hm. <tool_call></think>Yes."), "(Hm. <tool_call>)Yes.");
  EXPECT_EQ(read(Start::kPerhaps, "Yes. <think>no</think>"), "Yes. <think>no</think>");
  EXPECT_EQ(read(Start::kPerhaps, "<thin"), "<thin");
  EXPECT_EQ(read(Start::kPerhaps, "<think>"), "");
  EXPECT_EQ(read(Start::kPerhaps, "<think>a</think>\n\n<tool_call>{\"name\":\"ping\"}</tool_call>"), "(a)#ping{}.");
  EXPECT_EQ(Read(MakeThinking("plain", Start::kPerhaps), {"<think>a</think>b<think>"}), "(a)b<think>");

  const auto read_of = [](const char* format, Start start, const std::string& text) {
    const ReasoningTags& tags = FindReasoningFormat(format)->tags;
    const std::string whole = Read(std::make_unique<ReasoningParser>(start, Make("gemma4"), tags), {text});
    EXPECT_EQ(Read(std::make_unique<ReasoningParser>(start, Make("gemma4"), tags), Bytewise(text)), whole) << text;
    return whole;
  };
  EXPECT_EQ(read_of("gemma4", Start::kPerhaps, "<|channel>thought\nHm.\n<channel|><|tool_call>call:ping{}<tool_call|>"),
            "(Hm.)#ping{}.");
  EXPECT_EQ(read_of("gemma4", Start::kInside, "Hm.<channel|>Yes."), "(Hm.)Yes.");
  EXPECT_EQ(read_of("gemma4", Start::kPerhaps, "<|channel>other"), "<|channel>other");
  EXPECT_EQ(read_of("gemma4", Start::kPerhaps, "<think>a</think>"), "<think>a</think>");
  EXPECT_EQ(read_of("mistral", Start::kPerhaps, "[THINK]Hm.[/THINK]Yes."), "(Hm.)Yes.");
}

TEST(OutputParser, Gemma) {
  Check("gemma4",
        {{R"(<|tool_call>call:weather{city:<|"|>Zürich, {<CH>}<|"|>,days:2}<tool_call|>)",
          R"(#weather{"city":"Zürich, {<CH>}","days":2}.)"},
         {R"(So: <|tool_call>call:ping{}<tool_call|><|tool_call>call:a.b-c{x:true,y:-1.5e3}<tool_call|> Done.)",
          R"(So:#ping{}.#a.b-c{"x":true,"y":-1.5e3}. Done.)"},
         {R"(<|tool_call>call:f{a:[1,<|"|>b<|"|>,[],{}],o:{<|"|>k: v<|"|>:None,z:null},t:plain text})",
          R"(#f{"a":[1,"b",[],{}],"o":{"k: v":null,"z":null},"t":"plain text"}.)"},
         {"<|tool_call>call:f{ a : <|\"|>\"q\"\n\\<|\"|> , b : False }", R"(#f{"a":"\"q\"\n\\","b":false}.)"},
         {R"(<|tool_call>call:f{"a":"x, y: \"z\"","b":[12345678901234567890123, 1e999],c:01}<tool_call|>)",
          R"(#f{"a":"x, y: \"z\"","b":[12345678901234567890123,1e999],"c":"01"}.)"},
         {"<|tool_call>call:f{a:1", "<|tool_call>call:f{a:1"},
         {"<|tool_call>call:f{a}<tool_call|>", "<|tool_call>call:f{a}<tool_call|>"},
         {"<|tool_call>call:f{a:}", "<|tool_call>call:f{a:}"},
         {"<|tool_call>call:{a:1}", "<|tool_call>call:{a:1}"},
         {"<|tool_call>{\"name\": \"f\"}", "<|tool_call>{\"name\": \"f\"}"},
         {"<|tool_call>call:f{a:1]", "<|tool_call>call:f{a:1]"},
         {"<tool_call|>", "<tool_call|>"}});
  const std::string deep = "<|tool_call>call:f{a:" + std::string(100, '[') + std::string(100, ']') + "}";
  EXPECT_EQ(Read(Make("gemma4"), {deep}), deep);
}

TEST(OutputParser, Channels) {
  const auto read = [](const std::string& text, bool cut = false, bool tools = true) {
    const auto make = [&] { return std::make_unique<ChannelParser>(tools ? Tools() : nullptr); };
    const std::string whole = Read(make(), {text}, cut);
    EXPECT_EQ(Read(make(), Bytewise(text), cut), whole) << text;
    for (std::size_t at = 1; at < text.size(); ++at) {
      EXPECT_EQ(Read(make(), {text.substr(0, at), text.substr(at)}, cut), whole) << text << " at " << at;
    }
    return whole;
  };
  const std::string thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
  EXPECT_EQ(read(thought + "<|channel|>final<|message|>Yes.<|return|>"), "(Hm.)Yes.");
  EXPECT_EQ(read(thought + "<|channel|>final<|message|>Yes <|"), "(Hm.)Yes <|");
  const std::string header = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>";
  EXPECT_EQ(read(thought + header + R"({"city": "Ü"}<|call|>)"), R"((Hm.)#weather{"city": "Ü"}.)");
  EXPECT_EQ(read(thought + header + R"({"city": "Ü"})"), R"((Hm.)#weather{"city": "Ü"}.)");
  const std::string numbers = R"({"a": 12345678901234567890123, "b": 1.10})";
  EXPECT_EQ(read(thought + header + numbers), "(Hm.)#weather" + numbers + ".");
  EXPECT_EQ(read(thought + header + R"({"city": "Ü")", true), R"((Hm.){"city": "Ü")");
  EXPECT_EQ(read(thought + header + R"({"city": "Ü"})", false, false), R"((Hm.){"city": "Ü"})");
  EXPECT_EQ(read(thought + header + "no json<|call|>"), "(Hm.)no json");
  EXPECT_EQ(read(thought + " to=functions.ping<|channel|>commentary json<|message|><|call|>"), "(Hm.)#ping{}.");
  EXPECT_EQ(read("<|channel|>commentary<|message|>First.<|end|><|start|>assistant" + header + "{}<|call|>"),
            "First.#weather{}.");
  // An answer's <|start|>assistant stands in the prompt, so a call may begin it.
  EXPECT_EQ(read(" to=functions.ping<|channel|>commentary json<|message|>{}<|call|>"), "#ping{}.");
  EXPECT_EQ(read("to=functions.ping<|channel|>commentary json<|message|>{}<|call|>"), "#ping{}.");
  EXPECT_EQ(read(" to=functions.ping", true), "");
  EXPECT_EQ(read(" to a friend"), " to a friend");
  EXPECT_EQ(read("Plain.<|end|><|start|>assistant" + header + "{}<|call|>"), "Plain.#weather{}.");
  EXPECT_EQ(read("Plain <|message|> text"), "Plain <|message|> text");
  EXPECT_EQ(read("<|chan"), "<|chan");
  EXPECT_EQ(read("<|channel|>analysis<|message|>cut", true), "(cut)");
  EXPECT_EQ(read("<|channel|>analysis", true), "");
  EXPECT_EQ(read(""), "");
  const std::string long_header = "<|channel|>" + std::string(600, 'x');
  EXPECT_EQ(Read(std::make_unique<ChannelParser>(nullptr), {long_header}), long_header);
}

// The parts from which hard texts are made.
const std::vector<std::string>& Parts() {
  static const std::vector<std::string> parts = {"<tool_call>",
                                                 "</tool_call>",
                                                 "<tool_call",
                                                 "\n",
                                                 " ",
                                                 "text",
                                                 "{",
                                                 "}",
                                                 "{\"name\": \"ping\", \"arguments\": {\"a\": [1, \"é\\n\"]}}",
                                                 "\"name\":",
                                                 "<|tool_call>",
                                                 "<tool_call|>",
                                                 "call:f{",
                                                 "<|\"|>",
                                                 "a:",
                                                 "[TOOL_CALLS]",
                                                 "[ARGS]",
                                                 "[CALL_ID]",
                                                 "ping",
                                                 "[",
                                                 "]",
                                                 ",",
                                                 ";",
                                                 "{\"name\": \"ping\", \"parameters\": {}}",
                                                 "<|python_tag|>",
                                                 "ping.call(a='b')",
                                                 "<function=weather>",
                                                 "<function=\"ping\">",
                                                 "</function>",
                                                 "<parameter=city>",
                                                 "<parameter=days>",
                                                 "</parameter>",
                                                 "<think>",
                                                 "</think>",
                                                 "\"",
                                                 "\\u00e9",
                                                 "12",
                                                 "-1.5e+3",
                                                 "null",
                                                 "[TOOL_CALLS]ping{\"x\": 1}",
                                                 "<",
                                                 "\xF0\x9F\x99\x82"};
  return parts;
}

std::string RandomText(Prng& random) {
  std::string text;
  const std::size_t count = 1 + random.NextBelow(12);
  for (std::size_t i = 0; i < count; ++i) text += Parts()[random.NextBelow(Parts().size())];
  return text;
}

std::vector<std::string> RandomPieces(const std::string& text, Prng& random) {
  std::vector<std::string> pieces;
  for (std::size_t at = 0; at < text.size(); at += pieces.back().size()) {
    pieces.push_back(text.substr(at, 1 + random.NextBelow(9)));
  }
  return pieces;
}

// However a text is cut, the client gets the same.
TEST(OutputParser, CutsDoNotMatter) {
  Prng random(24);
  for (int round = 0; round < 1500; ++round) {
    const std::string text = RandomText(random);
    for (const std::string& format : ToolFormatNames()) {
      const auto start = random.NextBelow(2) == 0 ? ReasoningParser::Start::kInside : ReasoningParser::Start::kPerhaps;
      const std::string whole = Read(Make(format), {text});
      ASSERT_EQ(Read(Make(format), Bytewise(text)), whole) << format << ": " << text;
      ASSERT_EQ(Read(Make(format), RandomPieces(text, random)), whole) << format << ": " << text;
      const std::string thought = Read(MakeThinking(format, start), {text});
      ASSERT_EQ(Read(MakeThinking(format, start), Bytewise(text)), thought) << format << ": " << text;
    }
  }
}

// Cuts at each byte of texts that are right.
TEST(OutputParser, EachCutOfRightCalls) {
  const std::map<std::string, std::string> texts = {
      {"hermes", "Ü <tool_call>\n{\"name\": \"x\", \"arguments\": {\"a\": \"é\\\"}\"}}\n</tool_call>\n"},
      {"llama3_json", R"({"name": "x", "parameters": {"a": [{}, -0.5]}}; <|python_tag|>x.call(a='é'))"},
      {"mistral", R"(Ü [TOOL_CALLS] [{"name": "x", "arguments": {"a": "]"}}] [TOOL_CALLS]y[CALL_ID]1[ARGS]{})"},
      {"granite", R"(Ü <|tool_call|> [{"name": "x", "arguments": {"a": "]"}}] end)"},
      {"phi4_mini_json", R"(Ü functools[{"name": "x", "arguments": {"a": "]"}}] functional)"},
      {"gemma4", R"(Ü <|tool_call>call:x{a:<|"|>}<tool_call|>é<|"|>,b:[{}]}<tool_call|>)"},
      {"qwen3_coder",
       "<tool_call>\n<function=weather>\n<parameter=city>\né\n\n</parameter>\n</function>\n</tool_call>"}};
  for (const auto& [format, text] : texts) {
    const std::string whole = Read(Make(format), {text});
    EXPECT_NE(whole.find('#'), std::string::npos) << whole;
    for (std::size_t cut = 0; cut <= text.size(); ++cut) {
      EXPECT_EQ(Read(Make(format), {text.substr(0, cut), text.substr(cut)}), whole) << format << " at " << cut;
    }
  }
}

// Arguments leave the parser while the model still writes them, and half a marker never does.
TEST(OutputParser, GivesWhatItCan) {
  for (const std::string& format : ToolFormatNames()) {
    const std::string begun(1, format == "mistral" ? '[' : format == "phi4_mini_json" ? 'f' : '<');
    const auto parser = Make(format);
    OutputEvents events;
    parser->Push("Hello " + begun, events);
    EXPECT_EQ(Written(events.Take()), "Hello") << format;
    parser->Push("b", events);
    EXPECT_EQ(Written(events.Take()), " " + begun + "b") << format;
  }
  const auto hermes = Make("hermes");
  OutputEvents events;
  hermes->Push("<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Be", events);
  EXPECT_EQ(Written(events.Take()), "#weather{\"city\": \"Be");
}

TEST(OutputParser, LimitsNamesAndDepth) {
  const std::string name(300, 'n');
  for (const std::string& text : {"<tool_call>{\"name\":\"" + name + "\"}", "<tool_call>{\"" + name + "\":1}",
                                  "<tool_call>{\"name\":\"x\",\"other\":" + std::string(100, '[')}) {
    EXPECT_EQ(Read(Make("hermes"), {text}), text);
  }
  EXPECT_EQ(Read(Make("mistral"), {"[TOOL_CALLS]" + name + "{}"}), "[TOOL_CALLS]" + name + "{}");
  EXPECT_EQ(Read(Make("qwen3_coder"), {"<function=" + name + ">"}), "<function=" + name + ">");
}

TEST(JsonScanner, AcceptsWhatAParserAccepts) {
  Prng random(7);
  const std::vector<std::string> parts = {"{", "}", "[",  "]",   "\"",   "\"a\"", ":",    ",",   "0",   "12",
                                          "-", ".", "e1", "E-2", "true", "nul",   "null", "\\n", "\\u", " "};
  int accepted = 0;
  const auto agree = [&](const std::string& text) {
    JsonScanner scanner;
    auto result = JsonScanner::Result::kMore;
    std::size_t read = 0;
    while (read < text.size() && result == JsonScanner::Result::kMore) result = scanner.Step(text[read++]);
    const bool whole = result == JsonScanner::Result::kEnd && read == text.size();
    const bool huge = text.find("e112") != std::string::npos;  // the other parser refuses what a double cannot hold
    ASSERT_TRUE(huge || whole == Json::accept(text)) << text;
    accepted += whole;
  };
  for (int i = 0; i < 20000; ++i) {
    std::string text = "[";
    for (std::size_t n = random.NextBelow(7); n > 0; --n) text += parts[random.NextBelow(parts.size())];
    agree(text + "]");
  }
  for (const char* text : {R"({"a":[1,-0,0.5,1e9,1E-2,"\u00e9\n\/"],"":{}})", R"([true,false,null,"x"])", "[[],{}]",
                           R"({"a":1,})", "[01]", "[1.]", "[.5]", "[-]", "[+1]", "[\"\t\"]", R"(["\x"])",
                           R"(["\u12g4"])", "[truE]", "{1:2}", R"({"a" 1})", "[1 2]"}) {
    agree(text);
  }
  EXPECT_GT(accepted, 100);
}

TEST(PythonCall, ReadsLiterals) {
  const auto call = ParsePythonCall(R"( f.call( a = 'it\'s', b="x\\", c=-1.5, d=[True, None, {"k": 'v'}], e=False ) )");
  ASSERT_TRUE(call);
  EXPECT_EQ(call->function, "f");
  EXPECT_EQ(call->arguments, R"({"a": "it's", "b": "x\\", "c": -1.5, "d": [true, null, {"k": "v"}], "e": false})");
  EXPECT_TRUE(Json::accept(call->arguments));
  EXPECT_EQ(ParsePythonCall("f.call()")->arguments, "{}");
  for (const char* text :
       {"", "f()", "f.call", "f.call(", "f.call(1)", "f.call(a=)", "f.call(a=b)", "f.call(a='x)", "f.call(a=1) x",
        "f.call(a=1 b=2)", "f.call(a=[1)", "f.call(a={1: 2})", "f.call(a=1.)", "f.call(a=\\"}) {
    EXPECT_FALSE(ParsePythonCall(text)) << text;
  }
  EXPECT_FALSE(ParsePythonCall("f.call(a=" + std::string(100, '[') + std::string(100, ']') + ")"));
}

TEST(Formats, HaveNames) {
  EXPECT_EQ(ToolFormatNames(), (std::vector<std::string>{"gemma4", "granite", "hermes", "llama3_json", "mistral",
                                                         "phi4_mini_json", "qwen3_coder"}));
  EXPECT_EQ(ReasoningFormatNames(),
            (std::vector<std::string>{"qwen3", "deepseek_r1", "gemma4", "mistral", "openai_gptoss"}));
  EXPECT_EQ(FindToolFormat("x"), nullptr);
}

}  // namespace
}  // namespace loramux::output_parser_test
