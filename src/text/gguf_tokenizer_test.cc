#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "formats/file.h"
#include "text/tokenizer.h"

namespace loramux::gguf_tokenizer_test {
namespace {

using nlohmann::json;

const std::string kFixtures = LORAMUX_SOURCE_DIR "/tests/golden/gguf/tokenizers/";

constexpr const char* kSpace = "\xe2\x96\x81";  // what SentencePiece has for a space

json ReadFixture(const std::string& name) {
  return json::parse(ReadTextFile(kFixtures + name, std::size_t{1} << 24).value());
}

// Every kind of tokenizer that a GGUF file may name encodes as the one that the file was made from.
TEST(GgufTokenizer, EncodesAsTheOriginal) {
  const json all = ReadFixture("texts.json"), expected_ids = ReadFixture("ids.json");
  int cases = 0;
  for (const auto& [name, expected] : expected_ids.items()) {
    auto tokenizer = Tokenizer::Load(kFixtures + name + ".gguf");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    const json texts = expected.value("texts", all);
    ASSERT_EQ(texts.size(), expected["without"].size());
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::string text = texts[i];
      EXPECT_EQ(tokenizer->Encode(text, true).value(), expected["with_special"][i].get<std::vector<TokenId>>())
          << name << " with special tokens: " << texts[i];
      const std::vector<TokenId> ids = expected["without"][i];
      EXPECT_EQ(tokenizer->Encode(text, false).value(), ids) << name << ": " << texts[i];
      // Text that the tokenizer normalises comes back in its normal form.
      const bool has_space = name == "sentencepiece" || name == "gemma4";
      const bool as_written = name != "qwen2" && name != "qwen35" && name != "olmo" &&
                              !(has_space && text.find(kSpace) != std::string::npos);
      if (as_written) EXPECT_EQ(tokenizer->Decode(ids, false).value(), text) << name << ": " << texts[i];
    }
    ++cases;
  }
  EXPECT_EQ(cases, 15);
}

TEST(GgufTokenizer, HasNoTokensForPadding) {
  const Tokenizer tokenizer = Tokenizer::Load(kFixtures + "qwen2.gguf").value();
  EXPECT_EQ(tokenizer.TokenToId("[PAD]"), -1);
  EXPECT_TRUE(tokenizer.IsSpecial(tokenizer.TokenToId("<|end|>")));
  EXPECT_FALSE(tokenizer.IsSpecial(tokenizer.TokenToId("<tool>")));
}

}  // namespace
}  // namespace loramux::gguf_tokenizer_test
