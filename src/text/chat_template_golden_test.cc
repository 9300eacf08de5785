// Compares renderings with those of transformers for the same templates (tests/golden/README.md).

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include <nlohmann/json.hpp>

#include "text/chat_template.h"
#include "text/sha256_for_test.h"

namespace loramux::chat_template_golden_test {
namespace {

using json = nlohmann::ordered_json;

const std::filesystem::path kGolden = LORAMUX_SOURCE_DIR "/tests/golden";
const std::filesystem::path kTemplates = LORAMUX_SOURCE_DIR "/../shared/data/chat_templates";
// Where make_chat_templates.py --collect puts those of families.
const std::filesystem::path kFamilyTemplates = LORAMUX_SOURCE_DIR "/build/chat_templates";
// `now` of the golden files, 2024-07-05T09:08:07, as transformers sees it without a time zone.
constexpr std::int64_t kNow = 1'720'170'487;

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

json ReadGolden(const char* name) {
  json golden = json::parse(ReadAll(kGolden / name), nullptr, false);
  EXPECT_EQ(golden.value("format", 0), 1) << name;
  EXPECT_EQ(golden.value("now", ""), "2024-07-05T09:08:07");
  return golden;
}

std::string SpecialTokens(const json& golden) {
  return json{{"bos_token", golden["bos_token"]}, {"eos_token", golden["eos_token"]}}.dump();
}

Result<std::string> Render(const std::string& source, const std::string& special_tokens, json context,
                           bool add_generation_prompt) {
  auto parsed = ChatTemplate::Parse(source, special_tokens, "");
  if (!parsed.ok()) return parsed.error();
  return parsed->Render(context.dump(), {add_generation_prompt, kNow});
}

// The variables of a conversation, after the template's own.
json Context(const json& conversation, const json& template_variables) {
  json context = {{"messages", conversation["messages"]},
                  {"tools", conversation["tools"]},
                  {"documents", conversation["documents"]}};
  context.update(template_variables);
  context.update(conversation["variables"]);
  return context;
}

// Known differences of minijinja, each with its reason: a template by name, a snippet by its text. None of them occurs
// in the published templates.
const std::map<std::string, std::string>& KnownDifferences() {
  static const std::map<std::string, std::string> differences = {
      {"macros", "macros have no varargs and kwargs"},
      {"{{ {1: 'a', true: 'b', none: 'c', 1.5: 'd'} | tojson }}", "1 and true are different keys"},
      {"{{ [1, 2] | random is defined }}", "refused by us: a rendering must not be left to chance"},
      {"{% macro m(a, b=2, c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=3) }} {{ m(1, 5, 6) }} "
       "{{ m() }}| {{ m.name }} {{ m.arguments }}",
       "a macro's `arguments` are a list, not a tuple"},
      {"{{ self is defined }}", "there is no `self` outside of blocks"},
      {"{{ +1 }}", "there is no unary plus"},
  };
  return differences;
}

// Empty if `result` is as expected, otherwise the difference.
std::string Compare(const Result<std::string>& result, const json& expected) {
  if (expected.contains("error")) {
    if (result.ok()) return "expected an error of kind " + expected["kind"].dump() + ", got text: " + *result;
    if (expected.contains("message") && result.error().message != expected["message"].get<std::string>()) {
      return "expected the message " + expected["message"].dump() + ", got: " + result.error().message;
    }
    return "";
  }
  if (!result.ok()) return "error: " + result.error().message;
  if (expected.contains("expected")) {
    const std::string text = expected["expected"];
    return *result == text ? "" : "expected: " + text + "\n     got: " + *result;
  }
  if (result->size() == expected["bytes"].get<std::size_t>() && Sha256Hex(*result) == expected["sha256"]) return "";
  return "the text differs (" + std::to_string(result->size()) + " bytes, expected " + expected["bytes"].dump() + ")";
}

TEST(ChatTemplateGolden, Sha256IsRight) {
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex(std::string(1000, 'a')), "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3");
}

// Compares what the templates of a folder make of all conversations.
void ComparePublished(const char* name_of_golden, const std::filesystem::path& folder, std::size_t templates_expected,
                      int least) {
  const json golden = ReadGolden(name_of_golden);
  std::map<std::string, const json*> templates;
  std::map<std::string, std::string> sources;
  for (const json& entry : golden["templates"]) {
    const std::string file = entry["file"];
    templates[file] = &entry;
    sources[file] = ReadAll(folder / file);
    ASSERT_EQ(Sha256Hex(sources[file]), entry["sha256"].get<std::string>())
        << file << " has other content than the recorded digest";
  }
  int compared = 0;
  for (const json& row : golden["results"]) {
    const std::string file = row["template"], name = row["conversation"];
    const json& conversation = golden["conversations"][name];
    const json context = Context(conversation, (*templates[file])["variables"]);
    const auto result = Render(sources[file], SpecialTokens(golden), context, conversation["add_generation_prompt"]);
    const std::string difference = Compare(result, row);
    EXPECT_TRUE(difference.empty()) << file << ", " << name << ": " << difference.substr(0, 300);
    ++compared;
  }
  EXPECT_EQ(sources.size(), templates_expected);
  EXPECT_GT(compared, least);
}

TEST(ChatTemplateGolden, PublishedTemplates) {
  if (!std::filesystem::exists(kTemplates)) GTEST_SKIP() << "no chat templates in " << kTemplates;
  ComparePublished("chat_templates.json", kTemplates, 17, 900);
}

TEST(ChatTemplateGolden, FamilyTemplates) {
  if (!std::filesystem::exists(kFamilyTemplates)) GTEST_SKIP() << "no chat templates in " << kFamilyTemplates;
  ComparePublished("family_templates.json", kFamilyTemplates, 20, 1200);
}

TEST(ChatTemplateGolden, OwnTemplates) {
  const json golden = ReadGolden("own_templates.json");
  for (const json& entry : golden["templates"]) {
    const std::string name = entry["name"];
    const auto result = Render(entry["template"], SpecialTokens(golden), Context(entry, json::object()),
                               entry["add_generation_prompt"]);
    const std::string difference = Compare(result, entry);
    EXPECT_EQ(difference.empty(), !KnownDifferences().contains(name)) << name << ": " << difference;
  }
}

TEST(ChatTemplateGolden, Snippets) {
  const json golden = ReadGolden("own_templates.json");
  int differing = 0;
  for (const json& entry : golden["snippets"]) {
    const std::string source = entry["template"];
    const auto result = Render(source, "{}", entry["variables"], false);
    const std::string difference = Compare(result, entry);
    const auto known = KnownDifferences().find(source);
    // A difference that no longer exists must be removed from the table.
    EXPECT_EQ(difference.empty(), known == KnownDifferences().end()) << source << "\n" << difference;
    differing += !difference.empty();
  }
  RecordProperty("snippets", static_cast<int>(golden["snippets"].size()));
  RecordProperty("differing", differing);
}

}  // namespace
}  // namespace loramux::chat_template_golden_test
