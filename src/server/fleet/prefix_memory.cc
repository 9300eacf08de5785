#include "server/fleet/prefix_memory.h"

namespace loramux {

void PrefixMemory::Use(const std::vector<std::uint32_t>& blocks, TimeNs now) {
  if (blocks.empty()) return;
  const std::lock_guard lock(mutex_);
  ledger_.Use(blocks, now);
  changed_ = true;
}

std::shared_ptr<const std::vector<std::uint32_t>> PrefixMemory::All(std::int64_t cached_tokens) {
  const std::lock_guard lock(mutex_);
  const std::size_t before = ledger_.size();
  ledger_.Shrink(cached_tokens);
  if (changed_ || ledger_.size() != before || all_ == nullptr) {
    all_ = std::make_shared<const std::vector<std::uint32_t>>(ledger_.All());
    changed_ = false;
  }
  return all_;
}

}  // namespace loramux
