#include "text/grammar/free_prefix.h"

#include <string>

#include <gmock/gmock.h>

#include "text/grammar/byte_tokenizer_for_test.h"
#include "text/grammar/grammar_compiler.h"
#include "text/grammar/matching_for_test.h"

namespace loramux::free_prefix_test {
namespace {

constexpr TokenId kBegin = 400, kEnd = 401;

FreePrefix Prefix(bool begun) {
  return {.begin = kBegin, .end = kEnd, .begun = begun, .gap = {TokenOfByte('\n')}, .excluded = {kByteEos}};
}

class FreePrefixTest : public ::testing::Test {
 protected:
  FreePrefixTest() : compiler_(*GrammarCompiler::Create(tokenizer_, std::vector<TokenId>{kByteEos}, {})) {
    grammar_ = *compiler_->Compile({GrammarKind::kRegex, "[ab]+", "field"});
  }
  // Whether the sequence allows each of the tokens in turn, and its end behind them.
  bool Accepts(FreePrefix prefix, const std::vector<TokenId>& tokens) const {
    const auto sequence = AllowPrefix(std::move(prefix), kEnd + 1, *grammar_->Begin());
    for (const TokenId token : tokens) {
      if (!Allows(sequence->Allowed(), token)) return false;
      sequence->Advance(token);
    }
    return Allows(sequence->Allowed(), kByteEos);
  }

  static constexpr TokenId kA = TokenOfByte('a'), kB = TokenOfByte('b'), kX = TokenOfByte('x'),
                           kBreak = TokenOfByte('\n');
  const Tokenizer tokenizer_ = MakeByteTokenizer();
  const std::unique_ptr<GrammarCompiler> compiler_;
  std::shared_ptr<const Grammar> grammar_;
};

TEST_F(FreePrefixTest, TheAnswerFollowsThePrefix) {
  EXPECT_TRUE(Accepts(Prefix(true), {kX, kBreak, kA, kEnd, kA, kB}));
  EXPECT_TRUE(Accepts(Prefix(true), {kEnd, kBreak, kA}));
  EXPECT_TRUE(Accepts(Prefix(true), {kBegin, kX, kEnd, kA}));  // a model may repeat what the prompt began
  EXPECT_FALSE(Accepts(Prefix(true), {kX, kEnd, kX}));
  EXPECT_FALSE(Accepts(Prefix(true), {kEnd, kBreak, kBreak, kA}));
  EXPECT_FALSE(Accepts(Prefix(true), {kEnd, kA, kEnd}));
  EXPECT_FALSE(Accepts(Prefix(true), {kEnd, kA, kBreak}));
}

TEST_F(FreePrefixTest, NothingEndsWithoutItsAnswer) {
  EXPECT_FALSE(Accepts(Prefix(true), {}));
  EXPECT_FALSE(Accepts(Prefix(true), {kX}));
  EXPECT_FALSE(Accepts(Prefix(true), {kX, kEnd}));
  EXPECT_FALSE(Accepts(Prefix(true), {kX, kEnd, kBreak}));
}

TEST_F(FreePrefixTest, WithoutAPromptThatBeginsItTheModelMay) {
  EXPECT_TRUE(Accepts(Prefix(false), {kA, kB}));
  EXPECT_TRUE(Accepts(Prefix(false), {kBegin, kX, kEnd, kB}));
  EXPECT_FALSE(Accepts(Prefix(false), {kX}));
  EXPECT_FALSE(Accepts(Prefix(false), {kA, kBegin}));
  EXPECT_FALSE(Accepts(Prefix(false), {kEnd}));
  EXPECT_FALSE(Accepts(Prefix(false), {kBreak, kA}));
}

// A token that the grammar does not know ends the answer where the grammar's own end does, and nowhere else.
TEST_F(FreePrefixTest, AnotherTokenMayEndTheAnswerToo) {
  const auto sequence = AllowEnds({kEnd}, {kByteEos}, *grammar_->Begin());
  EXPECT_FALSE(Allows(sequence->Allowed(), kEnd));
  sequence->Advance(kA);
  EXPECT_TRUE(Allows(sequence->Allowed(), kEnd));
  EXPECT_TRUE(Allows(sequence->Allowed(), kByteEos));
  EXPECT_TRUE(Allows(sequence->Allowed(), kB));
  EXPECT_FALSE(Allows(sequence->Allowed(), kX));
}

// Fails with its first token.
class Failing final : public TokenConstraint {
 public:
  void Advance(TokenId) override { failed_ = true; }
  std::span<const std::uint32_t> Allowed() override {
    return failed_ ? std::span<const std::uint32_t>() : std::span<const std::uint32_t>(all_);
  }
  const Error* failure() const override { return failed_ ? &error_ : nullptr; }

 private:
  bool failed_ = false;
  const std::vector<std::uint32_t> all_ = {~0u};
  const Error error_ = Internal("stuck");
};

TEST_F(FreePrefixTest, AFailureOfTheAnswerIsOne) {
  const auto sequence = AllowPrefix(Prefix(true), kEnd + 1, std::make_shared<Failing>());
  for (const TokenId token : {kX, kEnd}) {
    EXPECT_FALSE(sequence->Allowed().empty());
    EXPECT_EQ(sequence->failure(), nullptr);
    sequence->Advance(token);
  }
  EXPECT_FALSE(sequence->Allowed().empty());
  sequence->Advance(TokenId{3});
  EXPECT_TRUE(sequence->Allowed().empty());
  ASSERT_NE(sequence->failure(), nullptr);
  EXPECT_EQ(sequence->failure()->message, "stuck");
}

TEST_F(FreePrefixTest, TagsMustBeTokens) {
  EXPECT_FALSE(PrefixBetween(tokenizer_, "<think>", "</think>", true));
  EXPECT_FALSE(PrefixBetween(tokenizer_, "<s>", "</think>", true));
  EXPECT_FALSE(PrefixBetween(tokenizer_, "<think>", "</s>", false));
  EXPECT_TRUE(PrefixBetween(tokenizer_, "<think>", "</s>", true));
  const auto prefix = PrefixBetween(tokenizer_, "<s>", "</s>", false);
  ASSERT_TRUE(prefix);
  EXPECT_EQ(prefix->begin, 0);
  EXPECT_EQ(prefix->end, 1);
  EXPECT_THAT(prefix->gap, ::testing::ElementsAre(TokenOfByte('\n')));
}

}  // namespace
}  // namespace loramux::free_prefix_test
