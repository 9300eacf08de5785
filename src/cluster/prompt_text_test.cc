#include "cluster/prompt_text.h"

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include "cluster/prefix_blocks.h"

namespace loramux::prompt_text_test {
namespace {

// The text by both types of JSON, which must agree. 0x1f is written as '|', 0x1e as ';'.
std::string TextOf(std::string_view body) {
  std::string text = PromptText(nlohmann::json::parse(body));
  EXPECT_EQ(text, PromptText(nlohmann::ordered_json::parse(body)));
  for (char& character : text) character = character == '\x1f' ? '|' : character == '\x1e' ? ';' : character;
  return text;
}

TEST(PromptText, OfACompletionIsTheFirstPromptString) {
  EXPECT_EQ(TextOf(R"({"model":"sql","prompt":"Once"})"), "Once");
  EXPECT_EQ(TextOf(R"({"prompt":["Once","Twice"]})"), "Once");
  EXPECT_EQ(TextOf(R"({"prompt":[[1,2],"Twice"]})"), "Twice");
  EXPECT_EQ(TextOf(R"({"prompt":[1,2,3]})"), "");
  EXPECT_EQ(TextOf(R"({"inputs":"Once"})"), "Once");
}

TEST(PromptText, OfAChatIsRolesAndTexts) {
  EXPECT_EQ(TextOf(R"({"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}]})"),
            "system|Be brief.;user|Hi;");
  EXPECT_EQ(TextOf(R"({"messages":[{"content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{}},
                       {"type":"text","text":"b"}],"role":"user"}]})"),
            "user|ab;");
  EXPECT_EQ(TextOf(R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"x"}]},
                       {"role":"tool","content":"4"}]})"),
            "assistant|;tool|4;");
}

TEST(PromptText, OfTheOtherApis) {
  EXPECT_EQ(TextOf(R"({"system":"Be brief.","messages":[{"role":"user","content":"Hi"}]})"),
            "system|Be brief.;user|Hi;");
  EXPECT_EQ(TextOf(R"({"messages":[{"role":"user","content":"Hi"}],"system":[{"type":"text","text":"Be"}]})"),
            "system|Be;user|Hi;");
  EXPECT_EQ(TextOf(R"({"instructions":"Be brief.","input":"Hi"})"), "system|Be brief.;user|Hi;");
  EXPECT_EQ(TextOf(R"({"input":[{"role":"user","content":[{"type":"input_text","text":"Hi"}]}]})"), "user|Hi;");
}

TEST(PromptText, LeavesOutWhatIsMalformed) {
  for (const char* body : {R"([])", R"("prompt")", R"({})", R"({"messages":[1,null,"x",{"content":"no role"},[]]})",
                           R"({"messages":{"role":"user"}})", R"({"prompt":{}})", R"({"prompt":[]})"}) {
    EXPECT_EQ(TextOf(body), "") << body;
  }
  EXPECT_EQ(TextOf(R"({"messages":[{"role":"user","content":7}]})"), "user|;");
}

TEST(PromptText, IsBounded) {
  const std::size_t most = kMaxPrefixBlocks * kPrefixBlockBytes;
  nlohmann::json body = {{"prompt", std::string(3 * most, 'x')}};
  EXPECT_EQ(PromptText(body), std::string(most, 'x'));
  nlohmann::json messages = nlohmann::json::array();
  for (int i = 0; i < 100; ++i) messages.push_back({{"role", "user"}, {"content", std::string(most / 50, 'y')}});
  EXPECT_EQ(PromptText(nlohmann::json{{"messages", messages}}).size(), most);
}

}  // namespace
}  // namespace loramux::prompt_text_test
