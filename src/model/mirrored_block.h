// Memory that lies twice: pinned on the host, and on the device. Both sides use the same places.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/result.h"
#include "gpu/device.h"
#include "memory/arena.h"

namespace loramux {

// An array on both sides.
template <typename T>
struct StepPlace {
  T* host = nullptr;
  T* device = nullptr;
  std::size_t count = 0;

  void CopyToDevice(DeviceStream& stream) const {
    if (count > 0) stream.CopyToDevice(device, host, count * sizeof(T));
  }
  void CopyToHost(DeviceStream& stream) const {
    if (count > 0) stream.CopyToHost(host, device, count * sizeof(T));
  }
};

// Hands out arrays one after the other. Not thread-safe.
class MirroredBlock {
 public:
  static constexpr std::size_t kAlignment = 64;

  // Makes room for `bytes` bytes and forgets what was taken. Bytes of arrays must be rounded up to kAlignment. Error:
  // no memory; `name` appears in it. REQUIRES: earlier copies are done.
  Status Begin(Device& device, std::string_view name, std::int64_t bytes) {
    used_ = 0;
    if (bytes == 0 || (host_ != nullptr && host_->size() >= bytes)) return Ok{};
    host_ = nullptr;
    on_device_ = nullptr;
    ++generation_;
    ASSIGN_OR_RETURN(std::unique_ptr<Arena> host, device.AllocatePinned(name, bytes));
    ASSIGN_OR_RETURN(on_device_, device.Allocate(name, bytes));
    host_ = std::move(host);
    return Ok{};
  }

  // REQUIRES: there is room.
  template <typename T>
  StepPlace<T> Take(std::size_t count) {
    if (count == 0) return {};
    const std::size_t at = used_;
    used_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    CHECK(host_ != nullptr && static_cast<std::int64_t>(used_) <= host_->size());
    return {reinterpret_cast<T*>(host_->base() + at), reinterpret_cast<T*>(on_device_->base() + at), count};
  }

  // Copies all that was taken so far.
  void CopyToDevice(DeviceStream& stream) const { CopyToDevice(stream, used_); }

  // How often the memory has changed: earlier addresses are no longer valid.
  std::uint64_t generation() const { return generation_; }
  // Copies the first `bytes` bytes that were taken.
  void CopyToDevice(DeviceStream& stream, std::size_t bytes) const {
    CHECK_LE(bytes, used_);
    if (bytes > 0) stream.CopyToDevice(on_device_->base(), host_->base(), bytes);
  }
  std::size_t used() const { return used_; }
  // Bytes on the device.
  std::int64_t bytes() const { return on_device_ == nullptr ? 0 : on_device_->size(); }

 private:
  std::unique_ptr<Arena> host_, on_device_;
  std::size_t used_ = 0;
  std::uint64_t generation_ = 0;
};

}  // namespace loramux
