#include "server/output/detect.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <gmock/gmock.h>

namespace loramux::detect_test {
namespace {

const std::filesystem::path kTemplates = LORAMUX_SOURCE_DIR "/../shared/data/chat_templates";

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
    std::ifstream file(entry.path());
    std::stringstream source;
    source << file.rdbuf();
    const std::string name = entry.path().stem();
    const OutputFormats formats = Detect(source.str());
    const auto found = expected.find(name);
    EXPECT_EQ(ToolsOf(formats), found == expected.end() ? "none" : found->second) << name;
    const bool reasons = name.find("DeepSeek-R1") != std::string::npos || name.find("deepseek-r1") != std::string::npos;
    EXPECT_EQ(formats.reasoning != nullptr, reasons) << name;
  }
}

TEST(Detect, FlagsOverrideTheTemplate) {
  EXPECT_EQ(ToolsOf(*ChooseFormats(ChatTemplate::None(), "auto", "auto")), "none");
  EXPECT_EQ(ToolsOf(*ChooseFormats(ChatTemplate::None(), "mistral", "none")), "mistral");
  EXPECT_EQ(ChooseFormats(ChatTemplate::None(), "none", "deepseek_r1")->reasoning->name, "deepseek_r1");
  const auto unknown = ChooseFormats(ChatTemplate::None(), "none", "qwen");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().message, "--reasoning-parser: expected auto, none, deepseek_r1, qwen3, found \"qwen\"");
}

TEST(Detect, WhereThePromptEnds) {
  EXPECT_EQ(ThinkStateOfPrompt("a<think>\n"), ThinkState::kOpen);
  EXPECT_EQ(ThinkStateOfPrompt("<think>\n\n</think>\n\n"), ThinkState::kClosed);
  EXPECT_EQ(ThinkStateOfPrompt("say <think>!"), ThinkState::kNone);
  EXPECT_EQ(ThinkStateOfPrompt(""), ThinkState::kNone);
  EXPECT_EQ(ThinkStateOfMessage("<think>a"), ThinkState::kOpen);
  EXPECT_EQ(ThinkStateOfMessage("<think>a</think>b"), ThinkState::kClosed);
  EXPECT_EQ(ThinkStateOfMessage("b"), ThinkState::kNone);
}

}  // namespace
}  // namespace loramux::detect_test
