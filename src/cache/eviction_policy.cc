#include "cache/eviction_policy.h"

#include <algorithm>
#include <array>

namespace loramux {
namespace {

class Lru final : public EvictionPolicy {
 public:
  double Score(const EvictionCandidate& candidate, TimeNs) const override {
    return static_cast<double>(candidate.last_use);
  }
  std::string_view name() const override { return "lru"; }
};

// Of a page, in reads from disk (with conversion and packing). A copy from the host tier takes about a tenth; the prefill
// of a page's 16 tokens, at 2 multiply-adds a weight and token, many times as long.
double PageCost(ReloadFrom reload) {
  switch (reload) {
    case ReloadFrom::kHost: return 0.1;
    case ReloadFrom::kDisk: return 1.0;
    case ReloadFrom::kComputation: return 10.0;
  }
  return 1.0;
}

class Gdsf final : public EvictionPolicy {
 public:
  double Score(const EvictionCandidate& candidate, TimeNs now) const override {
    constexpr double kFixedCost = 8.0;   // pages' worth of latency that every reload has, whatever its size
    const double pages = static_cast<double>(std::max<std::int64_t>(1, candidate.pages));
    const double idle_ms = static_cast<double>(std::max<TimeNs>(0, now - candidate.last_use)) / kNsPerMs + 1.0;
    return (candidate.uses + 1) * (kFixedCost + pages * PageCost(candidate.reload)) / (pages * idle_ms);
  }
  std::string_view name() const override { return "gdsf"; }
};

struct Entry {
  std::string_view name;
  std::unique_ptr<EvictionPolicy> (*make)();
};

constexpr std::array<Entry, 2> kPolicies = {{
    {"lru", [] { return std::unique_ptr<EvictionPolicy>(std::make_unique<Lru>()); }},
    {"gdsf", [] { return std::unique_ptr<EvictionPolicy>(std::make_unique<Gdsf>()); }},
}};

}  // namespace

std::vector<std::string> EvictionPolicyNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kPolicies) names.emplace_back(entry.name);
  return names;
}

Result<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(std::string_view name) {
  for (const Entry& entry : kPolicies) {
    if (entry.name == name) return entry.make();
  }
  std::string valid;
  for (const Entry& entry : kPolicies) valid += (valid.empty() ? "" : ", ") + std::string(entry.name);
  return InvalidArgument("eviction policy: expected one of " + valid + ", found '" + std::string(name) + "'",
                         "--eviction");
}

}  // namespace loramux
