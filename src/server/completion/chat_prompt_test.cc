#include "server/completion/chat_prompt.h"

#include <gtest/gtest.h>

#include "server/api/openai/openai_request.h"

namespace loramux::chat_prompt_test {
namespace {

std::string Rendered(const std::string& source, const std::string& body, ContentFormat format = ContentFormat::kAuto) {
  auto chat_template = ChatTemplate::Parse(source, "{}", "own");
  const auto request = ParseChatRequest(body, {});
  if (!chat_template.ok() || !request.ok()) return "not parsed";
  chat_template->SetContentFormat(format);
  const auto prompt = RenderChatPrompt(*chat_template, request->chat, 0);
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

// How templates read the content of a message, as real ones do.
constexpr const char* kTexts = R"({% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %})";
constexpr const char* kEither =
    R"({% for m in messages %}[{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %})"
    R"({% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}]{% endfor %})";
constexpr const char* kLists =
    R"({% for m in messages %}[{{ m.role }}:{% for p in m.content %}<{{ p.text }}>{% endfor %}]{% endfor %})";
// Only the first part of the system prompt; the parts of users; texts of the assistant; results as JSON.
constexpr const char* kByRole =
    R"({% for m in messages %}{% if m.role == "system" and m.content is not string %}[S:{{ m.content[0].text }}])"
    R"({% elif m.role == "user" and m.content is not string %}[U:{% for p in m.content %}{{ p.text }}{% endfor %}])"
    R"({% elif m.role == "tool" %}[T:{{ m.content | tojson }}]{% else %}[{{ m.content }}]{% endif %}{% endfor %})";
constexpr const char* kRefusesLists =
    R"({% for m in messages %}{% if m.content is not string %}{{ raise_exception("text!") }}{% endif %})"
    R"([{{ m.role }}:{{ m.content }}]{% endfor %})";

constexpr const char* kPartsOfAllRoles = R"({"model":"m","messages":[
    {"role":"system","content":[{"type":"text","text":"s1"},{"type":"text","text":"s2"}]},
    {"role":"user","content":[{"type":"text","text":"u1"},"u2"]},
    {"role":"assistant","content":[{"type":"output_text","text":"a1"},{"type":"refusal","refusal":"a2"}],
     "tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},
    {"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"t1"},{"type":"text","text":""},
                                                 {"type":"text","text":"t2"}]},
    {"role":"user","content":"end"}]})";

TEST(ChatPrompt, PartsReachTheTemplateInTheFormThatItReads) {
  EXPECT_EQ(Rendered(kTexts, kPartsOfAllRoles),
            "[system:s1\ns2][user:u1\nu2][assistant:a1\na2][tool:t1\nt2][user:end]");
  EXPECT_EQ(Rendered(kEither, kPartsOfAllRoles), "[system:s1s2][user:u1u2][assistant:a1a2][tool:t1t2][user:end]");
  EXPECT_EQ(Rendered(kLists, kPartsOfAllRoles),
            "[system:<s1><s2>][user:<u1><u2>][assistant:<a1><a2>][tool:<t1><><t2>][user:<end>]");
  EXPECT_EQ(Rendered(kByRole, kPartsOfAllRoles), "[s1\ns2][U:u1u2][a1\na2][T:\"t1\\nt2\"][end]");
  EXPECT_EQ(Rendered(kRefusesLists, kPartsOfAllRoles),
            "[system:s1\ns2][user:u1\nu2][assistant:a1\na2][tool:t1\nt2][user:end]");
}

// The operator's choice, as --chat-template-content-format makes it. vLLM gives results of tools as texts in any case.
TEST(ChatPrompt, TheOperatorChoosesTheForm) {
  EXPECT_EQ(Rendered(kEither, kPartsOfAllRoles, ContentFormat::kText),
            "[system:s1\ns2][user:u1\nu2][assistant:a1\na2][tool:t1\nt2][user:end]");
  EXPECT_EQ(Rendered(kLists, kPartsOfAllRoles, ContentFormat::kParts),
            "[system:<s1><s2>][user:<u1><u2>][assistant:<a1><a2>][tool:<><><><><>][user:<end>]");
}

TEST(ChatPrompt, APartOfTheLastMessageIsContinued) {
  const std::string body = R"({"model":"m","continue_final_message":true,"messages":[{"role":"user","content":"q"},
      {"role":"assistant","content":[{"type":"text","text":"I"},{"type":"text","text":"think "}]}]})";
  EXPECT_EQ(Rendered(kEither, body), "[user:q][assistant:Ithink ");
  EXPECT_EQ(Rendered(kTexts, body), "[user:q][assistant:I\nthink ");
}

