// The published documents of tests/json_schema_suite: a grammar allows none that its schema forbids.
// (tests/json_schema_suite_test.py has what is generated, and what is refused.)
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "text/grammar/grammar_compiler.h"
#include "text/grammar/matching_for_test.h"

namespace loramux::grammar_test {
namespace {

using Json = nlohmann::ordered_json;

// For each file of the suite, how many documents a grammar takes for what they are not. Files without such have no
// entry.
using Counts = std::map<std::string, int>;

const std::filesystem::path kSuite = std::string(LORAMUX_SOURCE_DIR) + "/tests/json_schema_suite/draft2020-12";

// Unknown formats are annotations, as draft 2020-12 has them; the suite's optional tests take them for demands.
const std::set<std::string> kAnnotations = {"ecmascript-regex", "idn-email",    "idn-hostname", "iri",
                                            "iri-reference",    "json-pointer", "regex",        "relative-json-pointer",
                                            "uri-reference",    "uri-template"};

// Several branches of `oneOf` may match. Formats are regular expressions, so they do not know leap years, leap seconds,
// the length of a host's name or Punycode. Patterns are Rust's, where U+FEFF is no white space. The suite counts these
// among its optional tests.
const Counts kForbiddenButAllowed = {{"oneOf.json", 8},
                                     {"optional/ecmascript-regex.json", 1},
                                     {"optional/format/date-time.json", 2},
                                     {"optional/format/date.json", 3},
                                     {"optional/format/hostname.json", 24},
                                     {"optional/format/time.json", 10}};

// A grammar may be narrower than its schema: it writes properties in the schema's order, integers without a fraction
// and constants as they stand, holds formats to be demands, and has only the usual ways to write an address.
const Counts kValidButNotAllowed = {{"allOf.json", 2},
                                    {"const.json", 5},
                                    {"enum.json", 4},
                                    {"format.json", 10},
                                    {"optional/bignum.json", 2},
                                    {"optional/ecmascript-regex.json", 1},
                                    {"optional/float-overflow.json", 1},
                                    {"optional/format/email.json", 4},
                                    {"optional/format/ipv6.json", 4},
                                    {"type.json", 1},
                                    {"vocabulary.json", 1}};

std::vector<std::filesystem::path> Files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kSuite)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST(JsonSchemaSuite, GrammarsAllowNoForbiddenDocument) {
  const Tokenizer tokenizer = MakeByteTokenizer();
  constexpr TokenId kEos[] = {kByteEos};
  const auto compiler = *GrammarCompiler::Create(tokenizer, kEos);
  Counts forbidden_but_allowed, valid_but_not_allowed;
  int served = 0, refused = 0, documents = 0;
  for (const std::filesystem::path& path : Files()) {
    const std::string name = std::filesystem::relative(path, kSuite).string();
    if (name.starts_with("optional/format/") && kAnnotations.contains(path.stem().string())) continue;
    std::ifstream in(path);
    for (const Json& group : Json::parse(in)) {
      const auto grammar = compiler->Compile({GrammarKind::kJsonSchema, group["schema"].dump(), "schema"});
      ++(grammar.ok() ? served : refused);
      if (!grammar.ok()) continue;
      for (const Json& test : group["tests"]) {
        ++documents;
        const std::string text = test["data"].dump();
        const bool valid = test["valid"];
        if (Matches(**grammar, text) == valid) continue;
        ++(valid ? valid_but_not_allowed : forbidden_but_allowed)[name];
        SCOPED_TRACE(group["description"].get<std::string>() + ": " + text);
        EXPECT_TRUE((valid ? kValidButNotAllowed : kForbiddenButAllowed).contains(name)) << name;
      }
    }
  }
  EXPECT_EQ(forbidden_but_allowed, kForbiddenButAllowed);
  EXPECT_EQ(valid_but_not_allowed, kValidButNotAllowed);
  EXPECT_EQ(served, 228);
  EXPECT_EQ(refused, 217);
  EXPECT_EQ(documents, 1288);
}

}  // namespace
}  // namespace loramux::grammar_test
