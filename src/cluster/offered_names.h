// Which models a server takes requests for. A snapshot lists only adapters that are in a tier or in demand; what a
// server could serve besides is told as fingerprints of names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cluster/server_snapshot.h"

namespace loramux {

// 64 bits that stand for a name. Servers and routers of all versions must compute the same.
std::uint64_t NameFingerprint(std::string_view name);
// A number from 1 to 2^63 - 1 that stands for such fingerprints. REQUIRES: they ascend.
std::uint64_t FingerprintsVersion(std::span<const std::uint64_t> fingerprints);
// Sets snapshot.offered and snapshot.offered_version; of more than kMaxOffered names, to none.
void SetOffered(std::span<const std::string_view> names, ServerSnapshot& snapshot);

// What a router knows of one server's models. Not thread-safe.
class OfferedNames {
 public:
  enum class Answer : std::uint8_t {
    kUnknown,
    kYes,
    kNo,
    kProbablyNot,  // a list of models lacks it, which is no proof: some servers find adapters when they are asked for
  };

  // Moves the list out of a snapshot. One without the list tells nothing new if it has the version that is known.
  void TakeFrom(ServerSnapshot& snapshot);
  // The names that a server without snapshots lists, by fingerprint, in any order. Of more than kMaxOffered: none.
  void TakeList(std::vector<std::uint64_t> fingerprints);
  void Forget() { *this = {}; }

  // Whether the server takes requests for the name with this fingerprint.
  Answer Offers(std::uint64_t fingerprint) const;

 private:
  std::vector<std::uint64_t> fingerprints_;  // ascending; empty: unknown
  std::uint64_t version_ = 0;                // version of a snapshot's list; 0: it is not from a snapshot
};

}  // namespace loramux