// Mistral's templates refuse ids of calls that have not nine letters and digits.
TEST(ChatPrompt, IdsOfCallsBecomeWhatTheTemplateAccepts) {
  const std::string check = R"({% if id | length != 9 %}{{ raise_exception("nine!") }}{% endif %}{{ id }})";
  const std::string source = R"({% for m in messages %}{% for c in m.tool_calls %}({% set id = c.id %})" + check +
                             R"(){% endfor %}{% if m.tool_call_id %}<{% set id = m.tool_call_id %})" + check +
                             R"(>{% endif %}{% endfor %})";
  const auto body = [](const std::string& first, const std::string& second) {
    const auto call = [](const std::string& id) {
      return R"({"id":")" + id + R"(","type":"function","function":{"name":"f","arguments":"{}"}})";
    };
    return R"({"model":"m","messages":[{"role":"user","content":"q"},{"role":"assistant","content":"","tool_calls":[)" +
           call(first) + "," + call(second) + R"(]},{"role":"tool","tool_call_id":")" + second +
           R"(","content":"2"},{"role":"tool","tool_call_id":")" + first + R"(","content":"1"}]})";
  };
  EXPECT_EQ(Rendered(source, body("abcdefghi", "123456789")), "(abcdefghi)(123456789)<123456789><abcdefghi>");
  const std::string mapped = Rendered(source, body("call_AbC-123", "toolu_01"));
  ASSERT_EQ(mapped.size(), 4 * 11u) << mapped;
  EXPECT_EQ(mapped.substr(1, 9), mapped.substr(34, 9));
  EXPECT_EQ(mapped.substr(12, 9), mapped.substr(23, 9));
  EXPECT_NE(mapped.substr(1, 9), mapped.substr(12, 9));
  EXPECT_EQ(mapped, Rendered(source, body("call_AbC-123", "toolu_01")));  // in the next request too
  const std::string anything =
      R"({% for m in messages %}{% for c in m.tool_calls %}({{ c.id }}){% endfor %}{% endfor %})";
  EXPECT_EQ(Rendered(anything, body("call_AbC-123", "toolu_01")), "(call_AbC-123)(toolu_01)");
}

// What a dialect asks for whose system messages may stand anywhere.
std::string Folded(const std::string& source, const std::string& messages) {
  const auto chat_template = ChatTemplate::Parse(source, "{}", "own");
  auto request = ParseChatRequest(R"({"model":"m","messages":)" + messages + "}", {});
  if (!chat_template.ok() || !request.ok()) return "not parsed";
  request->chat.fold_system = true;
  const auto prompt = RenderChatPrompt(*chat_template, request->chat, 0);
  return prompt.ok() ? *prompt : prompt.error().message;
}

TEST(ChatPrompt, LateSystemMessagesJoinTheirNeighboursWhereTheTemplateHasNoPlace) {
  const std::string first_only =
      R"({% for m in messages %}{% if m.role == "system" and not loop.first %}{{ raise_exception("first!") }})"
      R"({% endif %}[{{ m.role }}:{{ m.content }}]{% endfor %})";
  const std::string chat = R"([{"role":"system","content":"a"},{"role":"system","content":"b"},
      {"role":"user","content":"q"},{"role":"system","content":"c"},{"role":"assistant","content":"r"},
      {"role":"system","content":"d"},{"role":"user","content":[{"type":"text","text":"s"},{"type":"text","text":"t"}]},
      {"role":"assistant","content":"u"},{"role":"system","content":"e"}])";
  EXPECT_EQ(Folded(first_only, chat), "[system:a\n\nb][user:q\n\nc][assistant:r][user:d\n\ns\nt][assistant:u][user:e]");
  EXPECT_EQ(Folded(kTexts, chat),
            "[system:a\n\nb][user:q][system:c][assistant:r][system:d][user:s\nt][assistant:u][system:e]");
  const std::string tools = R"([{"role":"user","content":"q"},
      {"role":"assistant","content":"",
       "tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},
      {"role":"system","content":"a"},{"role":"tool","tool_call_id":"1","content":"r"},
      {"role":"system","content":"b"},{"role":"user","content":"s"}])";
  EXPECT_EQ(Folded(first_only, tools), "[user:q][assistant:][tool:r\n\na\n\nb][user:s]");
}

}  // namespace
}  // namespace loramux::chat_prompt_test
