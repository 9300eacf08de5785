// Which beginnings of prompts a server has probably cached, in a form that a router without a tokenizer can compute.
//
// The text of a prompt is cut into blocks of kPrefixBlockBytes. The fingerprint of a block is a hash of the adapter and
// of all text up to the block's end, so equal fingerprints mean equal beginnings. Server and router compute them alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace loramux {

inline constexpr std::size_t kPrefixBlockBytes = 256;
inline constexpr std::size_t kMaxPrefixBlocks = 256;  // most blocks of one prompt; what follows is not fingerprinted
inline constexpr std::size_t kMaxLedgerBlocks = std::size_t{1} << 18;  // most blocks of one server
inline constexpr double kBytesPerToken = 4;                            // assumed where text is not tokenized

// Fingerprints of the whole blocks of a prompt, first to last. `adapter` is the name in the request.
std::vector<std::uint32_t> PrefixBlocks(std::string_view adapter, std::string_view text);
// The same for token ids, for simulated servers: a block is kPrefixBlockBytes / kBytesPerToken tokens.
std::vector<std::uint32_t> PrefixBlocksOfTokens(std::string_view adapter, const std::vector<std::int32_t>& tokens);

// A server's memory of the blocks that it computed. The tree of cached pages knows tokens, not text; so this is an
// estimate, kept as small as the tree's history: the blocks used last survive, and of one prompt the first blocks.
// Holds at most kMaxLedgerBlocks. Not thread-safe.
class PrefixLedger {
 public:
  // Remembers the blocks of a prompt that begins to be computed.
  void Use(const std::vector<std::uint32_t>& blocks, TimeNs now);
  // Forgets the blocks used longest ago until at most `tokens` remain, as many as the server has cached.
  void Shrink(std::int64_t tokens);
  // All fingerprints, ascending. Costs a pass over them, and sorts only those that are new or gone since the last call.
  const std::vector<std::uint32_t>& All();
  std::size_t size() const { return last_use_.size(); }

 private:
  void ShrinkToBlocks(std::size_t count);

  std::unordered_map<std::uint32_t, TimeNs> last_use_;
  std::set<std::pair<TimeNs, std::uint32_t>> by_use_;  // the same, the longest unused first
  std::vector<std::uint32_t> all_;                     // as of the last All, ascending
  std::vector<std::uint32_t> changed_;                 // blocks that came or went since, in any order; maybe repeated
  std::vector<std::uint32_t> kept_, arrived_;          // scratch of one All
};

}  // namespace loramux
