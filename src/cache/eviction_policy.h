// What gives way when memory is short: idle adapters and idle pages of keys and values, weighed on one scale. A policy is a
// pure function of what is known about a candidate; the planner applies it (schedule/scheduler.h), the residency manager
// and the dependency tree carry the decision out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace loramux {

// How it would come back.
enum class ReloadFrom : std::uint8_t {
  kHost,        // a copy
  kDisk,        // read, converted and packed
  kComputation  // keys and values: the tokens' prefill again
};

struct EvictionCandidate {
  std::int64_t pages = 0;        // what evicting it would free
  TimeNs last_use = 0;
  double uses = 0;               // by requests: of an adapter all so far, of keys and values the decaying frequency
  ReloadFrom reload = ReloadFrom::kDisk;
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // The candidate with the lowest score goes first.
  virtual double Score(const EvictionCandidate& candidate, TimeNs now) const = 0;
  virtual std::string_view name() const = 0;
};

// "lru": least recently used first (vLLM-LoRA), adapters and keys and values alike.
// "gdsf": GreedyDual-Size-Frequency (Cherkasova 1998) over idle time: value = uses x reload cost / (size x age); a
//         frequently used adapter that is small for what its reload costs stays longest.
// Error: an unknown name; the message lists the valid ones.
Result<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(std::string_view name);
std::vector<std::string> EvictionPolicyNames();

}  // namespace loramux
