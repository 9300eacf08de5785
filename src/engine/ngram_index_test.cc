#include "engine/ngram_index.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace loramux {
namespace {

using Tokens = std::vector<TokenId>;

// What Find must find: by looking everywhere.
NgramIndex::Match Search(std::span<const TokenId> text, std::span<const TokenId> end, std::size_t least,
                         std::size_t most) {
  NgramIndex::Match best;
  for (std::size_t at = 1; at < text.size(); ++at) {
    std::size_t agree = 0;
    while (agree < std::min({most, at, end.size()}) && text[at - 1 - agree] == end[end.size() - 1 - agree]) ++agree;
    if (agree >= least && agree >= best.tokens) best = {agree, text.subspan(at)};
  }
  return best;
}

NgramIndex::Match Find(const Tokens& text, const Tokens& end, std::size_t least, std::size_t most) {
  NgramIndex index;
  index.Grow(text, least);
  return index.Find(text, end, least, most);
}

Tokens NextOf(const NgramIndex::Match& match) { return {match.next.begin(), match.next.end()}; }

TEST(NgramIndex, TakesTheLongestAndTheLatest) {
  const Tokens text = {1, 2, 3, 4, 9, 2, 3, 5, 9, 2, 3, 6, 1, 2, 3};
  EXPECT_EQ(Find(text, text, 2, 3).tokens, 3u);
  EXPECT_EQ(NextOf(Find(text, text, 2, 3)).front(), 4);  // behind 1 2 3
  EXPECT_EQ(NextOf(Find(text, text, 2, 2)), (Tokens{6, 1, 2, 3}));
  EXPECT_EQ(Find(text, text, 4, 8).tokens, 0u);
  EXPECT_TRUE(Find(text, text, 4, 8).next.empty());
  EXPECT_EQ(NextOf(Find(text, {8, 9, 2}, 2, 8)), (Tokens{3, 6, 1, 2, 3}));
  EXPECT_EQ(Find(text, {8, 7}, 1, 8).tokens, 0u);
  EXPECT_EQ(Find({5}, {5}, 1, 8).tokens, 0u);  // nothing follows
  EXPECT_EQ(NextOf(Find({5, 5, 5}, {5, 5, 5}, 1, 8)), (Tokens{5}));
  EXPECT_EQ(Find({}, {}, 1, 8).tokens, 0u);
}

// As a text grows and is forgotten, with few and with many different tokens.
TEST(NgramIndex, FindsWhatASearchFinds) {
  Prng prng(3);
  std::int64_t found = 0;
  for (int run = 0; run < 60; ++run) {
    const std::uint64_t kinds = run % 3 == 0 ? 12 : 40;
    const std::size_t least = 1 + prng.NextBelow(3), most = least + prng.NextBelow(5);
    NgramIndex index;
    Tokens text;
    for (int i = 0; i < 90; ++i) {
      for (std::uint64_t more = prng.NextBelow(4); more > 0; --more)
        text.push_back(static_cast<TokenId>(prng.NextBelow(kinds)));
      index.Grow(text, least);
      Tokens end = text;
      for (std::uint64_t more = prng.NextBelow(3); more > 0; --more)
        end.push_back(static_cast<TokenId>(prng.NextBelow(kinds)));
      const NgramIndex::Match match = index.Find(text, end, least, most), expected = Search(text, end, least, most);
      ASSERT_EQ(match.tokens, expected.tokens);
      ASSERT_EQ(match.next.size(), expected.next.size());
      found += match.tokens > 0;
      if (prng.NextBelow(40) == 0) {
        text.clear();
        index.Clear();
      }
    }
  }
  EXPECT_GT(found, 1000);
}

}  // namespace
}  // namespace loramux
