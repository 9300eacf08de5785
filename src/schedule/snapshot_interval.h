// How many tokens lie between two snapshots of a request's states.
#pragma once

#include <algorithm>
#include <cstdint>

namespace loramux {

// The interval follows from what requests could have used. A snapshot at a multiple of it serves the request that is
// the first to part from an earlier one between two other snapshots: all tokens from the last snapshot on have keys and
// values, but are computed again. So after every 64 requests, tokens that were computed again are weighed against the
// room that such snapshots took, in tokens of keys and values: the interval is halved where more was computed again,
// and doubled where less than an eighth was, which leaves room for what either does to both. At most eight times more
// or less than the number it began with.
class SnapshotInterval {
 public:
  // `tokens`: SystemSpec::state_snapshot_tokens, a multiple of `page_tokens`; 0: no snapshots. `room`: what a snapshot
  // holds.
  SnapshotInterval(std::int64_t tokens, std::int64_t page_tokens, std::int64_t room)
      : tokens_(tokens), first_(tokens), page_tokens_(page_tokens), room_(room) {}

  std::int64_t tokens() const { return tokens_; }
  // Tokens that a snapshot saves at least, in full pages: a sixteenth of the interval. In an answer, every so many.
  std::int64_t least() const { return std::max<std::int64_t>(1, tokens_ / 16 / page_tokens_) * page_tokens_; }

  // Whether a snapshot after so many tokens, of a prompt and its answer, is there for the end of the answer alone: it
  // goes when the next one is taken.
  bool Passes(std::int64_t prompt, std::int64_t at) const { return at >= prompt && at % tokens_ != 0; }

  // A snapshot was taken after so many tokens.
  void Taken(std::int64_t at) { taken_ += tokens_ > 0 && at % tokens_ == 0; }
  // A request began. The cache had keys and values of `again` tokens more than it could begin after. Where these are
  // more than an interval, a snapshot was evicted, and shorter ones would only evict more.
  void Began(std::int64_t again) {
    if (tokens_ == 0) return;
    if (again <= tokens_) again_ += again;
    if (++requests_ < kRequests) return;
    const std::int64_t room = taken_ * room_;
    if (again_ > room)
      tokens_ = std::max({tokens_ / 2, first_ / 8, page_tokens_}) / page_tokens_ * page_tokens_;
    else if (again_ < room / 8)
      tokens_ = std::min(tokens_ * 2, first_ * 8);
    requests_ = again_ = taken_ = 0;
  }

 private:
  static constexpr std::int64_t kRequests = 64;

  std::int64_t tokens_;
  const std::int64_t first_, page_tokens_, room_;
  std::int64_t requests_ = 0, again_ = 0, taken_ = 0;
};

}  // namespace loramux
