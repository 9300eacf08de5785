#include "cluster/prefix_blocks.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace loramux::prefix_blocks_test {
namespace {

using ::testing::ElementsAre;

std::string Text(std::size_t bytes, char first = 'a') {
  std::string text(bytes, ' ');
  for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(first + i % 23);
  return text;
}

TEST(PrefixBlocks, OnlyWholeBlocksCountAndTheFirstOnesOnly) {
  EXPECT_TRUE(PrefixBlocks("sql", "").empty());
  EXPECT_TRUE(PrefixBlocks("sql", Text(kPrefixBlockBytes - 1)).empty());
  EXPECT_EQ(PrefixBlocks("sql", Text(kPrefixBlockBytes)).size(), 1u);
  EXPECT_EQ(PrefixBlocks("sql", Text(3 * kPrefixBlockBytes - 1)).size(), 2u);
  EXPECT_EQ(PrefixBlocks("sql", Text((kMaxPrefixBlocks + 2) * kPrefixBlockBytes)).size(), kMaxPrefixBlocks);
}

TEST(PrefixBlocks, EqualBeginningsHaveEqualFingerprintsUpToTheFirstDifference) {
  const std::string text = Text(4 * kPrefixBlockBytes);
  std::string other = text;
  other[2 * kPrefixBlockBytes + 5] = '!';
  const auto blocks = PrefixBlocks("sql", text), changed = PrefixBlocks("sql", other);
  ASSERT_EQ(blocks.size(), 4u);
  EXPECT_EQ(blocks[0], changed[0]);
  EXPECT_EQ(blocks[1], changed[1]);
  EXPECT_NE(blocks[2], changed[2]);
  EXPECT_NE(blocks[3], changed[3]) << "the same block after another beginning is another prefix";
  EXPECT_EQ(PrefixBlocks("sql", text + "more"), blocks);
  const auto of_another_adapter = PrefixBlocks("law", text);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NE(blocks[i], of_another_adapter[i]);
}

// Servers and routers of different versions must agree.
TEST(PrefixBlocks, TheFingerprintsNeverChange) {
  EXPECT_THAT(PrefixBlocks("sql", Text(2 * kPrefixBlockBytes)), ElementsAre(61846194u, 2066123964u));
  EXPECT_THAT(PrefixBlocks("", Text(kPrefixBlockBytes)), ElementsAre(3865754468u));
}

TEST(PrefixBlocks, TokensStandForFourBytesEach) {
  std::vector<std::int32_t> tokens(200);
  std::iota(tokens.begin(), tokens.end(), 1000);
  const auto blocks = PrefixBlocksOfTokens("sql", tokens);
  EXPECT_EQ(blocks.size(), 3u);  // three blocks of 64 tokens
  tokens[64] = 7;
  const auto changed = PrefixBlocksOfTokens("sql", tokens);
  EXPECT_EQ(blocks[0], changed[0]);
  EXPECT_NE(blocks[1], changed[1]);
}

TEST(PrefixLedger, KeepsTheBlocksUsedLastAndOfOnePromptTheFirst) {
  PrefixLedger ledger;
  ledger.Use({10, 11, 12, 13}, 1000);
  ledger.Use({20, 21}, 2000);
  ledger.Use({10, 11}, 3000);
  EXPECT_THAT(ledger.All(), ElementsAre(10u, 11u, 12u, 13u, 20u, 21u));
  ledger.Shrink(5 * 64 + 63);  // a block is 64 tokens
  EXPECT_THAT(ledger.All(), ElementsAre(10u, 11u, 12u, 20u, 21u));
  ledger.Shrink(3 * 64);
  EXPECT_THAT(ledger.All(), ElementsAre(10u, 11u, 20u));
  ledger.Shrink(63);
  EXPECT_EQ(ledger.size(), 0u);
  ledger.Shrink(-1);
  EXPECT_EQ(ledger.size(), 0u);
}

TEST(PrefixLedger, AnEarlierUseDoesNotMakeABlockOlder) {
  PrefixLedger ledger;
  ledger.Use({1}, 5000);
  ledger.Use({2}, 4000);
  ledger.Use({1}, 3000);
  ledger.Shrink(64);
  EXPECT_THAT(ledger.All(), ElementsAre(1u));
}

TEST(PrefixLedger, AllIsTheSameWheneverItIsAsked) {
  PrefixLedger often, once;
  for (TimeNs now = 0; now < 300; ++now) {
    const auto block = [&](TimeNs n) { return static_cast<std::uint32_t>((now * 7919 + n * 31) % 97); };
    for (PrefixLedger* ledger : {&often, &once}) {
      ledger->Use({block(0), block(1), block(2)}, 1000 * now);
      if (now % 5 == 0) ledger->Shrink(64 * 40);
    }
    const auto& all = often.All();
    EXPECT_EQ(all.size(), often.size());
    EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  }
  EXPECT_EQ(often.All(), once.All());
}

TEST(PrefixLedger, NeverGrowsBeyondItsLimit) {
  PrefixLedger ledger;
  std::uint32_t next = 0;
  for (TimeNs now = 0; now < 2000; ++now) {
    std::vector<std::uint32_t> blocks(kMaxPrefixBlocks);
    for (std::uint32_t& block : blocks) block = next++;
    ledger.Use(blocks, now * 1'000'000);
    ASSERT_LE(ledger.size(), kMaxLedgerBlocks);
  }
  EXPECT_GT(ledger.size(), kMaxLedgerBlocks / 2);
  const auto all = ledger.All();
  EXPECT_TRUE(std::binary_search(all.begin(), all.end(), next - 1)) << "the last block was used last";
  EXPECT_FALSE(std::binary_search(all.begin(), all.end(), 0u));
}

}  // namespace
}  // namespace loramux::prefix_blocks_test
