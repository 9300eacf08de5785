#include "server/output/detect.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "server/api/openai/chat_message.h"
#include "server/output/reasoning.h"

namespace loramux::detect_test {
namespace {

const std::filesystem::path kTemplates = LORAMUX_SOURCE_DIR "/../shared/data/chat_templates";
const std::filesystem::path kFamilyTemplates =
    LORAMUX_SOURCE_DIR "/build/chat_templates";  // as in chat_template_golden_test

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

OutputFormats Detect(const std::string& source) {
  const auto chat_template = ChatTemplate::Parse(source, R"({"bos_token":"<s>","eos_token":"</s>"})", "test");
  EXPECT_TRUE(chat_template.ok());
  return *ChooseFormats(*chat_template, "auto", "auto");
}

std::string ToolsOf(const OutputFormats& formats) {
  return formats.tools == nullptr ? "none" : std::string(formats.tools->name);
}

// A template that writes `call` for each call, with NAME and ARGUMENTS in it.
std::string TemplateWith(std::string call) {
  const auto replace = [&call](std::string_view from, std::string_view to) {
    call.replace(call.find(from), from.size(), to);
  };
  replace("NAME", "{{ c.function.name }}");
  replace("ARGUMENTS", "{{ c.function.arguments | tojson }}");
  return "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}{% for c in m.tool_calls or [] %}" + call +
         "{% endfor %}{% endfor %}";
}

TEST(Detect, CallsAsTheTemplateWritesThem) {
  EXPECT_EQ(ToolsOf(Detect(TemplateWith("<tool_call>{\"name\": \"NAME\", \"arguments\": ARGUMENTS}</tool_call>"))),
            "hermes");
  EXPECT_EQ(ToolsOf(Detect(TemplateWith("{\"name\": \"NAME\", \"parameters\": ARGUMENTS}"))), "llama3_json");
  EXPECT_EQ(ToolsOf(Detect(TemplateWith("[TOOL_CALLS]NAME[ARGS]ARGUMENTS"))), "mistral");
  EXPECT_EQ(ToolsOf(Detect(TemplateWith("<|tool_call>call:NAME ARGUMENTS<tool_call|>"))), "gemma4");
  EXPECT_EQ(ToolsOf(Detect(TemplateWith("<tool_call><function=NAME><parameter=all>ARGUMENTS</parameter>"))),
            "qwen3_coder");
  // Granite and Phi-4-mini: the template asks for calls, and writes none.
  const auto offers = [](const std::string& text) {
    return "{% if tools %}" + text +
           "{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";
  };
  EXPECT_EQ(ToolsOf(Detect(offers("Respond with <|tool_call|> and a JSON list of tools."))), "granite");
  EXPECT_EQ(ToolsOf(Detect(offers("<|tool|>"))), "phi4_mini_json");
  EXPECT_EQ(ToolsOf(Detect(offers("Answer with functools[...]"))), "phi4_mini_json");
  EXPECT_EQ(ToolsOf(Detect(offers("These are tools."))), "none");
  EXPECT_EQ(ToolsOf(Detect(TemplateWith("CALL NAME WITH ARGUMENTS"))), "none");
  EXPECT_EQ(ToolsOf(Detect("{% for m in messages %}{{ m.content }}{% endfor %}")), "none");
  EXPECT_EQ(ToolsOf(Detect("{{ raise_exception('no') }}")), "none");
}

TEST(Detect, ReasoningThatTheTemplateKnows) {
  const std::string plain = "{% for m in messages %}{{ m.content }}{% endfor %}";
  EXPECT_EQ(Detect(plain).reasoning, nullptr);
  EXPECT_EQ(Detect(plain + "{% if add_generation_prompt %}<think>\n{% endif %}").reasoning->name, "qwen3");
  EXPECT_EQ(Detect("{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}").reasoning->name,
            "qwen3");
  // A switch closes reasoning, or asks for it; the prompt asks for it.
  const std::string off = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>{% endif %}";
  EXPECT_EQ(Detect(plain + off).reasoning->name, "qwen3");
  EXPECT_EQ(Detect("{% if thinking %}Think between <think></think>.{% endif %}" + plain).reasoning->name, "qwen3");
  EXPECT_EQ(Detect("Write [THINK]your thoughts[/THINK] first." + plain).reasoning->name, "mistral");
  EXPECT_EQ(Detect("{% for m in messages %}{{ m.content.split('<channel|>')[-1] }}{% endfor %}").reasoning->name,
            "gemma4");
  EXPECT_EQ(
      Detect("{% for m in messages %}<|channel|>final<|message|>{{ m.content }}<|end|>{% endfor %}").reasoning->name,
      "openai_gptoss");
}

TEST(Detect, PublishedTemplates) {
  if (!std::filesystem::exists(kTemplates)) GTEST_SKIP() << "no chat templates in " << kTemplates;
  const std::map<std::string, std::string> expected = {{"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "hermes"},
                                                       {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes"},
                                                       {"Qwen-Qwen2.5-7B-Instruct", "hermes"},
                                                       {"meta-llama-Llama-3.1-8B-Instruct", "llama3_json"},
                                                       {"meta-llama-Llama-3.2-3B-Instruct", "llama3_json"},
                                                       {"meta-llama-Llama-3.3-70B-Instruct", "llama3_json"},
                                                       {"mistralai-Mistral-Nemo-Instruct-2407", "mistral"}};
  for (const auto& entry : std::filesystem::directory_iterator(kTemplates)) {
    if (entry.path().extension() != ".jinja") continue;
    const std::string name = entry.path().stem();
    const OutputFormats formats = Detect(ReadAll(entry.path()));
    const auto found = expected.find(name);
    EXPECT_EQ(ToolsOf(formats), found == expected.end() ? "none" : found->second) << name;
    const bool reasons = name.find("DeepSeek-R1") != std::string::npos || name.find("deepseek-r1") != std::string::npos;
    EXPECT_EQ(formats.reasoning != nullptr, reasons) << name;
  }
}

struct FamilyFormats {
  const char *file, *tools, *reasoning;
};
constexpr FamilyFormats kFamilies[] = {{"llama.cpp-HuggingFaceTB-SmolLM3-3B", "none", "qwen3"},
                                       {"llama.cpp-Mistral-Small-3.2-24B-Instruct-2506", "mistral", "none"},
                                       {"llama.cpp-Qwen-QwQ-32B", "hermes", "qwen3"},
                                       {"llama.cpp-Qwen3-Coder", "qwen3_coder", "none"},
                                       {"llama.cpp-Qwen3.5-4B", "qwen3_coder", "qwen3"},
                                       {"llama.cpp-google-gemma-4-31B-it", "gemma4", "gemma4"},
                                       {"llama.cpp-ibm-granite-granite-3.3-2B-Instruct", "granite", "qwen3"},
                                       {"llama.cpp-ibm-granite-granite-4.0", "hermes", "none"},
                                       {"llama.cpp-mistralai-Ministral-3-14B-Reasoning-2512", "mistral", "mistral"},
                                       {"llama.cpp-openai-gpt-oss-120b", "none", "openai_gptoss"},
                                       {"trl-gemma3", "none", "none"},
                                       {"trl-gemma4", "gemma4", "gemma4"},
                                       {"trl-gemma4_v5", "gemma4", "gemma4"},
                                       {"trl-llama3", "none", "none"},
                                       {"trl-phi3", "none", "none"},
                                       {"trl-qwen2_5_vl", "none", "none"},
                                       {"trl-qwen3", "hermes", "qwen3"},
                                       {"trl-qwen3_5_nothink", "qwen3_coder", "qwen3"},
                                       {"trl-qwen3_instruct_2507", "hermes", "none"},
                                       {"trl-qwen3_vl", "hermes", "none"}};

// A call whose arguments have what can go wrong: other types, quotes, brackets, tags.
Json HardCall() {
  const Json arguments = {{"place", "Zürich, {<CH>} \"x\""}, {"days", 2}, {"exact", true}, {"words", {"a", "b, c]"}}};
  return {{"id", "call12345"}, {"type", "function"}, {"function", {{"name", "get_weather"}, {"arguments", arguments}}}};
}
Json HardTool() {
  const Json properties = {{"place", {{"type", "string"}, {"description", "d"}}},
                           {"days", {{"type", "integer"}, {"description", "d"}}},
                           {"exact", {{"type", "boolean"}, {"description", "d"}}},
                           {"words", {{"type", "array"}, {"items", {{"type", "string"}}}, {"description", "d"}}}};
  const Json parameters = {{"type", "object"}, {"properties", properties}, {"required", {"place"}}};
  return {{"type", "function"},
          {"function", {{"name", "get_weather"}, {"description", "d"}, {"parameters", parameters}}}};
}

// The message that the formats read in a text, in pieces of `step` bytes.
Json ReadBy(const OutputFormats& formats, std::string_view text, std::size_t step) {
  auto tools = std::make_shared<ToolSet>();
  tools->Add("get_weather", HardTool()["function"]["parameters"]);
  std::unique_ptr<OutputParser> parser = std::make_unique<CallParser>(*formats.tools->grammar, tools);
  if (formats.reasoning != nullptr) {
    parser =
        std::make_unique<ReasoningParser>(ReasoningParser::Start::kPerhaps, std::move(parser), formats.reasoning->tags);
  }
  OutputEvents events;
  for (std::size_t at = 0; at < text.size(); at += step) parser->Push(text.substr(at, step), events);
  parser->Finish(events, false);
  return MessageOf(events.Take());
}

TEST(Detect, FamilyTemplates) {
  if (!std::filesystem::exists(kFamilyTemplates)) GTEST_SKIP() << "no chat templates in " << kFamilyTemplates;
  for (const FamilyFormats& family : kFamilies) {
    const std::string source = ReadAll(kFamilyTemplates / (std::string(family.file) + ".jinja"));
    ASSERT_FALSE(source.empty()) << family.file;
    const OutputFormats formats = Detect(source);
    EXPECT_EQ(ToolsOf(formats), family.tools) << family.file;
    EXPECT_EQ(formats.reasoning == nullptr ? "none" : std::string(formats.reasoning->name), family.reasoning)
        << family.file;
  }
}

// What a template writes for an answer that reasons and calls is what the parsers read, whole and in pieces.
TEST(Detect, ParsersReadWhatTemplatesWrite) {
  if (!std::filesystem::exists(kFamilyTemplates)) GTEST_SKIP() << "no chat templates in " << kFamilyTemplates;
  int calls = 0, thoughts = 0;
  for (const FamilyFormats& family : kFamilies) {
    const std::string source = ReadAll(kFamilyTemplates / (std::string(family.file) + ".jinja"));
    const auto chat_template = ChatTemplate::Parse(source, R"({"bos_token":"<s>","eos_token":"</s>"})", family.file);
    ASSERT_TRUE(chat_template.ok()) << family.file;
    const OutputFormats formats = Detect(source);
    if (formats.tools == nullptr || formats.tools->name == "granite") continue;  // whose template writes no calls
    const Json answer = {{"role", "assistant"},
                         {"content", ""},
                         {"reasoning_content", "So it is."},
                         {"tool_calls", Json::array({HardCall()})}};
    const Json context = {{"messages", {{{"role", "user"}, {"content", "How is it?"}}, answer}},
                          {"tools", Json::array({HardTool()})}};
    const auto text = chat_template->Render(context.dump(), {.add_generation_prompt = false});
    ASSERT_TRUE(text.ok()) << family.file << text.error().message;
    std::string written = text->substr(text->rfind("How is it?") + 10);
    const bool reasons = formats.reasoning != nullptr && written.find("So it is.") != std::string::npos;
    if (reasons) written = written.substr(written.find(formats.reasoning->tags.open));
    for (const std::size_t step : {written.size(), std::size_t{1}, std::size_t{7}}) {
      const Json message = ReadBy(formats, written, step);
      ASSERT_EQ(message.value("tool_calls", Json::array()).size(), 1u) << family.file << ": " << written;
      const Json& function = message["tool_calls"][0]["function"];
      EXPECT_EQ(function["name"], "get_weather") << family.file;
      EXPECT_EQ(nlohmann::json::parse(function["arguments"].get<std::string>()),
                nlohmann::json::parse(HardCall()["function"]["arguments"].dump()))
          << family.file;
      if (reasons) {
        EXPECT_EQ(message["reasoning"], "So it is.") << family.file;
      }
    }
    ++calls;
    thoughts += reasons ? 1 : 0;
  }
  EXPECT_GE(calls, 10);
  EXPECT_GE(thoughts, 4);
}

TEST(Detect, FlagsOverrideTheTemplate) {
  EXPECT_EQ(ToolsOf(*ChooseFormats(ChatTemplate::None(), "auto", "auto")), "none");
  EXPECT_EQ(ToolsOf(*ChooseFormats(ChatTemplate::None(), "mistral", "none")), "mistral");
  EXPECT_EQ(ChooseFormats(ChatTemplate::None(), "none", "deepseek_r1")->reasoning->name, "deepseek_r1");
  const auto unknown = ChooseFormats(ChatTemplate::None(), "none", "qwen");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(
      unknown.error().message,
      "--reasoning-parser: expected auto, none, qwen3, deepseek_r1, gemma4, mistral, openai_gptoss, found \"qwen\"");
}

TEST(Detect, WhereThePromptEnds) {
  EXPECT_EQ(ThinkStateOfPrompt("a<think>\n"), ThinkState::kOpen);
  EXPECT_EQ(ThinkStateOfPrompt("<think>\n\n</think>\n\n"), ThinkState::kClosed);
  EXPECT_EQ(ThinkStateOfPrompt("say <think>!"), ThinkState::kNone);
  EXPECT_EQ(ThinkStateOfPrompt(""), ThinkState::kNone);
  EXPECT_EQ(ThinkStateOfMessage("<think>a"), ThinkState::kOpen);
  EXPECT_EQ(ThinkStateOfMessage("<think>a</think>b"), ThinkState::kClosed);
  EXPECT_EQ(ThinkStateOfMessage("b"), ThinkState::kNone);
  const ReasoningTags& gemma = FindReasoningFormat("gemma4")->tags;
  EXPECT_EQ(ThinkStateOfPrompt("<|channel>thought\n", gemma), ThinkState::kOpen);
  EXPECT_EQ(ThinkStateOfPrompt("<|channel>thought\n<channel|>", gemma), ThinkState::kClosed);
  EXPECT_EQ(ThinkStateOfPrompt("a<think>\n", gemma), ThinkState::kNone);
}

}  // namespace
}  // namespace loramux::detect_test
