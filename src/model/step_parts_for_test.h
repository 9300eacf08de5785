// What tests hand to a step on a device: a constraint of tokens, and events that only count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "gpu/device.h"
#include "memory/layer_progress.h"
#include "step/token_constraint.h"

namespace loramux::device_model_test {

// Allows every third token.
class EveryThird final : public TokenConstraint {
 public:
  EveryThird() {
    for (std::size_t id = 0; id < 96; id += 3) mask_[id / 32] |= 1u << (id % 32);
  }
  void Advance(TokenId /*token*/) override {}
  std::span<const std::uint32_t> Allowed() override { return mask_; }
  const Error* failure() const override { return nullptr; }

 private:
  std::uint32_t mask_[3] = {};
};

// Counts the waits that are enqueued.
class CountingEvents final : public LayerEvents {
 public:
  explicit CountingEvents(std::vector<std::int64_t>& waits) : waits_(waits) {}
  void EnqueueWait(DeviceStream& /*stream*/, std::int64_t layer) const override { waits_.push_back(layer); }

 private:
  std::vector<std::int64_t>& waits_;
};

}  // namespace loramux::device_model_test
