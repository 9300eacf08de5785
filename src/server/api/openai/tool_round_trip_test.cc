// What clients send back after a call of a tool reaches the template as transformers hands it over. The golden files
// hold what transformers rendered (tests/golden/README.md).
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <gtest/gtest.h>

#include "server/api/openai/openai_request.h"
#include "server/completion/chat_prompt.h"
#include "text/sha256_for_test.h"

namespace loramux::tool_round_trip_test {
namespace {

const std::filesystem::path kGolden = LORAMUX_SOURCE_DIR "/tests/golden";
const std::filesystem::path kTemplates = LORAMUX_SOURCE_DIR "/../shared/data/chat_templates";
const std::filesystem::path kFamilyTemplates =
    LORAMUX_SOURCE_DIR "/build/chat_templates";  // as in chat_template_golden_test
constexpr std::int64_t kNow = 1'720'170'487;     // `now` of the golden files

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// The protocol writes arguments as a string of JSON, and clients may use the newer name of the reasoning.
Json AsClientsSend(Json messages) {
  for (Json& message : messages) {
    if (message.contains("reasoning_content")) {
      message["reasoning"] = message["reasoning_content"];
      message.erase("reasoning_content");
    }
    if (!message.contains("tool_calls")) continue;
    for (Json& call : message["tool_calls"]) {
      Json& arguments = call["function"]["arguments"];
      arguments = arguments.dump();
    }
  }
  return messages;
}

Result<std::string> Rendered(const ChatTemplate& chat_template, const Json& conversation, const Json& variables) {
  Json body = {{"model", "m"},
               {"messages", AsClientsSend(conversation["messages"])},
               {"tools", conversation["tools"]},
               {"add_generation_prompt", conversation["add_generation_prompt"]},
               {"chat_template_kwargs", variables}};
  const auto request = ParseChatRequest(body.dump(), {});
  if (!request.ok()) return request.error();
  return RenderChatPrompt(chat_template, request->chat, kNow);
}

std::string Difference(const Result<std::string>& rendered, const Json& expected) {
  if (expected.contains("error")) return rendered.ok() ? "expected an error" : "";
  if (!rendered.ok()) return rendered.error().message;
  if (expected.contains("expected")) return *rendered == expected["expected"] ? "" : *rendered;
  return Sha256Hex(*rendered) == expected["sha256"] ? "" : *rendered;
}

// Compares the conversations with calls, as clients send them, and returns how many.
int CompareCalls(const char* name_of_golden, const std::filesystem::path& folder) {
  const Json golden = Json::parse(ReadAll(kGolden / name_of_golden));
  const std::string special = Json{{"bos_token", golden["bos_token"]}, {"eos_token", golden["eos_token"]}}.dump();
  std::map<std::string, Json> variables;
  for (const Json& entry : golden["templates"]) variables[entry["file"]] = entry["variables"];
  int compared = 0;
  for (const Json& row : golden["results"]) {
    const std::string file = row["template"], name = row["conversation"];
    if (name != "tool_call" && name != "tool_call_no_tools" && name != "tool_call_last" && name != "tool_call_answer" &&
        name != "tool_call_with_content" && name != "two_tool_calls" && name != "reasoning_field" &&
        !name.starts_with("reasoned_call")) {
      continue;
    }
    const auto chat_template = ChatTemplate::Parse(ReadAll(folder / file), special, file);
    EXPECT_TRUE(chat_template.ok()) << file;
    if (!chat_template.ok()) continue;
    const Json& conversation = golden["conversations"][name];
    Json switches = variables[file];
    switches.update(conversation["variables"]);
    EXPECT_EQ(Difference(Rendered(*chat_template, conversation, switches), row), "") << file << ", " << name;
    ++compared;
  }
  return compared;
}

TEST(ToolRoundTrip, PublishedTemplates) {
  if (!std::filesystem::exists(kTemplates)) GTEST_SKIP() << "no chat templates in " << kTemplates;
  EXPECT_EQ(CompareCalls("chat_templates.json", kTemplates), 7 * 17);
}

TEST(ToolRoundTrip, FamilyTemplates) {
  if (!std::filesystem::exists(kFamilyTemplates)) GTEST_SKIP() << "no chat templates in " << kFamilyTemplates;
  EXPECT_EQ(CompareCalls("family_templates.json", kFamilyTemplates), 9 * 20);
}

TEST(ToolRoundTrip, OwnTemplateWithReasoning) {
  const Json golden = Json::parse(ReadAll(kGolden / "own_templates.json"));
  const std::string special = Json{{"bos_token", golden["bos_token"]}, {"eos_token", golden["eos_token"]}}.dump();
  int compared = 0;
  for (const Json& entry : golden["templates"]) {
    if (!entry["name"].get<std::string>().starts_with("reasoning_and_tools")) continue;
    const auto chat_template = ChatTemplate::Parse(entry["template"].get<std::string>(), special, "own");
    ASSERT_TRUE(chat_template.ok());
    EXPECT_EQ(Difference(Rendered(*chat_template, entry, Json::object()), entry), "");
    ++compared;
  }
  EXPECT_EQ(compared, 2);
}

}  // namespace
}  // namespace loramux::tool_round_trip_test
