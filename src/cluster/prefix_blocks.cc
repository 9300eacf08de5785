#include "cluster/prefix_blocks.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <xxhash.h>

namespace loramux {
namespace {

// Fingerprints of the whole blocks of `bytes`. Each hash goes into the next one, so it stands for all text before it.
std::vector<std::uint32_t> Fingerprints(std::string_view adapter, std::string_view bytes) {
  const std::size_t count = std::min(bytes.size() / kPrefixBlockBytes, kMaxPrefixBlocks);
  std::vector<std::uint32_t> blocks;
  blocks.reserve(count);
  std::uint64_t hash = XXH3_64bits(adapter.data(), adapter.size());
  for (std::size_t i = 0; i < count; ++i) {
    hash = XXH3_64bits_withSeed(bytes.data() + i * kPrefixBlockBytes, kPrefixBlockBytes, hash);
    blocks.push_back(static_cast<std::uint32_t>(hash));
  }
  return blocks;
}

}  // namespace

std::vector<std::uint32_t> PrefixBlocks(std::string_view adapter, std::string_view text) {
  return Fingerprints(adapter, text);
}

std::vector<std::uint32_t> PrefixBlocksOfTokens(std::string_view adapter, const std::vector<std::int32_t>& tokens) {
  // A token stands for kBytesPerToken bytes of text and has as many.
  static_assert(sizeof(std::int32_t) == static_cast<std::size_t>(kBytesPerToken));
  return Fingerprints(adapter,
                      {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(decltype(tokens.front()))});
}

void PrefixLedger::Use(const std::vector<std::uint32_t>& blocks, TimeNs now) {
  // A block is worth nothing without those before it, so it counts as used a little earlier.
  TimeNs at = now;
  for (const std::uint32_t block : blocks) {
    const auto [use, fresh] = last_use_.try_emplace(block, at);
    if (fresh) {
      changed_.push_back(block);
      by_use_.emplace(at, block);
    } else if (use->second < at) {
      auto order = by_use_.extract({use->second, block});
      order.value().first = use->second = at;
      by_use_.insert(std::move(order));
    }
    --at;
  }
  if (last_use_.size() > kMaxLedgerBlocks) ShrinkToBlocks(kMaxLedgerBlocks - kMaxLedgerBlocks / 8);
}

void PrefixLedger::Shrink(std::int64_t tokens) {
  const double blocks = static_cast<double>(std::max<std::int64_t>(tokens, 0)) * kBytesPerToken / kPrefixBlockBytes;
  ShrinkToBlocks(static_cast<std::size_t>(std::min(blocks, static_cast<double>(kMaxLedgerBlocks))));
}

void PrefixLedger::ShrinkToBlocks(std::size_t count) {
  while (last_use_.size() > count) {
    const std::uint32_t block = by_use_.begin()->second;
    by_use_.erase(by_use_.begin());
    last_use_.erase(block);
    changed_.push_back(block);
  }
}

const std::vector<std::uint32_t>& PrefixLedger::All() {
  if (changed_.empty()) return all_;
  std::sort(changed_.begin(), changed_.end());
  changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
  kept_.clear();
  std::set_difference(all_.begin(), all_.end(), changed_.begin(), changed_.end(), std::back_inserter(kept_));
  arrived_.clear();
  std::copy_if(changed_.begin(), changed_.end(), std::back_inserter(arrived_),
               [&](std::uint32_t block) { return last_use_.contains(block); });
  changed_.clear();
  all_.clear();
  std::merge(kept_.begin(), kept_.end(), arrived_.begin(), arrived_.end(), std::back_inserter(all_));
  return all_;
}

}  // namespace loramux
