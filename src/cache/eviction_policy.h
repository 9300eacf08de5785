// Which idle adapter gives way. A policy is a pure function of what is known about a candidate; the planner applies it
// (schedule/scheduler.h) and the residency manager carries the decision out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"

namespace loramux {

struct EvictionCandidate {
  AdapterGeneration adapter;
  std::int64_t pages = 0;        // what evicting it would free
  TimeNs last_use = 0;
  std::int64_t uses = 0;         // requests that used it so far
  bool in_host_tier = false;     // getting it back costs a copy, otherwise a read from disk
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // The candidate with the lowest score goes first; equal scores: the lower generation first.
  virtual double Score(const EvictionCandidate& candidate, TimeNs now) const = 0;
  virtual std::string_view name() const = 0;
};

// "lru": least recently used first (vLLM-LoRA).
// "gdsf": GreedyDual-Size-Frequency (Cherkasova 1998) over idle time: value = uses x reload cost / (size x age); a
//         frequently used adapter that is small for what its reload costs stays longest.
// Error: an unknown name; the message lists the valid ones.
Result<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(std::string_view name);
std::vector<std::string> EvictionPolicyNames();

}  // namespace loramux
