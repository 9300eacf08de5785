#include "cluster/offered_names.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <xxhash.h>

namespace loramux {
namespace {

void Order(std::vector<std::uint64_t>& fingerprints) {
  std::sort(fingerprints.begin(), fingerprints.end());
  fingerprints.erase(std::unique(fingerprints.begin(), fingerprints.end()), fingerprints.end());
}

}  // namespace

std::uint64_t NameFingerprint(std::string_view name) { return XXH3_64bits(name.data(), name.size()); }

std::uint64_t FingerprintsVersion(std::span<const std::uint64_t> fingerprints) {
  const std::uint64_t hash = XXH3_64bits(fingerprints.data(), fingerprints.size_bytes());
  return std::max<std::uint64_t>(1, hash & std::numeric_limits<std::int64_t>::max());
}

void SetOffered(std::span<const std::string_view> names, ServerSnapshot& snapshot) {
  snapshot.offered.clear();
  snapshot.offered_version = 0;
  if (names.empty() || names.size() > kMaxOffered) return;
  snapshot.offered.reserve(names.size());
  for (const std::string_view name : names) snapshot.offered.push_back(NameFingerprint(name));
  Order(snapshot.offered);
  snapshot.offered_version = FingerprintsVersion(snapshot.offered);
}

void OfferedNames::TakeFrom(ServerSnapshot& snapshot) {
  if (snapshot.offered.empty() && snapshot.offered_version == version_ && version_ != 0) return;
  fingerprints_ = std::exchange(snapshot.offered, {});
  version_ = snapshot.offered_version;
  if (fingerprints_.empty() || version_ == 0) Forget();
}

void OfferedNames::TakeList(std::vector<std::uint64_t> fingerprints) {
  Forget();
  if (fingerprints.size() > kMaxOffered) return;
  fingerprints_ = std::move(fingerprints);
  Order(fingerprints_);
}

OfferedNames::Answer OfferedNames::Offers(std::uint64_t fingerprint) const {
  if (fingerprints_.empty()) return Answer::kUnknown;
  if (std::binary_search(fingerprints_.begin(), fingerprints_.end(), fingerprint)) return Answer::kYes;
  return version_ != 0 ? Answer::kNo : Answer::kProbablyNot;
}

}  // namespace loramux
