#include "schedule/predict/history_predictor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <unordered_set>

#include <xxhash.h>

#include "base/check.h"

namespace loramux {
namespace {

// Bound of the log distance by which one observation counts: a factor of e^2, about 7.
constexpr float kReach = 2;
// Observations of a level before kReach applies; the first ones place the mean.
constexpr float kSurprising = 8;
const float kUsualLog = std::log(256.0f);
constexpr float kMemory = 256;  // number of observations from which on old ones fade
constexpr float kPrior = 4;     // number of observations as which the more general level counts
constexpr float kMaxLog = 22;   // about ln(2^31)

constexpr std::string_view kMagic = "LORAMUXH";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 8 + 4 + 4 + 8;

template <typename T>
void Put(std::string& out, const T& value) {
  static_assert(std::endian::native == std::endian::little && std::is_trivially_copyable_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

template <typename T>
T Get(std::string_view bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

}  // namespace

std::size_t HistoryPredictor::BucketOf(std::int32_t prompt_tokens) {
  const auto tokens = static_cast<std::uint32_t>(std::max(1, prompt_tokens));
  const auto octave = static_cast<std::size_t>(std::bit_width(tokens)) - 1;
  const bool upper_half = octave > 0 && ((tokens >> (octave - 1)) & 1) != 0;
  return std::min(kPromptBuckets - 1, 2 * octave + (upper_half ? 1 : 0));
}

HistoryPredictor::HistoryPredictor(std::size_t max_adapters) : max_adapters_(max_adapters) {
  CHECK_GT(max_adapters_, std::size_t{0});
  slots_.reserve(max_adapters_);
}

// ---------------------------------------------------------------- Predicting and learning

// The more general level counts as kPrior observations.
float HistoryPredictor::Blend(const Level& level, float general) const {
  return (level.weight * level.log_mean + kPrior * general) / (level.weight + kPrior);
}

std::int32_t HistoryPredictor::Predict(const LengthQuery& query) {
  const std::size_t bucket = BucketOf(query.prompt_tokens);
  const std::lock_guard lock(mutex_);
  float guess = base_.all.weight > 0 ? base_.all.log_mean : kUsualLog;
  guess = Blend(base_.by_prompt[bucket], guess);
  const auto slot = slots_.find(XXH3_64bits(query.adapter_digest.data(), query.adapter_digest.size()));
  if (slot != slots_.end()) {
    const Group& group = groups_[slot->second];
    guess = Blend(group.by_prompt[bucket], Blend(group.all, guess));
  }
  const double tokens = std::round(std::exp(static_cast<double>(guess)));
  return static_cast<std::int32_t>(
      std::clamp(tokens, 1.0, std::max(1.0, static_cast<double>(query.max_output_tokens))));
}

void HistoryPredictor::Learn(Level& level, float log_length, bool at_least) const {
  if (at_least && level.weight > 0 && log_length <= level.log_mean) return;  // no new information
  float surprise = log_length - level.log_mean;
  if (level.weight >= kSurprising) surprise = std::clamp(surprise, -kReach, kReach);
  level.weight = std::min(level.weight + 1, kMemory);
  level.log_mean += surprise / level.weight;
}

void HistoryPredictor::Observe(const LengthQuery& query, std::int32_t output_tokens) {
  const float log_length = std::log(static_cast<float>(std::max(1, output_tokens)));
  const bool at_least = output_tokens >= query.max_output_tokens;
  const std::size_t bucket = BucketOf(query.prompt_tokens);
  const std::lock_guard lock(mutex_);
  Group& group = GroupOf(query.adapter_digest);
  for (Level* level : {&base_.all, &base_.by_prompt[bucket], &group.all, &group.by_prompt[bucket]})
    Learn(*level, log_length, at_least);
}

HistoryPredictor::Group& HistoryPredictor::GroupOf(std::string_view digest) {
  const std::uint64_t key = XXH3_64bits(digest.data(), digest.size());
  const auto known = slots_.find(key);
  const std::uint32_t slot = known != slots_.end() ? known->second : SlotFor(key);
  if (used_.Contains(slot)) used_.Remove(slot);
  used_.Append(slot);
  return groups_[slot];
}

std::uint32_t HistoryPredictor::SlotFor(std::uint64_t key) {
  if (groups_.size() < max_adapters_) {
    const auto slot = static_cast<std::uint32_t>(groups_.size());
    groups_.emplace_back();
    keys_.push_back(key);
    slots_.emplace(key, slot);
    return slot;
  }
  const std::uint32_t slot = used_.first();
  auto node = slots_.extract(keys_[slot]);  // reuses the memory of the node
  node.key() = key;
  slots_.insert(std::move(node));
  keys_[slot] = key;
  groups_[slot] = {};
  return slot;
}

std::size_t HistoryPredictor::adapters() const {
  const std::lock_guard lock(mutex_);
  return groups_.size();
}

// ---------------------------------------------------------------- As bytes

std::string HistoryPredictor::Serialise() const {
  std::string payload;
  std::uint32_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    count = static_cast<std::uint32_t>(groups_.size());
    payload.reserve(sizeof(Group) + count * (sizeof(std::uint64_t) + sizeof(Group)));
    Put(payload, base_);
    for (std::uint32_t slot = used_.first(); slot != IndexChain::kNone; slot = used_.next(slot)) {
      Put(payload, keys_[slot]);
      Put(payload, groups_[slot]);
    }
  }
  std::string bytes(kMagic);
  Put(bytes, kVersion);
  Put(bytes, count);
  Put(bytes, static_cast<std::uint64_t>(XXH3_64bits_withSeed(payload.data(), payload.size(), count)));
  return bytes + payload;
}

bool HistoryPredictor::Plausible(const Level& level) const {
  return level.log_mean >= 0 && level.log_mean <= kMaxLog && level.weight >= 0 && std::isfinite(level.weight);
}

Status HistoryPredictor::Check(std::string_view bytes) const {
  if (bytes.size() < kHeaderBytes + sizeof(Group) || bytes.substr(0, kMagic.size()) != kMagic) {
    return InvalidArgument("expected a loramux history of output lengths, found another file");
  }
  const auto version = Get<std::uint32_t>(bytes, 8);
  if (version != kVersion) {
    return InvalidArgument("expected version " + std::to_string(kVersion) + ", found " + std::to_string(version));
  }
  const std::size_t count = Get<std::uint32_t>(bytes, 12);
  const std::string_view payload = bytes.substr(kHeaderBytes);
  const std::size_t expected = sizeof(Group) + count * (sizeof(std::uint64_t) + sizeof(Group));
  if (payload.size() != expected) {
    return InvalidArgument("expected " + std::to_string(expected) + " bytes for " + std::to_string(count) +
                           " adapters, found " + std::to_string(payload.size()));
  }
  if (Get<std::uint64_t>(bytes, 16) != XXH3_64bits_withSeed(payload.data(), payload.size(), count)) {
    return InvalidArgument("the checksum does not match");
  }
  return CheckGroups(payload, count);
}

Status HistoryPredictor::CheckGroups(std::string_view payload, std::size_t count) const {
  std::unordered_set<std::uint64_t> keys;
  for (std::size_t i = 0; i <= count; ++i) {
    const std::size_t offset =
        i == 0 ? 0 : sizeof(Group) + (i - 1) * (sizeof(std::uint64_t) + sizeof(Group)) + sizeof(std::uint64_t);
    if (i > 0 && !keys.insert(Get<std::uint64_t>(payload, offset - sizeof(std::uint64_t))).second) {
      return InvalidArgument("an adapter occurs twice");
    }
    const auto group = Get<Group>(payload, offset);
    bool plausible = Plausible(group.all);
    for (const Level& level : group.by_prompt) plausible = plausible && Plausible(level);
    if (!plausible) return InvalidArgument("the statistics of adapter " + std::to_string(i) + " fit no output lengths");
  }
  return Ok{};
}

Status HistoryPredictor::Restore(std::string_view bytes) {
  RETURN_IF_ERROR(Check(bytes));
  const std::string_view payload = bytes.substr(kHeaderBytes);
  const std::size_t count = Get<std::uint32_t>(bytes, 12);
  const auto kept = [this](Group group) {  // the levels may come from a predictor with more memory
    group.all.weight = std::min(group.all.weight, kMemory);
    for (Level& level : group.by_prompt) level.weight = std::min(level.weight, kMemory);
    return group;
  };
  const std::lock_guard lock(mutex_);
  base_ = kept(Get<Group>(payload, 0));
  groups_.clear();
  keys_.clear();
  slots_.clear();
  used_ = {};
  for (std::size_t i = count - std::min(count, max_adapters_); i < count; ++i) {
    const std::size_t offset = sizeof(Group) + i * (sizeof(std::uint64_t) + sizeof(Group));
    const std::uint32_t slot = SlotFor(Get<std::uint64_t>(payload, offset));
    used_.Append(slot);
    groups_[slot] = kept(Get<Group>(payload, offset + sizeof(std::uint64_t)));
  }
  return Ok{};
}

}  // namespace loramux
