// The blocks of the prompts that the server computed lately (cluster/prefix_blocks.h), for routers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "cluster/prefix_blocks.h"

namespace loramux {

// Thread-safe. Costs nothing while no router asks: then no request needs to take the text of its prompt.
class PrefixMemory {
 public:
  // Prompts are wanted for so long after a router has asked.
  static constexpr TimeNs kWantedFor = 60 * kNsPerSecond;

  // A router asks for snapshots.
  void Want(TimeNs now) { wanted_until_.store(now + kWantedFor, std::memory_order_relaxed); }
  // Whether a request that arrives now should bring the blocks of its prompt.
  bool wanted(TimeNs now) const { return now < wanted_until_.load(std::memory_order_relaxed); }

  // The keys and values of a prompt with these blocks were computed.
  void Use(const std::vector<std::uint32_t>& blocks, TimeNs now);
  // Forgets what goes beyond the tokens that the server has cached, and returns all fingerprints, ascending. The same
  // object if nothing changed since the last call.
  std::shared_ptr<const std::vector<std::uint32_t>> All(std::int64_t cached_tokens);

 private:
  std::atomic<TimeNs> wanted_until_ = 0;
  std::mutex mutex_;
  PrefixLedger ledger_;
  bool changed_ = true;  // since all_ was made
  std::shared_ptr<const std::vector<std::uint32_t>> all_;
};

}  // namespace loramux
