#include "engine/ngram_index.h"

#include <algorithm>

namespace loramux {
namespace {

constexpr std::size_t kHashes = 2048;  // a power of two

// The last `least` tokens.
std::size_t HashOf(std::span<const TokenId> text, std::size_t least) {
  std::uint64_t hash = 0;
  for (const TokenId token : text.last(least)) hash = (hash + static_cast<std::uint64_t>(token)) * 0x9e3779b97f4a7c15u;
  return static_cast<std::size_t>(hash >> 32) & (kHashes - 1);
}

}  // namespace

void NgramIndex::Grow(std::span<const TokenId> text, std::size_t least) {
  if (text.size() <= least) return;
  if (last_.empty()) last_.assign(kHashes, 0);
  const std::size_t first = std::max(before_.size(), least);
  before_.resize(text.size(), 0);
  for (std::size_t place = first; place < text.size(); ++place) {
    std::int32_t& last = last_[HashOf(text.first(place), least)];
    before_[place] = last;
    last = static_cast<std::int32_t>(place);
  }
}

NgramIndex::Match NgramIndex::Find(std::span<const TokenId> text, std::span<const TokenId> end, std::size_t least,
                                   std::size_t most) const {
  Match best;
  if (last_.empty() || end.size() < least) return best;
  most = std::min(most, end.size());
  std::int32_t place = last_[HashOf(end, least)];
  for (int seen = 0; place > 0 && seen < kMostPlaces; ++seen) {
    const auto at = static_cast<std::size_t>(place);
    std::size_t agree = 0;
    while (agree < most && agree < at && text[at - 1 - agree] == end[end.size() - 1 - agree]) ++agree;
    if (agree >= least && agree > best.tokens) best = {agree, text.subspan(at)};
    if (best.tokens == most) break;
    place = before_[at];
  }
  return best;
}

void NgramIndex::Clear() {
  std::ranges::fill(last_, 0);
  before_.clear();
}

}  // namespace loramux
