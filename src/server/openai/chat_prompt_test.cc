#include "server/openai/chat_prompt.h"

#include <gtest/gtest.h>

#include "server/openai/openai_request.h"

namespace loramux::chat_prompt_test {
namespace {

std::string Rendered(const std::string& source, const std::string& body) {
  const auto chat_template = ChatTemplate::Parse(source, "{}", "own");
  const auto request = ParseChatRequest(body, {});
  if (!chat_template.ok() || !request.ok()) return "not parsed";
  const auto prompt = RenderChatPrompt(&*chat_template, request->chat, 0);
  return prompt.ok() ? *prompt : prompt.error().message;
}

constexpr const char* kRoles = R"({% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %})";
constexpr const char* kDeveloperFirst = R"({"model":"m","messages":[{"role":"developer","content":"be \"kind\""},
                                           {"role":"user","content":"hi"},{"role":"developer","content":"now"}]})";

// Templates without a branch for developers refuse them, or drop them in silence.
TEST(ChatPrompt, DevelopersAreSystemWhereTheTemplateKnowsNone) {
  EXPECT_EQ(Rendered(kRoles, kDeveloperFirst), "[system:be \"kind\"][user:hi][system:now]");
  EXPECT_EQ(Rendered(kRoles + std::string("{# knows developer #}"), kDeveloperFirst),
            "[developer:be \"kind\"][user:hi][developer:now]");
}

TEST(ChatPrompt, TheTemplateSeesReasoningEffort) {
  const std::string chat = R"({"model":"m","messages":[{"role":"user","content":"hi"}])";
  const std::string source = R"({{ reasoning_effort | default("none") }})";
  EXPECT_EQ(Rendered(source, chat + "}"), "none");
  EXPECT_EQ(Rendered(source, chat + R"(,"reasoning_effort":"high"})"), "high");
  EXPECT_EQ(Rendered(source, chat + R"(,"reasoning_effort":"high","chat_template_kwargs":{"reasoning_effort":"low"}})"),
            "low");
}

}  // namespace
}  // namespace loramux::chat_prompt_test
