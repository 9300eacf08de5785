// Vectors in a device's memory, for tests of kernels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"
#include "gpu/device.h"

namespace loramux::gpu {

// Copies of vectors to and from a device. What was uploaded lives as long as this.
class DeviceVectors {
 public:
  explicit DeviceVectors(Device& device) : device_(device), stream_(device.CreateStream().value()) {}

  DeviceStream& stream() { return *stream_; }

  template <typename T>
  T* Upload(const std::vector<T>& values) {
    const std::size_t bytes = std::max<std::size_t>(16, values.size() * sizeof(T));
    arenas_.push_back(device_.Allocate("test", static_cast<std::int64_t>(bytes)).value());
    const auto pinned = device_.AllocatePinned("test", static_cast<std::int64_t>(bytes)).value();
    if (!values.empty()) std::memcpy(pinned->base(), values.data(), values.size() * sizeof(T));
    stream_->CopyToDevice(arenas_.back()->base(), pinned->base(), bytes);
    Synchronize();
    return reinterpret_cast<T*>(arenas_.back()->base());
  }
  template <typename T>
  std::vector<T> Download(const T* device, std::size_t count) {
    if (count == 0) {
      Synchronize();
      return {};
    }
    const auto pinned = device_.AllocatePinned("test", static_cast<std::int64_t>(count * sizeof(T))).value();
    stream_->CopyToHost(pinned->base(), device, count * sizeof(T));
    Synchronize();
    std::vector<T> values(count);
    std::memcpy(values.data(), pinned->base(), count * sizeof(T));
    return values;
  }
  void Synchronize() {
    const Status status = stream_->Synchronize();
    if (!status.ok()) CheckFailed(__FILE__, __LINE__, status.error().message);
  }

 private:
  Device& device_;
  std::unique_ptr<DeviceStream> stream_;
  std::vector<std::unique_ptr<Arena>> arenas_;
};

}  // namespace loramux::gpu
