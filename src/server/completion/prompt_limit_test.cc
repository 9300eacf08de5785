#include "server/completion/prompt_limit.h"

#include <ctime>

#include <gmock/gmock.h>

#include "server/completion/chat_prompt.h"
#include "server/server_fixture.h"

namespace loramux::prompt_limit_test {
namespace {

using testing::HasSubstr;

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

class PromptLimitTest : public testing::Test {
 protected:
  Result<std::vector<TokenId>> Encode(std::string_view text, const PromptLimit& limit) {
    return EncodePrompt(tokenizer_, text, false, limit);
  }
  const Tokenizer tokenizer_ = ServingFixture::LoadTokenizer();  // one byte is one token
};

TEST_F(PromptLimitTest, FollowsFromTheLongestToken) {
  const PromptLimit limit = PromptLimit::For(tokenizer_, 10);
  EXPECT_EQ(limit.tokens, 10);
  EXPECT_EQ(limit.bytes, 10 * std::string_view("</s>").size());
  EXPECT_EQ(PromptLimit::For(tokenizer_, INT64_MAX).bytes, SIZE_MAX);  // no overflow
}

TEST_F(PromptLimitTest, EncodesExactlyWhatFits) {
  const PromptLimit limit = PromptLimit::For(tokenizer_, 10);
  EXPECT_EQ(*Encode("0123456789", limit), Bytes("0123456789"));
  EXPECT_THAT(Encode("0123456789a", limit).error().message, HasSubstr("maximum context length is 10 tokens"));
  EXPECT_THAT(Encode(std::string(41, 'x'), limit).error().message, HasSubstr("at most 40 bytes"));
}

TEST_F(PromptLimitTest, LongTextsGiveTheSameTokensAsWhole) {
  std::string text;
  for (int i = 0; i < 60'000; ++i) text += i % 7 == 0 ? " \xC3\xA4" : "ab";
  const auto expected = *tokenizer_.Encode(text, false);
  PromptLimit limit{.tokens = static_cast<std::int64_t>(expected.size())};
  EXPECT_EQ(*Encode(text, limit), expected);
  --limit.tokens;
  EXPECT_FALSE(Encode(text, limit).ok());
}

TEST_F(PromptLimitTest, TheEndOfAPromptKeepsItsFirstSpecialTokens) {
  const PromptLimit limit = PromptLimit::For(tokenizer_, 10);
  const auto end = [&](std::string_view text, bool special, std::int64_t keep) {
    return *EncodeEndOfPrompt(tokenizer_, text, special, limit, keep);
  };
  EXPECT_EQ(end("0123456789", false, 3), Bytes("789"));
  EXPECT_EQ(end("0123456789", false, 10), Bytes("0123456789"));
  EXPECT_EQ(end(std::string(1000, 'x') + "y", false, 2), Bytes("xy"));
  std::vector<TokenId> expected = *tokenizer_.Encode("", true);
  const auto special = static_cast<std::int64_t>(expected.size());
  for (const TokenId id : Bytes("89")) expected.push_back(id);
  EXPECT_EQ(end("0123456789", true, special + 2), expected);
  EXPECT_THAT(EncodeEndOfPrompt(tokenizer_, std::string(70'000, 'x'), false, limit, 2).error().message,
              HasSubstr("at most 65536 bytes"));
}

// Encoding all of these texts takes seconds and gigabytes.
TEST_F(PromptLimitTest, AHugeTextIsRefusedEarly) {
  const std::string word(std::size_t{16} << 20, 'a');
  std::string words = word;
  for (std::size_t i = 0; i < words.size(); i += 5) words[i] = ' ';
  for (const std::string& text : {word, words}) {
    const double start = CpuSeconds();
    EXPECT_FALSE(Encode(text, PromptLimit::For(tokenizer_, 1024)).ok());  // by its bytes
    EXPECT_LT(CpuSeconds() - start, 0.05);
    // By the tokens of its first pieces, for a tokenizer without a longest token.
    EXPECT_THAT(Encode(text, {.tokens = 1024}).error().message, HasSubstr("your prompt of 16777216 bytes has more"));
    EXPECT_LT(CpuSeconds() - start, 2);
  }
}

TEST_F(PromptLimitTest, CharactersAreNotCut) {
  std::string text;
  while (text.size() < 100'000) text += "\xE2\x82\xAC";  // no white space to cut at
  EXPECT_EQ(Encode(text, {.tokens = 1000}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(Encode(text, {.tokens = 1000}).error().message, HasSubstr("maximum context length"));
}

// A search from the end that compares the whole message at every place would take 10^12 steps.
TEST(CutAfterFinalMessage, TakesLinearTime) {
  const std::string rendered(2'000'000, 'a');
  const std::string message = std::string(1'000'000, 'a') + "b";
  const double start = CpuSeconds();
  EXPECT_FALSE(CutAfterFinalMessage(rendered, message).ok());
  EXPECT_EQ(CutAfterFinalMessage(rendered + "b", message)->size(), 2'000'001u);
  EXPECT_LT(CpuSeconds() - start, 5);
}

}  // namespace
}  // namespace loramux::prompt_limit_test
